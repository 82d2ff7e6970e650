//! The box's file system, built by the launcher's child in its own mount namespace.
//!
//! ```text
//!   /            overlay: the image's layers, the session's upper        nosuid,nodev
//!   /proc        the session's own                                       nosuid,nodev,noexec
//!   /proc/…      masked files and directories, read-only /proc/sys
//!   /dev         tmpfs, read-only                                        nosuid,noexec
//!   /dev/pts     its own instance                                        nosuid,noexec
//!   /dev/shm     tmpfs                                                   nosuid,nodev
//!   /tmp         tmpfs                                                   nosuid,nodev
//!   /.sandkasten tmpfs of init                                           nosuid,nodev,noexec
//!   /workspace   the workspace                                           nosuid,nodev
//! ```
//!
//! Everything is made on detached trees and attached beneath a descriptor of the new root; names that
//! the image chose are never followed through links. The stage is a tmpfs in the launcher's empty root:
//! layers are attached there, since an overlay takes no layer from another mount namespace, and `/dev`
//! and the masks are clones of parts of it. It is detached before anything of the box runs.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, OpenTreeFlags,
    UnmountFlags,
};

use crate::mountinfo;
use crate::step::{Step, StepError, broken};
use crate::sys::{self, MountAttr};
use crate::tree;

/// init's ids in the box. init itself sets its real ones apart: below Linux 6.16, exec with ids that
/// differ counts as setuid, which ambient capabilities don't survive.
pub(crate) const INIT_ID: u32 = 65_000;

/// The directory of the launcher's root that the stage is mounted on.
pub(crate) const STAGE: &str = "h";

/// Files of `/proc` that a box sees as empty.
pub const MASKED_FILES: [&str; 14] = [
    "cmdline",
    "config.gz",
    "interrupts",
    "kallsyms",
    "kcore",
    "key-users",
    "keys",
    "kmsg",
    "kpagecgroup",
    "latency_stats",
    "modules",
    "sched_debug",
    "sysrq-trigger",
    "timer_list",
];

/// Directories of `/proc` that a box sees as empty.
pub const MASKED_DIRECTORIES: [&str; 8] =
    ["acpi", "asound", "bus", "driver", "fs", "irq", "scsi", "mpt"];

/// Directories of `/proc` that a box sees read-only.
pub const READ_ONLY_DIRECTORIES: [&str; 1] = ["sys"];

/// Layers named `0:1:2…` fit in one string of fsconfig(2), 255 bytes, up to this many.
const LAYERS_IN_ONE_STRING: usize = 88;

const DEVICES: [(&CStr, u32, u32); 6] = [
    (c"null", 1, 3),
    (c"zero", 1, 5),
    (c"full", 1, 7),
    (c"random", 1, 8),
    (c"urandom", 1, 9),
    (c"tty", 5, 0),
];

const DEVICE_LINKS: [(&CStr, &CStr); 5] = [
    (c"/proc/self/fd", c"fd"),
    (c"/proc/self/fd/0", c"stdin"),
    (c"/proc/self/fd/1", c"stdout"),
    (c"/proc/self/fd/2", c"stderr"),
    (c"pts/ptmx", c"ptmx"),
];

/// The group `tty`, and terminals of one box.
const TTY_GID: u32 = 5;
const TERMINALS_MAX: u32 = 256;

const RUN_DIR_BYTES: u64 = 32 << 20;
const RUN_DIR_INODES: u64 = 4096;

