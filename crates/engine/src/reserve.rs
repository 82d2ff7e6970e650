//! Room kept back on the data directory's file system, so that a full disk can be worked on: a daemon
//! that finds it full gives the reserve up, and has room for its own few files, for the database and for
//! what sessions say. It is taken back as soon as there is room for it and more.
//!
//! ```text
//!             free < a few MiB: give up                      the database finds it full:
//!   Enough ──────────────────────────────> Full              db::reserve, room of its own
//!          <──────────────────────────────
//!             free > reserve and a margin: make again
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use sandkasten_jail::disk::room::Room;

use crate::db;
use crate::folders::make_dir;

/// How often the disk is looked at. No event tells that it is full.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// The reserve, and the part of the file system that it is at most.
const BYTES: u64 = 32 << 20;
const PART: u64 = 20;
/// Files without content, for file systems that are out of inodes.
const INODES: u64 = 64;
/// What must be free beside the reserve before it is made.
const MARGIN_BYTES: u64 = 32 << 20;
const MARGIN_INODES: u64 = 64;

/// The reserve of a data directory.
#[derive(Debug)]
pub(crate) struct Reserve {
    data_dir: PathBuf,
    db_path: PathBuf,
    /// `Some` while the disk is full.
    full: Mutex<Option<Room>>,
    /// The file system keeps no room for a file that has none of it in use.
    unsupported: AtomicBool,
}

/// Gives up what is kept back, where the disk is full; for a start, which takes some room itself. `Some`:
/// it is full, and this much is free now.
///
/// # Errors
/// Where the file system can't be asked.
pub fn make_room(data_dir: &Path, db_path: &Path) -> io::Result<Option<Room>> {
    let room = Room::of(data_dir)?;
    if !room.is_full() {
        return Ok(None);
    }
    give_up(data_dir)?;
    let room = Room::of(data_dir)?;
    if room.is_full() {
        // Of earlier versions there is no other; and who is on another disk loses nothing here.
        db::give_reserve_up(db_path);
    }
    Ok(Some(Room::of(data_dir)?))
}

impl Reserve {
    pub(crate) fn of(data_dir: &Path, db_path: &Path) -> Self {
        Self {
            data_dir: data_dir.into(),
            db_path: db_path.into(),
            full: Mutex::default(),
            unsupported: AtomicBool::new(false),
        }
    }

