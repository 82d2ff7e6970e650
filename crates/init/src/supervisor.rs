//! The process between init and a program.
//!
//! A supervisor is a fork of init with init's ids, so that the payload can't touch it. It leads a
//! session and is the subreaper below it, so every orphan of the program stays in the program's tree;
//! it lives until that tree is empty. It says two things on a pipe: the program's pid, and how it
//! ended.
//!
//! ```text
//!   init ──fork──> supervisor ──fork──> program (waits for `go`, drops its rights, execs)
//!     ^ ^              │                   │
//!     │ └── Report ────┘                   │
//!     └──── Failure, or the end of `go` ───┘
//! ```

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, WaitOptions, WaitStatus};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::rights::{Ids, Rights, undumpable};
use crate::spawn::{self, Fork};

/// What is to be run.
#[derive(Debug)]
pub(crate) struct Program<'a> {
    /// Where it may be; the first that is there is run.
    pub(crate) paths: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) env: &'a [CString],
    pub(crate) ids: Ids,
    pub(crate) dir: Dir<'a>,
    /// Seccomp program; empty: none.
    pub(crate) filter: &'a [u8],
    /// Descriptors 0, 1 and 2; `None`: `/dev/null`.
    pub(crate) stdio: [Option<BorrowedFd<'a>>; 3],
    /// Becomes descriptor 3 of the program.
    pub(crate) third: Option<BorrowedFd<'a>>,
    /// The slave of a PTY that becomes the controlling terminal.
    pub(crate) terminal: Option<BorrowedFd<'a>>,
    /// Limit of open files: init has raised its own.
    pub(crate) open_files: Rlimit,
}

/// Where a program starts.
#[derive(Debug)]
pub(crate) enum Dir<'a> {
    /// A directory of init's, entered with init's rights.
    Own(BorrowedFd<'a>),
    /// Entered with the program's rights: the one, then a path from there.
    Payloads { base: Base<'a>, path: Option<CString> },
}

/// What a path starts from.
#[derive(Debug)]
pub(crate) enum Base<'a> {
    Open(BorrowedFd<'a>),
    Path(CString),
}

/// A supervisor that was started.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    /// Where its [`Report`]s come from, non-blocking.
    pub(crate) reports: OwnedFd,
    /// A byte lets the program start: by then init has its pidfd. A [`Failure`] comes back, or
    /// nothing but the end once the program runs. Non-blocking.
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

    /// As a shell shows it.
    pub(crate) fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Signaled(signal) => 128 + signal,
        }
    }
}

/// What a supervisor says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Started(i32),
    Ended(Ended),
    /// There is no program, for this errno.
    Failed(i32),
}

/// Why a program is not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    NotFound,
    NotExecutable,
    /// Its directory can't be entered.
    BadDir,
    /// For this errno.
    NotStarted(i32),
}

const REPORT_BYTES: usize = 8;

impl Report {
    fn to_bytes(self) -> [u8; REPORT_BYTES] {
        match self {
            Self::Started(pid) => pack(0, pid),
            Self::Ended(Ended::Exited(code)) => pack(1, code),
            Self::Ended(Ended::Signaled(signal)) => pack(2, signal),
            Self::Failed(errno) => pack(3, errno),
        }
    }

    /// Reads one. `Ok(None)`: the supervisor is gone.
    pub(crate) fn read(reports: impl AsFd) -> rustix::io::Result<Option<Self>> {
        Ok(read_pair(reports)?.map(|(kind, value)| match kind {
            0 => Self::Started(value),
            1 => Self::Ended(Ended::Exited(value)),
            2 => Self::Ended(Ended::Signaled(value)),
            _ => Self::Failed(value),
        }))
    }
}

impl Failure {
    fn to_bytes(self) -> [u8; REPORT_BYTES] {
        match self {
            Self::NotFound => pack(0, 0),
            Self::NotExecutable => pack(1, 0),
            Self::BadDir => pack(2, 0),
            Self::NotStarted(errno) => pack(3, errno),
        }
    }

    /// Reads one. `Ok(None)`: the program runs, or died before it could say anything.
    pub(crate) fn read(go: impl AsFd) -> rustix::io::Result<Option<Self>> {
        Ok(read_pair(go)?.map(|(kind, value)| match kind {
            0 => Self::NotFound,
            1 => Self::NotExecutable,
            2 => Self::BadDir,
            _ => Self::NotStarted(value),
        }))
    }

