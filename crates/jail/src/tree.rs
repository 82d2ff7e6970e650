//! Detached mount trees: what the launcher's child attaches in its own mount namespace.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// A detached copy of the mount that `dir` lies on, rooted at `dir`. It stands in no mount table.
///
/// # Errors
/// `EINVAL` where `dir` lies in another mount namespace.
pub fn clone_tree(_dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// As [`clone_tree`], with the ids on disk shown through `user_namespace`.
///
/// # Errors
/// `EINVAL` where the file system can't be idmapped.
pub fn idmapped_clone(
    _dir: BorrowedFd<'_>,
    _user_namespace: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
