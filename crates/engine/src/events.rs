//! Commands by their ids: what is known of them, and their events from any of them on.

use sandkasten_types::exec::{ExecStatus, RestartShell, ShellRestarted};
use sandkasten_types::{ExecId, SessionId};

use crate::{Engine, Error, ExecEvent};

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
pub struct ExecEvents(());

impl ExecEvents {
    /// The next event; `None` after the last. May be dropped and called again.
    #[expect(clippy::unused_async, reason = "it will wait")]
    pub async fn next(&mut self) -> Option<ExecEvent> {
        None
    }
}

impl Engine {
    /// The commands of a session that are kept, oldest first, without their output.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`], [`Error::Ended`].
    pub async fn execs(&self, id: &SessionId) -> Result<Vec<ExecStatus>, Error> {
        self.living(id).await?;
        not_yet("the list of execs")
    }

    /// One command, with its output once it is over.
    ///
    /// # Errors
    /// [`Error::ExecNotFound`], and those of the session.
    pub async fn exec_status(&self, id: &SessionId, exec: &ExecId) -> Result<ExecStatus, Error> {
        self.living(id).await?;
        Err(Error::ExecNotFound(exec.clone()))
    }

    /// Takes a command out of the queue, or ends it with all it started. Answers when it has ended,
    /// or after 5 s. One that is over stays as it is.
    ///
    /// # Errors
    /// [`Error::ExecNotFound`], and those of the session.
    pub async fn cancel_exec(&self, id: &SessionId, exec: &ExecId) -> Result<(), Error> {
        self.living(id).await?;
        Err(Error::ExecNotFound(exec.clone()))
    }

    /// The events of a command from any of them on.
    ///
    /// # Errors
    /// [`Error::ExecNotFound`], and those of the session.
    pub async fn exec_events(
        &self,
        id: &SessionId,
        exec: &ExecId,
        _from: EventsFrom,
    ) -> Result<ExecEvents, Error> {
        self.living(id).await?;
        Err(Error::ExecNotFound(exec.clone()))
    }

    /// Puts another shell in the place of the one that is there. Waits its turn as a command does.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] where the image has no shell, [`Error::Overloaded`] where the queue
    /// is full, and those of the session.
    pub async fn restart_shell(
        &self,
        id: &SessionId,
        _request: RestartShell,
    ) -> Result<ShellRestarted, Error> {
        self.living(id).await?;
        not_yet("the restart of a shell")
    }
}

pub(crate) fn not_yet<T>(what: &str) -> Result<T, Error> {
    Err(Error::InvalidRequest(format!("{what} is not available in this version")))
}
