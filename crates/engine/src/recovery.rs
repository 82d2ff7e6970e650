//! Compares what is written down with what is there, at start and every 30 s, and makes them agree.
//!
//! | row | host | then |
//! |---|---|---|
//! | running | its init lives | attached again; its shell and a running command go on |
//! | running | its init does not | crashed |
//! | of another boot | – | lost |
//! | creating, without a task | whatever was made | removed, and forgotten |
//! | stopping, without a task | whatever is left | removed, ended as was meant |
//! | none, or ended | a cgroup, a folder, a claim of uids | removed |
//! | none, or ended | a layer that no image has | moved to the trash |
//!
//! Workspaces have a table of their own: [`workspaces::reconcile`].
//!
//! Invariant: it may run at any time and any number of times. What has a task is left to it: a
//! session is in [`Live`](crate::host::Live) from before its row until after its end.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sandkasten_types::session::Status;
use sandkasten_types::{SessionId, Timestamp, limits};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::db::{Identity, Row};
use crate::descriptor::watched;
use crate::error::Error;
use crate::host::Host;
use crate::image::Digest;
use crate::session::{
    Actor, Cause, Command, DEATH_GRACE, Greeting, Handle, Link, Parts, View, release,
};
use crate::workspaces;

/// How often rows and host are compared.
pub(crate) const EVERY: Duration = Duration::from_secs(30);

/// Makes rows and host agree.
///
/// # Errors
/// Where the rows can't be read; a single session's trouble is logged.
pub(crate) async fn reconcile(host: &Arc<Host>) -> Result<(), Error> {
    // The host first: what is made after this look is no orphan.
    let found = found_on_host(host).await?;
    let mut sessions = JoinSet::new();
    let mut layers = Vec::new();
    for row in host.db.living_sessions().await? {
        layers.extend(row.spec.layers);
        if host.live.get(&row.id).is_none() {
            let host = Arc::clone(host);
            sessions.spawn(async move { recover(&host, row.id).await });
        }
    }
    while let Some(done) = sessions.join_next().await {
        if let Err(error) = done {
            tracing::error!(%error, "session_recovery_panicked");
        }
    }
    for id in found {
        remove_orphan(host, id).await;
    }
    end_expired(host);
    release_claims(host).await;
    workspaces::reconcile(host).await?;
    // Sessions that are being made have no row yet, or had none at the look above.
    layers.extend(host.live.all().iter().flat_map(|session| session.spec.layers.clone()));
    remove_layers(host, layers).await;
    forget_old(host).await?;
    host.trash_filled.notify_one();
    Ok(())
}

/// Sessions that have anything on the host.
async fn found_on_host(host: &Arc<Host>) -> Result<BTreeSet<SessionId>, Error> {
    let host = Arc::clone(host);
    let look = tokio::task::spawn_blocking(move || {
        let mut found: BTreeSet<SessionId> = host.dirs.list()?.into_iter().collect();
        found.extend(host.cgroups.list().iter().filter_map(|name| name.parse().ok()));
        Ok::<_, std::io::Error>(found)
    });
    let found = look.await.map_err(|error| Error::internal("looking at the host", error))?;
    found.map_err(|error| Error::internal("looking at the host", error))
}

async fn recover(host: &Arc<Host>, id: SessionId) {
    // Read again: its own task may have ended it since the rows were listed.
    let row = match host.db.session(id.clone()).await {
        Ok(Some(row)) if !row.status.is_over() && host.live.get(&id).is_none() => row,
        Ok(_) => return,
        Err(error) => {
            tracing::error!(session = %id, %error, "session_not_recovered");
            return;
        }
    };
    if row.boot_id != host.boot_id {
        return finish(host, row, Cause::lost("the host was restarted")).await;
    }
    match row.status {
        Status::Creating => forget(host, &row).await,
        Status::Running | Status::Paused => attach_or_finish(host, row).await,
        Status::Stopping => {
            let cause = row.cause.clone().unwrap_or_else(|| Cause::crashed("unknown"));
            finish(host, row, cause).await;
        }
        Status::Destroyed | Status::Expired | Status::Crashed | Status::Lost => {}
    }
}

/// A create that no daemon finished. Nobody was told its id, or its key makes another.
async fn forget(host: &Arc<Host>, row: &Row) {
    tracing::warn!(session = %row.id, "half_made_session_removed");
    release(host, &row.id, None, None).await;
    if let Some(workspace) = &row.spec.workspace {
        workspaces::unmake(host, workspace, &row.id).await;
    }
    if let Err(error) = host.db.forget_session(row.id.clone()).await {
        tracing::error!(session = %row.id, %error, "session_not_forgotten");
    }
}

async fn finish(host: &Arc<Host>, row: Row, cause: Cause) {
    tracing::warn!(
        session = %row.id,
        status = cause.status.as_str(),
        reason = cause.reason,
        "session_ended_by_recovery"
    );
    if let Err(error) = host.db.set_stopping(row.id.clone(), cause.clone()).await {
        tracing::error!(session = %row.id, %error, "session_state_not_written");
    }
    release(host, &row.id, None, None).await;
    if let Err(error) = host.db.set_over(row.id.clone(), cause, row.cwd).await {
        tracing::error!(session = %row.id, %error, "session_state_not_written");
    }
}

