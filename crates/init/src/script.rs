//! What a shell reads its lines from.
//!
//! A plain shell has a FIFO. bash would read that a byte a system call, as all that can't be sought in, so it
//! has a file, which init appends to. Where the file ends, bash would end too: each line is followed by one
//! that opens a *gate*, a FIFO that nobody has opened for writing, and open(2) waits there until init does.
//!
//! ```text
//!   line │ open gate 1 │ line │ open gate 2 │ line │ open gate 3
//!                                            ^ said: appended, then gate 2 is opened
//! ```
//!
//! A gate is used once: a child of init's may hold one open for a while that init has closed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use sandkasten_protocol::Shell;

use crate::lookup;
use crate::poll::{Poller, Token, Want};
use crate::processes::Proc;
use crate::runtime::{Entry, RunDir, ScriptPlace};
use crate::state::write_at;

/// bash reads a script in blocks of the size that it has at the start, 8192 bytes at most.
const BLOCK_BYTES: usize = 2048;
/// Of lines that were read so much is kept, a multiple of the page size.
const READ_BYTES_KEPT: u64 = 64 * 1024;
/// Gates that are kept open: the one before the line that runs, and the one before that.
const OPEN_MAX: usize = 2;

#[derive(Debug)]
pub(crate) enum Script {
    Fifo(FifoScript),
    File(FileScript),
}

#[derive(Debug)]
pub(crate) struct FifoScript {
    id: u32,
    write: OwnedFd,
    /// Lines on their way to the shell. It may be stopped, so they can wait here.
    pending: Vec<u8>,
    is_watched: bool,
}

#[derive(Debug)]
pub(crate) struct FileScript {
    file: OwnedFd,
    length: u64,
    /// Where the text begins that was appended last. The shell may read that again from any line of it on,
    /// when it has forked.
    last_from: u64,
    /// From here on the file has blocks.
    kept_from: u64,
    /// The gate at the end of the file.
    last: Gate,
    /// For the line that is said next.
    spare: Option<Gate>,
    /// Those that were opened last. The shell is through when it has answered the line behind.
    open: VecDeque<(Gate, OwnedFd)>,
}

/// A FIFO that the shell opens for reading.
#[derive(Debug)]
struct Gate {
    name: Entry,
    fifo: OwnedFd,
}

impl Script {
    /// A script of this name whose first line is `first`; the place goes when the shell has opened it.
    ///
    /// # Errors
    /// No descriptor, or no room in the run directory.
    pub(crate) fn new(
        (poller, run): (&mut Poller, &RunDir),
        (kind, name): (Shell, &'static str),
        first: &[u8],
    ) -> io::Result<(Self, ScriptPlace)> {
        let place = run.script_place(name)?;
        let script = match kind {
            Shell::Bash => Self::File(FileScript::new(place.file()?, Gate::new(run)?, first)?),
            Shell::Sh => {
                let (id, write) = (poller.fresh_id(), place.fifo()?);
                let pending = first.to_vec();
                let mut fifo = FifoScript { id, write, pending, is_watched: false };
                fifo.write(poller);
                Self::Fifo(fifo)
            }
        };
        Ok((script, place))
    }

    /// Gives the shell a line. It has answered all that it was given before.
    ///
    /// # Errors
    /// The box's root has filled the place: the shell will never have the line.
    pub(crate) fn say(&mut self, (poller, run): (&Poller, &RunDir), line: &[u8]) -> io::Result<()> {
        match self {
            Self::Fifo(fifo) => {
                fifo.pending.extend_from_slice(line);
                fifo.write(poller);
                Ok(())
            }
            Self::File(file) => file.say(run, line),
        }
    }

    /// The shell has its script open. No other program of the payload's reads what is in a file: it may be
    /// another command's.
    pub(crate) fn hide(&self) {
        if let Self::File(file) = self {
            // It is ours, so this works.
            let _ = rustix::fs::fchmod(&file.file, Mode::empty());
        }
    }

    /// Makes what the next line will need, while nobody waits.
    pub(crate) fn make_spare(&mut self, run: &RunDir) {
        if let Self::File(file) = self
            && file.spare.is_none()
        {
            // Without room the next line tries again.
            file.spare = Gate::new(run).ok();
        }
    }

    /// An event of it: there is room for more.
    pub(crate) fn on_event(&mut self, poller: &Poller, token: Token) {
        if let Self::Fifo(fifo) = self
            && token == Token::Script(fifo.id)
        {
            fifo.write(poller);
        }
    }

    /// Whether the shell has taken all that it was given and waits for more. The caller has the rights to
    /// ask.
    pub(crate) fn is_awaited(&self, proc: &Proc, shell: Pid) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.is_empty() && proc.reads_from(shell, &fifo.write),
            Self::File(file) => proc.opens(shell, file.last.name.path().as_bytes()),
        }
    }

    pub(crate) fn close(&self, poller: &Poller) {
        if let Self::Fifo(fifo) = self
            && fifo.is_watched
        {
            poller.remove(&fifo.write);
        }
    }
}

