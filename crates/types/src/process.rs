//! Processes: programs by argv, many at once, nothing shared with the shell.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::base64::Base64;
use crate::exec::{ExitReason, OomDetails, RunStatus, Stream};
use crate::ids::ProcessId;
use crate::strict::{Expected, unknown_field, whole};
use crate::time::Timestamp;

/// `POST /v1/sessions/{id}/processes`. Either `argv` or `cmd` is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StartProcess {
    /// The program and its arguments; with `env` 2 MiB at most.
    pub argv: Option<Vec<String>>,
    /// A command of at most 131071 bytes, run by `/bin/sh -c`.
    pub cmd: Option<String>,
    /// Added to the session's environment; with `argv` 2 MiB at most.
    pub env: Option<BTreeMap<String, String>>,
    /// Where it starts, a path of at most 4095 bytes; `/workspace` where absent.
    pub cwd: Option<String>,
    /// The session's user where absent; `sandbox`, `root`, or any name or uid of the image's passwd, of at
    /// most 256 bytes.
    pub user: Option<String>,
    /// `none` where absent, `open` with a `tty`.
    pub stdin: Option<ProcessStdin>,
    /// How its output is shown, in its events too: `base64` (where absent) is exact bytes; `text` is not
    /// cleaned, and what is no UTF-8 becomes U+FFFD.
    pub encoding: Option<String>,
    /// Gives it a PTY of that size.
    pub tty: Option<Tty>,
    /// Milliseconds from its start, 1 at least; no limit where absent. `max_exec_timeout_ms` does not hold
    /// for processes.
    pub timeout_ms: Option<i64>,
    /// Answer with the result once it has ended.
    pub wait: Option<bool>,
    /// With `wait`: `kill` (where absent) or `keep`.
    pub on_disconnect: Option<String>,
}

/// `none`, `open`, or all that it has to read, in base64 or as a text; then comes the end of file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ProcessStdin {
    Mode(String),
    Data {
        /// Base64 of what its stdin has; then the end of file.
        base64: Base64,
    },
    Text {
        /// What its stdin has; then the end of file.
        text: String,
    },
}

impl<'de> Deserialize<'de> for ProcessStdin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StdinVisitor)
    }
}

struct StdinVisitor;

impl<'de> Visitor<'de> for StdinVisitor {
    type Value = ProcessStdin;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`none`, `open` or an object with `base64` or `text`")
    }

    fn visit_str<E: Error>(self, mode: &str) -> Result<ProcessStdin, E> {
        Ok(ProcessStdin::Mode(mode.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<ProcessStdin, A::Error> {
        let mut found = None;
        while let Some(name) = members.next_key::<String>()? {
            let given = match name.as_str() {
                "base64" => ProcessStdin::Data { base64: members.next_value()? },
                "text" => ProcessStdin::Text { text: members.next_value()? },
                _ => return Err(A::Error::custom(unknown_field(&name, &["base64", "text"]))),
            };
            if found.replace(given).is_some() {
                return Err(A::Error::custom("give one of `base64` and `text`, not both"));
            }
        }
        found.ok_or_else(|| A::Error::custom("must have `base64` or `text`"))
    }
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
    /// To the process group of the process and, with a PTY, to the foreground group of that too, as
    /// Ctrl-C does; false where absent: to the process itself alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<bool>,
}

/// A signal by name or number: `TERM`, `SIGTERM`, `15` or `"15"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum SignalName {
    Number(i64),
    Name(String),
}

impl<'de> Deserialize<'de> for SignalName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SignalVisitor)
    }
}

struct SignalVisitor;

impl Visitor<'_> for SignalVisitor {
    type Value = SignalName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name or the number of a signal")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<SignalName, E> {
        Ok(SignalName::Name(name.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<SignalName, E> {
        Ok(SignalName::Number(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<SignalName, E> {
        Ok(SignalName::Number(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<SignalName, E> {
        whole(number)
            .map(SignalName::Number)
            .ok_or_else(|| E::custom(format_args!("must be {}, not `{number}`", Expected(&self))))
    }
}

/// The answer of a start without `wait`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessStarted {
    /// Id of the process, for all other calls about it.
    pub process_id: ProcessId,
    /// Its number, as the box sees it.
    pub pid: i32,
    /// When it was started.
    pub started_at: Timestamp,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessEnd {
    /// Exit code. 127: no such program; 126: not executable; 128 + n: it died by the signal n.
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

/// `event: exit` of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessExit {
    #[serde(flatten)]
    pub end: ProcessEnd,
    /// Number of the event, also its `id`.
    pub seq: u64,
}

/// The answer of a start with `wait`. 64 MiB of each stream at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessAnswer {
    /// Id of the process.
    pub process_id: ProcessId,
    #[serde(flatten)]
    pub end: ProcessEnd,
    /// Base64 of its stdout; with a `tty` of all that it wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<Base64>,
    /// Base64 of its stderr; empty with a `tty`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<Base64>,
    /// In place of `stdout_base64` with `encoding` `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// In place of `stderr_base64` with `encoding` `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
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
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `event: output` of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessOutput {
    /// Where it was written to.
    pub stream: Stream,
    /// Base64 of what was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_base64: Option<Base64>,
    /// In place of `data_base64` with `encoding` `text`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Number of the event, also its `id`.
    pub seq: u64,
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp: i64,
}
