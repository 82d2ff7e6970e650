//! One session, from its request to its end.
//!
//! ```text
//!   create.rs    Requested -> Prepared -> Started -> Ready      makes it, or leaves nothing
//!   actor/       one task: commands in, frames from init in     owns it while it lives
//!   release.rs   kill, remove, by names computed from its id    ends it, whoever asks
//!   state.rs     next(state, event)                             decides
//! ```
//!
//! Invariant: only the actor changes a living session; everybody else sends it commands and reads
//! what it publishes in [`View`].

mod actor;
mod asked;
mod command;
mod create;
mod environment;
mod feed;
pub(crate) mod files;
mod job;
mod lease;
mod link;
mod note;
mod outcome;
mod program;
mod release;
mod request;
mod runs;
mod seat;
mod spec;
mod state;
mod stdin;
mod user;

use std::sync::Arc;

use sandkasten_types::session::{AcquireSource, Limits, Network, Session, Shell, Status};
use sandkasten_types::{SessionId, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};

pub(crate) use actor::{Actor, DEATH_GRACE, Parts};
pub(crate) use asked::PartReply;
pub(crate) use command::Command;
pub(crate) use create::create;
pub(crate) use feed::{Feed, Taken};
pub(crate) use files::FileReply;
pub(crate) use job::check as check_exec;
pub(crate) use link::{Greeting, Link};
pub use note::Encoding;
pub(crate) use note::{ExecNote, Note, Shape};
pub(crate) use outcome::Over;
pub(crate) use program::{Started, check as check_program, signal, window};
pub(crate) use release::release;
pub(crate) use request::{check as check_create, check_labels, check_update};
pub(crate) use runs::{Found, Name};
pub(crate) use seat::Seated;
pub(crate) use seat::{Role, Seat};
pub(crate) use spec::{About, BoxUser, Change, Spec};
pub(crate) use state::{Cause, State};
pub(crate) use stdin::{End as StdinEnd, Told as StdinTold};
pub(crate) use user::run_user;

use crate::clock::{self, BootTime};
use crate::db::{Lease, Row};
use crate::error::{Ended, Error};

/// What everybody else has of a living session.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) id: SessionId,
    pub(crate) spec: Spec,
    pub(crate) created_at: Timestamp,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) view: watch::Receiver<View>,
}

/// What the actor publishes.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) state: State,
    pub(crate) shell: Option<Shell>,
    pub(crate) cwd: String,
    pub(crate) about: Arc<About>,
    pub(crate) lease: Lease,
    pub(crate) queued: usize,
    pub(crate) running: bool,
}

impl View {
    pub(crate) fn new(spec: &Spec, lease: Lease) -> Self {
        let (cwd, about) = (spec.cwd.clone(), Arc::new(spec.about.clone()));
        Self { state: State::Creating, shell: None, cwd, about, lease, queued: 0, running: false }
    }

    /// Why the session takes no calls any more, if it doesn't. A lease that is over ends it at once,
    /// whether or not the actor has come to it.
    pub(crate) fn end(&self) -> Option<Cause> {
        if let Some(cause) = self.state.cause() {
            return Some(cause.clone());
        }
        let over = self.lease.deadline.is_some_and(|deadline| deadline <= BootTime::now());
        (over && self.state == State::Running).then(Cause::expired)
    }

    fn status(&self) -> Status {
        match (&self.state, self.end()) {
            (State::Running, Some(cause)) => cause.status,
            (state, _) => state.status(),
        }
    }
}

impl Handle {
    pub(crate) fn show(&self, node: &str) -> Session {
        let view = self.view.borrow().clone();
        let exit_reason = view.end().map(|cause| cause.reason);
        let (status, shell, about) = (view.status(), view.shell, &view.about);
        let facts = Facts { status, exit_reason, shell, about };
        let mut lease = view.lease;
        if lease.deadline.is_none() {
            // Something runs: its lease begins when that ends.
            lease.last_activity = clock::now();
            lease.expires_at = lease.last_activity.plus_seconds(view.about.ttl_seconds);
        }
        show(&self.id, &self.spec, self.created_at, facts, view.cwd, lease, node)
    }

    /// Why the task of the session gives no answer.
    pub(crate) fn gone(&self) -> Error {
        self.ended().unwrap_or(Error::Draining)
    }

