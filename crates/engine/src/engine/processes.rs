//! Programs: started, found, talked to and ended.

use std::sync::Arc;

use bytes::Bytes;
use sandkasten_protocol::{SignalTo, ToInit};
use sandkasten_types::process::{ProcessStarted, ProcessStatus, SignalProcess, StartProcess, Tty};
use sandkasten_types::{ProcessId, SessionId, Timestamp};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::error::Error;
use crate::events::{EventsFrom, cancel};
use crate::exec::Teller;
use crate::output::Cleaning;
use crate::process::{BEGIN_WAIT, Form, Last, ProcessEvents, ProcessHandle, give_stdin, status};
use crate::reader::{Pull, Reader};
use crate::session::{
    Command, Encoding, Found, Handle, Hold, Name, Started, check_program, signal, window,
};

impl Engine {
    /// Starts a program. It answers when the program runs, or could not be found.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::TooLarge`], [`Error::SessionNotFound`], [`Error::Ended`],
    /// [`Error::Overloaded`] where too many run.
    pub async fn start_process(
        &self,
        id: &SessionId,
        request: StartProcess,
    ) -> Result<ProcessHandle, Error> {
        self.check_stopping()?;
        let session = self.living(id).await?;
        let program = check_program(request, &session.spec.user)?;
        let process_id = program.id.clone();
        let hold = program.wait.then(|| Hold::new(&session));
        let (reply, begun) = oneshot::channel();
        session.tell(Command::Program { program: Box::new(program), reply })?;
        let Ok(started) = timeout(BEGIN_WAIT, begun).await else {
            if let Ok(found) = session.find(Name::Process(process_id)).await {
                session.tell(Command::Cancel { run: found.run })?;
            }
            let text = format!("no answer from the session in {} s", BEGIN_WAIT.as_secs());
            return Err(Error::Overloaded(text));
        };
        let Started { seat, note, begun } = started.map_err(|_gone| session.gone())??;
        let started = ProcessStarted {
            process_id,
            pid: begun.pid.unwrap_or(0),
            started_at: Timestamp::from_unix_ms(begun.at_ms),
        };
        Ok(ProcessHandle { started, session, note, seat, hold })
    }

    /// The processes of a session that are kept, oldest first. Each has a number, which rises from one to
    /// the next.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`], [`Error::Ended`].
    pub async fn list_processes(&self, id: &SessionId) -> Result<Vec<(u64, ProcessStatus)>, Error> {
        let found = self.living(id).await?.list().await?;
        Ok(found.iter().filter_map(|found| Some((found.run, status(found)?))).collect())
    }

    /// One process.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], and those of the session.
    pub async fn process(
        &self,
        id: &SessionId,
        process: &ProcessId,
    ) -> Result<ProcessStatus, Error> {
        let (_, found) = self.program(id, process).await?;
        status(&found).ok_or_else(|| Error::ProcessNotFound(process.clone()))
    }

    /// Gives a process more stdin; answers when there was room for all of it.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], [`Error::Conflict`] where it has ended or takes no stdin.
    pub async fn process_stdin(
        &self,
        id: &SessionId,
        process: &ProcessId,
        data: Bytes,
        last: Last,
    ) -> Result<(), Error> {
        give_stdin(self.program(id, process).await?, data, last).await
    }

    /// Sends a signal to the process itself, or to its group. One that has ended gets none, and that is no
    /// error.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a signal that is none, [`Error::ProcessNotFound`].
    pub async fn signal_process(
        &self,
        id: &SessionId,
        process: &ProcessId,
        request: &SignalProcess,
    ) -> Result<(), Error> {
        let signal = signal(&request.signal)?;
        let group = request.group.unwrap_or(false);
        let to = if group { SignalTo::Group } else { SignalTo::Process };
        let (session, found) = self.program(id, process).await?;
        session.tell(Command::Renew)?;
        let (run, frame) = (found.run, ToInit::Signal { run: found.run, signal, to });
        session.tell(Command::Tell { run, frame })
    }

    /// Gives the PTY of a process another size.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::ProcessNotFound`], [`Error::Conflict`] where it has none.
    pub async fn resize_process(
        &self,
        id: &SessionId,
        process: &ProcessId,
        size: Tty,
    ) -> Result<(), Error> {
        let window = window(size, "")?;
        let (session, found) = self.program(id, process).await?;
        if !found.note.process().is_some_and(|process| process.has_tty) {
            return Err(Error::Conflict(format!("process {process} has no PTY")));
        }
        session.tell(Command::Renew)?;
        let (run, frame) = (found.run, ToInit::Resize { run: found.run, window });
        session.tell(Command::Tell { run, frame })
    }

    /// Kills a process with all that it started. Answers when it has ended, or after 5 s.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], and those of the session.
    pub async fn kill_process(&self, id: &SessionId, process: &ProcessId) -> Result<(), Error> {
        let (session, found) = self.program(id, process).await?;
        session.tell(Command::Renew)?;
        cancel(&session, &found).await?;
        // Of one that had ended its children are killed: init answers this behind it.
        let of = (Name::Process(process.clone()), found.run);
        Reader::new(session, of, u64::MAX).next().await.map(drop)
    }

    /// The events of a process from any of them on.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], and those of the session.
    pub async fn process_events(
        &self,
        id: &SessionId,
        process: &ProcessId,
        from: EventsFrom,
        form: Form,
    ) -> Result<ProcessEvents, Error> {
        let (session, found) = self.program(id, process).await?;
        let hold = Hold::new(&session);
        let EventsFrom { after, follow } = from;
        let asked = found.note.process().map(|process| process.encoding);
        let cleaning =
            (form == Form::AsAsked && asked == Some(Encoding::Text)).then_some(Cleaning::Utf8Only);
        // Text depends on all that stands before it.
        let begin = if cleaning.is_some() { 0 } else { after };
        let reader = Reader::new(session, (Name::Process(process.clone()), found.run), begin);
        let teller = Teller::new(found.note, cleaning, after);
        Ok(ProcessEvents::new(Pull::new(reader, after, follow), teller, hold))
    }

    async fn program(
        &self,
        id: &SessionId,
        process: &ProcessId,
    ) -> Result<(Arc<Handle>, Found), Error> {
        let session = self.living(id).await?;
        let found = session.find(Name::Process(process.clone())).await?;
        Ok((session, found))
    }
}
