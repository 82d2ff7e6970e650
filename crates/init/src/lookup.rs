//! From a path of the engine's to descriptors, with the rights of whoever is switched to.
//!
//! A path names what it names in the box; every link on it was made by hostile code. Magic links of
//! `/proc` are refused, since they would lead where init is, and so is init's own part of `/proc`,
//! which the kernel opens to init whatever its ids are.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
pub(crate) use sandkasten_files::fault;
use sandkasten_protocol::{FileFault, Parents};

/// Where relative paths start.
const BASE: &[u8] = b"/workspace/";
const PATH_BYTES_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 255;
/// As many links as the kernel follows.
const LINKS_MAX: usize = 40;
pub(crate) const PROC_MAGIC: i64 = 0x9fa0;
const DIR_MODE: u32 = 0o755;

/// A place for a file: it may be there or not, but it is no link.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: OwnedFd,
    pub(crate) name: Vec<u8>,
}

/// The absolute form of a path. Links are not resolved; `..` stays.
pub(crate) fn absolute(path: &[u8]) -> Result<Vec<u8>, FileFault> {
    let has_long_name = path.split(|b| *b == b'/').any(|name| name.len() > NAME_BYTES_MAX);
    if path.is_empty() || path.len() > PATH_BYTES_MAX || path.contains(&0) || has_long_name {
        return Err(FileFault::InvalidPath);
    }
    let base = if path.starts_with(b"/") { &b""[..] } else { BASE };
    let joined = [base, path].concat();
    let names = joined.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".");
    let mut absolute: Vec<u8> = names.flat_map(|name| [b"/", name].concat()).collect();
    // These ask for a directory, which is for the kernel to say.
    if path.ends_with(b"/") || path.ends_with(b"/.") || absolute.is_empty() || path == b"." {
        absolute.push(b'/');
    }
    Ok(absolute)
}

/// Whether a link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    Yes,
    No,
}

/// Opens what a path leads to, without reading: `O_PATH`.
pub(crate) fn find(path: &[u8]) -> Result<OwnedFd, FileFault> {
    find_last(path, Follow::Yes)
}

/// The same, with a word on a link at the end.
pub(crate) fn find_last(path: &[u8], follow: Follow) -> Result<OwnedFd, FileFault> {
    let flags = match follow {
        Follow::Yes => OFlags::empty(),
        Follow::No => OFlags::NOFOLLOW,
    };
    let found = find_at(CWD, path, flags).map_err(fault)?;
    refuse_own(&found)?;
    Ok(found)
}

/// Opens what was found, for real. `what` says it is a regular file.
pub(crate) fn reopen(found: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    // Non-blocking: a lease of the payload's on the file could make this wait.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// What a descriptor is of, if that is a regular file.
pub(crate) fn regular(found: impl AsFd) -> Result<Stat, FileFault> {
    let stat = rustix::fs::fstat(found).map_err(fault)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(stat),
        FileType::Directory => Err(FileFault::IsADirectory),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => Err(FileFault::NotAFile),
    }
}

/// Finds the place for a file at an absolute path, through links that may dangle.
pub(crate) fn place(path: &[u8], parents: Parents) -> Result<Place, FileFault> {
    let (parent, name) = split(path)?;
    let mut dir = match (find_dir(CWD, parent), parents) {
        (Err(Errno::NOENT), Parents::Make) => make_dirs(parent)?,
        (found, _) => found.map_err(fault)?,
    };
    let mut name = name.to_vec();
    for _ in 0..=LINKS_MAX {
        refuse_own(&dir)?;
        let link = match rustix::fs::readlinkat(&dir, name.as_slice(), Vec::new()) {
            Ok(link) => link.into_bytes(),
            Err(Errno::INVAL | Errno::NOENT) => return Ok(Place { dir, name }),
            Err(errno) => return Err(fault(errno)),
        };
        let (parent, last) = split(&link)?;
        let from = if link.starts_with(b"/") { CWD } else { dir.as_fd() };
        dir = find_dir(from, parent).map_err(fault)?;
        name = last.to_vec();
    }
    Err(FileFault::InvalidPath)
}

/// The directory and the name of what is at an absolute path; a link there is not followed.
pub(crate) fn entry(path: &[u8], parents: Parents) -> Result<Place, FileFault> {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |last| last + 1);
    let (parent, name) = split(path.get(..end).unwrap_or_default())?;
    let dir = match (find_dir(CWD, parent), parents) {
        (Err(Errno::NOENT), Parents::Make) => make_dirs(parent)?,
        (found, _) => found.map_err(fault)?,
    };
    refuse_own(&dir)?;
    Ok(Place { dir, name: name.to_vec() })
}

