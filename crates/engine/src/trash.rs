//! Things being removed: renamed into `trash/` at once, taken apart later.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, RenameFlags};
use sandkasten_jail::path::{Beneath, is_mounted_below};
use sandkasten_types::ids::random_hex;

/// The trash of a data directory.
#[derive(Debug)]
pub(crate) struct Trash {
    path: PathBuf,
    dir: Beneath,
}

impl Trash {
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let data = Beneath::open(data_dir)?;
        let dir = data.create_dirs(Path::new("trash"), (0, 0), Mode::RWXU)?;
        Ok(Self { path: data_dir.join("trash"), dir })
    }

    /// Moves `name` out of `from`; from then on it has no name that anybody looks for.
    pub(crate) fn take(&self, from: &Beneath, name: &OsStr) -> io::Result<()> {
        let fresh = random_hex().map_err(io::Error::other)?;
        Ok(rustix::fs::renameat_with(from, name, &self.dir, fresh, RenameFlags::NOREPLACE)?)
    }

    /// Removes everything that is in it. Blocks for as long as that takes. What can't be removed stays;
    /// the first fault is returned.
    pub(crate) fn empty(&self) -> io::Result<()> {
        let names = self.names()?;
        if names.is_empty() {
            return Ok(());
        }
        // Nothing of a session is mounted in the host's namespace; should somebody have done it, a
        // removal would walk into what is mounted.
        if is_mounted_below(&self.path)? {
            return Err(io::Error::other("something is mounted below the trash"));
        }
        let mut first = Ok(());
        for name in names {
            first = first.and(self.dir.remove_tree(&name));
        }
        first
    }

    /// How many things lie in it.
    pub(crate) fn count(&self) -> usize {
        self.names().map_or(0, |names| names.len())
    }

    fn names(&self) -> io::Result<Vec<std::ffi::OsString>> {
        std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect()
    }
}
