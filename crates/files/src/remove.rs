//! Removes a tree. What can't be removed stays, the rest goes, and the first failure is told.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::Kind;

use crate::channel::Channel;
use crate::done::Done;
use crate::fault::{Failure, fault};
use crate::meta::kind;
use crate::root::Root;
use crate::walk::open_dir;
use crate::walk::{Step, Walk};

pub(crate) fn remove(root: &Root, path: &[u8], channel: &mut dyn Channel) -> Result<Done, Failure> {
    let (dir, name) = root.parent(path)?;
    remove_at(&dir, &name, channel)?;
    Ok(Done::WHOLE)
}

/// Removes what is called `name` in `dir`, and all below it.
pub(crate) fn remove_at(
    dir: &OwnedFd,
    name: &[u8],
    channel: &mut dyn Channel,
) -> Result<(), Failure> {
    let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if kind(stat.st_mode) != Kind::Dir {
        return Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?);
    }
    refuse_mount(dir, name)?;
    let mut failed = None;
    loop {
        let opened = open_dir(std::os::fd::AsFd::as_fd(dir), name);
        let walked = opened.and_then(|opened| Walk::new(opened, usize::MAX));
        let (removed, is_cut) = match walked {
            Ok(walk) => empty(walk, &mut failed, channel)?,
            // An empty directory goes without being read.
            Err(fault) => {
                failed = Some(Failure::from(fault));
                (0, false)
            }
        };
        if !is_cut || removed == 0 {
            break;
        }
    }
    match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(()),
        Err(errno) => Err(failed.unwrap_or_else(|| errno.into())),
    }
}

/// Removes all in a directory that can be. Gives how much that was, and whether more may be there.
fn empty(
    mut walk: Walk,
    failed: &mut Option<Failure>,
    channel: &mut dyn Channel,
) -> Result<(u64, bool), Failure> {
    let mut removed = 0;
    while let Some(step) = walk.next_step()? {
        channel.pulse()?;
        let (found, flags) = match step {
            Step::Entry(found) if found.is_dir() => {
                if walk.enter(&found).is_ok() {
                    continue;
                }
                (found, AtFlags::REMOVEDIR)
            }
            Step::Entry(found) => (found, AtFlags::empty()),
            Step::Left(found) => (found, AtFlags::REMOVEDIR),
        };
        let Some(dir) = walk.dir() else { continue };
        match unlink(dir, &found.name, flags) {
            Ok(()) | Err(FileFault::NotFound) => removed += 1,
            Err(fault) => {
                failed.get_or_insert_with(|| Failure::at(fault, &found.path));
            }
        }
    }
    Ok((removed, walk.is_cut()))
}

fn unlink(dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<(), FileFault> {
    rustix::fs::unlinkat(dir, name, flags).map_err(fault)
}

/// What is mounted can't be removed, and so its files stay too: `/workspace` is one.
fn refuse_mount(dir: &OwnedFd, name: &[u8]) -> Result<(), Failure> {
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)?;
    if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(FileFault::PermissionDenied.into());
    }
    Ok(())
}
