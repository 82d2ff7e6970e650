//! What every session's task shares: the daemon's side of the host.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandkasten_jail::cgroup::Cgroups;
use sandkasten_jail::launcher::Launcher;
use sandkasten_types::SessionId;
use sandkasten_types::session::Status;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::db::Db;
use crate::dirs::Dirs;
use crate::disk::{Ahead, Disks};
use crate::error::Error;
use crate::image::Store;
use crate::session::Handle;
use crate::sizes::Sizes;
use crate::uids::Uids;
use crate::workspace::Workspaces;

/// Sessions that are being made at once; more wait. The launcher makes one at a time anyway.
pub(crate) const CREATES_MAX: usize = 8;

/// The daemon's things.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) config: Config,
    pub(crate) boot_id: String,
    pub(crate) launcher: Launcher,
    pub(crate) cgroups: Cgroups,
    pub(crate) images: Store,
    pub(crate) workspaces: Arc<Workspaces>,
    pub(crate) sizes: Sizes,
    pub(crate) uids: Uids,
    pub(crate) dirs: Dirs,
    pub(crate) disks: Disks,
    pub(crate) db: Db,
    pub(crate) live: Live,
    pub(crate) counters: Counters,
    /// Making and removing workspaces: a session gets one that exists and stays.
    pub(crate) workspace_gate: tokio::sync::Mutex<()>,
    /// Who may run a job on a workspace.
    pub(crate) workspace_jobs: Arc<tokio::sync::Semaphore>,
    pub(crate) creates: Semaphore,
    pub(crate) trash_filled: Notify,
    /// Every task of the engine, so that a stop can wait for them.
    pub(crate) tasks: TaskTracker,
}

/// Processes that wait for sessions to come, on hosts where a create would wait for them.
const STARTERS: usize = 3;

impl Host {
    /// Sees to it that starters wait for the next creates. Nobody waits for this.
    pub(crate) fn park_starters(self: &Arc<Self>) {
        let host = Arc::clone(self);
        self.tasks.spawn_blocking(move || {
            if let Err(error) = host.cgroups.park(&host.launcher, STARTERS) {
                tracing::warn!(%error, "starters_not_parked");
            }
        });
    }
}

impl Host {
    /// Sees to it that images wait for the next creates. Nobody waits for this.
    pub(crate) fn make_images_ahead(self: &Arc<Self>) {
        if self.disks.ahead().is_none() {
            return;
        }
        let host = Arc::clone(self);
        self.tasks.spawn_blocking(move || {
            if let Some(Err(error)) = host.disks.ahead().map(Ahead::fill) {
                tracing::warn!(%error, "images_not_made_ahead");
            }
        });
    }
}

/// The sessions that have a task, or are about to get one.
#[derive(Debug, Default)]
pub(crate) struct Live {
    map: Mutex<HashMap<SessionId, Arc<Handle>>>,
}

impl Live {
    /// Adds a session unless `max` live already.
    pub(crate) fn add(&self, handle: &Arc<Handle>, max: usize) -> Result<(), Error> {
        let mut map = self.lock();
        if map.len() >= max {
            return Err(Error::QuotaExceeded { what: "sessions", limit: max as u64 });
        }
        map.insert(handle.id.clone(), Arc::clone(handle));
        Ok(())
    }

    /// Removes this session, and not one that took its place.
    pub(crate) fn remove(&self, handle: &Arc<Handle>) {
        let mut map = self.lock();
        if map.get(&handle.id).is_some_and(|known| Arc::ptr_eq(known, handle)) {
            map.remove(&handle.id);
        }
    }

    pub(crate) fn get(&self, id: &SessionId) -> Option<Arc<Handle>> {
        self.lock().get(id).cloned()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.lock().keys().any(|known| known.as_str() == id)
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Handle>> {
        let mut all: Vec<_> = self.lock().values().cloned().collect();
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Handle>>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happened since the daemon started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    created: AtomicU64,
    execs_finished: AtomicU64,
    orphans_removed: AtomicU64,
    ended: Mutex<HashMap<Status, u64>>,
}

impl Counters {
    pub(crate) fn session_created(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn exec_finished(&self) {
        self.execs_finished.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn orphan_removed(&self) {
        self.orphans_removed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, status: Status) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
    }

    /// What the database remembers, once it has forgotten the old ones.
    pub(crate) fn set_ended(&self, counts: Vec<(Status, u64)>) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = counts.into_iter().collect();
    }

    pub(crate) fn read(&self) -> crate::Counts {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        crate::Counts {
            sessions: ended.iter().map(|(status, count)| (*status, *count)).collect(),
            sessions_created: self.created.load(Ordering::Relaxed),
            execs_running: 0,
            execs_queued: 0,
            execs_finished: self.execs_finished.load(Ordering::Relaxed),
            orphans_removed: self.orphans_removed.load(Ordering::Relaxed),
        }
    }
}
