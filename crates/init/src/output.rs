//! Where output comes from: FIFOs, pipes or the master of a PTY.
//!
//! A source is read to its end, even after its command is over: a background job that still writes
//! must neither wait nor die by SIGPIPE.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use sandkasten_protocol::{OutputMode, Stream};

use crate::line::Outputs;
use crate::poll::{Poller, Token, Want};
use crate::rights::Ids;
use crate::runtime::Fifo;
use crate::world::World;

/// Size of a PTY until somebody can say another.
pub(crate) const WINDOW: Winsize = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
const DEVPTS_MAGIC: i64 = 0x1cd1;

/// One stream of output.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) id: u32,
    pub(crate) stream: Stream,
    read: OwnedFd,
    /// A byte that was read to see whether there is one.
    ahead: Option<u8>,
    is_watched: bool,
    is_over: bool,
    /// Bytes that were there when the command ended, and so are its own.
    owed: u64,
}

/// The other ends, as the shell opens them. Closed and unnamed with this value.
#[derive(Debug)]
pub(crate) enum Sinks {
    Merged {
        output: String,
        _name: Name,
    },
    Split {
        stdout: String,
        stderr: String,
        _names: [Name; 2],
    },
    /// The slave is held until the shell has opened it: a master without one reads as ended.
    Pty {
        slave_path: String,
        _slave: OwnedFd,
    },
}

type Name = crate::runtime::Entry;

impl Sinks {
    pub(crate) fn outputs(&self) -> Outputs<'_> {
        match self {
            Self::Merged { output, .. } => Outputs::One(output),
            Self::Split { stdout, stderr, .. } => Outputs::Two { stdout, stderr },
            Self::Pty { slave_path, .. } => Outputs::One(slave_path),
        }
    }
}

/// Makes both ends for a command.
pub(crate) fn open(
    world: &mut World,
    mode: OutputMode,
    ids: Ids,
) -> io::Result<(Vec<Source>, Sinks)> {
    match mode {
        OutputMode::Merged => {
            let (output, name, source) = open_fifo(world, Stream::Output)?;
            Ok((vec![source], Sinks::Merged { output, _name: name }))
        }
        OutputMode::Split => {
            let (stdout, name1, source1) = open_fifo(world, Stream::Stdout)?;
            let (stderr, name2, source2) = open_fifo(world, Stream::Stderr)?;
            Ok((vec![source1, source2], Sinks::Split { stdout, stderr, _names: [name1, name2] }))
        }
        OutputMode::Pty => {
            let (master, slave) = open_pty(world, ids, WINDOW)?;
            let slave_path = rustix::pty::ptsname(&master, Vec::new())?;
            let slave_path =
                slave_path.into_string().map_err(|_not_text| io::ErrorKind::InvalidData)?;
            let source = Source::new(&mut world.poller, Stream::Pty, master);
            Ok((vec![source], Sinks::Pty { slave_path, _slave: slave }))
        }
    }
}

fn open_fifo(world: &mut World, stream: Stream) -> io::Result<(String, Name, Source)> {
    let Fifo { name, read } = world.run.fifo()?;
    let source = Source::new(&mut world.poller, stream, read);
    Ok((name.path(), name, source))
}

/// A fresh PTY whose slave belongs to `ids`, since the opener's ids become the slave's.
/// Gives its master, non-blocking, and the slave.
pub(crate) fn open_pty(world: &World, ids: Ids, window: Winsize) -> io::Result<(OwnedFd, OwnedFd)> {
    let master = world.rights.act_as(ids, || {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(CWD, "/dev/pts/ptmx", flags, Mode::empty(), resolve)
    })?;
    if rustix::fs::fstatfs(&master)?.f_type != DEVPTS_MAGIC {
        return Err(io::ErrorKind::NotFound.into());
    }
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    rustix::termios::tcsetwinsize(&master, window)?;
    Ok((master, slave))
}

impl Source {
    /// `read` is non-blocking.
    pub(crate) fn new(poller: &mut Poller, stream: Stream, read: OwnedFd) -> Self {
        let id = poller.fresh_id();
        Self { id, stream, read, ahead: None, is_watched: false, is_over: false, owed: 0 }
    }

    /// Asks the poller to tell of output, or not to. Without that even the end of a FIFO would wake
    /// the loop for ever.
    pub(crate) fn watch(&mut self, poller: &Poller, wanted: Wanted) {
        let wanted = wanted == Wanted::Yes && !self.is_over;
        if wanted && !self.is_watched {
            self.is_watched = poller.add(&self.read, Token::Output(self.id), Want::Read).is_ok();
        } else if !wanted && self.is_watched {
            poller.remove(&self.read);
            self.is_watched = false;
        }
    }

    /// Reads once. Nothing: there is nothing, or the source is over.
    pub(crate) fn read<'a>(&mut self, poller: &Poller, buffer: &'a mut [u8]) -> &'a [u8] {
        let mut length = 0;
        if let (Some(first), Some(byte)) = (buffer.first_mut(), self.ahead) {
            *first = byte;
            self.ahead = None;
            length = 1;
        }
        match rustix::io::read(&self.read, buffer.get_mut(length..).unwrap_or_default()) {
            Ok(0) => self.end(poller),
            Ok(more) => length += more,
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A PTY says EIO when its last slave is closed.
            Err(_) => self.end(poller),
        }
        self.owed = self.owed.saturating_sub(length as u64);
        buffer.get(..length).unwrap_or_default()
    }

    /// Whether the shell has opened the other end at all: a redirection that fails keeps the command
    /// from being run, and the shell goes on. A FIFO without a writer reads as ended, but hangs up
    /// only when it has had one.
    pub(crate) fn was_opened(&mut self) -> bool {
        if self.is_over || self.ahead.is_some() || self.stream == Stream::Pty {
            return true;
        }
        let has_something = |read: &OwnedFd| {
            let mut polled = [PollFd::new(read, PollFlags::IN)];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut polled, Some(&at_once)) != Ok(0)
        };
        if has_something(&self.read) {
            return true;
        }
        let mut byte = [0];
        match rustix::io::read(&self.read, &mut byte) {
            // A shell that had it open a moment ago has closed it since.
            Ok(0) => has_something(&self.read),
            Ok(_) => {
                let [byte] = byte;
                self.ahead = Some(byte);
                true
            }
            Err(error) => error == Errno::AGAIN,
        }
    }

    /// The command is over: what is there now has still to be read.
    pub(crate) fn note_owed(&mut self) {
        let ahead = u64::from(self.ahead.is_some());
        self.owed = rustix::io::ioctl_fionread(&self.read).unwrap_or(0) + ahead;
    }

    pub(crate) fn owes(&self) -> bool {
        self.owed() > 0
    }

    /// Bytes of the command's own that are not read yet.
    pub(crate) fn owed(&self) -> u64 {
        if self.is_over { 0 } else { self.owed }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    fn end(&mut self, poller: &Poller) {
        self.is_over = true;
        self.watch(poller, Wanted::No);
    }
}

/// Whether output is to be told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Yes,
    No,
}
