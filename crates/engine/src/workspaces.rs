//! Workspaces as the engine's callers see them: rows and directories together.
//!
//! The gate of the host is held from the look at the rows to the change of the directory, so that a
//! session never gets a directory that is being removed.
//!
//! Invariant: a directory that has entries goes by [`delete`] alone, and only once its row is gone. Every
//! other trouble leaves it where it was, or where [`reconcile`] finds it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sandkasten_jail::fault;
use sandkasten_protocol::FileUser;
use sandkasten_types::files::DirEntry;
use sandkasten_types::limits::{DISK_MB_MAX, DISK_MB_MIN};
use sandkasten_types::workspace::{PutWorkspace, Workspace};
use sandkasten_types::{SessionId, WorkspaceId};

use crate::config::{Durability, WorkspacePolicy};
use crate::db::{Removable, WorkspaceChange, WorkspaceRow};
use crate::error::{Error, FileFault};
use crate::files::shown;
use crate::host::Host;
use crate::session::check_labels;
use crate::sizes::{self, Size};
use crate::workspace::limit::{LimitFault, Sessions};
use crate::workspace::{Acting, Who, WorkspaceError, Workspaces};

/// Refuses every use of workspaces where they are switched off.
pub(crate) fn check_policy(host: &Host) -> Result<(), Error> {
    match host.config.workspaces {
        WorkspacePolicy::On { .. } => Ok(()),
        WorkspacePolicy::Off => {
            Err(Error::InvalidWorkspace("workspaces are switched off on this daemon".into()))
        }
    }
}

/// Makes a workspace where it does not exist; the caller holds the gate. True: it did not.
pub(crate) async fn make(host: &Arc<Host>, id: &WorkspaceId) -> Result<bool, Error> {
    make_for(host, id, None).await
}

/// As [`make`]; `made_for` is the session whose create asks for it, where nobody else does.
pub(crate) async fn make_for(
    host: &Arc<Host>,
    id: &WorkspaceId,
    made_for: Option<&SessionId>,
) -> Result<bool, Error> {
    let added = host.db.add_workspace(id.clone(), made_for.cloned()).await?;
    let (which, durability) = (id.clone(), host.config.durability);
    let made = on_disk(host, move |workspaces| {
        // A delete that failed twice may have left it withdrawn.
        if !added && !workspaces.exists(&which)? {
            workspaces.restore(&which)?;
        }
        workspaces.create(&which, durability)
    });
    if let Err(error) = made.await {
        if added {
            take_back(host, id).await;
        }
        return Err(Error::internal("making a workspace", error));
    }
    Ok(added)
}

/// Takes back what a failed create made, unless somebody else has named it by now.
pub(crate) async fn unmake(host: &Arc<Host>, id: &WorkspaceId, session: &SessionId) {
    let _gate = host.workspace_gate.lock().await;
    if matches!(host.db.is_made_for(id.clone(), session.clone()).await, Ok(true)) {
        tracing::debug!(session = %session, workspace = %id, "workspace_unmade");
        take_back(host, id).await;
    }
}

