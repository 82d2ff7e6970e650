//! What a process has from whoever started it, and should not pass on.

use std::io;

use crate::sys;

/// Before an exec that is to start afresh: every signal back to its default and unblocked, and of all
/// descriptors only stdin, stdout and stderr survive.
///
/// # Errors
/// What sigprocmask(2) or close_range(2) say.
pub fn pass_on_only_stdio() -> io::Result<()> {
    sys::reset_signals()?;
    sys::close_range_cloexec(3)
}
