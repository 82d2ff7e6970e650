//! Which hierarchies this host has, and where in each our groups go.
//!
//! A group of ours must not end with the daemon's own group (sessions outlive the daemon), and must
//! not escape a limit that was put on the daemon, as on a container. So, in each hierarchy:
//!
//! - below the daemon's own group, where that was delegated to it (a systemd unit with `Delegate=yes`)
//!   or where some group above the daemon has a limit of ours set (v1);
//! - else directly below the root of the hierarchy, as far up as this process can see it. In a
//!   container with a cgroup namespace that is the container's group.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use super::files::{open_dir, read};
use super::{CgroupError, Controller};
use crate::mountinfo::{self, Mount};

/// A place for our groups in one hierarchy.
#[derive(Debug)]
pub(super) struct Place {
    /// The directory that our parent group is made in.
    pub(super) dir: OwnedFd,
    /// The daemon's own group is `dir`: v2 wants no process beside groups there.
    pub(super) is_own: bool,
}

/// A v1 hierarchy with the controllers of ours that it has.
#[derive(Debug)]
pub(super) struct V1Place {
    pub(super) place: Place,
    pub(super) controllers: Vec<Controller>,
}

/// All that is needed of the host.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) v2: Place,
    /// Controllers that v2 has at that place.
    pub(super) v2_controllers: Vec<Controller>,
    pub(super) v1: Vec<V1Place>,
}

/// Finds the hierarchies; each controller in v2 where that has it, else in v1.
pub(super) fn find() -> Result<Host, CgroupError> {
    let Found { v2, listed, mounts, own } = Found::read()?;
    let mut v2_controllers = Vec::new();
    let mut v1: Vec<V1Place> = Vec::new();
    let mut v1_mounts: Vec<&Mount> = Vec::new();
    for controller in Controller::ALL {
        if is_listed(&listed, controller) {
            v2_controllers.push(controller);
            continue;
        }
        let mount = v1_mount(&mounts, controller)?;
        // Controllers that are mounted together share their groups.
        if let Some(at) = v1_mounts.iter().position(|known| *known == mount)
            && let Some(known) = v1.get_mut(at)
        {
            known.controllers.push(controller);
            continue;
        }
        let place = find_v1(mount, controller, &own).map_err(context)?;
        v1_mounts.push(mount);
        v1.push(V1Place { place, controllers: vec![controller] });
    }
    Ok(Host { v2, v2_controllers, v1 })
}

/// Where one controller limits: the place, and whether it is a v1 hierarchy.
pub(super) fn find_controller(controller: Controller) -> Result<(Place, bool), CgroupError> {
    let Found { v2, listed, mounts, own } = Found::read()?;
    if is_listed(&listed, controller) {
        return Ok((v2, false));
    }
    let mount = v1_mount(&mounts, controller)?;
    Ok((find_v1(mount, controller, &own).map_err(context)?, true))
}

/// What the kernel says, before anything is chosen.
struct Found {
    v2: Place,
    /// Controllers that v2 has at that place.
    listed: String,
    mounts: Vec<Mount>,
    own: OwnGroups,
}

impl Found {
    fn read() -> Result<Self, CgroupError> {
        let mounts = mountinfo::parse(&std::fs::read("/proc/self/mountinfo").map_err(context)?);
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(context)?;
        let own = OwnGroups::parse(&own);
        let v2 = find_v2(&mounts, &own).map_err(|source| CgroupError::NoV2 { source })?;
        let listed = read(v2.dir.as_fd(), "cgroup.controllers").map_err(context)?;
        Ok(Self { v2, listed, mounts, own })
    }
}

fn context(source: io::Error) -> CgroupError {
    CgroupError::Io { what: "reading the cgroup mounts".into(), source }
}

fn is_listed(controllers: &str, controller: Controller) -> bool {
    controllers.split_ascii_whitespace().any(|name| name == controller.name())
}

fn v1_mount(mounts: &[Mount], controller: Controller) -> Result<&Mount, CgroupError> {
    let found = mounts.iter().find(|mount| is_v1_of(mount, controller));
    found.ok_or(CgroupError::NoController(controller.name()))
}

fn is_v1_of(mount: &Mount, controller: Controller) -> bool {
    let mut options = mount.super_options.split(',');
    mount.fs_type == "cgroup" && options.any(|option| option == controller.name())
}

fn find_v2(mounts: &[Mount], own: &OwnGroups) -> io::Result<Place> {
    let Some(mount) = mounts.iter().find(|mount| mount.fs_type == "cgroup2") else {
        // The hierarchy exists all the same; a mount of our own, detached, shows it.
        return Ok(Place { dir: detached_v2()?, is_own: own.v2 == Path::new("/") });
    };
    let top = open_path(&mount.point)?;
    let relative = below(&own.v2, &mount.root);
    if relative.as_os_str().is_empty() {
        // Only the hierarchy's real root has no type; there processes may stand beside groups.
        let is_real_root = open_file(top.as_fd(), "cgroup.type").is_err();
        return Ok(Place { dir: top, is_own: !is_real_root });
    }
    Ok(delegated(top.as_fd(), &relative)?.unwrap_or(Place { dir: top, is_own: false }))
}

