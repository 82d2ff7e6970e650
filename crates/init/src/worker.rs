//! Workers: processes for what takes long with files, so that the loop doesn't wait.
//!
//! ```text
//!   init ── fork ──> worker: the user's ids for good, one socket, one job of `files`, exit
//!     └── the socket's other end ──> engine, which closes it to end the worker
//! ```
//!
//! Invariant: from the moment it touches a file a worker has the user's ids and, unless that is root,
//! no capability. It stays undumpable, so that nobody reads init's memory out of it; but whoever has
//! its ids may kill or stop it, which costs that one call.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal};
use rustix::thread::CapabilitySet;
use sandkasten_files::{Root, Socket};
use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::{Job, WATCHES_MAX, WORKERS_MAX};

use crate::rights::{Ids, Rights};
use crate::spawn::{self, Fork};
use crate::supervisor::become_user;

#[derive(Debug, Default)]
pub(crate) struct Workers {
    /// By pid, with a copy of each one's socket, which tells whether the engine is still there.
    all: BTreeMap<i32, Worker>,
}

#[derive(Debug)]
struct Worker {
    socket: OwnedFd,
    watches: bool,
}

impl Workers {
    /// Starts one. Gives the socket that it is spoken to by.
    pub(crate) fn start(
        &mut self,
        rights: Rights,
        job: Job,
        user: Ids,
    ) -> Result<OwnedFd, FileFault> {
        self.end_forsaken(rights);
        if self.all.len() >= WORKERS_MAX {
            return Err(FileFault::TooManyWorkers);
        }
        let watches = matches!(job, Job::Watch { .. });
        if watches && self.all.values().filter(|one| one.watches).count() >= WATCHES_MAX {
            return Err(FileFault::TooManyWatches);
        }
        let (kind, flags) = (SocketType::STREAM, SocketFlags::CLOEXEC);
        let pair = socketpair(AddressFamily::UNIX, kind, flags, None);
        let (theirs, ours) = pair.map_err(|_no_descriptor| FileFault::Busy)?;
        match spawn::fork() {
            Ok(Fork::Child) => live(rights, job, user, &ours),
            Ok(Fork::Parent(pid)) => {
                self.all.insert(pid.as_raw_pid(), Worker { socket: ours, watches });
                Ok(theirs)
            }
            Err(_no_process) => Err(FileFault::Busy),
        }
    }

    /// Ends those whose socket the engine has closed. They do so themselves, unless somebody has
    /// stopped them.
    pub(crate) fn end_forsaken(&self, rights: Rights) {
        for (pid, worker) in &self.all {
            let mut one = [PollFd::new(&worker.socket, PollFlags::RDHUP)];
            let is_closed = poll(&mut one, Some(&Timespec::default())).is_ok_and(|n| n > 0);
            if let Some(pid) = Pid::from_raw(*pid).filter(|_| is_closed) {
                // Nobody but init reaps, so the number is still its own.
                let kill = || rustix::process::kill_process(pid, Signal::KILL);
                // It may have ended meanwhile.
                let _ = rights.with(CapabilitySet::KILL, kill);
            }
        }
    }

    pub(crate) fn on_reaped(&mut self, pid: Pid) {
        self.all.remove(&pid.as_raw_pid());
    }
}

/// A worker's life.
fn live(rights: Rights, job: Job, user: Ids, socket: &OwnedFd) -> ! {
    // A panic must not unwind into init's loop.
    let done = catch_unwind(AssertUnwindSafe(|| {
        let socket = become_worker(rights, user, socket)?;
        sandkasten_files::run(&Root::Box, job, &mut Socket::new(socket));
        Ok::<(), std::io::Error>(())
    }));
    spawn::exit_now(i32::from(!matches!(done, Ok(Ok(())))))
}

fn become_worker(rights: Rights, user: Ids, socket: &OwnedFd) -> std::io::Result<OwnedFd> {
    const SOCKET: i32 = 3;
    spawn::place(socket, SOCKET)?;
    spawn::close_from(SOCKET.cast_unsigned() + 1)?;
    spawn::cloexec_from(SOCKET.cast_unsigned())?;
    // In no session that a command's processes are known by.
    rustix::process::setsid()?;
    spawn::default_signals()?;
    become_user(rights, user)?;
    spawn::inherited(SOCKET)
}
