//! Groups made for a moment, to see what the host's hierarchies can do.

use std::os::fd::{AsFd, OwnedFd};

use super::files::read;
use super::limits::{Level, write_v1, write_v2};
use super::{CgroupError, CgroupLimits, Controller, at, hand_down, host, make, move_to_leaf};

const LIMITS: CgroupLimits = CgroupLimits { memory_bytes: 64 << 20, cpu_cores: 0.5, pids: 20 };

/// What came out for one controller, or for the v2 group that every session has.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) name: &'static str,
    pub(crate) outcome: Result<String, CgroupError>,
}

/// Tries each limit in a group of its own, and the v2 group. Leaves nothing.
pub(crate) fn trials() -> Vec<Trial> {
    vec![
        Trial { name: "cgroup", outcome: try_v2() },
        Trial { name: "memory-limit", outcome: try_limit(Controller::Memory) },
        Trial { name: "cpu-limit", outcome: try_limit(Controller::Cpu) },
        Trial { name: "pids-limit", outcome: try_limit(Controller::Pids) },
    ]
}

/// A group that is removed when it goes.
struct Momentary {
    parent: OwnedFd,
    name: String,
    dir: OwnedFd,
}

impl Momentary {
    fn make(parent: OwnedFd) -> Result<Self, CgroupError> {
        let name = format!("sandkasten-doctor-{}", rustix::process::getpid().as_raw_nonzero());
        let dir = make(parent.as_fd(), &name)?;
        Ok(Self { parent, name, dir })
    }
}

impl Drop for Momentary {
    fn drop(&mut self) {
        let _removed = super::remove_dir(self.parent.as_fd(), &self.name);
    }
}

fn try_v2() -> Result<String, CgroupError> {
    let group = Momentary::make(host::find()?.v2.dir)?;
    let born_there = super::trial_child::born_in(group.dir.as_fd());
    born_there.map_err(|source| at("starting a process in a cgroup and killing it", source))?;
    Ok("cgroup v2".to_owned())
}

fn try_limit(controller: Controller) -> Result<String, CgroupError> {
    let (place, is_v1) = host::find_controller(controller)?;
    if !is_v1 {
        if place.is_own {
            move_to_leaf(place.dir.as_fd())?;
        }
        hand_down(place.dir.as_fd(), &[controller])?;
    }
    let group = Momentary::make(place.dir)?;
    if !is_v1 {
        write_v2(group.dir.as_fd(), controller, &LIMITS)?;
        return Ok("cgroup v2".to_owned());
    }
    write_v1(group.dir.as_fd(), controller, &LIMITS, Level::Session)?;
    if controller == Controller::Memory {
        read(group.dir.as_fd(), "memory.kmem.tcp.limit_in_bytes")
            .map_err(|source| at("limiting the buffers of TCP, which v1 doesn't count", source))?;
    }
    Ok("cgroup v1".to_owned())
}
