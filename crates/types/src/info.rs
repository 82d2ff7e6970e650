//! The daemon: what it is, what it offers, and what its host can and can't give.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/info`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Info {
    /// Of the program, as `sandkasten version` prints it.
    pub version: String,
    /// Name of the daemon, `local` unless set.
    pub node: String,
    /// What this daemon offers, with its configuration.
    pub features: Vec<Feature>,
    /// Image of a session that names none.
    pub default_image: String,
    /// Limits that a client may run into.
    pub limits: InfoLimits,
    /// Promises of the isolation, by whether this host keeps them.
    pub guarantees: Guarantees,
}

/// Something that a daemon offers or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// Commands in the session's shell.
    Exec,
    /// Programs beside the shell, also with a PTY and over a WebSocket.
    Processes,
    /// Files of sessions: single, whole trees, archives, watched.
    Files,
    /// Directories that outlive sessions.
    Workspaces,
    /// `limits.disk_mb` of sessions and `quota_mb` of workspaces.
    DiskLimits,
}

/// Limits that a client may run into.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InfoLimits {
    /// Sessions that may live at once.
    pub max_sessions: u64,
    /// Seconds of lease of a session that asks for none.
    pub session_ttl_seconds: u64,
    /// The longest lease in seconds that a session may ask for.
    pub max_ttl_seconds: u64,
    /// Milliseconds that an exec has which asks for none.
    pub exec_timeout_ms: u64,
    /// The longest timeout in milliseconds that an exec may ask for.
    pub max_exec_timeout_ms: u64,
    /// Bytes of each field of a blocking exec's answer where the request says nothing.
    pub max_output_bytes: u64,
    /// Bytes of a file read where the request says nothing.
    pub max_read_bytes: u64,
    /// Bytes of the files of one upload.
    pub max_upload_bytes: u64,
    /// What a session gets that asks for nothing.
    pub defaults: ResourceLimits,
    /// The most that a session may ask for.
    pub ceilings: ResourceLimits,
}

/// Resources of one session.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResourceLimits {
    /// Cores.
    pub cpu: f64,
    /// MiB of memory.
    pub memory_mb: u64,
    /// Processes and threads.
    pub pids: u64,
    /// MiB on disk. `null`: no limit.
    #[schema(required)]
    pub disk_mb: Option<u64>,
}

/// The promises of the isolation, by whether this host keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Guarantees {
    /// Those that it keeps.
    pub given: Vec<Guarantee>,
    /// Those that it does not.
    pub missing: Vec<Guarantee>,
}

/// One promise of the isolation, as it was tried at the start of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Guarantee {
    /// Short and stable, as `sandkasten doctor` has it.
    pub name: String,
    /// The daemon does not start without it, unless told to.
    pub required: bool,
    /// What it is good for, in one line.
    pub says: String,
}
