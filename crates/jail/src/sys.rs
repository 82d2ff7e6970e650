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

/// Attributes of a file beside its mode, laid out as the kernel's `struct fsxattr`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct FileAttributes {
    flags: u32,
    extent_bytes: u32,
    extents: u32,
    project: u32,
    cow_extent_bytes: u32,
    pad: [u8; 8],
}

const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f;
const FS_IOC_FSSETXATTR: libc::Ioctl = 0x401c_5820;
/// What is made below gets the directory's project.
const INHERIT_PROJECT: u32 = 0x200;

/// The quota project of a file or directory; 0 is none.
pub(crate) fn project_of(file: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(file_attributes(file)?.project)
}

fn file_attributes(file: BorrowedFd<'_>) -> io::Result<FileAttributes> {
    let mut attributes = FileAttributes::default();
    let to = ptr::from_mut(&mut attributes);
    // SAFETY: the kernel writes one `fsxattr`, for which there is room.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR, to) };
    check(libc::c_long::from(result)).map(|_| attributes)
}

/// Whether what is made in a directory gets its project. A file can't have that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Inherit {
    Yes,
    No,
}

/// Puts a file into a quota project.
pub(crate) fn set_project(file: BorrowedFd<'_>, project: u32, inherit: Inherit) -> io::Result<()> {
    let mut attributes = FileAttributes { project, ..file_attributes(file)? };
    match inherit {
        Inherit::Yes => attributes.flags |= INHERIT_PROJECT,
        Inherit::No => attributes.flags &= !INHERIT_PROJECT,
    }
    let from = ptr::from_ref(&attributes);
    // SAFETY: the kernel reads one `fsxattr`, which outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSSETXATTR, from) };
    check(libc::c_long::from(result)).map(drop)
}

/// What a project may have and has, laid out as the kernel's `struct if_dqblk`. Limits in KiB.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct ProjectQuota {
    pub(crate) kib_max: u64,
    pub(crate) kib_soft: u64,
    pub(crate) bytes: u64,
    pub(crate) inodes_max: u64,
    pub(crate) inodes_soft: u64,
    pub(crate) inodes: u64,
    pub(crate) bytes_time: u64,
    pub(crate) inodes_time: u64,
    pub(crate) valid: u32,
    pub(crate) pad: u32,
}

const Q_GETQUOTA: libc::c_int = 0x0080_0007;
const Q_SETQUOTA: libc::c_int = 0x0080_0008;
const PROJECT_QUOTA: libc::c_int = 2;
/// The limits of a [`ProjectQuota`] are to be set, and nothing else.
pub(crate) const LIMITS_VALID: u32 = 1 | 4;

/// What is written down for a project on the file system that `dir` lies on.
pub(crate) fn project_quota(dir: BorrowedFd<'_>, project: u32) -> io::Result<ProjectQuota> {
    let mut quota = ProjectQuota::default();
    quotactl(dir, Q_GETQUOTA, project, &mut quota)?;
    Ok(quota)
}

pub(crate) fn set_project_quota(
    dir: BorrowedFd<'_>,
    project: u32,
    mut quota: ProjectQuota,
) -> io::Result<()> {
    quotactl(dir, Q_SETQUOTA, project, &mut quota)
}

fn quotactl(
    dir: BorrowedFd<'_>,
    command: libc::c_int,
    project: u32,
    quota: &mut ProjectQuota,
) -> io::Result<()> {
    // SAFETY: the kernel reads or writes one `if_dqblk`, which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            dir.as_raw_fd(),
            command << 8 | PROJECT_QUOTA,
            project,
            ptr::from_mut(quota),
        )
    };
    check(result).map(drop)
}

/// A loop device's file and flags, laid out as the kernel's `struct loop_info64`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    key: [u8; 32],
    init: [u64; 2],
}

/// Laid out as the kernel's `struct loop_config`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
/// The device lets its file go when the last that has it open or mounted has gone.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const EXT4_IOC_RESIZE_FS: libc::Ioctl = 0x4008_6610;

/// The file behind a loop device, as its device and inode. `ENXIO`: there is none.
pub(crate) fn loop_file(device: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    // SAFETY: all-zero is a valid `loop_info64`, a struct of integers.
    let mut info: LoopInfo = unsafe { std::mem::zeroed() };
    let to = ptr::from_mut(&mut info);
    // SAFETY: the kernel writes one `loop_info64`, for which there is room.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, to) };
    check(libc::c_long::from(result)).map(|_| (info.device, info.inode))
}

/// The number of a loop device without a file; it may have one a moment later.
pub(crate) fn loop_free(control: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the call takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    let number = check(libc::c_long::from(number))?;
    u32::try_from(number).map_err(|_out_of_range| io::ErrorKind::InvalidData.into())
}

/// Gives a loop device its file, to be let go with the device's last user. `EBUSY`: it has one.
pub(crate) fn loop_attach(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: all-zero is a valid `loop_config`, a struct of integers.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = file.as_raw_fd().cast_unsigned();
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    let from = ptr::from_ref(&config);
    // SAFETY: the kernel reads one `loop_config`, which outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, from) };
    check(libc::c_long::from(result)).map(drop)
}

/// Makes a loop device as large as its file is by now.
pub(crate) fn loop_grow(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY) };
    check(libc::c_long::from(result)).map(drop)
}

/// Makes a mounted ext4, which `dir` lies on, as large as `blocks` of its blocks.
pub(crate) fn ext4_grow(dir: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
    // SAFETY: the kernel reads one number, which outlives the call.
    let result =
        unsafe { libc::ioctl(dir.as_raw_fd(), EXT4_IOC_RESIZE_FS, ptr::from_ref(&blocks)) };
    check(libc::c_long::from(result)).map(drop)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn layouts_are_the_kernels() {
        assert_eq!(size_of::<FileAttributes>(), 28);
        assert_eq!(size_of::<ProjectQuota>(), 72);
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
