//! The socket as hyper sees it.
//!
//! hyper parses HTTP; three things it leaves out are done here, on the bytes.
//!
//! - **One head at a time.** The bytes of a request's head are held until it is whole, then handed on
//!   together with what its `Content-Length` announces and not a byte more. So the time a head takes is
//!   known, a request with both framings is known (hyper drops one of the two headers silently), and
//!   nothing of the next request is read while this one runs.
//! - **hyper's own answers** to what it cannot parse are bare. They are replaced by ours, which have the
//!   one error shape and a request id.
//! - **Stalled writes** are noted, so that the connection can be given up.
//!
//! ```text
//! Head ──whole──> Credit(head + length) ──used up──> Head
//!   │                 │ chunked: Credit(everything), the connection closes after the answer
//!   │                 └──switched to another protocol──> Credit(everything)
//!   └──over 64 KiB──> Credit(everything), hyper answers 431
//! ```

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use sandkasten_types::limits::HEAD_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::error::protocol_error;
use crate::traffic::{Answers, Framing, Shared};

const READ_BYTES: usize = 16 * 1024;
/// As many headers as hyper takes.
const HEADERS_MAX: usize = 100;

/// One client's socket.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: Arc<TcpStream>,
    shared: Arc<Shared>,
    /// Bytes read and not yet handed on.
    inbox: BytesMut,
    /// How many bytes may be handed on; 0: the next head is awaited.
    credit: u64,
    /// Where the search for the end of the head goes on in `inbox`.
    scanned: usize,
    /// Bytes of ours that go out before anything of hyper's.
    outbox: BytesMut,
}

impl Wire {
    pub(crate) fn new(stream: Arc<TcpStream>, shared: Arc<Shared>) -> Self {
        Self {
            stream,
            shared,
            inbox: BytesMut::new(),
            credit: 0,
            scanned: 0,
            outbox: BytesMut::new(),
        }
    }

    /// Reads until a head is whole, is too long, or the client has no more to say.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.inbox.is_empty() {
            self.shared.head_has_begun();
        }
        loop {
            if let Some(end) = head_end(&self.inbox, &mut self.scanned) {
                let framing = framing(self.inbox.get(..end).unwrap_or_default());
                self.credit = match framing {
                    Framing::Length(length) => (end as u64).saturating_add(length),
                    Framing::Chunked | Framing::Both => u64::MAX,
                };
                self.scanned = 0;
                self.shared.head_is_whole(framing);
                return Poll::Ready(Ok(()));
            }
            if self.inbox.len() >= HEAD_BYTES_MAX {
                self.give_up_head();
                return Poll::Ready(Ok(()));
            }
            let before = self.inbox.len();
            self.inbox.resize(before + READ_BYTES, 0);
            let room = self.inbox.get_mut(before..).unwrap_or_default();
            let read = poll_read(&self.stream, cx, room);
            self.inbox.truncate(before + read_len(&read));
            match ready!(read)? {
                0 => {
                    self.give_up_head();
                    return Poll::Ready(Ok(()));
                }
                _ => self.shared.head_has_begun(),
            }
        }
    }

    fn give_up_head(&mut self) {
        self.credit = u64::MAX;
        self.shared.head_is_given_up();
    }

    /// The status of an answer that hyper begins to write by itself. Once a request is the edge's, all
    /// bytes are: those of a body may look like anything.
    fn bare_error(&self, data: &[u8]) -> Option<u16> {
        if self.shared.answers() == Answers::Hyper { bare_error(data) } else { None }
    }

    /// Hands on what the credit allows.
    fn poll_credit(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let most = usize::try_from(self.credit).unwrap_or(usize::MAX).min(out.remaining());
        let count = if self.inbox.is_empty() {
            let room = out.initialize_unfilled_to(most);
            let count = ready!(poll_read(&self.stream, cx, room))?;
            out.advance(count);
            count
        } else {
            let count = most.min(self.inbox.len());
            out.put_slice(self.inbox.get(..count).unwrap_or_default());
            self.inbox.advance(count);
            if self.inbox.is_empty() {
                // A connection that waits for hours keeps no buffer.
                self.inbox = BytesMut::new();
            }
            count
        };
        self.credit -= count as u64;
        Poll::Ready(Ok(()))
    }

    fn poll_outbox(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbox.is_empty() {
            let count = ready!(self.poll_send(cx, None))?;
            self.outbox.advance(count);
        }
        Poll::Ready(Ok(()))
    }

    /// Sends `data`, or the outbox where there is none.
    fn poll_send(&self, cx: &mut Context<'_>, data: Option<&[u8]>) -> Poll<io::Result<usize>> {
        loop {
            if self.stream.poll_write_ready(cx)?.is_pending() {
                self.shared.write_waits();
                return Poll::Pending;
            }
            match self.stream.try_write(data.unwrap_or(&self.outbox)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => {
                    self.shared.write_moves();
                    return Poll::Ready(result);
                }
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.credit == 0 && self.shared.answers() == Answers::Switched {
            self.credit = u64::MAX;
        }
        if self.credit == 0 {
            ready!(self.poll_head(cx))?;
        }
        self.poll_credit(cx, out)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_outbox(cx))?;
        let Some(status) = self.bare_error(data) else {
            return self.poll_send(cx, Some(data));
        };
        let answer = protocol_error(status, self.shared.peer());
        self.outbox.extend_from_slice(&answer);
        // What does not go out now goes out with the next write, flush or shutdown.
        if let Poll::Ready(Err(error)) = self.poll_outbox(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_outbox(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_outbox(cx))?;
        rustix::net::shutdown(&*self.stream, rustix::net::Shutdown::Write)?;
        Poll::Ready(Ok(()))
    }
}

fn read_len(read: &Poll<io::Result<usize>>) -> usize {
    match read {
        Poll::Ready(Ok(count)) => *count,
        Poll::Ready(Err(_)) | Poll::Pending => 0,
    }
}

/// Reads without trusting tokio's note of readiness: [`crate::connection`] clears it while it waits
/// for the client to go away, whether or not there are bytes left.
fn poll_read(stream: &TcpStream, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
    let mut read = || rustix::io::read(stream, &mut *room).map_err(io::Error::from);
    loop {
        match read() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => return Poll::Ready(result),
        }
        ready!(stream.poll_read_ready(cx))?;
        match stream.try_io(Interest::READABLE, &mut read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return Poll::Ready(result),
        }
    }
}

