//! An ext4 in a file: as large as its limit, on a loop device, mounted for who uses it.
//!
//! ```text
//!   image (sparse file) <── loop device <── one file system in the kernel <── a mount each user
//! ```
//!
//! Invariant: an image has one loop device, ever. Two would be two file systems on the same blocks:
//! each writes over what the other did, and no error tells. So before an image is attached, all loop
//! devices are asked for its device and inode, and the one that has it is taken; a device that can't be
//! asked is an error. Who asks holds a lock, and one daemon alone has a data directory.
//!
//! Nothing has to be detached: the kernel lets the device go with the last mount of it. A daemon that
//! comes after a kill finds the device by its image, as long as a session still has the mount.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags};
use rustix::thread::CapabilitySet;

use super::{BYTES_PER_INODE, NO_DEV, path_of};
use crate::{fault, sys};

/// What one is made by; where it may be.
const MAKERS: [&str; 4] =
    ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs", "/usr/local/sbin/mke2fs"];
/// What it says where the content is too much: for blocks, inodes, and directory entries.
const FULL: [&str; 3] = ["Could not allocate", "No space left", "Ext2 file too big"];
const BLOCK_BYTES: u64 = 4096;
/// What Linux 6.1 can, whatever the host's mke2fs.conf says.
const FEATURES: &str = "ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,\
    sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";
/// How often a device that was free is another's by the time that we want it.
const ATTEMPTS: u32 = 64;

/// Between the look at all devices and the attaching of one, nobody else may attach.
static ATTACHING: Mutex<()> = Mutex::new(());

/// Whether a file system outlives the crash of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// No journal: nobody asks for it after a crash.
    Scratch,
    Durable,
}

/// Makes an image of `bytes` at `path`, which must not exist, with a copy of all that is in the directory
/// `content` (owners, modes, links, attributes, times in seconds). Nobody may change that meanwhile.
///
/// # Errors
/// `NotFound` without mke2fs, `StorageFull` where the content does not fit; else what mke2fs said. Nothing
/// is left of one that failed.
pub fn make(
    path: &Path,
    bytes: u64,
    life: Life,
    content: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let made = file.set_len(bytes).and_then(|()| fill(&file, life, content));
    if made.is_err() {
        std::fs::remove_file(path)?;
    }
    made
}

#[expect(clippy::disallowed_methods, reason = "the one place that runs mke2fs")]
fn fill(file: &File, life: Life, content: Option<BorrowedFd<'_>>) -> io::Result<()> {
    fault::point("image: make")?;
    let features = match life {
        Life::Scratch => FEATURES.to_owned(),
        Life::Durable => format!("has_journal,{FEATURES}"),
    };
    let ratio = BYTES_PER_INODE.to_string();
    let block = BLOCK_BYTES.to_string();
    let mut command = Command::new(maker()?);
    command.args(["-q", "-F", "-m", "0", "-b", &block, "-i", &ratio, "-I", "256"]);
    command.args(["-O", &features, "-E", "nodiscard,lazy_itable_init=1"]);
    if let Some(content) = content {
        command.arg("-d").arg(path_for_others(content));
    }
    let output = command
        .arg(path_for_others(file.as_fd()))
        .env_clear()
        .env("MKE2FS_CONFIG", "/dev/null")
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        if content.is_some() && FULL.iter().any(|full| text.contains(full)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(format!("mke2fs: {said} ({})", output.status)));
    }
    let mount = mount(file)?;
    std::fs::remove_dir(path_of(mount.as_fd()).join("lost+found"))
}

/// A path by which another process of root's reaches what this one has open.
fn path_for_others(file: BorrowedFd<'_>) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn maker() -> io::Result<&'static str> {
    let found = MAKERS.into_iter().find(|path| Path::new(path).exists());
    found.ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "mke2fs is not installed (package e2fsprogs)")
    })
}

/// Opens an image.
///
/// # Errors
/// What open(2) says.
pub fn open(path: &Path) -> io::Result<File> {
    let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().read(true).write(true).custom_flags(nofollow).open(path)
}

