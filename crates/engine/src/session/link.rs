//! The connection to a session's init. What comes from there is hostile: init shares a kernel with
//! the payload, and either may be broken.
//!
//! Invariants: no frame is longer than the protocol's limit, no more descriptors wait than a few, a
//! write that gets nowhere ends the link, and whatever is wrong is a [`LinkFault`], never a panic.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};
use sandkasten_protocol::{
    DATA_BYTES_MAX, Decoder, FROM_INIT_BYTES_MAX, FileDone, FromInit, Hello, KEPT_RUNS_MAX, Known,
    NOTE_BYTES_MAX, PROGRAMS_MAX, QUEUE_MAX, TO_INIT_BYTES_MAX, ToInit, VERSION, encode,
};
use sandkasten_types::limits::PATH_BYTES_MAX;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use crate::descriptor::watched;

/// init answers a connection within this, a shell's start included.
const HELLO_DEADLINE: Duration = Duration::from_secs(8);
/// init takes some bytes of what we write within this.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);
/// Runs that an init can have.
const RUNS_MAX: usize = KEPT_RUNS_MAX + QUEUE_MAX + PROGRAMS_MAX + 1;
/// Bytes that may wait to be sent while more stdin is added to them.
const ROOM_BYTES: usize = 256 * 1024;
/// Descriptors that came and whose frames have not.
const DESCRIPTORS_MAX: usize = 16;

thread_local! {
    /// What one read takes. To clear so much for each would cost more than most frames.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; DATA_BYTES_MAX]);
}

/// Why a link can't go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkFault {
    #[error("no connection to init")]
    Connect(#[source] io::Error),
    #[error("init closed the connection")]
    Closed,
    #[error("init did not answer in time")]
    Late,
    #[error("init does not read")]
    Stalled,
    #[error("connection to init")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Frame(#[from] sandkasten_protocol::Fault),
    /// The frame is well-formed and makes no sense.
    #[error("init broke the protocol: {0}")]
    Protocol(&'static str),
}

/// A frame and what came with it.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) frame: FromInit,
    pub(crate) descriptor: Option<OwnedFd>,
}

/// What init says first.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) hello: Hello,
    pub(crate) known: Vec<Known>,
}

/// An attached connection.
#[derive(Debug)]
pub(crate) struct Link {
    /// Told of what comes alone: each frame that init takes makes room, and an event of that would wake us
    /// for every command.
    stream: AsyncFd<OwnedFd>,
    /// The same socket where something waits to be sent, to be told of room.
    full: Option<AsyncFd<OwnedFd>>,
    decoder: Decoder<FromInit>,
    descriptors: VecDeque<OwnedFd>,
    /// What the socket did not take yet, from `sent` on.
    unsent: Vec<u8>,
    sent: usize,
    /// When the socket must have taken some of it.
    progress_by: Instant,
    /// Somebody has more to send and waits for room.
    is_awaited: bool,
}

impl Link {
    /// Connects to the socket in a session's folder and attaches.
    pub(crate) async fn attach(
        dir: &OwnedFd,
        nonce: [u8; 16],
    ) -> Result<(Self, Greeting), LinkFault> {
        let path = format!("/proc/self/fd/{}/control.sock", dir.as_raw_fd());
        let stream = UnixStream::connect(path).await.map_err(LinkFault::Connect)?;
        let mut link = Self::new(stream.into_std()?.into())?;
        link.send(&ToInit::Attach { version: VERSION, nonce })?;
        let by = Instant::now() + HELLO_DEADLINE;
        let first = timeout_at(by, link.next()).await;
        let incoming = first.map_err(|_elapsed| LinkFault::Late)??;
        let FromInit::Hello(hello) = incoming.frame else {
            return Err(LinkFault::Protocol("its first frame is no hello"));
        };
        if hello.version != VERSION {
            return Err(LinkFault::Protocol("it speaks another version"));
        }
        if hello.nonce != nonce {
            return Err(LinkFault::Protocol("its nonce is another session's"));
        }
        if hello.runs as usize > RUNS_MAX {
            return Err(LinkFault::Protocol("it keeps too many runs"));
        }
        let mut known = Vec::new();
        for _ in 0..hello.runs {
            let next = timeout_at(by, link.next()).await;
            let FromInit::Known(run) = next.map_err(|_elapsed| LinkFault::Late)??.frame else {
                return Err(LinkFault::Protocol("a run is missing from its hello"));
            };
            known.push(bounded(run)?);
        }
        Ok((link, Greeting { hello, known }))
    }

