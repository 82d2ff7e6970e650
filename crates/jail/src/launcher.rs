//! The daemon's handle of the launcher, and the conversation about one session.
//!
//! ```text
//!   daemon                          launcher                 child
//!     | -- plan, fds, socket S ------> | clone3                |
//!     | <------ pid, pidfd ----------- |                       |
//!     | joins the v1 cgroups           |                       | builds its root
//!     | -- S: go ----------------------------------------->    | user namespace, privileges
//!     | <- S: executes ------------------------------------    | seccomp, exec init: S closes
//! ```
//!
//! The launcher holds no more than a moment of each request; what takes time happens in the child and
//! here. A child that is given up (S closes early) ends by itself; one that has executed init belongs
//! to nobody: neither the launcher's nor the daemon's end touches it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Signal, WaitId, WaitIdOptions};

use crate::cgroup::Starter;
use crate::fault;
use crate::fork::{self, LauncherProcess};
use crate::plan::Plan;
use crate::root::RootSettings;
use crate::seccomp::SeccompProfile;
use crate::start_time::start_time;
use crate::wire::{self, LAYERS_MAX, Request, Told};

/// Ids above 2^31 are refused by devpts before Linux 6.7.
const UID_BASE_MAX: u32 = (1 << 31) - 65_536;
const RANGE_TOO_HIGH: &str = "a range of user ids ends below 2147483648";