    /// What execve(2) has answered.
    fn of_exec(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP => Self::NotFound,
            // The program may be there; it is the system that can't.
            Errno::TOOBIG | Errno::NOMEM | Errno::AGAIN | Errno::MFILE | Errno::NFILE => {
                Self::NotStarted(errno.raw_os_error())
            }
            _ => Self::NotExecutable,
        }
    }
}

fn pack(kind: i32, value: i32) -> [u8; REPORT_BYTES] {
    let mut bytes = [0; REPORT_BYTES];
    let (head, tail) = bytes.split_at_mut(REPORT_BYTES / 2);
    head.copy_from_slice(&kind.to_ne_bytes());
    tail.copy_from_slice(&value.to_ne_bytes());
    bytes
}

/// `None`: the other side is gone.
fn read_pair(from: impl AsFd) -> rustix::io::Result<Option<(i32, i32)>> {
    let mut bytes = [0; REPORT_BYTES];
    // A write of 8 bytes is whole or not there.
    if rustix::io::read(from, &mut bytes)? < REPORT_BYTES {
        return Ok(None);
    }
    let [k0, k1, k2, k3, v0, v1, v2, v3] = bytes;
    let number = i32::from_ne_bytes;
    Ok(Some((number([k0, k1, k2, k3]), number([v0, v1, v2, v3]))))
}

/// Starts a supervisor, and a program below it that waits for `go`.
///
/// # Errors
/// No process or no descriptor is to be had.
pub(crate) fn start(rights: Rights, program: &Program<'_>) -> io::Result<Supervisor> {
    let (reports, say) = pipe_with(PipeFlags::CLOEXEC)?;
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (wait, go) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
    rustix::io::ioctl_fionbio(&reports, true)?;
    match spawn::fork()? {
        Fork::Child => supervise(rights, program, &say, &wait),
        Fork::Parent(pid) => {
            // Non-blocking on this side alone: the flag is of the end, not of the pair.
            rustix::io::ioctl_fionbio(&go, true)?;
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
            Ok(Supervisor { pid, pidfd, reports, go })
        }
    }
}

/// The supervisor's life.
fn supervise(rights: Rights, program: &Program<'_>, say: &OwnedFd, wait: &OwnedFd) -> ! {
    let main = match become_supervisor(program).and_then(|()| spawn::fork()) {
        Ok(Fork::Child) => run_program(rights, program, wait),
        Ok(Fork::Parent(pid)) => pid,
        Err(error) => {
            tell(say, Report::Failed(error.raw_os_error().unwrap_or(libc::EIO)));
            spawn::exit_now(1)
        }
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
        // Nobody is reaped before init knows: whoever ends the supervisor in between leaves the
        // program to init, end and all.
        let ended = match spawn::wait_for_ended() {
            Ok(pid) => pid,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_no_children) => spawn::exit_now(0),
        };
        if ended == main
            && let Ok(Some(status)) = peek(main)
        {
            tell(&say, Report::Ended(status));
        }
        // EINTR and ECHILD leave it to the next round.
        let _ = rustix::process::waitpid(Some(ended), WaitOptions::empty());
    }
}

/// How a child has ended, which is left to be reaped.
fn peek(child: Pid) -> rustix::io::Result<Option<Ended>> {
    use rustix::process::{WaitId, WaitIdOptions};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let status = rustix::process::waitid(WaitId::Pid(child), options)?;
    Ok(status.and_then(|status| {
        let exited = status.exit_status().map(Ended::Exited);
        exited.or_else(|| status.terminating_signal().map(Ended::Signaled))
    }))
}

fn become_supervisor(program: &Program<'_>) -> io::Result<()> {
    // What box root may send ends no supervisor, but for SIGKILL.
    spawn::block_all_signals()?;
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    if let Some(terminal) = program.terminal {
        // The supervisor's group, which is the program's too, becomes the one in the foreground.
        rustix::process::ioctl_tiocsctty(terminal)?;
    }
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
    match take_places(program, wait) {
        Ok(()) => {
            if let Ok(wait) = spawn::inherited(WAIT) {
                let failure = match prepare(rights, program, &wait) {
                    Ok(()) => exec(program),
                    Err(failure) => failure,
                };
                let _ = rustix::io::write(&wait, &failure.to_bytes());
            }
        }
        Err(error) => drop(rustix::io::write(wait, &Failure::from(error).to_bytes())),
    }
    spawn::exit_now(EXEC_FAILED)
}

const THIRD: i32 = 3;
const WAIT: i32 = 4;
const BASE: i32 = 5;
const FREE: i32 = 6;

