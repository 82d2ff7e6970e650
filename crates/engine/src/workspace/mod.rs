//! Workspaces on disk. (Signatures only; the bodies land next.)

pub(crate) mod trash;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use sandkasten_protocol::Parents;
use sandkasten_types::WorkspaceId;
use sandkasten_types::files::DirEntry;

use crate::{Durability, FileFault, FileRead};

/// The workspaces of one data directory. All calls block.
#[derive(Debug)]
pub struct Workspaces;

/// Why a file operation failed: the caller's fault, or ours.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error(transparent)]
    File(#[from] FileFault),
    #[error("workspace: {0}")]
    Io(#[from] io::Error),
}

/// How a file is to be written.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions {
    /// Permission bits; absent: those of an existing file, else 0644.
    pub mode: Option<u32>,
    pub parents: Parents,
    pub durability: Durability,
}

/// A file being written; seen by nobody before [`commit`](Self::commit), gone when dropped.
#[derive(Debug)]
#[must_use = "dropping it throws the file away"]
pub struct NewFile {
    path: String,
}

impl NewFile {
    /// The path relative to the workspace.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Appends `data`.
    ///
    /// # Errors
    /// [`FileFault::NoSpace`], or what write(2) says.
    pub fn write(&mut self, _data: &[u8]) -> Result<(), WorkspaceError> {
        Err(io::Error::from(io::ErrorKind::Unsupported).into())
    }

    /// Puts the file in its place, at once and whole.
    ///
    /// # Errors
    /// [`FileFault`], or what renameat(2) says.
    pub fn commit(self) -> Result<(), WorkspaceError> {
        Err(io::Error::from(io::ErrorKind::Unsupported).into())
    }
}

impl Workspaces {
    /// # Errors
    /// Where the directory can't be made.
    pub fn open(_data_dir: &Path) -> io::Result<Self> {
        Ok(Self)
    }

    /// Makes the directory, owned by the box's user; one that exists is left as it is.
    ///
    /// # Errors
    /// What mkdir(2) says.
    pub fn create(&self, _id: &WorkspaceId) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Errors
    /// What statx(2) says.
    pub fn exists(&self, _id: &WorkspaceId) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// All that exist, sorted.
    ///
    /// # Errors
    /// What reading the directory says.
    pub fn list(&self) -> io::Result<Vec<WorkspaceId>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The directory itself, for a session's mount.
    ///
    /// # Errors
    /// `NotFound`, or what open(2) says.
    pub fn open_dir(&self, _id: &WorkspaceId) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Moves it to the trash (whoever empties the trash removes it). False where there was none.
    ///
    /// # Errors
    /// What renameat(2) says.
    pub fn remove(&self, _id: &WorkspaceId) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Bytes on disk.
    ///
    /// # Errors
    /// What reading the tree says.
    pub fn size_bytes(&self, _id: &WorkspaceId) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Begins a file. The workspace exists already.
    ///
    /// # Errors
    /// [`FileFault`] where the path can't be written.
    pub fn create_file(
        &self,
        _id: &WorkspaceId,
        _path: &str,
        _options: WriteOptions,
    ) -> Result<NewFile, WorkspaceError> {
        Err(io::Error::from(io::ErrorKind::Unsupported).into())
    }

    /// The first `max_bytes` of a regular file.
    ///
    /// # Errors
    /// [`FileFault`] where it is none or can't be read.
    pub fn read_file(
        &self,
        _id: &WorkspaceId,
        _path: &str,
        _max_bytes: u64,
    ) -> Result<FileRead, WorkspaceError> {
        Err(io::Error::from(io::ErrorKind::Unsupported).into())
    }

    /// The entries of a directory, by name.
    ///
    /// # Errors
    /// [`FileFault`] where it is none.
    pub fn list_dir(
        &self,
        _id: &WorkspaceId,
        _path: &str,
    ) -> Result<Vec<DirEntry>, WorkspaceError> {
        Err(io::Error::from(io::ErrorKind::Unsupported).into())
    }
}
