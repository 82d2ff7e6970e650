//! What the host can give. Each line is the result of trying the thing.

use std::path::PathBuf;

/// Where the daemon would put its files.
#[derive(Debug, Clone)]
pub struct HostPaths {
    pub data_dir: PathBuf,
    pub run_dir: PathBuf,
}

/// One promise of the isolation and whether this host can keep it.
#[derive(Debug, Clone)]
pub struct Guarantee {
    /// Short and stable: `--allow-degraded=<name>` takes it.
    pub name: &'static str,
    /// The daemon refuses to start without it.
    pub required: bool,
    pub state: State,
    /// What it is good for, or what was found; one line.
    pub says: String,
}

/// The result of trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Given,
    Missing {
        why: String,
        /// The exact thing to do about it.
        fix: String,
    },
}

/// Tries everything. Leaves nothing behind.
#[must_use]
pub fn guarantees(_env: &HostPaths) -> Vec<Guarantee> {
    Vec::new()
}
