//! Workers as callers see them: a job on a tree of files, in a session or in a workspace.
//!
//! In a session init's worker does it, a process with a user's ids; whatever it says is hostile input.
//! In a workspace a thread of our own does, with the user's ids towards files. Both speak the
//! same frames on a socket: dropping a [`Worker`] closes it, and with that the job ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use sandkasten_files::{Root, Socket};
use sandkasten_protocol::work::{Item, Job, WORK_BYTES_MAX, WORK_DATA_BYTES_MAX};
use sandkasten_protocol::{Decoder, FileDone, FileOp, FileUser, encode};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::descriptor::watched;
use crate::error::Error;
use crate::files::{ask, check_path, session_gone};
use crate::host::Host;
use crate::session::Handle;
use crate::session::files::error;
use crate::workspace::{Acting, Who};
use crate::workspaces;

/// A worker says something within this, or takes something of what it is sent.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The end of a session is known this long after that of its processes.
const END_KNOWN: Duration = Duration::from_millis(500);
const READ_BYTES: usize = 64 * 1024;

/// Jobs on workspaces that run at once.
pub(crate) const WORKSPACE_JOBS_MAX: usize = 64;

/// A job that runs.
#[derive(Debug)]
#[must_use = "dropping it ends the job"]
pub struct Worker {
    socket: AsyncFd<OwnedFd>,
    decoder: Decoder<Item>,
    buffer: Vec<u8>,
    /// As asked for, for messages.
    path: String,
    state: State,
    /// A directory of the file system that is to be on disk before the job counts as done.
    sync: Option<OwnedFd>,
    /// `None`: in a workspace.
    session: Option<Arc<Handle>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Done { truncated: bool },
    Failed,
}

impl Worker {
    fn new(socket: OwnedFd, path: String, session: Option<Arc<Handle>>) -> Result<Self, Error> {
        let failed = |error| Error::internal("the socket of a worker", error);
        Ok(Self {
            socket: watched(socket, Interest::READABLE | Interest::WRITABLE).map_err(failed)?,
            decoder: Decoder::new(WORK_BYTES_MAX),
            buffer: Vec::new(),
            path,
            state: State::Running,
            sync: None,
            session,
        })
    }

    /// What the job has changed is on disk before its end is told.
    pub(crate) fn synced(self, dir: Option<OwnedFd>) -> Self {
        Self { sync: dir, ..self }
    }

    /// The next item; `None` once the job is done. May be dropped and called again.
    ///
    /// # Errors
    /// [`Error::File`] where the job fails, [`Error::Conflict`] where somebody in the session has ended
    /// or stopped the worker.
    pub async fn next(&mut self) -> Result<Option<Item>, Error> {
        match self.state {
            State::Running => {}
            State::Done { .. } => return Ok(None),
            State::Failed => return Err(Error::Internal("a worker was asked on".into())),
        }
        let next = self.running().await;
        if next.is_err() {
            self.state = State::Failed;
        }
        next
    }

