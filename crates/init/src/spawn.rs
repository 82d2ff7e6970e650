//! The system calls that rustix does not wrap safely: the only `unsafe` of this crate.
//!
//! One call a function, nothing decided here. init has one thread, so a fork copies a process in
//! which no lock is held, and the child may run any code.

#![expect(unsafe_code, reason = "fork, exec and the calls around them have no safe wrapper")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::Pid;

/// Which side of a fork runs.
#[derive(Debug)]
pub(crate) enum Fork {
    Child,
    Parent(Pid),
}

/// Forks. The child owns copies of all descriptors; it ends by [`exit_now`] or [`exec`].
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: init has one thread, so the child's memory is whole: no lock is held by a thread that
    // the fork left behind.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(Fork::Child),
        pid => Pid::from_raw(pid).filter(|_| pid > 0).map(Fork::Parent).ok_or_else(last_error),
    }
}

/// Ends the process at once: no destructors, no buffers. For children of [`fork`].
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) takes an integer and does not return; what it skips is ours alone.
    unsafe { libc::_exit(code) }
}

/// Replaces the program. Comes back only when it fails.
pub(crate) fn exec(program: &CString, argv: &[CString], env: &[CString]) -> io::Error {
    let argv = pointers(argv);
    let env = pointers(env);
    // SAFETY: both arrays end with a null pointer and point into strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    last_error()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain(Some(std::ptr::null())).collect()
}

/// Takes a descriptor that init was started with.
///
/// # Errors
/// It isn't open.
pub(crate) fn inherited(raw: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_GETFD reads a flag of an integer that may or may not name a descriptor.
    let flags = unsafe { libc::fcntl(raw, libc::F_GETFD) };
    if flags < 0 {
        return Err(last_error());
    }
    // SAFETY: the descriptor is open, and each of the inherited numbers is taken once, at start,
    // before any other descriptor is made; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Makes every descriptor from `first` on close-on-exec.
pub(crate) fn cloexec_from(first: u32) -> io::Result<()> {
    close_range((first, u32::MAX), libc::CLOSE_RANGE_CLOEXEC)
}

/// Closes every descriptor from `first` on. For children of [`fork`], which never drop the owners.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    close_range((first, u32::MAX), 0)
}

/// Closes the descriptors from `first` up to `last`, as [`close_from`] does.
pub(crate) fn close_between(first: u32, last: u32) -> io::Result<()> {
    close_range((first, last), 0)
}

fn close_range((first, last): (u32, u32), flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: close_range(2) takes three integers. With flags 0 it is called in a child alone, whose
    // `OwnedFd`s are never used or dropped again.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Puts `fd` at the number `to` of this process.
pub(crate) fn place(fd: impl AsFd, to: RawFd) -> io::Result<()> {
    // SAFETY: called in a child of fork alone, which drops no owner of the number it replaces.
    let done = unsafe { libc::dup2(fd.as_fd().as_raw_fd(), to) };
    if done == to { Ok(()) } else { Err(last_error()) }
}

/// User id that file system access is judged by. Whether it was set is not told by the kernel:
/// callers read it back.
pub(crate) fn set_fs_uid(uid: u32) -> u32 {
    // SAFETY: setfsuid(2) takes an integer and changes this thread's credentials alone.
    let before = unsafe { libc::syscall(libc::SYS_setfsuid, uid) };
    u32::try_from(before).unwrap_or(u32::MAX)
}

/// The group's counterpart of [`set_fs_uid`].
pub(crate) fn set_fs_gid(gid: u32) -> u32 {
    // SAFETY: setfsgid(2) takes an integer and changes this thread's credentials alone.
    let before = unsafe { libc::syscall(libc::SYS_setfsgid, gid) };
    u32::try_from(before).unwrap_or(u32::MAX)
}

/// Blocks SIGCHLD and gives a descriptor that tells when it comes.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    let set = signal_set(Some(libc::SIGCHLD));
    set_mask(libc::SIG_BLOCK, &set)?;
    // SAFETY: the set is a live, initialised value; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Blocks every signal that can be blocked.
pub(crate) fn block_all_signals() -> io::Result<()> {
    let mut set = signal_set(None);
    // SAFETY: fills a live set.
    unsafe { libc::sigfillset(&raw mut set) };
    set_mask(libc::SIG_SETMASK, &set)
}

/// No signal blocked, each with its default effect.
pub(crate) fn default_signals() -> io::Result<()> {
    const SIGNALS: libc::c_int = 64;
    // As the kernel has it: handler, flags, restorer, mask. All zeros is SIG_DFL.
    let default = [0u64; 4];
    for signal in 1..=SIGNALS {
        // SAFETY: the kernel reads 32 live bytes and writes none. By the system call, since the C
        // library refuses the two signals that it keeps for itself, which may be ignored by
        // inheritance. SIGKILL and SIGSTOP answer EINVAL, which changes nothing.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                std::ptr::null_mut::<u64>(),
                size_of::<u64>(),
            )
        };
    }
    set_mask(libc::SIG_SETMASK, &signal_set(None))
}

