//! Workspaces on disk: directories that outlive sessions.
//!
//! Invariant: the daemon itself opens files here while boxes change them at will, so every path is
//! resolved by the kernel beneath the workspace's descriptor (`place`), a file is looked at before it
//! is opened, and it is written beside and put in its place whole (`write`).
//!
//! Owners on disk are the box's own ids; what this API writes belongs to the session user.

pub(crate) mod list;
mod path;
mod place;
mod read;
pub(crate) mod trash;
mod write;

#[cfg(test)]
mod test;

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Gid, Mode, RenameFlags, Uid};
use rustix::io::Errno;
use sandkasten_jail::path::Beneath;
use sandkasten_protocol::{Parents, id};
use sandkasten_types::WorkspaceId;
use sandkasten_types::files::DirEntry;
use sandkasten_types::ids::random_hex;

use self::place::Place;
use self::trash::Trash;
pub use self::write::NewFile;
use crate::{Durability, FileFault, FileRead};

/// The workspaces of one data directory. All calls block.
#[derive(Debug)]
pub struct Workspaces {
    dir: Beneath,
    trash: Trash,
}

/// Why a file operation failed: the caller's fault, or ours.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error(transparent)]
    File(#[from] FileFault),
    #[error("workspace: {0}")]
    Io(io::Error),
}

/// How a file is to be written.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions {
    /// Permission bits; absent: those of an existing file, else 0644.
    pub mode: Option<u32>,
    pub parents: Parents,
    pub durability: Durability,
}

impl Workspaces {
    /// Opens `workspaces/` of a data directory, and makes it where it is missing.
    ///
    /// # Errors
    /// Where the directory can't be made or opened.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let data = Beneath::open(data_dir)?;
        let dir = data.create_dirs(Path::new("workspaces"), (0, 0), Mode::RWXU)?;
        Ok(Self { dir, trash: Trash::open(data_dir)? })
    }

    /// Makes the directory, owned by the box's user; one that exists is left as it is.
    ///
    /// # Errors
    /// What mkdir(2) says.
    pub fn create(&self, id: &WorkspaceId) -> io::Result<()> {
        if self.exists(id)? {
            return Ok(());
        }
        // Beside and renamed: a workspace never has another owner, whenever we are killed.
        let beside = format!(".new-{}", random_hex().map_err(io::Error::other)?);
        rustix::fs::mkdirat(&self.dir, &beside, Mode::RWXU)?;
        let made = self.dress(&beside).and_then(|()| {
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&self.dir, &beside, &self.dir, id.as_str(), flags) {
                Ok(()) => Ok(true),
                Err(Errno::EXIST) => Ok(false),
                Err(err) => Err(err.into()),
            }
        });
        if !matches!(made, Ok(true)) {
            self.dir.remove_tree(OsStr::new(&beside))?;
        }
        made.map(|_| ())
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
        let mut ids = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            let entry = entry?;
            ids.extend(entry.file_name().to_str().ok().and_then(|name| name.parse().ok()));
        }
        ids.sort();
        Ok(ids)
    }

    /// The directory itself, for a session's mount.
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
        match self.trash.take(&self.dir, OsStr::new(id.as_str())) {
            Ok(()) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Bytes on disk.
    ///
    /// # Errors
    /// What reading the tree says.
    pub fn size_bytes(&self, id: &WorkspaceId) -> io::Result<u64> {
        self.tree(id)?.size_bytes()
    }

    /// Begins a file. The workspace exists already.
    ///
    /// # Errors
    /// [`FileFault`] where the path can't be written.
    pub fn create_file(
        &self,
        id: &WorkspaceId,
        path: &[u8],
        options: WriteOptions,
    ) -> Result<NewFile, WorkspaceError> {
        write::begin(self.place(id)?, path, options)
    }

    /// The first `max_bytes` of a regular file.
    ///
    /// # Errors
    /// [`FileFault`] where it is none or can't be read.
    pub fn read_file(
        &self,
        id: &WorkspaceId,
        path: &[u8],
        max_bytes: u64,
    ) -> Result<FileRead, WorkspaceError> {
        read::read(&self.place(id)?, path, max_bytes)
    }

    /// The entries of a directory, by name. An empty path is the workspace itself.
    ///
    /// # Errors
    /// [`FileFault`] where it is none.
    pub fn list_dir(&self, id: &WorkspaceId, path: &[u8]) -> Result<Vec<DirEntry>, WorkspaceError> {
        list::list(&self.place(id)?, path)
    }

    fn place(&self, id: &WorkspaceId) -> Result<Place, WorkspaceError> {
        Ok(Place::new(self.tree(id).map_err(WorkspaceError::Io)?))
    }

    fn tree(&self, id: &WorkspaceId) -> io::Result<Beneath> {
        self.dir.open_dir(Path::new(id.as_str()))
    }

    fn dress(&self, name: &str) -> io::Result<()> {
        let dir = self.dir.open_dir(Path::new(name))?;
        let (uid, gid) = (Uid::from_raw(id::SANDBOX), Gid::from_raw(id::SANDBOX));
        rustix::fs::fchown(&dir, Some(uid), Some(gid))?;
        Ok(rustix::fs::fchmod(&dir, Mode::from(0o755))?)
    }
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
