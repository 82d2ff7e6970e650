//! Where items go to, and where bytes come from.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use sandkasten_protocol::work::{Item, WORK_BYTES_MAX, WORK_PULSE_MS};
use sandkasten_protocol::{Bytes, Decoder, encode};

/// Bytes of items that are sent together.
const BATCH_BYTES: usize = 64 * 1024;
const PULSE: Duration = Duration::from_millis(WORK_PULSE_MS);

/// Who is told what a job finds. An error means that nobody listens any more.
pub trait Channel: fmt::Debug {
    /// Tells an item. It may wait here for others, up to [`flush`](Self::flush).
    ///
    /// # Errors
    /// Nobody listens any more.
    fn tell(&mut self, item: Item) -> io::Result<()>;

    /// Sends what waits.
    ///
    /// # Errors
    /// Nobody listens any more.
    fn flush(&mut self) -> io::Result<()>;

    /// Shows that the job goes on. Costs nothing where something was sent lately: call it often.
    ///
    /// # Errors
    /// Nobody listens any more.
    fn pulse(&mut self) -> io::Result<()>;

    /// The next bytes from the other side; `None` where it has said that these are all.
    ///
    /// # Errors
    /// The other side has gone without a word, or makes no sense.
    fn data(&mut self) -> io::Result<Option<Bytes>>;

    /// Waits until `other` can be read, at most for `time`: false where it can't yet.
    ///
    /// # Errors
    /// Nobody listens any more.
    fn wait(&mut self, other: BorrowedFd<'_>, time: Duration) -> io::Result<bool>;
}

/// Frames on a stream socket, which blocks.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    waiting: Vec<u8>,
    decoder: Decoder<Item>,
    buffer: Vec<u8>,
    sent_at: Instant,
    is_last: bool,
}

impl Socket {
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            waiting: Vec::new(),
            decoder: Decoder::new(WORK_BYTES_MAX),
            buffer: Vec::new(),
            sent_at: Instant::now(),
            is_last: false,
        }
    }
}

impl Channel for Socket {
    fn tell(&mut self, item: Item) -> io::Result<()> {
        let frame = encode(&item, WORK_BYTES_MAX).map_err(io::Error::other)?;
        self.waiting.extend_from_slice(&frame);
        if self.waiting.len() >= BATCH_BYTES { self.flush() } else { self.pulse() }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            // Nothing is no sign of life.
            return Ok(());
        }
        let mut rest = self.waiting.as_slice();
        while !rest.is_empty() {
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.waiting.clear();
        self.sent_at = Instant::now();
        Ok(())
    }

    fn pulse(&mut self) -> io::Result<()> {
        if self.sent_at.elapsed() < PULSE {
            return Ok(());
        }
        let alive = encode(&Item::Alive, WORK_BYTES_MAX).map_err(io::Error::other)?;
        self.waiting.extend_from_slice(&alive);
        self.flush()
    }

    fn data(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if self.is_last {
                return Ok(None);
            }
            match self.decoder.next_frame().map_err(io::Error::other)? {
                Some(Item::Data(data)) if data.is_empty() => self.is_last = true,
                Some(Item::Data(data)) => return Ok(Some(data)),
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None => self.receive()?,
            }
        }
    }

    fn wait(&mut self, other: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
        self.flush()?;
        let timeout = Timespec::try_from(time.min(PULSE)).map_err(io::Error::other)?;
        let mut both = [
            PollFd::new(&self.socket, PollFlags::RDHUP),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
        ];
        match poll(&mut both, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let [engine, other] = both.map(|one| one.revents());
        if engine.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.pulse()?;
        Ok(!other.is_empty())
    }
}

impl Socket {
    /// Waits for bytes, with a sign of life now and then.
    fn receive(&mut self) -> io::Result<()> {
        let pulse = Timespec::try_from(PULSE).map_err(io::Error::other)?;
        let mut one = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)];
        match poll(&mut one, Some(&pulse)) {
            Ok(0) | Err(Errno::INTR) => return self.pulse(),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.buffer.resize(BATCH_BYTES, 0);
        match rustix::net::recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((got, _)) => {
                self.decoder.push(self.buffer.get(..got).unwrap_or_default());
                self.pulse()
            }
            Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}
