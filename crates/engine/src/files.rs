//! Files as callers see them, in a session or in a workspace.
//!
//! In a session, init opens them with the user's rights and hands the descriptor over; such a
//! descriptor is hostile too: it must be a regular file, and sizes are never believed. In a workspace
//! the daemon opens them itself, beneath its directory.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{FileType, PROC_SUPER_MAGIC, fstat, fstatfs};
use sandkasten_jail::path::Beneath;
use sandkasten_protocol::{Expect, FileDone, FileOp, FileUser, Parents};
use sandkasten_types::limits::{NAME_BYTES_MAX, PATH_BYTES_MAX, READ_BYTES_MAX};
use sandkasten_types::{SessionId, WorkspaceId};
use tokio::sync::{mpsc, oneshot};

use crate::config::Durability;
use crate::error::Error;
use crate::error::FileFault;
use crate::filecall::FileRead;
use crate::host::Host;
use crate::raw::{Etag, Renewal};
use crate::session::{Command, FileReply, Handle};
use crate::workspace::{Acting, NewFile, WorkspaceError, Workspaces, WriteOptions, sync_up};
use crate::workspaces::{self, file_error, who, workspace_call};
use sandkasten_files::identity;

/// A file of so many bytes is written in one step when all of it is there.
pub const SMALL_BYTES_MAX: usize = sandkasten_protocol::DATA_BYTES_MAX / 2;

/// Where a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Session(SessionId),
    Workspace(WorkspaceId),
}

/// A file to be written.
#[derive(Debug, Clone)]
pub struct CreateFile {
    pub path: Vec<u8>,
    /// Whose rights it is written with.
    pub user: FileUser,
    /// Permission bits; an existing file keeps its own where absent.
    pub mode: Option<u32>,
    pub parents: Parents,
    /// What must be there already, at the begin and at the commit.
    pub expect: Expect,
}

/// A file being written. Nobody sees it before [`commit`](Self::commit); dropping it removes it.
#[derive(Debug)]
#[must_use = "dropping it throws the file away"]
pub struct FileWriter {
    /// As asked for, for messages.
    asked: String,
    path: Vec<u8>,
    /// `None` only while a write is under way, and after one that was not waited for.
    inside: Option<Inside>,
}

#[derive(Debug)]
enum Inside {
    Session(SessionFile),
    Workspace(Box<NewFile>),
}

/// A temporary file that init made.
#[derive(Debug)]
struct SessionFile {
    file: File,
    token: u32,
    durability: Durability,
    commands: mpsc::UnboundedSender<Command>,
    renewal: Renewal,
    committed: bool,
}

impl FileWriter {
    /// The path of the file to be: in a session absolute, in a workspace relative to it.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Appends `data`. Once its future is dropped the file can't be written on.
    ///
    /// # Errors
    /// [`Error::File`] where there is no space.
    pub async fn write(&mut self, data: Bytes) -> Result<(), Error> {
        self.write_all(vec![data]).await
    }

    /// Appends all of `pieces` in one go.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_all(&mut self, pieces: Vec<Bytes>) -> Result<(), Error> {
        let path = self.asked.clone();
        let mut inside = self.inside.take().ok_or_else(given_up)?;
        let written = tokio::task::spawn_blocking(move || {
            let done = pieces.iter().try_for_each(|data| inside.write(data, &path));
            (inside, done)
        });
        let (inside, done) =
            written.await.map_err(|error| Error::internal("writing a file", error))?;
        self.inside = Some(inside);
        done
    }

    /// Puts the file in its place, at once and whole.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn commit(mut self) -> Result<Etag, Error> {
        let path = std::mem::take(&mut self.asked);
        match self.inside.take().ok_or_else(given_up)? {
            Inside::Session(file) => file.commit(path).await,
            Inside::Workspace(file) => {
                let done = tokio::task::spawn_blocking(move || file.commit()).await;
                let done = done.map_err(|error| Error::internal("writing a file", error))?;
                done.map(Etag).map_err(|error| file_error(path, error))
            }
        }
    }
}

fn given_up() -> Error {
    Error::Internal("a file was written on after a write that was given up".into())
}

