//! A process born in a v2 group, to see that `CLONE_INTO_CGROUP` and `cgroup.kill` work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Signal, WaitId, WaitIdOptions};

use super::files::{read, write};
use crate::sys::{self, Forked};

const TIMEOUT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

pub(super) fn born_in(group: BorrowedFd<'_>) -> io::Result<()> {
    let (ours, theirs) = crate::wire::pair()?;
    let Forked::Parent { pid, pidfd } = sys::clone3(0, Some(group))? else {
        drop(ours);
        // Nothing is ever sent: this waits until it is killed, or until the parent is gone.
        let _gone = crate::wire::receive(theirs.as_fd());
        sys::exit_now(0);
    };
    drop(theirs);
    let tried = kill_by_group(group, pid, pidfd.as_fd());
    let _dead_already = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
    let _reaped = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    tried
}

fn kill_by_group(group: BorrowedFd<'_>, pid: u32, pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let members = read(group, "cgroup.procs")?;
    if members.trim() != pid.to_string() {
        return Err(io::Error::other("the process isn't in its group"));
    }
    write(group, "cgroup.kill", "1")?;
    let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
    let ended = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&TIMEOUT)))?;
    if ended > 0 { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}
