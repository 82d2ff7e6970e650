//! From a path to descriptors.
//!
//! Invariant: every descriptor comes from openat2(2), with limits on where a path may lead, and none
//! is of procfs: what that shows depends on who looks, and who looks here may be more than the user.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags};
use rustix::io::Errno;
use sandkasten_protocol::FileFault;

use crate::fault::fault;

/// Where relative paths start in a box, and what a workspace is there.
const WORKSPACE: &[u8] = b"/workspace";
const PATH_BYTES_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 255;
/// As many links as the kernel follows.
const LINKS_MAX: usize = 40;

/// Where paths are resolved.
#[derive(Debug)]
pub enum Root {
    /// The box's own root: absolute paths, or relative to `/workspace`.
    Box,
    /// A workspace: nothing leads out of it. Paths are relative to it, or absolute below
    /// `/workspace`; so are links.
    Beneath(OwnedFd),
}

impl Root {
    /// Opens a directory for reading, links followed.
    ///
    /// # Errors
    /// It is none, can't be read, or lies where it must not.
    pub fn open_dir(&self, path: &[u8]) -> Result<OwnedFd, FileFault> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a regular file or a directory, links followed. It never waits: anything else is refused
    /// before it is opened.
    ///
    /// # Errors
    /// It is neither, the user may not, or it lies where it must not.
    pub fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, FileFault> {
        let found = self.find(path, OFlags::empty())?;
        let stat = rustix::fs::fstat(&found).map_err(fault)?;
        let is_dir = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            FileType::RegularFile => false,
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => return Err(FileFault::NotAFile),
        };
        if flags.contains(OFlags::DIRECTORY) && !is_dir {
            return Err(FileFault::NotADirectory);
        }
        reopen(&found, flags).map_err(fault)
    }

    /// The open directory that a path's last name is in, and that name. A link there is not followed.
    ///
    /// # Errors
    /// The path has no last name, or its directory can't be opened.
    pub fn parent(&self, path: &[u8]) -> Result<(OwnedFd, Vec<u8>), FileFault> {
        let path = self.parse(path)?;
        let trimmed = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
        let path = path.get(..trimmed).unwrap_or_default();
        let (parent, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(0) => (&b"/"[..], path.get(1..)),
            Some(slash) => (path.get(..slash).unwrap_or_default(), path.get(slash + 1..)),
            None => (&b"."[..], Some(path)),
        };
        match name.unwrap_or_default() {
            b"" | b"." | b".." => Err(FileFault::IsADirectory),
            name => {
                let dir = self.find_parsed(parent, OFlags::DIRECTORY)?;
                Ok((dir, name.to_vec()))
            }
        }
    }

    /// Opens without reading (`O_PATH`). With `NOFOLLOW` a link at the end is what is found.
    ///
    /// # Errors
    /// There is nothing, or it lies where it must not.
    pub fn find(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, FileFault> {
        self.find_parsed(&self.parse(path)?, flags)
    }

    fn find_parsed(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, FileFault> {
        let found = match self {
            Self::Box => open_at(CWD, path, (flags, ResolveFlags::NO_MAGICLINKS)),
            Self::Beneath(top) => find_beneath(top.as_fd(), path, flags),
        };
        let found = found.map_err(fault)?;
        refuse_procfs(&found)?;
        Ok(found)
    }

    /// The path as it is opened: absolute in a box, relative in a workspace.
    fn parse(&self, path: &[u8]) -> Result<Vec<u8>, FileFault> {
        let has_long_name = path.split(|b| *b == b'/').any(|name| name.len() > NAME_BYTES_MAX);
        if path.is_empty() || path.len() > PATH_BYTES_MAX || path.contains(&0) || has_long_name {
            return Err(FileFault::InvalidPath);
        }
        match (self, path.starts_with(b"/")) {
            (Self::Box, true) => Ok(path.to_vec()),
            (Self::Box, false) => Ok([WORKSPACE, b"/", path].concat()),
            (Self::Beneath(_), is_absolute) => {
                let path = if is_absolute { below_workspace(path) } else { Some(path.to_vec()) };
                let path = path.ok_or(FileFault::NotAllowed)?;
                if leaves(&path) { Err(FileFault::NotAllowed) } else { Ok(path) }
            }
        }
    }
}

/// Opens what was found, for real.
pub(crate) fn reopen(found: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    // Non-blocking: a lease on the file could make this wait.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Refuses what lies on procfs.
pub(crate) fn refuse_procfs(found: impl AsFd) -> Result<(), FileFault> {
    let on = rustix::fs::fstatfs(found).map_err(fault)?.f_type;
    if on == PROC_SUPER_MAGIC { Err(FileFault::PermissionDenied) } else { Ok(()) }
}

fn open_at(
    dir: BorrowedFd<'_>,
    path: &[u8],
    (flags, resolve): (OFlags, ResolveFlags),
) -> Result<OwnedFd, Errno> {
    // The kernel gives EAGAIN where a rename went on beside a look at `..`.
    const TRIES: usize = 64;
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    for _ in 1..TRIES {
        match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)
}

/// Finds a path beneath `top`. The kernel refuses an absolute link; one that leads to below
/// `/workspace` is rewritten and tried again.
fn find_beneath(top: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let mut path = path.to_vec();
    for _ in 0..=LINKS_MAX {
        match open_at(top, &path, (flags, resolve)) {
            Err(Errno::XDEV) => {
                path = without_link(top, &path, flags)?;
                if path.len() > PATH_BYTES_MAX {
                    return Err(Errno::NAMETOOLONG);
                }
            }
            found => return found,
        }
    }
    Err(Errno::LOOP)
}

/// The path with its first link replaced by what that stands for.
fn without_link(top: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<Vec<u8>, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let names: Vec<_> = path.split(|b| *b == b'/').filter(|name| !name.is_empty()).collect();
    let mut before: Vec<u8> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let is_last = index + 1 == names.len();
        let here = if before.is_empty() { name.to_vec() } else { [&before, *name].join(&b'/') };
        let found = open_at(top, &here, (OFlags::NOFOLLOW, resolve))?;
        let mode = rustix::fs::fstat(&found)?.st_mode;
        let is_link = FileType::from_raw_mode(mode) == FileType::Symlink;
        if is_link && !(is_last && flags.contains(OFlags::NOFOLLOW)) {
            let target = rustix::fs::readlinkat(&found, "", Vec::new())?.into_bytes();
            let target = match (target.starts_with(b"/"), before.is_empty()) {
                (true, _) => below_workspace(&target).ok_or(Errno::XDEV)?,
                (false, true) => target,
                (false, false) => [before.as_slice(), target.as_slice()].join(&b'/'),
            };
            let rest = names.get(index + 1..).unwrap_or_default();
            let parts: Vec<&[u8]> =
                std::iter::once(target.as_slice()).chain(rest.iter().copied()).collect();
            return Ok(parts.join(&b'/'));
        }
        before = here;
    }
    // No link is at fault: the path itself leaves.
    Err(Errno::XDEV)
}

/// What follows `/workspace` in an absolute path, never empty; `None` where it lies elsewhere.
fn below_workspace(path: &[u8]) -> Option<Vec<u8>> {
    let trimmed = path.iter().position(|b| *b != b'/').and_then(|first| path.get(first..))?;
    let below = trimmed.strip_prefix(WORKSPACE.get(1..)?)?;
    if !below.is_empty() && !below.starts_with(b"/") {
        return None;
    }
    let first = below.iter().position(|b| *b != b'/');
    Some(first.and_then(|first| below.get(first..)).unwrap_or(b".").to_vec())
}

/// Whether a relative path leads out by its text alone, whatever of it is there.
fn leaves(path: &[u8]) -> bool {
    let mut depth = 0usize;
    for name in path.split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn absolute_paths_of_a_workspace_lie_below_it() {
        let below = |path: &str| {
            below_workspace(path.as_bytes()).map(|path| String::from_utf8(path).unwrap())
        };
        assert_eq!(below("/workspace/a/b").as_deref(), Some("a/b"));
        assert_eq!(below("//workspace//a/").as_deref(), Some("a/"));
        assert_eq!(below("/workspace").as_deref(), Some("."));
        for other in ["/", "/etc", "/workspaces/a", "/work"] {
            assert_eq!(below(other), None, "{other}");
        }
    }

    #[test]
    fn a_path_that_leaves_is_known_by_its_text() {
        for out in ["..", "a/../..", "a/../../b", "./.."] {
            assert!(leaves(out.as_bytes()), "{out}");
        }
        for inside in ["a/..", "a/../b", ".", "a/b/../.."] {
            assert!(!leaves(inside.as_bytes()), "{inside}");
        }
    }
}
