//! The launcher: a small single-threaded process that does all clones.

use std::io;
use std::os::fd::OwnedFd;

use crate::plan::Plan;

/// Why a session's init could not be started. Nothing of it is left then but its cgroups.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The launcher has ended; only a new daemon gets a new one.
    #[error("the launcher is gone")]
    Gone,
    /// A step failed in the launcher or in its child.
    #[error("{step}")]
    Step {
        step: String,
        #[source]
        source: io::Error,
    },
    /// The plan can't be sent.
    #[error("{0}")]
    BadPlan(&'static str),
    #[error("talking to the launcher")]
    Io(#[from] io::Error),
}

/// A running init.
#[derive(Debug)]
pub struct Started {
    pub pidfd: OwnedFd,
    /// The pid of init in the daemon's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks after boot.
    pub start_time: u64,
}

/// The daemon's handle of the launcher. The launcher ends when it is dropped; sessions go on.
#[derive(Debug)]
pub struct Launcher {}

impl Launcher {
    /// Forks the launcher. Call it while the process has one thread and no secrets.
    ///
    /// # Errors
    /// Where the process has several threads, or a step of making the launcher's empty root fails.
    pub fn spawn() -> Result<Self, LaunchError> {
        Ok(Self {})
    }

    /// Starts a session's init. Blocks; returns when init has been executed.
    ///
    /// # Errors
    /// [`LaunchError::Step`] names the step that failed; the child has ended then.
    pub fn launch(&self, _plan: Plan) -> Result<Started, LaunchError> {
        Err(LaunchError::Gone)
    }

    /// A user namespace that maps 0..65536 to `base`..`base + 65536`, uids and gids.
    ///
    /// # Errors
    /// [`LaunchError::Step`] where the kernel or its limits refuse one.
    pub fn user_namespace(&self, _base: u32) -> Result<OwnedFd, LaunchError> {
        Err(LaunchError::Gone)
    }
}
