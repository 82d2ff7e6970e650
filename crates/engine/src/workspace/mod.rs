//! Workspaces on disk: directories that outlive sessions.
//!
//! Invariant: the daemon itself opens files here while boxes change them at will, so every path is
//! resolved by the kernel beneath the workspace's descriptor (`place`), a file is looked at before it
//! is opened, and it is written beside and put in its place whole (`write`).
//!
//! Owners on disk are the box's own ids; what this API makes belongs to who acts: `sandbox` or root.
//!
//! A workspace goes in three steps, each of which can be taken back until its row is gone:
//! ```text
//!   workspaces/ID ──withdraw──> workspaces/.deleting-ID ── row removed ──discard──> trash/
//!         └──────────restore──────────┘
//! ```

pub(crate) mod limit;
pub(crate) mod list;
pub(crate) mod names;
mod path;
mod place;
mod read;
mod who;
mod write;

#[cfg(test)]
mod test;

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, Gid, Mode, RenameFlags, Uid};
use rustix::io::Errno;
use sandkasten_jail::fault;
use sandkasten_jail::path::Beneath;
use sandkasten_protocol::work::Meta;
use sandkasten_protocol::{Expect, Parents, id};
use sandkasten_types::WorkspaceId;
use sandkasten_types::files::DirEntry;
use sandkasten_types::ids::random_hex;

use self::place::Place;
pub use self::who::Who;
pub use self::write::NewFile;
pub(crate) use self::write::sync_up;
use crate::config::Durability;
use crate::error::FileFault;
use crate::filecall::{FileRead, LastLink, Target};
use crate::trash::Trash;

/// Begins the name of a directory that is to become a workspace. No id begins so.
const NEW: &str = ".new-";
/// Where files are that take the place of others. No id is so.
const STAGING: &str = ".staging";
/// Stands before the id of a workspace that is being deleted.
const WITHDRAWN: &str = ".deleting-";

/// The workspaces of one data directory. All calls block.
#[derive(Debug)]
pub struct Workspaces {
    dir: Beneath,
    trash: Trash,
    /// Where files wait for the step that puts them in their place.
    staging: Arc<Beneath>,
    copying: limit::Copying,
}

/// Why a file operation failed: the caller's fault, or ours.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error(transparent)]
    File(#[from] FileFault),
    /// Deleted since it was looked for.
    #[error("workspace not found: {0}")]
    Gone(WorkspaceId),
    #[error("workspace: {0}")]
    Io(io::Error),
}

/// A workspace, and who acts in it.
#[derive(Debug, Clone)]
pub struct Acting {
    pub id: WorkspaceId,
    pub who: Who,
}

/// How a file is to be written.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Permission bits; absent: those of an existing file, else 0644.
    pub mode: Option<u32>,
    pub parents: Parents,
    pub durability: Durability,
    /// What must be there, at the begin and at the commit.
    pub expect: Expect,
}

