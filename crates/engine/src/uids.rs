//! Ranges of host uids: 65,536 for each session, shared by no two sessions of any daemon.
//!
//! A claim is a directory `/run/sandkasten/uids/<n>` that says whose it is. It is made whole and
//! then renamed into its place, so that the kernel decides who was first. A claim is made after its
//! session's cgroup and goes before it. What a daemon that died left is given back by the next one of
//! its data directory; nobody else can tell whether such a session lives. A reboot clears all.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sandkasten_jail::launcher::{LaunchError, Launcher};
use sandkasten_types::SessionId;
use sandkasten_types::limits::{UID_BASE, UID_RANGE};

/// Ranges that fit between [`UID_BASE`] and the end of the ids, the last of which mean "none".
const RANGES: u32 = (u32::MAX - UID_BASE) / UID_RANGE - 1;
/// User namespaces of free ranges that are kept for the next session.
const CACHED_MAX: usize = 16;

/// The claims of one daemon.
#[derive(Debug)]
pub(crate) struct Uids {
    dir: PathBuf,
    tag: String,
    data_dir: PathBuf,
    /// Ranges that the host gave to users.
    given_away: Vec<(u64, u64)>,
    state: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    ours: HashMap<SessionId, u32>,
    /// By the first uid of the range.
    namespaces: HashMap<u32, OwnedFd>,
}

/// A range with the user namespace that shows it as 0 to 65535.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) base: u32,
    pub(crate) namespace: OwnedFd,
}

