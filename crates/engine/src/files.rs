//! Files as callers see them, in a session or in a workspace.

use bytes::Bytes;
use sandkasten_protocol::{FileUser, Parents};
use sandkasten_types::{SessionId, WorkspaceId};

use crate::Error;

/// Where a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Session(SessionId),
    Workspace(WorkspaceId),
}

/// A file to be written.
#[derive(Debug, Clone)]
pub struct CreateFile {
    pub path: String,
    pub user: FileUser,
    /// Permission bits; an existing file keeps its own where absent.
    pub mode: Option<u32>,
    pub parents: Parents,
}

/// What was read of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRead {
    pub bytes: Vec<u8>,
    /// Bytes of the whole file.
    pub size: u64,
    pub truncated: bool,
}

/// A file being written. Nobody sees it before [`commit`](Self::commit); dropping it removes it.
#[derive(Debug)]
#[must_use = "dropping it throws the file away"]
pub struct FileWriter {
    path: String,
}

impl FileWriter {
    /// The path of the file to be: in a session absolute, in a workspace relative to it.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Appends `data`.
    ///
    /// # Errors
    /// [`Error::File`] where there is no space.
    pub async fn write(&mut self, _data: Bytes) -> Result<(), Error> {
        Err(Error::Internal("not there yet".into()))
    }

    /// Puts the file in its place, at once and whole.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn commit(self) -> Result<(), Error> {
        Err(Error::Internal("not there yet".into()))
    }
}
