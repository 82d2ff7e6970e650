//! Reading and writing a group's files, always below a directory descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::CgroupError;
use crate::root::read_all;

const PAGE_BYTES: usize = 4096;

pub(super) fn open_dir(dir: BorrowedFd<'_>, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

pub(super) fn open_for_writing(dir: BorrowedFd<'_>, file: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
}

pub(super) fn open_for_reading(dir: BorrowedFd<'_>, file: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

pub(super) fn read(dir: BorrowedFd<'_>, file: &str) -> io::Result<String> {
    let file = open_for_reading(dir, file)?;
    let mut bytes = vec![0; PAGE_BYTES];
    // The kernel shows such a file whole in one read, if there is room: counters are read at both ends
    // of every command.
    let length = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *bytes))?;
    bytes.truncate(length);
    if length == PAGE_BYTES {
        bytes.extend(read_all(file)?);
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// The whole file as one number; 0 where it is missing or no number.
pub(super) fn number(dir: BorrowedFd<'_>, file: &str) -> u64 {
    read(dir, file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The number behind `key` in a file of lines `key number`; 0 where it is missing.
pub(super) fn keyed(dir: BorrowedFd<'_>, file: &str, key: &str) -> u64 {
    read(dir, file).ok().and_then(|text| find_key(&text, key)).unwrap_or(0)
}

/// As [`keyed`], of a file that is kept open: each read from its start shows it as it is then.
pub(super) fn keyed_now(file: &OwnedFd, key: &str) -> u64 {
    let mut bytes = [0; PAGE_BYTES];
    let length = rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut bytes, 0)).unwrap_or(0);
    let text = std::str::from_utf8(bytes.get(..length).unwrap_or_default());
    text.ok().and_then(|text| find_key(text, key)).unwrap_or(0)
}

fn find_key(text: &str, key: &str) -> Option<u64> {
    let value = |line: &str| line.split_once(' ').filter(|(name, _)| *name == key)?.1.parse().ok();
    text.lines().find_map(value)
}

pub(super) fn write(dir: BorrowedFd<'_>, file: &str, text: &str) -> io::Result<()> {
    let file = open_for_writing(dir, file)?;
    let written = rustix::io::retry_on_intr(|| rustix::io::write(file.as_fd(), text.as_bytes()))?;
    if written == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Writes a limit and reads it back: one that isn't held is an error.
pub(super) fn write_held(dir: BorrowedFd<'_>, file: &str, text: &str) -> Result<(), CgroupError> {
    let context = |verb: &str, source| CgroupError::Io { what: format!("{verb} {file}"), source };
    write(dir, file, text).map_err(|e| context("writing", e))?;
    let found = read(dir, file).map_err(|e| context("reading", e))?;
    if found.trim_end() == text {
        return Ok(());
    }
    Err(CgroupError::NotHeld {
        file: file.to_owned(),
        written: text.to_owned(),
        found: found.trim_end().to_owned(),
    })
}

/// As [`write_held`], for a file that not every kernel has.
pub(super) fn write_held_if_there(
    dir: BorrowedFd<'_>,
    file: &str,
    text: &str,
) -> Result<(), CgroupError> {
    match rustix::fs::accessat(dir, file, rustix::fs::Access::EXISTS, rustix::fs::AtFlags::empty())
    {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        _ => write_held(dir, file, text),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn keys_are_whole_words() {
        let text = "oom 1\noom_kill 3\nmax 7\n";
        assert_eq!(find_key(text, "oom_kill"), Some(3));
        assert_eq!(find_key(text, "oom"), Some(1));
        assert_eq!(find_key(text, "kill"), None);
    }
}