    /// The socket is non-blocking.
    fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            stream: watched(socket, Interest::READABLE)?,
            full: None,
            decoder: Decoder::new(FROM_INIT_BYTES_MAX),
            descriptors: VecDeque::new(),
            unsent: Vec::new(),
            sent: 0,
            progress_by: Instant::now(),
            is_awaited: false,
        })
    }

    /// Whether more may be added to what waits to be sent. Where not, [`turn`](Self::turn) tells when.
    pub(crate) fn has_room(&mut self) -> bool {
        let has_room = self.unsent.len() - self.sent < ROOM_BYTES;
        self.is_awaited |= !has_room;
        has_room
    }

    /// Sends a frame, or as much as the socket takes now; [`next`](Self::next) sends the rest.
    pub(crate) fn send(&mut self, frame: &ToInit) -> Result<(), LinkFault> {
        let bytes = encode(frame, TO_INIT_BYTES_MAX)?;
        if self.unsent.is_empty() {
            self.progress_by = Instant::now() + WRITE_DEADLINE;
        }
        self.unsent.extend_from_slice(&bytes);
        self.flush()
    }

    /// The next frame. May be dropped and called again; nothing is lost.
    pub(crate) async fn next(&mut self) -> Result<Incoming, LinkFault> {
        loop {
            if let Some(incoming) = self.turn().await? {
                return Ok(incoming);
            }
        }
    }

    /// The next frame, or `None` where there is room to send again. May be dropped and called again.
    pub(crate) async fn turn(&mut self) -> Result<Option<Incoming>, LinkFault> {
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return self.paired(frame).map(Some);
            }
            if self.is_awaited && self.unsent.len() - self.sent < ROOM_BYTES {
                self.is_awaited = false;
                return Ok(None);
            }
            if self.has_come().await? {
                self.receive()?;
            } else {
                self.flush()?;
            }
        }
    }

    /// Waits for bytes, or for room where some are to be sent: then it is false.
    async fn has_come(&mut self) -> Result<bool, LinkFault> {
        let Some(full) = &self.full else {
            self.stream.readable().await?.retain_ready();
            return Ok(true);
        };
        let either = async {
            tokio::select! {
                ready = self.stream.readable() => ready.map(|mut guard| {
                    guard.retain_ready();
                    true
                }),
                ready = full.writable() => ready.map(|mut guard| {
                    guard.clear_ready();
                    false
                }),
            }
        };
        let has_come = timeout_at(self.progress_by, either).await;
        Ok(has_come.map_err(|_elapsed| LinkFault::Stalled)??)
    }

    fn flush(&mut self) -> Result<(), LinkFault> {
        while let Some(rest) = self.unsent.get(self.sent..).filter(|rest| !rest.is_empty()) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.stream, rest, flags) {
                Ok(taken) => {
                    self.sent += taken;
                    self.progress_by = Instant::now() + WRITE_DEADLINE;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if self.sent >= ROOM_BYTES {
                        self.unsent.drain(..self.sent);
                        self.sent = 0;
                    }
                    return self.await_room();
                }
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        self.sent = 0;
        self.full = None;
        self.unsent.clear();
        // A command of a megabyte was there once; it need not stay for the session's life.
        self.unsent.shrink_to(4096);
        Ok(())
    }

    fn await_room(&mut self) -> Result<(), LinkFault> {
        if self.full.is_none() {
            let same = self.stream.get_ref().try_clone()?;
            self.full = Some(watched(same, Interest::WRITABLE)?);
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), LinkFault> {
        BUFFER.with_borrow_mut(|bytes| self.receive_into(bytes))
    }

    fn receive_into(&mut self, bytes: &mut [u8]) -> Result<(), LinkFault> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = self.stream.try_io(Interest::READABLE, |socket| {
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            Ok(recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?)
        });
        let received = match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            other => other?,
        };
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(LinkFault::Protocol("it sent too many descriptors"));
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if self.descriptors.len() > DESCRIPTORS_MAX {
            return Err(LinkFault::Protocol("it sent too many descriptors"));
        }
        if received.bytes == 0 {
            return Err(LinkFault::Closed);
        }
        self.decoder.push(bytes.get(..received.bytes).unwrap_or_default());
        Ok(())
    }

    /// A descriptor comes no later than the last byte of its frame, and in the order of the frames.
    fn paired(&mut self, frame: FromInit) -> Result<Incoming, LinkFault> {
        let takes_one = matches!(
            frame,
            FromInit::File { result: Ok(FileDone::Opened | FileDone::Created { .. }), .. }
        );
        let descriptor = if takes_one { self.descriptors.pop_front() } else { None };
        if takes_one && descriptor.is_none() {
            return Err(LinkFault::Protocol("a descriptor is missing"));
        }
        Ok(Incoming { frame, descriptor })
    }
}

/// What a run takes of memory: very many are told of.
fn bounded(mut run: Known) -> Result<Known, LinkFault> {
    let is_long = |note: &Vec<u8>| note.len() > NOTE_BYTES_MAX;
    if is_long(&run.note) || run.settled.as_ref().is_some_and(is_long) {
        return Err(LinkFault::Protocol("a note of a length that is not allowed"));
    }
    if let Some(end) = &mut run.end {
        end.cwd.truncate(PATH_BYTES_MAX);
        end.cwd.shrink_to_fit();
    }
    Ok(run)
}

#[cfg(test)]
mod test;
