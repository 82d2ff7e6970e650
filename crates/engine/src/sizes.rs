//! How large workspaces are. Counting walks a tree that may be of any size, so an answer waits for it a
//! short time only; the count goes on, and the next answer has it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandkasten_types::{Timestamp, WorkspaceId};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant as Deadline, timeout_at};

use crate::host::Host;

/// How long an answer waits for counts.
pub(crate) const WAIT: Duration = Duration::from_secs(1);
/// A count that takes longer is given up.
const COUNT_MAX: Duration = Duration::from_secs(120);
/// Trees that are counted at once.
const AT_ONCE: usize = 2;
/// A count is good for this many times what it took…
const GOOD_FOR: u32 = 20;
/// …but not at all where it is cheap, …
const CHEAP: Duration = Duration::from_millis(20);
/// …and never longer than this.
const GOOD_MAX: Duration = Duration::from_secs(60);

/// A size, and when it was that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) counted_at: Timestamp,
    at: Instant,
    took: Duration,
}

impl Size {
    fn is_good(&self) -> bool {
        self.took > CHEAP && self.at.elapsed() < (self.took * GOOD_FOR).min(GOOD_MAX)
    }
}

/// What is known of sizes.
#[derive(Debug)]
pub(crate) struct Sizes {
    known: Mutex<HashMap<WorkspaceId, Entry>>,
    turns: Semaphore,
}

#[derive(Debug)]
struct Entry {
    latest: watch::Sender<Option<Size>>,
    counting: bool,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { known: Mutex::default(), turns: Semaphore::new(AT_ONCE) }
    }
}

impl Sizes {
    /// A workspace of that name is gone.
    pub(crate) fn forget(&self, id: &WorkspaceId) {
        self.lock().remove(id);
    }

    /// The last size, and what says that there is a new one where it is time for that.
    fn ask(&self, id: &WorkspaceId) -> Asked {
        let mut known = self.lock();
        let entry = known
            .entry(id.clone())
            .or_insert_with(|| Entry { latest: watch::Sender::new(None), counting: false });
        let latest = entry.latest.subscribe();
        if latest.borrow().is_some_and(|size| size.is_good()) {
            return Asked { latest, count: Count::Good };
        }
        let count = if entry.counting { Count::UnderWay } else { Count::Due };
        entry.counting = true;
        Asked { latest, count }
    }

    fn counted(&self, id: &WorkspaceId, size: Option<Size>) {
        if let Some(entry) = self.lock().get_mut(id) {
            entry.counting = false;
            // A count that failed wakes those who wait, too; they have the last one.
            entry.latest.send_modify(|latest| *latest = size.or(*latest));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<WorkspaceId, Entry>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Asked {
    latest: watch::Receiver<Option<Size>>,
    count: Count,
}

#[derive(PartialEq, Eq)]
enum Count {
    /// The last one will do.
    Good,
    UnderWay,
    Due,
}

/// The sizes of these workspaces, in their order; `None` where none is known in time.
pub(crate) async fn of(host: &Arc<Host>, ids: Vec<WorkspaceId>) -> Vec<Option<Size>> {
    let deadline = Deadline::now() + WAIT;
    let mut asked = Vec::with_capacity(ids.len());
    for id in ids {
        let one = host.sizes.ask(&id);
        if one.count == Count::Due {
            host.tasks.spawn(count(Arc::clone(host), id, deadline));
        }
        asked.push(one);
    }
    let mut sizes = Vec::with_capacity(asked.len());
    for mut one in asked {
        if one.count != Count::Good {
            // Late, or the workspace is gone: what is known is the answer.
            drop(timeout_at(deadline, one.latest.changed()).await);
        }
        sizes.push(*one.latest.borrow());
    }
    sizes
}

/// Counts one workspace, unless its turn does not come before `deadline`.
async fn count(host: Arc<Host>, id: WorkspaceId, deadline: Deadline) {
    let size = match timeout_at(deadline, host.sizes.turns.acquire()).await {
        Ok(Ok(_turn)) => count_now(&host, &id).await,
        Ok(Err(_)) | Err(_) => None,
    };
    host.sizes.counted(&id, size);
}

async fn count_now(host: &Arc<Host>, id: &WorkspaceId) -> Option<Size> {
    let (host, which) = (Arc::clone(host), id.clone());
    let counted = tokio::task::spawn_blocking(move || {
        let at = Instant::now();
        // A stop waits for no count.
        let go_on = || at.elapsed() < COUNT_MAX && !host.creates.is_closed();
        let bytes = host.workspaces.size_bytes(&which, &go_on)?;
        let took = at.elapsed();
        let size = |bytes| Size { bytes, counted_at: Timestamp::now(), at: Instant::now(), took };
        Ok::<_, std::io::Error>(bytes.map(size))
    });
    match counted.await {
        Ok(Ok(size)) => size,
        // One that is being removed meanwhile has no size any more.
        Ok(Err(error)) => {
            tracing::debug!(workspace = %id, %error, "workspace_not_counted");
            None
        }
        Err(error) => {
            tracing::error!(%error, "blocking_task_failed");
            None
        }
    }
}
