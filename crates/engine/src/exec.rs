//! One command as its caller sees it.

use sandkasten_types::ExecId;
use sandkasten_types::exec::{Chunk, ExecAnswer, ExecEnd};

use crate::Error;

/// A command that is queued or runs. Dropping it before its end cancels the command.
#[derive(Debug)]
#[must_use = "dropping it cancels the command"]
pub struct ExecHandle {
    id: ExecId,
}

/// One event of a stream. `Done` or `Failed` comes once, last.
#[derive(Debug)]
pub enum ExecEvent {
    Chunk(Chunk),
    /// `seq` is the number after the last chunk's.
    Done {
        seq: u64,
        end: ExecEnd,
    },
    Failed {
        seq: u64,
        error: Error,
    },
}

impl ExecHandle {
    #[must_use]
    pub fn id(&self) -> &ExecId {
        &self.id
    }

    /// The next event of the stream, cleaned; `None` after the last.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        None
    }

    /// Waits for the end and gives the blocking answer, capped head and tail.
    ///
    /// # Errors
    /// [`Error::Ended`] where the session ended first.
    pub async fn finish(self) -> Result<ExecAnswer, Error> {
        Err(Error::Internal("not there yet".into()))
    }
}