impl FileScript {
    fn new(file: OwnedFd, last: Gate, first: &[u8]) -> io::Result<Self> {
        let mut text = last.behind(first);
        let (spare, open) = (None, VecDeque::new());
        let mut script = Self { file, length: 0, last_from: 0, kept_from: 0, last, spare, open };
        // Filled up to a block by a comment.
        let short = BLOCK_BYTES.saturating_sub(text.len() + 2);
        text.push(b'#');
        text.resize(text.len() + short, b' ');
        text.push(b'\n');
        script.append(&text)?;
        Ok(script)
    }

    fn say(&mut self, run: &RunDir, line: &[u8]) -> io::Result<()> {
        self.forget();
        let next = self.spare.take().map_or_else(|| Gate::new(run), Ok)?;
        self.append(&next.behind(line))?;
        let gate = std::mem::replace(&mut self.last, next);
        let open = gate.open()?;
        self.open.push_back((gate, open));
        if self.open.len() > OPEN_MAX {
            self.open.pop_front();
        }
        Ok(())
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        write_at(&self.file, self.length, text)?;
        self.last_from = self.length;
        self.length += text.len() as u64;
        Ok(())
    }

    /// Gives the room of what was read back.
    fn forget(&mut self) {
        let whole = self.last_from - self.last_from % READ_BYTES_KEPT;
        if whole > self.kept_from {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Where that fails there is less room.
            let _ = rustix::fs::fallocate(&self.file, hole, self.kept_from, whole - self.kept_from);
            self.kept_from = whole;
        }
    }
}

impl Gate {
    fn new(run: &RunDir) -> io::Result<Self> {
        let (name, fifo) = run.gate()?;
        Ok(Self { name, fifo })
    }

    /// A text that ends here. No word stands behind it that could be an alias, a function or disabled.
    fn behind(&self, text: &[u8]) -> Vec<u8> {
        [text, format!("3<{}\n", self.name.path()).as_bytes()].concat()
    }

    /// Lets the shell through, now or when it comes.
    fn open(&self) -> io::Result<OwnedFd> {
        // Not by its name: the box's root may have removed that.
        Ok(lookup::reopen(&self.fifo, OFlags::RDWR | OFlags::NONBLOCK)?)
    }
}

impl FifoScript {
    fn is_empty(&self) -> bool {
        self.pending.is_empty() && rustix::io::ioctl_fionread(&self.write) == Ok(0)
    }

    fn write(&mut self, poller: &Poller) {
        while !self.pending.is_empty() {
            match rustix::io::write(&self.write, &self.pending) {
                Ok(length) => drop(self.pending.drain(..length)),
                Err(Errno::INTR) => {}
                // Full: the poller tells when it isn't. Other errors can't come from a FIFO of ours.
                Err(_) => break,
            }
        }
        self.watch(poller);
    }

    fn watch(&mut self, poller: &Poller) {
        let wanted = !self.pending.is_empty();
        if wanted && !self.is_watched {
            let token = Token::Script(self.id);
            self.is_watched = poller.add(&self.write, token, Want::Write).is_ok();
        } else if !wanted && self.is_watched {
            poller.remove(&self.write);
            self.is_watched = false;
        }
    }
}

#[cfg(test)]
mod test {
    use std::os::fd::AsRawFd;

    use super::*;

    /// What was said last is whole when more is said, wherever in it a block ends; what was before gives its
    /// room back.
    #[test]
    fn only_what_was_read_goes() {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::at(dir.path()).unwrap();
        let place = run.script_place("bash").unwrap();
        let gate = Gate::new(&run).unwrap();
        let mut script = FileScript::new(place.file().unwrap(), gate, b"first\n").unwrap();
        assert_eq!(script.length, BLOCK_BYTES as u64);
        let mut before = 0;
        for short in 0..60 {
            // It ends so many bytes behind the end of a block, and the next one is short.
            let to_end = READ_BYTES_KEPT - script.length % READ_BYTES_KEPT;
            for length in [usize::try_from(to_end).unwrap() + short, 10] {
                let from = std::mem::replace(&mut before, usize::try_from(script.length).unwrap());
                script.say(&run, &vec![b'x'; length]).unwrap();
                let path = format!("/proc/self/fd/{}/bash", place.dir.as_raw_fd());
                let text = std::fs::read(path).unwrap();
                assert_eq!(text.len() as u64, script.length);
                assert!(!text[from..].contains(&0) && text[from..].ends_with(b"\n"), "{short}");
            }
        }
        let blocks = rustix::fs::fstat(&script.file).unwrap().st_blocks;
        assert!(blocks.cast_unsigned() * 512 <= 3 * READ_BYTES_KEPT, "{blocks} blocks");
    }
}
