//! Processes as their callers see them.

use bytes::Bytes;
use sandkasten_types::exec::{Gap, Stream};
use sandkasten_types::process::{
    ProcessEnd, ProcessStarted, ProcessStatus, SignalName, StartProcess, Tty,
};
use sandkasten_types::{ProcessId, SessionId};

use crate::events::{EventsFrom, not_yet};
use crate::{Engine, Error};

/// Whether more stdin will follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    No,
    /// Then comes the end of file.
    Yes,
}

/// A process that runs. Dropping it kills the process where the request waits for it and says
/// `on_disconnect` `kill`.
#[derive(Debug)]
pub struct ProcessHandle {
    started: ProcessStarted,
}

impl ProcessHandle {
    #[must_use]
    pub fn started(&self) -> &ProcessStarted {
        &self.started
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`Error::Ended`] where the session ended first.
    #[expect(clippy::unused_async, reason = "it will wait")]
    pub async fn wait(self) -> Result<ProcessResult, Error> {
        not_yet("processes")
    }
}

/// What a process that was waited for gave.
#[derive(Debug)]
pub struct ProcessResult {
    pub process_id: ProcessId,
    pub end: ProcessEnd,
    /// With a PTY all that it wrote.
    pub stdout: Kept,
    pub stderr: Kept,
}

/// What is kept of one stream, in pieces.
#[derive(Debug)]
pub struct Kept(());

impl Kept {
    /// The next piece, `None` after the last.
    ///
    /// # Errors
    /// Where it is not kept any more, or the session has ended.
    #[expect(clippy::unused_async, reason = "it will wait")]
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        not_yet("processes")
    }
}

/// Some output of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub stream: Stream,
    pub data: Bytes,
    pub seq: u64,
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp: i64,
}

/// One event of a process.
#[derive(Debug)]
pub enum ProcessEvent {
    Output(Written),
    Gap(Gap),
    /// Comes once; output of children that went on may follow.
    Exit {
        seq: u64,
        end: ProcessEnd,
    },
    /// Last.
    Failed {
        seq: u64,
        error: Error,
    },
}

/// The events of a process, one after the other. While it is there the session's lease is held.
#[derive(Debug)]
pub struct ProcessEvents(());

impl ProcessEvents {
    /// The next event; `None` after the last. May be dropped and called again.
    #[expect(clippy::unused_async, reason = "it will wait")]
    pub async fn next(&mut self) -> Option<ProcessEvent> {
        None
    }
}

impl Engine {
    /// Starts a program. It answers when the program runs, or could not be found.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::TooLarge`], [`Error::SessionNotFound`], [`Error::Ended`],
    /// [`Error::Overloaded`] where too many run.
    pub async fn start_process(
        &self,
        id: &SessionId,
        _request: StartProcess,
    ) -> Result<ProcessHandle, Error> {
        self.check_stopping()?;
        self.living(id).await?;
        not_yet("`processes`")
    }

    /// The processes of a session that are kept, oldest first.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`], [`Error::Ended`].
    pub async fn processes(&self, id: &SessionId) -> Result<Vec<ProcessStatus>, Error> {
        self.living(id).await?;
        not_yet("`processes`")
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
        self.living(id).await?;
        Err(Error::ProcessNotFound(process.clone()))
    }

    /// Gives a process more stdin; answers when there was room for all of it.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], [`Error::Conflict`] where it has ended or takes no stdin.
    pub async fn process_stdin(
        &self,
        id: &SessionId,
        process: &ProcessId,
        _data: Bytes,
        _last: Last,
    ) -> Result<(), Error> {
        self.living(id).await?;
        Err(Error::ProcessNotFound(process.clone()))
    }

    /// Sends a signal to the process itself. One that has ended gets none, and that is no error.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a signal that is none, [`Error::ProcessNotFound`].
    pub async fn signal_process(
        &self,
        id: &SessionId,
        process: &ProcessId,
        _signal: &SignalName,
    ) -> Result<(), Error> {
        self.living(id).await?;
        Err(Error::ProcessNotFound(process.clone()))
    }

    /// Gives the PTY of a process another size.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::ProcessNotFound`], [`Error::Conflict`] where it has none.
    pub async fn resize_process(
        &self,
        id: &SessionId,
        process: &ProcessId,
        _window: Tty,
    ) -> Result<(), Error> {
        self.living(id).await?;
        Err(Error::ProcessNotFound(process.clone()))
    }

    /// Kills a process with all that it started. Answers when it has ended, or after 5 s.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], and those of the session.
    pub async fn kill_process(&self, id: &SessionId, process: &ProcessId) -> Result<(), Error> {
        self.living(id).await?;
        Err(Error::ProcessNotFound(process.clone()))
    }

    /// The events of a process from any of them on.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], and those of the session.
    pub async fn process_events(
        &self,
        id: &SessionId,
        process: &ProcessId,
        _from: EventsFrom,
    ) -> Result<ProcessEvents, Error> {
        self.living(id).await?;
        Err(Error::ProcessNotFound(process.clone()))
    }
}
