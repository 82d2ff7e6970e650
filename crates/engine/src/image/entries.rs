//! The small top layer that every image gets: accounts, host names, the user's home, and a real
//! directory wherever the jail mounts something.
//!
//! Invariant: it is made from what the image's own files say and works whatever stands at a name
//! in the image (a link, a file, nothing): a directory or file of an upper layer hides what is below.
//! The image is read with its own top as the root, so that its links lead nowhere else.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Gid, Mode, OFlags, Uid, XattrFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use sandkasten_jail::path::Beneath;
use sandkasten_protocol::{RUN_DIR, id};
use sandkasten_types::limits;

use super::ImageError;
use super::accounts::{self, Account};
use super::archive::invalid;
use super::unpack::times;

const HOSTS: &str =
    "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\tsandbox\n";
const HOSTNAME: &str = "sandbox\n";

/// Owner and mode of something of ours.
#[derive(Debug, Clone, Copy)]
struct Dress {
    uid: u32,
    gid: u32,
    mode: u32,
}

const OF_ROOT: Dress = Dress { uid: id::ROOT, gid: id::ROOT, mode: 0o755 };
const OF_SANDBOX: Dress = Dress { uid: id::SANDBOX, gid: id::SANDBOX, mode: 0o755 };

/// What the jail mounts over, and `/sys`, which is to be empty.
const MOUNT_POINTS: [(&str, Dress); 6] = [
    ("proc", OF_ROOT),
    ("dev", OF_ROOT),
    ("sys", OF_ROOT),
    ("tmp", Dress { mode: 0o1777, ..OF_ROOT }),
    ("workspace", OF_SANDBOX),
    (".sandkasten", Dress { mode: 0o711, ..OF_ROOT }),
];

/// Makes the entries in the empty directory `out` for an image of these layers, lowest first.
pub(super) fn make(layers: &[OwnedFd], out: &Beneath) -> Result<(), ImageError> {
    debug_assert_eq!(RUN_DIR, "/.sandkasten");
    let image = merged(layers)?;
    let mut top = Top { image: &image, out, dirs: BTreeSet::new() };
    for (name, dress) in MOUNT_POINTS {
        let dir = top.dir(Path::new(name), dress)?;
        if name == "sys" {
            rustix::fs::fsetxattr(&dir, c"trusted.overlay.opaque", b"y", XattrFlags::empty())?;
        }
    }
    let home = top.parent("home")?;
    drop(top.dir(&home.join("sandbox"), OF_SANDBOX)?);
    let etc = top.parent("etc")?;
    top.file(&etc.join("hosts"), HOSTS.as_bytes(), Dress { mode: 0o644, ..OF_ROOT })?;
    top.file(&etc.join("hostname"), HOSTNAME.as_bytes(), Dress { mode: 0o644, ..OF_ROOT })?;
    top.accounts(&etc)?;
    top.set_dir_times()
}

/// All layers seen as one. The overlay is a detached mount: it is in no mount table and goes with
/// its descriptor.
pub(super) fn merged(layers: &[OwnedFd]) -> Result<Beneath, ImageError> {
    if let [only] = layers {
        return Ok(Beneath::from_fd(only.try_clone()?));
    }
    // Leftmost is topmost.
    let names: Vec<String> =
        layers.iter().rev().map(|fd| format!("/proc/self/fd/{}", fd.as_raw_fd())).collect();
    let overlay = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in
        [("lowerdir", names.join(":").as_str()), ("redirect_dir", "nofollow"), ("metacopy", "off")]
    {
        rustix::mount::fsconfig_set_string(&overlay, key, value)?;
    }
    rustix::mount::fsconfig_create(&overlay)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = rustix::mount::fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    // An O_PATH descriptor; directories are read through one that is open for reading.
    Ok(Beneath::from_fd(mount).open_dir(Path::new("."))?)
}

struct Top<'a> {
    image: &'a Beneath,
    out: &'a Beneath,
    /// Directories made.
    dirs: BTreeSet<PathBuf>,
}

