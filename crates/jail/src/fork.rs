//! The launcher process: forked early, single-threaded, in an empty read-only root of its own mount
//! namespace, with five descriptors. It clones what it is asked for until its socket closes.
//!
//! It knows no configuration and opens no file after its start. Its children are reaped by the kernel
//! (`SIGCHLD` is ignored); a child's own end, or the launcher's, changes nothing for the others. When
//! the launcher ends, its children go on below the host's init, which reaps them.

use std::convert::Infallible;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};
use rustix::thread::{Gid, Uid};

use crate::enter::{self, Entry, above_low_fds};
use crate::init_binary::INIT;
use crate::memfd;
use crate::root::{RootParts, RootSettings, STAGE};
use crate::seccomp::{SeccompProfile, init_filter};
use crate::step::{Step, StepError, broken};
use crate::sys::{self, Forked, Instruction, MountAttr};
use crate::wire::{self, Request, Told};

/// The running launcher, as its parent sees it.
#[derive(Debug)]
pub(crate) struct LauncherProcess {
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: OwnedFd,
}

/// Descriptors of the launcher beside 0, 1 and 2, `/dev/null`.
const SOCKET: i32 = 3;
const PROGRAM: i32 = 4;

/// Namespaces made with the child. The cgroup namespace waits until all cgroups are joined, the user
/// namespace is joined last.
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS;

/// Forks the launcher. What it says first on the socket is `Executes` or `Failed`.
pub(crate) fn spawn() -> io::Result<LauncherProcess> {
    let (ours, theirs) = wire::pair()?;
    // Made here, where allocating is surely safe even if the caller has threads.
    let filter = init_filter(SeccompProfile::Mvp);
    match sys::fork()? {
        Forked::Parent { pidfd, .. } => Ok(LauncherProcess { socket: ours, pidfd }),
        Forked::Child => {
            // Its place first: errors of the steps that arrange the others are told through it.
            if sys::dup_onto(theirs.as_fd(), SOCKET).is_err() {
                sys::exit_now(1);
            }
            let socket = sys::own(SOCKET);
            never_return(socket.as_fd(), || {
                prepare()?;
                let program = sys::own(PROGRAM);
                Cloner::launcher(&filter, program.as_fd()).serve(socket.as_fd())
            })
        }
    }
}

/// Ends this process with what `run` says, also where it panics: in a forked child, unwinding would
/// go on as if it were the parent.
pub(crate) fn never_return(
    socket: BorrowedFd<'_>,
    run: impl FnOnce() -> Result<Infallible, StepError>,
) -> ! {
    let error = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(never)) => match never {},
        Ok(Err(error)) => error,
        Err(_panic) => broken("go on after a panic"),
    };
    // Where nobody listens any more, nobody needs to know.
    drop(wire::tell(socket, &error.into()));
    sys::exit_now(1)
}

/// Leaves everything of the daemon behind.
fn prepare() -> Result<(), StepError> {
    sys::reset_signals().step("reset signals")?;
    sys::ignore_children();
    // Out of the terminal's foreground group: Ctrl-C is for the daemon.
    rustix::process::setsid().step("start a session")?;
    rustix::thread::set_name(c"sk-launcher").step("set the name")?;
    sys::plain_personality();
    // What the daemon was given on purpose (nice, a real-time class) isn't for its sessions. Where it
    // may not be changed, it stays.
    let _class = sys::plain_scheduling();
    let _nice = rustix::process::setpriority_process(None, 0);
    place_descriptors()?;
    enter_empty_root()?;
    sys::close_range_cloexec(SOCKET).step("keep descriptors")?;
    // Whatever the daemon had open, and nothing that a value in this process stands for.
    sys::close_range(PROGRAM + 1).step("close descriptors")
}

/// Makes 0, 1 and 2 `/dev/null`, and [`PROGRAM`] init's memfd.
fn place_descriptors() -> Result<(), StepError> {
    let program = memfd::program("sandkasten-init", INIT).step("make init's memfd")?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .step("open /dev/null")?;
    let (high_program, high_null) = (above_low_fds(program.as_fd())?, above_low_fds(null.as_fd())?);
    drop((program, null)); // before their numbers are overwritten
    for (fd, number) in
        [(&high_null, 0), (&high_null, 1), (&high_null, 2), (&high_program, PROGRAM)]
    {
        sys::dup_onto(fd.as_fd(), number).step("arrange descriptors")?;
    }
    Ok(())
}

/// Clones what it is asked for: the launcher many times, a starter once.
struct Cloner<'a> {
    filter: &'a [Instruction],
    program: BorrowedFd<'a>,
    /// Namespaces that each init gets with its birth.
    namespaces: i32,
    /// `CLONE_PARENT` for a starter: init is the launcher's child either way.
    relation: i32,
}

impl<'a> Cloner<'a> {
    fn launcher(filter: &'a [Instruction], program: BorrowedFd<'a>) -> Self {
        Self { filter, program, namespaces: NAMESPACES, relation: 0 }
    }

    fn serve(&self, socket: BorrowedFd<'_>) -> Result<Infallible, StepError> {
        wire::tell(socket, &Told::Executes).step("say hello")?;
        while let Some((bytes, fds)) = wire::receive(socket).step("wait for a request")? {
            self.answer(&bytes, fds, socket)?;
        }
        sys::exit_now(0)
    }

