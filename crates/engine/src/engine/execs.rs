//! Commands by their ids: which there are, what they have written, and their ends.

use std::sync::Arc;

use bytes::Bytes;
use sandkasten_protocol as protocol;
use sandkasten_types::exec::{ExecStatus, RestartShell, ShellRestarted};
use sandkasten_types::{ExecId, SessionId};
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::error::Error;
use crate::events::{EventsFrom, ExecEvents, cancel, status};
use crate::exec::{Teller, answer, cleaning, collected, shape};
use crate::process::{Last, give_stdin};
use crate::reader::Follow;
use crate::reader::{Given, Pull, Reader};
use crate::session::{Command, Found, Handle, Name};

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
        Ok(ExecEvents::new(Pull::new(reader, after, follow), teller))
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
