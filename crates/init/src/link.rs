//! The control socket: connections, frames in, frames out.
//!
//! Nothing here waits. A connection counts for nothing until it has said the nonce; then it replaces
//! the one before. What it has to be told is queued; the queue is bounded by the credit window of the
//! command that runs and by the number of file operations in flight, since a full queue stops reading.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags};
use sandkasten_protocol::{
    Decoder, FROM_INIT_BYTES_MAX, FromInit, TO_INIT_BYTES_MAX, ToInit, VERSION, WINDOW_COST, encode,
};

use crate::poll::{Poller, Token, Want};
use crate::spawn;

/// Connections that have not said the nonce yet.
const STRANGERS_MAX: usize = 8;
const READ_BYTES: usize = 64 * 1024;
/// Bytes of frames that wait to be sent before requests are left unread.
const QUEUE_BYTES_MAX: u64 = 2 * WINDOW_COST;

/// Something that the engine did.
#[derive(Debug)]
pub(crate) enum Said {
    /// It has attached: greet it. The connection before is gone.
    Attached,
    Frame(ToInit),
}

#[derive(Debug)]
pub(crate) struct Link {
    listener: OwnedFd,
    nonce: [u8; 16],
    strangers: Vec<Connection>,
    engine: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    id: u32,
    socket: OwnedFd,
    decoder: Decoder<ToInit>,
    queue: VecDeque<Frame>,
    queued_bytes: u64,
    want: Want,
}

/// A frame on its way; a descriptor goes with its first byte.
#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    descriptor: Option<OwnedFd>,
}

impl Link {
    pub(crate) fn new(poller: &Poller, listener: OwnedFd, nonce: [u8; 16]) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        poller.add(&listener, Token::Listener, Want::Read)?;
        Ok(Self { listener, nonce, strangers: Vec::new(), engine: None })
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.engine.is_some()
    }

    /// Takes one waiting connection; the poller tells of the next.
    pub(crate) fn accept(&mut self, poller: &mut Poller) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { return };
        // Whoever has a pid in here is of the box. It has no name for the socket, so this can't be;
        // but it costs nothing to ask.
        if spawn::peer_pid(&socket).unwrap_or(-1) != 0 {
            return;
        }
        if self.strangers.len() >= STRANGERS_MAX {
            let oldest = self.strangers.remove(0);
            poller.remove(&oldest.socket);
        }
        let id = poller.fresh_id();
        if poller.add(&socket, Token::Connection(id), Want::Read).is_ok() {
            self.strangers.push(Connection {
                id,
                socket,
                decoder: Decoder::new(TO_INIT_BYTES_MAX),
                queue: VecDeque::new(),
                queued_bytes: 0,
                want: Want::Read,
            });
        }
    }

    /// Reads and writes what a connection is ready for.
    pub(crate) fn ready(&mut self, poller: &Poller, id: u32) -> Vec<Said> {
        if let Some(stranger) = self.strangers.iter().position(|c| c.id == id) {
            return self.hear_stranger(poller, stranger);
        }
        let Some(engine) = self.engine.as_mut().filter(|c| c.id == id) else { return Vec::new() };
        let heard =
            engine.send().and_then(|()| engine.read()).and_then(|()| engine.frames(usize::MAX));
        match heard {
            Ok(frames) => {
                engine.watch(poller);
                frames.into_iter().map(Said::Frame).collect()
            }
            Err(Gone) => {
                self.close(poller);
                Vec::new()
            }
        }
    }

    /// Queues a frame and sends what the socket takes.
    pub(crate) fn send(&mut self, poller: &Poller, frame: &FromInit, descriptor: Option<OwnedFd>) {
        let Some(engine) = self.engine.as_mut() else { return };
        let Ok(bytes) = encode(frame, FROM_INIT_BYTES_MAX) else { return };
        engine.queued_bytes += bytes.len() as u64;
        engine.queue.push_back(Frame { bytes, sent: 0, descriptor });
        if engine.send().is_err() {
            self.close(poller);
        } else {
            engine.watch(poller);
        }
    }

    /// Ends the connection to the engine, if there is one.
    pub(crate) fn close(&mut self, poller: &Poller) {
        if let Some(engine) = self.engine.take() {
            poller.remove(&engine.socket);
        }
    }

    fn hear_stranger(&mut self, poller: &Poller, index: usize) -> Vec<Said> {
        let mut stranger = self.strangers.remove(index);
        let first = stranger.read().and_then(|()| stranger.frames(1));
        match first.map(|mut frames| frames.pop()) {
            Ok(None) => {
                self.strangers.insert(index, stranger);
                Vec::new()
            }
            Ok(Some(ToInit::Attach { version: VERSION, nonce })) if same(&nonce, &self.nonce) => {
                self.close(poller);
                let rest = stranger.frames(usize::MAX);
                self.engine = Some(stranger);
                let rest = rest.unwrap_or_default().into_iter().map(Said::Frame);
                std::iter::once(Said::Attached).chain(rest).collect()
            }
            Ok(Some(_)) | Err(Gone) => {
                poller.remove(&stranger.socket);
                Vec::new()
            }
        }
    }
}

/// The connection has ended or is broken.
#[derive(Debug)]
struct Gone;

impl Connection {
    /// Reads once, if there is room for the answers.
    fn read(&mut self) -> Result<(), Gone> {
        if self.is_full() {
            return Ok(());
        }
        let mut buffer = [0; READ_BYTES];
        match rustix::io::read(&self.socket, &mut buffer) {
            Ok(0) => Err(Gone),
            Ok(length) => {
                self.decoder.push(buffer.get(..length).unwrap_or_default());
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Gone),
        }
    }

    fn frames(&mut self, most: usize) -> Result<Vec<ToInit>, Gone> {
        let mut frames = Vec::new();
        while frames.len() < most {
            match self.decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_fault) => return Err(Gone),
            }
        }
        Ok(frames)
    }

    fn send(&mut self) -> Result<(), Gone> {
        while let Some(frame) = self.queue.front_mut() {
            match frame.send(self.socket.as_fd()) {
                Ok(length) => self.queued_bytes = self.queued_bytes.saturating_sub(length as u64),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Gone),
            }
            if frame.sent == frame.bytes.len() {
                self.queue.pop_front();
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.queued_bytes > QUEUE_BYTES_MAX
    }

    fn watch(&mut self, poller: &Poller) {
        let want = match (self.queue.is_empty(), self.is_full()) {
            (true, _) => Want::Read,
            (false, false) => Want::Both,
            (false, true) => Want::Write,
        };
        if want != self.want
            && poller.change(&self.socket, Token::Connection(self.id), want).is_ok()
        {
            self.want = want;
        }
    }
}

impl Frame {
    fn send(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        let rest = [IoSlice::new(self.bytes.get(self.sent..).unwrap_or_default())];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = self.descriptor.as_ref().map(|d| [d.as_fd()]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let sent = rustix::net::sendmsg(socket, &rest, &mut control, SendFlags::NOSIGNAL)?;
        self.sent += sent;
        self.descriptor = None;
        Ok(sent)
    }
}

/// Compares in a time that does not depend on where they differ.
fn same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    let difference = a.iter().zip(b).fold(0, |d, (a, b)| d | (a ^ b));
    std::hint::black_box(difference) == 0
}
