//! What is done to names and facts of files of a workspace, with the rights of who acts.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use sandkasten_files::{identity, meta};
use sandkasten_jail::path::Beneath;
use sandkasten_protocol::work::Meta;
use sandkasten_protocol::{Expect, Parents};

use super::place::{Place, file_type, parent};
use super::{WorkspaceError, path};
use crate::error::FileFault;
use crate::filecall::{LastLink, Target};

/// A directory that is open and the name of something in it; a link there is not followed.
struct Named {
    dir: Beneath,
    name: OsString,
}

/// Facts about what a path leads to, and the path relative to the workspace.
pub(super) fn stat(
    place: &Place,
    text: &[u8],
    last: LastLink,
) -> Result<(Meta, Vec<u8>), WorkspaceError> {
    let path = path::parse(text)?;
    let found = match named(place, &path.raw, Parents::MustExist) {
        Ok(Named { dir, name }) if last == LastLink::Meant => {
            dir.open_file(Path::new(&name), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?
        }
        // The workspace itself, or what stands before a `..`: no link can be there.
        _ => place.open(&path.raw, OFlags::PATH)?,
    };
    let stat = rustix::fs::fstat(&found)?;
    Ok((meta(&stat, &found, b""), path.shown))
}

/// Makes a directory. With `Parents::Make` one that is there is fine, as for `mkdir -p`.
pub(super) fn make_dir(
    place: &Place,
    text: &[u8],
    mode: u32,
    parents: Parents,
) -> Result<(), WorkspaceError> {
    let path = path::parse(text)?;
    if path.shown.is_empty() {
        return if parents == Parents::Make {
            Ok(())
        } else {
            Err(FileFault::AlreadyExists.into())
        };
    }
    let Named { dir, name } = named(place, &path.raw, parents)?;
    match rustix::fs::mkdirat(&dir, &name, Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) if is_there(place, &path.raw, parents) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let made = dir.open_file(Path::new(&name), flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&made, Mode::from(mode & 0o7777))?)
}

fn is_there(place: &Place, path: &Path, parents: Parents) -> bool {
    parents == Parents::Make && place.open(path, OFlags::PATH | OFlags::DIRECTORY).is_ok()
}

/// Gives a file another name. Links are moved, not followed.
pub(super) fn rename(
    place: &Place,
    from: &[u8],
    to: &[u8],
    target: Target,
) -> Result<(), WorkspaceError> {
    let old = named(place, &path::parse(from)?.raw, Parents::MustExist)?;
    let new = named(place, &path::parse(to)?.raw, Parents::MustExist)?;
    let flags = match target {
        Target::MayBeReplaced => RenameFlags::empty(),
        Target::MustBeFree => RenameFlags::NOREPLACE,
    };
    match rustix::fs::renameat_with(&old.dir, &old.name, &new.dir, &new.name, flags) {
        Err(Errno::INVAL) => Err(FileFault::InvalidPath("a directory into itself".into()).into()),
        answer => Ok(answer?),
    }
}

/// Sets the mode of what a path leads to.
pub(super) fn chmod(place: &Place, text: &[u8], mode: u32) -> Result<(), WorkspaceError> {
    let found = place.open(&path::parse(text)?.raw, OFlags::PATH)?;
    let path = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    Ok(rustix::fs::chmodat(CWD, path, Mode::from(mode & 0o7777), AtFlags::empty())?)
}

/// Removes a file, a link or an empty directory.
pub(super) fn remove(place: &Place, text: &[u8], expect: &Expect) -> Result<(), WorkspaceError> {
    let named = named(place, &path::parse(text)?.raw, Parents::MustExist)?;
    let stat = named.stat()?.ok_or(FileFault::NotFound)?;
    judge(expect, Some(&stat))?;
    let is_dir = file_type(&stat) == FileType::Directory;
    let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    Ok(rustix::fs::unlinkat(&named.dir, &named.name, flags)?)
}

impl Named {
    fn stat(&self) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Where a name is. The workspace itself has none here, nor has what ends in `..`.
fn named(place: &Place, path: &Path, parents: Parents) -> Result<Named, WorkspaceError> {
    let Some(Component::Normal(name)) = path.components().next_back() else {
        return Err(FileFault::PermissionDenied.into());
    };
    let above: PathBuf = parent(path);
    Ok(Named { dir: place.directory(&above, parents)?, name: name.to_owned() })
}

/// Refuses where something else is there than must be.
pub(super) fn judge(expect: &Expect, found: Option<&Stat>) -> Result<(), FileFault> {
    match (expect.allows(found.map(identity)), expect) {
        (true, _) => Ok(()),
        (false, Expect::Nothing) => Err(FileFault::AlreadyExists),
        (false, _) => Err(FileFault::Changed),
    }
}
