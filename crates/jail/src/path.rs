//! The only place that opens untrusted trees: every name is resolved by openat2(2) beneath a
//! directory fd, never walked as a path string.
//!
//! Invariant: nothing that is opened, made or removed through a [`Beneath`] lies outside of its
//! directory, whatever other processes rename or link meanwhile; no other mount is entered, and no
//! magic link (`/proc/N/fd/M`) is followed.

use std::collections::HashSet;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Gid, RenameFlags, ResolveFlags, Stat, Uid};
pub use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How often a name is resolved again after the kernel saw a rename on its way.
const RACES_MAX: u32 = 64;
/// Files with several names that are told apart when a tree is counted; of more, each name counts.
const LINKED_MAX: usize = 1 << 20;
const OPEN_DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory; nothing opened through it lies outside of it.
#[derive(Debug)]
pub struct Beneath {
    dir: OwnedFd,
}

impl Beneath {
    /// Opens a host path of ours; it is trusted and may contain links.
    ///
    /// # Errors
    /// What open(2) says; `ENOTDIR` for anything but a directory.
    pub fn open(trusted: &Path) -> io::Result<Self> {
        Ok(Self { dir: rustix::fs::open(trusted, OPEN_DIR, Mode::empty())? })
    }

    /// Takes a directory that is open already.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { dir: fd }
    }

    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.dir
    }

    /// Opens a file beneath. `O_NONBLOCK`, `O_NOCTTY` and `O_CLOEXEC` are added.
    ///
    /// # Errors
    /// `EXDEV` or `ELOOP` where the path leads out; else what open(2) says.
    pub fn open_file(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        Ok(self.resolve(path, flags, mode, ResolveFlags::BENEATH)?)
    }

    /// As [`open_file`](Self::open_file), but the directory is the root: absolute links and `..` stay
    /// inside instead of failing. For image layers.
    ///
    /// # Errors
    /// What openat2(2) says.
    pub fn open_file_in_root(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        Ok(self.resolve(path, flags, mode, ResolveFlags::IN_ROOT)?)
    }

    /// Opens a directory beneath.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file).
    pub fn open_dir(&self, path: &Path) -> io::Result<Self> {
        self.open_file(path, OPEN_DIR, Mode::empty()).map(Self::from_fd)
    }

    /// Opens a directory with this one as the root.
    ///
    /// # Errors
    /// As [`open_file_in_root`](Self::open_file_in_root).
    pub fn open_dir_in_root(&self, path: &Path) -> io::Result<Self> {
        self.open_file_in_root(path, OPEN_DIR, Mode::empty()).map(Self::from_fd)
    }

    /// Makes the directories of a path that are missing, with that owner and mode, and opens the last.
    ///
    /// # Errors
    /// As [`open_file`](Self::open_file); `ENOTDIR` where a name is something else.
    pub fn create_dirs(&self, path: &Path, owner: (u32, u32), mode: Mode) -> io::Result<Self> {
        self.make_missing(path, owner, mode, ResolveFlags::BENEATH)
    }

    /// As [`create_dirs`](Self::create_dirs), with this directory as the root.
    ///
    /// # Errors
    /// As [`open_file_in_root`](Self::open_file_in_root); `ENOTDIR` where a name is something else.
    pub fn create_dirs_in_root(
        &self,
        path: &Path,
        owner: (u32, u32),
        mode: Mode,
    ) -> io::Result<Self> {
        self.make_missing(path, owner, mode, ResolveFlags::IN_ROOT)
    }

    /// Removes a file or a whole tree. Follows no link and enters no other mount.
    ///
    /// # Errors
    /// `EXDEV` where something is mounted below; else what unlinkat(2) says. A missing name is fine.
    pub fn remove_tree(&self, name: &OsStr) -> io::Result<()> {
        let name = single_name(name)?;
        if !is_left(self.unlink(&name))? {
            return Ok(());
        }
        let top = self.child(&name)?;
        let mut number = 0;
        while top.remove_entries(&top, &mut number)? {}
        Ok(rustix::fs::unlinkat(&self.dir, &name, AtFlags::REMOVEDIR)?)
    }

    /// Bytes that the tree takes on disk, itself included, however long that takes.
    ///
    /// # Errors
    /// What reading a directory says.
    pub fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.size_bytes_while(&|| true)?.unwrap_or(0))
    }

    /// Bytes that the tree takes on disk, itself included. `None` where `go_on` said no before the end. A
    /// tree that changes meanwhile gives a figure from between.
    ///
    /// # Errors
    /// What reading a directory says.
    pub fn size_bytes_while(&self, go_on: &dyn Fn() -> bool) -> io::Result<Option<u64>> {
        let mut walk = Walk { bytes: 0, parents: Vec::new(), linked: HashSet::new(), go_on };
        let is_whole = walk.run(self.open_dir(Path::new("."))?)?;
        Ok(is_whole.then_some(walk.bytes))
    }

    fn make_missing(
        &self,
        path: &Path,
        owner: (u32, u32),
        mode: Mode,
        how: ResolveFlags,
    ) -> io::Result<Self> {
        let open =
            |path: &Path| self.resolve(path, OPEN_DIR, Mode::empty(), how).map(Self::from_fd);
        match open(path) {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        let mut current = self.open_dir(Path::new("."))?;
        let mut prefix = PathBuf::new();
        for component in path.components() {
            prefix.push(component);
            // Each prefix is resolved from the top, so that `..` and links are judged by the kernel.
            current = match (open(&prefix), component) {
                (Err(Errno::NOENT), Component::Normal(name)) => {
                    make_dir(&current, name, owner, mode)?
                }
                (opened, _) => opened?,
            };
        }
        Ok(current)
    }

    fn resolve(
        &self,
        path: &Path,
        flags: OFlags,
        mode: Mode,
        how: ResolveFlags,
    ) -> Result<OwnedFd, Errno> {
        let mut flags = flags | OFlags::CLOEXEC;
        if !flags.contains(OFlags::PATH) {
            // A FIFO must not block us, nor a terminal become ours.
            flags |= OFlags::NONBLOCK | OFlags::NOCTTY;
        }
        let how = how | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let mut races = 0;
        loop {
            match rustix::fs::openat2(&self.dir, path, flags, mode, how) {
                Err(Errno::AGAIN | Errno::INTR) if races < RACES_MAX => races += 1,
                answer => return answer,
            }
        }
    }

    /// Opens a directory by its one name; a link is not followed.
    fn child(&self, name: &CStr) -> io::Result<Self> {
        let path = Path::new(OsStr::from_bytes(name.to_bytes()));
        self.open_file(path, OPEN_DIR | OFlags::NOFOLLOW, Mode::empty()).map(Self::from_fd)
    }

    /// Unlinks a file or an empty directory.
    fn unlink(&self, name: &CStr) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            // EISDIR on Linux, EPERM by POSIX.
            Err(Errno::ISDIR | Errno::PERM) => {
                rustix::fs::unlinkat(&self.dir, name, AtFlags::REMOVEDIR)
            }
            answer => answer,
        }
    }

    /// One pass over the entries: true if there was any. A directory's own directories are moved up
    /// into `top`, so that any depth takes two descriptors and no recursion.
    fn remove_entries(&self, top: &Self, number: &mut u64) -> io::Result<bool> {
        let mut any = false;
        for name in self.names()? {
            any = true;
            if !is_left(self.unlink(&name))? {
                continue;
            }
            let child = self.child(&name)?;
            child.move_dirs_up(top, number)?;
            is_left(rustix::fs::unlinkat(&self.dir, &name, AtFlags::REMOVEDIR))?;
        }
        Ok(any)
    }

    /// Empties this directory: what can't be unlinked is moved into `top` under a new name.
    fn move_dirs_up(&self, top: &Self, number: &mut u64) -> io::Result<()> {
        for name in self.names()? {
            if is_left(self.unlink(&name))? {
                self.move_into(&name, top, number)?;
            }
        }
        Ok(())
    }

    fn move_into(&self, name: &CStr, top: &Self, number: &mut u64) -> io::Result<()> {
        loop {
            *number += 1;
            let fresh = format!(".removing-{number}");
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&self.dir, name, &top.dir, &fresh, flags) {
                Err(Errno::EXIST) => {}
                answer => return Ok(answer?),
            }
        }
    }

    /// All names but `.` and `..`, in the kernel's order.
    fn names(&self) -> io::Result<Vec<CString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.dir)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
            }
        }
        Ok(names)
    }
}