    /// `Some`: the disk is full, and this was free at the last look.
    pub(crate) fn full(&self) -> Option<Room> {
        *self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are kept back now.
    pub(crate) fn bytes(&self) -> u64 {
        let kept = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
        kept(&file_of(&self.data_dir)) + kept(&db::reserve_of(&self.db_path))
    }

    /// Looks at the disk: gives the reserve up where it is full, makes it where it is missing and there is
    /// room. Blocks.
    ///
    /// # Errors
    /// Where the file system can't be asked, or refuses a reserve for another reason than space.
    pub(crate) fn look(&self) -> io::Result<()> {
        let room = Room::of(&self.data_dir)?;
        let is_there = file_of(&self.data_dir).exists();
        if room.is_full() {
            give_up(&self.data_dir)?;
            self.set(Some(Room::of(&self.data_dir)?));
        } else if self.unsupported.load(Ordering::Relaxed) {
            self.set(None);
        } else if is_there && self.full().is_none() && !self.database_gave_up() {
            // As it should be.
        } else if has_room(&room, self.missing_of_database()) {
            self.set(None);
            make(&self.data_dir, &room).inspect_err(|error| {
                let is_for_ever = error.kind() == io::ErrorKind::Unsupported;
                self.unsupported.store(is_for_ever, Ordering::Relaxed);
            })?;
        } else {
            // What is free is the reserve that was given up.
            self.set(Some(room));
        }
        if self.full().is_none() {
            self.refill_of_database();
        }
        Ok(())
    }

    /// Bytes that the database's reserve lacks.
    fn missing_of_database(&self) -> u64 {
        let has = fs::metadata(db::reserve_of(&self.db_path)).map_or(0, |file| file.len());
        db::RESERVE_BYTES.saturating_sub(has)
    }

    /// It found the disk full before this did: what is free is what it let go of.
    fn database_gave_up(&self) -> bool {
        fs::metadata(db::reserve_of(&self.db_path)).is_ok_and(|file| file.len() == 0)
    }

    /// Given up by the database itself, or by a start.
    fn refill_of_database(&self) {
        if fs::metadata(db::reserve_of(&self.db_path)).is_ok_and(|file| file.len() > 0) {
            return;
        }
        if let Err(error) = db::fill_reserve(&self.db_path) {
            tracing::debug!(%error, "database_reserve_not_made");
        }
    }

    fn set(&self, full: Option<Room>) {
        let before =
            std::mem::replace(&mut *self.full.lock().unwrap_or_else(PoisonError::into_inner), full);
        match (before, full) {
            (None, Some(room)) => {
                tracing::error!(
                    free_bytes = room.free_bytes,
                    inodes_free = room.inodes_free,
                    "disk_full"
                );
            }
            (Some(_), None) => tracing::info!("disk_has_room_again"),
            (None, None) | (Some(_), Some(_)) => {}
        }
    }
}

/// There is room for the reserves and more. What was given up is free too: without the margin, and what
/// the database lacks, a full disk would count as one with room as soon as it was.
fn has_room(room: &Room, missing_of_database: u64) -> bool {
    let bytes = bytes_for(room) + MARGIN_BYTES + missing_of_database;
    // A small disk has room all the same.
    let bytes = bytes.min(room.total_bytes / 4);
    let inodes = 2 * INODES + MARGIN_INODES;
    room.free_bytes >= bytes && (room.inodes == 0 || room.inodes_free >= inodes)
}

fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("reserve")
}

fn file_of(data_dir: &Path) -> PathBuf {
    folder(data_dir).join("bytes")
}

fn bytes_for(room: &Room) -> u64 {
    BYTES.min(room.total_bytes / PART)
}

fn make(data_dir: &Path, room: &Room) -> io::Result<()> {
    // One that was cut off half-way has no `bytes`.
    give_up(data_dir)?;
    let dir = folder(data_dir);
    make_dir(&dir, 0o700)?;
    for number in 0..INODES {
        File::create(dir.join(number.to_string()))?;
    }
    let new = dir.join("new");
    fallocate(&File::create(&new)?, FallocateFlags::empty(), 0, bytes_for(room))?;
    fs::rename(new, file_of(data_dir))
}

fn give_up(data_dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder(data_dir)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_was_given_up_is_no_room() {
        let room = Room {
            total_bytes: 300 << 20,
            free_bytes: 78 << 20,
            root_bytes: 90 << 20,
            inodes: 0,
            inodes_free: 0,
        };
        assert!(has_room(&room, 0));
        assert!(!has_room(&Room { free_bytes: 63 << 20, ..room }, db::RESERVE_BYTES));
        assert!(!has_room(&Room { inodes: 4096, inodes_free: 2 * INODES, ..room }, 0));
        // A quarter of a small disk is enough.
        assert!(has_room(&Room { total_bytes: 100 << 20, free_bytes: 26 << 20, ..room }, 1 << 30));
    }

    #[test]
    fn a_reserve_is_made_and_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("db");
        let reserve = Reserve::of(dir.path(), &database);
        reserve.look().unwrap();
        assert_eq!(reserve.full(), None);
        let room = Room::of(dir.path()).unwrap();
        assert!(reserve.bytes() >= bytes_for(&room));
        assert_eq!(fs::read_dir(folder(dir.path())).unwrap().count() as u64, INODES + 1);
        reserve.look().unwrap();
        give_up(dir.path()).unwrap();
        assert!(!folder(dir.path()).exists());
        assert_eq!(make_room(dir.path(), &database).unwrap(), None);
    }
}