/// Why there is no range.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("all ranges of uids are taken")]
    Exhausted,
    #[error("claiming a range of uids")]
    Io(#[from] io::Error),
    #[error("making a user namespace")]
    Namespace(#[from] LaunchError),
}

impl Uids {
    pub(crate) fn open(run_dir: &Path, tag: &str, data_dir: &Path) -> io::Result<Self> {
        let dir = run_dir.join("uids");
        // No other user needs to know what runs here.
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let given_away = ["/etc/subuid", "/etc/subgid"]
            .iter()
            .flat_map(|file| given_away(&fs::read_to_string(file).unwrap_or_default()))
            .collect();
        let (tag, data_dir) = (tag.into(), data_dir.into());
        Ok(Self { dir, tag, data_dir, given_away, state: Mutex::default() })
    }

    /// Claims a range for a session and makes its user namespace, or takes a kept one. Blocks.
    pub(crate) fn claim(
        &self,
        session: &SessionId,
        launcher: &Launcher,
    ) -> Result<Range, ClaimError> {
        let base = self.claim_base(session)?;
        let cached = self.lock().namespaces.remove(&base);
        let namespace = match cached {
            Some(namespace) => namespace,
            None => match launcher.user_namespace(base) {
                Ok(namespace) => namespace,
                Err(error) => {
                    self.release(session, None);
                    return Err(error.into());
                }
            },
        };
        Ok(Range { base, namespace })
    }

    /// Makes sure that a session that lives already has its range.
    pub(crate) fn adopt(&self, session: &SessionId, base: u32) -> io::Result<()> {
        self.lock().ours.insert(session.clone(), base);
        let number = base.saturating_sub(UID_BASE) / UID_RANGE;
        self.make(number, session).map(drop)
    }

    /// Gives a session's range back, with its user namespace for the next one.
    pub(crate) fn release(&self, session: &SessionId, namespace: Option<OwnedFd>) {
        let base = self.lock().ours.remove(session);
        let Some(base) = base else { return };
        self.remove((base - UID_BASE) / UID_RANGE);
        let mut held = self.lock();
        if let Some(namespace) = namespace
            && held.namespaces.len() < CACHED_MAX
        {
            held.namespaces.insert(base, namespace);
        }
    }

    /// Removes claims in the name of this data directory whose sessions don't live. Says how many.
    pub(crate) fn release_orphans(&self, lives: impl Fn(&str) -> bool) -> io::Result<usize> {
        let mut removed = 0;
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let Ok(owner) = fs::read_to_string(path.join("owner")) else { continue };
            let mut words = owner.split_whitespace();
            let (tag, session) = (words.next(), words.next());
            if tag == Some(&self.tag) && session.is_some_and(|session| !lives(session)) {
                fs::remove_dir_all(&path)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn claim_base(&self, session: &SessionId) -> Result<u32, ClaimError> {
        // Claims of ours need no look at the disk.
        let ours: HashSet<u32> = self.lock().ours.values().copied().collect();
        for number in 0..RANGES {
            let base = UID_BASE + number * UID_RANGE;
            if ours.contains(&base) || self.is_given_away(base) {
                continue;
            }
            if self.make(number, session)? {
                self.lock().ours.insert(session.clone(), base);
                return Ok(base);
            }
        }
        Err(ClaimError::Exhausted)
    }

    /// False: somebody has it.
    fn make(&self, number: u32, session: &SessionId) -> io::Result<bool> {
        let place = self.dir.join(number.to_string());
        if place.exists() {
            return Ok(false);
        }
        let made = self.dir.join(format!(".{}-{session}", self.tag));
        fs::create_dir_all(&made)?;
        let owner = format!("{} {session}\n{}\n", self.tag, self.data_dir.display());
        fs::write(made.join("owner"), owner)?;
        match renameat_with(CWD, &made, CWD, &place, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(error) => {
                fs::remove_dir_all(&made)?;
                let taken = error == rustix::io::Errno::EXIST;
                if taken { Ok(false) } else { Err(error.into()) }
            }
        }
    }

    fn remove(&self, number: u32) {
        let place = self.dir.join(number.to_string());
        if let Err(error) = fs::remove_dir_all(&place)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, number, "uid_claim_not_removed");
        }
    }

    fn is_given_away(&self, base: u32) -> bool {
        let (start, end) = (u64::from(base), u64::from(base) + u64::from(UID_RANGE));
        self.given_away.iter().any(|(from, to)| start < *to && *from < end)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// `name:first:count` a line.
fn given_away(text: &str) -> Vec<(u64, u64)> {
    let range = |line: &str| {
        let mut fields = line.trim().split(':').skip(1);
        let first: u64 = fields.next()?.parse().ok()?;
        let count: u64 = fields.next()?.parse().ok()?;
        Some((first, first.saturating_add(count)))
    };
    text.lines().filter_map(range).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    fn id() -> SessionId {
        SessionId::random().unwrap()
    }

    #[test]
    fn two_daemons_never_share_a_range() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (
            Uids::open(dir.path(), "aa", "/a".as_ref()).unwrap(),
            Uids::open(dir.path(), "bb", "/b".as_ref()).unwrap(),
        );
        let (one, two, three) = (id(), id(), id());
        let first = a.claim_base(&one).unwrap();
        let second = b.claim_base(&two).unwrap();
        assert_ne!(first, second);
        assert_eq!((first - UID_BASE) % UID_RANGE, 0);
        a.release(&one, None);
        assert_eq!(b.claim_base(&three).unwrap(), first);
        // A restarted daemon finds what an earlier one left, and leaves others' alone.
        let again = Uids::open(dir.path(), "bb", "/b".as_ref()).unwrap();
        again.adopt(&two, second).unwrap();
        assert_eq!(again.release_orphans(|session| session == two.as_str()).unwrap(), 1);
        assert_eq!(a.release_orphans(|_| false).unwrap(), 0);
        assert_eq!(again.claim_base(&id()).unwrap(), first);
    }

    #[test]
    fn ranges_of_users_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let mut uids = Uids::open(dir.path(), "aa", "/a".as_ref()).unwrap();
        uids.given_away = given_away(&format!("joe:{}:70000\nbad\n", UID_BASE + 10));
        assert_eq!(uids.claim_base(&id()).unwrap(), UID_BASE + 2 * UID_RANGE);
    }
}
