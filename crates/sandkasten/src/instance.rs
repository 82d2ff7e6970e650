//! The daemon of a data directory: is there one, who is it, where does it listen?
//!
//! `pid` is locked with flock(2) by a running daemon and holds its pid; `addr` has its address.
//! Neither says anything by itself: a pid counts only while `/proc/locks` names it as the holder of
//! that file's lock, and an address only while there is such a holder.
//!
//! `key` is a key for root: a daemon that asks for an API key makes one of its own at its start, takes
//! it beside the API key, and removes it at its end. So a client of root's needs no API key, and the
//! API key itself is never on disk.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags};

use crate::failure::{Failure, Result, Tried};

/// Makes the data directory, for root alone.
pub(crate) fn prepare(data_dir: &Path) -> Result<()> {
    let tried = || format!("data directory {}", data_dir.display());
    DirBuilder::new().recursive(true).mode(0o700).create(data_dir).tried(tried)?;
    let found = fs::metadata(data_dir).tried(tried)?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(Failure::new(format!("{}: belongs to another user", tried()))
            .hint("choose another `data_dir`, or run it as root"));
    }
    if found.mode() & 0o077 != 0 {
        // Layers hold setuid files: no other user of the host may reach them.
        fs::set_permissions(data_dir, Permissions::from_mode(0o700)).tried(tried)?;
    }
    Ok(())
}

/// The claim of this process to be the daemon of its data directory. Dropped: given up.
#[derive(Debug)]
pub(crate) struct Claim {
    data_dir: PathBuf,
    pid: File,
}

impl Claim {
    /// # Errors
    /// Where another daemon has the directory.
    pub(crate) fn take(data_dir: &Path) -> Result<Self> {
        let path = data_dir.join("pid");
        let tried = || path.display().to_string();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut pid = options.open(&path).tried(tried)?;
        match rustix::fs::flock(&pid, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(taken(data_dir)),
            Err(why) => return Err(Failure::because(tried(), &why)),
        }
        // What a daemon that was killed left behind must not be taken for ours.
        remove(&data_dir.join("addr"))?;
        remove(&data_dir.join("key"))?;
        pid.set_len(0).tried(tried)?;
        pid.rewind().tried(tried)?;
        writeln!(pid, "{}", std::process::id()).tried(tried)?;
        Ok(Self { data_dir: data_dir.to_owned(), pid })
    }

    /// Tells root the key that this daemon takes from it.
    pub(crate) fn hand_key(&self, key: &str) -> Result<()> {
        self.put("key", key)
    }

    /// Tells where this daemon listens.
    pub(crate) fn announce(&self, address: SocketAddr) -> Result<()> {
        self.put("addr", &address.to_string())
    }

    /// Writes a line to a file that is there whole or not at all.
    fn put(&self, name: &str, line: &str) -> Result<()> {
        let (path, beside) = (self.data_dir.join(name), self.data_dir.join(format!("{name}.new")));
        let tried = || path.display().to_string();
        // Not a file that lay here before the directory was root's alone: who made it may have it open,
        // or it may lead elsewhere.
        remove(&beside)?;
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(&beside).tried(tried)?;
        file.write_all(format!("{line}\n").as_bytes()).tried(tried)?;
        fs::rename(&beside, &path).tried(tried)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Stale files are harmless (see the module's head); that they go is for the eye.
        remove(&self.data_dir.join("addr")).ok();
        remove(&self.data_dir.join("key")).ok();
        self.pid.set_len(0).ok();
    }
}

fn taken(data_dir: &Path) -> Failure {
    let who = match find(data_dir) {
        Ok(Some(running)) => format!("the daemon with pid {}", running.pid.as_raw_nonzero()),
        Ok(None) | Err(_) => "another daemon".to_owned(),
    };
    Failure::new(format!("{who} has the data directory {}", data_dir.display()))
        .hint("`sandkasten daemon stop` ends it; a second daemon needs a `data_dir` of its own")
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(why) if why.kind() != ErrorKind::NotFound => {
            Err(Failure::because(path.display(), &why))
        }
        _ => Ok(()),
    }
}

/// The address by which a client on this host reaches a listener: one of loopback where it has them
/// all. A listener on `[::]` takes IPv4 too, unless the host has set `net.ipv6.bindv6only`.
pub(crate) fn reachable(listener: &impl AsFd) -> std::io::Result<SocketAddr> {
    let bound = rustix::net::getsockname(listener)?;
    let bound = SocketAddr::try_from(bound).map_err(std::io::Error::from)?;
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    let takes_v4 = bound.is_ipv4() || !rustix::net::sockopt::ipv6_v6only(listener)?;
    let loopback: IpAddr =
        if takes_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    Ok(SocketAddr::new(loopback, bound.port()))
}

