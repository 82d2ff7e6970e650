//! Processes: programs by argv, many at once, nothing shared with the shell.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exec::{ExitReason, OomDetails, RunStatus, Stream};
use crate::{Base64, ProcessId, Timestamp};

/// `POST /v1/sessions/{id}/processes`. Either `argv` or `cmd` is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StartProcess {
    /// The program and its arguments; with `env` 2 MiB at most.
    pub argv: Option<Vec<String>>,
    /// Run by `/bin/sh -c`.
    pub cmd: Option<String>,
    /// Added to the session's environment.
    pub env: Option<BTreeMap<String, String>>,
    /// Where it starts; `/workspace` where absent.
    pub cwd: Option<String>,
    /// The session's user where absent; `root`, or any name of the image's passwd.
    pub user: Option<String>,
    /// `none` where absent, `open` with a `tty`.
    pub stdin: Option<ProcessStdin>,
    /// Gives it a PTY of that size.
    pub tty: Option<Tty>,
    /// Milliseconds; none where absent.
    pub timeout_ms: Option<i64>,
    /// Answer with the result once it has ended.
    pub wait: Option<bool>,
    /// With `wait`: `kill` (where absent) or `keep`.
    pub on_disconnect: Option<String>,
}

/// `none`, `open`, or bytes and then the end of file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ProcessStdin {
    Mode(String),
    Data {
        /// Base64 of what its stdin has; then the end of file.
        base64: Base64,
    },
}

/// Size of a PTY in characters; also `POST …/resize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tty {
    /// Lines, 1 to 65535.
    pub rows: i64,
    /// Columns, 1 to 65535.
    pub cols: i64,
}

/// `POST …/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignalProcess {
    /// The signal, by name or number.
    pub signal: SignalName,
}

/// `TERM`, `SIGTERM`, `15` or `"15"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SignalName {
    Number(i64),
    Name(String),
}

/// The answer of a start without `wait`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessStarted {
    /// Id of the process, for all other calls about it.
    pub process_id: ProcessId,
    /// As the box sees it.
    pub pid: i32,
    /// When it was started.
    pub started_at: Timestamp,
}

/// How a process ended; also `event: exit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessEnd {
    /// 127: no such program; 126: not executable; 128 + n: it died by the signal n.
    pub exit_code: i32,
    /// Number of the signal that it died by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it ended.
    pub exit_reason: ExitReason,
    /// Milliseconds from its start to its end.
    pub duration_ms: u64,
    /// Something of its output is not kept.
    pub truncated: bool,
    /// Bytes that it wrote.
    pub output_bytes: u64,
    /// Processes of the session killed for want of memory while it ran.
    pub oom_kills: u64,
    /// Forks that failed at the pids limit while it ran.
    pub fork_fails: u64,
    /// The session's memory limit in bytes, with `exit_reason` `oom`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit: Option<u64>,
    /// Whose limit it was, where it was not the session's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<OomDetails>,
}

/// The answer of a start with `wait`. 64 MiB of each stream at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessAnswer {
    /// Id of the process.
    pub process_id: ProcessId,
    #[serde(flatten)]
    pub end: ProcessEnd,
    /// Base64 of its stdout; with a `tty` of all that it wrote.
    pub stdout_base64: Base64,
    /// Base64 of its stderr; empty with a `tty`.
    pub stderr_base64: Base64,
}

/// `GET …/processes/{process_id}`, and each entry of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessStatus {
    /// Id of the process.
    pub process_id: ProcessId,
    /// How far it has come.
    pub status: RunStatus,
    /// Its number, as the box sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// The first 2 KiB of its arguments.
    pub argv: Vec<String>,
    /// It has a PTY.
    pub tty: bool,
    /// When the request came.
    pub created_at: Timestamp,
    /// When it was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Why it could not be started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub end: Option<ProcessEnd>,
}

/// `GET …/processes`, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Processes {
    /// The processes, oldest first.
    pub processes: Vec<ProcessStatus>,
}

/// `event: output` of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessOutput {
    /// Where it was written to.
    pub stream: Stream,
    /// Base64 of what was written.
    pub data_base64: Base64,
    /// Also the event's `id`.
    pub seq: u64,
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp: i64,
}