    /// Whether there was more than what was told. Known at the end.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        self.state == State::Done { truncated: true }
    }

    /// Sends data to the job; an empty piece is the end of it.
    ///
    /// # Errors
    /// As of [`next`](Self::next).
    pub async fn send(&mut self, data: &[u8]) -> Result<(), Error> {
        if data.is_empty() {
            return self.send_piece(data).await;
        }
        for piece in data.chunks(WORK_DATA_BYTES_MAX) {
            self.send_piece(piece).await?;
        }
        Ok(())
    }

    async fn send_piece(&mut self, piece: &[u8]) -> Result<(), Error> {
        let frame = encode(&Item::Data(piece.to_vec()), WORK_BYTES_MAX);
        let frame = frame.map_err(|fault| Error::internal("a frame to a worker", fault))?;
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            let ready = timeout(SILENCE_MAX, self.socket.writable()).await;
            let mut guard = match ready {
                Ok(ready) => ready.map_err(|e| Error::internal("the socket of a worker", e))?,
                Err(_elapsed) => return Err(self.silent()),
            };
            match send(&self.socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                Err(_closed) => return Err(self.why_closed().await),
            }
        }
        Ok(())
    }

    /// What a worker that reads no more has said.
    async fn why_closed(&mut self) -> Error {
        loop {
            match self.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return self.ended().await,
                Err(error) => return error,
            }
        }
    }

    async fn running(&mut self) -> Result<Option<Item>, Error> {
        loop {
            let frame = self.decoder.next_frame();
            let frame = frame.map_err(|fault| Error::internal("a frame of a worker", fault))?;
            match frame {
                Some(Item::Done { truncated }) => {
                    self.state = State::Done { truncated };
                    return self.sync().await.map(|()| None);
                }
                Some(Item::Failed { fault, path }) => {
                    let path = match path.is_empty() {
                        true => self.path.clone(),
                        false => String::from_utf8_lossy(&path).into_owned(),
                    };
                    return Err(error(fault, path));
                }
                Some(Item::Alive) => tokio::task::consume_budget().await,
                Some(item) => return Ok(Some(item)),
                None => self.receive().await?,
            }
        }
    }

    /// Of a tree every file and name would have to be synced: one call for all of them is quicker.
    async fn sync(&mut self) -> Result<(), Error> {
        let Some(dir) = self.sync.take() else { return Ok(()) };
        sync_tree(dir).await
    }

    async fn receive(&mut self) -> Result<(), Error> {
        let failed = |error| Error::internal("the socket of a worker", error);
        loop {
            let Ok(ready) = timeout(SILENCE_MAX, self.socket.readable()).await else {
                return Err(self.silent());
            };
            let mut guard = ready.map_err(failed)?;
            self.buffer.resize(READ_BYTES, 0);
            // Never waits, whatever the other side has made of the socket.
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(self.ended().await),
                Ok((bytes, _)) => {
                    self.decoder.push(self.buffer.get(..bytes).unwrap_or_default());
                    return Ok(());
                }
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => return Err(self.ended().await),
                Err(errno) => return Err(failed(errno.into())),
            }
        }
    }

    fn silent(&self) -> Error {
        let (path, seconds) = (&self.path, SILENCE_MAX.as_secs());
        Error::Conflict(format!(
            "{path}: the worker of this call says nothing for {seconds} s: it may be stopped; how far it \
             came is not known"
        ))
    }

    /// Why the socket is closed. A session that ends says so a moment later.
    async fn ended(&self) -> Error {
        if let Some(session) = &self.session {
            let mut view = session.view.clone();
            drop(timeout(END_KNOWN, view.wait_for(|view| view.end().is_some())).await);
            if let Some(error) = session.ended() {
                return error;
            }
        }
        Error::Conflict(format!(
            "{}: the worker of this call was ended by the session; how far it came is not known",
            self.path
        ))
    }
}

/// Whether a job may change files.
pub(crate) fn changes_files(job: &Job) -> bool {
    match job {
        Job::List { .. }
        | Job::Glob { .. }
        | Job::Grep { .. }
        | Job::Watch { .. }
        | Job::Pack { .. } => false,
        Job::Copy { .. } | Job::RemoveTree { .. } | Job::ChmodTree { .. } | Job::Unpack { .. } => {
            true
        }
    }
}

/// Refuses what no job can be, before anything is started for it.
pub(crate) async fn checked(job: Job) -> Result<Job, Error> {
    check_path(job.path())?;
    match &job {
        Job::Copy { to, .. } => check_path(to)?,
        // An expression may take a while to be read.
        Job::Glob { .. } | Job::Grep { .. } => {
            let check = move || sandkasten_files::check(&job).map(|()| job);
            let checked = tokio::task::spawn_blocking(check).await;
            let checked = checked.map_err(|error| Error::internal("a blocking task", error))?;
            return checked.map_err(Error::InvalidRequest);
        }
        Job::List { .. }
        | Job::Watch { .. }
        | Job::RemoveTree { .. }
        | Job::ChmodTree { .. }
        | Job::Pack { .. }
        | Job::Unpack { .. } => {}
    }
    Ok(job)
}

/// Syncs the file system that a directory is on.
pub(crate) async fn sync_tree(dir: OwnedFd) -> Result<(), Error> {
    let synced = tokio::task::spawn_blocking(move || rustix::fs::syncfs(dir)).await;
    let synced = synced.map_err(|error| Error::internal("syncing a tree", error))?;
    synced.map_err(|error| Error::internal("syncing a tree", error))
}

/// Starts a job in a session.
pub(crate) async fn in_session(
    session: Arc<Handle>,
    job: Job,
    user: FileUser,
) -> Result<Worker, Error> {
    let path = path_of(&job);
    let reply = ask(&session.commands, FileOp::Work { job, user }).await;
    match reply.map_err(|error| session_gone(&session, error))? {
        (FileDone::Opened, Some(socket)) => Worker::new(socket, path, Some(session)),
        _ => Err(Error::Internal("init answered a job without a socket".into())),
    }
}

