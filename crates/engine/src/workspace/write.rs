//! Writes a file of a workspace: into a file without a name, which takes its place in one step.
//!
//! Invariant: a reader sees the old file or the new one, whole; whenever we are killed, nothing is
//! left in the workspace but one of them. (In an image, which is a file system of its own, the new one may
//! be left beside under a name of ours.)

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Access, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use sandkasten_files::identity;
use sandkasten_jail::fault;
use sandkasten_jail::path::Beneath;
use sandkasten_protocol::Expect;
use sandkasten_types::ids::random_hex;

use super::names::judge;
use super::place::{Identity, Place, Spot, file_type};
use super::{Who, WorkspaceError, WriteOptions, path};
use crate::config::Durability;
use crate::error::FileFault;

/// A file being written; seen by nobody before [`commit`](Self::commit), gone when dropped.
#[derive(Debug)]
#[must_use = "dropping it throws the file away"]
pub struct NewFile {
    file: OwnedFd,
    spot: Spot,
    staging: Arc<Beneath>,
    /// Holds the workspace: its files are not copied away meanwhile.
    place: Place,
    shown: Vec<u8>,
    mode: u32,
    durability: Durability,
    expect: Expect,
}

/// One commit at a time: what is expected to be there is looked at and replaced in one step, as far as
/// this API goes.
static COMMITS: Mutex<()> = Mutex::new(());

/// The name of a file in the staging directory, for the moment before it takes its place.
const STAGED: &str = "staged";

/// Finds the place, sees that the acting user may write there, and opens a file without a name.
pub(super) fn begin(
    place: Place,
    text: &[u8],
    options: WriteOptions,
    staging: Arc<Beneath>,
) -> Result<NewFile, WorkspaceError> {
    let path = path::parse(text)?;
    fault::point("write: begin")?;
    let spot = place.spot(&path.raw, options.parents)?;
    judge(&options.expect, spot.stat.as_ref())?;
    let old_mode = check_old(place.who, &spot)?;
    let flags = OFlags::WRONLY | OFlags::TMPFILE;
    let file = spot.dir.open_file(Path::new("."), flags, Mode::RUSR | Mode::WUSR)?;
    let mode = options.mode.or(old_mode).unwrap_or(0o644) & 0o1777;
    let WriteOptions { durability, expect, .. } = options;
    let shown = path.shown;
    Ok(NewFile { file, spot, staging, place, shown, mode, durability, expect })
}

/// The mode of a file that is to be replaced: refused where open(2) for writing would be.
fn check_old(who: Who, spot: &Spot) -> Result<Option<u32>, WorkspaceError> {
    let Some(stat) = &spot.stat else { return Ok(None) };
    match file_type(stat) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(FileFault::IsADirectory.into()),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Err(FileFault::NotAFile.into()),
    }
    let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
    match rustix::fs::accessat(&spot.dir, &spot.name, Access::WRITE_OK, flags) {
        // A program that runs can't be written, but it can be replaced.
        Ok(()) | Err(Errno::TXTBSY) => {}
        Err(errno) => return Err(errno.into()),
    }
    check_sticky(who, &rustix::fs::fstat(&spot.dir)?, stat)?;
    Ok(Some(stat.st_mode & 0o1777))
}

/// In a sticky directory a name belongs to the owner of its file. The kernel does not see who replaces
/// it: the last step is the daemon's own.
fn check_sticky(who: Who, dir: &Stat, stat: &Stat) -> Result<(), FileFault> {
    let is_sticky = dir.st_mode & 0o1000 != 0;
    let is_own = [stat.st_uid, dir.st_uid].contains(&who.ids().0);
    match is_sticky && !is_own && who != Who::Root {
        true => Err(FileFault::PermissionDenied),
        false => Ok(()),
    }
}

