//! Values for tests.

use std::path::Path;

use sandkasten_jail::seccomp::SeccompProfile;

use crate::config::{Ceilings, Config, Defaults, Durability, ShellPreference, WorkspacePolicy};

/// The configuration of `api.md`'s defaults, with its data in `dir`.
pub(crate) fn config(dir: &Path) -> Config {
    Config {
        data_dir: dir.to_owned(),
        db_path: dir.join("sandkasten.db"),
        run_dir: dir.join("run"),
        node: "local".into(),
        default_image: "base".into(),
        allowed_images: Vec::new(),
        session_ttl_seconds: 1800,
        defaults: Defaults {
            cpu: 1.0,
            memory_mb: 512,
            pids: 256,
            readonly_rootfs: false,
            shell: ShellPreference::Bash,
        },
        ceilings: Ceilings { cpu: 2.0, memory_mb: 4096, pids: 4096, disk_mb: None },
        disk_limits: Vec::new(),
        max_exec_timeout_ms: 600_000,
        max_sessions: 1000,
        max_output_bytes: 1024 * 1024,
        max_read_bytes: 10 * 1024 * 1024,
        seccomp: SeccompProfile::Strict,
        workspaces: WorkspacePolicy::On { persist_by_default: false },
        durability: Durability::Rename,
    }
}