/// Starts a job in a workspace. One that brings files makes the workspace where there is none.
pub(crate) async fn in_workspace(
    host: &Arc<Host>,
    Acting { id, who }: Acting,
    job: Job,
) -> Result<Worker, Error> {
    if matches!(job, Job::Unpack { .. }) {
        workspaces::check_policy(host)?;
        let _gate = host.workspace_gate.lock().await;
        workspaces::make(host, &id).await?;
    } else {
        workspaces::must_exist(host, &id).await?;
    }
    let permit = Arc::clone(&host.workspace_jobs).try_acquire_owned().map_err(|_none_left| {
        Error::Overloaded(format!("{WORKSPACE_JOBS_MAX} jobs on workspaces run already"))
    })?;
    let which = id.clone();
    let top = workspaces::on_disk(host, move |workspaces| workspaces.open_dir(&which)).await;
    // It may have been deleted since it was looked for.
    let top = top.map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            Error::WorkspaceNotFound(id.clone())
        } else {
            Error::internal("opening a workspace", error)
        }
    })?;
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let (ours, theirs) = pair.map_err(|error| Error::internal("a socket pair", error))?;
    let worker = Worker::new(ours, path_of(&job), None)?;
    let run = move || {
        let _permit = permit;
        run_as(who, &Root::Beneath(top), job, theirs);
    };
    let thread = std::thread::Builder::new().name("workspace job".into()).spawn(run);
    match thread {
        Ok(_goes_on) => Ok(worker),
        Err(_no_thread) => Err(Error::Overloaded("no thread for a job on a workspace".into())),
    }
}

fn run_as(who: Who, root: &Root, job: Job, socket: OwnedFd) {
    let ran = who.act(|| sandkasten_files::run(root, job, &mut Socket::new(socket)));
    if let Err(error) = ran {
        tracing::error!(%error, "a job on a workspace can't have the ids of its user");
    }
}

/// What messages call a job's files.
fn path_of(job: &Job) -> String {
    String::from_utf8_lossy(job.path()).into_owned()
}

#[cfg(test)]
mod test {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use sandkasten_protocol::FileFault as Fault;
    use sandkasten_protocol::work::WORK_BYTES_MAX;

    use super::*;
    use crate::error::FileFault;

    /// A worker of which a test plays the other side.
    fn worker() -> (Worker, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Worker::new(ours.into(), "p".into(), None).unwrap(), theirs)
    }

    fn says(mut socket: &UnixStream, item: &Item) {
        socket.write_all(&encode(item, WORK_BYTES_MAX).unwrap()).unwrap();
    }

    #[tokio::test]
    async fn items_come_up_to_the_end() {
        let (mut worker, theirs) = worker();
        for item in [Item::Path(b"a".into()), Item::Alive, Item::Done { truncated: true }] {
            says(&theirs, &item);
        }
        assert_eq!(worker.next().await.unwrap(), Some(Item::Path(b"a".into())));
        assert_eq!(worker.next().await.unwrap(), None);
        assert!(worker.is_truncated());
        assert_eq!(worker.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_fault_names_its_path() {
        for (said, shown) in [(&b""[..], "p"), (b"q", "q")] {
            let (mut worker, theirs) = worker();
            says(&theirs, &Item::Failed { fault: Fault::NotFound, path: said.into() });
            let error = worker.next().await.unwrap_err();
            let Error::File { path, fault: FileFault::NotFound } = &error else {
                panic!("{error}")
            };
            assert_eq!(path, shown);
        }
    }

    #[tokio::test]
    async fn frames_that_are_none_fail_the_call() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x01\0\0\0\xff", b"\x02\0\0\0\x06\x02"] {
            let (mut worker, mut theirs) = worker();
            theirs.write_all(bytes).unwrap();
            assert!(matches!(worker.next().await, Err(Error::Internal(_))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_without_a_word_and_silence_are_errors() {
        let (mut worker, theirs) = worker();
        says(&theirs, &Item::Alive);
        drop(theirs);
        assert!(
            matches!(worker.next().await, Err(Error::Conflict(text)) if text.contains("ended"))
        );
        let (mut worker, _theirs) = self::worker();
        assert!(matches!(worker.next().await, Err(Error::Conflict(text)) if text.contains("10 s")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_takes_nothing_is_given_up() {
        let (mut worker, _theirs) = worker();
        let sent = worker.send(&vec![0; 8 << 20]).await;
        assert!(matches!(sent, Err(Error::Conflict(text)) if text.contains("10 s")));
    }

    #[tokio::test]
    async fn what_a_worker_said_before_it_closed_is_why_a_send_fails() {
        let (mut worker, theirs) = worker();
        says(&theirs, &Item::Failed { fault: Fault::NoSpace, path: Vec::new() });
        drop(theirs);
        let error = worker.send(b"x").await.unwrap_err();
        assert!(matches!(error, Error::File { fault: FileFault::NoSpace, .. }), "{error}");
    }
}
