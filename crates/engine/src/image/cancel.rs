//! Giving up what is being made: a flag that all long work looks at.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the making of images: asked for at any time by any clone, seen by the next piece of work. What
/// was begun fails then and removes what it made; what is whole stays.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks for the end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(io::Error::other("given up"));
        }
        Ok(())
    }

    /// The same reader or writer, which fails once the end is asked for.
    pub(crate) fn watch<T>(&self, inner: T) -> Watched<T> {
        Watched { inner, cancel: self.clone() }
    }
}

#[derive(Debug)]
pub(crate) struct Watched<T> {
    inner: T,
    cancel: Cancel,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.cancel.check()?;
        self.inner.read(bytes)
    }
}

impl<W: Write> Write for Watched<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.cancel.check()?;
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
