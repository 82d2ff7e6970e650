//! Errors as clients see them. The only place where a status code is chosen.
//!
//! An [`ApiError`] travels from a handler to [`crate::edge`] inside a response that has no body yet;
//! there it gets the request id and becomes the one shape of `types::error::ErrorBody`.

use std::net::SocketAddr;

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue};
use sandkasten_engine::{Ended, Error, FileFault};
use sandkasten_types::ErrorCode;
use sandkasten_types::error::ErrorBody;
use sandkasten_types::exec::StreamError;
use sandkasten_types::session::Status;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::request_id::{REQUEST_ID, RequestId};

#[cfg(test)]
mod page;

/// Seconds after which a client that was turned away may ask again.
const RETRY_AFTER_SECONDS: u32 = 1;
pub(crate) const RETRY_AFTER_DRAIN_SECONDS: u32 = 5;
/// Parsers quote what they were given; an answer need not carry a megabyte of it back.
const MESSAGE_CHARS_MAX: usize = 600;

/// An error on its way to a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
    pub(crate) details: Map<String, Value>,
    /// For the log alone.
    pub(crate) internal: Option<String>,
    /// Where the status is not the code's own.
    special: Option<Special>,
}

/// The answers whose status is not their code's own. No others are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    DiskFull,
    Range,
    Address,
    Head,
}

impl Special {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 4] = [Self::Address, Self::Range, Self::Head, Self::DiskFull];

    pub(crate) fn code(self) -> ErrorCode {
        match self {
            Self::DiskFull => ErrorCode::NoSpace,
            Self::Range | Self::Address => ErrorCode::InvalidRequest,
            Self::Head => ErrorCode::TooLarge,
        }
    }

    pub(crate) fn status(self) -> StatusCode {
        match self {
            // What asks for readiness knows 503, and asks again.
            Self::DiskFull => StatusCode::SERVICE_UNAVAILABLE,
            Self::Range => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::Address => StatusCode::URI_TOO_LONG,
            Self::Head => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }

    /// Where it comes and what it means.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::DiskFull => "`GET /readyz`: the data disk is full; no session is made meanwhile",
            Self::Range => "`Range` of a file: the range begins behind the file's end",
            Self::Address => "any call: the address is too long",
            Self::Head => "any call: the address and the headers together are above 64 KiB",
        }
    }

    /// Such an answer.
    pub(crate) fn error(self, message: impl Into<String>) -> ApiError {
        ApiError { special: Some(self), ..ApiError::new(self.code(), message) }
    }
}

