//! File operations that init carries out: they are told apart by tag, and wait for no command.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::Duration;

use sandkasten_protocol::work::{WATCH_DIRS_MAX, WATCHES_MAX, WORKERS_MAX};
use sandkasten_protocol::{FileDone, FileFault as Fault, FileOp, FromInit, ToInit};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::link::{Incoming, LinkFault};
use super::user::unknown_user;
use crate::error::{Error, FileFault};

/// init answers a file operation within this, on however little CPU the session has.
const DEADLINE: Duration = Duration::from_secs(30);
/// Operations of one session that may wait for init at once.
const PENDING_MAX: usize = 64;

/// What an operation leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Nothing that its caller could not ask for again.
    None,
    /// A file that is another one now: whoever isn't answered does not know.
    Change,
}

/// What a file operation gave.
pub(crate) type FileReply = Result<(FileDone, Option<OwnedFd>), Error>;

/// The operations that init works on.
#[derive(Debug, Default)]
pub(super) struct Files {
    pending: HashMap<u32, Pending>,
    last_tag: u32,
}

#[derive(Debug)]
struct Pending {
    /// `None`: the caller has been told that it takes too long.
    reply: Option<oneshot::Sender<FileReply>>,
    path: String,
    effect: Effect,
    deadline: Instant,
    /// Nobody ever waited for it: what an upload of a hundred files cleans up is no queue of callers.
    quiet: bool,
}

impl Files {
    /// Takes an operation on; the frame is to be sent.
    pub(super) fn begin(
        &mut self,
        op: FileOp,
        reply: oneshot::Sender<FileReply>,
    ) -> Option<ToInit> {
        if self.pending.values().filter(|one| !one.quiet).count() >= PENDING_MAX {
            let text = format!("{PENDING_MAX} file operations of the session wait already");
            drop(reply.send(Err(Error::Overloaded(text))));
            return None;
        }
        let (path, effect): (&[u8], _) = match &op {
            FileOp::Read { path, .. } | FileOp::Create { path, .. } | FileOp::Stat { path, .. } => {
                (path, Effect::None)
            }
            FileOp::Work { job, .. } => (job.path(), Effect::None),
            FileOp::Put { path, .. }
            | FileOp::MakeDir { path, .. }
            | FileOp::Move { from: path, .. }
            | FileOp::Chmod { path, .. }
            | FileOp::Remove { path, .. } => (path, Effect::Change),
            FileOp::Commit { .. } => (b"", Effect::Change),
            FileOp::FindUser { name } => (name, Effect::None),
            FileOp::Abort { .. } | FileOp::OpenDir { .. } => (b"", Effect::None),
        };
        let path = String::from_utf8_lossy(path).into_owned();
        let tag = self.tag();
        let deadline = Instant::now() + DEADLINE;
        let pending = Pending { reply: Some(reply), path, effect, deadline, quiet: false };
        self.pending.insert(tag, pending);
        Some(ToInit::File { tag, op })
    }

    /// An operation whose answer nobody waits for.
    pub(super) fn begin_quietly(&mut self, op: FileOp) -> ToInit {
        let tag = self.tag();
        let deadline = Instant::now() + DEADLINE;
        let (path, effect) = (String::new(), Effect::None);
        let pending = Pending { reply: None, path, effect, deadline, quiet: true };
        self.pending.insert(tag, pending);
        ToInit::File { tag, op }
    }

    /// Gives an answer to who waits for it. Where nobody does any more and a temporary file was
    /// made, the frame that removes it is to be sent.
    pub(super) fn answer(&mut self, incoming: Incoming) -> Result<Option<ToInit>, LinkFault> {
        let Incoming { frame, descriptor } = incoming;
        let FromInit::File { tag, result } = frame else { return Ok(None) };
        let Some(pending) = self.pending.remove(&tag) else {
            return Err(LinkFault::Protocol("it answered a file operation that nobody asked for"));
        };
        let reply = match result {
            Ok(done) => Ok((done, descriptor)),
            Err(fault) => Err(error(fault, pending.path)),
        };
        let unheard = match pending.reply {
            Some(caller) => caller.send(reply).err(),
            None => Some(reply),
        };
        Ok(match unheard {
            Some(Ok((FileDone::Created { token, .. }, _))) => {
                Some(self.begin_quietly(FileOp::Abort { token }))
            }
            _ => None,
        })
    }

