//! A step that failed, small enough to be told through a socket by a process about to die.

use std::io;

/// Name of a step, and the errno it failed with.
#[derive(Debug)]
pub(crate) struct StepError {
    pub(crate) step: String,
    pub(crate) errno: i32,
}

/// Says which step a result belongs to.
pub(crate) trait Step<T> {
    fn step(self, name: &str) -> Result<T, StepError>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, name: &str) -> Result<T, StepError> {
        self.map_err(|error| StepError {
            step: name.to_owned(),
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        })
    }
}

impl<T> Step<T> for Result<T, rustix::io::Errno> {
    fn step(self, name: &str) -> Result<T, StepError> {
        self.map_err(|errno| StepError { step: name.to_owned(), errno: errno.raw_os_error() })
    }
}

/// A check that did not hold: what was forbidden works, or what was set isn't so.
pub(crate) fn broken(step: &str) -> StepError {
    StepError { step: step.to_owned(), errno: libc::EPERM }
}
