//! The attempts, one function a guarantee. An error is the reason, for a person to read.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::mount::MountAttrFlags;
use rustix::process::Resource;
use rustix::thread::{CapabilitySet, LinkNameSpaceType};

use crate::attempt::in_child;
use crate::disk::{self, Mechanism};
use crate::launcher::{LaunchError, Launcher};
use crate::path::Beneath;
use crate::seccomp::{SeccompProfile, init_filter};
use crate::step::{Step, StepError, broken};
use crate::{memfd as files, root, sys, tree};

/// Far above every range that is given to sessions.
pub(super) const UID_BASE: u32 = 2_140_000_000;

/// What the launcher and the daemon use.
const NEEDED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_PTRACE);

pub(super) fn capabilities() -> Result<(), String> {
    let have = rustix::thread::capabilities(None).map_err(|errno| errno.to_string())?.effective;
    let lacking: Vec<&str> = (NEEDED - have).iter_names().map(|(name, _)| name).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(format!("the process lacks {}", lacking.join(", ")))
}

pub(super) fn namespaces() -> Result<(), String> {
    const ALL: [(libc::c_int, &str); 6] = [
        (libc::CLONE_NEWNS, "make a mount namespace"),
        (libc::CLONE_NEWPID, "make a pid namespace"),
        (libc::CLONE_NEWNET, "make a network namespace"),
        (libc::CLONE_NEWIPC, "make an ipc namespace"),
        (libc::CLONE_NEWUTS, "make a uts namespace"),
        (libc::CLONE_NEWCGROUP, "make a cgroup namespace"),
    ];
    attempt(|| ALL.into_iter().try_for_each(|(flag, step)| sys::unshare(flag).step(step)))
}

/// Loads the real filter and asks for three verdicts of it.
pub(super) fn seccomp() -> Result<(), String> {
    attempt(|| {
        rustix::thread::set_no_new_privs(true).step("set no_new_privs")?;
        sys::load_seccomp(&init_filter(SeccompProfile::Strict)).step("load a seccomp program")?;
        // As root this is allowed, but for the filter.
        match sys::unshare(libc::CLONE_NEWUTS) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {}
            _ => return Err(broken("have a system call refused by seccomp")),
        }
        match sys::clone3(0, None) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
            Ok(sys::Forked::Child) => sys::exit_now(1),
            _ => Err(broken("have clone3 hidden by seccomp")),
        }
    })
}

/// The kernel must be willing to execute such a file; what is executed here is no program, so that
/// ENOEXEC is as far as it gets.
pub(super) fn memfd() -> Result<(), String> {
    let program = files::program("sandkasten-doctor", b"no program").map_err(says)?;
    attempt(|| {
        let error = sys::exec_fd(program.as_fd(), c"sandkasten-doctor");
        if error.raw_os_error() == Some(libc::ENOEXEC) {
            return Ok(());
        }
        Err(error).step("execute a memfd")
    })
}

pub(super) fn devpts() -> Result<(), String> {
    let options = [("mode", "0620"), ("ptmxmode", "0666"), ("max", "4")];
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    root::new_mount("devpts", &options, attributes).map(drop).map_err(says)
}

pub(super) fn user_namespace(launcher: &Launcher) -> Result<OwnedFd, LaunchError> {
    launcher.user_namespace(UID_BASE)
}

/// Enters the user namespace, forbids user namespaces there, and tries to make one.
pub(super) fn namespace_limits(namespace: &OwnedFd) -> Result<(), String> {
    attempt(|| {
        let user = File::open("/proc/sys/user").step("open /proc/sys/user")?;
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))
            .step("enter a user namespace")?;
        crate::enter::write_file(user.as_fd(), "max_user_namespaces", "0")
            .step("write max_user_namespaces")?;
        match sys::unshare(libc::CLONE_NEWUSER) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Ok(()),
            _ => Err(broken("have a user namespace refused")),
        }
    })
}

