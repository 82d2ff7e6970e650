//! What one connection's socket, requests and deadlines tell each other.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandkasten_types::limits;
use tokio::sync::Notify;
use tokio::time::Instant;

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
    pub(crate) changed: Notify,
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
    pub(crate) fn new(peer: Option<SocketAddr>) -> Self {
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

    pub(crate) fn take_switched(&self) -> Option<Switched> {
        self.state().switched.take()
    }

    pub(crate) fn is_late(&self) -> bool {
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
    pub(crate) fn half_close(&self) -> Option<HalfClose> {
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