/// What [`build`] needs of a plan.
#[derive(Debug)]
pub(crate) struct RootParts {
    /// Lowest first.
    pub(crate) layers: Vec<OwnedFd>,
    pub(crate) scratch: OwnedFd,
    /// `None`: the one in `scratch`.
    pub(crate) workspace: Option<OwnedFd>,
    pub(crate) settings: RootSettings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RootSettings {
    pub(crate) readonly: bool,
    /// The workspace is a directory of the scratch tree.
    pub(crate) own_workspace: bool,
    pub(crate) uid_base: u32,
    pub(crate) tmp_bytes: u64,
    pub(crate) shm_bytes: u64,
}

/// The finished root, and descriptors into it that the later steps need.
#[derive(Debug)]
pub(crate) struct Root {
    /// The box's `/proc`, without the mounts on it.
    pub(crate) proc: OwnedFd,
    /// `/proc/sys`, writable: the last way to sysctls once the box's own is read-only.
    pub(crate) sysctls: OwnedFd,
    /// The box's `/dev/null`.
    pub(crate) null: OwnedFd,
}

/// Builds the root, moves into it, and proves that nothing else can be reached.
pub(crate) fn build(parts: &RootParts, user_namespace: BorrowedFd<'_>) -> Result<Root, StepError> {
    let base = parts.settings.uid_base;
    let stage = open_stage(base).step("make the stage")?;
    let root = mount_overlay(parts, stage.as_fd())?;
    let mut box_root = Builder { root: root.as_fd(), base, points: vec!["/".into(), "/".into()] };

    let proc = new_mount("proc", &[], NO_EXEC).step("make /proc")?;
    let sysctls = open_dir(proc.as_fd(), c"sys").step("open /proc/sys")?;
    box_root.attach("proc", proc.as_fd())?;
    let dev = clone_of(stage.as_fd(), c"dev").step("clone /dev")?;
    set_attributes(dev.as_fd(), DEV_ATTRIBUTES).step("set attributes of /dev")?;
    box_root.attach("dev", dev.as_fd())?;
    box_root.add_below_dev(dev.as_fd(), parts.settings.shm_bytes)?;
    box_root.add_tmpfs_mounts(parts)?;
    let own_workspace = match &parts.workspace {
        Some(_) => None,
        None => Some(workspace_of(stage.as_fd(), user_namespace).step("map the workspace's ids")?),
    };
    if let Some(workspace) = parts.workspace.as_ref().or(own_workspace.as_ref()) {
        box_root.attach("workspace", workspace.as_fd())?;
    }
    box_root.mask_proc(proc.as_fd(), stage.as_fd())?;
    if parts.settings.readonly {
        let read_only = MountAttr { set: libc::MOUNT_ATTR_RDONLY, ..MountAttr::default() };
        sys::mount_setattr(root.as_fd(), &read_only).step("make the root read-only")?;
    }
    let points = box_root.points;
    leave_stage(stage).step("detach the stage")?;
    prove_alone(proc.as_fd(), points)?;
    enter(root.as_fd())?;
    let null = rustix::fs::openat(&dev, "null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .step("open /dev/null")?;
    Ok(Root { proc, sysctls, null })
}

const NO_EXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);
const NO_DEV: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);
const DEV_ATTRIBUTES: MountAttr = MountAttr {
    set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
    clear: libc::MOUNT_ATTR_NODEV,
    propagation: 0,
    user_namespace: 0,
};

/// Mounts the stage, fills it, and makes it the working directory.
fn open_stage(base: u32) -> io::Result<OwnedFd> {
    let options = [("mode", "0700"), ("size", "256k"), ("nr_inodes", "600")];
    let stage = new_mount("tmpfs", &options, NO_EXEC)?;
    move_to(stage.as_fd(), CWD, STAGE)?;
    rustix::process::fchdir(&stage)?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
    drop(rustix::fs::openat(&stage, "empty", flags, Mode::from_raw_mode(0o444))?);
    rustix::fs::mkdirat(&stage, "none", Mode::from_raw_mode(0o555))?;
    rustix::fs::mkdirat(&stage, "s", Mode::from_raw_mode(0o700))?;
    rustix::fs::mkdirat(&stage, "dev", Mode::from_raw_mode(0o755))?;
    let dev = open_dir(stage.as_fd(), c"dev")?;
    fill_dev(dev.as_fd(), base)?;
    Ok(stage)
}

