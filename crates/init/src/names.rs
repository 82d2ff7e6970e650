//! What is done to names and facts of files, not to their contents: all of it is quick.
//!
//! Whoever calls has switched to the rights of the operation's user.

use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, Stat};
use rustix::io::Errno;
use sandkasten_files::{identity, kind, meta};
use sandkasten_protocol::work::{Kind, Meta};
use sandkasten_protocol::{Expect, FileFault, Parents};

use crate::lookup::{self, Follow, Place, fault};

const MODE_BITS: u32 = 0o7777;
/// What mkdir(2) takes; the rest is set behind it.
const MAKE_MODE_BITS: u32 = 0o1777;

/// Facts about what a path leads to.
pub(crate) fn stat(path: &[u8], follow: Follow) -> Result<Meta, FileFault> {
    let found = lookup::find_last(&lookup::absolute(path)?, follow)?;
    let stat = rustix::fs::fstat(&found).map_err(fault)?;
    Ok(meta(&stat, &found, b""))
}

/// Makes a directory. With `Parents::Make` one that is there is fine, as for `mkdir -p`.
pub(crate) fn make_dir(path: &[u8], mode: u32, parents: Parents) -> Result<(), FileFault> {
    let path = lookup::absolute(path)?;
    if path == b"/" && parents == Parents::Make {
        return Ok(());
    }
    let Place { dir, name } = lookup::entry(&path, parents)?;
    match rustix::fs::mkdirat(&dir, name.as_slice(), Mode::from_raw_mode(mode & MAKE_MODE_BITS)) {
        Ok(()) => {}
        Err(Errno::EXIST) if parents == Parents::Make => {
            return match lookup::find_dir(dir.as_fd(), &name) {
                Ok(_) => Ok(()),
                Err(_not_a_directory) => Err(FileFault::AlreadyExists),
            };
        }
        Err(errno) => return Err(fault(errno)),
    }
    if mode & MODE_BITS == mode & MAKE_MODE_BITS {
        return Ok(());
    }
    let mode = Mode::from_raw_mode(mode & MODE_BITS);
    rustix::fs::chmodat(&dir, name.as_slice(), mode, AtFlags::empty()).map_err(fault)
}

/// What becomes of something that already has the name that a file is to get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It stays, and the renaming fails.
    Keep,
    Replace,
}

/// Gives a file another name. Links are moved, not followed.
pub(crate) fn rename(from: &[u8], to: &[u8], existing: Existing) -> Result<(), FileFault> {
    let from = lookup::entry(&lookup::absolute(from)?, Parents::MustExist)?;
    let to = lookup::entry(&lookup::absolute(to)?, Parents::MustExist)?;
    let flags = match existing {
        Existing::Keep => RenameFlags::NOREPLACE,
        Existing::Replace => RenameFlags::empty(),
    };
    let (old, new) = (from.name.as_slice(), to.name.as_slice());
    rustix::fs::renameat_with(&from.dir, old, &to.dir, new, flags).map_err(name_fault)
}

/// Sets the mode of what a path leads to.
pub(crate) fn chmod(path: &[u8], mode: u32) -> Result<(), FileFault> {
    let found = lookup::find(&lookup::absolute(path)?)?;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let mode = Mode::from_raw_mode(mode & MODE_BITS);
    rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()).map_err(fault)
}

/// Removes a file, a link or an empty directory.
pub(crate) fn remove(path: &[u8], expect: &Expect) -> Result<(), FileFault> {
    let Place { dir, name } = lookup::entry(&lookup::absolute(path)?, Parents::MustExist)?;
    let name = name.as_slice();
    let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fault)?;
    judge(expect, Some(&stat))?;
    let flags = match kind(stat.st_mode) {
        Kind::Dir => AtFlags::REMOVEDIR,
        Kind::File | Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Device => AtFlags::empty(),
    };
    rustix::fs::unlinkat(&dir, name, flags).map_err(name_fault)
}

/// Refuses where something else is there than must be.
pub(crate) fn judge(expect: &Expect, found: Option<&Stat>) -> Result<(), FileFault> {
    match (expect.allows(found.map(identity)), expect) {
        (true, _) => Ok(()),
        (false, Expect::Nothing) => Err(FileFault::AlreadyExists),
        (false, _) => Err(FileFault::Changed),
    }
}

/// The errnos that only changes of names have.
fn name_fault(errno: Errno) -> FileFault {
    match errno {
        Errno::NOTEMPTY => FileFault::NotEmpty,
        Errno::XDEV => FileFault::OtherDevice,
        // Something is mounted there.
        Errno::BUSY => FileFault::PermissionDenied,
        other => fault(other),
    }
}
