//! The output of one exec on its way from the actor to its caller.
//!
//! It has no limit of its own: init may send a window's worth, and gets room for more only as the
//! caller takes them; the actor ends a session whose init sends more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandkasten_protocol::Record;
use sandkasten_types::exec::ExecEnd;
use tokio::sync::Notify;

use crate::error::Error;

/// How an exec ended, for its caller.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(ExecEnd),
    Failed(Error),
}

/// What the caller takes.
#[derive(Debug)]
pub(crate) enum Taken {
    Record(Record),
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
    records: VecDeque<Record>,
    end: Option<Outcome>,
    ended: bool,
}

impl Pipe {
    /// Appends output.
    pub(crate) fn push(&self, record: Record) {
        let mut inside = self.lock();
        if inside.ended {
            return;
        }
        inside.records.push_back(record);
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
        self.lock().records.is_empty()
    }

    /// Waits for output or the end. `None` after the end.
    pub(crate) async fn take(&self) -> Option<Taken> {
        loop {
            {
                let mut inside = self.lock();
                if let Some(record) = inside.records.pop_front() {
                    return Some(Taken::Record(record));
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
    use sandkasten_protocol::Stream;

    use super::*;

    #[tokio::test]
    async fn output_comes_before_the_end_and_the_first_end_counts() {
        let record = Record { seq: 1, stream: Stream::Output, at_ms: 1, data: b"a".to_vec() };
        let pipe = Pipe::default();
        pipe.push(record.clone());
        pipe.end(Outcome::Failed(Error::Draining));
        pipe.end(Outcome::Failed(Error::Internal("second".into())));
        let Some(Taken::Record(taken)) = pipe.take().await else { panic!() };
        assert_eq!(taken, record);
        assert!(matches!(pipe.take().await, Some(Taken::End(Outcome::Failed(Error::Draining)))));
        assert!(pipe.take().await.is_none());
    }
}
