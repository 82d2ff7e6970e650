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
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sandkasten_types::limits;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::edge::Edge;
use crate::own_wake::OwnWake;
use crate::wire::Wire;

/// How often the deadlines are looked at. They hold to within this.
const TICK: Duration = Duration::from_secs(2);
/// What a closing connection may still send so that it sees our last answer instead of a reset.
const LINGER_BYTES: usize = 1024 * 1024;
const LINGER: Duration = Duration::from_secs(2);

/// How a request says where its body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    /// Length and transfer coding: the start of a request smuggling attack.
    Both,
}

/// What the socket, the requests and the deadlines of one connection tell each other.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The client's address; `None` where it had gone at once.
    peer: Option<SocketAddr>,
    state: Mutex<State>,
    /// A request began or ended.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    since: Instant,
    framing: Framing,
    /// Holders of [`Busy`].
    busy: u32,
    half_close: HalfClose,
    /// Whose the next answer is.
    answers: Answers,
    write_waits_since: Option<Instant>,
    /// What runs once hyper has let go of the connection.
    switched: Option<Switched>,
}

/// What a connection becomes when it stops to be HTTP.
pub(crate) struct Switched(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Switched {
    pub(crate) fn new(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Box::pin(future))
    }
}

impl Switched {
    pub(crate) async fn run(self) {
        self.0.await;
    }
}

impl fmt::Debug for Switched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Switched")
    }
}

/// Who answers what was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answers {
    /// hyper, unless it finds a request in it.
    Hyper,
    /// The edge, which has the request.
    Edge,
    /// Nobody: it is no HTTP any more.
    Switched,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Before the first request or between two.
    Idle,
    /// A head has begun.
    Head,
}

/// Whether a client may close its sending side before it has the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HalfClose {
    Allowed,
    IsDisconnect,
}

impl Shared {
    fn new(peer: Option<SocketAddr>) -> Self {
        let state = State {
            phase: Phase::Idle,
            since: Instant::now(),
            framing: Framing::Length(0),
            busy: 0,
            half_close: HalfClose::IsDisconnect,
            answers: Answers::Hyper,
            write_waits_since: None,
            switched: None,
        };
        Self { peer, state: Mutex::new(state), changed: Notify::new() }
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment, so a panic elsewhere leaves no half state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn head_has_begun(&self) {
        let mut state = self.state();
        if state.busy == 0 && state.phase == Phase::Idle {
            state.phase = Phase::Head;
            state.since = Instant::now();
        }
    }

    pub(crate) fn head_is_whole(&self, framing: Framing) {
        let mut state = self.state();
        state.framing = framing;
        state.answers = Answers::Hyper;
    }

    /// What follows is handed on to hyper as it is: it is no head.
    pub(crate) fn head_is_given_up(&self) {
        self.state().answers = Answers::Hyper;
    }

    pub(crate) fn answers(&self) -> Answers {
        self.state().answers
    }

    /// Framing of the request whose head was read last.
    pub(crate) fn framing(&self) -> Framing {
        self.state().framing
    }

    pub(crate) fn write_waits(&self) {
        self.state().write_waits_since.get_or_insert_with(Instant::now);
    }

    pub(crate) fn write_moves(&self) {
        self.state().write_waits_since = None;
    }

    /// A request runs until the guard and its clones are dropped.
    pub(crate) fn begin(self: &Arc<Self>, half_close: HalfClose) -> Busy {
        let mut state = self.state();
        state.half_close = half_close;
        state.answers = Answers::Edge;
        drop(state);
        Busy::of(self)
    }

    /// The connection is `future`'s once the answer's head, a 101, is written.
    pub(crate) fn switch(&self, future: Switched) {
        let mut state = self.state();
        state.answers = Answers::Switched;
        // Its own protocol says how a client leaves; what was sent before that is to be read.
        state.half_close = HalfClose::Allowed;
        state.switched = Some(future);
    }

    fn take_switched(&self) -> Option<Switched> {
        self.state().switched.take()
    }

    fn is_late(&self) -> bool {
        let state = self.state();
        let stalled = state.write_waits_since.is_some_and(|since| {
            since.elapsed() > Duration::from_secs(limits::WRITE_STALL_SECONDS)
        });
        let most = match state.phase {
            Phase::Idle => limits::IDLE_SECONDS,
            Phase::Head => limits::HEAD_SECONDS,
        };
        stalled || (state.busy == 0 && state.since.elapsed() > Duration::from_secs(most))
    }

    /// `None`: no request runs.
    fn half_close(&self) -> Option<HalfClose> {
        let state = self.state();
        (state.busy > 0).then_some(state.half_close)
    }
}

/// Says that a request runs on the connection.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Shared>);

impl Busy {
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.0.peer
    }

    fn of(shared: &Arc<Shared>) -> Self {
        shared.state().busy += 1;
        shared.changed.notify_one();
        Self(Arc::clone(shared))
    }
}

impl Clone for Busy {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.busy -= 1;
        if state.busy == 0 {
            state.phase = Phase::Idle;
            state.since = Instant::now();
        }
        drop(state);
        self.0.changed.notify_one();
    }
}

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
