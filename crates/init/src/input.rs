//! What a run reads: bytes of the engine's on their way to a pipe, a FIFO or a terminal.
//!
//! ```text
//!   FIFO that the shell has not opened ── IN_OPEN ──> FIFO ── all is written, all is read ──> closed
//!   program's pipe, program's terminal ──────────────┬── all is written ──────────> closed
//!                                                    └── reader is gone ──> the rest is dropped
//! ```
//!
//! A FIFO is open here until it is read, since one without a writer can't be opened any more, as
//! `cat /dev/stdin` does.
//!
//! Nothing here waits: what the reader does not take stays in memory, beyond [`IN_MEMORY_BYTES`] in an
//! unnamed file in the spool directory. Bytes count as taken when they are written or dropped.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::termios::{LocalModes, SpecialCodeIndex};
use sandkasten_protocol::{DATA_BYTES_MAX, STDIN_WINDOW_BYTES};

use crate::poll::{Poller, Token, Want};
use crate::runtime::{Fifo, RunDir};
use crate::state::{unnamed_file, write_at};

const IN_MEMORY_BYTES: usize = 64 * 1024;
/// Writes in a row: a fast reader must not keep the loop.
const WRITES_MAX: u32 = 8;

#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) id: u32,
    to: To,
    waiting: Queue,
    more: More,
    flow: Flow,
    taken: u64,
    is_watched: bool,
}

/// Whether bytes may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Held,
    Open,
}

/// Whether bytes will follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    MayCome,
    Never,
}

/// More bytes wait than the engine may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Overfull;

#[derive(Debug)]
enum To {
    /// A command that waits for its turn.
    Later,
    /// A FIFO that is open here for both, so that whoever opens it to read need not wait. A
    /// descriptor of inotify tells when somebody has.
    Unopened {
        fifo: Fifo,
        opens: OwnedFd,
    },
    /// `opens` tells of reads too.
    Fifo {
        write: OwnedFd,
        opens: OwnedFd,
    },
    /// All is written to that FIFO, not all is read.
    Draining {
        write: OwnedFd,
        opens: OwnedFd,
    },
    Pipe(OwnedFd),
    /// The master of a PTY.
    Terminal(OwnedFd),
    /// All is written, or nobody reads.
    Nowhere,
}

impl Input {
    /// Input of a command, which may have to wait for its turn.
    pub(crate) fn for_command(poller: &mut Poller) -> Self {
        Self::new(poller, To::Later)
    }

