//! Commands by their ids: what is known of them, and their events from any of them on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandkasten_protocol as protocol;
use sandkasten_types::exec::{
    ExecMore, ExecOutput, ExecStatus, RestartShell, RunStatus, ShellRestarted,
};
use sandkasten_types::{ExecId, SessionId, Timestamp};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::error::Error;
use crate::exec::ExecEvent;
use crate::exec::{Teller, answer, cleaning, collected, event, shape};
use crate::process::{Last, give_stdin};
use crate::reader::{Given, Pull, Reader};
use crate::session::{Command, Found, Handle, Name};

/// How long a cancel waits for the end that it caused.
const END_WAIT: Duration = Duration::from_secs(5);

/// Where a replay begins, and whether it goes on with what is still to come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventsFrom {
    /// The last event that is known already; 0: none.
    pub after: u64,
    pub follow: Follow,
}

/// Whether a replay waits for events that are not there yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Follow {
    /// It ends with what is there.
    #[default]
    No,
    /// It ends with the end of the run and of what is kept behind that.
    Yes,
}

/// The events of an exec, as its stream had them.
#[derive(Debug)]
pub struct ExecEvents {
    pull: Pull,
    teller: Teller,
    is_over: bool,
}

impl ExecEvents {
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

impl Engine {
    /// The commands of a session that are kept, oldest first, without their output. Each has a number,
    /// which rises from one to the next.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`], [`Error::Ended`].
    pub async fn list_execs(&self, id: &SessionId) -> Result<Vec<(u64, ExecStatus)>, Error> {
        let found = self.living(id).await?.list().await?;
        Ok(found.iter().filter_map(|found| Some((found.run, status(found)?))).collect())
    }

    /// One command, with its output once it is over.
    ///
    /// # Errors
    /// [`Error::ExecNotFound`], and those of the session.
    pub async fn exec_status(&self, id: &SessionId, exec: &ExecId) -> Result<ExecStatus, Error> {
        let (session, found) = self.found(id, exec).await?;
        let mut status = status(&found).ok_or_else(|| Error::ExecNotFound(exec.clone()))?;
        if let (Some(over), Some(more)) = (&found.over, &mut status.more) {
            let (_, shape) = shape(&found.note)?;
            let reader = Reader::new(session, (Name::Exec(exec.clone()), found.run), 0);
            let mut pull = Pull::new(reader, 0, Follow::No);
            let mut output = collected(shape);
            while let Some(given) = pull.next().await {
                match given {
                    Given::Record(record, _) => output.push(record.stream, &record.data),
                    Given::Gap(gap) => output.gap(&gap),
                    Given::End(_) => break,
                    Given::Failed(error) => return Err(error),
                }
            }
            let answer = answer(&found.note, over, output)?;
            (status.output, more.truncated) = (answer.output, answer.end.truncated);
        }
        Ok(status)
    }

    /// Takes a command out of the queue, or ends it with all it started. Answers when it has ended,
    /// or after 5 s. One that is over stays as it is.
    ///
    /// # Errors
    /// [`Error::ExecNotFound`], and those of the session.
    pub async fn cancel_exec(&self, id: &SessionId, exec: &ExecId) -> Result<(), Error> {
        let (session, found) = self.found(id, exec).await?;
        session.tell(Command::Renew)?;
        cancel(&session, &found).await
    }

    /// Gives a command whose stdin is open more of it; answers when there was room for all of it.
    ///
    /// # Errors
    /// [`Error::ExecNotFound`], [`Error::Conflict`] where it has ended or takes no stdin.
    pub async fn exec_stdin(
        &self,
        id: &SessionId,
        exec: &ExecId,
        data: Bytes,
        last: Last,
    ) -> Result<(), Error> {
        give_stdin(self.found(id, exec).await?, data, last).await
    }

    /// The events of a command from any of them on.
    ///
    /// # Errors
    /// [`Error::ExecNotFound`], and those of the session.
    pub async fn exec_events(
        &self,
        id: &SessionId,
        exec: &ExecId,
        from: EventsFrom,
    ) -> Result<ExecEvents, Error> {
        let (session, found) = self.found(id, exec).await?;
        session.tell(Command::Renew)?;
        let (_, shape) = shape(&found.note)?;
        let EventsFrom { after, follow } = from;
        // Text depends on all that stands before it.
        let reader = Reader::new(session, (Name::Exec(exec.clone()), found.run), 0);
        let teller = Teller::new(Arc::clone(&found.note), cleaning(shape), after);
        Ok(ExecEvents { pull: Pull::new(reader, after, follow), teller, is_over: false })
    }

    /// Puts another shell in the place of the one that is there. Waits its turn as a command does.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] where the image has no shell, [`Error::Overloaded`] where the queue
    /// is full, and those of the session.
    pub async fn restart_shell(
        &self,
        id: &SessionId,
        request: RestartShell,
    ) -> Result<ShellRestarted, Error> {
        self.check_stopping()?;
        let session = self.living(id).await?;
        let task = protocol::Task::Restart { keep_state: request.keep_state.unwrap_or(true) };
        let (reply, begun) = oneshot::channel();
        let found = session.ask(Command::Restart { task, reply }, begun).await??;
        let over = session.over(found.run, found.note.subject()).await?;
        over.restart(&found.note)
    }

    async fn found(&self, id: &SessionId, exec: &ExecId) -> Result<(Arc<Handle>, Found), Error> {
        let session = self.living(id).await?;
        let found = session.find(Name::Exec(exec.clone())).await?;
        Ok((session, found))
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
fn status(found: &Found) -> Option<ExecStatus> {
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
