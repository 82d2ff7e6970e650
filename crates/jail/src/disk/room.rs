//! How much room a file system has.

use std::fmt;
use std::io;
use std::path::Path;

/// With less than this a file system counts as full: a box's root, a log and a database that is written
/// to take some.
const BYTES_MIN: u64 = 4 << 20;
const INODES_MIN: u64 = 32;

/// What statvfs(3) says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub total_bytes: u64,
    /// For everybody: what ext4 keeps back for root is not counted.
    pub free_bytes: u64,
    /// For root, who has what is kept back too.
    pub root_bytes: u64,
    /// 0 where the file system makes as many as are wanted.
    pub inodes: u64,
    pub inodes_free: u64,
}

impl Room {
    /// Of the file system that `path` is on, or would be: its nearest directory that exists counts.
    ///
    /// # Errors
    /// Those of statvfs(3).
    pub fn of(path: &Path) -> io::Result<Self> {
        let there = path.ancestors().find(|path| path.exists()).unwrap_or(path);
        let disk = rustix::fs::statvfs(there)?;
        Ok(Self {
            total_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
            free_bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
            root_bytes: disk.f_bfree.saturating_mul(disk.f_frsize),
            inodes: disk.f_files,
            inodes_free: disk.f_ffree,
        })
    }

    /// Too little for what boxes write.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.lacks(self.free_bytes)
    }

    /// Too little for a daemon's own files, too.
    #[must_use]
    pub fn is_full_for_root(&self) -> bool {
        self.lacks(self.root_bytes)
    }

    fn lacks(&self, bytes: u64) -> bool {
        // A file system of no size, as ramfs says it has, is not full.
        let has_no_bytes = self.total_bytes > 0 && bytes < BYTES_MIN;
        has_no_bytes || (self.inodes > 0 && self.inodes_free < INODES_MIN)
    }
}

impl fmt::Display for Room {
    /// What is free, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (free, total) = (self.free_bytes >> 20, self.total_bytes >> 20);
        write!(f, "{free} of {total} MiB")?;
        if self.inodes > 0 {
            write!(f, " and {} of {} inodes", self.inodes_free, self.inodes)?;
        }
        f.write_str(" are free on the file system of the data directory")
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn little_space_or_few_inodes_are_full() {
        let room = Room {
            total_bytes: 1 << 40,
            free_bytes: 1 << 30,
            root_bytes: 2 << 30,
            inodes: 1000,
            inodes_free: 99,
        };
        assert!(!room.is_full());
        assert!(Room { free_bytes: 1 << 20, ..room }.is_full());
        assert!(!Room { free_bytes: 0, ..room }.is_full_for_root());
        assert!(Room { root_bytes: 0, ..room }.is_full_for_root());
        assert!(Room { inodes_free: 3, ..room }.is_full_for_root());
        assert!(!Room { total_bytes: 0, free_bytes: 0, ..room }.is_full());
        assert!(!Room { inodes: 0, inodes_free: 0, ..room }.is_full());
    }

    #[test]
    fn a_directory_to_come_is_judged_by_the_one_above() {
        let dir = std::env::temp_dir();
        assert_eq!(
            Room::of(&dir.join("not/yet")).unwrap().total_bytes,
            Room::of(&dir).unwrap().total_bytes
        );
    }
}
