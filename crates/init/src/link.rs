//! The control socket: connections, frames in, frames out.
//!
//! Nothing here waits. A connection counts for nothing until it has said the nonce; then it replaces
//! the one before. What it has to be told is queued and goes out together, at the end of a turn of the
//! loop or where something slow follows. A full queue is the end of reading, from the engine and from
//! runs that it paces, until the engine has taken some.

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
/// Frames in one system call.
const FRAMES_TOGETHER: usize = 64;
/// Bytes of frames that wait to be sent before requests are left unread.
const QUEUE_BYTES_MAX: u64 = 2 * WINDOW_COST;

/// What a connection that was ready has turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The engine, which has said something, or nothing that matters.
    Known,
    /// An engine that has attached: greet it. The connection before is gone.
    Attached,
}

#[derive(Debug)]
pub(crate) struct Link {
    listener: OwnedFd,
    nonce: [u8; 16],
    strangers: Vec<Connection>,
    engine: Option<Connection>,
    /// Frames may have arrived that a full queue keeps from being handled.
    is_holding: bool,
    buffer: Vec<u8>,
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
        let buffer = vec![0; READ_BYTES];
        let (strangers, engine) = (Vec::new(), None);
        Ok(Self { listener, nonce, strangers, engine, is_holding: false, buffer })
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

    /// Reads and writes what a connection is ready for. The frames are had by [`Self::next_frame`].
    pub(crate) fn ready(&mut self, poller: &Poller, id: u32) -> Heard {
        if let Some(stranger) = self.strangers.iter().position(|c| c.id == id) {
            return self.hear_stranger(poller, stranger);
        }
        if let Some(engine) = self.engine.as_mut().filter(|c| c.id == id) {
            match engine.send().and_then(|()| engine.read(&mut self.buffer)) {
                Ok(()) => engine.watch(poller),
                Err(Gone) => self.close(poller),
            }
        }
        Heard::Known
    }

    /// The next frame of the engine's, if there is room for what it may cause.
    pub(crate) fn next_frame(&mut self, poller: &Poller) -> Option<ToInit> {
        let engine = self.engine.as_mut()?;
        self.is_holding = engine.is_full();
        if self.is_holding {
            return None;
        }
        match engine.decoder.next_frame() {
            Ok(frame) => frame,
            Err(_fault) => {
                self.close(poller);
                None
            }
        }
    }

    /// Whether frames have arrived that there is room for by now.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_holding && !self.is_full()
    }

    /// Whether the engine takes less than it is told.
    pub(crate) fn is_full(&self) -> bool {
        self.engine.as_ref().is_some_and(Connection::is_full)
    }

    /// Tells the engine something, with the next [`Self::flush`].
    pub(crate) fn queue(&mut self, frame: &FromInit, descriptor: Option<OwnedFd>) {
        let Some(engine) = self.engine.as_mut() else { return };
        let Ok(bytes) = encode(frame, FROM_INIT_BYTES_MAX) else { return };
        engine.queued_bytes += bytes.len() as u64;
        engine.queue.push_back(Frame { bytes, sent: 0, descriptor });
    }

    /// Sends what the socket takes.
    pub(crate) fn flush(&mut self, poller: &Poller) {
        let Some(engine) = self.engine.as_mut() else { return };
        match engine.send() {
            Ok(()) => engine.watch(poller),
            Err(Gone) => self.close(poller),
        }
    }

    /// Ends the connection to the engine, if there is one.
    pub(crate) fn close(&mut self, poller: &Poller) {
        if let Some(engine) = self.engine.take() {
            poller.remove(&engine.socket);
        }
    }

    fn hear_stranger(&mut self, poller: &Poller, index: usize) -> Heard {
        let mut stranger = self.strangers.remove(index);
        let read = stranger.read(&mut self.buffer);
        match read.map(|()| stranger.decoder.next_frame()) {
            Ok(Ok(None)) => self.strangers.insert(index, stranger),
            Ok(Ok(Some(ToInit::Attach { version: VERSION, nonce })))
                if same(&nonce, &self.nonce) =>
            {
                self.close(poller);
                self.engine = Some(stranger);
                return Heard::Attached;
            }
            Ok(Ok(Some(_)) | Err(_)) | Err(Gone) => poller.remove(&stranger.socket),
        }
        Heard::Known
    }
}

/// The connection has ended or is broken.
#[derive(Debug)]
struct Gone;

impl Connection {
    /// Reads once, if there is room for the answers.
    fn read(&mut self, buffer: &mut [u8]) -> Result<(), Gone> {
        if self.is_full() {
            return Ok(());
        }
        match rustix::io::read(&self.socket, &mut *buffer) {
            Ok(0) => Err(Gone),
            Ok(length) => {
                self.decoder.push(buffer.get(..length).unwrap_or_default());
                Ok(())
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Gone),
        }
    }

    fn send(&mut self) -> Result<(), Gone> {
        while !self.queue.is_empty() {
            match self.send_some() {
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }

    /// Sends frames up to the next one with a descriptor.
    fn send_some(&mut self) -> Result<(), Errno> {
        let together = self.queue.iter().skip(1).take_while(|frame| frame.descriptor.is_none());
        let together = self.queue.iter().take(1).chain(together).take(FRAMES_TOGETHER);
        let rest = |frame: &Frame| frame.bytes.len() - frame.sent;
        let slices: Vec<_> = together
            .map(|frame| IoSlice::new(frame.bytes.get(frame.sent..).unwrap_or_default()))
            .collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptor = self.queue.front().and_then(|frame| frame.descriptor.as_ref());
        let descriptors = descriptor.map(|d| [d.as_fd()]);
        if let Some(descriptors) = &descriptors {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL;
        let mut sent = rustix::net::sendmsg(&self.socket, &slices, &mut control, flags)?;
        self.queued_bytes = self.queued_bytes.saturating_sub(sent as u64);
        while let Some(frame) = self.queue.front_mut() {
            frame.descriptor = None;
            if sent < rest(frame) {
                frame.sent += sent;
                break;
            }
            sent -= rest(frame);
            self.queue.pop_front();
            if sent == 0 {
                break;
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

/// Compares in a time that does not depend on where they differ.
fn same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    let difference = a.iter().zip(b).fold(0, |d, (a, b)| d | (a ^ b));
    std::hint::black_box(difference) == 0
}