/// The key that the running daemon of `data_dir` takes from root; `None` where it has none.
pub(crate) fn key(data_dir: &Path) -> Result<Option<String>> {
    let path = data_dir.join("key");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|key| !key.is_empty())),
        Err(why) if why.kind() == ErrorKind::NotFound => Ok(None),
        Err(why) => Err(Failure::because(path.display(), &why)),
    }
}

/// A running daemon. The pidfd is that of the process that holds the lock.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// `None` while it is starting or stopping.
    pub(crate) address: Option<SocketAddr>,
}

/// The daemon of `data_dir`, if one runs.
pub(crate) fn find(data_dir: &Path) -> Result<Option<Running>> {
    let path = data_dir.join("pid");
    let mut file = match File::open(&path) {
        Ok(file) => file,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) if why.kind() == ErrorKind::PermissionDenied => {
            return Err(Failure::because(path.display(), &why).hint("run it as root"));
        }
        Err(why) => return Err(Failure::because(path.display(), &why)),
    };
    let mut text = String::new();
    (&mut file).take(64).read_to_string(&mut text).tried(|| path.display().to_string())?;
    let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { return Ok(None) };
    let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return Ok(None) };
    // Only now, with the process held: the one of this number that has the lock is the daemon.
    let inode = file.metadata().tried(|| path.display().to_string())?.ino();
    let locks = fs::read_to_string("/proc/locks").tried(|| "/proc/locks".to_owned())?;
    if !holds_lock(&locks, pid.as_raw_nonzero().get(), inode) {
        return Ok(None);
    }
    let address = fs::read_to_string(data_dir.join("addr")).ok();
    let address = address.and_then(|text| text.trim().parse().ok());
    Ok(Some(Running { pid, pidfd, address }))
}

/// Looks for a line as `1: FLOCK  ADVISORY  WRITE 4711 fe:01:262158 0 EOF`. The device is left out:
/// on btrfs the one of stat(2) is another.
fn holds_lock(locks: &str, pid: i32, inode: u64) -> bool {
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", holder, place, ..] = words.as_slice() else { return false };
        let found = place.rsplit(':').next().and_then(|inode| inode.parse().ok());
        holder.parse() == Ok(pid) && found == Some(inode)
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_claim_is_found_taken_and_given_up() {
        let dir = tempfile::tempdir().unwrap();
        prepare(dir.path()).unwrap();
        assert!(find(dir.path()).unwrap().is_none());
        let claim = Claim::take(dir.path()).unwrap();
        let running = find(dir.path()).unwrap().unwrap();
        assert_eq!(running.pid, rustix::process::getpid());
        assert_eq!(running.address, None);
        claim.announce("127.0.0.1:81".parse().unwrap()).unwrap();
        let running = find(dir.path()).unwrap().unwrap();
        assert_eq!(running.address, Some("127.0.0.1:81".parse().unwrap()));
        assert_eq!(key(dir.path()).unwrap(), None);
        claim.hand_key("k").unwrap();
        assert_eq!(key(dir.path()).unwrap().as_deref(), Some("k"));
        assert_eq!(fs::metadata(dir.path().join("key")).unwrap().mode() & 0o777, 0o600);
        let refusal = Claim::take(dir.path()).unwrap_err().message;
        assert!(refusal.contains(&format!("pid {}", std::process::id())), "{refusal}");
        drop(claim);
        assert!(find(dir.path()).unwrap().is_none());
        assert!(!dir.path().join("addr").exists() && !dir.path().join("key").exists());
    }

    #[test]
    fn what_is_announced_can_be_connected_to() {
        for listen in ["0.0.0.0:0", "[::]:0", "127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(listen) else { continue };
            let address = reachable(&listener).unwrap();
            assert!(address.ip().is_loopback(), "{listen}: {address}");
            std::net::TcpStream::connect(address).unwrap();
        }
    }

    #[test]
    fn a_stale_pid_is_nobody() {
        let dir = tempfile::tempdir().unwrap();
        // This process lives, but holds no lock on the file.
        fs::write(dir.path().join("pid"), format!("{}\n", std::process::id())).unwrap();
        assert!(find(dir.path()).unwrap().is_none());
        fs::write(dir.path().join("pid"), "garbage").unwrap();
        assert!(find(dir.path()).unwrap().is_none());
    }

    #[test]
    fn the_data_directory_is_for_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("a/b");
        prepare(&data).unwrap();
        assert_eq!(fs::metadata(&data).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
        prepare(&data).unwrap();
        assert_eq!(fs::metadata(&data).unwrap().mode() & 0o777, 0o700);
    }
}
