//! What a session is made of, as a value: the launcher does nothing that isn't in it.

use std::fmt;
use std::os::fd::OwnedFd;

use crate::cgroup::CgroupFds;
use crate::seccomp::SeccompProfile;

/// Everything that the launcher needs to start one session's init. `Display` prints a line a step.
#[derive(Debug)]
pub struct Plan {
    /// For messages only.
    pub name: String,
    /// Detached, idmapped trees of the image, lowest first.
    pub layers: Vec<OwnedFd>,
    /// Detached tree (not idmapped) that holds `upper` and `work`, owned by ids of the session's range.
    pub scratch: OwnedFd,
    /// Detached, idmapped tree, put at `/workspace`.
    pub workspace: OwnedFd,
    pub readonly_rootfs: bool,
    /// Maps 0..65536 to `uid_base`..`uid_base + 65536`.
    pub user_namespace: OwnedFd,
    /// First host id of the session's range.
    pub uid_base: u32,
    pub cgroup: CgroupFds,
    /// Size of `/tmp` in bytes.
    pub tmp_bytes: u64,
    /// Size of `/dev/shm` in bytes.
    pub shm_bytes: u64,
    /// init's own seccomp program, which all processes of the session inherit.
    pub seccomp: SeccompProfile,
    /// Descriptor 3 of init: the listening control socket.
    pub listener: OwnedFd,
    /// Descriptor 4 of init: its configuration in a sealed memfd.
    pub config: OwnedFd,
    /// Descriptor 5 of init: the directory that output is spooled to.
    pub spool: OwnedFd,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}", self.name)
    }
}
