//! From the bytes that a command wrote to the text that a client reads.
//!
//! ```text
//!   bytes -> utf8 -> escape -+-> lines  -> cap  -> collected    a blocking answer
//!                            +-> stream -> shown                events
//! ```
//!
//! Invariant: every stage keeps its state between chunks, so that the text does not depend on where
//! the bytes were cut, and no stage holds more than a constant beside what is kept for the answer.

mod cap;
mod collected;
mod escape;
mod lines;
mod shown;
mod stream;
mod utf8;

pub(crate) use collected::Collected;
use lines::Blocking;
use sandkasten_protocol as protocol;
use sandkasten_types::exec::Stream;
pub(crate) use shown::Shown;
pub(crate) use utf8::Decoder;

/// Whether escape sequences and line ends are cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cleaning {
    Full,
    /// Invalid UTF-8 is replaced, since JSON has no bytes; all else stays.
    Utf8Only,
}

pub(crate) fn api_stream(stream: protocol::Stream) -> Stream {
    match stream {
        protocol::Stream::Output => Stream::Output,
        protocol::Stream::Stdout => Stream::Stdout,
        protocol::Stream::Stderr => Stream::Stderr,
        protocol::Stream::Pty => Stream::Pty,
    }
}
