//! Execs: one command given to a session's shell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::base64::Base64;
use crate::ids::ExecId;
use crate::time::Timestamp;

/// `POST /v1/sessions/{id}/exec` and `…/exec/stream`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecRequest {
    /// The command, 1 MiB at most, no NUL. Empty is exit 0.
    pub cmd: String,
    /// Milliseconds from its begin, 1 to the daemon's `max_exec_timeout_ms`; 30000 where absent.
    pub timeout_ms: Option<i64>,
    /// Output goes to a fresh PTY and is not cleaned.
    pub raw_output: Option<bool>,
    /// What its stdin has: text, or base64 with `encoding`. Empty where absent.
    pub stdin: Option<String>,
    /// What its stdin has comes later, in any number of pieces, by `POST …/execs/{exec_id}/stdin`.
    pub stdin_open: Option<bool>,
    /// A `cd` before the command, which stays: a path of at most 4095 bytes.
    pub cwd: Option<String>,
    /// Variables of this command alone: 256 entries at most.
    pub env: Option<BTreeMap<String, String>>,
    /// The session's user where absent. Another one runs this one command, in a fresh shell: `root`,
    /// `sandbox`, or any name or uid of the image's passwd, of at most 256 bytes.
    pub user: Option<String>,
    /// stdout and stderr apart, too.
    pub split: Option<bool>,
    /// `text` where absent; `base64`: output is exact bytes, nothing decoded or cleaned, and `stdin` is
    /// base64.
    pub encoding: Option<String>,
    /// Bytes of each field of a blocking answer; 64 MiB at most.
    pub max_output_bytes: Option<i64>,
    /// 1 to 64 of `[A-Za-z0-9._-]`. The same id and command is the same exec.
    pub exec_id: Option<String>,
    /// `cancel` (where absent) or `keep`: whether the command goes on without its caller.
    pub on_disconnect: Option<String>,
    /// Answer at once with the id; implies `keep`.
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
    /// Id of the exec.
    pub exec_id: ExecId,
    /// Exit code of the command: 124 at a timeout, 130 where it was cancelled, 128 + n where signal
    /// n ended it.
    pub exit_code: i32,
    /// The shell's working directory after the command.
    pub cwd: String,
    /// Milliseconds from its begin to its end; waiting for its turn does not count.
    pub duration_ms: u64,
    /// Whether `timeout_ms` ended it.
    pub timed_out: bool,
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// Number of the signal that the shell died by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether another shell took the place of the one that ran it.
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

/// `event: done` of an exec stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecDone {
    #[serde(flatten)]
    pub end: ExecEnd,
    /// Number of the event, also its `id`.
    pub seq: u64,
}

/// More about an `exit_reason` `oom`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OomDetails {
    /// Whose memory limit it was.
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

/// What a command wrote, each field capped: as text, or as bytes where that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecOutput {
    /// stdout and stderr in the order written, cleaned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// With `split`: stdout alone, cleaned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// With `split`: stderr alone, cleaned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// In place of `output` with `encoding` `base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_base64: Option<Base64>,
    /// In place of `stdout` with `encoding` `base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<Base64>,
    /// In place of `stderr` with `encoding` `base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<Base64>,
}

impl ExecOutput {
    /// Bytes of all fields as they are held, not as they are written.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let texts = [&self.output, &self.stdout, &self.stderr];
        let bytes = [&self.output_base64, &self.stdout_base64, &self.stderr_base64];
        texts.into_iter().flatten().map(String::len).sum::<usize>()
            + bytes.into_iter().flatten().map(|one| one.0.len()).sum::<usize>()
    }
}

/// The answer of a blocking exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecAnswer {
    #[serde(flatten)]
    pub output: ExecOutput,
    #[serde(flatten)]
    pub end: ExecEnd,
}

/// The answer of an exec with `detach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecStarted {
    /// Id of the exec, to follow its events and to get its result.
    pub exec_id: ExecId,
}

/// How far a command or a process has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    Queued,
    Running,
    Finished,
}

/// `GET /v1/sessions/{id}/execs/{exec_id}`, and each entry of the list, which has no output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecStatus {
    /// Id of the exec.
    pub exec_id: ExecId,
    /// How far it has come.
    pub status: RunStatus,
    /// Its first 2 KiB.
    pub cmd: String,
    /// Bytes of the whole command.
    pub cmd_bytes: u64,
    /// When the request came.
    pub created_at: Timestamp,
    /// When its turn came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Exit code; `null` while it has none, and where it will never be known.
    #[schema(required)]
    pub exit_code: Option<i32>,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_reason: Option<ExitReason>,
    /// Why it could not be run, or what it did is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The answer, of one that is over.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub more: Option<ExecMore>,
    #[serde(flatten)]
    pub output: ExecOutput,
}

/// What [`ExecStatus`] has of an [`ExecEnd`] beside what it always has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecMore {
    /// The shell's working directory after the command.
    pub cwd: String,
    /// Milliseconds from its begin to its end.
    pub duration_ms: u64,
    /// Whether `timeout_ms` ended it.
    pub timed_out: bool,
    /// Number of the signal that the shell died by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Whether another shell took the place of the one that ran it.
    pub shell_restarted: bool,
    /// The new shell has not all of the state that the last finished command left.
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

impl From<ExecEnd> for ExecMore {
    fn from(end: ExecEnd) -> Self {
        Self {
            cwd: end.cwd,
            duration_ms: end.duration_ms,
            timed_out: end.timed_out,
            signal: end.signal,
            shell_restarted: end.shell_restarted,
            state_lost: end.state_lost,
            truncated: end.truncated,
            output_bytes: end.output_bytes,
            oom_kills: end.oom_kills,
            fork_fails: end.fork_fails,
            memory_limit: end.memory_limit,
            details: end.details,
        }
    }
}

/// `GET /v1/sessions/{id}/execs`, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Execs {
    /// The execs, oldest first.
    pub execs: Vec<ExecStatus>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `POST /v1/sessions/{id}/shell/restart`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RestartShell {
    /// Whether the new shell gets the state of the last finished command; true where absent.
    pub keep_state: Option<bool>,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShellRestarted {
    /// Always true.
    pub ok: bool,
    /// The new shell's working directory.
    pub cwd: String,
    /// Milliseconds from its turn to the new shell.
    pub duration_ms: u64,
    /// The new shell has not all of the state that the last finished command left.
    #[serde(default, skip_serializing_if = "is_false")]
    pub state_lost: bool,
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
    /// What was written, as text; it never ends within a character.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<String>,
    /// In place of `chunk` with `encoding` `base64`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk_base64: Option<Base64>,
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp: i64,
    /// Where it was written to.
    pub stream: Stream,
    /// Number of the event, also its `id`. It rises with every event, not by one always.
    pub seq: u64,
}

/// `event: gap`: output that is not kept any more stood here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gap {
    /// Bytes of output that are missing.
    pub bytes: u64,
    /// Number of the first event that is missing.
    pub from_seq: u64,
    /// Number of the last event that is missing.
    pub to_seq: u64,
    /// Number of the event, also its `id`: `to_seq`.
    pub seq: u64,
}

/// `event: error` of an exec stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StreamError {
    /// What went wrong, for people.
    pub error: String,
    /// What went wrong, for programs.
    pub error_code: crate::error::ErrorCode,
    /// Facts a program can use, by name; which ones depends on the code.
    pub details: serde_json::Map<String, serde_json::Value>,
    /// Number of the event, also its `id`. Absent where it answers a message of a WebSocket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
}
