//! What a shell says when a line is over: two words and a NUL on a FIFO of that line alone.

use std::io;

use rustix::io::Errno;

use crate::poll::{Poller, Token, Want};
use crate::runtime::{Fifo, RunDir};

/// The second word is a path, which the payload chooses.
const RECORD_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) id: u32,
    fifo: Fifo,
    text: Vec<u8>,
}

/// What was read so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    NotYet,
    Record(Record),
    /// The other side wrote something else.
    Broken,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) word: Vec<u8>,
    pub(crate) pwd: Vec<u8>,
}

impl Status {
    pub(crate) fn new(poller: &mut Poller, run: &mut RunDir) -> io::Result<Self> {
        let fifo = run.status_fifo()?;
        let id = poller.fresh_id();
        poller.add(&fifo.read, Token::Status(id), Want::Read)?;
        Ok(Self { id, fifo, text: Vec::new() })
    }

    pub(crate) fn path(&self) -> String {
        self.fifo.path()
    }

    /// Reads what is there. A shell that says nothing is found out by looking at it.
    pub(crate) fn read(&mut self) -> Said {
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.fifo.read, &mut buffer) {
                Ok(0) => return Said::Broken,
                Ok(length) => self.text.extend(buffer.get(..length).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Said::NotYet,
                Err(_) => return Said::Broken,
            }
            if let Some(end) = self.text.iter().position(|b| *b == 0) {
                return self.text.get(..end).and_then(parse).map_or(Said::Broken, Said::Record);
            }
            if self.text.len() > RECORD_BYTES_MAX {
                return Said::Broken;
            }
        }
    }

    /// Asks the poller to tell no more.
    pub(crate) fn unwatch(&self, poller: &Poller) {
        poller.remove(&self.fifo.read);
    }

    pub(crate) fn close(self, poller: &Poller) {
        self.unwatch(poller);
    }
}

fn parse(text: &[u8]) -> Option<Record> {
    let space = text.iter().position(|b| *b == b' ')?;
    let (word, pwd) = text.split_at(space);
    Some(Record { word: word.to_vec(), pwd: pwd.get(1..)?.to_vec() })
}

impl Record {
    /// The first word as the exit code of a shell.
    pub(crate) fn code(&self) -> Option<i32> {
        let code = std::str::from_utf8(&self.word).ok()?.parse().ok()?;
        (0..=255).contains(&code).then_some(code)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn record(text: &[u8]) -> Option<(Option<i32>, Vec<u8>)> {
        parse(text).map(|r| (r.code(), r.pwd))
    }

    #[test]
    fn records() {
        assert_eq!(record(b"0 /a b"), Some((Some(0), b"/a b".to_vec())));
        assert_eq!(record(b"7 "), Some((Some(7), Vec::new())));
        assert_eq!(record(b"256 /"), Some((None, b"/".to_vec())));
        assert_eq!(record(b"-1 /"), Some((None, b"/".to_vec())));
        assert_eq!(record(b"0"), None);
    }
}
