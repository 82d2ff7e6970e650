//! What the two sides say.

use serde::{Deserialize, Serialize};

/// Bytes that need not be UTF-8: paths, commands, output.
pub type Bytes = Vec<u8>;

/// What init is told at its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    pub version: u32,
    /// Proves to the engine that it talks to this session's init, and to init that it is the engine.
    pub nonce: [u8; 16],
    pub user: User,
    /// The whole environment of the shell, names and values, in order.
    pub env: Vec<(Bytes, Bytes)>,
    /// Where the shell starts; where it can't be entered, `/`.
    pub cwd: Bytes,
    pub shell: ShellPreference,
    /// Seccomp program of every process that init starts, 8 bytes an instruction as in
    /// `struct sock_filter`; empty: none beside init's own, which they inherit.
    pub payload_filter: Bytes,
}

/// Who runs the shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// Which shell is looked for first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellPreference {
    /// bash, else sh.
    Bash,
    /// sh, else bash.
    Sh,
}

/// The shell that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shell {
    Bash,
    Sh,
}

/// Engine to init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToInit {
    /// First on each connection.
    Attach { version: u32, nonce: [u8; 16] },
    /// Run a command in the shell. One at a time: a second one before the first has ended is a
    /// broken protocol.
    Exec(Exec),
    /// End the command with all it started. Its [`FromInit::End`] follows, as always.
    Cancel { exec: u64 },
    /// That many bytes of the exec's output are dealt with; as many more may be sent.
    Credit { exec: u64, bytes: u64 },
    /// A file operation; answered by [`FromInit::File`] with the same tag.
    File { tag: u32, op: FileOp },
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Rises within a session, also over restarts of the engine ([`Hello::next_exec`]).
    pub id: u64,
    #[serde(with = "whole")]
    pub cmd: Bytes,
    pub timeout_ms: u64,
    pub output: OutputMode,
    /// `cd` before the command, as if typed.
    pub cwd: Option<Bytes>,
    /// Holds for this command alone.
    pub env: Vec<(Bytes, Bytes)>,
}

/// Where a command's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputMode {
    /// stdout and stderr on one pipe.
    Merged,
    /// stdout and stderr on two pipes.
    Split,
    /// Both on a fresh PTY.
    Pty,
}

/// Which output some bytes are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// stdout and stderr together.
    Output,
    Stdout,
    Stderr,
    Pty,
}

/// Init to engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// The answer to [`ToInit::Attach`].
    Hello(Hello),
    /// Some output of a command; [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX) bytes at most, never empty.
    Output {
        exec: u64,
        stream: Stream,
        at_ms: i64,
        #[serde(with = "whole")]
        data: Bytes,
    },
    /// The command is over. Output of a child that goes on may still follow.
    End { exec: u64, end: End },
    /// The answer to [`ToInit::File`]. A descriptor comes with the frame where the operation says so.
    File { tag: u32, result: Result<FileDone, FileFault> },
}

/// State of init when the engine connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    pub nonce: [u8; 16],
    /// `None`: the image has no shell.
    pub shell: Option<Shell>,
    pub cwd: Bytes,
    /// The command that runs now, or whose end no engine was there to hear: that
    /// [`FromInit::End`] follows at once.
    pub running: Option<u64>,
    /// The least id that the next exec may have.
    pub next_exec: u64,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub how: How,
    /// As a shell shows it: 128 + n for a signal, 124 at the timeout, 130 when cancelled.
    pub exit_code: i32,
    /// The working directory of the shell that takes the next command.
    pub cwd: Bytes,
    pub duration_ms: u64,
    /// Another shell than the one that ran this command takes the next one.
    pub shell_restarted: bool,
    /// The shell that takes the next command has not all of the state that the last finished one left.
    pub state_lost: bool,
    /// Bytes that the command wrote, whether or not they were sent.
    pub output_bytes: u64,
    /// Bytes of them that were thrown away since no engine was connected.
    pub dropped_bytes: u64,
}

/// What ended a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// By itself; the shell goes on.
    Exited,
    /// The shell was left (`exit`, `set -e`) with the code of the answer.
    ShellExited,
    /// The shell died by this signal.
    ShellSignaled(i32),
    Timeout,
    Cancelled,
    /// `cwd` of the request can't be entered; nothing ran.
    BadCwd,
    /// A name in `env` of the request is read-only in the shell; nothing ran.
    ReadOnlyEnv,
    /// The shell gave no whole status: what the command did is not known.
    Broken,
    /// No shell could be started.
    NoShell,
}

/// Whose rights a file operation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileUser {
    Session,
    Root,
}

/// A file operation. Paths are absolute or relative to `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileOp {
    /// Opens a regular file for reading. The descriptor comes with the answer.
    Read { path: Bytes, user: FileUser },
    /// Makes a temporary file beside `path`, to be written by the engine and then committed. The
    /// descriptor, open for writing, comes with the answer.
    Create { path: Bytes, user: FileUser, mode: Option<u32>, parents: Parents },
    /// Puts the temporary file in its place.
    Commit { token: u32 },
    /// Removes the temporary file.
    Abort { token: u32 },
}

/// Whether missing parent directories are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parents {
    Make,
    MustExist,
}

/// A file operation that worked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileDone {
    /// A descriptor comes with the frame.
    Opened,
    /// A descriptor comes with the frame.
    Created {
        token: u32,
        /// The absolute path of the file to be, links in its directory not resolved.
        path: Bytes,
    },
    Done,
}

/// A file operation that did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileFault {
    NotFound,
    IsADirectory,
    NotADirectory,
    /// FIFO, socket or device.
    NotAFile,
    PermissionDenied,
    AlreadyExists,
    /// Empty, with a NUL, too long, or a loop of links.
    InvalidPath,
    NoSpace,
    /// init's own limit on open operations.
    Busy,
    /// The token names no temporary file.
    UnknownToken,
    /// An errno that has no name here.
    Other(i32),
}

/// Byte strings as such: serde's own way is one call a byte. The bytes on the wire are the same.
mod whole {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }
        from.deserialize_byte_buf(Whole)
    }

    #[cfg(test)]
    mod test {
        use super::super::{FromInit, Stream};

        #[test]
        fn the_wire_is_that_of_a_sequence() {
            let data = vec![7u8; 300];
            let plain = postcard::to_stdvec(&(1u32, 5u64, Stream::Output, -1i64, &data)).unwrap();
            let frame = FromInit::Output { exec: 5, stream: Stream::Output, at_ms: -1, data };
            let bytes = postcard::to_stdvec(&frame).unwrap();
            assert_eq!(bytes, plain);
            assert_eq!(postcard::from_bytes::<FromInit>(&bytes), Ok(frame));
        }
    }
}
