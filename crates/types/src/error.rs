//! Error codes of the API. What status each has is decided in `server`, in one table.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The stable name of an error, `error_code` on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ErrorCode {
    InvalidRequest,
    InvalidImage,
    InvalidWorkspace,
    InvalidPath,
    PathNotAllowed,
    NotAFile,
    IsADirectory,
    NotADirectory,
    Unauthorized,
    Forbidden,
    PermissionDenied,
    SessionNotFound,
    WorkspaceNotFound,
    FileNotFound,
    ImageNotFound,
    ExecNotFound,
    ProcessNotFound,
    RouteNotFound,
    MethodNotAllowed,
    Conflict,
    AlreadyExists,
    WorkspaceInUse,
    IdempotencyMismatch,
    SessionExpired,
    SessionDestroyed,
    SessionCrashed,
    PreconditionFailed,
    TooLarge,
    QuotaExceeded,
    RateLimited,
    Overloaded,
    Draining,
    NoSpace,
    InternalError,
}

/// The body of every error answer.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The stable name of the error. Its status follows from it, but for the few answers that `docs/errors.md`
    /// names, as `NO_SPACE` of `/readyz`.
    pub error_code: ErrorCode,
    /// Names the thing and the limit; never a host path.
    pub message: String,
    /// The same as `message`, for clients of version 0.3.0.
    pub error: String,
    /// Facts a program can use, by name; which ones depends on the code.
    pub details: serde_json::Map<String, serde_json::Value>,
    /// Nothing ran; the same call may be sent again.
    pub retryable: bool,
}