/// Puts every descriptor at its number and closes all others.
fn take_places(program: &Program<'_>, wait: &OwnedFd) -> io::Result<()> {
    let [stdin, stdout, stderr] = program.stdio;
    let base = match &program.dir {
        Dir::Own(dir) | Dir::Payloads { base: Base::Open(dir), .. } => Some(*dir),
        Dir::Payloads { base: Base::Path(_), .. } => None,
    };
    let places = [
        (0, stdin),
        (1, stdout),
        (2, stderr),
        (THIRD, program.third),
        (WAIT, Some(wait.as_fd())),
        (BASE, base),
    ];
    let mut copies = Vec::new();
    // First out of the way, since each may stand where another goes.
    for (place, fd) in places {
        if let Some(fd) = fd {
            copies.push((place, rustix::io::fcntl_dupfd_cloexec(fd, FREE)?));
        }
    }
    // Nothing of init's stays there.
    spawn::close_between(THIRD.cast_unsigned(), BASE.cast_unsigned())?;
    for (place, copy) in copies {
        spawn::place(&copy, place)?;
        // Its number is closed below, with all others.
        std::mem::forget(copy);
    }
    spawn::close_from(FREE.cast_unsigned())?;
    spawn::cloexec_from(WAIT.cast_unsigned())
}

fn prepare(rights: Rights, program: &Program<'_>, wait: &OwnedFd) -> Result<(), Failure> {
    if let Dir::Own(_) = program.dir {
        enter_base()?;
    }
    if rustix::io::read(wait, &mut [0])? == 0 {
        return Err(Failure::NotStarted(libc::EPIPE));
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::setrlimit(Resource::Nofile, program.open_files)?;
    make_room_for_arguments(program)?;
    spawn::default_signals()?;
    become_user(rights, program.ids)?;
    if let Dir::Payloads { base, path } = &program.dir {
        enter(base, path.as_ref())?;
    }
    // Last: the filter may forbid what the steps above need.
    Ok(spawn::install_filter(program.filter)?)
}

/// execve(2) gives arguments and environment a quarter of the stack's limit, their pointers included.
/// A program that has more than fits, but not more than the kernel can ever take, gets a larger limit.
fn make_room_for_arguments(program: &Program<'_>) -> io::Result<()> {
    const PAGES: u64 = 64 * 1024;
    let strings = program.argv.iter().chain(program.env);
    let bytes = |string: &CString| string.as_bytes_with_nul().len() + size_of::<usize>();
    let needed = 4 * (strings.map(bytes).sum::<usize>() as u64 + PAGES);
    let stack = rustix::process::getrlimit(Resource::Stack);
    if stack.current.is_some_and(|current| current < needed) {
        let current = stack.maximum.map_or(needed, |maximum| maximum.min(needed));
        let stack = Rlimit { current: Some(current), ..stack };
        rustix::process::setrlimit(Resource::Stack, stack)?;
    }
    Ok(())
}

fn enter_base() -> io::Result<()> {
    let base = spawn::inherited(BASE)?;
    Ok(rustix::process::fchdir(base)?)
}

fn enter(base: &Base<'_>, path: Option<&CString>) -> Result<(), Failure> {
    let entered = match base {
        Base::Open(_) => enter_base(),
        Base::Path(base) => rustix::process::chdir(base).map_err(io::Error::from),
    };
    // A path that is absolute needs no base.
    let is_absolute = path.is_some_and(|path| path.as_bytes().starts_with(b"/"));
    if entered.is_err() && !is_absolute {
        return Err(Failure::BadDir);
    }
    match path {
        Some(path) => rustix::process::chdir(path).map_err(|_errno| Failure::BadDir),
        None => Ok(()),
    }
}

/// Runs the first of the program's paths that is there. Comes back only when none can be.
fn exec(program: &Program<'_>) -> Failure {
    let mut failure = Failure::NotFound;
    for path in &program.paths {
        let error = spawn::exec(path, &program.argv, program.env);
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        match (Failure::of_exec(errno), errno) {
            (Failure::NotFound, _) => {}
            (_, Errno::ACCESS) => failure = Failure::NotExecutable,
            (found, _) => return found,
        }
    }
    failure
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::NotStarted(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::NotStarted(errno.raw_os_error())
    }
}

/// Real, effective, saved and file system ids, groups and capabilities of `ids`.
pub(crate) fn become_user(rights: Rights, ids: Ids) -> io::Result<()> {
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
            Report::Failed(11),
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
