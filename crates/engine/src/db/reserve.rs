//! A file of 64 MiB beside the database, given up when the disk is full: the room in which ends of
//! sessions can still be written. It also shows that there was a database.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use sandkasten_jail::disk::room::Room;
use sandkasten_types::limits::MIB;

pub(crate) const RESERVE_BYTES: u64 = 64 * MIB as u64;
/// What must be free beside it before it is made.
const MARGIN_BYTES: u64 = 32 * MIB as u64;

pub(crate) fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".reserve");
    name.into()
}

/// Makes the reserve, or takes back what was given up. It never takes the last room there is.
pub(crate) fn fill(database: &Path) -> io::Result<()> {
    let file = open(&path_of(database))?;
    if file.metadata()?.len() >= RESERVE_BYTES {
        return Ok(());
    }
    if Room::of(database)?.free_bytes < RESERVE_BYTES + MARGIN_BYTES {
        return Err(io::ErrorKind::StorageFull.into());
    }
    fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?;
    Ok(())
}

/// Frees the reserve's room. False: there was none.
pub(super) fn give_up(database: Option<&str>) -> bool {
    let Some(database) = database else { return false };
    let freed = open(&path_of(Path::new(database))).and_then(|file| {
        let had = file.metadata()?.len() > 0;
        file.set_len(0)?;
        Ok(had)
    });
    match freed {
        Ok(freed) => {
            tracing::error!(freed, "disk_full_database_reserve_given_up");
            freed
        }
        Err(error) => {
            tracing::error!(%error, "disk_full_database_reserve_not_given_up");
            false
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}