/// A folder in the data directory (or where that will be), removed at the end.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
}

impl Folder {
    pub(super) fn below(data_dir: &Path) -> io::Result<Self> {
        let parent = existing(data_dir)?;
        let path = parent.join(format!(".sandkasten-doctor-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub(super) fn make(&self, name: &str) -> io::Result<Beneath> {
        let path = self.path.join(name);
        DirBuilder::new().mode(0o755).recursive(true).create(&path)?;
        Beneath::open(&path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let parent = self.path.parent().map(Beneath::open);
        if let (Some(Ok(parent)), Some(name)) = (parent, self.path.file_name()) {
            let _removed = parent.remove_tree(name);
        }
    }
}

/// The path itself, or the nearest one above it that is there.
fn existing(path: &Path) -> io::Result<&Path> {
    let there = path.ancestors().find(|path| path.is_dir());
    there.ok_or_else(|| io::ErrorKind::NotFound.into())
}

pub(super) fn run_directory(path: &Path) -> Result<(), String> {
    let parent = existing(path).map_err(says)?;
    let trial = parent.join(format!(".sandkasten-doctor-run-{}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&trial).map_err(says)?;
    fs::remove_dir(&trial).map_err(says)
}

/// Mounts an overlay of three folders of the data directory's file system, and writes through it.
pub(super) fn overlay(folder: &Folder) -> Result<(), String> {
    for name in ["overlay/lower", "overlay/s/upper", "overlay/s/work"] {
        folder.make(name).map_err(says)?;
    }
    attempt(|| {
        let base = Beneath::open(&folder.path.join("overlay")).step("open the trial's folder")?;
        rustix::process::fchdir(&base).step("enter the trial's folder")?;
        let overlay = root::overlay_by_fsconfig("lower").step("mount an overlay")?;
        let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::openat(&overlay, "file", flags, mode).step("write to an overlay").map(drop)
    })
}

pub(super) fn idmapped(folder: &Folder, namespace: &OwnedFd) -> Result<(), String> {
    let dir = folder.make("idmapped").map_err(says)?;
    tree::idmapped_clone(dir.as_fd(), namespace.as_fd()).map(drop).map_err(says)
}

/// How space on the data directory's file system can be limited.
pub(super) fn disk_limits(
    folder: &Folder,
    allowed: &[Mechanism],
    namespace: Option<&OwnedFd>,
) -> Result<String, String> {
    let namespace = || {
        let namespace = namespace.ok_or("there is no user namespace to try it with")?;
        namespace.try_clone().map_err(says)
    };
    let choice = disk::choose(&folder.path, allowed, namespace);
    if choice.mechanism.is_some() { Ok(choice.to_string()) } else { Err(choice.to_string()) }
}

pub(super) fn landlock() -> Result<(), String> {
    sys::landlock_version().map(drop).map_err(says)
}

/// In a network namespace of its own, so the host never sees the bridge.
pub(super) fn bridge() -> Result<(), String> {
    attempt(|| {
        sys::unshare(libc::CLONE_NEWNET).step("make a network namespace")?;
        sys::add_bridge(c"sk-doctor").step("add a bridge")
    })
}

pub(super) fn open_files() -> Result<(), String> {
    match rustix::process::getrlimit(Resource::Nofile).maximum {
        Some(hard) if hard < 65_536 => Err(format!("the hard limit is {hard}")),
        _ => Ok(()),
    }
}

pub(super) fn oom_score() -> Result<(), String> {
    attempt(|| {
        fs::write("/proc/self/oom_score_adj", "-900").step("lower the daemon's oom_score_adj")
    })
}

fn attempt(act: impl FnOnce() -> Result<(), StepError>) -> Result<(), String> {
    in_child(act).map_err(|StepError { step, errno }| {
        format!("can't {step}: {}", io::Error::from_raw_os_error(errno))
    })
}

fn says(error: impl Into<io::Error>) -> String {
    error.into().to_string()
}