impl Workspaces {
    /// Opens `workspaces/` of a data directory, and makes it where it is missing.
    ///
    /// # Errors
    /// Where the directory can't be made or opened.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let data = Beneath::open(data_dir)?;
        let dir = data.create_dirs(Path::new("workspaces"), (0, 0), Mode::RWXU)?;
        let trash = Trash::open(data_dir)?;
        let staging = Arc::new(dir.create_dirs(Path::new(STAGING), (0, 0), Mode::RWXU)?);
        let workspaces = Self { dir, trash, staging, copying: limit::Copying::default() };
        workspaces.sweep_copies()?;
        Ok(workspaces)
    }

    /// Makes the directory, owned by the box's user; one that exists is left as it is.
    ///
    /// # Errors
    /// What mkdir(2) says.
    pub fn create(&self, id: &WorkspaceId, durability: Durability) -> io::Result<()> {
        if self.exists(id)? {
            return Ok(());
        }
        // Beside and renamed: a workspace never has another owner, whenever we are killed.
        let beside = format!("{NEW}{}", random_hex().map_err(io::Error::other)?);
        fault::point("workspace: mkdir")?;
        rustix::fs::mkdirat(&self.dir, &beside, Mode::RWXU)?;
        let made = self.dress(&beside, durability).and_then(|()| {
            fault::point("workspace: rename")?;
            match self.rename(&beside, id.as_str()) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(err) => Err(err.into()),
            }
        });
        if !matches!(made, Ok(true)) {
            // It is ours and empty.
            rustix::fs::unlinkat(&self.dir, &beside, AtFlags::REMOVEDIR)?;
        }
        made?;
        if durability == Durability::Fsync { self.sync() } else { Ok(()) }
    }

    /// Whether there is one of that name.
    ///
    /// # Errors
    /// What statx(2) says.
    pub fn exists(&self, id: &WorkspaceId) -> io::Result<bool> {
        match rustix::fs::statat(&self.dir, id.as_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }

    /// All that exist, sorted.
    ///
    /// # Errors
    /// What reading the directory says.
    pub fn list(&self) -> io::Result<Vec<WorkspaceId>> {
        let mut ids: Vec<WorkspaceId> =
            self.names()?.iter().filter_map(|name| name.parse().ok()).collect();
        ids.sort();
        Ok(ids)
    }

    /// Its top directory, for calls of the API.
    ///
    /// # Errors
    /// `NotFound`, or what open(2) says.
    pub fn open_dir(&self, id: &WorkspaceId) -> io::Result<OwnedFd> {
        self.tree(id).map(Beneath::into_fd)
    }

    /// Moves it to the trash (whoever empties the trash removes it). False where there was none.
    ///
    /// # Errors
    /// What renameat(2) says.
    pub fn remove(&self, id: &WorkspaceId) -> io::Result<bool> {
        self.throw_away(id.as_str())
    }

    /// The first step of a delete: takes its name away, also over a power cut. Nothing is removed.
    /// False where there was none.
    ///
    /// # Errors
    /// What renameat(2) and fsync(2) say; then it has its name still, or [`restore`](Self::restore)
    /// gives it back.
    pub(crate) fn withdraw(&self, id: &WorkspaceId) -> io::Result<bool> {
        // One that was deleted before and not yet thrown away.
        self.discard(id)?;
        fault::point("workspace: withdraw")?;
        match self.rename(id.as_str(), &withdrawn(id)) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(err) => return Err(err.into()),
        }
        fault::point("workspace: withdrawn")?;
        self.sync()?;
        Ok(true)
    }

    /// Takes [`withdraw`](Self::withdraw) back. False where nothing was withdrawn, or another has its name.
    ///
    /// # Errors
    /// What renameat(2) says.
    pub(crate) fn restore(&self, id: &WorkspaceId) -> io::Result<bool> {
        match self.rename(&withdrawn(id), id.as_str()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::EXIST) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }

    /// The last step of a delete: what was withdrawn goes to the trash. False where nothing was.
    ///
    /// # Errors
    /// What renameat(2) says.
    pub(crate) fn discard(&self, id: &WorkspaceId) -> io::Result<bool> {
        self.throw_away(&withdrawn(id))
    }

    /// Workspaces that are withdrawn.
    ///
    /// # Errors
    /// What reading the directory says.
    pub(crate) fn withdrawn(&self) -> io::Result<Vec<WorkspaceId>> {
        let names = self.names()?.into_iter();
        Ok(names.filter_map(|name| name.strip_prefix(WITHDRAWN)?.parse().ok()).collect())
    }

    /// Removes a workspace that has no entry; nothing that has one can go this way. False where it has
    /// entries or there is none.
    ///
    /// # Errors
    /// What unlinkat(2) says.
    pub(crate) fn remove_empty(&self, id: &WorkspaceId) -> io::Result<bool> {
        fault::point("workspace: remove empty")?;
        match rustix::fs::unlinkat(&self.dir, id.as_str(), AtFlags::REMOVEDIR) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(err) => Err(err.into()),
        }
    }

    /// Removes what creates left that were killed: directories without a name, and without entries.
    ///
    /// # Errors
    /// What reading the directory says.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for name in self.names()?.iter().filter(|name| name.starts_with(NEW)) {
            // One that has entries is none that was left.
            let _ = rustix::fs::unlinkat(&self.dir, name.as_str(), AtFlags::REMOVEDIR);
        }
        Ok(())
    }

    /// Bytes on disk. `None` where `go_on` said no before all were counted.
    ///
    /// # Errors
    /// What reading the tree says.
    pub(crate) fn size_bytes(
        &self,
        id: &WorkspaceId,
        go_on: &dyn Fn() -> bool,
    ) -> io::Result<Option<u64>> {
        self.tree(id)?.size_bytes_while(go_on)
    }

    /// Begins a file. The workspace exists already.
    ///
    /// # Errors
    /// [`FileFault`] where the path can't be written.
    pub fn create_file(
        &self,
        acting: &Acting,
        path: &[u8],
        options: WriteOptions,
    ) -> Result<NewFile, WorkspaceError> {
        let (place, staging) = (self.place(acting)?, Arc::clone(&self.staging));
        acting.who.act(|| write::begin(place, path, options, staging))?
    }

    /// The first `max_bytes` of a regular file.
    ///
    /// # Errors
    /// [`FileFault`] where it is none or can't be read.
    pub fn read_file(
        &self,
        acting: &Acting,
        path: &[u8],
        max_bytes: u64,
    ) -> Result<FileRead, WorkspaceError> {
        self.act(acting, |place| read::read(place, path, max_bytes))
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// [`FileFault`] where it is none or can't be read.
    pub fn open_file(&self, acting: &Acting, path: &[u8]) -> Result<OwnedFd, WorkspaceError> {
        self.act(acting, |place| read::open(place, path))
    }

    /// Facts about what is at a path, and the path as answers have it.
    ///
    /// # Errors
    /// [`FileFault`] where there is nothing.
    pub fn stat(
        &self,
        acting: &Acting,
        path: &[u8],
        last: LastLink,
    ) -> Result<(Meta, Vec<u8>), WorkspaceError> {
        self.act(acting, |place| names::stat(place, path, last))
    }

    /// Makes a directory; where parents are made, one that is there is fine.
    ///
    /// # Errors
    /// [`FileFault`] where it can't be made.
    pub fn make_dir(
        &self,
        acting: &Acting,
        path: &[u8],
        mode: u32,
        parents: Parents,
    ) -> Result<(), WorkspaceError> {
        self.act(acting, |place| names::make_dir(place, path, mode, parents))
    }

    /// Gives a file or directory another name.
    ///
    /// # Errors
    /// [`FileFault`] where it can't be moved, or something is there already.
    pub fn move_file(
        &self,
        acting: &Acting,
        (from, to): (&[u8], &[u8]),
        target: Target,
    ) -> Result<(), WorkspaceError> {
        self.act(acting, |place| names::rename(place, from, to, target))
    }

    /// Sets the mode of what a path leads to.
    ///
    /// # Errors
    /// [`FileFault`] where it is not the file's owner who acts.
    pub fn chmod(&self, acting: &Acting, path: &[u8], mode: u32) -> Result<(), WorkspaceError> {
        self.act(acting, |place| names::chmod(place, path, mode))
    }

    /// Removes a file, a link or an empty directory.
    ///
    /// # Errors
    /// [`FileFault`] where it can't be removed, or is not what was expected.
    pub fn remove_file(
        &self,
        acting: &Acting,
        path: &[u8],
        expect: &Expect,
    ) -> Result<(), WorkspaceError> {
        self.act(acting, |place| names::remove(place, path, expect))
    }

    /// The entries of a directory, by name. An empty path is the workspace itself.
    ///
    /// # Errors
    /// [`FileFault`] where it is none.
    pub fn list_dir(&self, acting: &Acting, path: &[u8]) -> Result<Vec<DirEntry>, WorkspaceError> {
        self.act(acting, |place| list::list(place, path))
    }

    fn act<T>(
        &self,
        acting: &Acting,
        act: impl FnOnce(&Place) -> Result<T, WorkspaceError>,
    ) -> Result<T, WorkspaceError> {
        let place = self.place(acting)?;
        acting.who.act(|| act(&place))?
    }

    fn place(&self, acting: &Acting) -> Result<Place, WorkspaceError> {
        match self.tree(&acting.id) {
            Ok(tree) => Ok(Place::new(tree, acting.who)),
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                Err(WorkspaceError::Gone(acting.id.clone()))
            }
            Err(err) => Err(WorkspaceError::Io(err)),
        }
    }

    fn tree(&self, id: &WorkspaceId) -> io::Result<Beneath> {
        self.top(id)
    }

    fn dress(&self, name: &str, durability: Durability) -> io::Result<()> {
        let dir = self.dir.open_dir(Path::new(name))?;
        let (uid, gid) = (Uid::from_raw(id::SANDBOX), Gid::from_raw(id::SANDBOX));
        fault::point("workspace: dress")?;
        rustix::fs::fchown(&dir, Some(uid), Some(gid))?;
        rustix::fs::fchmod(&dir, Mode::from(0o755))?;
        if durability == Durability::Fsync {
            rustix::fs::fsync(&dir)?;
        }
        Ok(())
    }

    /// Names of workspaces are on disk.
    fn sync(&self) -> io::Result<()> {
        fault::point("workspace: sync")?;
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        rustix::fs::renameat_with(&self.dir, from, &self.dir, to, RenameFlags::NOREPLACE)
    }

    fn throw_away(&self, name: &str) -> io::Result<bool> {
        match self.trash.take(&self.dir, OsStr::new(name)) {
            Ok(()) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// All names that are text: ours are.
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }
}

