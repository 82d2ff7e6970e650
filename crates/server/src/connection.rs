//! One client's connection: hyper drives it; when it is given up is decided here.
//!
//! Dropping hyper's connection drops the handler and the answer's body with it, and so cancels what a
//! blocking exec runs. That happens when
//!
//! - the client is gone while a request runs: it closed its sending side or reset the connection. A
//!   full close can't be told from a half one before the server writes, so both count; only a client of
//!   HTTP/1.0 may close its side early, there a reset alone counts;
//! - a head, an idle connection or a stalled write is over its time.
//!
//! ```text
//!          first byte            head whole              answer's body over
//!   Idle ─────────────> Head ──────────────> busy (n) ───────────────────────> Idle
//!    90 s                10 s                 no limit; 300 s without a byte taken
//!                                              │ 101
//!                                              └──> Switched, to its end
//! ```
//!
//! What a connection is switched to runs here too, under the same deadlines; the end of the client's side is
//! then an event of its own protocol.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sandkasten_types::limits;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::edge::Edge;
use crate::own_wake::OwnWake;
use crate::traffic::{HalfClose, Shared};
use crate::wire::Wire;

/// How often the deadlines are looked at. They hold to within this.
const TICK: Duration = Duration::from_secs(2);
/// What a closing connection may still send so that it sees our last answer instead of a reset.
const LINGER_BYTES: usize = 1024 * 1024;
const LINGER: Duration = Duration::from_secs(2);

/// Serves one connection until it ends or is given up.
pub(crate) async fn drive(stream: TcpStream, edge: Arc<Edge>) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "connection closed before it began");
        return;
    }
    let stream = Arc::new(stream);
    let shared = Arc::new(Shared::new(stream.peer_addr().ok()));
    let wire = Wire::new(Arc::clone(&stream), Arc::clone(&shared));
    let service = service_fn(|request| {
        let (edge, shared) = (Arc::clone(&edge), Arc::clone(&shared));
        async move { Ok::<_, Infallible>(edge.answer(request, &shared).await) }
    });
    let connection = OwnWake::new(
        http1::Builder::new()
            .half_close(true)
            .header_read_timeout(None)
            .max_buf_size(limits::HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(wire), service)
            .with_upgrades(),
    );
    let served = async {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended");
        }
        if let Some(switched) = shared.take_switched() {
            switched.run().await;
            // As hyper does at its end.
            if let Err(error) = rustix::net::shutdown(&*stream, rustix::net::Shutdown::Write) {
                tracing::debug!(%error, "connection not shut down");
            }
        }
    };
    tokio::select! {
        biased;
        () = served => linger(&stream, LINGER).await,
        () = disconnected(&stream, &shared) => {}
        () = late(&shared) => tracing::debug!("connection closed: out of time"),
    }
    // Where hyper did not get to let go of it. It holds what holds it, and the request that never ends.
    drop(shared.take_switched());
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    // A peer that vanished without a word must not hold a session's shell for ever.
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(stream, 3)?;
    Ok(())
}

/// Returns once the client is gone while a request runs.
async fn disconnected(stream: &TcpStream, shared: &Shared) {
    if end_of_input(stream).await.is_err() {
        return;
    }
    loop {
        match shared.half_close() {
            Some(HalfClose::IsDisconnect) => return,
            Some(HalfClose::Allowed) => tokio::select! {
                _ = stream.ready(Interest::ERROR) => return,
                () = shared.changed.notified() => {}
            },
            // hyper sees the end itself, unless it finds a whole request before it.
            None => shared.changed.notified().await,
        }
    }
}

/// Waits for the client's FIN or reset without taking a byte from the socket.
async fn end_of_input(stream: &TcpStream) -> io::Result<()> {
    loop {
        if stream.ready(Interest::READABLE).await?.is_read_closed() {
            return Ok(());
        }
        // Clears the note of readiness, so that the next change wakes us. `Wire` reads without it.
        let nothing: io::Result<()> =
            stream.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
        drop(nothing);
    }
}

async fn late(shared: &Shared) {
    let mut tick = tokio::time::interval(TICK);
    while !shared.is_late() {
        tick.tick().await;
    }
}

/// Takes what a client still sends: a close with unread bytes is a reset, and a reset may destroy the
/// answer on its way.
pub(crate) async fn linger(stream: &TcpStream, time: Duration) {
    let mut scrap = vec![0; 16 * 1024];
    let mut read = || rustix::io::read(stream, &mut *scrap).map_err(io::Error::from);
    let read_on = async {
        let mut left = LINGER_BYTES;
        // The first read is made past tokio's note of readiness, see `Wire`.
        let mut result = read();
        while left > 0 {
            match result {
                Ok(0) => return,
                Ok(count) => left = left.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            if stream.readable().await.is_err() {
                return;
            }
            result = stream.try_io(Interest::READABLE, &mut read);
        }
    };
    // Out of time is as good as read.
    drop(tokio::time::timeout(time, read_on).await);
}