    /// When the first of those that wait has waited long enough.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waiting = self.pending.values().filter(|one| one.reply.is_some());
        waiting.map(|one| one.deadline).min()
    }

    /// Tells those that have waited long enough. The answer may still come.
    pub(super) fn expire(&mut self) {
        let now = Instant::now();
        for pending in self.pending.values_mut().filter(|one| one.deadline <= now) {
            if let Some(reply) = pending.reply.take() {
                let text = format!("no answer from the session in {} s", DEADLINE.as_secs());
                drop(reply.send(Err(match pending.effect {
                    Effect::None => Error::Overloaded(text),
                    // No "try again, nothing happened".
                    Effect::Change => Error::Internal(text),
                })));
            }
        }
    }

    /// Tells all that wait why they get nothing.
    pub(super) fn refuse_all(&mut self, why: impl Fn() -> Error) {
        for (_, pending) in self.pending.drain() {
            if let Some(reply) = pending.reply {
                drop(reply.send(Err(why())));
            }
        }
    }

    fn tag(&mut self) -> u32 {
        // A tag is taken as long as its answer has not come, however long ago that was.
        loop {
            self.last_tag = self.last_tag.wrapping_add(1);
            if !self.pending.contains_key(&self.last_tag) {
                return self.last_tag;
            }
        }
    }
}

/// A fault of init's, or of a worker's, as callers see it.
pub(crate) fn error(fault: Fault, path: String) -> Error {
    let fault = match fault {
        Fault::NotFound => FileFault::NotFound,
        Fault::IsADirectory => FileFault::IsADirectory,
        Fault::NotADirectory => FileFault::NotADirectory,
        Fault::NotAFile => FileFault::NotAFile,
        Fault::PermissionDenied => FileFault::PermissionDenied,
        Fault::AlreadyExists => FileFault::AlreadyExists,
        Fault::InvalidPath => {
            FileFault::InvalidPath("empty, too long, with a NUL, or a loop of links".into())
        }
        Fault::NoSpace => FileFault::NoSpace,
        Fault::NotAllowed => FileFault::NotAllowed,
        Fault::IntoItself => {
            FileFault::InvalidPath("a directory into itself, or onto what it lies in".into())
        }
        Fault::TooLarge => FileFault::InvalidPath(
            "deeper, or with more names in a directory, than is gone through".into(),
        ),
        Fault::Changed => FileFault::Changed,
        Fault::NotEmpty => FileFault::NotEmpty,
        Fault::OtherDevice => FileFault::OtherDevice,
        Fault::Archive(fault) => FileFault::Archive(fault.text()),
        Fault::TooManyDirs => {
            return Error::InvalidRequest(format!(
                "{path}: a watch follows {WATCH_DIRS_MAX} directories at most: watch a smaller tree"
            ));
        }
        Fault::TooManyWorkers => {
            return Error::Overloaded(format!(
                "{path}: {WORKERS_MAX} calls of the session go through files already"
            ));
        }
        Fault::TooManyWatches => {
            return Error::Overloaded(format!(
                "{path}: {WATCHES_MAX} watches of the session are open: close one first"
            ));
        }
        Fault::Busy => return Error::Overloaded("too many open files in the session".into()),
        Fault::UnknownUser => return unknown_user(&path),
        Fault::UnknownToken => return Error::Internal("init knows no such temporary file".into()),
        Fault::Other(errno) => {
            return Error::Internal(format!("file operation in a session: errno {errno}"));
        }
    };
    Error::File { path, fault }
}
