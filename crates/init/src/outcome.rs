//! How a run ended.

use std::time::Duration;

use sandkasten_protocol::{End, How};

use crate::supervisor::Ended;

/// How long output is awaited that a child still holds.
pub(crate) const QUIET: Duration = Duration::from_millis(20);

/// How a command ended, and what its shell said then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) how: How,
    pub(crate) exit_code: i32,
}

impl Outcome {
    /// An end that has only one code.
    pub(crate) fn of(how: How) -> Self {
        let exit_code = match how {
            How::Timeout => 124,
            How::Cancelled => 130,
            How::NoShell => 127,
            How::Signaled(signal) => 128 + signal,
            How::Exited
            | How::ShellExited
            | How::BadCwd
            | How::ReadOnlyEnv
            | How::Broken
            | How::UnknownUser
            | How::NotStarted(_) => 1,
        };
        Self { how, exit_code }
    }

    pub(crate) fn exited(exit_code: i32) -> Self {
        Self { how: How::Exited, exit_code }
    }

    /// The end of something that took no time and has no output.
    pub(crate) fn end(&self, cwd: Vec<u8>) -> End {
        End {
            how: self.how,
            exit_code: self.exit_code,
            cwd,
            duration_ms: 0,
            shell_restarted: false,
            state_lost: false,
            output_bytes: 0,
            dropped_bytes: 0,
            seq: 0,
        }
    }

    /// The shell has ended under the command.
    pub(crate) fn shell(ended: Ended) -> Self {
        match ended {
            Ended::Exited(exit_code) => Self { how: How::ShellExited, exit_code },
            Ended::Signaled(signal) => Self::of(How::Signaled(signal)),
        }
    }
}
