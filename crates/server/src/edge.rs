//! What every request goes through before and after its handler, in this order:
//!
//! ```text
//! request id → framing → CORS preflight → key, Host, Origin → draining → router → handler
//!                                                                             │
//!       log, metrics ← X-Request-Id, CORS, no-store ← error becomes its body ←┘
//! ```
//!
//! Invariant: the router is never asked for a request that the guard has not let through.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue, ORIGIN,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{StatusCode, Version};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::auth::Guard;
use crate::body::{Continue, RequestBody};
use crate::cors::Cors;
use crate::error::ApiError;
use crate::exchange::{AnswerBody, Exchange, Subject};
use crate::metrics::Metrics;
use crate::request_id::{REQUEST_ID, RequestId};
use crate::traffic::{Framing, HalfClose, Shared};
use crate::websocket::Switch;

/// The parts that all connections share.
#[derive(Debug)]
pub(crate) struct Edge {
    pub(crate) router: Router,
    pub(crate) guard: Guard,
    pub(crate) cors: Cors,
    pub(crate) metrics: Arc<Metrics>,
    /// Cancelled when the daemon begins to stop.
    pub(crate) draining: CancellationToken,
}

impl Edge {
    /// Answers one request. Never fails: what goes wrong is an answer too.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
        shared: &Arc<Shared>,
    ) -> Response<AnswerBody> {
        let framing = shared.framing();
        let (mut parts, incoming) = request.into_parts();
        let id = RequestId::of(&parts.headers);
        let busy = shared.begin(half_close(&parts));
        let metrics = Arc::clone(&self.metrics);
        let body = RequestBody::new(incoming, busy.clone(), continues(&parts.headers));
        let mut exchange = Exchange::begin(id.clone(), parts.method.clone(), metrics, busy);
        parts.extensions.insert(id);
        parts.extensions.insert(exchange.subject.clone());
        let origin = parts.headers.get(ORIGIN).cloned();
        let response = AssertUnwindSafe(self.decide(parts, body, framing)).catch_unwind().await;
        let response = response.unwrap_or_else(|_| {
            // The panic's text went to the log by the panic hook.
            ApiError::internal("a handler panicked").into_response()
        });
        let mut response = with_error_body(response, &mut exchange);
        self.finish(response.headers_mut(), &exchange, origin.as_ref());
        exchange.answered(response.status());
        match response.extensions_mut().remove::<Switch>() {
            Some(switch) => {
                shared.switch(switch.with(exchange));
                response.map(|_| AnswerBody::none())
            }
            None => {
                self.close_where_needed(response.headers_mut(), framing);
                response.map(|body| AnswerBody::new(body, exchange))
            }
        }
    }

    async fn decide(&self, mut parts: Parts, body: RequestBody, framing: Framing) -> Response {
        if framing == Framing::Both {
            let text = "`Content-Length` and `Transfer-Encoding` in one request";
            return ApiError::invalid(text).into_response();
        }
        if self.cors.is_preflight(&parts) {
            let mut response = StatusCode::NO_CONTENT.into_response();
            Cors::preflight_headers(response.headers_mut());
            return response;
        }
        match self.guard.check(&parts, &self.cors) {
            Ok(caller) => parts.extensions.insert(caller),
            Err(error) => return error.into_response(),
        };
        if self.draining.is_cancelled() && parts.uri.path() != "/healthz" {
            return ApiError::draining().into_response();
        }
        let request = Request::from_parts(parts, Body::new(body));
        let Ok(response) = self.router.clone().oneshot(request).await;
        response
    }

    fn finish(&self, headers: &mut HeaderMap, exchange: &Exchange, origin: Option<&HeaderValue>) {
        headers.insert(REQUEST_ID, exchange.id.header());
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        self.cors.mark(origin, headers);
    }

    fn close_where_needed(&self, headers: &mut HeaderMap, framing: Framing) {
        // `Wire` does not know where a chunked body ends, so the connection ends with it.
        if matches!(framing, Framing::Chunked | Framing::Both) || self.draining.is_cancelled() {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

/// A client of HTTP/1.1 that closes its side is gone, whatever it says of the connection: a full close
/// can't be told from a half one. What HTTP/1.0 had for the end of a request may still be in use.
fn half_close(request: &Parts) -> HalfClose {
    if request.version == Version::HTTP_10 { HalfClose::Allowed } else { HalfClose::IsDisconnect }
}

fn continues(headers: &HeaderMap) -> Continue {
    match headers.get(EXPECT) {
        Some(value) if value.as_bytes().eq_ignore_ascii_case(b"100-continue") => Continue::Awaited,
        _ => Continue::Done,
    }
}

/// Gives an error its body, now that there is a request id.
fn with_error_body(mut response: Response, exchange: &mut Exchange) -> Response {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else { return response };
    exchange.internal.clone_from(&error.internal);
    exchange.subject.set_code(error.code);
    for (name, value) in error.headers() {
        response.headers_mut().insert(name, value);
    }
    let body = serde_json::to_vec(&error.body(&exchange.id)).unwrap_or_default();
    response.headers_mut().remove(hyper::header::CONTENT_LENGTH);
    *response.body_mut() = body.into();
    response
}

/// A layer inside the router, where the route and its parameters are known: notes them for the log.
pub(crate) async fn note_route(
    parameters: Result<RawPathParams, RawPathParamsRejection>,
    request: Request,
    next: Next,
) -> Response {
    let extensions = request.extensions();
    if let (Some(subject), Some(path)) =
        (extensions.get::<Subject>(), extensions.get::<MatchedPath>())
    {
        subject.set_route(path);
        // What is not UTF-8 is no id.
        for (name, text) in parameters.iter().flatten() {
            subject.set_parameter(name, text);
        }
    }
    next.run(request).await
}

/// `application/json` for bodies that are made by hand.
pub(crate) const JSON: (hyper::header::HeaderName, HeaderValue) =
    (CONTENT_TYPE, HeaderValue::from_static("application/json"));
