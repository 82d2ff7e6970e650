//! The data directory's own folders: scratch of sessions, and the trash.
//!
//! Names here are ours and trusted; what lies below `upper` and `work` is not, and is touched through
//! `jail::path` alone.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use sandkasten_jail::path::Beneath;
use sandkasten_protocol::{User, id};
use sandkasten_types::SessionId;
use sha2::{Digest as _, Sha256};

use crate::disk::{self, Ahead, BoxIds, Space};
use crate::folders::{make_dir, make_owned, open_dir};
use crate::trash::Trash;

/// Where sessions lie on disk.
#[derive(Debug)]
pub(crate) struct Dirs {
    data: PathBuf,
    pub(crate) trash: Trash,
}

/// The open directories of a new session.
#[derive(Debug)]
pub(crate) struct SessionDirs {
    pub(crate) scratch: OwnedFd,
    /// Detached tree of what the session writes: `upper`, `work` and a `workspace` of its own. In its
    /// folder, or on a file system of a limited size.
    pub(crate) tree: OwnedFd,
    pub(crate) spool: OwnedFd,
    pub(crate) listener: OwnedFd,
}

impl Dirs {
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        make_dir(data, 0o700).or_else(exists)?;
        // Whoever made it: no other user reaches what is below.
        fs::set_permissions(data, Permissions::from_mode(0o700))?;
        make_dir(&data.join("sessions"), 0o700).or_else(exists)?;
        Ok(Self { data: data.to_owned(), trash: Trash::open(data)? })
    }

    /// Tells this data directory's things on the host from those of others.
    pub(crate) fn tag(&self) -> io::Result<String> {
        let metadata = fs::metadata(&self.data)?;
        let hash = Sha256::digest(format!("{}:{}", metadata.dev(), metadata.ino()));
        Ok(hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Makes the folders of a session, and what it writes to in `space`. The spool is never part of that.
    pub(crate) fn make(
        &self,
        session: &SessionId,
        ids: &BoxIds,
        (space, ahead): (Space, Option<&Ahead>),
    ) -> io::Result<SessionDirs> {
        let dir = self.session(session);
        make_dir(&dir, 0o700)?;
        let init = ids.base + id::INIT;
        make_owned(&dir.join("spool"), 0o700, &User { uid: init, gid: init })?;
        let scratch = open_dir(&dir)?;
        Ok(SessionDirs {
            tree: space.make(&dir, scratch.as_fd(), ids, ahead)?,
            spool: open_dir(&dir.join("spool"))?,
            listener: listener(&scratch)?,
            scratch,
        })
    }

    /// Bytes that a session with a limit has written. `None`: its file system is reached by nobody but
    /// itself.
    pub(crate) fn used_bytes(&self, session: &SessionId) -> io::Result<Option<u64>> {
        disk::used_in(&self.session(session))
    }

    /// The folder of a session, to find its socket by.
    pub(crate) fn open_session(&self, session: &SessionId) -> io::Result<OwnedFd> {
        open_dir(&self.session(session))
    }

    /// Sessions that have a folder.
    pub(crate) fn list(&self) -> io::Result<Vec<SessionId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(self.data.join("sessions"))? {
            let name = entry?.file_name();
            if let Some(id) = name.to_str().and_then(|name| name.parse().ok()) {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Moves a session's folder to the trash. False: there was none.
    pub(crate) fn discard(&self, session: &SessionId) -> io::Result<bool> {
        if let Err(error) = disk::release(&self.session(session)) {
            tracing::warn!(%session, %error, "disk_limit_not_released");
        }
        let sessions = Beneath::open(&self.data.join("sessions"))?;
        match self.trash.take(&sessions, session.as_str().as_ref()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Percent of the disk that is free for us.
    pub(crate) fn free_percent(&self) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(&self.data)?;
        Ok(disk.f_bavail.saturating_mul(100).checked_div(disk.f_blocks).unwrap_or(100))
    }

    fn session(&self, id: &SessionId) -> PathBuf {
        self.data.join("sessions").join(id.as_str())
    }
}

/// A listening socket in a session's folder. Its path goes through our descriptor: the address of a
/// unix socket has 107 bytes, which a data directory's path may well fill.
fn listener(dir: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}/control.sock", dir.as_raw_fd());
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener.into())
}

fn exists(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}