/// The table: each code and its status.
pub(crate) fn status(code: ErrorCode) -> StatusCode {
    use ErrorCode as E;
    match code {
        E::InvalidRequest
        | E::InvalidImage
        | E::InvalidWorkspace
        | E::InvalidPath
        | E::PathNotAllowed
        | E::NotAFile
        | E::IsADirectory
        | E::NotADirectory => StatusCode::BAD_REQUEST,
        E::Unauthorized => StatusCode::UNAUTHORIZED,
        E::Forbidden | E::PermissionDenied => StatusCode::FORBIDDEN,
        E::SessionNotFound
        | E::WorkspaceNotFound
        | E::FileNotFound
        | E::ImageNotFound
        | E::ExecNotFound
        | E::ProcessNotFound
        | E::RouteNotFound => StatusCode::NOT_FOUND,
        E::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        E::Conflict | E::AlreadyExists | E::WorkspaceInUse | E::IdempotencyMismatch => {
            StatusCode::CONFLICT
        }
        E::SessionExpired | E::SessionDestroyed | E::SessionCrashed => StatusCode::GONE,
        E::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        E::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        E::QuotaExceeded | E::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        E::Overloaded | E::Draining => StatusCode::SERVICE_UNAVAILABLE,
        E::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        E::InternalError => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// What a code means, for the API document.
pub(crate) fn meaning(code: ErrorCode) -> &'static str {
    use ErrorCode as E;
    match code {
        E::InvalidRequest => "the request breaks a rule; the message names the field and the rule",
        E::InvalidImage => "the image name is malformed, or not one that the daemon allows",
        E::InvalidWorkspace => "the workspace id is malformed, or workspaces are switched off",
        E::InvalidPath => "the path is empty, too long, has a NUL, or its links lead in a circle",
        E::PathNotAllowed => "the path leads out of the workspace",
        E::NotAFile => "the path is no regular file",
        E::IsADirectory => "the path is a directory",
        E::NotADirectory => "the path, or a part of it, is no directory",
        E::Unauthorized => "the API key is missing or wrong",
        E::Forbidden => "the `Host` or `Origin` may not call a daemon that has no API key",
        E::PermissionDenied => "file permissions inside the sandbox forbid it",
        E::SessionNotFound => "there is no such session",
        E::WorkspaceNotFound => "there is no such workspace",
        E::FileNotFound => "there is nothing at the path",
        E::ImageNotFound => "there is no such image",
        E::ExecNotFound => "there is no such exec, or it is not kept any more",
        E::ProcessNotFound => "there is no such process, or it is not kept any more",
        E::RouteNotFound => "there is no such route in this version",
        E::MethodNotAllowed => "the route has other methods; `Allow` lists them",
        E::Conflict => "the state of the thing forbids it; the message says which",
        E::AlreadyExists => "there is something at the path already",
        E::WorkspaceInUse => "a session has the workspace",
        E::IdempotencyMismatch => "the key or id was used for another request",
        E::SessionExpired => "the session's time is over",
        E::SessionDestroyed => "the session was deleted",
        E::SessionCrashed => "the session broke down",
        E::PreconditionFailed => "the file is not the one that the precondition names",
        E::TooLarge => "the body or file is above the limit, which the message states",
        E::QuotaExceeded => "as many sessions run as the daemon may have; end one, or wait",
        E::RateLimited => "too many requests in a short time; wait",
        E::Overloaded => "the daemon or the session has too much to do; wait",
        E::Draining => "the daemon is stopping",
        E::NoSpace => "the disk quota of the session or workspace, or the disk itself, is full",
        E::InternalError => "a fault of the daemon; its log has the request id",
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let new = |code| Self::new(code, message.clone());
        match error {
            Error::InvalidRequest(_) => new(ErrorCode::InvalidRequest),
            Error::InvalidImage(_) => new(ErrorCode::InvalidImage),
            Error::InvalidWorkspace(_) => new(ErrorCode::InvalidWorkspace),
            Error::SessionNotFound(id) => {
                new(ErrorCode::SessionNotFound).with("session_id", id.as_str())
            }
            Error::WorkspaceNotFound(id) => {
                new(ErrorCode::WorkspaceNotFound).with("workspace_id", id.as_str())
            }
            Error::ImageNotFound(name) | Error::NoDefaultImage(name) => {
                new(ErrorCode::ImageNotFound).with("image", name.as_str())
            }
            Error::ExecNotFound(id) => new(ErrorCode::ExecNotFound).with("exec_id", id.as_str()),
            Error::ProcessNotFound(id) => {
                new(ErrorCode::ProcessNotFound).with("process_id", id.as_str())
            }
            Error::Ended(ended) => Self::ended(&ended, message),
            Error::File { path, fault } => Self::file(&path, &fault, message),
            Error::TooLarge { limit, .. } => new(ErrorCode::TooLarge).with("limit", limit),
            Error::QuotaExceeded { limit, .. } => {
                new(ErrorCode::QuotaExceeded).with("limit", limit)
            }
            Error::Overloaded(_) => new(ErrorCode::Overloaded),
            Error::Draining => Self::draining(),
            Error::NoSpace(_) => new(ErrorCode::NoSpace),
            Error::Conflict(_) => new(ErrorCode::Conflict),
            Error::WorkspaceInUse(id) => {
                new(ErrorCode::WorkspaceInUse).with("workspace_id", id.as_str())
            }
            Error::IdempotencyMismatch(_) => new(ErrorCode::IdempotencyMismatch),
            Error::Internal(chain) => Self::internal(chain),
        }
    }
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS_MAX) {
            message.truncate(end);
            message.push('…');
        }
        Self { code, message, details: Map::new(), internal: None, special: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, message)
    }

    pub(crate) fn invalid_path(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidPath, message)
    }

    /// `bytes` where the size is known before the limit is passed.
    pub(crate) fn too_large(what: &str, bytes: Option<u64>, limit: u64) -> Self {
        let message = match bytes {
            Some(bytes) => format!("{what} is {bytes} bytes; the limit is {limit}"),
            None => format!("{what} is too large; the limit is {limit} bytes"),
        };
        Self::new(ErrorCode::TooLarge, message).with("limit", limit)
    }

    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Overloaded, message)
    }

    pub(crate) fn draining() -> Self {
        Self::new(ErrorCode::Draining, "the daemon is stopping")
    }

    /// `chain` goes to the log; the client gets the request id to find it by.
    pub(crate) fn internal(chain: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorCode::InternalError, "internal error");
        error.internal = Some(chain.into());
        error
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.into(), value.into());
        self
    }

    fn ended(ended: &Ended, message: String) -> Self {
        let code = match ended.status {
            Status::Expired => ErrorCode::SessionExpired,
            Status::Crashed | Status::Lost => ErrorCode::SessionCrashed,
            Status::Creating
            | Status::Running
            | Status::Paused
            | Status::Stopping
            | Status::Destroyed => ErrorCode::SessionDestroyed,
        };
        let mut error = Self::new(code, message)
            .with("session_id", ended.id.as_str())
            .with("status", ended.status.as_str())
            .with("reason", ended.reason.as_str())
            .with("started", ended.started);
        let output = ended.output.as_ref().map(serde_json::to_value);
        if let Some(Ok(Value::Object(fields))) = output {
            error.details.extend(fields);
        }
        error
    }

    fn file(path: &str, fault: &FileFault, message: String) -> Self {
        let (code, limit) = match fault {
            FileFault::NotFound => (ErrorCode::FileNotFound, None),
            FileFault::IsADirectory => (ErrorCode::IsADirectory, None),
            FileFault::NotADirectory => (ErrorCode::NotADirectory, None),
            FileFault::NotAFile => (ErrorCode::NotAFile, None),
            FileFault::PermissionDenied => (ErrorCode::PermissionDenied, None),
            FileFault::AlreadyExists => (ErrorCode::AlreadyExists, None),
            FileFault::InvalidPath(_) => (ErrorCode::InvalidPath, None),
            FileFault::NotAllowed => (ErrorCode::PathNotAllowed, None),
            FileFault::Changed => (ErrorCode::PreconditionFailed, None),
            FileFault::NotEmpty | FileFault::OtherDevice => (ErrorCode::Conflict, None),
            FileFault::NoSpace => (ErrorCode::NoSpace, None),
            FileFault::Archive(_) => (ErrorCode::InvalidRequest, None),
            FileFault::TooLarge { limit, .. } => (ErrorCode::TooLarge, Some(*limit)),
        };
        let error = Self::new(code, message).with("path", path);
        match limit {
            Some(limit) => error.with("limit", limit),
            None => error,
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.special.map_or_else(|| status(self.code), Special::status)
    }

    fn retry_after(&self) -> Option<u32> {
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => Some(RETRY_AFTER_SECONDS),
            StatusCode::SERVICE_UNAVAILABLE if self.code == ErrorCode::Draining => {
                Some(RETRY_AFTER_DRAIN_SECONDS)
            }
            StatusCode::SERVICE_UNAVAILABLE => Some(RETRY_AFTER_SECONDS),
            _ => None,
        }
    }

    /// The body of the answer.
    pub(crate) fn body(&self, id: &RequestId) -> ErrorBody {
        let mut details = self.details.clone();
        let mut message = self.message.clone();
        if self.code == ErrorCode::InternalError {
            message = format!("{message}; request id: {id}");
            details.insert("request_id".into(), json!(id.as_str()));
        }
        ErrorBody {
            error_code: self.code,
            error: message.clone(),
            message,
            details,
            retryable: self.retry_after().is_some(),
        }
    }

    /// The datum of `event: error` in a stream.
    pub(crate) fn datum(&self, id: &RequestId) -> StreamError {
        let body = self.body(id);
        let ErrorBody { message: error, error_code, details, .. } = body;
        StreamError { error, error_code, details, seq: None }
    }

    /// The head that belongs to [`body`](Self::body).
    pub(crate) fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        use hyper::header;
        let json = HeaderValue::from_static("application/json");
        let mut headers = vec![(header::CONTENT_TYPE, json)];
        if let Some(seconds) = self.retry_after() {
            headers.push((header::RETRY_AFTER, HeaderValue::from(seconds)));
        }
        if self.code == ErrorCode::Unauthorized {
            headers.push((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")));
        }
        headers
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::default();
        *response.status_mut() = self.status();
        response.extensions_mut().insert(self);
        response
    }
}

