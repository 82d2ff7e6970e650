//! Commands by their ids: what is known of them, and their events from any of them on.

use std::time::Duration;

use sandkasten_protocol as protocol;
use sandkasten_types::Timestamp;
use sandkasten_types::exec::{ExecMore, ExecOutput, ExecStatus, RunStatus};
use tokio::time::timeout;

use crate::error::Error;
use crate::exec::ExecEvent;
use crate::exec::{Teller, event};
use crate::reader::{Follow, Given, Pull};
use crate::session::{Command, Found, Handle};

/// How long a cancel waits for the end that it caused.
const END_WAIT: Duration = Duration::from_secs(5);

/// Where a replay begins, and whether it goes on with what is still to come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventsFrom {
    /// The last event that is known already; 0: none.
    pub after: u64,
    pub follow: Follow,
}

/// The events of an exec, as its stream had them.
#[derive(Debug)]
pub struct ExecEvents {
    pull: Pull,
    teller: Teller,
    is_over: bool,
}

impl ExecEvents {
    pub(crate) fn new(pull: Pull, teller: Teller) -> Self {
        Self { pull, teller, is_over: false }
    }

    /// The next event; `None` after the last. May be dropped and called again.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        loop {
            if let Some(told) = self.teller.ready.pop_front() {
                return Some(event(&self.teller.note, told));
            }
            if self.is_over {
                return None;
            }
            match self.pull.next().await {
                Some(given) => {
                    self.is_over = matches!(given, Given::Failed(_));
                    self.teller.take(given);
                }
                None => self.is_over = true,
            }
        }
    }
}

/// Ends a run and waits for that, but not for ever.
pub(crate) async fn cancel(session: &Handle, found: &Found) -> Result<(), Error> {
    let run = found.run;
    session.tell(Command::Cancel { run })?;
    match timeout(END_WAIT, session.over(run, found.note.subject())).await {
        Ok(over) => over.map(drop),
        Err(_elapsed) => {
            tracing::warn!(session = %session.id, run, "run_does_not_end");
            Ok(())
        }
    }
}

/// `None` for what is no command.
pub(crate) fn status(found: &Found) -> Option<ExecStatus> {
    let exec = found.note.exec()?;
    let ended = found.over.as_deref().map(|over| (over, over.exec(&found.note, exec)));
    let mut status = ExecStatus {
        exec_id: exec.id.clone(),
        status: run_status(found),
        cmd: exec.cmd.text.clone(),
        cmd_bytes: exec.cmd.bytes,
        created_at: Timestamp::from_unix_ms(found.note.created_ms),
        started_at: started_at(found),
        finished_at: found.over.as_ref().map(|over| Timestamp::from_unix_ms(over.finished_ms())),
        exit_code: None,
        exit_reason: None,
        error: None,
        more: None,
        output: ExecOutput::default(),
    };
    match ended {
        None => {}
        Some((over, Ok(end))) => {
            (status.exit_code, status.exit_reason) = (Some(end.exit_code), Some(end.exit_reason));
            let truncated = over.end.dropped_bytes > 0;
            status.more = Some(ExecMore { truncated, ..end.into() });
        }
        Some((over, Err(error))) => {
            if over.end.how == protocol::How::Broken {
                status.exit_reason = Some(over.verdict.reason);
            }
            status.error = Some(shown(&error));
        }
    }
    Some(status)
}

/// An error in a status. Internal ones are for the log.
pub(crate) fn shown(error: &Error) -> String {
    if matches!(error, Error::Internal(_)) {
        return "what it did is not known".into();
    }
    error.to_string()
}

pub(crate) fn run_status(found: &Found) -> RunStatus {
    match (&found.over, found.begun) {
        (Some(_), _) => RunStatus::Finished,
        (None, Some(_)) => RunStatus::Running,
        (None, None) => RunStatus::Queued,
    }
}

/// The same while it runs and once it is over, also for a later daemon.
pub(crate) fn started_at(found: &Found) -> Option<Timestamp> {
    let begun = found.begun?;
    let at_ms = found.over.as_ref().map_or(begun.at_ms, |over| over.verdict.started_ms);
    Some(Timestamp::from_unix_ms(at_ms))
}
