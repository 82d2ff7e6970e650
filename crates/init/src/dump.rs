//! The dump of a shell's state on its way to init: kept when it is whole.
//!
//! A shell writes a line a system call. So as not to be woken for each, init reads a dump when the
//! shell has closed its end, as long as the pipe holds all of it; a longer one is read as it comes.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use sandkasten_protocol::Shell;

use crate::clock::Moment;
use crate::poll::{Poller, Token, Want};
use crate::runtime::Fifo;
use crate::state::{DUMP_BYTES_MAX, Dump, Marks, Saved, Store, Words};
use crate::world::World;

/// Between two looks at a shell that writes nothing.
const LOOK: Duration = Duration::from_millis(50);
/// How long a dump may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are read before other events have their turn.
const TURN_BYTES: usize = 1024 * 1024;
/// What a pipe surely holds: dumps that may become longer are read as they come.
const PIPE_BYTES: usize = 48 * 1024;

/// A dump that was asked for.
#[derive(Debug)]
pub(crate) struct Dumping {
    id: u32,
    fifo: Fifo,
    kind: Shell,
    words: Words,
    want: Want,
    /// `None`: too big, or it could not be kept.
    text: Option<Store>,
    marks: Marks,
    look: Moment,
    until: Moment,
}

/// What was read so far.
#[derive(Debug)]
pub(crate) enum Got {
    NotYet,
    /// The shell has said all. `None`: more than can be kept.
    Whole(Option<Dump>),
    Broken,
}

impl Dumping {
    /// Makes the way for a dump. Nobody listens yet.
    ///
    /// # Errors
    /// No descriptor or no room for a FIFO.
    pub(crate) fn new(
        world: &mut World,
        (kind, words): (Shell, Words),
        saved: &Saved,
    ) -> io::Result<Self> {
        let fifo = world.run.fifo()?;
        let id = world.poller.fresh_id();
        let is_short = saved.dump_bytes().is_some_and(|bytes| bytes < PIPE_BYTES);
        let want = if is_short { Want::End } else { Want::Read };
        let now = Moment::now();
        let (look, until) = (now.after(LOOK), now.after(TIMEOUT));
        let (text, marks) = (Some(Store::new()), Marks::default());
        Ok(Self { id, fifo, kind, words, want, text, marks, look, until })
    }

    /// The shell writes it from now on, or has already.
    ///
    /// # Errors
    /// epoll's.
    pub(crate) fn listen(&mut self, poller: &Poller) -> io::Result<()> {
        let now = Moment::now();
        (self.look, self.until) = (now.after(LOOK), now.after(TIMEOUT));
        poller.add(&self.fifo.read, Token::Dump(self.id), self.want)
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn path(&self) -> String {
        self.fifo.path()
    }

    pub(crate) fn words(&self) -> Words {
        self.words
    }

    /// Reads what is there, but leaves some of much for the next turn. To be called when the poller
    /// tells, or when the shell writes no more: a FIFO that nobody has opened reads as ended.
    pub(crate) fn read(&mut self, saved: &Saved) -> Got {
        let mut buffer = [0; 16 * 1024];
        let mut turn = 0;
        while turn < TURN_BYTES {
            match rustix::io::read(&self.fifo.read, &mut buffer) {
                // The shell has closed its end: what it has not said it will not say.
                Ok(0) => return Got::Broken,
                Ok(length) => {
                    turn += length;
                    let bytes = buffer.get(..length).unwrap_or_default();
                    self.store(saved, bytes);
                    if self.marks.pass(bytes) {
                        let (kind, marks) = (self.kind, &self.marks);
                        let dump = |text| Dump::new(kind, text, marks);
                        return Got::Whole(self.text.take().map(dump));
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Got::NotYet,
                Err(_) => return Got::Broken,
            }
        }
        Got::NotYet
    }

    fn store(&mut self, saved: &Saved, bytes: &[u8]) {
        self.text = self.text.take().filter(|text| text.len() + bytes.len() <= DUMP_BYTES_MAX);
        if let Some(text) = &mut self.text
            && text.push(saved.spool(), bytes).is_err()
        {
            self.text = None;
        }
    }

    /// It takes long: a pipe that is full would hold the shell up.
    pub(crate) fn read_as_it_comes(&mut self, poller: &Poller) {
        if self.want == Want::End {
            self.want = Want::Read;
            // Where that fails the looks still read.
            drop(poller.change(&self.fifo.read, Token::Dump(self.id), self.want));
        }
    }

    pub(crate) fn next_moment(&self) -> Moment {
        self.look.min(self.until)
    }

    pub(crate) fn is_overdue(&self, now: Moment) -> bool {
        self.until <= now
    }

    /// Whether it is time to see if the shell still writes.
    pub(crate) fn is_look_due(&mut self, now: Moment) -> bool {
        let is_due = self.look <= now;
        if is_due {
            self.look = now.after(LOOK);
        }
        is_due
    }

    pub(crate) fn close(self, poller: &Poller) {
        poller.remove(&self.fifo.read);
    }
}
