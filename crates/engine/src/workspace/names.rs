//! What is done to names and facts of files of a workspace, with the rights of who acts.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use sandkasten_files::{identity, meta};
use sandkasten_jail::path::Beneath;
use sandkasten_protocol::work::Meta;
use sandkasten_protocol::{Expect, Parents};

use super::place::{Access, Place, file_type, parent};
use super::{Who, WorkspaceError, path};
use crate::{FileFault, LastLink, Target};

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
    place.who.check(&rustix::fs::fstat(&dir)?, Access::MAKE).or_else(|error| {
        // Nothing needs to be made.
        if is_there(place, &path.raw, parents) { Ok(()) } else { Err(error) }
    })?;
    match rustix::fs::mkdirat(&dir, &name, Mode::RWXU) {
        Ok(()) => {}
        Err(Errno::EXIST) if is_there(place, &path.raw, parents) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let made = dir.open_file(Path::new(&name), flags, Mode::empty())?;
    let (uid, gid) = place.who.ids();
    rustix::fs::fchown(&made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    // After the owner: chown(2) clears the set-id bits.
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
    let (old_dir, new_dir) = (rustix::fs::fstat(&old.dir)?, rustix::fs::fstat(&new.dir)?);
    let moved = old.stat()?.ok_or(FileFault::NotFound)?;
    place.who.check(&old_dir, Access::MAKE)?;
    place.who.check(&new_dir, Access::MAKE)?;
    place.who.check_sticky(&old_dir, &moved)?;
    if let Some(replaced) = new.stat()? {
        place.who.check_sticky(&new_dir, &replaced)?;
    }
    if file_type(&moved) == FileType::Directory && old_dir.st_ino != new_dir.st_ino {
        // Its `..` is written.
        place.who.check(&moved, Access::WRITE)?;
    }
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
    let stat = rustix::fs::fstat(&found)?;
    let (is_root, (uid, gid)) = (place.who == Who::Root, place.who.ids());
    if stat.st_uid != uid && !is_root {
        return Err(FileFault::PermissionDenied.into());
    }
    // Who is not in the group can't give its rights away.
    let bits = if stat.st_gid == gid || is_root { 0o7777 } else { 0o5777 };
    let path = format!("/proc/self/fd/{}", found.as_fd().as_raw_fd());
    Ok(rustix::fs::chmodat(CWD, path, Mode::from(mode & bits), AtFlags::empty())?)
}

/// Removes a file, a link or an empty directory.
pub(super) fn remove(place: &Place, text: &[u8], expect: &Expect) -> Result<(), WorkspaceError> {
    let named = named(place, &path::parse(text)?.raw, Parents::MustExist)?;
    let dir = rustix::fs::fstat(&named.dir)?;
    let stat = named.stat()?.ok_or(FileFault::NotFound)?;
    judge(expect, Some(&stat))?;
    place.who.check(&dir, Access::MAKE)?;
    place.who.check_sticky(&dir, &stat)?;
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