async fn attach_or_finish(host: &Arc<Host>, row: Row) {
    let pidfd = row.init.and_then(init_of);
    let Some(Ok(pidfd)) = pidfd.map(|pidfd| watched(pidfd, Interest::READABLE)) else {
        return finish(host, row, Cause::crashed("init died")).await;
    };
    let (link, greeting) = match connect(host, &row, &pidfd).await {
        Ok(attached) => attached,
        Err(error) => {
            tracing::error!(session = %row.id, %error, "session_not_attached");
            let died = timeout(DEATH_GRACE, pidfd.readable()).await.is_ok();
            let reason = if died { "init died" } else { "init does not answer" };
            return finish(host, row, Cause::crashed(reason)).await;
        }
    };
    tracing::info!(session = %row.id, "session_attached_again");
    take_over(host, row, Attached { pidfd, link, greeting });
}

/// The process of a row, if it is still that one. The descriptor is taken before the start time is
/// compared: a pid that is given to another process in between shows another start time.
fn init_of(init: Identity) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(init.pid).ok()?)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let start_time = sandkasten_jail::start_time(init.pid).ok()??;
    (start_time == init.start_time).then_some(pidfd)
}

async fn connect(
    host: &Arc<Host>,
    row: &Row,
    pidfd: &AsyncFd<OwnedFd>,
) -> Result<(Link, Greeting), Error> {
    let dir = things(host, row).await?;
    tokio::select! {
        attached = Link::attach(&dir, row.nonce) => Ok(attached?),
        _ = pidfd.readable() => Err(Error::Internal("init died".into())),
    }
}

/// A living session's ends.
struct Attached {
    pidfd: AsyncFd<OwnedFd>,
    link: Link,
    greeting: Greeting,
}

/// Gives a living session a task.
fn take_over(host: &Arc<Host>, row: Row, attached: Attached) {
    let Attached { pidfd, link, greeting } = attached;
    let (commands, inbox) = mpsc::unbounded_channel();
    let mut shown = View::new(&row.spec, row.lease);
    shown.cwd = row.cwd;
    let (publish, view) = watch::channel(shown);
    let (id, spec, created_at) = (row.id, row.spec, row.created_at);
    let handle = Arc::new(Handle { id, spec, created_at, commands, view });
    // What lives is never refused for a quota.
    if let Err(error) = host.live.add(&handle, usize::MAX) {
        tracing::error!(session = %handle.id, %error, "session_not_attached");
        return;
    }
    Actor::spawn(Parts {
        host: Arc::clone(host),
        handle,
        commands: inbox,
        view: publish,
        link,
        greeting,
        pidfd,
        namespace: None,
    });
}

/// The folder of a session that has all it should have on the host.
async fn things(host: &Arc<Host>, row: &Row) -> Result<OwnedFd, Error> {
    let (host, id, uid_base) = (Arc::clone(host), row.id.clone(), row.uid_base);
    let look = tokio::task::spawn_blocking(move || {
        let dir = host.dirs.open_session(&id)?;
        if host.cgroups.find(id.as_str()).is_none() {
            return Err(std::io::Error::new(std::io::ErrorKind::NotFound, "its cgroup"));
        }
        if let Some(base) = uid_base {
            host.uids.adopt(&id, base)?;
        }
        Ok::<_, std::io::Error>(dir)
    });
    let things = look.await.map_err(|error| Error::internal("looking at a session", error))?;
    things.map_err(|error| Error::internal("looking at a session", error))
}

async fn remove_orphan(host: &Arc<Host>, id: SessionId) {
    if host.live.get(&id).is_some() {
        return;
    }
    match host.db.session(id.clone()).await {
        // Its end is still being written, or failed and comes again.
        Ok(Some(row)) if !row.status.is_over() => {}
        Ok(_) => {
            tracing::warn!(session = %id, "orphan_removed");
            host.counters.orphan_removed();
            release(host, &id, None, None).await;
        }
        Err(error) => tracing::error!(session = %id, %error, "orphan_not_removed"),
    }
}

/// A session's timer stands still while the host sleeps; its lease does not.
fn end_expired(host: &Arc<Host>) {
    for session in host.live.all() {
        let end = session.view.borrow().end();
        if let Some(cause) = end {
            // One that ends already takes no commands.
            drop(session.commands.send(Command::End { cause }));
        }
    }
}

async fn release_claims(host: &Arc<Host>) {
    let host = Arc::clone(host);
    let released = tokio::task::spawn_blocking(move || {
        host.uids.release_orphans(|session| host.live.has(session))
    });
    match released.await {
        Ok(Ok(0)) => {}
        Ok(Ok(count)) => tracing::warn!(count, "uid_claims_removed"),
        Ok(Err(error)) => tracing::error!(%error, "uid_claims_not_removed"),
        Err(error) => tracing::error!(%error, "blocking_task_failed"),
    }
}

/// What `image rm` and a second import of a name leave. Layers of living sessions stay.
async fn remove_layers(host: &Arc<Host>, in_use: Vec<Digest>) {
    let with = Arc::clone(host);
    let done = tokio::task::spawn_blocking(move || with.images.collect_garbage(&in_use)).await;
    match done {
        Ok(Ok(0)) => {}
        Ok(Ok(count)) => tracing::info!(count, "unused_layers_removed"),
        Ok(Err(error)) => tracing::error!(%error, "unused_layers_not_removed"),
        Err(error) => tracing::error!(%error, "blocking_task_failed"),
    }
}

async fn forget_old(host: &Arc<Host>) -> Result<(), Error> {
    let hours = i64::try_from(limits::TOMBSTONE_HOURS).unwrap_or(i64::MAX);
    let then = Timestamp::now().unix_ms().saturating_sub(hours.saturating_mul(3_600_000));
    host.db.prune(Timestamp::from_unix_ms(then)).await?;
    host.counters.set_ended(host.db.ended_counts().await?);
    Ok(())
}
