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
    /// Detached, idmapped tree, put at `/workspace`. `None`: the directory `workspace` of `scratch`,
    /// whose owners are the box's own ids.
    pub workspace: Option<OwnedFd>,
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
        let end = self.uid_base.saturating_add(65_535);
        writeln!(f, "session {}", self.name)?;
        writeln!(f, "join cgroups: v2, {} of v1", self.cgroup.v1_procs.len())?;
        writeln!(f, "mount / from {} layers, nosuid,nodev{}", self.layers.len(), self.root_mode())?;
        writeln!(f, "mount /proc, masked, nosuid,nodev,noexec")?;
        writeln!(f, "mount /dev, ro,nosuid,noexec")?;
        writeln!(f, "mount /dev/pts, nosuid,noexec")?;
        writeln!(f, "mount /dev/shm of {} bytes, nosuid,nodev", self.shm_bytes)?;
        writeln!(f, "mount /tmp of {} bytes, nosuid,nodev", self.tmp_bytes)?;
        writeln!(f, "mount /.sandkasten, nosuid,nodev,noexec")?;
        writeln!(f, "mount /workspace, nosuid,nodev")?;
        writeln!(f, "map ids 0-65535 to {}-{end}", self.uid_base)?;
        writeln!(f, "filter system calls: {:?}", self.seccomp)?;
        writeln!(f, "execute init with listener, config and spool")
    }
}

impl Plan {
    fn root_mode(&self) -> &'static str {
        if self.readonly_rootfs { ",ro" } else { "" }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn prints_a_line_a_step() {
        let plan = Plan {
            name: "s1".to_owned(),
            layers: vec![null(), null()],
            scratch: null(),
            workspace: Some(null()),
            readonly_rootfs: true,
            user_namespace: null(),
            uid_base: 100_000,
            cgroup: CgroupFds { v2: null(), v1_procs: vec![null()], starter: None },
            tmp_bytes: 64,
            shm_bytes: 32,
            seccomp: SeccompProfile::Strict,
            listener: null(),
            config: null(),
            spool: null(),
        };
        let expected = "session s1
join cgroups: v2, 1 of v1
mount / from 2 layers, nosuid,nodev,ro
mount /proc, masked, nosuid,nodev,noexec
mount /dev, ro,nosuid,noexec
mount /dev/pts, nosuid,noexec
mount /dev/shm of 32 bytes, nosuid,nodev
mount /tmp of 64 bytes, nosuid,nodev
mount /.sandkasten, nosuid,nodev,noexec
mount /workspace, nosuid,nodev
map ids 0-65535 to 100000-165535
filter system calls: Strict
execute init with listener, config and spool
";
        assert_eq!(plan.to_string(), expected);
    }
}
