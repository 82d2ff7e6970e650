//! Reads a file of a workspace: looked at before it is opened, so that a FIFO or device is never
//! opened at all.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};

use super::WorkspaceError;
use super::path;
use super::place::{Place, file_type};
use crate::error::FileFault;
use crate::filecall::FileRead;

/// The first `max_bytes` of a regular file.
pub(super) fn read(place: &Place, text: &[u8], max_bytes: u64) -> Result<FileRead, WorkspaceError> {
    let file = open(place, text)?;
    let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
    let mut bytes = Vec::with_capacity(usize::try_from(size.min(max_bytes)).unwrap_or(0));
    File::from(file).take(max_bytes).read_to_end(&mut bytes)?;
    // It may have grown or shrunk since.
    let size = size.max(bytes.len() as u64);
    let is_cut = size > bytes.len() as u64 && bytes.len() as u64 == max_bytes;
    let size = if is_cut { size } else { bytes.len() as u64 };
    Ok(FileRead { truncated: is_cut, bytes, size })
}

/// Opens a regular file that who acts may read.
pub(super) fn open(place: &Place, text: &[u8]) -> Result<OwnedFd, WorkspaceError> {
    let path = path::parse(text)?;
    let found = place.open(&path.raw, OFlags::PATH)?;
    let stat = rustix::fs::fstat(&found)?;
    match file_type(&stat) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(FileFault::IsADirectory.into()),
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Err(FileFault::NotAFile.into()),
    }
    reopen(&found)
}

/// The very file that was looked at, whatever has its name by now.
fn reopen(found: &OwnedFd) -> Result<OwnedFd, WorkspaceError> {
    let name = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(name, flags, Mode::empty())?)
}
