//! One request and its answer, from the first look to the last byte.
//!
//! An [`Exchange`] lives in the answer's body, or in what the connection is switched to. When it is dropped
//! the request is over: the connection is told, the metrics count it, and the log gets its one line. A
//! body dropped before its end is a client that went away.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::extract::MatchedPath;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::{Method, StatusCode};

use crate::connection::Busy;
use crate::metrics::Metrics;
use crate::request_id::RequestId;

/// The route that took a request, as it stands in the table; set where the router knows it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Route(Arc<OnceLock<String>>);

impl Route {
    pub(crate) fn set(&self, path: &MatchedPath) {
        // Set once a request; a second time would change nothing.
        drop(self.0.set(path.as_str().to_owned()));
    }

    fn as_str(&self) -> &str {
        self.0.get().map_or("-", String::as_str)
    }
}

#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) id: RequestId,
    pub(crate) route: Route,
    method: Method,
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
        metrics.request_came();
        Self {
            id,
            route: Route::default(),
            method,
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
        let (route, request_id) = (self.route.as_str(), self.id.as_str());
        tracing::info!(
            method,
            route,
            status,
            duration_ms,
            request_id,
            client_left = !self.is_complete,
            "request"
        );
        if let Some(chain) = &self.internal {
            tracing::error!(request_id, cause = %chain.escape_debug(), "internal error");
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let status = self.status.map_or(0, |status| status.as_u16());
        let method = known_method(&self.method);
        self.metrics.request_ended(method, self.route.as_str(), status, self.start.elapsed());
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
