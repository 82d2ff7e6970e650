//! Detached mount trees: what the launcher's child attaches in its own mount namespace.
//!
//! A detached tree stands in no mount table and ends with its last descriptor, so whoever is killed
//! at whatever moment leaves no mount behind. Each is private: a mount that the host makes later on
//! the source never appears in it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::mount::OpenTreeFlags;

use crate::sys::{self, MountAttr};

const NOSUID_NODEV: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// A detached copy of the mount that `dir` lies on, rooted at `dir`, nosuid and nodev.
///
/// # Errors
/// `EINVAL` where `dir` lies in another mount namespace.
pub fn clone_tree(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    cloned(dir, MountAttr { set: NOSUID_NODEV, ..MountAttr::default() })
}

/// As [`clone_tree`], with the ids on disk shown through `user_namespace`.
///
/// # Errors
/// `EINVAL` where the file system can't be idmapped.
pub fn idmapped_clone(dir: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    cloned(dir, shifted(user_namespace))
}

/// Shows the ids of a mount that is attached nowhere through `user_namespace`.
///
/// # Errors
/// As [`idmapped_clone`].
pub fn idmap(mount: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<()> {
    sys::mount_setattr(mount, &shifted(user_namespace))
}

fn shifted(user_namespace: BorrowedFd<'_>) -> MountAttr {
    MountAttr {
        set: NOSUID_NODEV | libc::MOUNT_ATTR_IDMAP,
        user_namespace: u64::from(user_namespace.as_raw_fd().cast_unsigned()),
        ..MountAttr::default()
    }
}

fn cloned(dir: BorrowedFd<'_>, attr: MountAttr) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(dir, "", flags)?;
    sys::mount_setattr(tree.as_fd(), &MountAttr { propagation: libc::MS_PRIVATE, ..attr })?;
    Ok(tree)
}
