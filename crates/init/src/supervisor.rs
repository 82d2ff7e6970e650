//! The process between init and a program.
//!
//! A supervisor is a fork of init with init's ids, so that the payload can't touch it. It leads a
//! session and is the subreaper below it, so every orphan of the program stays in the program's tree;
//! it lives until that tree is empty. It says two things on a pipe: the program's pid, and how it
//! ended.
//!
//! ```text
//!   init ──fork──> supervisor ──fork──> program (waits for `go`, drops its rights, execs)
//!     ^                │
//!     └── Started, Ended
//! ```

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Mode;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::rights::{Ids, Rights, undumpable};
use crate::spawn::{self, Fork};

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    pub(crate) path: CString,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: &'a [CString],
    pub(crate) ids: Ids,
    pub(crate) dir: BorrowedFd<'a>,
    /// Seccomp program; empty: none.
    pub(crate) filter: &'a [u8],
    /// Becomes descriptor 3 of the program.
    pub(crate) third: Option<BorrowedFd<'a>>,
    /// Limit of open files: init has raised its own.
    pub(crate) open_files: Rlimit,
}

/// A supervisor that was started.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// Where its [`Report`]s come from, non-blocking.
    pub(crate) reports: OwnedFd,
    /// A byte lets the program start: by then init has its pidfd.
    pub(crate) go: OwnedFd,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(i32),
    Signaled(i32),
}

impl Ended {
    pub(crate) fn of(status: WaitStatus) -> Option<Self> {
        status
            .exit_status()
            .map(Self::Exited)
            .or_else(|| status.terminating_signal().map(Self::Signaled))
    }
}

/// What a supervisor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Started(i32),
    Ended(Ended),
}

const REPORT_BYTES: usize = 8;

impl Report {
    fn to_bytes(self) -> [u8; REPORT_BYTES] {
        let (kind, value): (i32, i32) = match self {
            Self::Started(pid) => (0, pid),
            Self::Ended(Ended::Exited(code)) => (1, code),
            Self::Ended(Ended::Signaled(signal)) => (2, signal),
        };
        let mut bytes = [0; REPORT_BYTES];
        let (head, tail) = bytes.split_at_mut(REPORT_BYTES / 2);
        head.copy_from_slice(&kind.to_ne_bytes());
        tail.copy_from_slice(&value.to_ne_bytes());
        bytes
    }

    /// Reads one. `Ok(None)`: the supervisor is gone.
    pub(crate) fn read(reports: impl AsFd) -> rustix::io::Result<Option<Self>> {
        let mut bytes = [0; REPORT_BYTES];
        // A pipe write of 8 bytes is whole or not there.
        if rustix::io::read(reports, &mut bytes)? < REPORT_BYTES {
            return Ok(None);
        }
        let [k0, k1, k2, k3, v0, v1, v2, v3] = bytes;
        let value = i32::from_ne_bytes([v0, v1, v2, v3]);
        Ok(match i32::from_ne_bytes([k0, k1, k2, k3]) {
            0 => Some(Self::Started(value)),
            1 => Some(Self::Ended(Ended::Exited(value))),
            _ => Some(Self::Ended(Ended::Signaled(value))),
        })
    }
}

/// Starts a supervisor, and a program below it that waits for `go`.
///
/// # Errors
/// No process or no descriptor is to be had.
pub(crate) fn start(rights: Rights, program: &Program<'_>) -> io::Result<Supervisor> {
    let (reports, say) = pipe_with(PipeFlags::CLOEXEC)?;
    let (wait, go) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reports, true)?;
    match spawn::fork()? {
        Fork::Child => supervise(rights, program, &say, &wait),
        Fork::Parent(pid) => {
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
            Ok(Supervisor { pid, pidfd, reports, go })
        }
    }
}

