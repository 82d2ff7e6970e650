//! Files of a session or a workspace: opened, and what is done to their names.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use sandkasten_protocol::{Expect, FileDone, FileOp, FileUser, Parents, RunUser};
use sandkasten_types::WorkspaceId;
use sandkasten_types::files::DirEntry;

use crate::engine::Engine;
use crate::error::Error;
use crate::filecall::{FileRead, LastLink, Target};
use crate::files;
use crate::files::{CreateFile, FileWriter};
use crate::files::{Place, ask, check_path, check_regular, session_gone, shown};
use crate::host::Host;
use crate::raw::{Etag, OpenFile, Renewal, absolute, described};
use crate::session::{BoxUser, Handle, run_user};
use crate::worker::Worker;
use crate::worker::sync_tree;
use crate::workspace::{Acting, Workspaces};
use crate::workspaces::{must_exist, not_without_session, to_sync, who, workspace_call};
use crate::{worker, workspaces};
use sandkasten_protocol::work::Job;

impl Engine {
    /// Opens a file to be written; nothing is seen of it before [`FileWriter::commit`].
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn create_file(
        &self,
        place: Place,
        request: CreateFile,
    ) -> Result<FileWriter, Error> {
        let host = &self.0.host;
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                files::create_in_session(&session, request, host.config.durability).await
            }
            Place::Workspace(id) => files::create_in_workspace(host, &id, request).await,
        }
    }

    /// Writes a file whose bytes are all there, whole or not at all.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn put_file(
        &self,
        place: Place,
        request: CreateFile,
        pieces: Vec<Bytes>,
    ) -> Result<Etag, Error> {
        let host = &self.0.host;
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                files::put_in_session(&session, request, pieces, host.config.durability).await
            }
            Place::Workspace(id) => files::put_in_workspace(host, &id, request, pieces).await,
        }
    }

    /// Reads a regular file: its first `max_bytes`, the configured cap where absent.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn read_file(
        &self,
        place: Place,
        path: &[u8],
        user: FileUser,
        max_bytes: Option<u64>,
    ) -> Result<FileRead, Error> {
        let host = &self.0.host;
        let max_bytes = files::read_cap(max_bytes, host.config.max_read_bytes)?;
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                files::read_in_session(&session, path, user, max_bytes).await
            }
            Place::Workspace(id) => {
                let acting = Acting { id, who: workspaces::who(user)? };
                files::read_in_workspace(host, acting, path, max_bytes).await
            }
        }
    }

    /// Starts a job on a tree of files.
    ///
    /// # Errors
    /// Those of the place; those of the job come from the worker.
    pub async fn work(&self, place: Place, job: Job, user: FileUser) -> Result<Worker, Error> {
        let job = worker::checked(job).await?;
        let (host, changes) = (&self.0.host, worker::changes_files(&job));
        let (worker, workspace) = match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                let workspace = session.spec.workspace.clone();
                (worker::in_session(session, job, user).await?, workspace)
            }
            Place::Workspace(id) => {
                let acting = Acting { id: id.clone(), who: workspaces::who(user)? };
                (worker::in_workspace(host, acting, job).await?, Some(id))
            }
        };
        match workspace {
            Some(id) if changes => Ok(worker.synced(workspaces::to_sync(host, id).await?)),
            _ => Ok(worker),
        }
    }

    /// The entries of one directory of a workspace, by name.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotFound`], [`Error::File`].
    pub async fn list_workspace_dir(
        &self,
        id: &WorkspaceId,
        path: &[u8],
        user: FileUser,
    ) -> Result<Vec<DirEntry>, Error> {
        let acting = Acting { id: id.clone(), who: workspaces::who(user)? };
        workspaces::list_dir(&self.0.host, acting, path).await
    }

    /// Who a call on files is asked to act as: see [`crate::session`]'s rule for users.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] where there is no such user, or, in a workspace, for anybody but the
    /// session user and root; those of the session.
    pub async fn file_user(&self, place: &Place, asked: Option<&str>) -> Result<FileUser, Error> {
        let Some(name) = asked.filter(|name| !name.is_empty()) else {
            return Ok(FileUser::Session);
        };
        let id = match place {
            Place::Session(id) => id,
            // Whose passwd would it be?
            Place::Workspace(_) => return user_without_session(name),
        };
        let session = self.living(id).await?;
        match run_user(Some(name), &session.spec.user)? {
            RunUser::Session => Ok(FileUser::Session),
            RunUser::Root => Ok(FileUser::Root),
            RunUser::Named(name) => {
                let op = FileOp::FindUser { name };
                match session_call(&session, &[], op).await? {
                    (FileDone::User { uid, gid }, _) => Ok(FileUser::Ids { uid, gid }),
                    _ => Err(Error::Internal("init found no ids of a user".into())),
                }
            }
        }
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn open_file(
        &self,
        place: Place,
        path: &[u8],
        user: FileUser,
    ) -> Result<OpenFile, Error> {
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                let op = FileOp::Read { path: path.to_vec(), user };
                let (FileDone::Opened, Some(file)) = session_call(&session, &[path], op).await?
                else {
                    return Err(Error::Internal("init answered a read without a file".into()));
                };
                let file = File::from(file);
                check_regular(&file, &shown(path))?;
                let renewal = Renewal::new(session.commands.clone());
                OpenFile::new(file.into(), shown(path), Some(renewal))
            }
            Place::Workspace(id) => {
                let asked = path.to_vec();
                let open = move |all: &Workspaces, acting: &_| all.open_file(acting, &asked);
                let file =
                    in_workspace(self.host(), Acting { id, who: who(user)? }, path, open).await?;
                OpenFile::new(file, shown(path), None)
            }
        }
    }

    /// What is at a path.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn stat_file(
        &self,
        place: Place,
        path: &[u8],
        user: FileUser,
        last: LastLink,
    ) -> Result<DirEntry, Error> {
        let follow = last == LastLink::Followed;
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                let op = FileOp::Stat { path: path.to_vec(), user, follow };
                let (FileDone::Found(meta), _) = session_call(&session, &[path], op).await? else {
                    return Err(Error::Internal("init answered a stat with something else".into()));
                };
                Ok(described(meta, &absolute(path)))
            }
            Place::Workspace(id) => {
                let asked = path.to_vec();
                let stat = move |all: &Workspaces, acting: &_| all.stat(acting, &asked, last);
                let (meta, path) =
                    in_workspace(self.host(), Acting { id, who: who(user)? }, path, stat).await?;
                Ok(described(meta, &path))
            }
        }
    }

    /// Makes a directory; where parents are made, one that is there is fine.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn make_dir(
        &self,
        place: Place,
        path: &[u8],
        user: FileUser,
        (mode, parents): (u32, Parents),
    ) -> Result<(), Error> {
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                let op = FileOp::MakeDir { path: path.to_vec(), user, mode, parents };
                changed_in_session(self.host(), &session, &[path], op).await
            }
            Place::Workspace(id) => {
                let asked = path.to_vec();
                let make =
                    move |all: &Workspaces, acting: &_| all.make_dir(acting, &asked, mode, parents);
                changed_in_workspace(self.host(), Acting { id, who: who(user)? }, path, make).await
            }
        }
    }

    /// Gives a file or directory another name. A link is moved, not followed.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn move_file(
        &self,
        place: Place,
        (from, to): (&[u8], &[u8]),
        user: FileUser,
        target: Target,
    ) -> Result<(), Error> {
        let overwrite = target == Target::MayBeReplaced;
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                let op = FileOp::Move { from: from.to_vec(), to: to.to_vec(), user, overwrite };
                changed_in_session(self.host(), &session, &[from, to], op).await
            }
            Place::Workspace(id) => {
                let (old, new) = (from.to_vec(), to.to_vec());
                let rename =
                    move |all: &Workspaces, acting: &_| all.move_file(acting, (&old, &new), target);
                changed_in_workspace(self.host(), Acting { id, who: who(user)? }, from, rename)
                    .await
            }
        }
    }

    /// Sets the mode of what a path leads to.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn chmod_file(
        &self,
        place: Place,
        path: &[u8],
        user: FileUser,
        mode: u32,
    ) -> Result<(), Error> {
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                let op = FileOp::Chmod { path: path.to_vec(), user, mode };
                changed_in_session(self.host(), &session, &[path], op).await
            }
            Place::Workspace(id) => {
                let asked = path.to_vec();
                let chmod = move |all: &Workspaces, acting: &_| all.chmod(acting, &asked, mode);
                changed_in_workspace(self.host(), Acting { id, who: who(user)? }, path, chmod).await
            }
        }
    }

    /// Removes a file, a link or an empty directory.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn remove_file(
        &self,
        place: Place,
        path: &[u8],
        user: FileUser,
        expect: Expect,
    ) -> Result<(), Error> {
        match place {
            Place::Session(id) => {
                let session = self.living(&id).await?;
                let op = FileOp::Remove { path: path.to_vec(), user, expect };
                changed_in_session(self.host(), &session, &[path], op).await
            }
            Place::Workspace(id) => {
                let asked = path.to_vec();
                let remove =
                    move |all: &Workspaces, acting: &_| all.remove_file(acting, &asked, &expect);
                changed_in_workspace(self.host(), Acting { id, who: who(user)? }, path, remove)
                    .await
            }
        }
    }
}

