//! Workspaces on disk. (Signatures only; the store lands next.)

use std::io;
use std::path::Path;

/// The workspaces of one data directory.
#[derive(Debug)]
pub struct Workspaces;

impl Workspaces {
    /// # Errors
    /// Where the directory can't be made.
    pub fn open(_data_dir: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