impl AsFd for Beneath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Whether something is mounted at a place below `dir` in this process's mount namespace.
///
/// # Errors
/// Where `dir` can't be opened or `/proc/self/mountinfo` can't be read.
pub fn is_mounted_below(dir: &Path) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    let opened = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // The kernel's own spelling of the place, links resolved.
    let place = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|b| *b == b'\n').filter_map(mount_point).any(|point| {
        let point = Path::new(OsStr::from_bytes(&point));
        point != place && point.starts_with(&place)
    }))
}

/// The fifth field of a mountinfo line, its octal escapes undone.
fn mount_point(line: &[u8]) -> Option<Vec<u8>> {
    let field = line.split(|b| *b == b' ').nth(4)?;
    let mut point = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let escaped = (*first == b'\\').then(|| tail.get(..3)).flatten();
        let code = escaped
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        point.push(code.unwrap_or(*first));
        rest = if code.is_some() { tail.get(3..).unwrap_or_default() } else { tail };
    }
    Some(point)
}

/// Makes one directory and opens it; one that another process made meanwhile is as good.
fn make_dir(parent: &Beneath, name: &OsStr, owner: (u32, u32), mode: Mode) -> io::Result<Beneath> {
    let name = single_name(name)?;
    let made = match rustix::fs::mkdirat(&parent.dir, &name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(err) => return Err(err.into()),
    };
    let dir = parent.child(&name)?;
    if made {
        let (uid, gid) = (Uid::from_raw(owner.0), Gid::from_raw(owner.1));
        rustix::fs::fchown(&dir.dir, Some(uid), Some(gid))?;
        // After the owner: chown(2) clears the set-id bits.
        rustix::fs::fchmod(&dir.dir, mode)?;
    }
    Ok(dir)
}