impl Inside {
    fn write(&mut self, data: &[u8], path: &str) -> Result<(), Error> {
        match self {
            Self::Session(file) => {
                file.renewal.use_it();
                let written = file.file.write_all(data);
                let failed = |error| WorkspaceError::from(no_space(error));
                written.map_err(|error| file_error(path.to_owned(), failed(error)))
            }
            Self::Workspace(file) => {
                file.write(data).map_err(|error| file_error(path.to_owned(), error))
            }
        }
    }
}

/// A quota and a limit on file sizes are a want of space as well.
fn no_space(error: std::io::Error) -> std::io::Error {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    if matches!(error.kind(), QuotaExceeded | FileTooLarge) { StorageFull.into() } else { error }
}

impl SessionFile {
    async fn commit(mut self, path: String) -> Result<Etag, Error> {
        let dir = match self.durability {
            Durability::Rename => None,
            Durability::Fsync => Some(self.sync(&path).await?),
        };
        let op = FileOp::Commit { token: self.token };
        let answer = ask(&self.commands, op).await;
        // One that was not even asked for is still to be aborted.
        self.committed = !matches!(answer, Err(Error::Overloaded(_)));
        match answer {
            Ok((FileDone::Done, _)) => {
                if let Some(dir) = dir {
                    sync_names(dir, path).await?;
                }
                let stat = fstat(&self.file);
                let stat = stat.map_err(|error| Error::internal("a file of a session", error))?;
                Ok(Etag(identity(&stat)))
            }
            Ok(_) => Err(Error::Internal("init answered a commit with a file".into())),
            // init names no path for a commit.
            Err(Error::File { fault, .. }) => Err(Error::File { path, fault }),
            Err(error) => Err(error),
        }
    }
}

impl SessionFile {
    /// Puts what was written on disk, before it gets its name. Gives the directory that the name will be in.
    async fn sync(&self, path: &str) -> Result<OwnedFd, Error> {
        let (done, dir) = ask(&self.commands, FileOp::OpenDir { token: self.token }).await?;
        let (FileDone::Opened, Some(dir)) = (done, dir) else {
            return Err(Error::Internal("init answered without a directory".into()));
        };
        let file = self.file.try_clone().map_err(|error| Error::internal("a file", error))?;
        let synced = tokio::task::spawn_blocking(move || file.sync_all()).await;
        let synced = synced.map_err(|error| Error::internal("writing a file", error))?;
        synced.map_err(|error| file_error(path.into(), WorkspaceError::from(no_space(error))))?;
        Ok(dir)
    }
}

/// Puts the names on disk that lead to a file of a session.
async fn sync_names(dir: OwnedFd, path: String) -> Result<(), Error> {
    let synced = tokio::task::spawn_blocking(move || sync_up(&Beneath::from_fd(dir), None)).await;
    let synced = synced.map_err(|error| Error::internal("writing a file", error))?;
    synced.map_err(|error| file_error(path, error))
}

impl Drop for SessionFile {
    fn drop(&mut self) {
        if !self.committed {
            // A session that is gone has no file either.
            drop(self.commands.send(Command::AbortFile { token: self.token }));
        }
    }
}

/// Begins a file in a session.
pub(crate) async fn create_in_session(
    session: &Handle,
    request: CreateFile,
    durability: Durability,
) -> Result<FileWriter, Error> {
    let CreateFile { path: asked, user, mode, parents, expect } = request;
    check_path(&asked)?;
    let shown = shown(&asked);
    let op = FileOp::Create { path: asked, user, mode, parents, expect };
    let reply = ask(&session.commands, op).await;
    let reply = reply.map_err(|error| session_gone(session, error))?;
    let (FileDone::Created { token, path }, Some(descriptor)) = reply else {
        return Err(Error::Internal("init answered a create without a file".into()));
    };
    let commands = session.commands.clone();
    let renewal = Renewal::new(commands.clone());
    let file = File::from(descriptor);
    let file = SessionFile { file, token, durability, commands, renewal, committed: false };
    check_regular(&file.file, &shown)?;
    Ok(FileWriter { asked: shown, path, inside: Some(Inside::Session(file)) })
}