fn set_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the set is a live, initialised value; the old mask isn't asked for.
    let done = unsafe { libc::sigprocmask(how, set, std::ptr::null_mut()) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

fn signal_set(signal: Option<libc::c_int>) -> libc::sigset_t {
    // SAFETY: sigset_t is an array of integers, for which all zeros is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: empties a live set.
    unsafe { libc::sigemptyset(&raw mut set) };
    if let Some(signal) = signal {
        // SAFETY: adds a valid signal number to a live set.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// Installs a seccomp program, 8 bytes an instruction as in `struct sock_filter`. Nothing where it
/// is empty.
pub(crate) fn install_filter(program: &[u8]) -> io::Result<()> {
    if program.is_empty() {
        return Ok(());
    }
    let (instructions, []) = program.as_chunks::<8>() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let mut filter: Vec<libc::sock_filter> = instructions
        .iter()
        .map(|&[c0, c1, jt, jf, k0, k1, k2, k3]| libc::sock_filter {
            code: u16::from_ne_bytes([c0, c1]),
            jt,
            jf,
            k: u32::from_ne_bytes([k0, k1, k2, k3]),
        })
        .collect();
    let len = u16::try_from(filter.len()).map_err(|_too_many| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: the program points to `len` instructions that live until the call has copied them.
    let done =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Signals a process by its descriptor, with any signal there is.
pub(crate) fn signal(pidfd: impl AsFd, signal: i32) -> io::Result<()> {
    let pidfd = pidfd.as_fd().as_raw_fd();
    // SAFETY: pidfd_send_signal(2) takes integers and a null pointer, which it does not read.
    let done = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd,
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Signals every process of a group, with any signal there is.
pub(crate) fn signal_group(group: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: kill(2) takes integers.
    let done = unsafe { libc::kill(-group.as_raw_pid(), signal) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

/// Waits until a child has ended, and leaves it to be reaped.
///
/// # Errors
/// There is no child.
pub(crate) fn wait_for_ended() -> io::Result<Pid> {
    // SAFETY: siginfo_t is integers and pointers, for which all zeros is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOWAIT;
    // SAFETY: waitid(2) writes to a live value of its own type.
    let done = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) };
    if done != 0 {
        return Err(last_error());
    }
    // SAFETY: waitid has filled it for a child, which has this field.
    let pid = unsafe { info.si_pid() };
    Pid::from_raw(pid).ok_or_else(|| io::ErrorKind::Interrupted.into())
}

/// Process id of a connection's other end as this pid namespace sees it: 0 outside of it.
pub(crate) fn peer_pid(socket: impl AsFd) -> io::Result<i32> {
    let mut cred = libc::ucred { pid: -1, uid: 0, gid: 0 };
    let size = size_of::<libc::ucred>();
    let mut length = libc::socklen_t::try_from(size).map_err(|_never| io::ErrorKind::Other)?;
    // SAFETY: both pointers are to live values, and `length` is the size of the first.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut length,
        )
    };
    if done == 0 { Ok(cred.pid) } else { Err(last_error()) }
}

fn last_error() -> io::Error {
    io::Error::last_os_error()
}
