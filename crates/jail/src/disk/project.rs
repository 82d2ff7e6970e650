//! Project quotas: the file system counts what lies in a directory, and refuses more.
//!
//! A directory that has a project gives it on to all that is made in it, so the numbers of bytes and
//! inodes of a project are those of a tree. Projects are numbers of the whole file system, which
//! others may use too: one is taken only where nothing is counted or limited for it yet.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags};

use super::inodes_for;
use crate::sys::{self, Inherit, LIMITS_VALID, ProjectQuota};

/// Ours lie in the upper half of the numbers, where no administrator's list begins.
const FIRST: u32 = 1 << 31;
const ATTEMPTS: u32 = 1000;

/// What a project may have and has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    pub bytes: u64,
    /// 0: no limit.
    pub bytes_max: u64,
}

/// Limits each of `dirs`, all empty, together to `bytes`. `seed` is any number; two sessions that
/// have the same only take longer.
///
/// # Errors
/// What the file system says; `AddrInUse` where no project is free.
pub fn limit(dirs: &[BorrowedFd<'_>], bytes: u64, seed: u32) -> io::Result<()> {
    let Some(first) = dirs.first() else { return Ok(()) };
    let project = claim(*first, bytes, seed)?;
    dirs.iter().try_for_each(|dir| sys::set_project(*dir, project, Inherit::Yes))
}

/// Limits a whole tree, with all that is in it. Nobody may change it meanwhile.
///
/// # Errors
/// What the file system says; where the tree is larger than `bytes`, nothing is limited and this is
/// `StorageFull`.
pub fn limit_tree(dir: BorrowedFd<'_>, bytes: u64, seed: u32) -> io::Result<()> {
    let project = claim(dir, 0, seed)?;
    let done = adopt(dir, project).and_then(|()| {
        if sys::project_quota(dir, project)?.bytes > bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        set(dir, project, bytes)
    });
    if done.is_err() {
        // Without a limit it stops nobody; the number is only not free again.
        adopt(dir, 0)?;
    }
    done
}

/// Changes the limit of a directory that has one.
///
/// # Errors
/// `StorageFull` where there is more in it already; else what the file system says.
pub fn change(dir: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let project = sys::project_of(dir)?;
    if project < FIRST {
        return Err(io::ErrorKind::NotFound.into());
    }
    if sys::project_quota(dir, project)?.bytes > bytes {
        return Err(io::ErrorKind::StorageFull.into());
    }
    set(dir, project, bytes)
}

/// What is counted for a directory. `None`: it has no project of ours.
///
/// # Errors
/// What the file system says.
pub fn counted(dir: BorrowedFd<'_>) -> io::Result<Option<Counted>> {
    let project = match sys::project_of(dir) {
        Ok(project) if project >= FIRST => project,
        Ok(_) => return Ok(None),
        Err(error) if is_unknown(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let quota = sys::project_quota(dir, project)?;
    Ok(Some(Counted { bytes: quota.bytes, bytes_max: quota.kib_max.saturating_mul(1024) }))
}

/// Takes the limits of a directory's project away, so that the number is free once it is empty.
///
/// # Errors
/// What the file system says.
pub fn release(dir: BorrowedFd<'_>) -> io::Result<()> {
    if counted(dir)?.is_none() {
        return Ok(());
    }
    set(dir, sys::project_of(dir)?, 0)
}

/// The file system knows nothing of projects.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::EINVAL))
}

/// A project that nothing is counted for, with its limit set.
fn claim(dir: BorrowedFd<'_>, bytes: u64, seed: u32) -> io::Result<u32> {
    for attempt in 0..ATTEMPTS {
        let project = FIRST | (seed.wrapping_add(attempt) & (FIRST - 2));
        let known = match sys::project_quota(dir, project) {
            Ok(known) => known,
            // Never counted.
            Err(error) if error.kind() == io::ErrorKind::NotFound => ProjectQuota::default(),
            Err(error) => return Err(error),
        };
        if (known.bytes, known.inodes, known.kib_max) == (0, 0, 0) {
            set(dir, project, bytes)?;
            return Ok(project);
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// 0 bytes: no limit.
fn set(dir: BorrowedFd<'_>, project: u32, bytes: u64) -> io::Result<()> {
    let inodes = if bytes == 0 { 0 } else { inodes_for(bytes) };
    let kib = bytes / 1024;
    let quota = ProjectQuota {
        kib_max: kib,
        kib_soft: kib,
        inodes_max: inodes,
        inodes_soft: inodes,
        valid: LIMITS_VALID,
        ..ProjectQuota::default()
    };
    sys::set_project_quota(dir, project, quota)
}

/// Puts a directory and all below it into a project: one level at a time, no link followed. Links and
/// special files can't be opened for that; they take no space but their inode.
fn adopt(dir: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    let inherit = if project == 0 { Inherit::No } else { Inherit::Yes };
    sys::set_project(dir, project, inherit)?;
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if [&b"."[..], b".."].contains(&name.to_bytes()) {
            continue;
        }
        let kind = entry.file_type();
        if kind == FileType::Directory || kind == FileType::RegularFile {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let child = rustix::fs::openat(dir, name, flags, Mode::empty())?;
            if kind == FileType::Directory {
                adopt(child.as_fd(), project)?;
            } else {
                sys::set_project(child.as_fd(), project, Inherit::No)?;
            }
        }
    }
    Ok(())
}

/// Whether a limit holds in a folder of `dir`.
pub(super) fn attempt(dir: &Path) -> Result<(), String> {
    const BYTES: u64 = 1 << 20;
    let path = dir.join("project");
    let folder = make(&path).map_err(|error| format!("make a folder: {error}"))?;
    limit(&[folder.as_fd()], BYTES, std::process::id()).map_err(|error| {
        if is_unknown(&error) || error.raw_os_error() == Some(libc::ESRCH) {
            "the data directory's file system is mounted without project quotas".to_owned()
        } else {
            format!("set a project quota: {error}")
        }
    })?;
    let held = super::holds(&path, BYTES);
    release(folder.as_fd()).map_err(|error| format!("take a project quota back: {error}"))?;
    held
}

fn make(path: &Path) -> io::Result<OwnedFd> {
    DirBuilder::new().mode(0o700).create(path)?;
    Ok(File::open(path)?.into())
}
