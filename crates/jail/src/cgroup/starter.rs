//! Processes that wait in the v1 groups of sessions to come.
//!
//! Moving a process into a v1 group takes a grace period of the kernel: 8 ms on an idle host, and every
//! first process of a session would wait for it. A clone inherits its groups at once. So a few children
//! of the launcher are moved ahead into groups called `spare-…`; such groups become a session's by
//! renaming (v1 can), and the starter in them clones the session's init and ends.
//!
//! A starter ends with the daemon, since its socket closes then; the next daemon removes its groups. On
//! a host whose limits are all v2's there is none: there a process is born into its group.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError, TryLockError};

use rustix::process::Signal;

use super::limits;
use super::{
    CgroupError, Cgroups, Controller, Group, at, child_names, make, remove_dir, remove_emptying,
    wait_until_empty,
};
use crate::launcher::{LaunchError, Launcher, Parked};

const PREFIX: &str = "spare-";

/// A process of the launcher's that waits in spare groups, and the v2 group that tells of its end.
#[derive(Debug)]
pub struct Starter {
    pub(crate) parked: Parked,
    name: String,
    v2_parent: OwnedFd,
    v2: OwnedFd,
}

impl Drop for Starter {
    fn drop(&mut self) {
        // It has ended if it was used. Either way its groups are empty a moment later.
        let _ended = rustix::process::pidfd_send_signal(&self.parked.pidfd, Signal::KILL);
        let _empty = wait_until_empty(self.v2.as_fd());
        let _removed = remove_dir(self.v2_parent.as_fd(), &self.name);
    }
}

/// The starters of one daemon.
#[derive(Debug, Default)]
pub(super) struct Pool {
    waiting: Mutex<Vec<Starter>>,
    /// Held while starters are made, with how many have been.
    made: Mutex<u64>,
}

impl Pool {
    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<Starter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take(&self) -> Option<Starter> {
        self.waiting().pop()
    }
}

pub(super) fn is_spare(name: &str) -> bool {
    name.starts_with(PREFIX)
}

impl Cgroups {
    /// Makes starters until `count` wait. Blocks for some 10 ms each, so call it where nobody waits:
    /// at the start, and after each session that was made. Does nothing where v2 has all controllers,
    /// or while another call is at it.
    ///
    /// # Errors
    /// Where a group can't be made or the launcher fails. Sessions can be made all the same.
    pub fn park(&self, launcher: &Launcher, count: usize) -> Result<(), CgroupError> {
        let mut made = match self.pool.made.try_lock() {
            Ok(made) => made,
            Err(TryLockError::Poisoned(made)) => made.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        while !self.parent.v1.is_empty() && self.pool.waiting().len() < count {
            *made += 1;
            let name = format!("{PREFIX}{}-{made}", rustix::process::getpid().as_raw_nonzero());
            let starter = self.make_starter(launcher, &name);
            let starter = starter.inspect_err(|_| self.remove_spare(&name))?;
            self.pool.waiting().push(starter);
        }
        Ok(())
    }

    fn make_starter(&self, launcher: &Launcher, name: &str) -> Result<Starter, CgroupError> {
        let v2_parent = self.parent.v2.dir.try_clone().map_err(|e| at("parking a starter", e))?;
        let v2 = make(v2_parent.as_fd(), name)?;
        let parked = launcher.park(v2.as_fd()).map_err(parking)?;
        let starter = Starter { parked, name: name.to_owned(), v2_parent, v2 };
        let pid = starter.parked.pid.to_string();
        for parent in &self.parent.v1 {
            let dir = make(parent.dir.as_fd(), name)?;
            if parent.controllers.contains(&Controller::Memory) {
                limits::count_tcp(dir.as_fd())?;
            }
            super::write(dir.as_fd(), "cgroup.procs", &pid)
                .map_err(|source| at("moving a starter into its cgroup", source))?;
        }
        Ok(starter)
    }

    /// Gives the groups of a waiting starter to a session.
    pub(super) fn adopt(&self, session: &str) -> Option<Starter> {
        let starter = self.pool.take()?;
        for parent in &self.parent.v1 {
            let dir = parent.dir.as_fd();
            if rustix::fs::renameat(dir, &starter.name, dir, session).is_err() {
                // What has been renamed is found under the session's name, and used or removed there.
                let name = starter.name.clone();
                drop(starter);
                self.remove_spare(&name);
                return None;
            }
        }
        Some(starter)
    }

    /// Ends those that wait, and removes what a daemon before this one has left.
    pub(super) fn remove_spares(&self) {
        let names: Vec<String> =
            self.pool.waiting().drain(..).map(|one| one.name.clone()).collect();
        let left = self.parent.all().flat_map(|parent: &Group| child_names(parent.dir.as_fd()));
        let left = left.filter(|name| is_spare(name));
        for name in names.into_iter().chain(left.collect::<Vec<_>>()) {
            self.remove_spare(&name);
        }
    }

    fn remove_spare(&self, name: &str) {
        for parent in self.parent.all() {
            let _busy_or_gone = remove_emptying(parent.dir.as_fd(), name);
        }
    }
}

fn parking(error: LaunchError) -> CgroupError {
    at("parking a starter", io::Error::other(error))
}