impl NewFile {
    /// The path relative to the workspace.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.shown
    }

    /// Appends `data`.
    ///
    /// # Errors
    /// [`FileFault::NoSpace`], or what write(2) says.
    pub fn write(&mut self, mut data: &[u8]) -> Result<(), WorkspaceError> {
        fault::point("write: data")?;
        while !data.is_empty() {
            match rustix::io::write(&self.file, data) {
                Ok(n) => data = data.get(n..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(err) => return Err(err.into()),
            }
        }
        Ok(())
    }

    /// Puts the file in its place, at once and whole.
    ///
    /// # Errors
    /// [`FileFault`], or what renameat(2) says.
    pub fn commit(self) -> Result<sandkasten_protocol::Identity, WorkspaceError> {
        let (uid, gid) = self.owner();
        rustix::fs::fchown(&self.file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        // After the owner: chown(2) clears the set-id bits.
        rustix::fs::fchmod(&self.file, Mode::from(self.mode))?;
        if self.durability == Durability::Fsync {
            fault::point("write: sync")?;
            rustix::fs::fsync(&self.file)?;
        }
        fault::point("write: commit")?;
        self.put()?;
        fault::point("write: in its place")?;
        match self.durability {
            Durability::Rename => {}
            Durability::Fsync => sync_up(&self.spot.dir, Some(self.spot.top))?,
        }
        Ok(identity(&rustix::fs::fstat(&self.file)?))
    }

    /// Root may leave a file that it replaces its owner, as in a session.
    fn owner(&self) -> (u32, u32) {
        match (self.place.who, &self.spot.stat) {
            (Who::Root, Some(old)) => (old.st_uid, old.st_gid),
            (who, _) => who.ids(),
        }
    }

    fn put(&self) -> Result<(), WorkspaceError> {
        let _one = COMMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let Spot { name, stat, .. } = &self.spot;
        if self.expect != Expect::Anything {
            judge(&self.expect, self.spot.now()?.as_ref())?;
        }
        if stat.is_none() {
            match self.link(&self.spot.dir, name) {
                Err(Errno::EXIST) if self.expect == Expect::Nothing => {
                    return Err(FileFault::AlreadyExists.into());
                }
                Err(Errno::EXIST) => {}
                answer => return Ok(answer?),
            }
        }
        // Only what has a name can take another's place: it gets one where no box and no caller sees it.
        let staged = OsStr::new(STAGED);
        let mut link = self.link(&self.staging, staged);
        if link == Err(Errno::EXIST) {
            // One that was killed between the two steps has left it.
            rustix::fs::unlinkat(&*self.staging, staged, AtFlags::empty())?;
            link = self.link(&self.staging, staged);
        }
        match link {
            Ok(()) => self.rename_from(&self.staging, staged),
            Err(Errno::XDEV) => self.replace_beside(),
            Err(err) => Err(err.into()),
        }
    }

    fn replace_beside(&self) -> Result<(), WorkspaceError> {
        // Nobody can guess it for the moment between the two steps.
        let beside = format!(".sandkasten-{}", random_hex().map_err(io::Error::other)?);
        self.link(&self.spot.dir, beside.as_ref())?;
        self.rename_from(&self.spot.dir, beside.as_ref())
    }

    fn rename_from(&self, dir: &Beneath, staged: &OsStr) -> Result<(), WorkspaceError> {
        let renamed = match fault::point("write: replace") {
            Ok(()) => rustix::fs::renameat(dir, staged, &self.spot.dir, &self.spot.name)
                .map_err(WorkspaceError::from),
            Err(error) => Err(error.into()),
        };
        if renamed.is_err() {
            match rustix::fs::unlinkat(dir, staged, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(err) => return Err(err.into()),
            }
        }
        renamed
    }

    fn link(&self, dir: &Beneath, name: &OsStr) -> Result<(), Errno> {
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        rustix::fs::linkat(rustix::fs::CWD, file, dir, name, AtFlags::SYMLINK_FOLLOW)
    }
}

/// More directories than any path has.
const DEPTH_MAX: usize = 2048;

/// Puts the names in a directory on disk, and those that lead to it from `top`, or within its file system:
/// who made the directories above may not have done it. Boxes may move them meanwhile: then more or
/// fewer are synced, and nothing else is done to them.
pub(crate) fn sync_up(dir: &Beneath, top: Option<Identity>) -> Result<(), WorkspaceError> {
    let first = Identity::of(dir)?;
    let (mut dir, mut here) = (dir.as_fd().try_clone_to_owned()?, first);
    for _ in 0..DEPTH_MAX {
        match rustix::fs::fsync(&dir) {
            // A file system without a disk has nothing to put there.
            Ok(()) | Err(Errno::INVAL | Errno::ROFS | Errno::NOTSUP) => {}
            Err(err) => return Err(err.into()),
        }
        if top == Some(here) {
            break;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::openat(&dir, "..", flags, Mode::empty())?;
        let identity = Identity::of(&above)?;
        if identity == here || identity.dev != first.dev {
            break;
        }
        (dir, here) = (above, identity);
    }
    Ok(())
}