/// Nodes of this session alone: through shared ones a box could watch (inotify) or lock those of
/// another.
fn fill_dev(dev: BorrowedFd<'_>, base: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    for (name, major, minor) in DEVICES {
        let device = rustix::fs::makedev(major, minor);
        rustix::fs::mknodat(dev, name, FileType::CharacterDevice, mode, device)?;
        give(dev, name, base)?;
    }
    for (target, name) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, dev, name)?;
        give(dev, name, base)?;
    }
    for name in [c"pts", c"shm"] {
        rustix::fs::mkdirat(dev, name, Mode::from_raw_mode(0o755))?;
        give(dev, name, base)?;
    }
    give(dev, c"", base)
}

/// Gives a file to the box's root.
fn give(dir: BorrowedFd<'_>, name: &CStr, base: u32) -> io::Result<()> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let (uid, gid) = (Uid::from_raw(base), Gid::from_raw(base));
    Ok(rustix::fs::chownat(dir, name, Some(uid), Some(gid), flags)?)
}

/// Attaches layers and scratch to the stage and moves the overlay of them over `/`.
fn mount_overlay(parts: &RootParts, stage: BorrowedFd<'_>) -> Result<OwnedFd, StepError> {
    let count = parts.layers.len();
    for (index, layer) in parts.layers.iter().enumerate() {
        // Overlay wants the uppermost first, so that one is `0`.
        let name = (count - 1 - index).to_string();
        rustix::fs::mkdirat(stage, &name, Mode::from_raw_mode(0o700))
            .step("make a layer's place")?;
        move_to(layer.as_fd(), stage, &name).step("attach a layer")?;
    }
    move_to(parts.scratch.as_fd(), stage, "s").step("attach the scratch directory")?;
    let lower = (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(":");
    let root = if count <= LAYERS_IN_ONE_STRING {
        overlay_by_fsconfig(&lower).step("mount the overlay")?
    } else {
        overlay_by_mount(stage, &lower).step("mount the overlay")?
    };
    move_to(root.as_fd(), CWD, "/").step("move the overlay over /")?;
    Ok(root)
}

/// The session's own workspace: a directory of what is attached at `s`. An idmapped clone of it can be
/// made here, where that is mounted, on every kernel.
fn workspace_of(stage: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    tree::idmapped_clone(open_dir(stage, c"s/workspace")?.as_fd(), user_namespace)
}

/// Options of every overlay: nothing of them is taken from a layer or from the kernel's build.
/// `volatile`: scratch doesn't outlive a crash of the host, so nothing is synced when it goes.
const OVERLAY_OPTIONS: [(&str, &str); 6] = [
    ("upperdir", "s/upper"),
    ("workdir", "s/work"),
    ("index", "off"),
    ("xino", "off"),
    ("redirect_dir", "nofollow"),
    ("metacopy", "off"),
];

/// Names are relative to the stage, the working directory. Linux 6.1 resolves them in the last step.
pub(crate) fn overlay_by_fsconfig(lower: &str) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(fs.as_fd(), "source", "overlay")?;
    rustix::mount::fsconfig_set_string(fs.as_fd(), "lowerdir", lower)?;
    for (name, value) in OVERLAY_OPTIONS {
        rustix::mount::fsconfig_set_string(fs.as_fd(), name, value)?;
    }
    rustix::mount::fsconfig_set_flag(fs.as_fd(), "volatile")?;
    rustix::mount::fsconfig_create(fs.as_fd())?;
    Ok(rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, NO_DEV)?)
}

/// mount(2) takes a page of options, which is enough for 482 layers.
fn overlay_by_mount(stage: BorrowedFd<'_>, lower: &str) -> io::Result<OwnedFd> {
    let mut options = format!("lowerdir={lower},volatile");
    for (name, value) in OVERLAY_OPTIONS {
        options.push_str(&format!(",{name}={value}"));
    }
    let options = CString::new(options)?;
    rustix::fs::mkdirat(stage, "m", Mode::from_raw_mode(0o700))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("overlay", "m", "overlay", flags, Some(options.as_c_str()))?;
    open_dir(stage, c"m")
}