    /// It is the command's turn: the shell reads it from [`Self::path`].
    ///
    /// # Errors
    /// No descriptor, no inotify instance or no room for a FIFO.
    pub(crate) fn open_for_shell(&mut self, poller: &Poller, run: &RunDir) -> io::Result<()> {
        let fifo = run.fifo_for_reading()?;
        let opens = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&opens, fifo.path(), WatchFlags::OPEN | WatchFlags::ACCESS)?;
        poller.add(&opens, Token::Input(self.id), Want::Read)?;
        self.is_watched = true;
        self.to = To::Unopened { fifo, opens };
        self.pump(poller);
        Ok(())
    }

    /// It is the command's turn, and a program of its own reads it: the write end of a pipe,
    /// non-blocking.
    pub(crate) fn open_for_program(&mut self, poller: &Poller, write: OwnedFd) {
        self.to = To::Pipe(write);
        self.pump(poller);
    }

    /// Input of a program: the write end of a pipe, non-blocking.
    pub(crate) fn for_pipe(poller: &mut Poller, write: OwnedFd) -> Self {
        Self::new(poller, To::Pipe(write))
    }

    /// Input of a program on a PTY: its master, non-blocking. A terminal echoes what it is given, so
    /// nothing goes there before [`Self::release`].
    pub(crate) fn for_terminal(poller: &mut Poller, master: OwnedFd) -> Self {
        Self { flow: Flow::Held, ..Self::new(poller, To::Terminal(master)) }
    }

    /// The program runs.
    pub(crate) fn release(&mut self, poller: &Poller) {
        if std::mem::replace(&mut self.flow, Flow::Open) == Flow::Held {
            self.pump(poller);
        }
    }

    fn new(poller: &mut Poller, to: To) -> Self {
        let (id, waiting) = (poller.fresh_id(), Queue::default());
        Self { id, to, waiting, more: More::MayCome, flow: Flow::Open, taken: 0, is_watched: false }
    }

    /// Where the shell finds it. `None`: it has it open already.
    pub(crate) fn path(&self) -> Option<String> {
        match &self.to {
            To::Unopened { fifo, .. } => Some(fifo.path()),
            To::Later
            | To::Fifo { .. }
            | To::Draining { .. }
            | To::Pipe(_)
            | To::Terminal(_)
            | To::Nowhere => None,
        }
    }

    /// Takes more from the engine. What comes behind [`More::Never`] is dropped.
    ///
    /// # Errors
    /// [`Overfull`]: the engine has broken its word.
    pub(crate) fn push(
        &mut self,
        poller: &Poller,
        spool: Option<&OwnedFd>,
        (data, more): (&[u8], More),
    ) -> Result<(), Overfull> {
        if self.more == More::Never || matches!(self.to, To::Nowhere) {
            self.taken += data.len() as u64;
            return Ok(());
        }
        if self.waiting.len() + data.len() as u64 > STDIN_WINDOW_BYTES {
            return Err(Overfull);
        }
        self.waiting.push(spool, data);
        self.more = more;
        self.pump(poller);
        Ok(())
    }

    /// Something has happened to where the bytes go.
    pub(crate) fn on_event(&mut self, poller: &Poller) {
        match &self.to {
            To::Unopened { opens, .. } if says_something(opens) => self.on_opened(poller),
            To::Unopened { .. } => return,
            // What it says is that something was read.
            To::Draining { opens, .. } => drop(says_something(opens)),
            To::Later | To::Fifo { .. } | To::Pipe(_) | To::Terminal(_) | To::Nowhere => {}
        }
        self.pump(poller);
    }

    /// Bytes that were taken since this was last asked.
    pub(crate) fn take_taken(&mut self) -> u64 {
        std::mem::take(&mut self.taken)
    }

    /// Ends it. Gives the bytes that were not told of as taken.
    pub(crate) fn close(mut self, poller: &Poller) -> u64 {
        self.end(poller);
        self.taken
    }

    /// The shell reads. From here on init is no reader itself, so that it sees when the last one goes.
    fn on_opened(&mut self, poller: &Poller) {
        self.watch(poller, Wanted::No);
        if let To::Unopened { fifo, opens } = std::mem::replace(&mut self.to, To::Nowhere) {
            // Without a descriptor for it the one that is there must do: then the bytes for a reader
            // that goes wait for the end of the command.
            let write = fifo.name.open_for_writing().unwrap_or(fifo.read);
            self.to = To::Fifo { write, opens };
        }
    }

    fn on_written(&mut self, poller: &Poller) {
        self.watch(poller, Wanted::No);
        if let To::Fifo { write, opens } = std::mem::replace(&mut self.to, To::Nowhere) {
            self.to = To::Draining { write, opens };
            self.watch(poller, Wanted::Yes);
            // Asked after it is watched: a read from here on is told of.
            self.on_empty(poller);
        }
    }

    fn pump(&mut self, poller: &Poller) {
        if self.flow == Flow::Held || matches!(self.to, To::Later) {
            return;
        }
        for _ in 0..WRITES_MAX {
            let written = match (self.waiting.front(), self.to.write()) {
                (_, None) | (Err(_), _) => return self.end(poller),
                (Ok([]), Some(_)) => return self.on_empty(poller),
                (Ok(bytes), Some(write)) => rustix::io::write(write, bytes),
            };
            match written {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(length) => {
                    self.waiting.consume(length);
                    self.taken += length as u64;
                }
                Err(Errno::INTR) => {}
                // EPIPE; of a terminal, EIO.
                Err(_) => return self.end(poller),
            }
        }
        self.watch(poller, Wanted::Yes);
    }

    fn on_empty(&mut self, poller: &Poller) {
        match (&self.to, self.more) {
            // Whoever opens it later must find its end, not wait for a writer.
            (To::Later | To::Unopened { .. }, _) => {}
            (To::Draining { write, .. }, _) => {
                if rustix::io::ioctl_fionread(write).unwrap_or(0) == 0 {
                    self.end(poller);
                }
            }
            (To::Fifo { .. }, More::Never) => self.on_written(poller),
            (To::Fifo { .. } | To::Pipe(_) | To::Terminal(_) | To::Nowhere, More::MayCome) => {
                self.watch(poller, Wanted::No);
            }
            (To::Terminal(master), More::Never) => {
                say_end(master);
                self.end(poller);
            }
            (To::Pipe(_) | To::Nowhere, More::Never) => self.end(poller),
        }
    }

    fn end(&mut self, poller: &Poller) {
        self.watch(poller, Wanted::No);
        self.to = To::Nowhere;
        self.taken += self.waiting.len();
        self.waiting = Queue::default();
    }

    fn watch(&mut self, poller: &Poller, wanted: Wanted) {
        let (fd, want) = match &self.to {
            To::Unopened { opens, .. } | To::Draining { opens, .. } => (opens, Want::Read),
            To::Fifo { write, .. } | To::Pipe(write) | To::Terminal(write) => (write, Want::Write),
            To::Later | To::Nowhere => return,
        };
        match (wanted, self.is_watched) {
            (Wanted::Yes, false) => {
                self.is_watched = poller.add(fd, Token::Input(self.id), want).is_ok();
            }
            (Wanted::No, true) => {
                poller.remove(fd);
                self.is_watched = false;
            }
            (Wanted::Yes, true) | (Wanted::No, false) => {}
        }
    }
}