/// Removes a workspace that has just been made, if it is empty. What fails here leaves an empty one.
async fn take_back(host: &Arc<Host>, id: &WorkspaceId) {
    let which = id.clone();
    let is_gone = on_disk(host, move |workspaces| {
        Ok(workspaces.remove_empty(&which)? || !workspaces.exists(&which)?)
    });
    let dropped = match is_gone.await {
        Ok(true) => host.db.drop_workspace(id.clone()).await.map_err(io::Error::other),
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = dropped {
        tracing::warn!(workspace = %id, %error, "workspace_not_unmade");
    }
}

/// Makes a workspace, or changes the one there is. True: it is new.
pub(crate) async fn put(
    host: &Arc<Host>,
    id: &WorkspaceId,
    request: PutWorkspace,
) -> Result<(Workspace, bool), Error> {
    check_policy(host)?;
    let PutWorkspace { quota_mb, labels } = request;
    let change = WorkspaceChange {
        labels: labels.map(check_labels).transpose()?,
        quota_mb: check_quota(quota_mb)?,
    };
    let (row, is_new) = {
        let _gate = host.workspace_gate.lock().await;
        let is_new = make(host, id).await?;
        let limited = match change.quota_mb {
            Some(mb) => set_quota(host, id, mb).await,
            None => Ok(()),
        };
        let changed = match limited {
            Ok(()) => change_row(host, id, change).await,
            Err(error) => Err(error),
        };
        if is_new && changed.is_err() {
            take_back(host, id).await;
        }
        (changed?, is_new)
    };
    Ok((show(host, row).await, is_new))
}

async fn change_row(
    host: &Arc<Host>,
    id: &WorkspaceId,
    change: WorkspaceChange,
) -> Result<WorkspaceRow, Error> {
    point("workspace: change")?;
    if change != WorkspaceChange::default() {
        host.db.change_workspace(id.clone(), change).await?;
    }
    row(host, id).await
}

/// What a quota may be. Whether this host and this workspace can have it is [`set_quota`]'s.
fn check_quota(quota_mb: Option<u64>) -> Result<Option<u64>, Error> {
    match quota_mb {
        None => Ok(None),
        Some(mb) if (DISK_MB_MIN..=DISK_MB_MAX).contains(&mb) => Ok(Some(mb)),
        Some(mb) => Err(Error::InvalidRequest(format!(
            "`quota_mb` is {mb}; it must be {DISK_MB_MIN} to {DISK_MB_MAX}"
        ))),
    }
}

/// One workspace.
pub(crate) async fn get(host: &Arc<Host>, id: &WorkspaceId) -> Result<Workspace, Error> {
    check_policy(host)?;
    Ok(show(host, row(host, id).await?).await)
}

async fn row(host: &Arc<Host>, id: &WorkspaceId) -> Result<WorkspaceRow, Error> {
    let row = host.db.workspace(id.clone()).await?;
    row.ok_or_else(|| Error::WorkspaceNotFound(id.clone()))
}

/// All workspaces, by id.
pub(crate) async fn list(host: &Arc<Host>) -> Result<Vec<Workspace>, Error> {
    let rows = host.db.workspaces().await?;
    let sizes = sizes::of(host, rows.iter().map(|row| row.id.clone()).collect()).await;
    Ok(rows.into_iter().zip(sizes).map(|(row, size)| with_size(row, size)).collect())
}

async fn show(host: &Arc<Host>, row: WorkspaceRow) -> Workspace {
    let sizes = sizes::of(host, vec![row.id.clone()]).await;
    with_size(row, sizes.into_iter().next().flatten())
}

fn with_size(row: WorkspaceRow, size: Option<Size>) -> Workspace {
    Workspace {
        id: row.id,
        created_at: row.created_at,
        labels: row.labels,
        session_count: row.sessions,
        active_session_count: row.active_sessions,
        size_bytes: size.map(|size| size.bytes),
        size_counted_at: size.map(|size| size.counted_at),
        quota_mb: row.quota_mb,
    }
}

/// Removes a workspace that no session has. The end of its row is the end of it: until then every fault
/// leaves it as it was.
pub(crate) async fn delete(host: &Arc<Host>, id: &WorkspaceId) -> Result<(), Error> {
    check_policy(host)?;
    let _gate = host.workspace_gate.lock().await;
    check_removable(id, host.db.removable(id.clone()).await?)?;
    let which = id.clone();
    let withdrawn = on_disk(host, move |workspaces| workspaces.withdraw(&which)).await;
    let removed = match withdrawn {
        Ok(_there_was_one) => remove_row(host, id).await,
        Err(error) => Err(Error::internal("removing a workspace", error)),
    };
    let which = id.clone();
    if let Err(error) = removed {
        if let Err(stuck) = on_disk(host, move |workspaces| workspaces.restore(&which)).await {
            tracing::error!(workspace = %id, error = %stuck, "workspace_not_restored_yet");
        }
        return Err(error);
    }
    host.sizes.forget(id);
    // What can't be thrown away now is by `reconcile`.
    match on_disk(host, move |workspaces| workspaces.discard(&which)).await {
        Ok(_) => host.trash_filled.notify_one(),
        Err(error) => tracing::warn!(workspace = %id, %error, "workspace_not_thrown_away_yet"),
    }
    Ok(())
}

async fn remove_row(host: &Arc<Host>, id: &WorkspaceId) -> Result<(), Error> {
    point("workspace: remove row")?;
    check_removable(id, host.db.remove_workspace(id.clone()).await?)
}

fn check_removable(id: &WorkspaceId, removable: Removable) -> Result<(), Error> {
    match removable {
        Removable::Yes => Ok(()),
        Removable::InUse => Err(Error::WorkspaceInUse(id.clone())),
        Removable::NotFound => Err(Error::WorkspaceNotFound(id.clone())),
    }
}

/// Makes rows and directories agree, whatever was cut off in the middle. No directory that has entries is
/// removed here but one whose delete is over.
///
/// | row | directory | withdrawn | then |
/// |---|---|---|---|
/// | yes | no | yes | the delete was cut off: it has its name again |
/// | yes | no | no | made again, empty |
/// | no | yes | – | adopted: a row is made |
/// | – | – | yes, and one of the cases above does not need it | its delete is over: thrown away |
pub(crate) async fn reconcile(host: &Arc<Host>) -> Result<(), Error> {
    let _gate = host.workspace_gate.lock().await;
    let failed = |error| Error::internal("looking at workspaces", error);
    let (there, withdrawn) = on_disk(host, |workspaces| {
        workspaces.sweep()?;
        Ok((workspaces.list()?, workspaces.withdrawn()?))
    })
    .await
    .map_err(failed)?;
    for id in withdrawn {
        reconcile_withdrawn(host, id).await?;
    }
    for id in there {
        if !host.db.has_workspace(id.clone()).await? {
            host.db.add_workspace(id.clone(), None).await?;
            tracing::warn!(workspace = %id, "workspace_adopted");
        }
    }
    for row in host.db.workspaces().await? {
        make_again(host, row.id).await;
    }
    Ok(())
}

async fn reconcile_withdrawn(host: &Arc<Host>, id: WorkspaceId) -> Result<(), Error> {
    let is_meant = host.db.has_workspace(id.clone()).await?;
    let which = id.clone();
    let done = on_disk(host, move |workspaces| {
        let is_restored = is_meant && workspaces.restore(&which)?;
        if !is_restored {
            workspaces.discard(&which)?;
        }
        Ok(is_restored)
    });
    match done.await {
        Ok(is_restored) => {
            tracing::warn!(workspace = %id, is_restored, "workspace_delete_was_cut_off");
            host.trash_filled.notify_one();
        }
        Err(error) => tracing::error!(workspace = %id, %error, "workspace_not_settled"),
    }
    Ok(())
}

async fn make_again(host: &Arc<Host>, id: WorkspaceId) {
    let (which, durability) = (id.clone(), host.config.durability);
    let made = on_disk(host, move |workspaces| {
        let is_missing = !workspaces.exists(&which)?;
        if is_missing {
            workspaces.create(&which, durability)?;
        }
        Ok(is_missing)
    });
    match made.await {
        Ok(true) => tracing::error!(workspace = %id, "workspace_was_missing_and_is_made_again"),
        Ok(false) => {}
        Err(error) => tracing::error!(workspace = %id, %error, "workspace_not_settled"),
    }
}

/// The directory of a workspace whose file system is to be synced after a change; `None` where the
/// configuration asks for none.
pub(crate) async fn to_sync(host: &Arc<Host>, id: WorkspaceId) -> Result<Option<OwnedFd>, Error> {
    match host.config.durability {
        Durability::Rename => Ok(None),
        Durability::Fsync => {
            let opened = on_disk(host, move |workspaces| workspaces.open_dir(&id)).await;
            opened.map(Some).map_err(|error| Error::internal("opening a workspace", error))
        }
    }
}

/// Limits a workspace that exists to so many MiB; the caller holds the gate.
async fn set_quota(host: &Arc<Host>, id: &WorkspaceId, mb: u64) -> Result<(), Error> {
    let row = row(host, id).await?;
    let sessions = if row.active_sessions > 0 { Sessions::Some } else { Sessions::None };
    let (with, which) = (Arc::clone(host), id.clone());
    let limited = tokio::task::spawn_blocking(move || {
        let mechanism = with.disks.mechanism();
        with.workspaces.limit(&which, mb << 20, mechanism, sessions)
    });
    let limited = limited.await.map_err(|error| Error::internal("a blocking task", error))?;
    host.trash_filled.notify_one();
    limited.map_err(|fault| match fault {
        LimitFault::InUse => Error::WorkspaceInUse(id.clone()),
        LimitFault::TooSmall(bytes) => Error::NoSpace(format!(
            "`quota_mb` is {mb}, and workspace {id} has {bytes} bytes in it"
        )),
        LimitFault::Unavailable => Error::InvalidRequest(format!(
            "`quota_mb` is not available on this host; {}",
            host.disks.how()
        )),
        LimitFault::Io(error) => Error::internal("limiting a workspace", error),
    })
}

/// The entries of one directory.
pub(crate) async fn list_dir(
    host: &Arc<Host>,
    acting: Acting,
    path: &[u8],
) -> Result<Vec<DirEntry>, Error> {
    must_exist(host, &acting.id).await?;
    let path_in = path.to_owned();
    let list = move |workspaces: &Workspaces| workspaces.list_dir(&acting, &path_in);
    workspace_call(host, shown(path), list).await
}

/// Who acts in a workspace: there is no passwd that would have others than these two.
///
/// # Errors
/// [`Error::InvalidRequest`] for a user of a session.
pub(crate) fn who(user: FileUser) -> Result<Who, Error> {
    match user {
        FileUser::Session => Ok(Who::Sandbox),
        FileUser::Root => Ok(Who::Root),
        FileUser::Ids { .. } => Err(not_without_session()),
    }
}

pub(crate) fn not_without_session() -> Error {
    Error::InvalidRequest("`user` of a workspace's files must be `sandbox` or `root`".into())
}

/// [`Error::WorkspaceNotFound`] where there is none.
pub(crate) async fn must_exist(host: &Arc<Host>, id: &WorkspaceId) -> Result<(), Error> {
    check_policy(host)?;
    if host.db.has_workspace(id.clone()).await? {
        Ok(())
    } else {
        Err(Error::WorkspaceNotFound(id.clone()))
    }
}

/// Runs a call that works on files of a workspace; `path` is for messages.
pub(crate) async fn workspace_call<T: Send + 'static>(
    host: &Arc<Host>,
    path: impl ToString,
    call: impl FnOnce(&Workspaces) -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, Error> {
    let workspaces = Arc::clone(&host.workspaces);
    let path = path.to_string();
    let done = tokio::task::spawn_blocking(move || call(&workspaces)).await;
    let done = done.map_err(|error| Error::internal("a blocking task", error))?;
    done.map_err(|error| file_error(path, error))
}

/// A fault of the caller's is told with the path; one of ours is not.
pub(crate) fn file_error(path: String, error: WorkspaceError) -> Error {
    match error {
        WorkspaceError::File(fault) => Error::File { path, fault },
        WorkspaceError::Gone(id) => Error::WorkspaceNotFound(id),
        WorkspaceError::Io(error) if error.kind() == io::ErrorKind::StorageFull => {
            Error::File { path, fault: FileFault::NoSpace }
        }
        WorkspaceError::Io(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Error::Overloaded("the workspace is being copied for its new quota".into())
        }
        WorkspaceError::Io(error) => Error::internal("a file of a workspace", error),
    }
}

pub(crate) async fn on_disk<T: Send + 'static>(
    host: &Arc<Host>,
    call: impl FnOnce(&Workspaces) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let workspaces = Arc::clone(&host.workspaces);
    tokio::task::spawn_blocking(move || call(&workspaces)).await.map_err(io::Error::other)?
}

fn point(name: &'static str) -> Result<(), Error> {
    fault::point(name).map_err(|error| Error::internal("test", error))
}
