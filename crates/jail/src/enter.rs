//! What the launcher's child does, in order, until it is the session's init. Every step that fails ends
//! the child; nothing of the box runs before the last one.
//!
//! ```text
//!   setsid, signals, umask
//!   → root: stage → layers → overlay → over / → proc, dev, tmp, workspace → proof → chroot
//!   → host name, lo, sysctls
//!   → wait until all cgroups are joined → cgroup namespace
//!   → user namespace (last of the namespaces) → its limits on further namespaces to 0
//!   → rlimits → bounding set (needs SETPCAP, so before setuid) → no_new_privs → setgroups
//!   → gid, uid → capabilities: exactly init's → proofs
//!   → descriptors → seccomp (last) → exec init
//! ```

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, LinkNameSpaceType, Uid};

use crate::root::{self, INIT_ID, Root, RootParts};
use crate::step::{Step, StepError, broken};
use crate::sys::{self, Instruction};
use crate::wire::{self, Told};

/// What init may do, and therefore the most that anybody in the box may: nobody gains more under
/// no_new_privs. apt-get, dpkg, useradd, su, chroot and setcap work with these.
pub const BOX_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SETFCAP);

/// Least, first and largest receive buffer of a TCP socket. cgroup v1 lets every socket have its first
/// buffer however full the group is: 8,000 connections held 514 MiB above a limit with the kernel's
/// 131072, and 76 MiB with this. A reader that keeps up still gets the largest.
const TCP_RECEIVE_BYTES: &str = "4096 16384 6291456";

/// Preferred victim of the host's memory shortage, long before the daemon.
const OOM_SCORE: &str = "500";

/// Namespaces that a box can't make: each of these is set to 0 in its user namespace.
const NAMESPACE_LIMITS: [&str; 8] = [
    "max_cgroup_namespaces",
    "max_ipc_namespaces",
    "max_mnt_namespaces",
    "max_net_namespaces",
    "max_pid_namespaces",
    "max_time_namespaces",
    "max_user_namespaces",
    "max_uts_namespaces",
];

/// Everything that the child needs, all of it owned by the child alone.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) root: RootParts,
    pub(crate) user_namespace: OwnedFd,
    /// Tells the daemon what happens, and waits for its word. Above the numbers that init gets.
    pub(crate) daemon: OwnedFd,
    /// Descriptors 3, 4 and 5 of init.
    pub(crate) handed_over: [OwnedFd; 3],
}

/// Becomes `init`, the program in a memfd, with system calls filtered by `filter` unless that is empty.
/// Returns only where a step failed.
pub(crate) fn run(
    entry: &Entry,
    filter: &[Instruction],
    init: BorrowedFd<'_>,
) -> Result<Infallible, StepError> {
    leave_launcher()?;
    let root = root::build(&entry.root, entry.user_namespace.as_fd())?;
    set_up_host(&root, entry.root.settings.uid_base)?;
    wait_for_cgroups(entry.daemon.as_fd())?;
    sys::unshare(libc::CLONE_NEWCGROUP).step("make the cgroup namespace")?;
    enter_user_namespace(entry, &root)?;
    drop_privileges()?;
    prove_powerless()?;
    let init = arrange_descriptors(entry, root.null.as_fd(), init)?;
    wire::tell(entry.daemon.as_fd(), &Told::Executes).step("tell the daemon")?;
    if !filter.is_empty() {
        sys::load_seccomp(filter).step("load the seccomp program")?;
    }
    Err(sys::exec_fd(init.as_fd(), c"sandkasten-init")).step("execute init")
}

fn leave_launcher() -> Result<(), StepError> {
    sys::reset_signals().step("reset signals")?;
    rustix::process::setsid().step("start a session")?;
    rustix::process::umask(Mode::empty());
    match sys::fresh_keyring() {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        other => other.step("make a keyring"),
    }
}

/// What only the owner of the namespaces may set, which the box isn't.
fn set_up_host(root: &Root, base: u32) -> Result<(), StepError> {
    rustix::system::sethostname(b"sandbox").step("set the host name")?;
    rustix::system::setdomainname(b"(none)").step("set the domain name")?;
    let sysctls = root.sysctls.as_fd();
    for name in ["all", "default", "lo"] {
        let name = format!("net/ipv6/conf/{name}/disable_ipv6");
        optional(write_file(sysctls, &name, "0")).step("enable IPv6")?;
    }
    sys::interface_up(c"lo").step("bring lo up")?;
    write_file(sysctls, "net/ipv4/ip_unprivileged_port_start", "0").step("free the low ports")?;
    write_file(sysctls, "net/ipv4/tcp_rmem", TCP_RECEIVE_BYTES).step("bound socket buffers")?;
    let groups = format!("{base} {}", base + 65_535);
    write_file(sysctls, "net/ipv4/ping_group_range", &groups).step("allow ping")?;
    write_file(root.proc.as_fd(), "self/oom_score_adj", OOM_SCORE).step("set the oom score")
}

/// A cgroup namespace shows the groups that its maker is in as roots, so all must be joined before.
fn wait_for_cgroups(daemon: BorrowedFd<'_>) -> Result<(), StepError> {
    let mut word = [0; 1];
    match rustix::io::retry_on_intr(|| rustix::io::read(daemon, &mut word)) {
        Ok(1) => Ok(()),
        Ok(_) => Err(StepError { step: "wait for the daemon".to_owned(), errno: libc::EPIPE }),
        Err(errno) => Err(errno).step("wait for the daemon"),
    }
}

