//! What sessions and workspaces may write to disk, by the mechanism that the host has.
//!
//! What is limited, and to how much, is on the disk alone: the project of a directory, the size of an
//! image. So whoever comes later finds it, whatever `disk_limits` says by then.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sandkasten_jail::disk::image::{self, Life};
use sandkasten_jail::disk::{self, Choice, Mechanism, project};
use sandkasten_jail::launcher::Launcher;
use sandkasten_jail::tree;
use sandkasten_protocol::User;

use crate::config::Config;
use crate::error::{Error, StartError};
use crate::folders::{make_dir, make_owned, open_dir};

/// A user namespace to try with, far above those of sessions.
const TRIAL_UID_BASE: u32 = 2_139_000_000;
/// The image of a session with a limit, in its folder.
const IMAGE: &str = "disk";

/// The mechanism of this host.
#[derive(Debug)]
pub(crate) struct Disks {
    choice: Choice,
    /// Where every session has an image of its own.
    ahead: Option<Ahead>,
}

/// Images of the size that sessions have which ask for none, made before they are wanted: mke2fs takes
/// longer than all else of a create.
#[derive(Debug)]
pub(crate) struct Ahead {
    dir: PathBuf,
    bytes: u64,
    /// Held by who fills it.
    filling: Mutex<()>,
}

/// As many as are made at once on a small host.
const AHEAD: usize = 2;

/// The ids that a session's directories are made with.
#[derive(Debug)]
pub(crate) struct BoxIds {
    /// First host id of its range.
    pub(crate) base: u32,
    /// The session's user by the box's own ids: a `/workspace` that is the session's alone is its.
    pub(crate) user: User,
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
        let ahead = match (choice.mechanism, config.ceilings.disk_mb) {
            (Some(Mechanism::Image), Some(mb)) => {
                let ahead = Ahead::open(&config.data_dir, mb << 20);
                Some(ahead.map_err(|error| StartError::DiskLimits(error.to_string()))?)
            }
            _ => None,
        };
        Ok(Self { choice, ahead })
    }

    pub(crate) fn ahead(&self) -> Option<&Ahead> {
        self.ahead.as_ref()
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

impl Ahead {
    /// What an earlier daemon has left is of its size, and perhaps not whole: it goes.
    fn open(data_dir: &Path, bytes: u64) -> io::Result<Self> {
        let dir = data_dir.join("ahead");
        match std::fs::remove_dir_all(&dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        make_dir(&dir, 0o700)?;
        Ok(Self { dir, bytes, filling: Mutex::default() })
    }

    /// Makes those that are missing. Blocks.
    pub(crate) fn fill(&self) -> io::Result<()> {
        let _one_at_a_time = self.filling.lock().unwrap_or_else(PoisonError::into_inner);
        for place in self.places() {
            if !place.try_exists()? {
                let new = self.dir.join("new");
                image::make(&new, self.bytes, Life::Scratch, None)?;
                std::fs::rename(new, place)?;
            }
        }
        Ok(())
    }

    /// Moves one to `path`, if there is one.
    fn take(&self, bytes: u64, path: &Path) -> io::Result<Taken> {
        if bytes != self.bytes {
            return Ok(Taken::None);
        }
        for place in self.places() {
            match std::fs::rename(place, path) {
                Ok(()) => return Ok(Taken::One),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Taken::None)
    }

    fn places(&self) -> impl Iterator<Item = PathBuf> {
        (0..AHEAD).map(|number| self.dir.join(number.to_string()))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    One,
    None,
}

impl Space {
    /// Makes a session's `upper`, `work` and `workspace`; `folder` is its own, open as `opened`. Gives
    /// the detached tree of the three.
    pub(crate) fn make(
        self,
        folder: &Path,
        opened: BorrowedFd<'_>,
        ids: &BoxIds,
        ahead: Option<&Ahead>,
    ) -> io::Result<OwnedFd> {
        let Self::Limited { mechanism, bytes } = self else {
            fill(folder, ids)?;
            return tree::clone_tree(opened);
        };
        match mechanism {
            Mechanism::Project => {
                fill(folder, ids)?;
                let dirs = DIRS.map(|name| open_dir(&folder.join(name)));
                let dirs = dirs.into_iter().collect::<io::Result<Vec<_>>>()?;
                let dirs: Vec<_> = dirs.iter().map(|dir| dir.as_fd()).collect();
                project::limit(&dirs, bytes, ids.base)?;
                tree::clone_tree(opened)
            }
            Mechanism::Image => {
                let path = folder.join(IMAGE);
                let taken = ahead.map(|ahead| ahead.take(bytes, &path)).transpose()?;
                if taken != Some(Taken::One) {
                    image::make(&path, bytes, Life::Scratch, None)?;
                }
                filled(image::mount(&image::open(&path)?)?, ids)
            }
            Mechanism::Memory => filled(disk::memory(bytes)?, ids),
        }
    }
}

const DIRS: [&str; 3] = ["upper", "work", "workspace"];

fn filled(mount: OwnedFd, ids: &BoxIds) -> io::Result<OwnedFd> {
    fill(&disk::path_of(mount.as_fd()), ids)?;
    Ok(mount)
}

fn fill(dir: &Path, ids: &BoxIds) -> io::Result<()> {
    // The box's root owns the root directory that its overlay shows.
    let root = User { uid: ids.base, gid: ids.base };
    make_owned(&dir.join("upper"), 0o755, &root)?;
    make_owned(&dir.join("work"), 0o700, &root)?;
    // Like a workspace: the box's own ids on disk, shifted by an idmapped mount.
    make_owned(&dir.join("workspace"), 0o755, &ids.user)
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