/// Attaches mounts to the new root, and remembers where.
struct Builder<'a> {
    root: BorrowedFd<'a>,
    base: u32,
    /// Every mount point that there should be, the launcher's root included.
    points: Vec<PathBuf>,
}

impl Builder<'_> {
    /// Attaches a tree at a directory of the root, which is made where the image has none.
    fn attach(&mut self, name: &str, tree: BorrowedFd<'_>) -> Result<(), StepError> {
        let what = format!("attach /{name}");
        match rustix::fs::mkdirat(self.root, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let name = CString::new(name).map_err(io::Error::from).step(&what)?;
                give(self.root, &name, self.base).step(&what)?;
            }
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno).step(&what),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let place = rustix::fs::openat2(self.root, name, flags, Mode::empty(), resolve)
            .step(&format!("find the image's /{name}, which must be a directory"))?;
        move_to(tree, place.as_fd(), "").step(&what)?;
        self.points.push(format!("/{name}").into());
        Ok(())
    }

    fn add_below_dev(&mut self, dev: BorrowedFd<'_>, shm_bytes: u64) -> Result<(), StepError> {
        let gid = (self.base + TTY_GID).to_string();
        let max = TERMINALS_MAX.to_string();
        let options =
            [("gid", gid.as_str()), ("mode", "0620"), ("ptmxmode", "0666"), ("max", max.as_str())];
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NOEXEC);
        let pts = new_mount("devpts", &options, attributes).step("make /dev/pts")?;
        for name in [c"", c"ptmx"] {
            give(pts.as_fd(), name, self.base).step("make /dev/pts")?;
        }
        move_to(pts.as_fd(), dev, "pts").step("attach /dev/pts")?;
        let size = TmpfsSize::of_bytes(shm_bytes);
        let shm = new_tmpfs("1777", self.base, size, NO_DEV).step("make /dev/shm")?;
        move_to(shm.as_fd(), dev, "shm").step("attach /dev/shm")?;
        self.points.extend(["/dev/pts".into(), "/dev/shm".into()]);
        Ok(())
    }

    fn add_tmpfs_mounts(&mut self, parts: &RootParts) -> Result<(), StepError> {
        let size = TmpfsSize::of_bytes(parts.settings.tmp_bytes);
        let tmp = new_tmpfs("1777", self.base, size, NO_DEV).step("make /tmp")?;
        self.attach("tmp", tmp.as_fd())?;
        let size = TmpfsSize { bytes: RUN_DIR_BYTES, inodes: RUN_DIR_INODES };
        let owner = self.base + INIT_ID;
        let run = new_tmpfs("0711", owner, size, NO_EXEC).step("make /.sandkasten")?;
        self.attach(".sandkasten", run.as_fd())
    }

    /// Hides what `/proc` says about the host. A name that this kernel lacks is skipped.
    fn mask_proc(&mut self, proc: BorrowedFd<'_>, stage: BorrowedFd<'_>) -> Result<(), StepError> {
        let read_only = MountAttr { set: libc::MOUNT_ATTR_RDONLY, ..MountAttr::default() };
        for (names, source) in [(&MASKED_FILES[..], c"empty"), (&MASKED_DIRECTORIES[..], c"none")] {
            for name in names {
                self.cover(proc, name, || clone_of(stage, source), &read_only)?;
            }
        }
        for name in READ_ONLY_DIRECTORIES {
            let c_name = CString::new(name).map_err(io::Error::from).step("mask /proc")?;
            self.cover(proc, name, || clone_of(proc, &c_name), &read_only)?;
        }
        Ok(())
    }

    fn cover(
        &mut self,
        proc: BorrowedFd<'_>,
        name: &str,
        tree: impl FnOnce() -> io::Result<OwnedFd>,
        attributes: &MountAttr,
    ) -> Result<(), StepError> {
        let what = format!("mask /proc/{name}");
        let place = rustix::fs::openat(proc, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let place = match place {
            Err(Errno::NOENT) => return Ok(()),
            place => place.step(&what)?,
        };
        let tree = tree().step(&what)?;
        sys::mount_setattr(tree.as_fd(), attributes).step(&what)?;
        move_to(tree.as_fd(), place.as_fd(), "").step(&what)?;
        self.points.push(format!("/proc/{name}").into());
        Ok(())
    }
}