/// Mounts an image: a mount of its own that is attached nowhere, of the one file system that the image
/// has in the kernel.
///
/// # Errors
/// Where no loop device can be had, or the file system is broken.
pub fn mount(image: &File) -> io::Result<OwnedFd> {
    fault::point("image: attach")?;
    // Held open until it is mounted: it stays ours.
    let device = device_of(image)?;
    fault::point("image: mount")?;
    let fs = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(fs.as_fd(), "source", &device.path)?;
    rustix::mount::fsconfig_set_string(fs.as_fd(), "errors", "remount-ro")?;
    // What was removed gives its space back to the host; what was never written takes none.
    for flag in ["discard", "noinit_itable"] {
        rustix::mount::fsconfig_set_flag(fs.as_fd(), flag)?;
    }
    rustix::mount::fsconfig_create(fs.as_fd())?;
    Ok(rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, NO_DEV)?)
}

/// Makes an image larger, and the file system in it, in use or not.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_RESOURCE`, and nothing has changed; else what the kernel says:
/// the image may be of the new size then, with the old file system in it, which another call completes.
pub fn grow(image: &File, bytes: u64) -> io::Result<()> {
    // The last step asks for it; without it there is no use in the others.
    let had = rustix::thread::capabilities(None)?;
    if !had.permitted.contains(CapabilitySet::SYS_RESOURCE) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mount = mount(image)?;
    if image.metadata()?.len() < bytes {
        image.set_len(bytes)?;
    }
    sys::loop_grow(device_of(image)?.file.as_fd())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::openat(&mount, ".", flags, Mode::empty())?;
    // The daemon goes without it else, so as to keep to quotas.
    let mut all = had;
    all.effective |= CapabilitySet::SYS_RESOURCE;
    rustix::thread::set_capabilities(None, all)?;
    let grown = sys::ext4_grow(top.as_fd(), bytes / BLOCK_BYTES);
    rustix::thread::set_capabilities(None, had)?;
    grown
}

/// A loop device that has an image's file.
struct Device {
    path: String,
    file: File,
}

fn device_of(image: &File) -> io::Result<Device> {
    let metadata = image.metadata()?;
    let wanted = (metadata.dev(), metadata.ino());
    let _one_at_a_time = ATTACHING.lock().unwrap_or_else(PoisonError::into_inner);
    match attached(wanted)? {
        Some(device) => Ok(device),
        None => attach(image.as_fd()),
    }
}

/// Looks through all loop devices for the one that has a file.
fn attached(wanted: (u64, u64)) -> io::Result<Option<Device>> {
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with("loop")) else { continue };
        if !entry.path().join("loop").exists() {
            continue; // it has no file
        }
        let path = format!("/dev/{name}");
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => continue, // let go just now
            Err(error) => return Err(named(&path, &error)),
        };
        match sys::loop_file(file.as_fd()) {
            Ok(found) if found == wanted => return Ok(Some(Device { path, file })),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
            Err(error) => return Err(named(&path, &error)),
        }
    }
    Ok(None)
}

