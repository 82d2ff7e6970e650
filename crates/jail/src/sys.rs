//! System calls that neither std nor rustix has as safe functions: one call, one block, one reason.

#![expect(unsafe_code, reason = "the only file of this crate that may call the kernel by hand")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// One BPF instruction, laid out as the kernel's `struct sock_filter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// Which side of a fork or clone this is.
#[derive(Debug)]
pub(crate) enum Forked {
    Child,
    Parent { pid: u32, pidfd: OwnedFd },
}

const NO_FLAGS: libc::c_int = 0;

/// libc has it as an int, which it doesn't fit in.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

const SIOCBRADDBR: libc::Ioctl = 0x89a0;
const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;

/// What mount_setattr(2) changes, laid out as the kernel's `struct mount_attr`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct MountAttr {
    pub(crate) set: u64,
    pub(crate) clear: u64,
    pub(crate) propagation: u64,
    /// Descriptor of a user namespace, with `MOUNT_ATTR_IDMAP`.
    pub(crate) user_namespace: u64,
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A child by clone3(2), in the v2 cgroup `cgroup` from its first moment where one is given.
///
/// The child has only the calling thread: with several threads in the caller, locks that others held
/// stay held in the child for ever.
pub(crate) fn clone3(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is a valid `clone_args`, a struct of integers.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | unsigned(libc::CLONE_PIDFD);
    args.pidfd = ptr::from_mut(&mut pidfd).addr() as u64;
    // A sibling tells its parent of its end in the way this process would.
    let is_sibling = flags & unsigned(libc::CLONE_PARENT) != 0;
    args.exit_signal = if is_sibling { 0 } else { unsigned(libc::SIGCHLD) };
    if let Some(group) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = unsigned(group.as_raw_fd());
    }
    // SAFETY: without CLONE_VM the child gets a copy of this address space and of the stack it runs
    // on, so it returns here like after fork(2); the kernel writes only to `pidfd`, which outlives it.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone3, ptr::from_mut(&mut args), size_of_val(&args)) };
    match u32::try_from(check(pid)?) {
        Ok(0) => Ok(Forked::Child),
        Ok(pid) => Ok(Forked::Parent { pid, pidfd: own(pidfd) }),
        Err(_out_of_range) => Err(io::Error::from_raw_os_error(libc::EOVERFLOW)),
    }
}

/// A child by fork(2) of glibc, which keeps the allocator usable in it, and its pidfd.
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: fork(2) takes nothing; the child goes on in its own copy of this address space.
    let pid = check(libc::c_long::from(unsafe { libc::fork() }))?;
    let Some(child) = u32::try_from(pid).ok().filter(|pid| *pid != 0) else {
        return Ok(Forked::Child);
    };
    let pid = rustix::process::Pid::from_raw(child.cast_signed())
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    Ok(Forked::Parent { pid: child, pidfd })
}

/// Ends the process without running destructors or exit handlers, which belong to the parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

/// Changes attributes of the mount that `mount` is the root of (mount_setattr(2)).
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, attr: &MountAttr) -> io::Result<()> {
    // SAFETY: the kernel reads the empty string and `attr`, both of which outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            ptr::from_ref(attr),
            size_of_val(attr),
        )
    };
    check(result).map(drop)
}

/// Gives this process a private copy of the namespaces in `flags`.
pub(crate) fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: unshare(2) takes an integer; none of the callers shares memory or descriptors by it.
    check(libc::c_long::from(unsafe { libc::unshare(flags) })).map(drop)
}

/// Filters every later system call of this process and of all its descendants.
pub(crate) fn load_seccomp(program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_too_long| io::ErrorKind::InvalidInput)?;
    let fprog = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: `fprog` points to `len` instructions of the kernel's own layout, which it only reads.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            NO_FLAGS,
            ptr::from_ref(&fprog),
        )
    };
    check(result).map(drop)
}

/// Replaces this process by the program in `file`, with one argument and an empty environment.
/// Returns only where that failed.
pub(crate) fn exec_fd(file: BorrowedFd<'_>, name: &CStr) -> io::Error {
    let argv = [name.as_ptr(), ptr::null()];
    let envp = [ptr::null::<libc::c_char>()];
    // SAFETY: `argv` and `envp` end with a null pointer and point to strings that outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            file.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    io::Error::last_os_error()
}

