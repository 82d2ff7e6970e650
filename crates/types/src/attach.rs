//! Text messages of a WebSocket that is attached to a process. Bytes go in binary ones: a byte that names
//! the stream ([`STDIN`], [`STDOUT`], [`STDERR`]), then data.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exec::{Gap, StreamError};
use crate::process::{ProcessExit, SignalProcess, Tty};

/// First byte of what a client sends.
pub const STDIN: u8 = 0;
/// First byte of output, also of a PTY's.
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;

/// What a client may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum AttachOrder {
    /// Another size of the PTY.
    Resize(Tty),
    /// To the process itself.
    Signal(SignalProcess),
    /// The end of its stdin, behind all that was sent before.
    Eof,
}

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum AttachReport {
    /// The process has ended. Last; the socket is closed behind it.
    Exit(ProcessExit),
    /// What the client asked for, or the socket itself, failed.
    Error(StreamError),
    /// Output that is not kept any more stood here.
    Gap(Gap),
}