/// Why a session's init could not be started. Nothing of it is left then but its cgroups.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The launcher has ended; only a new daemon gets a new one.
    #[error("the launcher is gone")]
    Gone,
    /// A step failed in the launcher or in its child.
    #[error("{step}")]
    Step {
        step: String,
        #[source]
        source: io::Error,
    },
    /// The plan can't be carried out by any host.
    #[error("{0}")]
    BadPlan(&'static str),
    /// The child ended without a word, killed by something else.
    #[error("the session's first process ended before it was ready")]
    Died,
    /// init was executed and ended at once: something in its box or its configuration is wrong.
    #[error("init ended as soon as it had started")]
    InitEnded,
    #[error("talking to the launcher")]
    Io(#[from] io::Error),
}

/// A running init.
#[derive(Debug)]
pub struct Started {
    pub pidfd: OwnedFd,
    /// The pid of init in the daemon's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks after boot.
    pub start_time: u64,
}

/// The daemon's handle of the launcher. The launcher ends when it is dropped; sessions go on.
#[derive(Debug)]
pub struct Launcher {
    /// `None` only while it is dropped.
    socket: Option<Mutex<OwnedFd>>,
    pidfd: OwnedFd,
}

impl Launcher {
    /// Forks the launcher. Call it while the process has one thread and no secrets: the launcher has a
    /// copy of all its memory.
    ///
    /// # Errors
    /// Where a step of making the launcher's empty root fails; not being root is one.
    pub fn spawn() -> Result<Self, LaunchError> {
        let LauncherProcess { socket, pidfd } = fork::spawn()?;
        let launcher = Self { socket: Some(Mutex::new(socket)), pidfd };
        let hello = wire::hear(launcher.lock()?.as_fd())?;
        match hello {
            Some((Told::Executes, _)) => Ok(launcher),
            Some((Told::Failed { step, errno }, _)) => Err(step_error(step, errno)),
            Some((Told::Cloned { .. }, _)) | None => Err(LaunchError::Gone),
        }
    }

    /// Starts a session's init. Blocks until init has been executed.
    ///
    /// # Errors
    /// [`LaunchError::Step`] names the step that failed. The child has ended whenever this fails.
    pub fn launch(&self, plan: Plan) -> Result<Started, LaunchError> {
        if plan.layers.is_empty() || plan.layers.len() > LAYERS_MAX {
            return Err(LaunchError::BadPlan("an image has 1 to 240 layers"));
        }
        if plan.uid_base > UID_BASE_MAX {
            return Err(LaunchError::BadPlan(RANGE_TOO_HIGH));
        }
        fault::point("launch: clone")?;
        let (ours, theirs) = wire::pair()?;
        let mut fds = vec![
            theirs.as_fd(),
            plan.cgroup.v2.as_fd(),
            plan.user_namespace.as_fd(),
            plan.scratch.as_fd(),
        ];
        fds.extend(plan.workspace.iter().map(AsFd::as_fd));
        fds.extend([plan.listener.as_fd(), plan.config.as_fd(), plan.spool.as_fd()]);
        fds.extend(plan.layers.iter().map(AsFd::as_fd));
        let settings = RootSettings {
            readonly: plan.readonly_rootfs,
            own_workspace: plan.workspace.is_none(),
            uid_base: plan.uid_base,
            tmp_bytes: plan.tmp_bytes,
            shm_bytes: plan.shm_bytes,
        };
        let filtered = plan.seccomp != SeccompProfile::Off;
        let request = Request::Launch { settings, filtered };
        let starter = plan.cgroup.starter.as_ref();
        let (child, joins) = match starter.map(|starter| starter.clone_child(request, &fds)) {
            Some(Ok(child)) => (child, &[][..]),
            // One that has died, for whatever reason, is no reason to fail.
            Some(Err(LaunchError::Gone)) | None => {
                (self.clone_child(request, &fds)?, &plan.cgroup.v1_procs[..])
            }
            Some(Err(error)) => return Err(error),
        };
        drop(fds);
        drop(theirs);
        let start_time = child.kill_unless(child.become_init(ours.as_fd(), joins))?;
        Ok(Started { pidfd: child.pidfd, pid: child.pid, start_time })
    }

    /// A process born in the v2 group `group`, for [`Starter`].
    pub(crate) fn park(&self, group: BorrowedFd<'_>) -> Result<Parked, LaunchError> {
        let (ours, theirs) = wire::pair()?;
        let child = self.clone_child(Request::Park, &[theirs.as_fd(), group])?;
        drop(theirs);
        child.kill_unless(expect_ready(ours.as_fd()))?;
        Ok(Parked { socket: ours, pid: child.pid, pidfd: child.pidfd })
    }

    /// A user namespace that maps 0..65536 to `base`..`base + 65536`, uids and gids.
    ///
    /// It is made by the range's last id, so that what the kernel counts for its maker (inotify
    /// instances, queued signals) is counted for each session apart.
    ///
    /// # Errors
    /// [`LaunchError::Step`] where the kernel or its limits refuse one.
    pub fn user_namespace(&self, base: u32) -> Result<OwnedFd, LaunchError> {
        if base > UID_BASE_MAX {
            return Err(LaunchError::BadPlan(RANGE_TOO_HIGH));
        }
        let owner = base + 65_535;
        fault::point("user namespace")?;
        let (ours, theirs) = wire::pair()?;
        let child = self.clone_child(Request::UserNamespace { owner }, &[theirs.as_fd()])?;
        drop(theirs);
        let namespace = expect_ready(ours.as_fd()).and_then(|()| child.map_ids(base));
        let namespace = child.kill_unless(namespace)?;
        drop(ours); // the child only waits for that
        Ok(namespace)
    }

    fn clone_child(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Child, LaunchError> {
        clone_by(self.lock()?.as_fd(), request, fds)
    }

    fn lock(&self) -> Result<MutexGuard<'_, OwnedFd>, LaunchError> {
        let socket = self.socket.as_ref().ok_or(LaunchError::Gone)?;
        Ok(socket.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.socket = None; // the launcher ends at the end of its requests
        // Reaped here, so that it never stays as a zombie. Where it can't be, nothing is lost.
        let _reaped = rustix::io::retry_on_intr(|| {
            rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)
        });
    }
}

/// A process that waits to become the parent of one init.
#[derive(Debug)]
pub(crate) struct Parked {
    socket: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) pidfd: OwnedFd,
}

