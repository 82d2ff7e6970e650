//! What a session is to be: its request with every default filled in. Only what [`About`] has can change,
//! and what holds then is in the session's `View`, and in its row.

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
    /// As it was when the row was read or the session made.
    #[serde(flatten)]
    pub(crate) about: About,
    /// Variables of the request.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) user: BoxUser,
    pub(crate) workspace: Option<WorkspaceId>,
    pub(crate) cwd: String,
    pub(crate) cpu: f64,
    pub(crate) memory_mb: u64,
    pub(crate) pids: u64,
    /// MiB on disk outside a persistent workspace. `None`: no limit.
    #[serde(default)]
    pub(crate) disk_mb: Option<u64>,
    pub(crate) readonly_rootfs: bool,
    pub(crate) shell: ShellPreference,
}

/// What can be changed while a session lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) name: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    /// How long it lives after its last use.
    pub(crate) ttl_seconds: u64,
}

/// Some of [`About`]; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) name: Option<Option<String>>,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) ttl_seconds: Option<u64>,
}

impl About {
    pub(crate) fn changed(self, change: Change) -> Self {
        let Change { name, labels, ttl_seconds } = change;
        Self {
            name: name.unwrap_or(self.name),
            labels: labels.unwrap_or(self.labels),
            ttl_seconds: ttl_seconds.unwrap_or(self.ttl_seconds),
        }
    }
}

/// Who runs a session's shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BoxUser {
    Sandbox,
    Root,
    /// Another one of the image's passwd, as that was when the session was made.
    Named(NamedUser),
}

/// A user of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NamedUser {
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) home: String,
}

impl BoxUser {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Root => "root",
            Self::Named(user) => &user.name,
        }
    }

    pub(crate) fn home(&self) -> &str {
        match self {
            Self::Sandbox => "/home/sandbox",
            Self::Root => "/root",
            Self::Named(user) => &user.home,
        }
    }

    /// Whether that is its name, or its uid in digits.
    pub(crate) fn is(&self, asked: &str) -> bool {
        asked == self.name() || asked.parse() == Ok(self.protocol().uid)
    }

    fn protocol(&self) -> protocol::User {
        let same = |id| protocol::User { uid: id, gid: id };
        match self {
            Self::Sandbox => same(protocol::id::SANDBOX),
            Self::Root => same(protocol::id::ROOT),
            Self::Named(user) => protocol::User { uid: user.uid, gid: user.gid },
        }
    }
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
        self.user.protocol()
    }
}

#[cfg(test)]
impl Spec {
    pub(crate) fn for_tests() -> Self {
        Self {
            image: "base".parse().unwrap(),
            layers: Vec::new(),
            image_env: vec![("LANG".into(), "C.UTF-8".into())],
            about: About {
                name: Some("n".into()),
                labels: BTreeMap::from([("k".into(), "v".into())]),
                ttl_seconds: 60,
            },
            env: vec![("A".into(), "1".into())],
            user: BoxUser::Sandbox,
            workspace: None,
            cwd: "/workspace".into(),
            cpu: 0.5,
            memory_mb: 64,
            pids: 32,
            disk_mb: None,
            readonly_rootfs: false,
            shell: ShellPreference::Bash,
        }
    }
}
