//! The output of a run on its way from the actor to the caller that began it.
//!
//! It has no limit of its own: init may send output of a certain cost, and gets room for more only as
//! the caller takes it; the actor ends a session whose init sends more.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandkasten_protocol::Record;
use tokio::sync::Notify;

use super::outcome::Over;
use crate::error::Error;

/// What the caller takes.
#[derive(Debug)]
pub(crate) enum Taken {
    Record(Record),
    /// Comes once, last.
    End(Result<Arc<Over>, Error>),
}

/// Between the actor and one caller.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    inside: Mutex<Inside>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Inside {
    records: VecDeque<Record>,
    end: Option<Result<Arc<Over>, Error>>,
    ended: bool,
}

impl Feed {
    pub(crate) fn push(&self, records: Vec<Record>) {
        let mut inside = self.lock();
        if inside.ended {
            return;
        }
        inside.records.extend(records);
        drop(inside);
        self.changed.notify_one();
    }

    /// Says how it ended. The first word counts.
    pub(crate) fn end(&self, end: Result<Arc<Over>, Error>) {
        let mut inside = self.lock();
        if !inside.ended {
            inside.ended = true;
            inside.end = Some(end);
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
                if let Some(end) = inside.end.take() {
                    return Some(Taken::End(end));
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
    async fn records_come_whole_and_the_first_end_counts() {
        let feed = Feed::default();
        let record = |seq| Record { seq, stream: Stream::Output, at_ms: 1, data: b"a".to_vec() };
        feed.push(vec![record(1), record(2)]);
        feed.end(Err(Error::Draining));
        feed.end(Err(Error::Internal("second".into())));
        feed.push(vec![record(3)]);
        for seq in 1..=2 {
            let Some(Taken::Record(found)) = feed.take().await else { panic!() };
            assert_eq!(found, record(seq));
        }
        assert!(matches!(feed.take().await, Some(Taken::End(Err(Error::Draining)))));
        assert!(feed.take().await.is_none());
    }
}
