//! The engine as its callers have it: every call begins here.
//!
//! Invariant: nothing is decided here. A call finds what it is about, and hands on.

mod execs;
mod files;
mod images;
mod lists;
mod processes;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandkasten_jail::cgroup::{CgroupLimits, Cgroups};
use sandkasten_jail::disk::room::Room;
use sandkasten_jail::launcher::Launcher;
use sandkasten_types::exec::ExecRequest;
use sandkasten_types::session::{CreateSession, Session, Stats};
use sandkasten_types::workspace::{PutWorkspace, Workspace};
use sandkasten_types::{SessionId, WorkspaceId, limits};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::error::{Error, StartError};
use crate::exec::ExecHandle;
use crate::figures::{Counts, Resources};
use crate::host::{self, CREATES_MAX, Host};
use crate::idempotency::IdempotencyKey;
use crate::session::{Cause, Command, Handle, State};
use crate::{
    clock, db, dirs, disk, exec, figures, image, recovery, reserve, session, sizes, trash, uids,
    worker, workspace, workspaces,
};

/// How long a delete waits for the end of a session before it answers that it is under way.
const DELETE_WAIT: Duration = Duration::from_secs(8);
/// How long a stop waits for what is under way.
const STOP_WAIT: Duration = Duration::from_millis(limits::STOP_MS);
/// How long it waits for the database and the cgroups then.
const CLOSE_WAIT: Duration = Duration::from_millis(limits::CLOSE_MS);

/// The engine. Cheap to clone; all clones are one engine.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    host: Arc<Host>,
    stopping: CancellationToken,
}

impl Engine {
    /// Opens the database, recovers the sessions that live, and starts the reaper.
    ///
    /// # Errors
    /// Where the data directory, the database or the host's cgroups can't be used.
    pub async fn start(config: Config, launcher: Launcher) -> Result<Self, StartError> {
        let opened = tokio::task::spawn_blocking(move || open(config, launcher)).await;
        let host = opened.map_err(|error| StartError::Recovery(error.to_string()))??;
        let host = Arc::new(host);
        let failed = |error: Error| StartError::Recovery(error.to_string());
        workspaces::reconcile(&host).await.map_err(failed)?;
        recovery::reconcile(&host).await.map_err(failed)?;
        let stopping = CancellationToken::new();
        host.tasks.spawn(reconcile_again(Arc::clone(&host), stopping.clone()));
        host.tasks.spawn(empty_trash(Arc::clone(&host), stopping.clone()));
        host.tasks.spawn(watch_disk(Arc::clone(&host), stopping.clone()));
        host.park_starters();
        host.make_images_ahead();
        Ok(Self(Arc::new(Inner { host, stopping })))
    }

