//! One request and its answer, from the first look to the last byte.
//!
//! An [`Exchange`] lives in the answer's body, or in what the connection is switched to. When it is dropped
//! the request is over: the connection is told, the metrics count it, and the log gets its one line. A
//! body dropped before its end is a client that went away.

use std::net::SocketAddr;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::extract::MatchedPath;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::{Method, StatusCode};
use sandkasten_types::{ErrorCode, ExecId, ProcessId, SessionId, WorkspaceId};

use crate::error::code_name;
use crate::metrics::{Ended, Metrics};
use crate::request_id::RequestId;
use crate::traffic::Busy;

/// What a request is about, for log and metrics: each part is set where it is first known, and once.
#[derive(Debug, Clone)]
pub(crate) struct Subject(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    request_id: RequestId,
    /// The route that took it, as it stands in the table.
    route: OnceLock<String>,
    session: OnceLock<SessionId>,
    workspace: OnceLock<WorkspaceId>,
    exec: OnceLock<ExecId>,
    process: OnceLock<ProcessId>,
    /// Why it failed, in the answer or in the last event of a stream.
    code: OnceLock<ErrorCode>,
}

impl Subject {
    pub(crate) fn new(request_id: RequestId) -> Self {
        Self(Arc::new(Parts {
            request_id,
            route: OnceLock::new(),
            session: OnceLock::new(),
            workspace: OnceLock::new(),
            exec: OnceLock::new(),
            process: OnceLock::new(),
            code: OnceLock::new(),
        }))
    }

    pub(crate) fn request_id(&self) -> &RequestId {
        &self.0.request_id
    }

    pub(crate) fn set_route(&self, path: &MatchedPath) {
        set(&self.0.route, path.as_str().to_owned());
    }

    pub(crate) fn set_session(&self, id: &SessionId) {
        set(&self.0.session, id.clone());
    }

    pub(crate) fn set_exec(&self, id: &ExecId) {
        set(&self.0.exec, id.clone());
    }

    pub(crate) fn set_process(&self, id: &ProcessId) {
        set(&self.0.process, id.clone());
    }

    pub(crate) fn set_code(&self, code: ErrorCode) {
        set(&self.0.code, code);
    }

    /// Takes a parameter of the route. A text that is no id names nothing, and is a client's: it stays
    /// out of the log.
    pub(crate) fn set_parameter(&self, name: &str, text: &str) {
        let is_workspace = self.route().starts_with("/v1/workspaces");
        match name {
            "id" if is_workspace => parsed(&self.0.workspace, text),
            "id" => parsed(&self.0.session, text),
            "exec_id" => parsed(&self.0.exec, text),
            "process_id" => parsed(&self.0.process, text),
            _ => {}
        }
    }

    fn route(&self) -> &str {
        self.0.route.get().map_or("-", String::as_str)
    }
}

/// The first one stays.
fn set<T>(place: &OnceLock<T>, value: T) {
    drop(place.set(value));
}

fn parsed<T: FromStr>(place: &OnceLock<T>, text: &str) {
    if let Ok(id) = text.parse() {
        set(place, id);
    }
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) id: RequestId,
    pub(crate) subject: Subject,
    method: Method,
    peer: Option<SocketAddr>,
    status: Option<StatusCode>,
    /// The chain of an internal error.
    pub(crate) internal: Option<String>,
    is_complete: bool,
    start: Instant,
    metrics: Arc<Metrics>,
    _busy: Busy,
    _active: Active,
}

/// Counts the requests that run.
#[derive(Debug)]
struct Active(Arc<Metrics>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.request_left();
    }
}

impl Exchange {
    pub(crate) fn begin(id: RequestId, method: Method, metrics: Arc<Metrics>, busy: Busy) -> Self {
        let peer = busy.peer();
        metrics.request_came();
        Self {
            subject: Subject::new(id.clone()),
            id,
            method,
            peer,
            status: None,
            internal: None,
            is_complete: false,
            start: Instant::now(),
            _active: Active(Arc::clone(&metrics)),
            metrics,
            _busy: busy,
        }
    }

    /// What it was about came to its end; without this the client has left.
    pub(crate) fn completed(mut self) {
        self.is_complete = true;
    }

    pub(crate) fn answered(&mut self, status: StatusCode) {
        self.status = Some(status);
    }

    fn log(&self) {
        // Methods may be any word of the client's; only the known ones are worth a label.
        let method = known_method(&self.method);
        let status = self.status.map_or(0, |status| status.as_u16());
        let duration_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let request_id = self.id.as_str();
        let about = &*self.subject.0;
        tracing::info!(
            method,
            route = self.subject.route(),
            status,
            code = about.code.get().map(|code| code_name(*code)),
            session = about.session.get().map(SessionId::as_str),
            workspace = about.workspace.get().map(WorkspaceId::as_str),
            exec = about.exec.get().map(ExecId::as_str),
            process = about.process.get().map(ProcessId::as_str),
            duration_ms,
            request_id,
            peer = self.peer.map(tracing::field::display),
            client_left = !self.is_complete,
            "request"
        );
        if let Some(chain) = &self.internal {
            tracing::error!(request_id, cause = %chain.escape_debug(), "internal error");
        }
    }

    fn count(&self) {
        self.metrics.request_ended(&Ended {
            route: self.subject.route(),
            status: self.status.map_or(0, |status| status.as_u16()),
            code: self.subject.0.code.get().copied(),
            client_left: !self.is_complete,
            took: self.start.elapsed(),
        });
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.count();
        self.log();
    }
}

fn known_method(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// An answer's body, which keeps the exchange open.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    inner: Body,
    /// `None`: the exchange goes on in what the connection is switched to.
    exchange: Option<Exchange>,
}

impl AnswerBody {
    pub(crate) fn new(inner: Body, mut exchange: Exchange) -> Self {
        // hyper does not poll a body that is empty from the start.
        exchange.is_complete = inner.is_end_stream() || exchange.method == Method::HEAD;
        Self { inner, exchange: Some(exchange) }
    }

    /// That of a 101.
    pub(crate) fn none() -> Self {
        Self { inner: Body::empty(), exchange: None }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        let ended = matches!(polled, Poll::Ready(None)) || self.inner.is_end_stream();
        if let Some(exchange) = &mut self.exchange {
            exchange.is_complete |= ended;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