/// The supervisor's life. A failure before the program has started shows as its end.
fn supervise(rights: Rights, program: &Program<'_>, say: &OwnedFd, wait: &OwnedFd) -> ! {
    let main = match become_supervisor().and_then(|()| spawn::fork()) {
        Ok(Fork::Child) => run_program(rights, program, wait),
        Ok(Fork::Parent(pid)) => pid,
        Err(_no_process) => spawn::exit_now(1),
    };
    const SAY: i32 = 3;
    if spawn::place(say, SAY).is_err() || spawn::close_from(SAY.cast_unsigned() + 1).is_err() {
        spawn::exit_now(1);
    }
    let Ok(say) = spawn::inherited(SAY) else { spawn::exit_now(1) };
    if drop_all_rights().is_err() {
        spawn::exit_now(1);
    }
    tell(&say, Report::Started(main.as_raw_pid()));
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == main => {
                if let Some(ended) = Ended::of(status) {
                    tell(&say, Report::Ended(ended));
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_no_children) => spawn::exit_now(0),
        }
    }
}

fn become_supervisor() -> io::Result<()> {
    // What box root may send ends no supervisor, but for SIGKILL.
    spawn::block_all_signals()?;
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

fn tell(say: &OwnedFd, report: Report) {
    // init reads these or is dead, and then so is everything here.
    let _ = rustix::io::write(say, &report.to_bytes());
}

fn drop_all_rights() -> rustix::io::Result<()> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)
}

/// The program's side, up to its exec. It stays undumpable until then, so that nobody reads init's
/// memory out of it; exec makes it an ordinary process.
fn run_program(rights: Rights, program: &Program<'_>, wait: &OwnedFd) -> ! {
    const EXEC_FAILED: i32 = 127;
    let failed = match prepare(rights, program, wait) {
        Ok(()) => spawn::exec(&program.path, &program.argv, program.env),
        Err(error) => error,
    };
    drop(failed);
    spawn::exit_now(EXEC_FAILED)
}

fn prepare(rights: Rights, program: &Program<'_>, wait: &OwnedFd) -> io::Result<()> {
    rustix::process::fchdir(program.dir)?;
    const THIRD: i32 = 3;
    const FREE: i32 = 5;
    // First out of the way, since either may stand where the other goes. These owners are forgotten:
    // all their numbers are closed below.
    let wait = rustix::io::fcntl_dupfd_cloexec(wait, FREE)?;
    let place = match program.third {
        Some(third) => {
            let third = rustix::io::fcntl_dupfd_cloexec(third, FREE)?;
            spawn::place(&third, THIRD)?;
            std::mem::forget(third);
            THIRD + 1
        }
        None => THIRD,
    };
    spawn::place(&wait, place)?;
    std::mem::forget(wait);
    spawn::close_from(place.cast_unsigned() + 1)?;
    let wait = spawn::inherited(place)?;
    if rustix::io::read(&wait, &mut [0])? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    drop(wait);
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::setrlimit(Resource::Nofile, program.open_files)?;
    spawn::default_signals()?;
    become_user(rights, program.ids)?;
    // Last: the filter may forbid what the steps above need.
    spawn::install_filter(program.filter)
}

/// Real, effective, saved and file system ids, groups and capabilities of `ids`.
fn become_user(rights: Rights, ids: Ids) -> io::Result<()> {
    use rustix::process::{Gid, Uid};
    let (uid, gid) = (Uid::from_raw(ids.uid), Gid::from_raw(ids.gid));
    rights.with(CapabilitySet::SETPCAP, || {
        let never = rights.permitted() - rights.of(ids);
        never.iter().try_for_each(rustix::thread::remove_capability_from_bounding_set)
    })?;
    let changed = rights.with(CapabilitySet::SETUID | CapabilitySet::SETGID, || {
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    });
    changed?;
    let sets = CapabilitySets {
        effective: rights.of(ids),
        permitted: rights.of(ids),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)?;
    // The change of ids made the process as dumpable as fs.suid_dumpable says.
    Ok(undumpable()?)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let said = [
            Report::Started(7),
            Report::Ended(Ended::Exited(3)),
            Report::Ended(Ended::Signaled(9)),
        ];
        for report in said {
            tell(&write, report);
        }
        drop(write);
        for report in said {
            assert_eq!(Report::read(&read), Ok(Some(report)));
        }
        assert_eq!(Report::read(&read), Ok(None));
    }
}
