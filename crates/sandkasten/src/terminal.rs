//! The terminal of this process: raw mode, its size, its width.
//!
//! Invariant: whoever takes raw mode away does it by [`put_back`], which does it once: the guard, a
//! second signal, a panic.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use sandkasten_types::process::Tty;

use crate::failure::{Failure, Result, Tried};

/// What the terminal was before raw mode.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Of a terminal that does not know its size.
const SIZE_DEFAULT: Tty = Tty { rows: 24, cols: 80 };

/// Raw mode, while this lives.
#[derive(Debug)]
pub(crate) struct Raw(());

impl Raw {
    /// # Errors
    /// Where stdin is no terminal.
    pub(crate) fn enter() -> Result<Self> {
        let stdin = io::stdin();
        let before = tcgetattr(&stdin).tried(|| "terminal".to_owned())?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            put_back();
            hook(info);
        }));
        let guard = Self(());
        tcsetattr(&stdin, OptionalActions::Now, &raw).tried(|| "terminal".to_owned())?;
        Ok(guard)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        put_back();
    }
}

/// Whether the terminal is in raw mode.
pub(crate) fn is_raw() -> bool {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// Takes the terminal out of raw mode, if it is in it.
pub(crate) fn put_back() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // A terminal that is gone has no mode. Now, not drained: its other end may read no more.
        tcsetattr(io::stdin(), OptionalActions::Now, &before).ok();
    }
}

/// # Errors
/// Where stdin is no terminal, as docker says it.
pub(crate) fn required() -> Result<()> {
    if io::stdin().is_terminal() {
        return Ok(());
    }
    Err(Failure::new("the input device is not a TTY")
        .hint("without -t the command reads this stdin as it is"))
}

/// The size of the terminal.
pub(crate) fn size() -> Tty {
    let of = |size: rustix::termios::Winsize| {
        let known = size.ws_row > 0 && size.ws_col > 0;
        known.then(|| Tty { rows: size.ws_row.into(), cols: size.ws_col.into() })
    };
    let ask = |fd: std::os::fd::BorrowedFd<'_>| tcgetwinsize(fd).ok().and_then(of);
    let (stdin, stdout) = (io::stdin(), io::stdout());
    ask(stdin.as_fd()).or_else(|| ask(stdout.as_fd())).unwrap_or(SIZE_DEFAULT)
}

/// Characters of a line on stdout; `None` where it is no terminal.
pub(crate) fn width() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// stdin is a terminal that another job has: to read from it would stop this one.
pub(crate) fn is_in_background() -> bool {
    let foreground = tcgetpgrp(io::stdin());
    foreground.is_ok_and(|group| group != rustix::process::getpgrp())
}