fn attach(image: BorrowedFd<'_>) -> io::Result<Device> {
    let control = open("/dev/loop-control".as_ref());
    let control = control.map_err(|error| named("/dev/loop-control", &error))?;
    for _ in 0..ATTEMPTS {
        let path = format!("/dev/loop{}", sys::loop_free(control.as_fd())?);
        let file = open(path.as_ref()).map_err(|error| named(&path, &error))?;
        match sys::loop_attach(file.as_fd(), image) {
            Ok(()) => return Ok(Device { path, file }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(named(&path, &error)),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "no free loop device"))
}

fn named(path: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{path}: {error}"))
}

/// Whether an image can be made, mounted, and holds back what is too much.
pub(super) fn attempt(dir: &Path) -> Result<(), String> {
    const BYTES: u64 = 4 << 20;
    let path = dir.join("image");
    let tried = || {
        make(&path, BYTES, Life::Scratch, None)?;
        mount(&open(&path)?)
    };
    let mount = tried().map_err(|error| error.to_string())?;
    super::holds(&path_of(mount.as_fd()), BYTES)
}

#[cfg(test)]
mod test {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn devices_with(image: &File) -> usize {
        let metadata = image.metadata().unwrap();
        let wanted = (metadata.dev(), metadata.ino());
        let all = std::fs::read_dir("/sys/block").unwrap().flatten();
        let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let devices = names.filter(|name| name.starts_with("loop"));
        let files = devices.filter_map(|name| File::open(format!("/dev/{name}")).ok());
        files.filter(|file| sys::loop_file(file.as_fd()).is_ok_and(|it| it == wanted)).count()
    }

    fn image(dir: &Path, mib: u64, life: Life) -> File {
        make(&dir.join("i"), mib * MIB, life, None).unwrap();
        open(&dir.join("i")).unwrap()
    }

    #[test]
    fn an_image_has_one_device_and_one_file_system() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = image(dir.path(), 16, Life::Durable);
        let (one, two) = (mount(&image).unwrap(), mount(&image).unwrap());
        assert_eq!(devices_with(&image), 1);
        std::fs::write(path_of(one.as_fd()).join("a"), "from one").unwrap();
        std::fs::write(path_of(two.as_fd()).join("b"), "from two").unwrap();
        assert_eq!(std::fs::read(path_of(two.as_fd()).join("a")).unwrap(), b"from one");
        drop(one);
        assert_eq!(std::fs::read(path_of(two.as_fd()).join("b")).unwrap(), b"from two");
        drop(two);
        assert_eq!(devices_with(&image), 0, "let go with the last mount");
        let again = mount(&image).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(path_of(again.as_fd()))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn many_at_once_share_one_device() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = image(dir.path(), 16, Life::Durable);
        let mounts: Vec<OwnedFd> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| mount(&image).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(devices_with(&image), 1);
        let device = |mount: &OwnedFd| rustix::fs::fstat(mount).unwrap().st_dev;
        assert!(mounts.iter().all(|mount| device(mount) == device(&mounts[0])));
    }

    #[test]
    fn it_grows_in_use() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = image(dir.path(), 16, Life::Durable);
        let mount = mount(&image).unwrap();
        let file = path_of(mount.as_fd()).join("large");
        assert!(std::fs::write(&file, vec![1; 20 << 20]).is_err());
        match grow(&image, 64 * MIB) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                assert_eq!(image.metadata().unwrap().len(), 16 * MIB);
                println!("SKIP the host has no CAP_SYS_RESOURCE");
                return;
            }
            grown => grown.unwrap(),
        }
        std::fs::write(&file, vec![1; 40 << 20]).unwrap();
        assert!(super::super::used_bytes(mount.as_fd()).unwrap() > 40 * MIB);
    }

    #[test]
    fn content_is_copied_or_does_not_fit() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let from = dir.path().join("from");
        std::fs::create_dir_all(from.join("x/y")).unwrap();
        std::fs::write(from.join("x/y/file"), vec![7; 3 << 20]).unwrap();
        std::os::unix::fs::chown(from.join("x/y/file"), Some(7), Some(8)).unwrap();
        std::os::unix::fs::symlink("x/y/file", from.join("link")).unwrap();
        std::fs::hard_link(from.join("x/y/file"), from.join("hard")).unwrap();
        let content = File::open(&from).unwrap();
        let path = dir.path().join("i");
        make(&path, 16 * MIB, Life::Durable, Some(content.as_fd())).unwrap();
        let mount = mount(&open(&path).unwrap()).unwrap();
        let top = path_of(mount.as_fd());
        assert_eq!(std::fs::read(top.join("link")).unwrap(), vec![7; 3 << 20]);
        let metadata = std::fs::metadata(top.join("hard")).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), metadata.nlink()), (7, 8, 2));
        assert!(!top.join("lost+found").exists());
        std::fs::write(from.join("much"), vec![1; 20 << 20]).unwrap();
        let error = make(&dir.path().join("j"), 16 * MIB, Life::Durable, Some(content.as_fd()));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn one_that_can_not_be_made_leaves_nothing() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let error = make(&dir.path().join("i"), 4096, Life::Scratch, None).unwrap_err();
        assert!(error.to_string().starts_with("mke2fs: "), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
