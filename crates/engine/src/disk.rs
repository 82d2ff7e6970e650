//! What sessions and workspaces may write to disk, by the mechanism that the host has.
//!
//! What is limited, and to how much, is on the disk alone: the project of a directory, the size of an
//! image. So whoever comes later finds it, whatever `disk_limits` says by then.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use sandkasten_jail::disk::image::{self, Life};
use sandkasten_jail::disk::{self, Choice, Mechanism, project};
use sandkasten_jail::launcher::Launcher;
use sandkasten_jail::tree;
use sandkasten_protocol::id;

use crate::config::Config;
use crate::dirs::{make_owned, open_dir};
use crate::error::{Error, StartError};

/// A user namespace to try with, far above those of sessions.
const TRIAL_UID_BASE: u32 = 2_139_000_000;
/// The image of a session with a limit, in its folder.
const IMAGE: &str = "disk";

/// The mechanism of this host.
#[derive(Debug)]
pub(crate) struct Disks {
    choice: Choice,
}

/// Where a session writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// In its folder, as much as the disk has.
    Unlimited,
    Limited {
        mechanism: Mechanism,
        bytes: u64,
    },
}

impl Disks {
    /// Finds the mechanism by trying, in the data directory.
    pub(crate) fn open(config: &Config, launcher: &Launcher) -> Result<Self, StartError> {
        let namespace =
            || launcher.user_namespace(TRIAL_UID_BASE).map_err(|error| error.to_string());
        let choice = disk::choose(&config.data_dir, &config.disk_limits, namespace);
        if choice.mechanism.is_none() && config.ceilings.disk_mb.is_some() {
            return Err(StartError::DiskLimits(choice.to_string()));
        }
        tracing::info!(how = %choice, "disk_limits");
        Ok(Self { choice })
    }

    pub(crate) fn mechanism(&self) -> Option<Mechanism> {
        self.choice.mechanism
    }

    /// The mechanism and why none before it, for people.
    pub(crate) fn how(&self) -> String {
        self.choice.to_string()
    }

    /// Where a session with this limit writes to.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] where this host can't limit it.
    pub(crate) fn space(&self, bytes: Option<u64>) -> Result<Space, Error> {
        let Some(bytes) = bytes else { return Ok(Space::Unlimited) };
        match self.choice.mechanism {
            Some(mechanism) => Ok(Space::Limited { mechanism, bytes }),
            None => Err(Error::InvalidRequest(format!(
                "`limits.disk_mb` is not available on this host; {}",
                self.choice
            ))),
        }
    }
}

impl Space {
    /// Makes a session's `upper`, `work` and `workspace`; `folder` is its own, open as `opened`. Gives
    /// the detached tree of the three.
    pub(crate) fn make(
        self,
        folder: &Path,
        opened: BorrowedFd<'_>,
        uid_base: u32,
    ) -> io::Result<OwnedFd> {
        let Self::Limited { mechanism, bytes } = self else {
            fill(folder, uid_base)?;
            return tree::clone_tree(opened);
        };
        match mechanism {
            Mechanism::Project => {
                fill(folder, uid_base)?;
                let dirs = DIRS.map(|name| open_dir(&folder.join(name)));
                let dirs = dirs.into_iter().collect::<io::Result<Vec<_>>>()?;
                let dirs: Vec<_> = dirs.iter().map(|dir| dir.as_fd()).collect();
                project::limit(&dirs, bytes, uid_base)?;
                tree::clone_tree(opened)
            }
            Mechanism::Image => {
                let path = folder.join(IMAGE);
                image::make(&path, bytes, Life::Scratch, None)?;
                filled(image::mount(&image::open(&path)?)?, uid_base)
            }
            Mechanism::Memory => filled(disk::memory(bytes)?, uid_base),
        }
    }
}

const DIRS: [&str; 3] = ["upper", "work", "workspace"];

fn filled(mount: OwnedFd, uid_base: u32) -> io::Result<OwnedFd> {
    fill(&disk::path_of(mount.as_fd()), uid_base)?;
    Ok(mount)
}

fn fill(dir: &Path, uid_base: u32) -> io::Result<()> {
    // The box's root owns the root directory that its overlay shows.
    make_owned(&dir.join("upper"), 0o755, uid_base)?;
    make_owned(&dir.join("work"), 0o700, uid_base)?;
    // Like a workspace: the box's own ids on disk, shifted by an idmapped mount.
    make_owned(&dir.join("workspace"), 0o755, id::SANDBOX)
}

/// Gives back what the host keeps for a session's limit, before its folder goes.
pub(crate) fn release(folder: &Path) -> io::Result<()> {
    // An image's loop device goes with its last mount.
    match File::open(folder.join("upper")) {
        Ok(upper) => project::release(upper.as_fd()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Bytes used in a session's folder, where they are counted.
pub(crate) fn used_in(folder: &Path) -> io::Result<Option<u64>> {
    match image::open(&folder.join(IMAGE)) {
        Ok(image) => return Ok(Some(disk::used_bytes(image::mount(&image)?.as_fd())?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    match File::open(folder.join("upper")) {
        Ok(upper) => Ok(project::counted(upper.as_fd())?.map(|counted| counted.bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
