//! Workspaces as the engine's callers see them: rows and directories together.
//!
//! The gate of the host is held from the look at the rows to the change of the directory, so that a
//! session never gets a directory that is being removed.

use std::io;
use std::sync::Arc;

use sandkasten_types::files::DirEntry;
use sandkasten_types::workspace::Workspace;
use sandkasten_types::{SessionId, WorkspaceId};

use crate::config::WorkspacePolicy;
use crate::db::WorkspaceRow;
use crate::error::{Error, FileFault};
use crate::files::shown;
use crate::host::Host;
use crate::workspace::{WorkspaceError, Workspaces};

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
    let added = host.db.add_workspace(id.clone()).await?;
    let which = id.clone();
    let made = on_disk(host, move |workspaces| workspaces.create(&which)).await;
    if let Err(error) = made {
        if added {
            drop(host.db.remove_workspace(id.clone()).await);
        }
        return Err(Error::internal("making a workspace", error));
    }
    Ok(added)
}

/// Takes back what a failed create made, unless somebody uses it by now.
pub(crate) async fn unmake(host: &Arc<Host>, id: &WorkspaceId, session: &SessionId) {
    let _gate = host.workspace_gate.lock().await;
    let which = id.clone();
    let entries =
        workspace_call(host, id, move |workspaces| workspaces.list_dir(&which, b"")).await;
    let is_empty = entries.is_ok_and(|entries| entries.is_empty());
    let only_ours = match host.db.workspaces().await {
        Ok(rows) => rows.iter().any(|row| row.id == *id && row.sessions == 1),
        Err(_) => false,
    };
    if !is_empty || !only_ours {
        return;
    }
    tracing::debug!(session = %session, workspace = %id, "workspace_unmade");
    if host.db.drop_workspace(id.clone()).await.is_ok() {
        let which = id.clone();
        drop(on_disk(host, move |workspaces| workspaces.remove(&which)).await);
        host.trash_filled.notify_one();
    }
}

/// All workspaces, by id.
pub(crate) async fn list(host: &Arc<Host>) -> Result<Vec<Workspace>, Error> {
    let rows = host.db.workspaces().await?;
    let sized = on_disk(host, move |workspaces| {
        Ok(rows.into_iter().map(|row| described(workspaces, row)).collect())
    });
    sized.await.map_err(|error| Error::internal("listing workspaces", error))
}

fn described(workspaces: &Workspaces, row: WorkspaceRow) -> Workspace {
    Workspace {
        // One that is being removed meanwhile has no size any more.
        size_bytes: workspaces.size_bytes(&row.id).unwrap_or(0),
        id: row.id,
        created_at: row.created_at,
        labels: row.labels,
        session_count: row.sessions,
        active_session_count: row.active_sessions,
    }
}

/// Removes a workspace that no session has.
pub(crate) async fn delete(host: &Arc<Host>, id: &WorkspaceId) -> Result<(), Error> {
    let _gate = host.workspace_gate.lock().await;
    if !host.db.has_workspace(id.clone()).await? {
        return Err(Error::WorkspaceNotFound(id.clone()));
    }
    if !host.db.remove_workspace(id.clone()).await? {
        return Err(Error::WorkspaceInUse(id.clone()));
    }
    let which = id.clone();
    on_disk(host, move |workspaces| workspaces.remove(&which))
        .await
        .map_err(|error| Error::internal("removing a workspace", error))?;
    host.trash_filled.notify_one();
    Ok(())
}

/// The entries of one directory.
pub(crate) async fn list_dir(
    host: &Arc<Host>,
    id: &WorkspaceId,
    path: &[u8],
) -> Result<Vec<DirEntry>, Error> {
    must_exist(host, id).await?;
    let (which, path_in) = (id.clone(), path.to_owned());
    workspace_call(host, shown(path), move |workspaces| workspaces.list_dir(&which, &path_in)).await
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
        WorkspaceError::Io(error) if error.kind() == io::ErrorKind::StorageFull => {
            Error::File { path, fault: FileFault::NoSpace }
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