/// Writes a file of a session. A small one goes to init with the call.
pub(crate) async fn put_in_session(
    session: &Handle,
    request: CreateFile,
    pieces: Vec<Bytes>,
    durability: Durability,
) -> Result<Etag, Error> {
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    if bytes > SMALL_BYTES_MAX || durability == Durability::Fsync {
        let mut file = create_in_session(session, request, durability).await?;
        file.write_all(pieces).await?;
        return file.commit().await;
    }
    let CreateFile { path, user, mode, parents, expect } = request;
    check_path(&path)?;
    let op = FileOp::Put { path, user, mode, parents, expect, data: pieces.concat() };
    let reply = ask(&session.commands, op).await;
    match reply.map_err(|error| session_gone(session, error))? {
        (FileDone::Written(identity), _) => Ok(Etag(identity)),
        _ => Err(Error::Internal("init answered a put with something else".into())),
    }
}

/// Reads a file of a session.
pub(crate) async fn read_in_session(
    session: &Handle,
    path: &[u8],
    user: FileUser,
    max_bytes: u64,
) -> Result<FileRead, Error> {
    check_path(path)?;
    let op = FileOp::Read { path: path.to_vec(), user };
    let reply = ask(&session.commands, op).await;
    let reply = reply.map_err(|error| session_gone(session, error))?;
    let (FileDone::Opened, Some(descriptor)) = reply else {
        return Err(Error::Internal("init answered a read without a file".into()));
    };
    let path = shown(path);
    let read = tokio::task::spawn_blocking(move || read(descriptor, &path, max_bytes)).await;
    read.map_err(|error| Error::internal("reading a file", error))?
}

/// The path as messages have it, and what begins a file in a workspace, which is there by then.
async fn begun_in_workspace(
    host: &Arc<Host>,
    id: &WorkspaceId,
    request: CreateFile,
) -> Result<(String, impl FnOnce(&Workspaces) -> Result<NewFile, WorkspaceError> + use<>), Error> {
    workspaces::check_policy(host)?;
    {
        let _gate = host.workspace_gate.lock().await;
        workspaces::make(host, id).await?;
    }
    let CreateFile { path, mode, parents, expect, user } = request;
    let acting = Acting { id: id.clone(), who: who(user)? };
    let options = WriteOptions { mode, parents, durability: host.config.durability, expect };
    let shown = shown(&path);
    Ok((shown, move |workspaces: &Workspaces| workspaces.create_file(&acting, &path, options)))
}

/// Begins a file in a workspace, which is made where there is none.
pub(crate) async fn create_in_workspace(
    host: &Arc<Host>,
    id: &WorkspaceId,
    request: CreateFile,
) -> Result<FileWriter, Error> {
    let (asked, begin) = begun_in_workspace(host, id, request).await?;
    let file = workspace_call(host, &asked, begin).await?;
    Ok(FileWriter {
        path: file.path().to_owned(),
        asked,
        inside: Some(Inside::Workspace(Box::new(file))),
    })
}

/// Writes a file of a workspace, which is made where there is none.
pub(crate) async fn put_in_workspace(
    host: &Arc<Host>,
    id: &WorkspaceId,
    request: CreateFile,
    pieces: Vec<Bytes>,
) -> Result<Etag, Error> {
    let (shown, begin) = begun_in_workspace(host, id, request).await?;
    let put = move |workspaces: &Workspaces| {
        let mut file = begin(workspaces)?;
        pieces.iter().try_for_each(|piece| file.write(piece))?;
        file.commit()
    };
    workspace_call(host, shown, put).await.map(Etag)
}

/// Reads a file of a workspace.
pub(crate) async fn read_in_workspace(
    host: &Arc<Host>,
    acting: Acting,
    path: &[u8],
    max_bytes: u64,
) -> Result<FileRead, Error> {
    workspaces::must_exist(host, &acting.id).await?;
    let path_in = path.to_owned();
    let read = move |workspaces: &Workspaces| workspaces.read_file(&acting, &path_in, max_bytes);
    workspace_call(host, shown(path), read).await
}

/// A path as messages have it.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// How much of a file a request may have.
pub(crate) fn read_cap(asked: Option<u64>, configured: u64) -> Result<u64, Error> {
    match asked {
        None => Ok(configured),
        Some(bytes) if bytes <= READ_BYTES_MAX => Ok(bytes),
        Some(bytes) => Err(Error::InvalidRequest(format!(
            "`max_bytes` is {bytes}; the limit is {READ_BYTES_MAX}"
        ))),
    }
}

pub(crate) async fn ask(commands: &mpsc::UnboundedSender<Command>, op: FileOp) -> FileReply {
    let (reply, answered) = oneshot::channel();
    if commands.send(Command::File { op, reply }).is_err() {
        return Err(Error::Draining);
    }
    answered.await.unwrap_or(Err(Error::Draining))
}

