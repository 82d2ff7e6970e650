//! The output of one exec on its way from the actor to its caller.
//!
//! It has no limit of its own: init may send a window of bytes, and gets room for more only as the
//! caller takes them; the actor ends a session whose init sends more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandkasten_protocol::Stream;
use sandkasten_types::exec::ExecEnd;
use tokio::sync::Notify;

use crate::error::Error;

/// How an exec ended, for its caller.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(ExecEnd),
    Failed(Error),
}

/// Some output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) stream: Stream,
    /// When its first byte came, in milliseconds since 1970-01-01 UTC.
    pub(crate) at_ms: i64,
    pub(crate) data: Vec<u8>,
}

/// What the caller takes.
#[derive(Debug)]
pub(crate) enum Taken {
    Piece(Piece),
    /// Comes once, last.
    End(Outcome),
}

/// Between the actor and one caller.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    inside: Mutex<Inside>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inside {
    pieces: VecDeque<Piece>,
    end: Option<Outcome>,
    ended: bool,
}

impl Pipe {
    /// Appends output. Bytes of the same stream join the piece that waits: a million frames of one
    /// byte take no more room than a megabyte.
    pub(crate) fn push(&self, stream: Stream, at_ms: i64, data: Vec<u8>) {
        let mut inside = self.lock();
        if inside.ended {
            return;
        }
        match inside.pieces.back_mut() {
            Some(last) if last.stream == stream => last.data.extend_from_slice(&data),
            _ => inside.pieces.push_back(Piece { stream, at_ms, data }),
        }
        drop(inside);
        self.changed.notify_one();
    }

    /// Says how it ended. The first word counts.
    pub(crate) fn end(&self, outcome: Outcome) {
        let mut inside = self.lock();
        if !inside.ended {
            inside.ended = true;
            inside.end = Some(outcome);
        }
        drop(inside);
        self.changed.notify_one();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().pieces.is_empty()
    }

    /// Waits for output or the end. `None` after the end.
    pub(crate) async fn take(&self) -> Option<Taken> {
        loop {
            {
                let mut inside = self.lock();
                if let Some(piece) = inside.pieces.pop_front() {
                    return Some(Taken::Piece(piece));
                }
                if let Some(outcome) = inside.end.take() {
                    return Some(Taken::End(outcome));
                }
                if inside.ended {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[tokio::test]
    async fn bytes_join_and_the_first_end_counts() {
        let pipe = Pipe::default();
        pipe.push(Stream::Output, 1, b"a".to_vec());
        pipe.push(Stream::Output, 2, b"b".to_vec());
        pipe.end(Outcome::Failed(Error::Draining));
        pipe.end(Outcome::Failed(Error::Internal("second".into())));
        let Some(Taken::Piece(piece)) = pipe.take().await else { panic!() };
        assert_eq!(piece, Piece { stream: Stream::Output, at_ms: 1, data: b"ab".to_vec() });
        assert!(matches!(pipe.take().await, Some(Taken::End(Outcome::Failed(Error::Draining)))));
        assert!(pipe.take().await.is_none());
    }
}
