//! From the bytes that a command wrote to the text that a client reads.
//!
//! ```text
//!   bytes -> utf8 -> escape -+-> lines  -> cap      a blocking answer
//!                            +-> stream -> split    events
//! ```
//!
//! Invariant: every stage keeps its state between chunks, so that the text does not depend on where
//! the bytes were cut, and no stage holds more than a constant beside what is kept for the answer.

mod cap;
mod escape;
mod lines;
mod stream;
mod utf8;

pub(crate) use lines::Blocking;
pub(crate) use stream::{Streaming, chunks};

/// Whether escape sequences and line ends are cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cleaning {
    Full,
    /// Invalid UTF-8 is replaced, since JSON has no bytes; all else stays.
    Utf8Only,
}