/// The length of the head in front of `bytes`, its empty last line included. Empty lines before the
/// request line are skipped, as hyper does. `from` is where the search stopped last time.
fn head_end(bytes: &[u8], from: &mut usize) -> Option<usize> {
    let mut line = *from;
    while let Some(length) = bytes.get(line..)?.iter().position(|b| *b == b'\n') {
        let next = line + length + 1;
        let is_empty = matches!(bytes.get(line..next), Some(b"\n" | b"\r\n"));
        let is_leading = bytes.get(..line)?.iter().all(|b| matches!(b, b'\r' | b'\n'));
        if is_empty && !is_leading {
            return Some(next);
        }
        line = next;
    }
    *from = line;
    None
}

/// What the head says of its body, read by the parser that hyper reads it with. Of what that refuses
/// hyper says 400 or 431, and reads no body.
fn framing(head: &[u8]) -> Framing {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    if request.parse(head).is_err() {
        return Framing::Length(0);
    }
    let value = |name: &str| {
        let mut named = request.headers.iter().filter(|h| h.name.eq_ignore_ascii_case(name));
        named.next_back().map(|header| header.value)
    };
    match (value("transfer-encoding"), value("content-length")) {
        (Some(_), Some(_)) => Framing::Both,
        (Some(_), None) => Framing::Chunked,
        (None, length) => {
            let digits = length.and_then(|length| std::str::from_utf8(length).ok());
            Framing::Length(digits.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
        }
    }
}

/// The status of an answer that hyper wrote by itself: it starts a write and has no request id,
/// which every answer of ours has.
fn bare_error(data: &[u8]) -> Option<u16> {
    let rest = data.strip_prefix(b"HTTP/1.")?;
    let status = std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok()?;
    let head = data.split(|b| *b == b'\n').take_while(|line| !line.trim_ascii().is_empty());
    let mut lines = head.map(|line| line.get(..13).unwrap_or_default());
    let is_ours = lines.any(|name| name.eq_ignore_ascii_case(b"x-request-id:"));
    (status >= 400 && !is_ours).then_some(status)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found_wherever_the_bytes_are_cut() {
        let head = b"\r\nGET / HTTP/1.1\r\nHost: a\r\nX: b\n\r\n";
        let all = [&head[..], b"body\r\n\r\n"].concat();
        let mut from = 0;
        for end in 0..all.len() {
            let found = head_end(&all[..end], &mut from);
            assert_eq!(found, (end >= head.len()).then_some(head.len()), "{end}");
        }
    }

    #[test]
    fn both_framings_are_seen_in_any_order_and_case() {
        let of = |lines: &str| framing(format!("POST / HTTP/1.1\r\n{lines}\r\n\r\n").as_bytes());
        assert_eq!(of("Host: a"), Framing::Length(0));
        assert_eq!(of("content-length: 12"), Framing::Length(12));
        assert_eq!(of("Transfer-Encoding: chunked"), Framing::Chunked);
        assert_eq!(of("Content-Length: 1\r\ntransfer-encoding: chunked"), Framing::Both);
        assert_eq!(of("TRANSFER-ENCODING: x\r\nA: b\r\nCONTENT-LENGTH: 1"), Framing::Both);
    }

    #[test]
    fn only_answers_without_a_request_id_are_hypers() {
        assert_eq!(bare_error(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"), Some(400));
        assert_eq!(bare_error(b"HTTP/1.1 400 Bad Request\r\nX-Request-Id: a\r\n\r\n"), None);
        assert_eq!(bare_error(b"HTTP/1.1 100 Continue\r\n\r\n"), None);
        assert_eq!(bare_error(b"{\"a\":1}"), None);
    }
}
