//! What the operator decides. Read by the binary; here it is a value, and already valid.

use std::path::PathBuf;

use sandkasten_jail::disk::Mechanism as DiskMechanism;
use sandkasten_jail::seccomp::SeccompProfile;
use serde::{Deserialize, Serialize};

/// Everything an [`Engine`](crate::engine::Engine) is told at its start.
#[derive(Debug, Clone)]
pub struct Config {
    /// 0700, root. The caller holds its pid file's lock.
    pub data_dir: PathBuf,
    pub db_path: PathBuf,
    /// Host-wide, for claims of uid ranges: `/run/sandkasten`.
    pub run_dir: PathBuf,
    /// Name of this daemon in answers.
    pub node: String,
    pub default_image: String,
    /// Empty: all.
    pub allowed_images: Vec<String>,
    /// Lease of a session that names none, in seconds.
    pub session_ttl_seconds: u64,
    pub defaults: Defaults,
    pub ceilings: Ceilings,
    /// Ways to limit disk space that may be used; the first that the host has is.
    pub disk_limits: Vec<DiskMechanism>,
    /// The longest timeout that an exec may ask for, in milliseconds.
    pub max_exec_timeout_ms: u64,
    /// Sessions that may live at once.
    pub max_sessions: usize,
    /// Cap on a blocking exec's output where its request names none.
    pub max_output_bytes: u64,
    /// Cap on a file read where its request names none.
    pub max_read_bytes: u64,
    pub seccomp: SeccompProfile,
    pub workspaces: WorkspacePolicy,
    pub durability: Durability,
}

/// What a session gets where its request says nothing.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// Cores.
    pub cpu: f64,
    pub memory_mb: u64,
    pub pids: u64,
    pub readonly_rootfs: bool,
    pub shell: ShellPreference,
}

/// The most that one session may ask for.
#[derive(Debug, Clone)]
pub struct Ceilings {
    /// Cores.
    pub cpu: f64,
    pub memory_mb: u64,
    pub pids: u64,
    /// `None`: no ceiling.
    pub disk_mb: Option<u64>,
}

/// Which shell is looked for first in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShellPreference {
    Bash,
    Sh,
}

/// Whether there are workspaces, and what a session that names none gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkspacePolicy {
    Off,
    On { persist_by_default: bool },
}

/// What an acknowledged write of a file survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The end of any process.
    Rename,
    /// A power cut too.
    Fsync,
}
