//! Users of the box by name, from its `/etc/passwd`.
//!
//! The file is the payload's: it is opened with the session user's rights, only so much of it is read,
//! and what it says counts only where it can't do harm. Ids that the box does not have, and init's own,
//! are nobody's.

use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sandkasten_protocol::passwd::{Entry, find};
use sandkasten_protocol::{How, RunUser};

use crate::lookup::{self, PROC_MAGIC};
use crate::outcome::Outcome;
use crate::rights::{Ids, Rights};

const PASSWD: &[u8] = b"/etc/passwd";
/// Bytes of the file that are read.
const PASSWD_BYTES_MAX: usize = 1024 * 1024;

/// A user and where it is at home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: Vec<u8>,
    pub(crate) ids: Ids,
    pub(crate) home: Vec<u8>,
}

impl Account {
    /// Box root, whatever the file says of its ids; there may be no file.
    pub(crate) fn root(rights: Rights, reader: Ids) -> Self {
        let home = read(rights, reader)
            .and_then(|text| find(&text, b"root"))
            .map_or_else(|| b"/root".to_vec(), |entry| entry.home);
        Self { name: b"root".to_vec(), ids: Ids::ROOT, home }
    }

    /// What a user finds of itself in its environment.
    pub(crate) fn variables(&self) -> [(Vec<u8>, Vec<u8>); 3] {
        let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        [pair(b"HOME", &self.home), pair(b"USER", &self.name), pair(b"LOGNAME", &self.name)]
    }

    fn of(entry: Entry) -> Self {
        let Entry { name, uid, gid, home } = entry;
        Self { name, ids: Ids { uid, gid }, home }
    }

    /// By name, or by a uid in digits that no user has for a name. `None`: there is no such user, or none
    /// that a program may run as.
    pub(crate) fn named(rights: Rights, reader: Ids, name: &[u8]) -> Option<Self> {
        find(&read(rights, reader)?, name).map(Self::of)
    }

    /// `None`: the user of the session, who has an environment already.
    ///
    /// # Errors
    /// There is no such user.
    pub(crate) fn of_run(
        rights: Rights,
        reader: Ids,
        user: &RunUser,
    ) -> Result<Option<Self>, Outcome> {
        match user {
            RunUser::Session => Ok(None),
            RunUser::Root => Ok(Some(Self::root(rights, reader))),
            RunUser::Named(name) => match Self::named(rights, reader, name) {
                Some(account) => Ok(Some(account)),
                None => Err(Outcome::of(How::UnknownUser)),
            },
        }
    }
}

/// The file, or its first part. A line that is cut counts for nothing.
fn read(rights: Rights, reader: Ids) -> Option<Vec<u8>> {
    rights.act_as(reader, || {
        let found = lookup::find(PASSWD).ok()?;
        lookup::regular(&found).ok()?;
        // A file of procfs is regular too, and may make its reader wait.
        if rustix::fs::fstatfs(&found).ok()?.f_type == PROC_MAGIC {
            return None;
        }
        let file = lookup::reopen(&found, OFlags::RDONLY).ok()?;
        let mut text = read_up_to(&file, PASSWD_BYTES_MAX).ok()?;
        if text.len() == PASSWD_BYTES_MAX {
            let whole = text.iter().rposition(|b| *b == b'\n').unwrap_or(0);
            text.truncate(whole);
        }
        Some(text)
    })
}

/// Reads to the end of the file or up to so many bytes.
pub(crate) fn read_up_to(file: impl AsFd, most: usize) -> Result<Vec<u8>, Errno> {
    const STEP: usize = 64 * 1024;
    let mut text = Vec::new();
    loop {
        let length = text.len();
        text.resize((length + STEP).min(most), 0);
        match rustix::io::read(&file, text.get_mut(length..).unwrap_or_default()) {
            Ok(0) => {
                text.truncate(length);
                return Ok(text);
            }
            Ok(read) => text.truncate(length + read),
            Err(Errno::INTR) => text.truncate(length),
            Err(errno) => return Err(errno),
        }
    }
}
