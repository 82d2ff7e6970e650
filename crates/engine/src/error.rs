//! What can go wrong, said once. `server` gives each variant its code and status; the texts here are
//! for clients, except [`Error::Internal`], which is for the log alone.

use std::fmt;

use sandkasten_types::exec::ExecOutput;
use sandkasten_types::session::Status;
use sandkasten_types::{ExecId, ImageName, ProcessId, SessionId, WorkspaceId};

use crate::image::way_to_make;

/// Why an engine call failed.
#[expect(clippy::error_impl_error, reason = "callers write `engine::Error`")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong; nothing ran.
    #[error("{0}")]
    InvalidRequest(String),
    /// The image name is malformed or not allowed.
    #[error("{0}")]
    InvalidImage(String),
    /// The workspace id is malformed, or workspaces are off.
    #[error("{0}")]
    InvalidWorkspace(String),
    #[error("session not found: {0}")]
    SessionNotFound(SessionId),
    #[error("workspace not found: {0}")]
    WorkspaceNotFound(WorkspaceId),
    #[error("image not found: {0}")]
    ImageNotFound(ImageName),
    /// A create named no image, and the configured one does not exist.
    #[error(
        "no image was named, and the default image `{0}` does not exist: name one in `image`, or make it with `{way}`",
        way = way_to_make(.0.as_str())
    )]
    NoDefaultImage(ImageName),
    #[error("exec not found: {0}")]
    ExecNotFound(ExecId),
    #[error("process not found: {0}")]
    ProcessNotFound(ProcessId),
    /// The session existed and has ended.
    #[error("{0}")]
    Ended(Box<Ended>),
    #[error("{path}: {fault}")]
    File { path: String, fault: FileFault },
    /// More than a limit, which the message states.
    #[error("{what} is {bytes} bytes; the limit is {limit}")]
    TooLarge { what: String, bytes: u64, limit: u64 },
    /// A count that the operator limits is used up; try again later.
    #[error("{what}: the limit is {limit}")]
    QuotaExceeded { what: &'static str, limit: u64 },
    /// Too much at once; nothing ran.
    #[error("{0}")]
    Overloaded(String),
    /// The daemon is stopping; nothing ran.
    #[error("the daemon is stopping")]
    Draining,
    /// No room on the disk.
    #[error("{0}")]
    NoSpace(String),
    #[error("{0}")]
    Conflict(String),
    #[error("workspace in use: {0}")]
    WorkspaceInUse(WorkspaceId),
    /// A key or id that was used before, for something else.
    #[error("{0}")]
    IdempotencyMismatch(String),
    /// A fault of ours or of the host. The text never leaves the daemon.
    #[error("{0}")]
    Internal(String),
}

impl Error {
    /// An [`Error::Internal`] that says what was tried and the whole chain of causes.
    pub(crate) fn internal(tried: impl fmt::Display, cause: impl std::error::Error) -> Self {
        let mut text = format!("{tried}: {cause}");
        let mut next = cause.source();
        while let Some(source) = next {
            text.push_str(": ");
            text.push_str(&source.to_string());
            next = source.source();
        }
        Self::Internal(text)
    }
}

/// What is known of a session that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub id: SessionId,
    /// Destroyed, expired, crashed or lost.
    pub status: Status,
    /// What ended it, in a word or a few.
    pub reason: String,
    /// For an exec: the command had been given to the shell.
    pub started: bool,
    /// For an exec that had started: its output so far, cleaned and capped.
    pub output: Option<ExecOutput>,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, status, reason, started, .. } = self;
        write!(f, "session {id} is {}: {reason}", status.as_str())?;
        if *started {
            f.write_str("; the call had begun, and was cut off by that")?;
        }
        Ok(())
    }
}

/// Why a file operation failed, in a session or in a workspace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileFault {
    #[error("no such file or directory")]
    NotFound,
    #[error("is a directory")]
    IsADirectory,
    #[error("not a directory")]
    NotADirectory,
    /// FIFO, socket or device.
    #[error("not a regular file")]
    NotAFile,
    #[error("permission denied")]
    PermissionDenied,
    #[error("already exists")]
    AlreadyExists,
    /// Empty, with a NUL, too long, or a loop of links; the text says which.
    #[error("invalid path: {0}")]
    InvalidPath(String),
    /// The path leaves the workspace.
    #[error("path is not allowed: it leaves the workspace")]
    NotAllowed,
    /// The precondition does not hold.
    #[error("changed: what is there is not what was expected")]
    Changed,
    #[error("directory not empty")]
    NotEmpty,
    /// A move between two file systems has to copy.
    #[error("it is on another file system")]
    OtherDevice,
    #[error("no space left")]
    NoSpace,
    /// An archive that is damaged or not allowed; the text says what is wrong.
    #[error("{0}")]
    Archive(&'static str),
    #[error("{bytes} bytes; the limit is {limit}")]
    TooLarge { bytes: u64, limit: u64 },
}

/// Why the engine does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("data directory {path}: {source}")]
    DataDir { path: String, source: std::io::Error },
    #[error("run directory {path}: {source}")]
    RunDir { path: String, source: std::io::Error },
    /// The database can't be opened, is damaged, or is of a newer version.
    #[error("database {path}: {reason}")]
    Database { path: String, reason: String },
    #[error("cgroups: {0}")]
    Cgroups(String),
    /// `ceilings.disk_mb` is set and can't be kept.
    #[error("`ceilings.disk_mb` is set, and this host can't limit disk space: {0}")]
    DiskLimits(String),
    #[error("images: {0}")]
    Images(std::io::Error),
    #[error("recovery of sessions: {0}")]
    Recovery(String),
}
