//! The only place that opens untrusted trees: every name is resolved by openat2(2) beneath a
//! directory fd, never walked as a path string.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

pub use rustix::fs::{Mode, OFlags};

/// A directory; nothing opened through it lies outside of it.
#[derive(Debug)]
pub struct Beneath {
    dir: OwnedFd,
}

impl Beneath {
    /// Opens a host path of ours; it is trusted and may contain links.
    ///
    /// # Errors
    /// What open(2) says; `ENOTDIR` for anything but a directory.
    pub fn open(trusted: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { dir: rustix::fs::open(trusted, flags, Mode::empty())? })
    }

    /// Takes a directory that is open already.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { dir: fd }
    }

    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.dir
    }

    /// Opens a file beneath. `O_NONBLOCK`, `O_NOCTTY` and `O_CLOEXEC` are added.
    ///
    /// # Errors
    /// `EXDEV` or `ELOOP` where the path leads out; else what open(2) says.
    pub fn open_file(&self, _path: &Path, _flags: OFlags, _mode: Mode) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// As [`open_file`](Self::open_file), but the directory is the root: absolute links and `..` stay
    /// inside instead of failing. For image layers.
    ///
    /// # Errors
    /// What openat2(2) says.
    pub fn open_file_in_root(
        &self,
        _path: &Path,
        _flags: OFlags,
        _mode: Mode,
    ) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Opens a directory beneath.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file).
    pub fn open_dir(&self, _path: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Opens a directory with this one as the root.
    ///
    /// # Errors
    /// As [`open_file_in_root`](Self::open_file_in_root).
    pub fn open_dir_in_root(&self, _path: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the directories of a path that are missing, with that owner and mode, and opens the last.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file); `ENOTDIR` where a name is something else.
    pub fn create_dirs(&self, _path: &Path, _owner: (u32, u32), _mode: Mode) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Removes a file or a whole tree. Follows no link and enters no other mount.
    ///
    /// # Errors
    /// `EXDEV` where something is mounted below; else what unlinkat(2) says. A missing name is fine.
    pub fn remove_tree(&self, _name: &OsStr) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Bytes that the tree takes on disk, itself included, hard links counted once for each name.
    ///
    /// # Errors
    /// What reading a directory says.
    pub fn size_bytes(&self) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl AsFd for Beneath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Whether something is mounted at a place below `dir` in this process's mount namespace.
///
/// # Errors
/// Where `/proc/self/mountinfo` can't be read.
pub fn is_mounted_below(_dir: &Path) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}
