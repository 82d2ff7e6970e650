//! Entries of a passwd, which anybody may have written: what it says counts only where it can't do harm.
//! Ids that a box does not have, and init's own, are nobody's.

use crate::id;

/// Ids that a box has.
const IDS: u32 = 65_536;

/// A user and where it is at home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    pub home: Vec<u8>,
}

/// The first entry of that name counts, as it does for login(1); else the first one of that uid, where
/// `name` is digits.
#[must_use]
pub fn find(text: &[u8], name: &[u8]) -> Option<Entry> {
    let lines = || text.split(|b| *b == b'\n');
    let is_named = |line: &&[u8]| {
        line.strip_prefix(name).is_some_and(|rest| rest.first().is_some_and(|b| *b == b':'))
    };
    match lines().find(is_named) {
        Some(line) => entry_of(line).filter(|entry| entry.name == name),
        None => {
            let uid = id_of(name)?;
            lines().filter_map(entry_of).find(|entry| entry.uid == uid)
        }
    }
}

fn entry_of(line: &[u8]) -> Option<Entry> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b':').collect();
    let [name, _password, uid, gid, _comment, home, ..] = fields.as_slice() else { return None };
    let (uid, gid) = (id_of(uid)?, id_of(gid)?);
    // What stands in the environment can't hold a NUL.
    let has_home = home.starts_with(b"/") && !home.contains(&0);
    let home = if has_home { home.to_vec() } else { b"/".to_vec() };
    Some(Entry { name: name.to_vec(), uid, gid, home })
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

    #[test]
    fn users_are_found_by_their_ids() {
        assert_eq!(find(TEXT, b"33").unwrap().name, b"www-data");
        assert_eq!(find(TEXT, b"1").unwrap().name, b"daemon");
        assert_eq!(find(TEXT, b"2"), None);
        assert_eq!((id_of(b"+33"), id_of(b""), id_of(b"65536")), (None, None, None));
    }

    fn ids(name: &[u8]) -> Option<(u32, u32)> {
        find(TEXT, name).map(|a| (a.uid, a.gid))
    }

    #[test]
    fn users_are_found() {
        assert_eq!(ids(b"root"), Some((0, 0)));
        assert_eq!(ids(b"daemon"), Some((1, 2)));
        assert_eq!(ids(b"last"), Some((65535, 65534)));
        assert_eq!(find(TEXT, b"www-data").unwrap().home, b"/");
        let rat = find(TEXT, b"r\xc3\xa4t").unwrap();
        assert_eq!((rat.uid, rat.gid, rat.home.as_slice()), (40, 41, &b"/h/r\xff"[..]));
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
