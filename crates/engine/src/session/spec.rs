//! What a session is to be: its request with every default filled in. It never changes.

use std::collections::BTreeMap;

use sandkasten_jail::cgroup::CgroupLimits;
use sandkasten_protocol as protocol;
use sandkasten_types::{ImageName, WorkspaceId};
use serde::{Deserialize, Serialize};

use crate::config::ShellPreference;
use crate::image::Digest;

const MIB: u64 = sandkasten_types::limits::MIB as u64;

/// Everything that is decided before anything is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) image: ImageName,
    /// As the image's record was when the session was made, lowest first.
    pub(crate) layers: Vec<Digest>,
    pub(crate) image_env: Vec<(String, String)>,
    pub(crate) name: Option<String>,
    /// Variables of the request.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) user: BoxUser,
    pub(crate) workspace: Option<WorkspaceId>,
    pub(crate) cwd: String,
    pub(crate) ttl_seconds: u64,
    pub(crate) cpu: f64,
    pub(crate) memory_mb: u64,
    pub(crate) pids: u64,
    /// MiB on disk outside a persistent workspace. `None`: no limit.
    #[serde(default)]
    pub(crate) disk_mb: Option<u64>,
    pub(crate) readonly_rootfs: bool,
    pub(crate) shell: ShellPreference,
}

/// Who runs a session's shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BoxUser {
    Sandbox,
    Root,
}

impl Spec {
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_mb.saturating_mul(MIB)
    }

    pub(crate) fn disk_bytes(&self) -> Option<u64> {
        self.disk_mb.map(|mb| mb.saturating_mul(MIB))
    }

    pub(crate) fn cgroup_limits(&self) -> CgroupLimits {
        CgroupLimits { memory_bytes: self.memory_bytes(), cpu_cores: self.cpu, pids: self.pids }
    }

    /// Half of the memory: what is in `/tmp` is memory of the session.
    pub(crate) fn tmp_bytes(&self) -> u64 {
        self.memory_bytes() / 2
    }

    /// An eighth for `/dev/shm`. With both full to the last inode (about 1 KiB of kernel memory for
    /// each page) there is still room for the shell.
    pub(crate) fn shm_bytes(&self) -> u64 {
        self.memory_bytes() / 8
    }

    pub(crate) fn shell_preference(&self) -> protocol::ShellPreference {
        match self.shell {
            ShellPreference::Bash => protocol::ShellPreference::Bash,
            ShellPreference::Sh => protocol::ShellPreference::Sh,
        }
    }

    pub(crate) fn protocol_user(&self) -> protocol::User {
        let id = match self.user {
            BoxUser::Sandbox => protocol::id::SANDBOX,
            BoxUser::Root => protocol::id::ROOT,
        };
        protocol::User { uid: id, gid: id }
    }
}

#[cfg(test)]
impl Spec {
    pub(crate) fn for_tests() -> Self {
        Self {
            image: "base".parse().unwrap(),
            layers: Vec::new(),
            image_env: vec![("LANG".into(), "C.UTF-8".into())],
            name: Some("n".into()),
            env: vec![("A".into(), "1".into())],
            labels: BTreeMap::from([("k".into(), "v".into())]),
            user: BoxUser::Sandbox,
            workspace: None,
            cwd: "/workspace".into(),
            ttl_seconds: 60,
            cpu: 0.5,
            memory_mb: 64,
            pids: 32,
            disk_mb: None,
            readonly_rootfs: false,
            shell: ShellPreference::Bash,
        }
    }
}
