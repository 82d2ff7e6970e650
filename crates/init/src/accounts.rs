//! Users of the box by name, from its `/etc/passwd`.
//!
//! The file is the payload's: it is opened with the session user's rights, only so much of it is read,
//! and what it says counts only where it can't do harm. Ids that the box does not have, and init's own,
//! are nobody's.

use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use sandkasten_protocol::id;

use crate::lookup::{self, PROC_MAGIC};
use crate::rights::{Ids, Rights};

const PASSWD: &[u8] = b"/etc/passwd";
/// Bytes of the file that are read.
const PASSWD_BYTES_MAX: usize = 1024 * 1024;
/// Ids that a box has.
const IDS: u32 = 65_536;

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
            .map_or_else(|| b"/root".to_vec(), |account| account.home);
        Self { name: b"root".to_vec(), ids: Ids::ROOT, home }
    }

    /// What a user finds of itself in its environment.
    pub(crate) fn variables(&self) -> [(Vec<u8>, Vec<u8>); 3] {
        let pair = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
        [pair(b"HOME", &self.home), pair(b"USER", &self.name), pair(b"LOGNAME", &self.name)]
    }

    /// `None`: there is no such user, or none that a program may run as.
    pub(crate) fn named(rights: Rights, reader: Ids, name: &[u8]) -> Option<Self> {
        find(&read(rights, reader)?, name)
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

/// The first entry of that name counts, as it does for login(1).
fn find(text: &[u8], name: &[u8]) -> Option<Account> {
    let line = text.split(|b| *b == b'\n').find(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.first().is_some_and(|b| *b == b':'))
    })?;
    let fields: Vec<&[u8]> = line.split(|b| *b == b':').collect();
    let [first, _password, uid, gid, _comment, home, ..] = fields.as_slice() else { return None };
    if *first != name {
        return None;
    }
    let ids = Ids { uid: id_of(uid)?, gid: id_of(gid)? };
    // What stands in the environment can't hold a NUL.
    let has_home = home.starts_with(b"/") && !home.contains(&0);
    let home = if has_home { home.to_vec() } else { b"/".to_vec() };
    Some(Account { name: name.to_vec(), ids, home })
}

fn id_of(text: &[u8]) -> Option<u32> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let id = is_number.then(|| std::str::from_utf8(text).ok()?.parse::<u32>().ok()).flatten()?;
    (id < IDS && id != id::INIT && id != id::INIT_REAL).then_some(id)
}

#[cfg(test)]
mod test {
    use super::*;

    const TEXT: &[u8] = b"root:x:0:0:root:/root:/bin/bash\n\
        # a comment\n\
        \n\
        daemon:x:1:2:daemon:/usr/sbin:/usr/sbin/nologin\n\
        www-data:x:33:33::\n\
        r\xc3\xa4t:x:40:41:\xff:/h/r\xff:\n\
        short:x:1\n\
        daemon:x:7:7::/:\n\
        big:x:65536:0::/:\n\
        minus:x:-1:0::/:\n\
        plus:x:+1:0::/:\n\
        empty:x::0::/:\n\
        huge:x:99999999999999999999:0::/:\n\
        init:x:65000:65000::/:\n\
        real:x:1:65001::/:\n\
        last:x:65535:65534::/last";

    fn ids(name: &[u8]) -> Option<(u32, u32)> {
        find(TEXT, name).map(|a| (a.ids.uid, a.ids.gid))
    }

    #[test]
    fn users_are_found() {
        assert_eq!(ids(b"root"), Some((0, 0)));
        assert_eq!(ids(b"daemon"), Some((1, 2)));
        assert_eq!(ids(b"last"), Some((65535, 65534)));
        assert_eq!(find(TEXT, b"www-data").unwrap().home, b"/");
        let rat = find(TEXT, b"r\xc3\xa4t").unwrap();
        assert_eq!((rat.ids.uid, rat.ids.gid, rat.home.as_slice()), (40, 41, &b"/h/r\xff"[..]));
    }

    #[test]
    fn others_are_not() {
        let names: [&[u8]; 14] = [
            b"",
            b"roo",
            b"root:x",
            b"# a comment",
            b"short",
            b"big",
            b"minus",
            b"plus",
            b"empty",
            b"huge",
            b"init",
            b"real",
            b"nobody",
            b"\n",
        ];
        for name in names {
            assert_eq!(ids(name), None, "{:?}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn any_bytes_are_read() {
        for text in [&b""[..], b":", b"::::::::", b"\0:\0:0:0:\0:/\0:", b"a", b"a:", &[b'a'; 5000]]
        {
            assert!(find(text, b"a").is_none());
        }
        assert_eq!(find(b"a:x:1:1::/h\0:", b"a").unwrap().home, b"/");
    }
}
