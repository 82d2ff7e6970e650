//! Limits on disk space, by what the host has.
//!
//! ```text
//!   project   the data directory's own file system counts    (ext4, xfs with project quotas)
//!   image     an ext4 in a file, on a loop device             (needs mke2fs and loop devices)
//!   memory    a tmpfs, counted to the session's memory        (sessions alone)
//! ```
//!
//! Which of them works is found by trying each: a limit that holds nothing back counts as none. No
//! file system made here ever stands in the host's mount table: a mount is detached, handed to one
//! session, and ends with it.

pub mod image;
pub mod project;
pub mod room;

use std::fmt;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::path::Beneath;
use crate::{root, tree};

/// An inode for so many bytes: a limit on space alone would leave files without content unlimited.
const BYTES_PER_INODE: u64 = 8192;
const INODES_MIN: u64 = 1024;
const NO_DEV: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// How space is limited. In this order they are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    Project,
    Image,
    Memory,
}

impl Mechanism {
    pub const ALL: [Self; 3] = [Self::Project, Self::Image, Self::Memory];

    /// The word of the configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Image => "image",
            Self::Memory => "memory",
        }
    }

    fn says(self) -> &'static str {
        match self {
            Self::Project => "by project quotas of the data directory's file system",
            Self::Image => "by an ext4 image for each, on a loop device",
            Self::Memory => {
                "by a tmpfs for each session, counted to its memory; not for workspaces"
            }
        }
    }
}

/// What was found by trying.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    pub mechanism: Option<Mechanism>,
    /// Those that come before it, and why they are not it.
    pub passed_over: Vec<(Mechanism, String)>,
}

impl fmt::Display for Choice {
    /// One line: the mechanism, then why none before it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(mechanism) = self.mechanism {
            f.write_str(mechanism.says())?;
            if self.passed_over.is_empty() {
                return Ok(());
            }
            f.write_str(" (")?;
        }
        for (number, (mechanism, why)) in self.passed_over.iter().enumerate() {
            let comma = if number == 0 { "" } else { "; " };
            write!(f, "{comma}{}: {why}", mechanism.as_str())?;
        }
        if self.mechanism.is_some() { f.write_str(")") } else { Ok(()) }
    }
}

/// Tries those of `allowed` in a folder made for a moment in `dir`, and takes the first that holds.
/// `namespace` makes a user namespace, for the one that needs it.
pub fn choose(
    dir: &Path,
    allowed: &[Mechanism],
    namespace: impl Fn() -> Result<OwnedFd, String>,
) -> Choice {
    let mut choice = Choice::default();
    for mechanism in Mechanism::ALL {
        let tried = match mechanism {
            _ if !allowed.contains(&mechanism) => Err("switched off by `disk_limits`".to_owned()),
            Mechanism::Project => in_folder(dir, project::attempt),
            Mechanism::Image => in_folder(dir, image::attempt),
            Mechanism::Memory => {
                namespace().and_then(|namespace| memory_attempt(namespace.as_fd()))
            }
        };
        match tried {
            Ok(()) => {
                choice.mechanism = Some(mechanism);
                break;
            }
            Err(why) => choice.passed_over.push((mechanism, why)),
        }
    }
    choice
}

/// Inodes that go with so many bytes.
#[must_use]
pub fn inodes_for(bytes: u64) -> u64 {
    (bytes / BYTES_PER_INODE).max(INODES_MIN)
}

/// A tmpfs of that size, mounted nowhere yet. What is in it is memory of who wrote it.
///
/// # Errors
/// What fsconfig(2) says.
pub fn memory(bytes: u64) -> io::Result<OwnedFd> {
    let (size, inodes) = (bytes.to_string(), inodes_for(bytes).to_string());
    let options = [("mode", "0700"), ("size", size.as_str()), ("nr_inodes", inodes.as_str())];
    root::new_mount("tmpfs", &options, NO_DEV)
}

/// A path by which this process reaches a directory that it has open, whether mounted or not.
#[must_use]
pub fn path_of(dir: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", dir.as_raw_fd()).into()
}

