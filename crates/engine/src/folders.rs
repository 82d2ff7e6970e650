//! Folders of ours, made and opened. Their paths are ours too: nothing of a box is reached by one.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use sandkasten_protocol::User;

pub(crate) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(mode).create(path)
}

/// The mode is set again: the process's umask had its say at the making.
pub(crate) fn make_owned(path: &Path, mode: u32, owner: &User) -> io::Result<()> {
    make_dir(path, mode)?;
    chown(path, Some(owner.uid), Some(owner.gid))?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

pub(crate) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}