impl Place {
    /// The file that is there. It is no link, unless the payload has just made it one.
    pub(crate) fn existing(&self) -> Result<Option<OwnedFd>, FileFault> {
        match find_at(self.dir.as_fd(), &self.name, OFlags::NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(fault(errno)),
        }
    }
}

/// Directory part and last name.
fn split(path: &[u8]) -> Result<(&[u8], &[u8]), FileFault> {
    let slash = path.iter().rposition(|b| *b == b'/');
    let (parent, name) = match slash {
        Some(0) => (&b"/"[..], path.get(1..).unwrap_or_default()),
        Some(slash) => path
            .split_at_checked(slash)
            .map_or((path, &b""[..]), |(parent, rest)| (parent, rest.get(1..).unwrap_or_default())),
        None => (&b"."[..], path),
    };
    match name {
        b"" | b"." | b".." => Err(FileFault::IsADirectory),
        _ => Ok((parent, name)),
    }
}

fn find_at(dir: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
}

pub(crate) fn find_dir(dir: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    find_at(dir, path, OFlags::DIRECTORY)
}

/// Opens a directory and makes what is missing on the way, as `mkdir -p` does.
fn make_dirs(path: &[u8]) -> Result<OwnedFd, FileFault> {
    let mut dir = find_dir(CWD, b"/").map_err(fault)?;
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        dir = match find_dir(dir.as_fd(), name) {
            Err(Errno::NOENT) => {
                refuse_own(&dir)?;
                match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(DIR_MODE)) {
                    Ok(()) | Err(Errno::EXIST) => find_dir(dir.as_fd(), name).map_err(fault)?,
                    Err(errno) => return Err(fault(errno)),
                }
            }
            found => found.map_err(fault)?,
        };
    }
    Ok(dir)
}

/// Makes a directory where it is missing, and sees whether it can be entered.
pub(crate) fn enterable_dir(path: &[u8]) -> Result<(), FileFault> {
    let path = absolute(path)?;
    let dir = match find_dir(CWD, &path) {
        Err(Errno::NOENT) => make_dirs(&path)?,
        found => found.map_err(fault)?,
    };
    // A look-up of a name in it takes what entering it does.
    find_dir(dir.as_fd(), b".").map(drop).map_err(fault)
}

/// Refuses what lies in `/proc/1`, also where a link has led there.
fn refuse_own(found: impl AsFd) -> Result<(), FileFault> {
    let found = found.as_fd();
    if rustix::fs::fstatfs(found).map_err(fault)?.f_type != PROC_MAGIC {
        return Ok(());
    }
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    let path = rustix::fs::readlinkat(CWD, link, Vec::new()).map_err(fault)?.into_bytes();
    let own = format!("/proc/{}", rustix::process::getpid().as_raw_pid()).into_bytes();
    let rest = path.strip_prefix(own.as_slice());
    if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")) {
        return Err(FileFault::PermissionDenied);
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn absolute_paths() {
        let text = |path: &str| absolute(path.as_bytes()).map(|p| String::from_utf8(p).unwrap());
        let ok = |path: &str| Ok(path.to_owned());
        assert_eq!(text("a/b"), ok("/workspace/a/b"));
        assert_eq!(text("./a//b"), ok("/workspace/a/b"));
        assert_eq!(text("/a/../b"), ok("/a/../b"));
        assert_eq!(text("a/"), ok("/workspace/a/"));
        assert_eq!(text("/"), ok("/"));
        assert_eq!(text("."), ok("/workspace/"));
        let long = "x".repeat(256);
        for bad in ["", "a\0b", &long, &"a/".repeat(2049)] {
            assert_eq!(text(bad), Err(FileFault::InvalidPath), "{bad:?}");
        }
    }

    #[test]
    fn splits() {
        assert_eq!(split(b"/a/b"), Ok((&b"/a"[..], &b"b"[..])));
        assert_eq!(split(b"/a"), Ok((&b"/"[..], &b"a"[..])));
        assert_eq!(split(b"a"), Ok((&b"."[..], &b"a"[..])));
        for dir in [&b"/a/"[..], b"/", b"..", b"/a/.."] {
            assert_eq!(split(dir), Err(FileFault::IsADirectory));
        }
    }
}