/// Empties a descriptor of inotify. Whether there was an event.
fn says_something(opens: &OwnedFd) -> bool {
    let mut space = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(opens, &mut space);
    let mut was_there = false;
    // One read gives all that fits; the buffer is empty then.
    while reader.next().is_ok() {
        was_there = true;
        if reader.is_buffer_empty() {
            break;
        }
    }
    was_there
}

/// Whether the poller is to tell when bytes can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
}

impl To {
    fn write(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Unopened { fifo, .. } => Some(fifo.read.as_fd()),
            Self::Fifo { write, .. } | Self::Draining { write, .. } => Some(write.as_fd()),
            Self::Pipe(fd) | Self::Terminal(fd) => Some(fd.as_fd()),
            Self::Later | Self::Nowhere => None,
        }
    }
}

/// Says the end as a person at a terminal does. Behind an unfinished line the first one ends that line
/// only. In raw mode a terminal has no end.
fn say_end(master: &OwnedFd) {
    let Ok(modes) = rustix::termios::tcgetattr(master) else { return };
    if modes.local_modes.contains(LocalModes::ICANON) {
        let end = modes.special_codes[SpecialCodeIndex::VEOF];
        // Where there is no room nobody reads.
        let _ = rustix::io::write(master, &[end, end]);
    }
}

/// Bytes in order: first those in memory, then those in a file, used as a ring, then those that no file
/// could take.
#[derive(Debug, Default)]
struct Queue {
    head: Vec<u8>,
    /// Bytes of `head` that are gone already.
    gone: usize,
    file: Option<OwnedFd>,
    start: u64,
    in_file: u64,
    tail: Vec<u8>,
}

impl Queue {
    fn len(&self) -> u64 {
        (self.head.len() - self.gone + self.tail.len()) as u64 + self.in_file
    }

    fn push(&mut self, spool: Option<&OwnedFd>, data: &[u8]) {
        let is_in_memory = self.in_file == 0 && self.tail.is_empty();
        if is_in_memory && self.head.len() - self.gone + data.len() <= IN_MEMORY_BYTES {
            self.head.drain(..self.gone);
            self.gone = 0;
            self.head.extend_from_slice(data);
        } else if !self.tail.is_empty() || self.push_to_file(spool, data).is_err() {
            self.tail.extend_from_slice(data);
        }
    }

    fn push_to_file(&mut self, spool: Option<&OwnedFd>, data: &[u8]) -> io::Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => unnamed_file(spool.ok_or(io::ErrorKind::Unsupported)?)?,
        };
        let file = self.file.insert(file);
        let mut at = (self.start + self.in_file) % STDIN_WINDOW_BYTES;
        let to_edge = usize::try_from(STDIN_WINDOW_BYTES - at).unwrap_or(usize::MAX);
        let (first, second) = data.split_at(to_edge.min(data.len()));
        for part in [first, second] {
            write_at(file, at, part)?;
            at = 0;
        }
        self.in_file += data.len() as u64;
        Ok(())
    }

    /// Some of the next bytes. Empty: there are none.
    fn front(&mut self) -> io::Result<&[u8]> {
        if self.head.len() == self.gone {
            self.gone = 0;
            self.head.clear();
            if self.in_file > 0 {
                self.read_file()?;
            } else {
                std::mem::swap(&mut self.head, &mut self.tail);
            }
        }
        let rest = self.head.get(self.gone..).unwrap_or_default();
        Ok(rest.get(..DATA_BYTES_MAX).unwrap_or(rest))
    }

    fn read_file(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let length = self.in_file.min(STDIN_WINDOW_BYTES - self.start).min(DATA_BYTES_MAX as u64);
        self.head.resize(usize::try_from(length).unwrap_or(0), 0);
        let read = rustix::io::pread(file, &mut self.head, self.start)?;
        self.head.truncate(read);
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.in_file -= read as u64;
        self.start = (self.start + read as u64) % STDIN_WINDOW_BYTES;
        if self.in_file == 0 {
            self.start = 0;
            // The room is the host's; where that fails it stays taken until the end of the run.
            let _ = rustix::fs::ftruncate(file, 0);
        }
        Ok(())
    }

    fn consume(&mut self, length: usize) {
        self.gone = (self.gone + length).min(self.head.len());
    }
}