    /// Writes what is to be kept and lets go of the sessions, which live on. Deletes that are under way
    /// and a trash that is not empty get [`STOP_MS`](limits::STOP_MS); the next start goes on with them.
    pub async fn stop(&self) {
        let host = &self.0.host;
        self.0.stopping.cancel();
        host.creates.close();
        for session in host.live.all() {
            // A task that has ended needs no word.
            drop(session.commands.send(Command::Detach));
        }
        host.tasks.close();
        if timeout(STOP_WAIT, host.tasks.wait()).await.is_err() {
            let is_ending =
                |session: &&Arc<Handle>| matches!(session.view.borrow().state, State::Stopping(_));
            let ending = host.live.all().iter().filter(is_ending).count();
            let trash = host.dirs.trash.count();
            tracing::warn!(ending, trash, "stop_leaves_deletes_to_the_next_start");
        }
        let last = Arc::clone(host);
        let closed = tokio::task::spawn_blocking(move || {
            last.db.close();
            last.cgroups.close();
        });
        match timeout(CLOSE_WAIT, closed).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "engine_stop_failed"),
            Err(_elapsed) => tracing::warn!("stop_leaves_the_database_to_the_next_start"),
        }
    }

    /// Makes a session. It answers when an exec sent at once would work.
    ///
    /// # Errors
    /// As `api.md` has them; nothing is left of a session that could not be made.
    pub async fn create_session(
        &self,
        request: CreateSession,
        key: Option<IdempotencyKey>,
    ) -> Result<Session, Error> {
        self.check_stopping()?;
        let began = Instant::now();
        let made = session::create(&self.0.host, request, key).await;
        self.0.host.counters.create_ended(&made, began.elapsed());
        made
    }

    /// One session, also for 24 h after its end.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`].
    pub async fn session(&self, id: &SessionId) -> Result<Session, Error> {
        let host = &self.0.host;
        if let Some(session) = host.live.get(id) {
            return Ok(session.show(&host.config.node));
        }
        let row = host.db.session(id.clone()).await?;
        let row = row.ok_or_else(|| Error::SessionNotFound(id.clone()))?;
        Ok(session::show_row(row, &host.config.node))
    }

    /// Ends a session. Deleting one that has ended changes nothing and is no error.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`].
    pub async fn delete_session(&self, id: &SessionId) -> Result<(), Error> {
        let host = &self.0.host;
        let Some(session) = host.live.get(id) else {
            return match host.db.session(id.clone()).await? {
                Some(_) => Ok(()),
                None => Err(Error::SessionNotFound(id.clone())),
            };
        };
        // A task that takes no commands any more is ending the session already.
        drop(session.commands.send(Command::End { cause: Cause::deleted() }));
        let mut view = session.view.clone();
        let over = view.wait_for(|view| matches!(view.state, State::Over(_)));
        // A process that can't die must not hold up the caller; its end is written down.
        if timeout(DELETE_WAIT, over).await.is_err() {
            tracing::warn!(session = %id, "session_delete_goes_on");
        }
        Ok(())
    }

    /// What a session uses now. Does not renew its lease and waits for no exec.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`], [`Error::Ended`].
    pub async fn stats(&self, id: &SessionId) -> Result<Stats, Error> {
        let session = self.living(id).await?;
        let spec = &session.spec;
        let groups = &self.0.host.cgroups;
        let (usage, events) = (groups.usage(id.as_str()), groups.events(id.as_str()));
        Ok(Stats {
            memory_bytes: usage.memory_bytes,
            memory_limit: spec.memory_bytes(),
            cpu_usage_usec: usage.cpu_usec,
            memory_peak_bytes: usage.memory_peak_bytes,
            cpu_limit: spec.cpu,
            // A fork that is refused is counted for the moment of its refusal.
            pids: usage.pids.min(spec.pids),
            pids_limit: spec.pids,
            disk_bytes: self.disk_bytes(&session).await?,
            disk_limit: spec.disk_bytes(),
            oom_kills: events.oom_kills,
        })
    }

    /// What a session has written outside a persistent workspace; `None` where it is not counted.
    async fn disk_bytes(&self, session: &Handle) -> Result<Option<u64>, Error> {
        if session.spec.disk_mb.is_none() {
            return Ok(None);
        }
        let (host, id) = (Arc::clone(&self.0.host), session.id.clone());
        let used = tokio::task::spawn_blocking(move || host.dirs.used_bytes(&id)).await;
        let used = used.map_err(|error| Error::internal("a blocking task", error))?;
        used.map_err(|error| Error::internal("space of a session", error))
    }

    /// Checks a command and queues it, or joins the one that has its id. Dropping the handle before the
    /// end cancels the command, unless somebody else waits for it or the request said `keep`.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::TooLarge`], [`Error::SessionNotFound`], [`Error::Ended`],
    /// [`Error::Overloaded`] where the queue is full, [`Error::IdempotencyMismatch`] where another
    /// command has its id.
    pub async fn exec(&self, id: &SessionId, request: ExecRequest) -> Result<ExecHandle, Error> {
        self.check_stopping()?;
        let session = self.living(id).await?;
        exec::begin(&self.0.host.config, &session, request).await
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.0.host
    }

    /// All workspaces, by id.
    ///
    /// # Errors
    /// Where the database fails.
    pub async fn workspaces(&self) -> Result<Vec<Workspace>, Error> {
        workspaces::list(&self.0.host).await
    }

    /// One workspace.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotFound`], [`Error::InvalidWorkspace`] where workspaces are off.
    pub async fn workspace(&self, id: &WorkspaceId) -> Result<Workspace, Error> {
        workspaces::get(&self.0.host, id).await
    }

    /// Makes a workspace, or changes the one there is. True: it is new.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::InvalidWorkspace`] where workspaces are off.
    pub async fn put_workspace(
        &self,
        id: &WorkspaceId,
        request: PutWorkspace,
    ) -> Result<(Workspace, bool), Error> {
        self.check_stopping()?;
        workspaces::put(&self.0.host, id, request).await
    }

    /// Removes a workspace and all its files.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotFound`], [`Error::WorkspaceInUse`].
    pub async fn delete_workspace(&self, id: &WorkspaceId) -> Result<(), Error> {
        workspaces::delete(&self.0.host, id).await
    }

    /// What happened since the daemon started.
    #[must_use]
    pub fn counts(&self) -> Counts {
        figures::counts(&self.0.host)
    }

    /// What the host has, and what sessions may take of it.
    #[must_use]
    pub fn resources(&self) -> Resources {
        figures::resources(&self.0.host)
    }

    /// `Some` while the data directory's file system is full, with what was free at the last look: sessions
    /// are not made, all else works as far as it finds room.
    #[must_use]
    pub fn disk_full(&self) -> Option<Room> {
        self.0.host.reserve.full()
    }

    /// What the operator decided.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.host.config
    }

    /// Whether sessions and workspaces can be limited in what they write.
    #[must_use]
    pub fn limits_disk(&self) -> bool {
        self.0.host.disks.mechanism().is_some()
    }

    /// The images of the data directory.
    #[must_use]
    pub fn images(&self) -> &image::Store {
        &self.0.host.images
    }

    /// A session that takes calls, or why there is none.
    pub(crate) async fn living(&self, id: &SessionId) -> Result<Arc<Handle>, Error> {
        let host = &self.0.host;
        if let Some(session) = host.live.get(id) {
            return match session.ended() {
                Some(error) => Err(error),
                None => Ok(session),
            };
        }
        let row = host.db.session(id.clone()).await?;
        let row = row.ok_or_else(|| Error::SessionNotFound(id.clone()))?;
        match row.cause {
            Some(cause) => Err(session::ended(id, cause)),
            // Its task is gone; recovery finds it again.
            None => Err(Error::Overloaded(format!("session {id} is being recovered"))),
        }
    }

    pub(crate) fn check_stopping(&self) -> Result<(), Error> {
        if self.0.stopping.is_cancelled() { Err(Error::Draining) } else { Ok(()) }
    }
}

