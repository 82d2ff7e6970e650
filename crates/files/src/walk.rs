//! Goes through a tree, from an open directory down, while hostile code may change it.
//!
//! Invariant: a directory is opened by its name relative to the descriptor of the one above, and never
//! through a link. So whatever is moved or swapped meanwhile, nothing is reached that did not lie below
//! at the time. Of a deep tree the upper directories are closed and found again by `..`, which counts
//! only where it leads to the same directory.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;
use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::Kind;

use crate::fault::{Failure, fault};
use crate::meta::kind;
use crate::root::refuse_procfs;

/// Directories that are open at once.
const OPEN_MAX: usize = 128;
/// Bytes of names that are held at once, with what holding each costs.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;
const NAME_COST: usize = 48;
/// Bytes of a path below the top.
const PATH_BYTES_MAX: usize = 256 * 1024;
const BUFFER_BYTES: usize = 32 * 1024;

/// A walk through a tree. It goes down only where it is told to ([`enter`](Self::enter)).
#[derive(Debug)]
pub struct Walk {
    levels: Vec<Level>,
    /// A directory that was just left.
    left: Option<Level>,
    /// Names of one directory that are looked at.
    names_max: usize,
    held: usize,
    is_cut: bool,
    buffer: Vec<MaybeUninit<u8>>,
}

/// An open directory and what is to come of it.
#[derive(Debug)]
struct Level {
    /// `None`: closed to save descriptors.
    dir: Option<OwnedFd>,
    stat: Stat,
    /// The last is next.
    names: Vec<Vec<u8>>,
    name: Vec<u8>,
    path: Vec<u8>,
}

/// What a walk comes to.
#[derive(Debug)]
pub enum Step {
    /// By name, within a directory.
    Entry(Found),
    /// A directory that was entered, once all in it has been gone through.
    Left(Found),
}

/// An entry of the directory that [`Walk::dir`] gives.
#[derive(Debug)]
pub struct Found {
    pub name: Vec<u8>,
    /// Relative to where the walk began.
    pub path: Vec<u8>,
    /// Links are not followed.
    pub stat: Stat,
}

impl Found {
    #[must_use]
    pub fn kind(&self) -> Kind {
        kind(self.stat.st_mode)
    }

    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind() == Kind::Dir
    }
}

impl Walk {
    /// Begins at an open directory, of each of which no more than `names_max` names are looked at.
    ///
    /// # Errors
    /// It can't be read or searched.
    pub fn new(dir: OwnedFd, names_max: usize) -> Result<Self, FileFault> {
        let mut walk = Self {
            levels: Vec::new(),
            left: None,
            names_max,
            held: 0,
            is_cut: false,
            buffer: vec![MaybeUninit::uninit(); BUFFER_BYTES],
        };
        let stat = rustix::fs::fstat(&dir).map_err(fault)?;
        refuse_procfs(&dir)?;
        walk.push(dir, stat, (Vec::new(), Vec::new()))?;
        Ok(walk)
    }

    /// The next entry of the directory that was entered last, or that one itself after its last.
    ///
    /// # Errors
    /// A directory further up is not where it was.
    pub fn next_step(&mut self) -> Result<Option<Step>, Failure> {
        loop {
            self.left = None;
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            let Some(name) = level.names.pop() else {
                let Some(found) = self.pop()? else { return Ok(None) };
                return Ok(Some(Step::Left(found)));
            };
            self.held = self.held.saturating_sub(name.len() + NAME_COST);
            let path = join(&level.path, &name);
            let Some(dir) = level.dir.as_ref() else {
                return Err(Failure::at(FileFault::NotFound, &path));
            };
            match rustix::fs::statat(dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => return Ok(Some(Step::Entry(Found { name, path, stat }))),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(Failure::at(fault(errno), &path)),
            }
        }
    }

    /// Goes down into a directory that was just given.
    ///
    /// # Errors
    /// It is none any more, or the user may not read and search it.
    pub fn enter(&mut self, found: &Found) -> Result<(), FileFault> {
        if found.path.len() > PATH_BYTES_MAX {
            return Err(FileFault::TooLarge);
        }
        let above = self.dir().ok_or(FileFault::NotFound)?;
        let dir = open_dir(above, &found.name)?;
        let stat = rustix::fs::fstat(&dir).map_err(fault)?;
        let here = self.levels.last().map(|level| level.stat.st_dev);
        if here != Some(stat.st_dev) {
            refuse_procfs(&dir)?;
        }
        self.push(dir, stat, (found.name.clone(), found.path.clone()))
    }

    /// The open directory of what was given last.
    #[must_use]
    pub fn dir(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last().and_then(|level| level.dir.as_ref()).map(AsFd::as_fd)
    }

    /// Of a directory that was just left, itself.
    #[must_use]
    pub fn left(&self) -> Option<BorrowedFd<'_>> {
        self.left.as_ref().and_then(|level| level.dir.as_ref()).map(AsFd::as_fd)
    }

    /// How deep what was given last lies: 1 in the directory where the walk began.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Whether a directory had more names than are looked at.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn push(
        &mut self,
        dir: OwnedFd,
        stat: Stat,
        (name, path): (Vec<u8>, Vec<u8>),
    ) -> Result<(), FileFault> {
        let names = self.names(&dir)?;
        if let Some(upper) = self.levels.len().checked_sub(OPEN_MAX)
            && let Some(level) = self.levels.get_mut(upper)
        {
            level.dir = None;
        }
        self.levels.push(Level { dir: Some(dir), stat, names, name, path });
        Ok(())
    }

    /// Leaves the directory that has no more; `None` where that is the first.
    fn pop(&mut self) -> Result<Option<Found>, Failure> {
        let Some(done) = self.levels.pop() else { return Ok(None) };
        let Some(above) = self.levels.last_mut() else { return Ok(None) };
        if above.dir.is_none() {
            let below = done.dir.as_ref().ok_or(FileFault::NotFound)?;
            let again = open_dir(below.as_fd(), b"..").map_err(|f| Failure::at(f, &done.path))?;
            let stat = rustix::fs::fstat(&again)?;
            if (stat.st_dev, stat.st_ino) != (above.stat.st_dev, above.stat.st_ino) {
                return Err(Failure::at(FileFault::NotFound, &done.path));
            }
            above.dir = Some(again);
        }
        let found = Found { name: done.name.clone(), path: done.path.clone(), stat: done.stat };
        self.left = Some(done);
        Ok(Some(found))
    }

    /// The names in a directory, the first by name last.
    fn names(&mut self, dir: &OwnedFd) -> Result<Vec<Vec<u8>>, FileFault> {
        // Who may not search it can't do anything with a name.
        let search = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(dir, "./.", search, Mode::empty()).map_err(fault)?;
        let mut names = Vec::new();
        let mut entries = RawDir::new(dir, &mut self.buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(fault)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            if names.len() >= self.names_max || self.held + name.len() > HELD_BYTES_MAX {
                self.is_cut = true;
                break;
            }
            self.held += name.len() + NAME_COST;
            names.push(name.to_vec());
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(names)
    }
}

/// Opens a directory by its name; a link is none.
pub(crate) fn open_dir(above: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, FileFault> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(above, name, flags, Mode::empty()).map_err(fault)
}

pub(crate) fn join(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, name].join(&b'/') }
}