/// Bytes used on the file system that `dir` lies on.
///
/// # Errors
/// What statvfs(2) says.
pub fn used_bytes(dir: BorrowedFd<'_>) -> io::Result<u64> {
    let disk = rustix::fs::fstatvfs(dir)?;
    Ok(disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize))
}

fn memory_attempt(namespace: BorrowedFd<'_>) -> Result<(), String> {
    const BYTES: u64 = 1 << 20;
    let mount = memory(BYTES).map_err(|error| format!("mount a tmpfs: {error}"))?;
    holds(&path_of(mount.as_fd()), BYTES)?;
    tree::idmap(mount.as_fd(), namespace)
        .map_err(|error| format!("map the ids of a tmpfs: {error}"))
}

/// Takes the right to write beyond quotas from this thread and those that it starts from now on
/// (`CAP_SYS_RESOURCE`, see capabilities(7)). Gives what it had.
///
/// # Errors
/// What capset(2) says.
pub fn keep_to_quotas() -> io::Result<CapabilitySets> {
    let had = rustix::thread::capabilities(None)?;
    if had.effective.contains(CapabilitySet::SYS_RESOURCE) {
        let mut kept = had;
        kept.effective.remove(CapabilitySet::SYS_RESOURCE);
        rustix::thread::set_capabilities(None, kept)?;
    }
    Ok(had)
}

/// Writes twice as much as may be there.
fn holds(dir: &Path, bytes: u64) -> Result<(), String> {
    let had = keep_to_quotas().map_err(|error| format!("keep to quotas: {error}"))?;
    let held = write_too_much(dir, bytes);
    let given_back = rustix::thread::set_capabilities(None, had);
    given_back.map_err(|error| format!("take capabilities back: {error}")).and(held)
}

fn write_too_much(dir: &Path, bytes: u64) -> Result<(), String> {
    let file = File::create(dir.join("full")).map_err(|error| format!("make a file: {error}"))?;
    let block = vec![1; 64 << 10];
    let mut written = 0;
    while written < bytes * 2 {
        match rustix::io::write(&file, &block) {
            Ok(count) => written += count as u64,
            Err(Errno::NOSPC | Errno::DQUOT) => return Ok(()),
            Err(error) => return Err(format!("write a file: {error}")),
        }
    }
    Err("a limit was set and does not hold".into())
}

fn in_folder(dir: &Path, attempt: fn(&Path) -> Result<(), String>) -> Result<(), String> {
    let name = format!(".disk-trial-{}", std::process::id());
    let path = dir.join(&name);
    let failed = |error: io::Error| format!("a folder in the data directory: {error}");
    let parent = Beneath::open(dir).map_err(failed)?;
    parent.remove_tree(name.as_ref()).map_err(failed)?;
    DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
    let tried = attempt(&path);
    parent.remove_tree(name.as_ref()).map_err(failed)?;
    tried
}

#[cfg(test)]
mod test {
    use super::*;

    fn no_namespace() -> Result<OwnedFd, String> {
        Err("no namespace".into())
    }

    #[test]
    fn what_is_switched_off_is_not_tried() {
        let dir = tempfile::tempdir().unwrap();
        let choice = choose(dir.path(), &[], no_namespace);
        assert_eq!(choice.mechanism, None);
        assert_eq!(choice.passed_over.len(), 3);
        assert!(choice.to_string().contains("memory: switched off"), "{choice}");
    }

    #[test]
    fn a_mechanism_is_chosen_by_trying_and_nothing_is_left() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let choice = choose(dir.path(), &Mechanism::ALL, no_namespace);
        println!("{choice}");
        assert!(choice.mechanism.is_some(), "{choice}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_tmpfs_is_full_at_its_size() {
        let mount = memory(1 << 20).unwrap();
        holds(&path_of(mount.as_fd()), 1 << 20).unwrap();
        assert!(used_bytes(mount.as_fd()).unwrap() >= 1 << 20);
    }
}
