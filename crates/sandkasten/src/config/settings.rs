//! All settings as plain values, each valid by itself.

use std::path::PathBuf;

use sandkasten_types::limits::MIB;
use serde::{Deserialize, Serialize};

use crate::log::Level;

/// What the operator decided, defaults filled in. Goes to the daemon's second stage as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Host and port; an empty host is every address.
    pub(crate) listen: String,
    /// Empty: no key is asked for.
    pub(crate) api_key: String,
    pub(crate) data_dir: PathBuf,
    /// `None`: in the data directory.
    pub(crate) db_path: Option<PathBuf>,
    pub(crate) default_image: String,
    /// Empty: all.
    pub(crate) allowed_images: Vec<String>,
    pub(crate) session_ttl_seconds: u64,
    pub(crate) cpu_limit: f64,
    pub(crate) mem_limit_mb: u64,
    pub(crate) pids_limit: u64,
    pub(crate) max_exec_timeout_ms: u64,
    pub(crate) readonly_rootfs: bool,
    pub(crate) shell_prefer: Shell,
    pub(crate) seccomp: Seccomp,
    pub(crate) pool_enabled: bool,
    /// Images with a pool of their own.
    pub(crate) pool_images: usize,
    pub(crate) workspace_enabled: bool,
    pub(crate) persist_by_default: bool,
    pub(crate) dashboard_enabled: bool,
    /// A key of earlier versions is set that has no meaning any more.
    pub(crate) playground: bool,
    pub(crate) max_sessions: u64,
    pub(crate) max_output_bytes: u64,
    pub(crate) max_read_bytes: u64,
    pub(crate) max_upload_bytes: u64,
    /// `None`: all cores.
    pub(crate) ceilings_cpu: Option<f64>,
    /// `None`: 80 % of the host's memory.
    pub(crate) ceilings_mem_mb: Option<u64>,
    pub(crate) ceilings_pids: u64,
    /// MiB. `None`: no ceiling.
    pub(crate) ceilings_disk_mb: Option<u64>,
    /// Ways to limit disk space that may be used.
    pub(crate) disk_limits: Vec<DiskLimit>,
    pub(crate) cors_origins: Vec<String>,
    pub(crate) durability: Durability,
    pub(crate) log_level: Level,
    /// Of the log of a daemon in the background, in MiB: a file that is full is put aside.
    pub(crate) log_max_mb: u64,
    /// Files of it that are kept beside the one that is written.
    pub(crate) log_keep: u64,
}

/// `security.seccomp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Seccomp {
    Strict,
    Mvp,
    Off,
}

/// `defaults.shell_prefer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Shell {
    Bash,
    Sh,
}

/// A word of `disk_limits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DiskLimit {
    Project,
    Image,
    Memory,
}

/// `durability`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Durability {
    Rename,
    Fsync,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8080".into(),
            api_key: String::new(),
            data_dir: "/var/lib/sandkasten".into(),
            db_path: None,
            default_image: "base".into(),
            allowed_images: Vec::new(),
            session_ttl_seconds: 1800,
            cpu_limit: 1.0,
            mem_limit_mb: 512,
            pids_limit: 256,
            max_exec_timeout_ms: 600_000,
            readonly_rootfs: false,
            shell_prefer: Shell::Bash,
            seccomp: Seccomp::Strict,
            pool_enabled: false,
            pool_images: 0,
            workspace_enabled: true,
            persist_by_default: false,
            dashboard_enabled: false,
            playground: false,
            max_sessions: 1000,
            max_output_bytes: MIB as u64,
            max_read_bytes: 10 * MIB as u64,
            max_upload_bytes: 10 * MIB as u64,
            ceilings_cpu: None,
            ceilings_mem_mb: None,
            ceilings_pids: 4096,
            ceilings_disk_mb: None,
            disk_limits: vec![DiskLimit::Project, DiskLimit::Image, DiskLimit::Memory],
            cors_origins: Vec::new(),
            durability: Durability::Rename,
            log_level: Level::Info,
            log_max_mb: 10,
            log_keep: 5,
        }
    }
}
