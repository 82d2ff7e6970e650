//! What handlers share, and the small extractors and answers that all of them use.

use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts, Path};
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::http::request::Parts;
use sandkasten_engine::{Engine, FileUser, Place};
use sandkasten_types::{ErrorCode, ExecId, ImageName, ProcessId, SessionId, WorkspaceId};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::budget::Budget;
use crate::edge::JSON;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::query::Query;

/// State of the router.
#[derive(Debug, Clone)]
pub(crate) struct App(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) config: Config,
    pub(crate) budget: Budget,
    pub(crate) metrics: Arc<Metrics>,
    /// Cancelled when the daemon begins to stop.
    pub(crate) draining: CancellationToken,
}

impl App {
    pub(crate) fn new(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }
}

impl App {
    /// In whose name a call on files acts.
    ///
    /// # Errors
    /// 400 where there is no such user, and the errors of the place.
    pub(crate) async fn file_user(
        &self,
        place: &Place,
        query: &Query,
    ) -> Result<FileUser, ApiError> {
        Ok(self.engine.file_user(place, query.get("user")?).await?)
    }
}

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl FromRef<App> for Budget {
    fn from_ref(app: &App) -> Self {
        app.budget.clone()
    }
}

/// The `{id}` of a session route. A text that can't be an id names no session.
#[derive(Debug)]
pub(crate) struct SessionPath(pub(crate) SessionId);

impl<S: Send + Sync> FromRequestParts<S> for SessionPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = path_text(parts, state).await;
        session_id(&text).map(Self)
    }
}

/// The `{id}` and `{exec_id}` of a route. A text that can't be an id names no exec.
#[derive(Debug)]
pub(crate) struct ExecPath(pub(crate) SessionId, pub(crate) ExecId);

impl<S: Send + Sync> FromRequestParts<S> for ExecPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let (session, exec) = two_texts(parts, state).await;
        let none = (ErrorCode::ExecNotFound, "exec");
        Ok(Self(session_id(&session)?, run_id(&exec, none)?))
    }
}

/// The `{id}` and `{process_id}` of a route.
#[derive(Debug)]
pub(crate) struct ProcessPath(pub(crate) SessionId, pub(crate) ProcessId);

impl<S: Send + Sync> FromRequestParts<S> for ProcessPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let (session, process) = two_texts(parts, state).await;
        let none = (ErrorCode::ProcessNotFound, "process");
        Ok(Self(session_id(&session)?, run_id(&process, none)?))
    }
}

async fn two_texts<S: Send + Sync>(parts: &mut Parts, state: &S) -> (String, String) {
    match Path::<(String, String)>::from_request_parts(parts, state).await {
        Ok(Path(texts)) => texts,
        // Not UTF-8: no id is like that.
        Err(_) => (String::from("?"), String::from("?")),
    }
}

fn session_id(text: &str) -> Result<SessionId, ApiError> {
    SessionId::from_str(text)
        .map_err(|_cause| not_found(ErrorCode::SessionNotFound, "session", text))
}

fn run_id<T: FromStr>(text: &str, (code, noun): (ErrorCode, &str)) -> Result<T, ApiError> {
    text.parse().map_err(|_cause| not_found(code, noun, text))
}

fn not_found(code: ErrorCode, noun: &str, text: &str) -> ApiError {
    let text: String = text.chars().take(64).collect();
    let message = format!("{noun} not found: {}", text.escape_debug());
    ApiError::new(code, message).with(&format!("{noun}_id"), text)
}

/// The `{name}` of an image route.
#[derive(Debug)]
pub(crate) struct ImagePath(pub(crate) ImageName);

impl<S: Send + Sync> FromRequestParts<S> for ImagePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = path_text(parts, state).await;
        let name =
            text.parse().map_err(|_cause| not_found(ErrorCode::ImageNotFound, "image", &text));
        name.map(Self)
    }
}

/// The `{id}` of a workspace route.
#[derive(Debug)]
pub(crate) struct WorkspacePath(pub(crate) WorkspaceId);

impl<S: Send + Sync> FromRequestParts<S> for WorkspacePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = path_text(parts, state).await;
        let id = WorkspaceId::from_str(&text);
        id.map(Self).map_err(|error| ApiError::new(ErrorCode::InvalidWorkspace, error.to_string()))
    }
}

async fn path_text<S: Send + Sync>(parts: &mut Parts, state: &S) -> String {
    match Path::<String>::from_request_parts(parts, state).await {
        Ok(Path(text)) => text,
        // Not UTF-8: no id is like that.
        Err(_) => String::from("?"),
    }
}

/// A JSON answer.
#[derive(Debug)]
pub(crate) struct Answer<T>(pub(crate) StatusCode, pub(crate) T);

/// 200 with `value`.
pub(crate) fn ok<T>(value: T) -> Answer<T> {
    Answer(StatusCode::OK, value)
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.1) {
            Ok(body) => (self.0, [JSON], body).into_response(),
            Err(error) => ApiError::internal(format!("answer: {error}")).into_response(),
        }
    }
}

/// A body of `bytes` that gives its share of the budget back when it has left.
pub(crate) mod held {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::Body;
    use bytes::Bytes;
    use futures_util::Stream;

    use crate::budget::Share;

    /// What a body is made of, piece by piece.
    pub(crate) struct Held<I> {
        pieces: I,
        _share: Option<Share>,
    }

    impl<I: Iterator<Item = Bytes> + Unpin + Send + 'static> Held<I> {
        pub(crate) fn body(pieces: I, share: Option<Share>) -> Body {
            Body::from_stream(Self { pieces, _share: share })
        }
    }

    impl<I: Iterator<Item = Bytes> + Unpin> Stream for Held<I> {
        type Item = Result<Bytes, std::convert::Infallible>;

        fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Ready(self.pieces.next().map(Ok))
        }
    }
}
