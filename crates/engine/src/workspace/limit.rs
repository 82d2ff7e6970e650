//! Workspaces of a limited size.
//!
//! By project quota a workspace stays the directory that it was. By image the directory becomes a
//! container, with the image in it:
//!
//! ```text
//!   workspaces/ID            the files themselves
//!   workspaces/ID/image      or an ext4 that has them; ID is marked by an attribute that no box can set
//! ```
//!
//! So whoever renames or removes `ID` takes all of it along. One becomes the other in one rename, after
//! all files were copied and are on the disk; what is cut off before leaves the workspace as it was.
//!
//! Nobody may have a workspace meanwhile: sessions have rows, and calls of the API hold a shared lock on
//! its top directory for as long as they have it open.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, RenameFlags, Uid, XattrFlags};
use rustix::io::Errno;
use sandkasten_jail::disk::image::{self, Life};
use sandkasten_jail::disk::{self, Mechanism, project};
use sandkasten_jail::path::Beneath;
use sandkasten_jail::{fault, tree};
use sandkasten_types::WorkspaceId;

use super::Workspaces;

/// Marks a directory as a container. Only root of the host can set one of this kind.
const MARK: &str = "trusted.sandkasten.image";
const IMAGE: &str = "image";
/// Stands before the id of a workspace whose new container is being filled.
const FILLING: &str = ".filling-";
/// How often a workspace may change under who opens it.
const RACES_MAX: u32 = 64;

/// Workspaces that are being copied.
#[derive(Debug, Default)]
pub(super) struct Copying(Mutex<HashSet<WorkspaceId>>);

/// Whether sessions have a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sessions {
    None,
    Some,
}