impl Top<'_> {
    /// Where `/NAME` really is in the image, with every directory on the way made in our layer too:
    /// overlay shows the topmost one's owner and mode, so those of the image are repeated. Where
    /// there is no such directory, ours stands at the name itself.
    fn parent(&mut self, name: &str) -> Result<PathBuf, ImageError> {
        let path = match self.image.open_dir_in_root(Path::new(name)) {
            Ok(dir) => path_below(&dir, self.image)?,
            Err(_missing_or_no_directory) => PathBuf::from(name),
        };
        let mut prefix = PathBuf::new();
        for component in path.components() {
            prefix.push(component);
            let dress = self.image_dress(&prefix).unwrap_or(OF_ROOT);
            drop(self.dir(&prefix, dress)?);
        }
        Ok(path)
    }

    /// Owner and mode in the image; the session's user can enter every directory that we need.
    fn image_dress(&self, path: &Path) -> Option<Dress> {
        let stat = rustix::fs::fstat(self.image.open_dir(path).ok()?).ok()?;
        let mode = stat.st_mode & 0o7777 | 0o111;
        Some(Dress { uid: stat.st_uid, gid: stat.st_gid, mode })
    }

    fn dir(&mut self, path: &Path, dress: Dress) -> Result<Beneath, ImageError> {
        self.dirs.insert(path.to_owned());
        let dir = self.out.create_dirs(path, (dress.uid, dress.gid), Mode::from(dress.mode))?;
        self.dress(&dir, dress)?;
        Ok(dir)
    }

    /// At the end, since each new entry changes its directory's time: equal images have equal tops.
    fn set_dir_times(&self) -> Result<(), ImageError> {
        for path in &self.dirs {
            rustix::fs::futimens(self.out.open_dir(path)?, &times(0))?;
        }
        Ok(())
    }

    fn file(&self, path: &Path, bytes: &[u8], dress: Dress) -> Result<(), ImageError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = self.out.open_file(path, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = std::fs::File::from(file);
        io::Write::write_all(&mut file, bytes)?;
        self.dress(&file, dress)
    }

    fn dress(&self, file: impl AsFd, dress: Dress) -> Result<(), ImageError> {
        let (uid, gid) = (Uid::from_raw(dress.uid), Gid::from_raw(dress.gid));
        rustix::fs::fchown(&file, Some(uid), Some(gid))?;
        rustix::fs::fchmod(&file, Mode::from(dress.mode))?;
        Ok(rustix::fs::futimens(&file, &times(0))?)
    }

    fn accounts(&self, etc: &Path) -> Result<(), ImageError> {
        let sandbox = Account { shell: self.shell(), ..Account::SANDBOX };
        let shadow = self.read(&etc.join("shadow"))?;
        let sandbox = Account { is_shadowed: shadow.is_some(), ..sandbox };
        for (name, mode, merge) in accounts::FILES {
            let old = self.read(&etc.join(name))?;
            let Some(text) = merge(old.as_ref().map(|(bytes, _)| bytes.as_slice()), &sandbox)
            else {
                continue;
            };
            let dress = old.map_or(Dress { mode, ..OF_ROOT }, |(_, dress)| dress);
            self.file(&etc.join(name), &text, Dress { mode: dress.mode | mode, ..dress })?;
        }
        Ok(())
    }

    fn shell(&self) -> &'static str {
        let bash = self.image.open_file_in_root(Path::new("bin/bash"), OFlags::PATH, Mode::empty());
        let is_program = bash.and_then(|file| Ok(rustix::fs::fstat(file)?)).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                && stat.st_mode & 0o111 != 0
        });
        if is_program { "/bin/bash" } else { "/bin/sh" }
    }

    /// A regular file of the image; `None` for anything else.
    fn read(&self, path: &Path) -> Result<Option<(Vec<u8>, Dress)>, ImageError> {
        let Ok(file) = self.image.open_file_in_root(path, OFlags::RDONLY, Mode::empty()) else {
            return Ok(None);
        };
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let max = limits::IMAGE_ACCOUNTS_BYTES_MAX;
        let mut bytes = Vec::new();
        std::fs::File::from(file).take(max as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > max {
            let shown = path.display();
            return Err(invalid(format!("`/{shown}` is larger than the limit of {max} bytes")));
        }
        let dress = Dress { uid: stat.st_uid, gid: stat.st_gid, mode: stat.st_mode & 0o777 };
        Ok(Some((bytes, dress)))
    }
}

/// The path of `dir` from `root`, in the kernel's words.
fn path_below(dir: &Beneath, root: &Beneath) -> Result<PathBuf, ImageError> {
    let name = |dir: &Beneath| {
        rustix::fs::readlink(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd()), Vec::new())
            .map(|path| PathBuf::from(OsStr::from_bytes(path.as_bytes())))
    };
    let (dir, root) = (name(dir)?, name(root)?);
    let below = dir.strip_prefix(&root).map_err(|_err| invalid("a directory outside of its image"));
    below.map(Path::to_owned)
}
