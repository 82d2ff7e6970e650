//! A whole box of an empty image: init starts in it, or the step that failed is known.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;

use super::attempts::{Folder, UID_BASE};
use crate::cgroup::{Cgroup, CgroupLimits, Cgroups};
use crate::launcher::{LaunchError, Launcher};
use crate::plan::Plan;
use crate::seccomp::SeccompProfile;
use crate::{memfd, tree};

const LIMITS: CgroupLimits = CgroupLimits { memory_bytes: 64 << 20, cpu_cores: 1.0, pids: 20 };

pub(super) fn start_and_end(
    folder: &Folder,
    launcher: &Launcher,
    namespace: OwnedFd,
) -> Result<(), String> {
    let tag = format!("doctor-{}", std::process::id());
    let cgroups = Cgroups::open(&tag, &LIMITS).map_err(|error| super::chain(&error))?;
    let outcome = match cgroups.create("box", &LIMITS) {
        Ok(cgroup) => in_group(folder, launcher, namespace, &cgroup),
        Err(error) => Err(super::chain(&error)),
    };
    cgroups.close();
    outcome
}

fn in_group(
    folder: &Folder,
    launcher: &Launcher,
    namespace: OwnedFd,
    cgroup: &Cgroup,
) -> Result<(), String> {
    let plan = plan(folder, namespace, cgroup);
    let started = plan.map_err(LaunchError::from).and_then(|plan| launcher.launch(plan));
    let killed = cgroup.kill();
    // Nobody comes later to remove it.
    let removed = cgroup.remove().or_else(|_first_try| cgroup.remove());
    match started {
        // The configuration is empty, so init ends by itself; it may do so before it is looked at.
        Ok(_) | Err(LaunchError::InitEnded) => {}
        Err(error) => return Err(super::chain(&error)),
    }
    killed.and(removed).map_err(|error| format!("ending the box: {error}"))
}

fn plan(folder: &Folder, namespace: OwnedFd, cgroup: &Cgroup) -> io::Result<Plan> {
    let layer = folder.make("box/layer")?;
    folder.make("box/s/workspace")?;
    for name in ["box/s/upper", "box/s/work"] {
        let dir = folder.make(name)?;
        std::os::unix::fs::fchown(&dir, Some(UID_BASE), Some(UID_BASE))?;
    }
    Ok(Plan {
        name: "doctor".to_owned(),
        layers: vec![tree::idmapped_clone(layer.as_fd(), namespace.as_fd())?],
        scratch: tree::clone_tree(folder.make("box/s")?.as_fd())?,
        workspace: None,
        readonly_rootfs: false,
        user_namespace: namespace,
        uid_base: UID_BASE,
        cgroup: cgroup.fds()?,
        tmp_bytes: 1 << 20,
        shm_bytes: 1 << 20,
        seccomp: SeccompProfile::Strict,
        listener: UnixListener::bind(folder.path.join("box/control.sock"))?.into(),
        config: memfd::sealed("sandkasten-doctor", b"")?,
        spool: folder.make("box/spool")?.into_fd(),
    })
}
