//! Finds files in a workspace that boxes may change meanwhile.
//!
//! Invariant: every descriptor comes from openat2(2) with `RESOLVE_BENEATH`. An absolute link to
//! below `/workspace`, which stays inside in a box, is rewritten here and resolved by the kernel anew.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sandkasten_jail::path::Beneath;

use super::path::below_root;
use super::{Parents, Who, WorkspaceError};
use crate::error::FileFault;

/// As many links as the kernel follows.
const LINKS_MAX: u32 = 40;

/// One workspace's tree.
#[derive(Debug)]
pub(super) struct Place {
    top: Beneath,
    pub(super) who: Who,
}

/// Where a file is or is to be: an open directory and a name in it that is no link.
#[derive(Debug)]
pub(super) struct Spot {
    pub(super) dir: Beneath,
    pub(super) name: OsString,
    /// `None`: there is nothing yet.
    pub(super) stat: Option<Stat>,
    /// The workspace itself.
    pub(super) top: Identity,
}

/// Tells a directory from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(super) dev: u64,
    pub(super) ino: u64,
}

impl Identity {
    pub(super) fn of(file: impl AsFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self { dev: stat.st_dev, ino: stat.st_ino })
    }
}

impl Spot {
    /// What is there by now.
    pub(super) fn now(&self) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(err) => Err(err),
        }
    }
}

impl Place {
    pub(super) fn new(top: Beneath, who: Who) -> Self {
        Self { top, who }
    }

    /// Opens what is at `path`, links followed as long as they stay inside.
    pub(super) fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, WorkspaceError> {
        self.following(path, |path| Ok(self.top.open_file(path, flags, Mode::empty())?))
    }

    /// Where writing to `path` would write: a link at its end is followed, even to what is not there.
    pub(super) fn spot(&self, path: &Path, parents: Parents) -> Result<Spot, WorkspaceError> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            let name = last_name(&path)?;
            let parent = parent(&path);
            let dir = self.directory(&parent, parents)?;
            let stat = match rustix::fs::statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(err) => return Err(err.into()),
            };
            if stat.is_none_or(|stat| file_type(&stat) != FileType::Symlink) {
                return Ok(Spot { dir, name, stat, top: Identity::of(&self.top)? });
            }
            let target = rustix::fs::readlinkat(&dir, &name, Vec::new())?;
            path = join(&parent, &OsString::from_vec(target.into_bytes()))?;
        }
        Err(Errno::LOOP.into())
    }

    pub(super) fn directory(
        &self,
        path: &Path,
        parents: Parents,
    ) -> Result<Beneath, WorkspaceError> {
        let opened = self.following(path, |path| Ok(self.top.open_dir(path)?));
        match (opened, parents) {
            (Err(WorkspaceError::File(FileFault::NotFound)), Parents::Make) => {
                let owner = self.who.ids();
                self.following(path, |path| {
                    Ok(self.top.create_dirs(path, owner, Mode::from(0o755))?)
                })
            }
            (opened, _) => opened,
        }
    }

    /// Tries `open`; where the kernel says that the path leaves, a link on it may be absolute and
    /// still lead to below `/workspace`: then it is tried again with what the link stands for.
    fn following<T>(
        &self,
        path: &Path,
        open: impl Fn(&Path) -> Result<T, WorkspaceError>,
    ) -> Result<T, WorkspaceError> {
        let mut path = path.to_owned();
        for _ in 0..LINKS_MAX {
            match open(&path) {
                Err(WorkspaceError::File(FileFault::NotAllowed)) => {
                    path = self.without_link(&path)?;
                }
                answer => return answer,
            }
        }
        Err(Errno::LOOP.into())
    }

    /// The path with its first link replaced by the link's target.
    fn without_link(&self, path: &Path) -> Result<PathBuf, WorkspaceError> {
        let mut before = PathBuf::new();
        let mut components = path.components();
        while let Some(component) = components.next() {
            let here = before.join(component);
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let file = self.top.open_file(&here, flags, Mode::empty())?;
            if file_type(&rustix::fs::fstat(&file)?) == FileType::Symlink {
                let target = rustix::fs::readlinkat(&file, "", Vec::new())?;
                let target = join(&before, &OsString::from_vec(target.into_bytes()))?;
                return Ok(target.join(components.as_path()));
            }
            before = here;
        }
        // No link is at fault: the path itself leaves, or another mount is in the way.
        Err(FileFault::NotAllowed.into())
    }
}

/// A link's target, seen from the directory that the link is in.
fn join(dir: &Path, target: &OsStr) -> Result<PathBuf, WorkspaceError> {
    let target = Path::new(target);
    if target.has_root() {
        let below = below_root(target).ok_or(FileFault::NotAllowed)?;
        return Ok(if below.as_os_str().is_empty() { ".".into() } else { below });
    }
    Ok(dir.join(target))
}

pub(super) fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    }
}

/// The name that a file is to have. A path that can only be a directory's has none.
fn last_name(path: &Path) -> Result<OsString, WorkspaceError> {
    let is_dir = path.as_os_str().as_encoded_bytes().ends_with(b"/")
        || path.as_os_str().as_encoded_bytes().ends_with(b"/.");
    match path.components().next_back() {
        Some(Component::Normal(name)) if !is_dir => Ok(name.to_owned()),
        _ => Err(FileFault::IsADirectory.into()),
    }
}

pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}