/// The two users that every box has, by name or uid.
fn user_without_session(name: &str) -> Result<FileUser, Error> {
    match run_user(Some(name), &BoxUser::Sandbox)? {
        RunUser::Session => Ok(FileUser::Session),
        RunUser::Root => Ok(FileUser::Root),
        RunUser::Named(_) => Err(not_without_session()),
    }
}

async fn session_call(
    session: &Handle,
    paths: &[&[u8]],
    op: FileOp,
) -> Result<(FileDone, Option<OwnedFd>), Error> {
    paths.iter().try_for_each(|path| check_path(path))?;
    let reply = ask(&session.commands, op).await;
    reply.map_err(|error| session_gone(session, error))
}

/// An operation that changes names or modes. Where the workspace is to survive a power cut it is on disk
/// before it is answered.
async fn changed_in_session(
    host: &Arc<Host>,
    session: &Handle,
    paths: &[&[u8]],
    op: FileOp,
) -> Result<(), Error> {
    session_call(session, paths, op).await?;
    match session.spec.workspace.clone() {
        Some(id) => sync(host, id).await,
        None => Ok(()),
    }
}

/// As [`changed_in_session`].
async fn changed_in_workspace(
    host: &Arc<Host>,
    acting: Acting,
    path: &[u8],
    change: impl FnOnce(&Workspaces, &Acting) -> Result<(), crate::workspace::WorkspaceError>
    + Send
    + 'static,
) -> Result<(), Error> {
    let id = acting.id.clone();
    in_workspace(host, acting, path, change).await?;
    sync(host, id).await
}

async fn sync(host: &Arc<Host>, id: WorkspaceId) -> Result<(), Error> {
    match to_sync(host, id).await? {
        Some(dir) => sync_tree(dir).await,
        None => Ok(()),
    }
}

async fn in_workspace<T: Send + 'static>(
    host: &Arc<Host>,
    acting: Acting,
    path: &[u8],
    call: impl FnOnce(&Workspaces, &Acting) -> Result<T, crate::workspace::WorkspaceError>
    + Send
    + 'static,
) -> Result<T, Error> {
    must_exist(host, &acting.id).await?;
    workspace_call(host, shown(path), move |workspaces| call(workspaces, &acting)).await
}
