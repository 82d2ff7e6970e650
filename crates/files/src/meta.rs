//! Facts about files.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat};
use sandkasten_protocol::Identity;
use sandkasten_protocol::work::{Kind, Meta};

/// Permission bits of a mode.
pub(crate) const MODE_BITS: u32 = 0o7777;

/// What kind of file a mode is of.
#[must_use]
pub fn kind(mode: u32) -> Kind {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => Kind::Device,
    }
}

/// What `stat` says of the file of that name in `dir`; of a link, where it points to. Without a name it is
/// `dir` itself that is meant.
#[must_use]
pub fn meta(stat: &Stat, dir: impl AsFd, name: &[u8]) -> Meta {
    let kind = kind(stat.st_mode);
    let target = match kind {
        Kind::Symlink => rustix::fs::readlinkat(dir, name, Vec::new()).ok(),
        Kind::File | Kind::Dir | Kind::Fifo | Kind::Socket | Kind::Device => None,
    };
    Meta {
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & MODE_BITS,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        ctime: (stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or(0)),
        ino: stat.st_ino,
        dev: stat.st_dev,
        target: target.map(std::ffi::CString::into_bytes),
    }
}

/// Which contents a file has.
#[must_use]
pub fn identity(stat: &Stat) -> Identity {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let (mtime, ctime) = ((stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec));
    Identity::new(stat.st_ino, size, mtime, ctime)
}
