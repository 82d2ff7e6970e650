//! Execs: one command given to a session's shell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ExecId;

/// `POST /v1/sessions/{id}/exec` and `…/exec/stream`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecRequest {
    /// The command, 1 MiB at most, no NUL. Empty is exit 0.
    pub cmd: String,
    /// Milliseconds; 30000 where absent.
    pub timeout_ms: Option<i64>,
    /// Output goes to a fresh PTY and is not cleaned.
    pub raw_output: Option<bool>,
    pub stdin: Option<String>,
    pub cwd: Option<String>,
    pub env: Option<BTreeMap<String, String>>,
    pub user: Option<String>,
    pub split: Option<bool>,
    pub encoding: Option<String>,
    pub max_output_bytes: Option<i64>,
    pub exec_id: Option<String>,
    pub on_disconnect: Option<String>,
    pub detach: Option<bool>,
}

/// Why a command ended. Exactly one holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// It ended by itself; the shell goes on.
    Exited,
    /// The shell itself died by a signal.
    Signaled,
    Timeout,
    /// The session's memory was full and a process was killed.
    Oom,
    /// No process could be made any more.
    Pids,
    /// The shell was left by `exit`, `set -e` and the like.
    ShellExited,
    Cancelled,
    SessionDestroyed,
    Lost,
}

/// How a command ended: the fields that a blocking answer and the `done` event share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecEnd {
    pub exec_id: ExecId,
    pub exit_code: i32,
    pub cwd: String,
    pub duration_ms: u64,
    pub timed_out: bool,
    pub exit_reason: ExitReason,
    /// Number of the signal that the shell died by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub shell_restarted: bool,
    /// The new shell has not all of the state that the last finished command left: it could not be
    /// saved (above 16 MiB) or not be loaded.
    #[serde(default, skip_serializing_if = "is_false")]
    pub state_lost: bool,
    /// Something was left out of the output.
    pub truncated: bool,
    /// Bytes that the command wrote.
    pub output_bytes: u64,
    /// Processes of the session killed for want of memory while the command ran.
    pub oom_kills: u64,
    /// Forks that failed at the pids limit while the command ran.
    pub fork_fails: u64,
    /// The session's memory limit in bytes, with `exit_reason` `oom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Whose limit it was, where it was not the session's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<OomDetails>,
}

/// More about an `exit_reason` `oom`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OomDetails {
    pub scope: OomScope,
}

/// Whose memory limit killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OomScope {
    /// That over all sessions together: this one was below its own.
    Host,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The answer of a blocking exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecAnswer {
    /// stdout and stderr in the order written, cleaned.
    pub output: String,
    #[serde(flatten)]
    pub end: ExecEnd,
}

/// Which of a command's outputs a chunk is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    Output,
    Stdout,
    Stderr,
    Pty,
}

/// `event: chunk` of an exec stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Chunk {
    pub chunk: String,
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp: i64,
    pub stream: Stream,
    /// Rises with every event of the stream; also the event's `id`.
    pub seq: u64,
}

/// `event: error` of an exec stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StreamError {
    pub error: String,
    pub error_code: crate::ErrorCode,
    pub details: serde_json::Map<String, serde_json::Value>,
}
