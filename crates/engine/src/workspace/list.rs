//! Lists a directory. Names are bytes; links are shown, not followed.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::{AtFlags, Dir, FileType as Kind, OFlags, Stat};
use rustix::io::Errno;
use sandkasten_types::files::{DirEntry, FileType};
use sandkasten_types::time::rfc3339_nanos;

use super::WorkspaceError;
use super::path;
use super::place::{Place, file_type};

/// The entries of a directory, by name. What vanishes meanwhile is left out.
pub(super) fn list(place: &Place, text: &[u8]) -> Result<Vec<DirEntry>, WorkspaceError> {
    let path = path::parse(if text.is_empty() { b"." } else { text })?;
    let dir = place.open(&path.raw, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let all = Most { entries: usize::MAX, bytes: usize::MAX };
    Ok(entries(&dir, &String::from_utf8_lossy(&path.shown), all)?.0)
}

/// How much of a directory is listed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most {
    pub(crate) entries: usize,
    /// Of paths and targets together.
    pub(crate) bytes: usize,
}

/// The entries of an open directory by name, up to `most`, and whether there are more. `above` is what
/// stands before their names.
pub(crate) fn entries(
    dir: &OwnedFd,
    above: &str,
    most: Most,
) -> Result<(Vec<DirEntry>, bool), Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
        if names.len() > most.entries {
            break;
        }
    }
    names.sort_unstable();
    let mut has_more = names.len() > most.entries;
    names.truncate(most.entries);
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for name in names {
        let Some(entry) = entry(dir, &name, above)? else { continue };
        bytes += entry.path.len() + entry.target.as_ref().map_or(0, String::len);
        if bytes > most.bytes {
            has_more = true;
            break;
        }
        entries.push(entry);
    }
    Ok((entries, has_more))
}

fn entry(dir: &OwnedFd, name: &CStr, above: &str) -> Result<Option<DirEntry>, Errno> {
    let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(None),
        Err(err) => return Err(err),
    };
    let kind = file_type(&stat);
    let is_link = kind == Kind::Symlink;
    let target = is_link.then(|| rustix::fs::readlinkat(dir, name, Vec::new()).ok()).flatten();
    let bytes = name.to_bytes();
    let shown = String::from_utf8_lossy(bytes).into_owned();
    let is_text = std::str::from_utf8(bytes).is_ok();
    Ok(Some(DirEntry {
        path: if above.is_empty() { shown.clone() } else { format!("{above}/{shown}") },
        name: shown,
        is_dir: kind == Kind::Directory,
        r#type: api_type(kind),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: format!("{:04o}", stat.st_mode & 0o7777),
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: mtime(&stat),
        target: target.map(|target| target.to_string_lossy().into_owned()),
        name_base64: (!is_text).then(|| STANDARD.encode(bytes)),
        path_base64: None,
    }))
}

fn api_type(kind: Kind) -> FileType {
    match kind {
        Kind::RegularFile => FileType::File,
        Kind::Directory => FileType::Dir,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice | Kind::BlockDevice | Kind::Unknown => FileType::Device,
    }
}

fn mtime(stat: &Stat) -> String {
    rfc3339_nanos(stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0))
}