fn detached_v2() -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(fs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// The nearest group on the way to the daemon's own that systemd says is the unit's to divide.
fn delegated(top: BorrowedFd<'_>, own: &Path) -> io::Result<Option<Place>> {
    let mut found = None;
    let mut dir = open_dir(top, Path::new("."))?;
    let mut names = own.components().peekable();
    while let Some(name) = names.next() {
        dir = open_dir(dir.as_fd(), Path::new(&name))?;
        if is_marked_delegated(dir.as_fd()) {
            found = Some(Place { dir: dir.try_clone()?, is_own: names.peek().is_none() });
        }
    }
    Ok(found)
}

fn is_marked_delegated(dir: BorrowedFd<'_>) -> bool {
    ["trusted.delegate", "user.delegate"].into_iter().any(|name| {
        let mut value = [0_u8; 8];
        let length = rustix::fs::fgetxattr(dir, name, &mut value[..]);
        length == Ok(1) && value.first() == Some(&b'1')
    })
}

fn find_v1(mount: &Mount, controller: Controller, own: &OwnGroups) -> io::Result<Place> {
    let top = open_path(&mount.point)?;
    let own = own.v1(controller);
    let relative = below(&own, &mount.root);
    let mut dir = open_dir(top.as_fd(), Path::new("."))?;
    let mut limited = false;
    for name in relative.components() {
        dir = open_dir(dir.as_fd(), Path::new(&name))?;
        limited |= has_v1_limit(dir.as_fd(), controller);
    }
    Ok(Place { dir: if limited { dir } else { top }, is_own: false })
}

fn has_v1_limit(dir: BorrowedFd<'_>, controller: Controller) -> bool {
    let number = |file| read(dir, file).ok().and_then(|text| text.trim().parse::<i64>().ok());
    match controller {
        // "No limit" is the largest number of whole pages.
        Controller::Memory => number("memory.limit_in_bytes").is_some_and(|n| n < i64::MAX / 2),
        Controller::Cpu => number("cpu.cfs_quota_us").is_some_and(|n| n > 0),
        Controller::Pids => number("pids.max").is_some(),
    }
}

/// What of a group's path lies below the directory that is mounted; nothing where it isn't below.
fn below(group: &Path, mount_root: &Path) -> PathBuf {
    group.strip_prefix(mount_root).map(Path::to_path_buf).unwrap_or_default()
}

fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

fn open_file(dir: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// `/proc/self/cgroup`: the groups that this process is in.
#[derive(Debug, Default)]
struct OwnGroups {
    v2: PathBuf,
    /// Controllers of a hierarchy, and the group.
    v1: Vec<(String, PathBuf)>,
}

impl OwnGroups {
    fn parse(text: &str) -> Self {
        let mut groups = Self { v2: "/".into(), v1: Vec::new() };
        for line in text.lines() {
            let mut fields = line.splitn(3, ':');
            let (id, controllers) = (fields.next(), fields.next());
            let Some(path) = fields.next() else { continue };
            match (id, controllers) {
                (Some("0"), Some("")) => groups.v2 = path.into(),
                (_, Some(controllers)) => groups.v1.push((controllers.to_owned(), path.into())),
                _ => {}
            }
        }
        groups
    }

    fn v1(&self, controller: Controller) -> PathBuf {
        let of = |list: &str| list.split(',').any(|name| name == controller.name());
        let found = self.v1.iter().find(|(controllers, _)| of(controllers));
        found.map_or_else(|| "/".into(), |(_, path)| path.clone())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn own_groups_of_a_hybrid_host() {
        let own = OwnGroups::parse("4:memory:/a/b\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/y:z\n");
        assert_eq!(own.v2, PathBuf::from("/y:z"));
        assert_eq!(own.v1(Controller::Memory), PathBuf::from("/a/b"));
        assert_eq!(own.v1(Controller::Cpu), PathBuf::from("/"));
        assert_eq!(own.v1(Controller::Pids), PathBuf::from("/"));
    }

    #[test]
    fn a_mounted_part_of_a_hierarchy_is_a_root() {
        assert_eq!(below(Path::new("/docker/x/y"), Path::new("/docker/x")), PathBuf::from("y"));
        assert_eq!(below(Path::new("/docker/x"), Path::new("/docker/x")), PathBuf::new());
        assert_eq!(below(Path::new("/a"), Path::new("/")), PathBuf::from("a"));
    }
}