impl Parked {
    fn clone_child(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Child, LaunchError> {
        clone_by(self.socket.as_fd(), request, fds)
    }
}

impl Starter {
    fn clone_child(&self, request: Request, fds: &[BorrowedFd<'_>]) -> Result<Child, LaunchError> {
        self.parked.clone_child(request, fds)
    }
}

/// Asks whoever holds the other end of `socket` for a child.
fn clone_by(
    socket: BorrowedFd<'_>,
    request: Request,
    fds: &[BorrowedFd<'_>],
) -> Result<Child, LaunchError> {
    wire::ask(socket, request, fds).map_err(gone_or_io)?;
    match wire::hear(socket).map_err(gone_or_io)? {
        Some((Told::Cloned { pid }, fds)) => {
            let pidfd = fds.into_iter().next().ok_or(LaunchError::Gone)?;
            Ok(Child { pid, pidfd })
        }
        Some((Told::Failed { step, errno }, _)) => Err(step_error(step, errno)),
        Some((Told::Executes, _)) | None => Err(LaunchError::Gone),
    }
}

/// A child that isn't trusted to be alive, and is killed unless it is finished.
struct Child {
    pid: u32,
    pidfd: OwnedFd,
}

impl Child {
    /// Passes a result on; where it is an error, the child has ended before.
    fn kill_unless<T>(&self, result: Result<T, LaunchError>) -> Result<T, LaunchError> {
        result.inspect_err(|_| self.kill())
    }

    fn become_init(&self, socket: BorrowedFd<'_>, joins: &[OwnedFd]) -> Result<u64, LaunchError> {
        fault::point("launch: join cgroups")?;
        if let Err(error) = self.join_v1(joins) {
            // Most likely it has failed and ended meanwhile. What it said comes first then.
            self.kill();
            expect_ready(socket).map_err(|said| match said {
                LaunchError::Step { .. } => said,
                LaunchError::Died
                | LaunchError::InitEnded
                | LaunchError::Gone
                | LaunchError::BadPlan(_)
                | LaunchError::Io(_) => error,
            })?;
            return Err(LaunchError::Died);
        }
        fault::point("launch: go")?;
        // Where the child has failed already, the word can't be sent; what it said still can be read.
        let went = wire::send(socket, &[1], &[]);
        expect_ready(socket)?;
        went?;
        match wire::hear(socket)? {
            None => self.start_time(), // exec has closed the child's end
            Some((Told::Failed { step, errno }, _)) => Err(step_error(step, errno)),
            Some(_) => Err(LaunchError::Died),
        }
    }

    /// Each write is the kernel's confirmation. This takes a grace period of the kernel (8 ms) unless
    /// another session has just done it; the child goes on meanwhile.
    fn join_v1(&self, joins: &[OwnedFd]) -> Result<(), LaunchError> {
        for procs in joins {
            let written = File::from(procs.try_clone()?).write_all(self.pid.to_string().as_bytes());
            written
                .map_err(|source| LaunchError::Step { step: "join a v1 cgroup".into(), source })?;
        }
        Ok(())
    }

    fn start_time(&self) -> Result<u64, LaunchError> {
        let start_time = start_time(self.pid);
        if self.has_ended()? {
            return Err(LaunchError::InitEnded);
        }
        start_time?.ok_or(LaunchError::Died)
    }

    /// Opens the child's user namespace and writes its maps.
    fn map_ids(&self, base: u32) -> Result<OwnedFd, LaunchError> {
        let step = |step: &str, source| LaunchError::Step { step: step.into(), source };
        let map = format!("0 {base} 65536\n");
        for file in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{}/{file}", self.pid), &map)
                .map_err(|e| step("map the ids of a user namespace", e))?;
        }
        let namespace = File::open(format!("/proc/{}/ns/user", self.pid))
            .map_err(|e| step("open a user namespace", e))?;
        // Alive until now means that the pid was the child's all the time.
        if self.has_ended()? { Err(LaunchError::Died) } else { Ok(namespace.into()) }
    }

    fn has_ended(&self) -> io::Result<bool> {
        self.wait_for_end(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    fn wait_for_end(&self, timeout: Option<&Timespec>) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, timeout))?;
        Ok(ready > 0)
    }

    fn kill(&self) {
        // It may have ended by itself; what matters is that it has when this returns.
        let _sent = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ended = self.wait_for_end(None);
    }
}

/// Waits until the child has nothing left to do that can fail but exec.
fn expect_ready(socket: BorrowedFd<'_>) -> Result<(), LaunchError> {
    match wire::hear(socket)? {
        Some((Told::Executes, _)) => Ok(()),
        Some((Told::Failed { step, errno }, _)) => Err(step_error(step, errno)),
        Some((Told::Cloned { .. }, _)) | None => Err(LaunchError::Died),
    }
}

fn step_error(step: String, errno: i32) -> LaunchError {
    LaunchError::Step { step, source: io::Error::from_raw_os_error(errno) }
}

fn gone_or_io(error: io::Error) -> LaunchError {
    let gone = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    if gone.contains(&error.kind()) { LaunchError::Gone } else { LaunchError::Io(error) }
}
