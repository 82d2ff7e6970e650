//! What every session's task shares: the daemon's side of the host.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandkasten_jail::cgroup::Cgroups;
use sandkasten_jail::launcher::Launcher;
use sandkasten_types::SessionId;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::db::Db;
use crate::dirs::Dirs;
use crate::disk::{Ahead, Disks};
use crate::error::Error;
use crate::figures::Counters;
use crate::image::Store;
use crate::reserve::Reserve;
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
    /// The cap over all sessions.
    pub(crate) memory_max_bytes: u64,
    pub(crate) images: Store,
    pub(crate) workspaces: Arc<Workspaces>,
    pub(crate) sizes: Sizes,
    pub(crate) uids: Uids,
    pub(crate) dirs: Dirs,
    pub(crate) disks: Disks,
    pub(crate) db: Db,
    pub(crate) reserve: Reserve,
    pub(crate) live: Live,
    pub(crate) counters: Counters,
    /// Making and removing workspaces: a session gets one that exists and stays.
    pub(crate) workspace_gate: tokio::sync::Mutex<()>,
    /// Changing what can be changed of sessions.
    pub(crate) update_gate: tokio::sync::Mutex<()>,
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
