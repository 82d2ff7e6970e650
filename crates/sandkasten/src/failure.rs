//! Why a command failed, as its user sees it: one message, perhaps a hint, an exit code.
//!
//! | exit code | means |
//! |---|---|
//! | 0 | done |
//! | 1 | it failed; `doctor`: a required guarantee is missing |
//! | 2 | wrong usage of the command line |
//! | 125 | `run`, `exec`: Sandkasten failed, not the command (whose own code is passed on) |
//! | 128 + n | ended by the signal n: 130 interrupted, 143 by SIGTERM |

use std::fmt;

/// The result of whatever a command does.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Exit code of a command that failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code of a wrong command line, as clap has it.
pub(crate) const WRONG_USAGE: u8 = 2;
/// Exit code of `run` and `exec` where Sandkasten failed, not the command.
pub(crate) const NOT_RUN: u8 = 125;

/// A failure to be shown. The message starts in lower case and has no final dot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    pub(crate) exit_code: u8,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, exit_code: FAILED }
    }

    /// Says what was tried, then the cause and its causes.
    pub(crate) fn because(tried: impl fmt::Display, cause: &dyn std::error::Error) -> Self {
        let mut message = format!("{tried}: {cause}");
        let mut next = cause.source();
        while let Some(source) = next {
            message = format!("{message}: {source}");
            next = source.source();
        }
        Self::new(message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A failure of `run` and the like: not the command's, unless it already has a code of its own.
    pub(crate) fn not_run(self) -> Self {
        if self.exit_code == FAILED { self.exit_code(NOT_RUN) } else { self }
    }

    pub(crate) fn exit_code(mut self, exit_code: u8) -> Self {
        self.exit_code = exit_code;
        self
    }
}

/// Adds what was tried to an error of someone else.
pub(crate) trait Tried<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: std::error::Error> Tried<T> for std::result::Result<T, E> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|cause| Failure::because(what(), &cause))
    }
}