/// Marks every descriptor from `first` upwards close-on-exec.
pub(crate) fn close_range_cloexec(first: RawFd) -> io::Result<()> {
    // SAFETY: close_range(2) takes three integers; setting CLOEXEC invalidates no live descriptor, so
    // no `OwnedFd` elsewhere becomes dangling.
    let result = unsafe {
        libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    check(result).map(drop)
}

/// Closes every descriptor from `first` upwards. For a forked child that leaves its parent's values
/// behind for ever: an `OwnedFd` of one of them must never be used or dropped again.
pub(crate) fn close_range(first: RawFd) -> io::Result<()> {
    // SAFETY: the only callers are forked children that end by `exit_now` or exec and keep no `OwnedFd`
    // at or above `first`.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, NO_FLAGS) };
    check(result).map(drop)
}

/// Makes the number `to` a copy of `from` that survives exec.
pub(crate) fn dup_onto(from: BorrowedFd<'_>, to: RawFd) -> io::Result<()> {
    // SAFETY: the only callers are forked children that arrange their low descriptors before exec; no
    // `OwnedFd` of such a number is used afterwards.
    check(libc::c_long::from(unsafe { libc::dup2(from.as_raw_fd(), to) })).map(drop)
}

/// Takes a descriptor that the kernel just gave us, or that a forked child arranged by number.
pub(crate) fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: each caller passes a number that it owns alone.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Sets every signal to its default action and unblocks all.
pub(crate) fn reset_signals() -> io::Result<()> {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: SIG_DFL installs no handler. SIGKILL, SIGSTOP and glibc's own two are refused, which
        // is right: they can't have another action.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    // SAFETY: all-zero is a valid signal set.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads `none`; the old set isn't asked for.
    let result = unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut()) };
    check(libc::c_long::from(result)).map(drop)
}

/// Lets the kernel reap children at once. Their pidfds still tell of their end.
pub(crate) fn ignore_children() {
    // SAFETY: SIG_IGN installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Brings the network interface `name` of this network namespace up.
pub(crate) fn interface_up(name: &CStr) -> io::Result<()> {
    let socket = inet_socket()?;
    // SAFETY: all-zero is a valid `ifreq`: empty name, zero flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.to_bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or_default();
    // SAFETY: SIOCSIFFLAGS reads one `ifreq`, which outlives the call.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, ptr::from_ref(&request)) };
    check(libc::c_long::from(result)).map(drop)
}

/// Adds a bridge to this network namespace.
pub(crate) fn add_bridge(name: &CStr) -> io::Result<()> {
    let socket = inet_socket()?;
    // SAFETY: SIOCBRADDBR reads a string that ends with a null byte and outlives the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCBRADDBR, name.as_ptr()) };
    check(libc::c_long::from(result)).map(drop)
}

fn inet_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )?)
}

/// The version of Landlock that the kernel offers.
pub(crate) fn landlock_version() -> io::Result<libc::c_long> {
    let (no_attributes, no_size) = (ptr::null::<libc::c_void>(), 0_usize);
    // SAFETY: with this flag the kernel reads no memory and makes no descriptor.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            no_attributes,
            no_size,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    })
}

/// Sets the execution domain to plain Linux, address randomisation on.
pub(crate) fn plain_personality() {
    // SAFETY: personality(2) takes an integer.
    unsafe { libc::personality(0) };
}

/// Leaves a real-time or batch scheduling class that the daemon may have been started in.
pub(crate) fn plain_scheduling() -> io::Result<()> {
    // SAFETY: all-zero is a valid `sched_param`, and the only one SCHED_OTHER takes.
    let zero: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel reads `zero`.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const zero) };
    check(libc::c_long::from(result)).map(drop)
}

/// Gives this process an empty session keyring of its own. `ENOSYS` where the kernel has no keys.
pub(crate) fn fresh_keyring() -> io::Result<()> {
    let no_name = ptr::null::<libc::c_char>();
    // SAFETY: KEYCTL_JOIN_SESSION_KEYRING with a null name makes an anonymous keyring.
    let result = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, no_name) };
    check(result).map(drop)
}

/// An int of libc (a flag, a descriptor) as the kernel's 64-bit fields want it.
fn unsigned(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}