    /// Waits in the groups that the daemon has put it into, for a launch to come. init inherits the
    /// groups, and so no request waits for the kernel to move a process.
    fn serve_once(&self, socket: BorrowedFd<'_>) -> Result<Infallible, StepError> {
        rustix::thread::set_name(c"sk-starter").step("set the name")?;
        // The dearest of all namespaces is made ahead as well.
        sys::unshare(libc::CLONE_NEWNET).step("make the network namespace")?;
        let once = Cloner {
            namespaces: self.namespaces & !libc::CLONE_NEWNET,
            relation: libc::CLONE_PARENT,
            ..*self
        };
        wire::tell(socket, &Told::Executes).step("say hello")?;
        if let Some((bytes, fds)) = wire::receive(socket).step("wait for a request")? {
            once.answer(&bytes, fds, socket)?;
        }
        sys::exit_now(0)
    }

    fn answer(
        &self,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
        socket: BorrowedFd<'_>,
    ) -> Result<(), StepError> {
        let answered = match Request::from_bytes(bytes) {
            Some(request) => self.clone_for(request, fds, socket),
            None => Err(broken("understand a request")),
        };
        match answered {
            Ok(()) => Ok(()),
            Err(error) => wire::tell(socket, &error.into()).step("answer a request"),
        }
    }

    fn clone_for(
        &self,
        request: Request,
        fds: Vec<OwnedFd>,
        socket: BorrowedFd<'_>,
    ) -> Result<(), StepError> {
        let mut fds = fds.into_iter();
        let daemon = next(&mut fds)?;
        let (flags, cgroup) = match request {
            Request::Launch { .. } => (self.namespaces | self.relation, Some(next(&mut fds)?)),
            Request::UserNamespace { .. } => (0, None),
            Request::Park => (0, Some(next(&mut fds)?)),
        };
        let flags = u64::from(flags.cast_unsigned());
        match sys::clone3(flags, cgroup.as_ref().map(AsFd::as_fd)).step("clone")? {
            Forked::Parent { pid, pidfd } => {
                wire::tell_cloned(socket, pid, pidfd.as_fd()).step("answer a request")
            }
            Forked::Child => never_return(daemon.as_fd(), || match request {
                Request::Launch { settings, filtered } => {
                    let filter = if filtered { self.filter } else { &[] };
                    let entry = entry(settings, daemon.as_fd(), fds)?;
                    enter::run(&entry, filter, self.program)
                }
                Request::UserNamespace { owner } => hold_user_namespace(owner, daemon.as_fd()),
                Request::Park => self.serve_once(daemon.as_fd()),
            }),
        }
    }
}

/// The child's part of a launch request, in the order that the daemon sends.
fn entry(
    settings: RootSettings,
    daemon: BorrowedFd<'_>,
    mut fds: impl Iterator<Item = OwnedFd>,
) -> Result<Entry, StepError> {
    let user_namespace = next(&mut fds)?;
    let scratch = next(&mut fds)?;
    let workspace = if settings.own_workspace { None } else { Some(next(&mut fds)?) };
    let handed_over = [next(&mut fds)?, next(&mut fds)?, next(&mut fds)?];
    let root = RootParts { layers: fds.collect(), scratch, workspace, settings };
    Ok(Entry { root, user_namespace, daemon: above_low_fds(daemon)?, handed_over })
}

fn next(fds: &mut impl Iterator<Item = OwnedFd>) -> Result<OwnedFd, StepError> {
    fds.next().ok_or_else(|| broken("find all descriptors of a request"))
}

/// Makes a user namespace owned by the host id `owner`, and keeps it until the daemon has opened it.
/// Making it needs no capability, but some hosts ask for one, so all are kept.
fn hold_user_namespace(owner: u32, daemon: BorrowedFd<'_>) -> Result<Infallible, StepError> {
    let capabilities = rustix::thread::capabilities(None).step("read the capabilities")?;
    rustix::thread::set_keep_capabilities(true).step("keep the capabilities")?;
    let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
    rustix::thread::set_thread_res_gid(gid, gid, gid).step("set the gid")?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).step("set the uid")?;
    rustix::thread::set_capabilities(None, capabilities).step("keep the capabilities")?;
    sys::unshare(libc::CLONE_NEWUSER).step("make a user namespace")?;
    // Out of reach for the namespace's owner: the daemon alone writes its maps.
    wire::tell(daemon, &Told::Executes).step("tell the daemon")?;
    let gone = wire::receive(daemon).step("wait for the daemon")?;
    drop(gone);
    sys::exit_now(0)
}

/// An empty read-only tmpfs as the root of a mount namespace of its own. Its one directory is where
/// children mount their stage.
fn enter_empty_root() -> Result<(), StepError> {
    sys::unshare(libc::CLONE_NEWNS).step("make the mount namespace")?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).step("make the mounts private")?;
    let root = empty_root().step("make the empty root")?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&root, "", CWD, "/proc", flags).step("mount the empty root")?;
    rustix::process::fchdir(&root).step("enter the empty root")?;
    rustix::process::pivot_root(".", ".").step("enter the empty root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).step("leave the host's root")?;
    rustix::process::chdir("/").step("enter the empty root")?;
    let read_only = MountAttr { set: libc::MOUNT_ATTR_RDONLY, ..MountAttr::default() };
    sys::mount_setattr(root.as_fd(), &read_only).step("make the root read-only")
}

fn empty_root() -> io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in [("size", "16k"), ("nr_inodes", "8"), ("mode", "0755")] {
        rustix::mount::fsconfig_set_string(fs.as_fd(), name, value)?;
    }
    rustix::mount::fsconfig_create(fs.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let root = rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let stage = CString::new(STAGE)?;
    rustix::fs::mkdirat(&root, &stage, Mode::from_raw_mode(0o700))?;
    Ok(root)
}
