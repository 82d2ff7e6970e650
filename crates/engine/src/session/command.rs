//! What others ask of a session: values in the queue of its task.

use std::sync::Arc;

use bytes::Bytes;
use sandkasten_protocol::{FileOp, Replay, Task, ToInit};
use tokio::sync::oneshot;

use super::asked::PartReply;
use super::files::FileReply;
use super::job::Job;
use super::outcome::Over;
use super::program::{Program, Started};
use super::runs::{Found, Name};
use super::seat::{Role, Seated};
use super::spec::About;
use super::state::Cause;
use super::stdin::{self, Told};
use crate::error::Error;

/// What others ask of a session.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run a command, or come to one that has run before; answered at once.
    Exec {
        job: Box<Job>,
        reply: oneshot::Sender<Result<Seated, Error>>,
    },
    /// Another shell; answered at once.
    Restart {
        task: Task,
        reply: oneshot::Sender<Result<Found, Error>>,
    },
    /// Start a program; answered when it has begun.
    Program {
        program: Box<Program>,
        reply: oneshot::Sender<Result<Started, Error>>,
    },
    /// A caller of a run has gone.
    Leave {
        run: u64,
        role: Role,
    },
    /// A caller has taken output of that cost.
    Consumed {
        run: u64,
        cost: u64,
    },
    /// The run goes on, whoever leaves.
    Keep {
        run: u64,
    },
    Cancel {
        run: u64,
    },
    /// How a run ended, once it has.
    Over {
        run: u64,
        /// What messages call it.
        subject: String,
        reply: oneshot::Sender<Result<Arc<Over>, Error>>,
    },
    Find {
        name: Name,
        reply: oneshot::Sender<Option<Found>>,
    },
    List {
        reply: oneshot::Sender<Vec<Found>>,
    },
    /// What is kept of a run. The tag of `replay` is chosen by the actor.
    Replay {
        replay: Replay,
        ticket: u64,
        reply: oneshot::Sender<PartReply>,
    },
    /// Who asked for what is kept has gone.
    Unwait {
        ticket: u64,
    },
    Stdin {
        run: u64,
        data: Bytes,
        end: stdin::End,
        told: Told,
    },
    /// A signal or a size for a program, unless it has ended.
    Tell {
        run: u64,
        frame: ToInit,
    },
    /// The lease is used.
    Renew,
    /// What can be changed is this now.
    Update {
        about: Arc<About>,
    },
    /// The lease is held until as many releases.
    Hold,
    Release,
    File {
        op: FileOp,
        reply: oneshot::Sender<FileReply>,
    },
    /// A temporary file that will not be needed.
    AbortFile {
        token: u32,
    },
    End {
        cause: Cause,
    },
    /// The daemon stops; the session goes on.
    Detach,
}