    pub(crate) fn tell(&self, command: Command) -> Result<(), Error> {
        self.commands.send(command).map_err(|_gone| self.gone())
    }

    /// Sends a question and waits for what comes back.
    pub(crate) async fn ask<T>(
        &self,
        command: Command,
        answer: oneshot::Receiver<T>,
    ) -> Result<T, Error> {
        self.tell(command)?;
        answer.await.map_err(|_gone| self.gone())
    }

    pub(crate) async fn find(&self, name: Name) -> Result<Found, Error> {
        let (reply, found) = oneshot::channel();
        let found = self.ask(Command::Find { name: name.clone(), reply }, found).await?;
        found.ok_or_else(|| name.not_found())
    }

    pub(crate) async fn list(&self) -> Result<Vec<Found>, Error> {
        let (reply, found) = oneshot::channel();
        self.ask(Command::List { reply }, found).await
    }

    /// `subject` is what messages call the run.
    pub(crate) fn ask_over(
        &self,
        run: u64,
        subject: String,
    ) -> Result<oneshot::Receiver<Result<Arc<Over>, Error>>, Error> {
        let (reply, over) = oneshot::channel();
        self.tell(Command::Over { run, subject, reply })?;
        Ok(over)
    }

    /// Waits for the end of a run.
    pub(crate) async fn over(&self, run: u64, subject: String) -> Result<Arc<Over>, Error> {
        self.ask_over(run, subject)?.await.map_err(|_gone| self.gone())?
    }

    /// Why a call finds no living session here, if it doesn't.
    pub(crate) fn ended(&self) -> Option<Error> {
        self.view.borrow().end().map(|cause| ended(&self.id, cause))
    }
}

/// [`Error::Ended`] for a call that had not begun.
pub(crate) fn ended(id: &SessionId, cause: Cause) -> Error {
    let Cause { status, reason } = cause;
    Error::Ended(Box::new(Ended { id: id.clone(), status, reason, started: false, output: None }))
}

/// The same for one that had.
fn ended_in(id: &SessionId, cause: Cause) -> Error {
    let Cause { status, reason } = cause;
    Error::Ended(Box::new(Ended { id: id.clone(), status, reason, started: true, output: None }))
}

/// Holds the lease of a session as long as it is there.
#[derive(Debug)]
pub(crate) struct Hold(mpsc::UnboundedSender<Command>);

impl Hold {
    pub(crate) fn new(session: &Handle) -> Self {
        // A session that is gone has no lease.
        drop(session.commands.send(Command::Hold));
        Self(session.commands.clone())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        drop(self.0.send(Command::Release));
    }
}

/// A session that has ended, as its row shows it.
pub(crate) fn show_row(row: Row, node: &str) -> Session {
    let facts = Facts {
        status: row.status,
        exit_reason: row.cause.map(|cause| cause.reason),
        shell: row.shell,
        about: &row.spec.about,
    };
    show(&row.id, &row.spec, row.created_at, facts, row.cwd, row.lease, node)
}

struct Facts<'a> {
    status: Status,
    exit_reason: Option<String>,
    shell: Option<Shell>,
    about: &'a About,
}

#[expect(clippy::too_many_arguments, reason = "the two callers have these apart")]
fn show(
    id: &SessionId,
    spec: &Spec,
    created_at: Timestamp,
    facts: Facts<'_>,
    cwd: String,
    lease: Lease,
    node: &str,
) -> Session {
    Session {
        id: id.clone(),
        image: spec.image.clone(),
        status: facts.status,
        cwd,
        workspace_id: spec.workspace.clone(),
        created_at,
        expires_at: lease.expires_at,
        last_activity: lease.last_activity,
        acquire_source: AcquireSource::Cold,
        name: facts.about.name.clone(),
        env_keys: spec.env.iter().map(|(name, _)| name.clone()).collect(),
        labels: facts.about.labels.clone(),
        limits: Limits {
            cpu: Some(spec.cpu),
            memory_mb: Some(spec.memory_mb),
            pids: Some(spec.pids),
            disk_mb: spec.disk_mb,
        },
        network: Network::Mode("none".into()),
        shell: facts.shell,
        exit_reason: facts.exit_reason,
        node: node.into(),
    }
}