/// A name that can't leave its directory: not empty, no slash, neither `.` nor `..`.
fn single_name(name: &OsStr) -> io::Result<CString> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.contains(&b'/') || matches!(bytes, b"." | b"..") {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(CString::new(bytes)?)
}

/// Whether an entry that was to be unlinked is still there: it is a directory with entries.
fn is_left(unlinked: Result<(), Errno>) -> io::Result<bool> {
    match unlinked {
        Ok(()) | Err(Errno::NOENT) => Ok(false),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(true),
        Err(err) => Err(err.into()),
    }
}

/// Adds up a tree with one open directory, whatever its depth: it goes up by `..` and checks that it
/// came out where it went in.
struct Walk<'a> {
    bytes: u64,
    parents: Vec<Level>,
    /// Inodes with several names that were counted, up to [`LINKED_MAX`].
    linked: HashSet<u64>,
    go_on: &'a dyn Fn() -> bool,
}

struct Level {
    dev: u64,
    ino: u64,
    /// Directories still to be visited.
    dirs: Vec<CString>,
}

impl Walk<'_> {
    /// False where it was broken off.
    fn run(&mut self, top: Beneath) -> io::Result<bool> {
        let mut dir = top;
        let level = self.enter(&dir)?;
        self.parents.push(level);
        while let Some(level) = self.parents.last_mut() {
            if !(self.go_on)() {
                return Ok(false);
            }
            if let Some(name) = level.dirs.pop() {
                // What was renamed or replaced meanwhile is left out.
                let Ok(child) = dir.child(&name) else { continue };
                dir = child;
                let level = self.enter(&dir)?;
                self.parents.push(level);
                continue;
            }
            self.parents.pop();
            let Some(above) = self.parents.last() else { break };
            let up = rustix::fs::openat(&dir.dir, "..", OPEN_DIR, Mode::empty())?;
            let stat = rustix::fs::fstat(&up)?;
            if (stat.st_dev, stat.st_ino) != (above.dev, above.ino) {
                // The directory was moved while we were in it: the way up is another one now.
                break;
            }
            dir = Beneath::from_fd(up);
        }
        Ok(true)
    }

    /// Counts a directory and its files.
    fn enter(&mut self, dir: &Beneath) -> io::Result<Level> {
        let stat = rustix::fs::fstat(&dir.dir)?;
        self.bytes += blocks_bytes(&stat);
        let mut level = Level { dev: stat.st_dev, ino: stat.st_ino, dirs: Vec::new() };
        for name in dir.names()? {
            if !(self.go_on)() {
                break;
            }
            match rustix::fs::statat(&dir.dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if is_dir(&stat) => level.dirs.push(name),
                Ok(stat) => self.add(&stat),
                Err(_gone) => {}
            }
        }
        Ok(level)
    }

    /// Counts a file, by its first name alone. No other mount is entered, so its inode number tells it.
    fn add(&mut self, stat: &Stat) {
        let is_known =
            stat.st_nlink > 1 && self.linked.len() < LINKED_MAX && !self.linked.insert(stat.st_ino);
        if !is_known {
            self.bytes += blocks_bytes(stat);
        }
    }
}