/// How much a tmpfs may hold.
#[derive(Debug, Clone, Copy)]
struct TmpfsSize {
    bytes: u64,
    inodes: u64,
}

impl TmpfsSize {
    /// One inode for each page, since an empty file costs kernel memory too.
    fn of_bytes(bytes: u64) -> Self {
        Self { bytes, inodes: (bytes / 4096).clamp(1024, 1 << 20) }
    }
}

fn new_tmpfs(
    mode: &str,
    owner: u32,
    size: TmpfsSize,
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let (owner, bytes, inodes) =
        (owner.to_string(), size.bytes.to_string(), size.inodes.to_string());
    let options = [
        ("mode", mode),
        ("uid", owner.as_str()),
        ("gid", owner.as_str()),
        ("size", bytes.as_str()),
        ("nr_inodes", inodes.as_str()),
    ];
    new_mount("tmpfs", &options, attributes)
}

/// A new file system, mounted nowhere yet.
pub(crate) fn new_mount(
    kind: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(fs.as_fd(), "source", kind)?;
    for (name, value) in options {
        rustix::mount::fsconfig_set_string(fs.as_fd(), *name, *value)?;
    }
    rustix::mount::fsconfig_create(fs.as_fd())?;
    Ok(rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

fn clone_of(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(rustix::mount::open_tree(dir, name, flags)?)
}

fn set_attributes(mount: BorrowedFd<'_>, attributes: MountAttr) -> io::Result<()> {
    sys::mount_setattr(mount, &attributes)
}

fn move_to(tree: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    if name.is_empty() {
        flags |= MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    }
    Ok(rustix::mount::move_mount(tree, "", dir, name, flags)?)
}

fn open_dir(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Detaches the stage with all that is attached to it. The overlay and the clones keep what they use.
fn leave_stage(stage: OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(&stage)?;
    drop(stage);
    rustix::mount::unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

/// Compares the mount table with what was made here. The root directory is still the launcher's, so
/// the table shows what lies below the box's root too: the launcher's root, and nothing else.
fn prove_alone(proc: BorrowedFd<'_>, mut expected: Vec<PathBuf>) -> Result<(), StepError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(proc, "self/mountinfo", flags, Mode::empty())
        .step("open the mount table")?;
    let text = read_all(file).step("read the mount table")?;
    let mut found: Vec<PathBuf> =
        mountinfo::parse(&text).into_iter().map(|mount| mount.point).collect();
    found.sort();
    expected.sort();
    if found == expected { Ok(()) } else { Err(broken("prove that no other mount is left")) }
}

pub(crate) fn read_all(file: OwnedFd) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut std::fs::File::from(file), &mut bytes)?;
    Ok(bytes)
}

/// Makes the overlay this process's root. `..` leads nowhere from it: below it lie only the roots of
/// other mounts, which the kernel skips.
fn enter(root: BorrowedFd<'_>) -> Result<(), StepError> {
    rustix::process::fchdir(root).step("enter the root")?;
    rustix::process::chroot(".").step("change the root")?;
    let want = rustix::fs::fstat(root).step("look at the root")?;
    for path in ["/", "/..", "."] {
        let have = rustix::fs::stat(path).step("look at the root")?;
        if (have.st_dev, have.st_ino) != (want.st_dev, want.st_ino) {
            return Err(broken("prove that the root is the box's"));
        }
    }
    Ok(())
}