/// As it stands on the wire.
pub(crate) fn code_name(code: ErrorCode) -> String {
    wire_name(&code)
}

/// A word of a closed set, as it stands on the wire.
pub(crate) fn wire_name(word: &impl Serialize) -> String {
    let value = serde_json::to_value(word).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// A whole answer to bytes that are no request, in place of hyper's own with that status.
pub(crate) fn protocol_error(bare: u16, peer: Option<SocketAddr>) -> Bytes {
    let error = match bare {
        431 => {
            let limit = sandkasten_types::limits::HEAD_BYTES_MAX;
            let text = format!("the request's head is too large; the limit is {limit} bytes");
            Special::Head.error(text).with("limit", limit)
        }
        414 => Special::Address.error("the request's address is too long"),
        _ => ApiError::invalid("the request is not valid HTTP/1.1"),
    };
    whole_answer(&error, peer)
}

/// An answer as bytes, for clients whose request was never read. The connection closes after it.
pub(crate) fn whole_answer(error: &ApiError, peer: Option<SocketAddr>) -> Bytes {
    let id = RequestId::new();
    let body = serde_json::to_string(&error.body(&id)).unwrap_or_default();
    let mut text = format!("HTTP/1.1 {}\r\n{}: {id}\r\n", error.status(), REQUEST_ID);
    for (name, value) in error.headers() {
        let value = value.to_str().unwrap_or_default();
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    tracing::info!(
        status = error.status().as_u16(),
        code = code_name(error.code),
        request_id = %id,
        peer = peer.map(tracing::field::display),
        "refused"
    );
    text.into()
}

#[cfg(test)]
mod test {
    use super::*;

    pub(super) fn all() -> Vec<ErrorCode> {
        use ErrorCode as E;
        vec![
            E::InvalidRequest,
            E::InvalidImage,
            E::InvalidWorkspace,
            E::InvalidPath,
            E::PathNotAllowed,
            E::NotAFile,
            E::IsADirectory,
            E::NotADirectory,
            E::Unauthorized,
            E::Forbidden,
            E::PermissionDenied,
            E::SessionNotFound,
            E::WorkspaceNotFound,
            E::FileNotFound,
            E::ImageNotFound,
            E::ExecNotFound,
            E::ProcessNotFound,
            E::RouteNotFound,
            E::MethodNotAllowed,
            E::Conflict,
            E::AlreadyExists,
            E::WorkspaceInUse,
            E::IdempotencyMismatch,
            E::SessionExpired,
            E::SessionDestroyed,
            E::SessionCrashed,
            E::PreconditionFailed,
            E::TooLarge,
            E::QuotaExceeded,
            E::RateLimited,
            E::Overloaded,
            E::Draining,
            E::NoSpace,
            E::InternalError,
        ]
    }

    #[test]
    fn every_code_has_the_status_of_the_contract() {
        let mut table = String::new();
        for code in all() {
            let error = ApiError::new(code, "m");
            let body = serde_json::to_value(error.body(&RequestId::new())).unwrap();
            let name = body["error_code"].as_str().unwrap();
            let again = if body["retryable"] == true { " retryable" } else { "" };
            table += &format!("{} {name}{again}\n", error.status().as_u16());
        }
        for special in Special::ALL {
            let error = special.error("m");
            let again = if error.body(&RequestId::new()).retryable { " retryable" } else { "" };
            let (status, name) = (error.status().as_u16(), code_name(special.code()));
            table += &format!("{status} {name}{again}: {}\n", special.meaning());
        }
        assert_eq!(table, include_str!("error_table.txt"));
    }

    #[test]
    fn the_chain_of_an_internal_error_stays_inside() {
        let id = RequestId::new();
        let error = ApiError::from(Error::Internal("open /var/lib/x: EIO".into()));
        let text = serde_json::to_string(&error.body(&id)).unwrap();
        assert!(!text.contains("/var/lib"), "{text}");
        assert!(text.contains(id.as_str()), "{text}");
    }

    #[test]
    fn a_message_never_carries_a_megabyte_back() {
        let error = ApiError::invalid("ä".repeat(1_000_000));
        assert!(error.message.chars().count() <= MESSAGE_CHARS_MAX + 1);
    }
}