fn is_dir(stat: &Stat) -> bool {
    rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
}

fn blocks_bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * 512
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn lab() -> (tempfile::TempDir, Beneath) {
        let lab = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(lab.path().join("in/real")).unwrap();
        std::fs::write(lab.path().join("canary"), "host").unwrap();
        std::fs::write(lab.path().join("in/real/file"), "box").unwrap();
        let beneath = Beneath::open(&lab.path().join("in")).unwrap();
        (lab, beneath)
    }

    fn opens(beneath: &Beneath, path: &str) -> Result<(), Errno> {
        let opened = beneath.open_file(Path::new(path), OFlags::RDONLY, Mode::empty());
        opened.map(drop).map_err(|err| Errno::from_io_error(&err).unwrap())
    }

    #[test]
    fn no_path_leads_out() {
        let (lab, beneath) = lab();
        symlink("../canary", lab.path().join("in/relative")).unwrap();
        symlink(lab.path().join("canary"), lab.path().join("in/absolute")).unwrap();
        symlink("/", lab.path().join("in/root")).unwrap();
        symlink("loop", lab.path().join("in/loop")).unwrap();
        symlink("real", lab.path().join("in/inside")).unwrap();
        for bad in
            ["../canary", "relative", "absolute", "/etc/passwd", "root/etc/passwd", "a/../.."]
        {
            assert!(matches!(opens(&beneath, bad), Err(Errno::XDEV | Errno::NOENT)), "{bad}");
        }
        assert_eq!(opens(&beneath, "loop"), Err(Errno::LOOP));
        assert_eq!(opens(&beneath, "inside/file"), Ok(()));
        assert_eq!(opens(&beneath, "real/../real/file"), Ok(()));
    }

    #[test]
    fn in_root_an_absolute_link_stays_inside() {
        let (lab, beneath) = lab();
        symlink("/real/file", lab.path().join("in/link")).unwrap();
        symlink("/../../canary", lab.path().join("in/out")).unwrap();
        let open =
            |path: &str| beneath.open_file_in_root(Path::new(path), OFlags::RDONLY, Mode::empty());
        assert!(open("link").is_ok());
        assert!(open("/real/file").is_ok());
        assert_eq!(open("out").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_fifo_does_not_block() {
        let (lab, beneath) = lab();
        let dir = Beneath::open(&lab.path().join("in")).unwrap();
        rustix::fs::mknodat(&dir, "fifo", rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(opens(&beneath, "fifo"), Ok(()));
    }

    #[test]
    fn directories_are_made_inside_alone() {
        let (lab, beneath) = lab();
        symlink("../", lab.path().join("in/up")).unwrap();
        symlink("real", lab.path().join("in/inside")).unwrap();
        let make = |path: &str| beneath.create_dirs(Path::new(path), (0, 0), Mode::from(0o751));
        make("a/b/c").unwrap();
        make("inside/d").unwrap();
        assert!(lab.path().join("in/real/d").is_dir());
        assert!(make("up/evil").is_err());
        assert!(make("../evil").is_err());
        assert!(make("x/../../evil").is_err());
        assert!(!lab.path().join("evil").exists());
        assert_eq!(make("real/file/x").unwrap_err().kind(), io::ErrorKind::NotADirectory);
        let stat = rustix::fs::stat(lab.path().join("in/a/b")).unwrap();
        assert_eq!(stat.st_mode & 0o7777, 0o751);
    }

    #[test]
    fn a_removed_tree_takes_nothing_with_it() {
        let (lab, beneath) = lab();
        symlink(lab.path().join("canary"), lab.path().join("in/real/link")).unwrap();
        symlink("..", lab.path().join("in/real/up")).unwrap();
        std::fs::create_dir_all(lab.path().join("in/real/.removing-1/x/y")).unwrap();
        beneath.remove_tree(OsStr::new("real")).unwrap();
        beneath.remove_tree(OsStr::new("missing")).unwrap();
        assert!(!lab.path().join("in/real").exists());
        assert!(lab.path().join("canary").exists());
        for bad in ["", ".", "..", "a/b"] {
            assert!(beneath.remove_tree(OsStr::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn depth_is_no_obstacle() {
        let (_lab, beneath) = lab();
        let mut dir = beneath.open_dir(Path::new(".")).unwrap();
        for _ in 0..3000 {
            dir = make_dir(&dir, OsStr::new("d"), (0, 0), Mode::empty()).unwrap();
        }
        assert!(beneath.size_bytes().unwrap() > 0);
        beneath.remove_tree(OsStr::new("d")).unwrap();
        assert_eq!(opens(&beneath, "d"), Err(Errno::NOENT));
    }

    #[test]
    fn size_counts_every_file() {
        let (lab, beneath) = lab();
        let before = beneath.size_bytes().unwrap();
        std::fs::write(lab.path().join("in/real/big"), vec![1; 1 << 20]).unwrap();
        let grown = beneath.size_bytes().unwrap() - before;
        assert!((1 << 20..(1 << 20) + (1 << 17)).contains(&grown), "{grown}");
    }

    #[test]
    fn mounts_below_are_seen() {
        assert!(is_mounted_below(Path::new("/")).unwrap());
        assert!(!is_mounted_below(tempfile::tempdir().unwrap().path()).unwrap());
        let line = br"36 35 98:0 /mnt1 /mnt\0402\134 rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line).unwrap(), b"/mnt 2\\");
    }

    /// A directory and a link to the outside change places all the time; the way is never out.
    #[test]
    fn a_race_of_renames_never_escapes() {
        let (lab, beneath) = lab();
        std::fs::create_dir(lab.path().join("in/swap")).unwrap();
        std::fs::write(lab.path().join("in/swap/canary"), "box").unwrap();
        symlink("..", lab.path().join("in/evil")).unwrap();
        let (stop, swapped) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let flags = RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(&beneath, "swap", &beneath, "evil", flags).unwrap();
                    swapped.store(true, Ordering::Relaxed);
                }
            });
            for _ in 0..20_000 {
                let path = Path::new("swap/canary");
                if let Ok(fd) = beneath.open_file(path, OFlags::RDONLY, Mode::empty()) {
                    let mut text = [0; 4];
                    let n = rustix::io::read(&fd, &mut text).unwrap();
                    assert_eq!(&text[..n], b"box");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(swapped.load(Ordering::Relaxed));
    }
}