fn withdrawn(id: &WorkspaceId) -> String {
    format!("{WITHDRAWN}{id}")
}

impl From<Errno> for WorkspaceError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT => FileFault::NotFound.into(),
            Errno::ISDIR => FileFault::IsADirectory.into(),
            Errno::NOTDIR => FileFault::NotADirectory.into(),
            // A FIFO without a reader, a socket.
            Errno::NXIO => FileFault::NotAFile.into(),
            Errno::ACCESS | Errno::PERM => FileFault::PermissionDenied.into(),
            Errno::EXIST => FileFault::AlreadyExists.into(),
            Errno::XDEV => FileFault::NotAllowed.into(),
            Errno::LOOP => FileFault::InvalidPath("a loop of links".into()).into(),
            Errno::NAMETOOLONG => FileFault::InvalidPath("too long".into()).into(),
            Errno::NOSPC | Errno::DQUOT => FileFault::NoSpace.into(),
            Errno::NOTEMPTY => FileFault::NotEmpty.into(),
            Errno::INVAL => {
                FileFault::InvalidPath("the file system can't do that with it".into()).into()
            }
            // Something is mounted there.
            Errno::BUSY => FileFault::PermissionDenied.into(),
            other => Self::Io(other.into()),
        }
    }
}

impl From<io::Error> for WorkspaceError {
    fn from(err: io::Error) -> Self {
        match Errno::from_io_error(&err) {
            Some(errno) => errno.into(),
            None => Self::Io(err),
        }
    }
}