/// From here on nothing of the host can be changed: the other namespaces belong to the host's user
/// namespace, where this process has no capability any more.
fn enter_user_namespace(entry: &Entry, root: &Root) -> Result<(), StepError> {
    let namespace = entry.user_namespace.as_fd();
    rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::User))
        .step("enter the user namespace")?;
    for name in NAMESPACE_LIMITS {
        // The directory shows the limits of the user namespace of who looks into it.
        write_file(root.sysctls.as_fd(), &format!("user/{name}"), "0").step("forbid namespaces")?;
    }
    Ok(())
}

fn drop_privileges() -> Result<(), StepError> {
    set_rlimits()?;
    drop_bounding_set().step("drop the bounding set")?;
    rustix::thread::set_no_new_privs(true).step("set no_new_privs")?;
    rustix::thread::set_thread_groups(&[]).step("leave all groups")?;
    let gid = Gid::from_raw(INIT_ID);
    rustix::thread::set_thread_res_gid(gid, gid, gid).step("set the gid")?;
    // No capability goes with this: only leaving uid 0 of the namespace drops any, and the host's root
    // has no uid in it at all.
    let uid = Uid::from_raw(INIT_ID);
    rustix::thread::set_thread_res_uid(uid, uid, uid).step("set the uid")?;
    keep_box_capabilities().step("set the capabilities")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(())
}

/// exec by another uid than 0 keeps ambient capabilities alone. init clears ambient and inheritable
/// ones at once, and each of its children drops what it may not have.
fn keep_box_capabilities() -> io::Result<()> {
    let sets = CapabilitySets {
        effective: BOX_CAPABILITIES,
        permitted: BOX_CAPABILITIES,
        inheritable: BOX_CAPABILITIES,
    };
    rustix::thread::set_capabilities(None, sets)?;
    for capability in BOX_CAPABILITIES.iter() {
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// All that the kernel knows but the box's own.
fn drop_bounding_set() -> io::Result<()> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if BOX_CAPABILITIES.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Err(Errno::INVAL) => break, // the kernel's last one is behind us
            other => other?,
        }
    }
    Ok(())
}

/// Soft and hard limits; a hard limit below them stays, since raising it may not be ours.
const RLIMITS: [(Resource, Option<u64>, Option<u64>); 14] = [
    (Resource::Core, Some(0), Some(0)),
    (Resource::Nofile, Some(16_384), Some(65_536)),
    (Resource::Memlock, Some(8 << 20), Some(8 << 20)),
    (Resource::Msgqueue, Some(819_200), Some(819_200)),
    (Resource::Sigpending, Some(16_384), Some(16_384)),
    (Resource::Nice, Some(0), Some(0)),
    (Resource::Rtprio, Some(0), Some(0)),
    (Resource::Stack, Some(8 << 20), None),
    (Resource::Nproc, None, None),
    (Resource::As, None, None),
    (Resource::Cpu, None, None),
    (Resource::Data, None, None),
    (Resource::Fsize, None, None),
    (Resource::Locks, None, None),
];

fn set_rlimits() -> Result<(), StepError> {
    for (resource, soft, hard) in RLIMITS {
        let maximum = least(rustix::process::getrlimit(resource).maximum, hard);
        let limit = Rlimit { current: least(maximum, soft), maximum };
        rustix::process::setrlimit(resource, limit).step("set resource limits")?;
    }
    Ok(())
}

/// The lower of two limits; `None` is no limit.
fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.into_iter().chain(b).min()
}

/// Tries what must be impossible now, while seccomp doesn't yet answer in the kernel's place.
fn prove_powerless() -> Result<(), StepError> {
    let sets = rustix::thread::capabilities(None).step("read the capabilities")?;
    if sets.permitted != BOX_CAPABILITIES || sets.effective != BOX_CAPABILITIES {
        return Err(broken("prove that init has its capabilities alone"));
    }
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        let Ok(bounding) = rustix::thread::capability_is_in_bounding_set(capability) else { break };
        if bounding != BOX_CAPABILITIES.contains(capability) {
            return Err(broken("prove that the bounding set is the box's"));
        }
    }
    if !rustix::thread::no_new_privs().step("read no_new_privs")? {
        return Err(broken("prove that no_new_privs is set"));
    }
    if !rustix::process::getgroups().step("read the groups")?.is_empty() {
        return Err(broken("prove that no group is left"));
    }
    for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET] {
        if sys::unshare(flag).is_ok() {
            return Err(broken("prove that no namespace can be made"));
        }
    }
    let opened = rustix::mount::fsopen("tmpfs", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC);
    if opened.is_ok() || rustix::system::sethostname(b"x").is_ok() {
        return Err(broken("prove that the host's namespaces are out of reach"));
    }
    Ok(())
}

/// Puts init's descriptors in their places and lets exec close all others. Gives `init` back, above
/// the places.
fn arrange_descriptors(
    entry: &Entry,
    null: BorrowedFd<'_>,
    init: BorrowedFd<'_>,
) -> Result<OwnedFd, StepError> {
    let null = above_low_fds(null)?;
    let [listener, config, spool] =
        entry.handed_over.each_ref().map(|fd| above_low_fds(fd.as_fd()));
    let sources = [&null, &null, &null, &listener?, &config?, &spool?];
    let init = above_low_fds(init)?;
    for (number, source) in (0..).zip(sources) {
        sys::dup_onto(source.as_fd(), number).step("arrange descriptors")?;
    }
    sys::close_range_cloexec(6).step("close descriptors")?;
    Ok(init)
}

/// A copy above the numbers that are about to be overwritten.
pub(crate) fn above_low_fds(fd: BorrowedFd<'_>) -> Result<OwnedFd, StepError> {
    rustix::io::fcntl_dupfd_cloexec(fd, 16).step("arrange descriptors")
}

pub(crate) fn write_file(dir: BorrowedFd<'_>, name: &str, text: &str) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let written = rustix::io::write(&file, text.as_bytes())?;
    if written == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// A file that not every kernel has.
fn optional(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
