//! Things being removed: renamed into `trash/` at once, taken apart later.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, RenameFlags};
use sandkasten_jail::path::Beneath;
use sandkasten_types::ids::random_hex;

/// The trash of a data directory.
#[derive(Debug)]
pub(crate) struct Trash {
    dir: Beneath,
}

impl Trash {
    pub(crate) fn open(data_dir: &Path) -> io::Result<Self> {
        let data = Beneath::open(data_dir)?;
        Ok(Self { dir: data.create_dirs(Path::new("trash"), (0, 0), Mode::RWXU)? })
    }

    /// Moves `name` out of `from`; from then on it has no name that anybody looks for.
    pub(crate) fn take(&self, from: &Beneath, name: &OsStr) -> io::Result<()> {
        let fresh = random_hex().map_err(io::Error::other)?;
        Ok(rustix::fs::renameat_with(from, name, &self.dir, fresh, RenameFlags::NOREPLACE)?)
    }

    /// Removes all that is in it, as the engine does in the background. What can't be removed stays; the first fault is returned.
    #[cfg(test)]
    pub(crate) fn empty(&self) -> io::Result<()> {
        use std::os::unix::ffi::OsStrExt;
        let mut first = Ok(());
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if !matches!(name.as_bytes(), b"." | b"..") {
                first = first.and(self.dir.remove_tree(name));
            }
        }
        first
    }
}