#[cfg(test)]
mod test {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn spool() -> OwnedFd {
        std::fs::File::open(std::env::temp_dir()).unwrap().into()
    }

    fn pattern(from: u64, length: usize) -> Vec<u8> {
        let cycle: Vec<u8> = (0..251).collect();
        let start = usize::try_from(from % 251).unwrap();
        cycle.repeat(length / cycle.len() + 2)[start..start + length].to_vec()
    }

    fn drain(queue: &mut Queue, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < most {
            let part = queue.front().unwrap();
            let part = part[..part.len().min(most - all.len())].to_vec();
            if part.is_empty() {
                break;
            }
            queue.consume(part.len());
            all.extend(part);
        }
        all
    }

    #[test]
    fn a_queue_keeps_its_order() {
        let dir = spool();
        for spool in [Some(&dir), None] {
            let mut queue = Queue::default();
            let (mut pushed, mut read) = (0, 0);
            // More comes than goes, round and round the ring.
            for round in 0..600 {
                let more = pattern(pushed, 300_000);
                if queue.len() + more.len() as u64 <= STDIN_WINDOW_BYTES {
                    queue.push(spool, &more);
                    pushed += more.len() as u64;
                }
                let part = drain(&mut queue, 199_999);
                assert_eq!(part, pattern(read, part.len()), "round {round}");
                read += part.len() as u64;
            }
            let rest = drain(&mut queue, usize::MAX);
            assert_eq!(rest, pattern(read, rest.len()));
            assert_eq!((read + rest.len() as u64, queue.len()), (pushed, 0));
        }
    }

    #[test]
    fn a_pipe_gets_all_and_then_its_end() {
        let mut poller = Poller::new().unwrap();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&write, true).unwrap();
        let dir = spool();
        let mut input = Input::for_pipe(&mut poller, write);
        let all = pattern(0, 3_000_000);
        for part in all.chunks(DATA_BYTES_MAX) {
            input.push(&poller, Some(&dir), (part, More::MayCome)).unwrap();
        }
        let at_once = input.take_taken();
        assert!(at_once > 0 && at_once < all.len() as u64);
        input.push(&poller, Some(&dir), (b"", More::Never)).unwrap();
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            std::io::Read::read_to_end(&mut std::fs::File::from(read), &mut got).unwrap();
            got
        });
        let mut taken = at_once;
        while taken < all.len() as u64 {
            assert_eq!(poller.wait(None).unwrap(), [Token::Input(input.id)]);
            input.on_event(&poller);
            taken += input.take_taken();
        }
        assert!(reader.join().unwrap() == all);
        assert_eq!(input.close(&poller), 0);
    }

    #[test]
    fn without_a_reader_all_is_taken() {
        let mut poller = Poller::new().unwrap();
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let mut input = Input::for_pipe(&mut poller, write);
        input.push(&poller, None, (&[1; 200_000], More::MayCome)).unwrap();
        drop(read);
        assert_eq!(poller.wait(None).unwrap(), [Token::Input(input.id)]);
        input.on_event(&poller);
        input.push(&poller, None, (b"more", More::Never)).unwrap();
        assert_eq!(input.take_taken(), 200_004);
    }

    #[test]
    fn too_much_is_refused() {
        let mut poller = Poller::new().unwrap();
        let (_read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        let mut input = Input::for_pipe(&mut poller, write);
        let dir = spool();
        let part = vec![0; 1 << 20];
        let window = usize::try_from(STDIN_WINDOW_BYTES).unwrap() / part.len();
        for _ in 0..window {
            input.push(&poller, Some(&dir), (&part, More::MayCome)).unwrap();
        }
        assert_eq!(input.push(&poller, Some(&dir), (&part, More::MayCome)), Err(Overfull));
        // What waits is in the file.
        assert!(input.waiting.head.len() <= IN_MEMORY_BYTES && input.waiting.tail.is_empty());
    }
}