/// Why a limit was not set. The workspace is as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitFault {
    /// Its files must be copied for it, and somebody has it.
    #[error("in use")]
    InUse,
    /// It has more in it already.
    #[error("{0} bytes are in it already, or the disk is full")]
    TooSmall(u64),
    /// The mechanism of this host does not limit workspaces.
    #[error("not on this host")]
    Unavailable,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Workspaces {
    /// Removes what a copy left that was cut off. Call it before anything else.
    pub(super) fn sweep_copies(&self) -> io::Result<()> {
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(FILLING) {
                self.trash.take(&self.dir, name.as_ref())?;
            }
        }
        Ok(())
    }

    /// A workspace's top directory, wherever it lies. Until it is closed, the files are not copied away.
    ///
    /// # Errors
    /// `NotFound`; `ResourceBusy` while they are being copied; else what open(2) or mount(2) says.
    pub(super) fn top(&self, id: &WorkspaceId) -> io::Result<Beneath> {
        for _ in 0..RACES_MAX {
            let dir = self.dir.open_dir(Path::new(id.as_str()))?;
            let is_ours = rustix::fs::fstat(&dir)?;
            let top = match image_in(&dir)? {
                Some(image) => open_top(image::mount(&image)?.as_fd())?,
                None => dir,
            };
            // A box may hold the lock for ever; then a session has it, and it isn't copied either.
            let _shared = rustix::fs::flock(&top, FlockOperation::NonBlockingLockShared);
            if self.copying.lock().contains(id) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            let now = rustix::fs::statat(&self.dir, id.as_str(), AtFlags::SYMLINK_NOFOLLOW)?;
            if (now.st_dev, now.st_ino) == (is_ours.st_dev, is_ours.st_ino) {
                return Ok(top);
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// A detached tree of a workspace for one session, with the ids of `namespace`.
    ///
    /// # Errors
    /// As [`top`](Self::top).
    pub fn tree_for(&self, id: &WorkspaceId, namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let dir = self.dir.open_dir(Path::new(id.as_str()))?;
        let Some(image) = image_in(&dir)? else {
            return tree::idmapped_clone(dir.as_fd(), namespace);
        };
        let mount = image::mount(&image)?;
        tree::idmap(mount.as_fd(), namespace)?;
        Ok(mount)
    }

    /// Limits a workspace to `bytes`, by its own mechanism or, where it has none yet, by `mechanism`.
    /// Nobody else may change, make or remove it meanwhile.
    ///
    /// # Errors
    /// See [`LimitFault`].
    pub(crate) fn limit(
        &self,
        id: &WorkspaceId,
        bytes: u64,
        mechanism: Option<Mechanism>,
        sessions: Sessions,
    ) -> Result<(), LimitFault> {
        let dir = self.dir.open_dir(Path::new(id.as_str()))?;
        if let Some(image) = image_in(&dir)? {
            let grown = match image.metadata()?.len() {
                same if same == bytes => return Ok(()),
                less if less < bytes => image::grow(&image, bytes),
                _more => Err(io::ErrorKind::PermissionDenied.into()),
            };
            return match grown {
                // It can't be done in place.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    let top = open_top(image::mount(&image)?.as_fd())?;
                    self.copy_into_image(id, &top, bytes, sessions)
                }
                grown => Ok(grown?),
            };
        }
        if project::counted(dir.as_fd())?.is_some() {
            return project::change(dir.as_fd(), bytes).map_err(|error| too_small(error, &dir));
        }
        match mechanism {
            Some(Mechanism::Project) => {
                let _alone = self.alone(id, &dir, sessions)?;
                let limited = project::limit_tree(dir.as_fd(), bytes, seed(id));
                limited.map_err(|error| too_small(error, &dir))
            }
            Some(Mechanism::Image) => self.copy_into_image(id, &dir, bytes, sessions),
            Some(Mechanism::Memory) | None => Err(LimitFault::Unavailable),
        }
    }

    fn copy_into_image(
        &self,
        id: &WorkspaceId,
        from: &Beneath,
        bytes: u64,
        sessions: Sessions,
    ) -> Result<(), LimitFault> {
        let _alone = self.alone(id, from, sessions)?;
        let name = format!("{FILLING}{id}");
        self.dir.remove_tree(name.as_ref())?;
        let done = self.fill(&name, from, bytes).and_then(|()| {
            fault::point("workspace: exchange")?;
            let flags = RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(&self.dir, &name, &self.dir, id.as_str(), flags)?;
            // Before the old files go.
            Ok(rustix::fs::fsync(&self.dir)?)
        });
        // What has the name now is of no use: the old files, or a container that wasn't filled.
        match self.trash.take(&self.dir, name.as_ref()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        done.map_err(|error| too_small(error, from))
    }

    /// Makes a container with all that is in `from`, on the disk when this returns.
    fn fill(&self, name: &str, from: &Beneath, bytes: u64) -> io::Result<()> {
        rustix::fs::mkdirat(&self.dir, name, Mode::RWXU)?;
        let container = self.dir.open_dir(Path::new(name))?;
        rustix::fs::fsetxattr(&container, MARK, b"1", XattrFlags::CREATE)?;
        let path = disk::path_of(container.as_fd()).join(IMAGE);
        fault::point("workspace: copy")?;
        image::make(&path, bytes, Life::Durable, Some(from.as_fd()))?;
        let image = image::open(&path)?;
        let top = open_top(image::mount(&image)?.as_fd())?;
        dress_as(&top, from)?;
        rustix::fs::syncfs(&top)?;
        image.sync_all()?;
        Ok(rustix::fs::fsync(&container)?)
    }

    /// Keeps everybody away from a workspace, or says that somebody has it.
    fn alone(
        &self,
        id: &WorkspaceId,
        top: &Beneath,
        sessions: Sessions,
    ) -> Result<Alone<'_>, LimitFault> {
        if sessions == Sessions::Some || !self.copying.lock().insert(id.clone()) {
            return Err(LimitFault::InUse);
        }
        let alone = Alone { copying: &self.copying, id: id.clone() };
        match rustix::fs::flock(top, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(alone),
            Err(Errno::WOULDBLOCK) => Err(LimitFault::InUse),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }
}

struct Alone<'a> {
    copying: &'a Copying,
    id: WorkspaceId,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.copying.lock().remove(&self.id);
    }
}

impl Copying {
    fn lock(&self) -> MutexGuard<'_, HashSet<WorkspaceId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The image of a container; `None` for a plain directory.
fn image_in(dir: &Beneath) -> io::Result<Option<File>> {
    match rustix::fs::fgetxattr(dir, MARK, &mut [0_u8; 8]) {
        Ok(_) => image::open(&disk::path_of(dir.as_fd()).join(IMAGE)).map(Some),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn open_top(mount: BorrowedFd<'_>) -> io::Result<Beneath> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Beneath::from_fd(rustix::fs::openat(mount, ".", flags, Mode::empty())?))
}

/// Owner, mode and times of the top directory, which mke2fs makes its own way.
fn dress_as(top: &Beneath, from: &Beneath) -> io::Result<()> {
    let stat = rustix::fs::fstat(from)?;
    rustix::fs::fchown(top, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    Ok(rustix::fs::fchmod(top, Mode::from_raw_mode(stat.st_mode & 0o7777))?)
}

fn too_small(error: io::Error, dir: &Beneath) -> LimitFault {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return LimitFault::TooSmall(dir.size_bytes().unwrap_or(0));
    }
    LimitFault::Io(error)
}

/// A number that differs from workspace to workspace, most of the time.
fn seed(id: &WorkspaceId) -> u32 {
    let mix = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(16_777_619);
    id.as_str().bytes().fold(2_166_136_261, mix)
}
