//! Settings as the other crates take them.

use std::path::PathBuf;

use sandkasten_engine::{
    Ceilings, Defaults, DiskMechanism, SeccompProfile, ShellPreference, WorkspacePolicy,
};

use sandkasten_types::info::Guarantees;

use super::absolute;
use super::settings::{DiskLimit, Durability, Seccomp, Settings, Shell};
use super::value::addresses;

/// Where daemons of this host agree on uid ranges.
pub(crate) const RUN_DIR: &str = "/run/sandkasten";

/// Name of this daemon in answers, until daemons know of each other.
const NODE: &str = "local";

/// Part of the host's memory that sessions may have, in percent.
const MEMORY_PERCENT: u64 = 80;

/// Every address that `listen` stands for is one of this host alone.
pub(crate) fn is_loopback(listen: &str) -> bool {
    addresses(listen)
        .is_ok_and(|all| !all.is_empty() && all.iter().all(|address| address.ip().is_loopback()))
}

/// The most that a session may ask for.
pub(crate) fn ceilings(settings: &Settings) -> Ceilings {
    Ceilings {
        cpu: settings.ceilings_cpu.unwrap_or_else(host_cores),
        memory_mb: settings.ceilings_mem_mb.unwrap_or_else(host_memory_share_mb),
        pids: settings.ceilings_pids,
        disk_mb: settings.ceilings_disk_mb,
    }
}

/// What the engine is told at its start.
pub(crate) fn engine_config(settings: &Settings) -> sandkasten_engine::Config {
    let data_dir = absolute(&settings.data_dir);
    let db_path = match &settings.db_path {
        Some(path) => absolute(path),
        None => data_dir.join("sandkasten.db"),
    };
    sandkasten_engine::Config {
        db_path,
        data_dir,
        run_dir: PathBuf::from(RUN_DIR),
        node: NODE.into(),
        default_image: settings.default_image.clone(),
        allowed_images: settings.allowed_images.clone(),
        session_ttl_seconds: settings.session_ttl_seconds,
        defaults: Defaults {
            cpu: settings.cpu_limit,
            memory_mb: settings.mem_limit_mb,
            pids: settings.pids_limit,
            readonly_rootfs: settings.readonly_rootfs,
            shell: match settings.shell_prefer {
                Shell::Bash => ShellPreference::Bash,
                Shell::Sh => ShellPreference::Sh,
            },
        },
        ceilings: ceilings(settings),
        disk_limits: disk_limits(settings),
        max_exec_timeout_ms: settings.max_exec_timeout_ms,
        max_sessions: usize::try_from(settings.max_sessions).unwrap_or(usize::MAX),
        max_output_bytes: settings.max_output_bytes,
        max_read_bytes: settings.max_read_bytes,
        seccomp: seccomp(settings.seccomp),
        workspaces: workspaces(settings),
        durability: match settings.durability {
            Durability::Rename => sandkasten_engine::Durability::Rename,
            Durability::Fsync => sandkasten_engine::Durability::Fsync,
        },
    }
}

/// What the HTTP side is told at its start.
pub(crate) fn server_config(
    settings: &Settings,
    guarantees: Guarantees,
) -> sandkasten_server::Config {
    sandkasten_server::Config {
        api_key: sandkasten_server::ApiKey::new(&settings.api_key),
        cors_origins: settings.cors_origins.clone(),
        max_upload_bytes: settings.max_upload_bytes,
        max_read_bytes: settings.max_read_bytes,
        version: env!("CARGO_PKG_VERSION").into(),
        guarantees,
    }
}

fn seccomp(setting: Seccomp) -> SeccompProfile {
    match setting {
        Seccomp::Strict => SeccompProfile::Strict,
        Seccomp::Mvp => SeccompProfile::Mvp,
        Seccomp::Off => SeccompProfile::Off,
    }
}

fn workspaces(settings: &Settings) -> WorkspacePolicy {
    if settings.workspace_enabled {
        WorkspacePolicy::On { persist_by_default: settings.persist_by_default }
    } else {
        WorkspacePolicy::Off
    }
}

/// As `jail` takes them, in its own order.
pub(crate) fn disk_limits(settings: &Settings) -> Vec<DiskMechanism> {
    let mechanism = |limit: &DiskLimit| match limit {
        DiskLimit::Project => DiskMechanism::Project,
        DiskLimit::Image => DiskMechanism::Image,
        DiskLimit::Memory => DiskMechanism::Memory,
    };
    settings.disk_limits.iter().map(mechanism).collect()
}

fn host_cores() -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    f64::from(u32::try_from(cores).unwrap_or(u32::MAX))
}

fn host_memory_share_mb() -> u64 {
    let info = rustix::system::sysinfo();
    let bytes = u128::from(info.totalram) * u128::from(info.mem_unit);
    u64::try_from(bytes / (1 << 20) * u128::from(MEMORY_PERCENT) / 100).unwrap_or(u64::MAX)
}