/// A session whose task has gone has ended, unless the daemon stops.
pub(crate) fn session_gone(session: &Handle, error: Error) -> Error {
    if matches!(error, Error::Draining) { session.ended().unwrap_or(error) } else { error }
}

/// What no path in a session can be, said before init is asked. The kernel has the last word.
pub(crate) fn check_path(path: &[u8]) -> Result<(), Error> {
    let invalid = |why: String| {
        let path = shown(path).chars().take(80).collect();
        Err(Error::File { path, fault: FileFault::InvalidPath(why) })
    };
    if path.is_empty() {
        return invalid("it is empty".into());
    }
    if path.contains(&0) {
        return invalid("it has a NUL".into());
    }
    if path.len() > PATH_BYTES_MAX {
        return invalid(format!("it is {} bytes; the limit is {PATH_BYTES_MAX}", path.len()));
    }
    let mut lengths = path.split(|b| *b == b'/').map(<[u8]>::len);
    match lengths.find(|bytes| *bytes > NAME_BYTES_MAX) {
        Some(bytes) => invalid(format!("a name is {bytes} bytes; the limit is {NAME_BYTES_MAX}")),
        None => Ok(()),
    }
}

pub(crate) fn check_regular(file: &File, path: &str) -> Result<(), Error> {
    let stat = fstat(file).map_err(|error| Error::internal("a file of a session", error))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    // What procfs shows depends on who reads, at each read, and the daemon may see more than who
    // opened it.
    let on = fstatfs(file).map_err(|error| Error::internal("a file of a session", error))?;
    if kind == FileType::RegularFile && on.f_type != PROC_SUPER_MAGIC {
        return Ok(());
    }
    let is_dir = kind == FileType::Directory;
    fault(path, if is_dir { FileFault::IsADirectory } else { FileFault::NotAFile })
}

fn fault<T>(path: &str, fault: FileFault) -> Result<T, Error> {
    Err(Error::File { path: path.to_owned(), fault })
}

/// The first `max_bytes`, whatever size the file says it has: it may grow and shrink meanwhile.
fn read(descriptor: OwnedFd, path: &str, max_bytes: u64) -> Result<FileRead, Error> {
    let mut file = File::from(descriptor);
    check_regular(&file, path)?;
    let failed = |error| Error::internal("a file of a session", error);
    let mut bytes = Vec::new();
    (&mut file).take(max_bytes).read_to_end(&mut bytes).map_err(failed)?;
    let read = bytes.len() as u64;
    let more = file.read(&mut [0]).map_err(failed)? > 0;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    Ok(FileRead { bytes, size: size.max(read), truncated: more })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn paths_that_can_be_none_are_refused() {
        let long = "a/".repeat(2049);
        for bad in ["", "a\0b", &long, &"n".repeat(256)] {
            let error = check_path(bad.as_bytes()).unwrap_err();
            assert!(matches!(error, Error::File { fault: FileFault::InvalidPath(_), .. }));
        }
        for good in ["a", "/", "../x", &"n".repeat(255), &"a/".repeat(2000)] {
            check_path(good.as_bytes()).unwrap();
        }
    }

    #[test]
    fn a_read_is_cut_at_its_cap_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"0123456789").unwrap();
        let open = || OwnedFd::from(File::open(&path).unwrap());
        let whole = FileRead { bytes: b"0123456789".to_vec(), size: 10, truncated: false };
        assert_eq!(read(open(), "f", 10).unwrap(), whole);
        let cut = FileRead { bytes: b"0123".to_vec(), size: 10, truncated: true };
        assert_eq!(read(open(), "f", 4).unwrap(), cut);
        let none = FileRead { bytes: Vec::new(), size: 10, truncated: true };
        assert_eq!(read(open(), "f", 0).unwrap(), none);
        let proc = OwnedFd::from(File::open("/proc/version").unwrap());
        let error = read(proc, "v", 4).unwrap_err();
        assert!(matches!(error, Error::File { fault: FileFault::NotAFile, .. }));
        let dir = OwnedFd::from(File::open(dir.path()).unwrap());
        let error = read(dir, "d", 4).unwrap_err();
        assert!(matches!(error, Error::File { fault: FileFault::IsADirectory, .. }));
    }
}