/// Everything that blocks at the start.
fn open(config: Config, launcher: Launcher) -> Result<Host, StartError> {
    let data_dir =
        |source| StartError::DataDir { path: config.data_dir.display().to_string(), source };
    let dirs = dirs::Dirs::open(&config.data_dir).map_err(data_dir)?;
    let tag = dirs.tag().map_err(data_dir)?;
    let boot_id = clock::boot_id().map_err(data_dir)?;
    let uids = uids::Uids::open(&config.run_dir, &tag, &config.data_dir).map_err(|source| {
        StartError::RunDir { path: config.run_dir.display().to_string(), source }
    })?;
    let disks = disk::Disks::open(&config, &launcher)?;
    let db = db::Db::open(&config.db_path)?;
    let reserve = reserve::Reserve::of(&config.data_dir, &config.db_path);
    if let Err(error) = reserve.look() {
        tracing::warn!(%error, "disk_reserve_not_made");
    }
    let images = image::Store::open(&config.data_dir).map_err(StartError::Images)?;
    let workspaces = workspace::Workspaces::open(&config.data_dir).map_err(data_dir)?;
    let cap = over_all_sessions(&config)?;
    let cgroups = Cgroups::open(&tag, &cap)
        .map_err(|error| StartError::Cgroups(Error::internal(&tag, error).to_string()))?;
    Ok(Host {
        boot_id,
        launcher,
        cgroups,
        memory_max_bytes: cap.memory_bytes,
        images,
        workspaces: Arc::new(workspaces),
        sizes: sizes::Sizes::default(),
        uids,
        dirs,
        disks,
        db,
        reserve,
        live: host::Live::default(),
        counters: figures::Counters::default(),
        workspace_gate: tokio::sync::Mutex::new(()),
        update_gate: tokio::sync::Mutex::new(()),
        workspace_jobs: Arc::new(Semaphore::new(worker::WORKSPACE_JOBS_MAX)),
        creates: Semaphore::new(CREATES_MAX),
        trash_filled: tokio::sync::Notify::new(),
        tasks: TaskTracker::new(),
        config,
    })
}

