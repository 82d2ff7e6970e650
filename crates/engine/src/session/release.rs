//! The end of a session's things. Everything is found by a name computed from the session's id, and
//! nothing minds being gone already: the actor, a failed create and recovery all come here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sandkasten_jail::cgroup::Cgroup;
use sandkasten_types::SessionId;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep, timeout};

use crate::descriptor::watched;
use crate::host::Host;

/// After this long a session that doesn't die is reported; waiting goes on.
const REPORT_AFTER: Duration = Duration::from_secs(5);
/// How long a group may be busy after its last process has ended: the kernel takes it down later.
const REMOVE_FOR: Duration = Duration::from_secs(5);
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

/// Kills a session's processes, waits for their end, and removes what it had.
pub(crate) async fn release(
    host: &Arc<Host>,
    id: &SessionId,
    pidfd: Option<&AsyncFd<OwnedFd>>,
    namespace: Option<OwnedFd>,
) {
    let group = find(host, id).await;
    if let Some(group) = &group {
        kill(group, id).await;
    }
    if let Some(pidfd) = pidfd {
        wait_for_death(pidfd, id).await;
    }
    if let Some(group) = &group {
        wait_until_empty(group, id).await;
    }
    host.uids.release(id, namespace);
    remove_group(host, id).await;
    discard(host, id).await;
}

async fn find(host: &Arc<Host>, id: &SessionId) -> Option<Arc<Cgroup>> {
    let (host, id) = (Arc::clone(host), id.clone());
    blocking(move || host.cgroups.find(id.as_str()).map(Arc::new)).await.flatten()
}

async fn kill(group: &Arc<Cgroup>, id: &SessionId) {
    let group = Arc::clone(group);
    if let Some(Err(error)) = blocking(move || group.kill()).await
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::error!(session = %id, %error, "session_kill_failed");
    }
}

/// init is the last of its pid namespace to end: once it has, all its processes have.
async fn wait_for_death(pidfd: &AsyncFd<OwnedFd>, id: &SessionId) {
    while timeout(REPORT_AFTER, pidfd.readable()).await.is_err() {
        tracing::warn!(session = %id, "session_does_not_die");
    }
}

async fn wait_until_empty(group: &Arc<Cgroup>, id: &SessionId) {
    let Ok(events) = group.populated_fd().and_then(|fd| watched(fd, Interest::PRIORITY)) else {
        return;
    };
    while group.is_populated().unwrap_or(false) {
        match timeout(REPORT_AFTER, events.ready(Interest::PRIORITY)).await {
            Ok(Ok(mut ready)) => ready.clear_ready(),
            Ok(Err(_)) => return,
            Err(_elapsed) => tracing::warn!(session = %id, "session_does_not_die"),
        }
    }
}

/// Also what is left of one that is incomplete.
async fn remove_group(host: &Arc<Host>, id: &SessionId) {
    let give_up = Instant::now() + REMOVE_FOR;
    loop {
        let (with, which) = (Arc::clone(host), id.clone());
        // It waits for the end of processes by itself.
        match blocking(move || with.cgroups.remove(which.as_str())).await {
            Some(Err(error))
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < give_up => {}
            Some(Err(error)) => {
                tracing::error!(session = %id, %error, "session_cgroup_not_removed");
                return;
            }
            Some(Ok(())) | None => return,
        }
        // The kernel lets a v1 group go some time after its last process; there is no event for it.
        sleep(REMOVE_PAUSE).await;
    }
}

async fn discard(host: &Arc<Host>, id: &SessionId) {
    let (with, which) = (Arc::clone(host), id.clone());
    match blocking(move || with.dirs.discard(&which)).await {
        Some(Ok(true)) => host.trash_filled.notify_one(),
        Some(Ok(false)) | None => {}
        Some(Err(error)) => tracing::error!(session = %id, %error, "session_folder_not_removed"),
    }
}

/// Runs what blocks. `None`: it panicked, which is logged.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Some(done),
        Err(error) => {
            tracing::error!(%error, "blocking_task_failed");
            None
        }
    }
}
