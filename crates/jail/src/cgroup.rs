//! Resource limits: one group a session, over cgroup v1, v2 and hybrids of both.

use std::io;
use std::os::fd::OwnedFd;

/// The limits of one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CgroupLimits {
    pub memory_bytes: u64,
    /// Cores; 0.5 is half of one.
    pub cpu_cores: f64,
    pub pids: u64,
}

/// Why a group could not be made. Nothing of it is left then.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No mounted hierarchy has the controller.
    #[error("no cgroup hierarchy has the controller `{0}`")]
    NoController(&'static str),
    /// No cgroup2 hierarchy is mounted.
    #[error("no cgroup2 hierarchy is mounted")]
    NoV2,
    /// A limit was accepted but doesn't hold.
    #[error("{file} is `{found}` after writing `{written}`")]
    NotHeld { file: String, written: String, found: String },
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

/// What the launcher needs to put a process into a group before it runs anything.
#[derive(Debug)]
pub struct CgroupFds {
    /// Directory of the v2 group, for `CLONE_INTO_CGROUP`.
    pub v2: OwnedFd,
    /// `cgroup.procs` of each v1 group, open for writing.
    pub v1_procs: Vec<OwnedFd>,
}

/// What a group uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub cpu_usec: u64,
    pub pids: u64,
}

/// What happened in a group since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    /// Processes of the group killed for want of memory, by whichever limit.
    pub oom_kills: u64,
    /// Forks that failed at the limit of processes.
    pub fork_fails: u64,
    /// How often the limit over all sessions was the one that killed.
    pub host_oom_kills: u64,
}

/// The host's hierarchies, and the group of ours that holds all sessions.
#[derive(Debug)]
pub struct Cgroups {}

impl Cgroups {
    /// Finds the hierarchies and makes `sandkasten-<tag>` in each, capped by `parent`.
    ///
    /// # Errors
    /// Where a controller is missing or a limit isn't held.
    pub fn open(_tag: &str, _parent: &CgroupLimits) -> Result<Self, CgroupError> {
        Err(CgroupError::NoV2)
    }

    /// Makes a session's groups with their limits, read back, or leaves nothing.
    ///
    /// # Errors
    /// The first file that can't be written or doesn't hold.
    pub fn create(&self, _session: &str, _limits: &CgroupLimits) -> Result<Cgroup, CgroupError> {
        Err(CgroupError::NoV2)
    }

    /// The groups of a session that were made earlier.
    #[must_use]
    pub fn find(&self, _session: &str) -> Option<Cgroup> {
        None
    }

    /// Sessions that have a group in any hierarchy.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        Vec::new()
    }

    /// Removes the group over all sessions where no session is left in it.
    pub fn close(self) {}
}

/// One session's groups.
#[derive(Debug)]
pub struct Cgroup {}

impl Cgroup {
    /// # Errors
    /// Where the group is gone.
    pub fn fds(&self) -> io::Result<CgroupFds> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// What it uses now; zeroes where the group is gone.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Counters since the group was made; zeroes where it is gone.
    #[must_use]
    pub fn events(&self) -> Events {
        Events::default()
    }

    /// Kills all its processes, frozen ones too.
    ///
    /// # Errors
    /// What the write to `cgroup.kill` says.
    pub fn kill(&self) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// Whether a process is in it.
    ///
    /// # Errors
    /// Where the group is gone.
    pub fn is_populated(&self) -> io::Result<bool> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// `cgroup.events`: gives `POLLPRI` whenever "populated" changes, read or not.
    ///
    /// # Errors
    /// Where the group is gone.
    pub fn populated_fd(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::NotFound.into())
    }

    /// Removes the groups of every hierarchy; missing ones are fine.
    ///
    /// # Errors
    /// `EBUSY` while a process is in one.
    pub fn remove(&self) -> io::Result<()> {
        Ok(())
    }
}