/// The cap over all sessions together: what the host can do without. A ceiling for one session says
/// nothing about how many such sessions there may be.
fn over_all_sessions(config: &Config) -> Result<CgroupLimits, StartError> {
    const HOST_PIDS: u64 = 4096;
    const HOST_MEMORY_PERCENT: u64 = 10;
    const PIDS_FILE: &str = "/proc/sys/kernel/pid_max";
    let pid_max = std::fs::read_to_string(PIDS_FILE)
        .map_err(|source| StartError::DataDir { path: PIDS_FILE.into(), source })?;
    let pid_max: u64 = pid_max.trim().parse().unwrap_or(32_768);
    let info = rustix::system::sysinfo();
    let memory = info.totalram.saturating_mul(u64::from(info.mem_unit));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = f64::from(u32::try_from(cores).unwrap_or(u32::MAX));
    Ok(CgroupLimits {
        memory_bytes: (memory / 100 * (100 - HOST_MEMORY_PERCENT))
            .max(config.ceilings.memory_mb.saturating_mul(1024 * 1024)),
        cpu_cores: cores.max(config.ceilings.cpu),
        pids: pid_max.saturating_sub(HOST_PIDS).max(config.ceilings.pids),
    })
}

async fn reconcile_again(host: Arc<Host>, stopping: CancellationToken) {
    let mut ticks = interval(recovery::EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = recovery::reconcile(&host).await {
            tracing::error!(%error, "reconcile_failed");
        }
    }
}

async fn watch_disk(host: Arc<Host>, stopping: CancellationToken) {
    let mut ticks = interval(reserve::EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
        let with = Arc::clone(&host);
        match tokio::task::spawn_blocking(move || with.reserve.look()).await {
            Ok(Ok(())) => {}
            // It is tried again.
            Ok(Err(error)) => tracing::debug!(%error, "disk_reserve_not_made"),
            Err(error) => tracing::error!(%error, "blocking_task_failed"),
        }
    }
}

/// Removes what deletes have left in a data directory, however long that takes.
///
/// # Errors
/// Where something can't be removed. The caller holds the data directory's claim: no daemon runs there.
pub fn empty_trash_of(data_dir: &Path) -> io::Result<()> {
    trash::Trash::open(data_dir)?.empty()
}

async fn empty_trash(host: Arc<Host>, stopping: CancellationToken) {
    while stopping.run_until_cancelled(host.trash_filled.notified()).await.is_some() {
        empty_trash_now(&host).await;
    }
    // What was deleted just before the stop. A stop does not wait for ever for it.
    empty_trash_now(&host).await;
}

async fn empty_trash_now(host: &Arc<Host>) {
    let with = Arc::clone(host);
    match tokio::task::spawn_blocking(move || with.dirs.trash.empty()).await {
        Ok(Ok(())) => {}
        // Recovery rings again.
        Ok(Err(error)) => tracing::error!(%error, "trash_not_emptied"),
        Err(error) => tracing::error!(%error, "blocking_task_failed"),
    }
}
