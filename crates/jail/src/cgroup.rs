//! Resource limits: one group a session, over cgroup v1, v2 and hybrids of both.
//!
//! ```text
//!   v2   …/sandkasten-<tag>/<session>     always: processes are born into it, killed and frozen by it
//!   v1   …/sandkasten-<tag>/<session>     for each of memory, cpu, pids that v2 doesn't have
//! ```
//!
//! Invariants: a group exists with all its limits, written and read back, or not at all; no group that
//! isn't ours is changed, but for controllers handed down to our parent group; groups are found again
//! by name, nothing is remembered elsewhere. Where our groups go: see `host`.

mod files;
mod host;
mod limits;
mod starter;
mod trial;
mod trial_child;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::fault;
use files::{keyed, keyed_now, number, open_dir, open_for_writing, read, write};
use host::Host;
use limits::Level;
pub use starter::Starter;
pub(crate) use trial::{Trial, trials};

/// How long [`Cgroup::remove`] waits for processes that are being killed.
const EMPTY_TIMEOUT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The limits of one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CgroupLimits {
    pub memory_bytes: u64,
    /// Cores; 0.5 is half of one.
    pub cpu_cores: f64,
    pub pids: u64,
}

/// Why a group could not be made. Nothing of it is left then.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No mounted hierarchy has the controller.
    #[error("no cgroup hierarchy has the controller `{0}`")]
    NoController(&'static str),
    /// The cgroup2 hierarchy can't be reached.
    #[error("the cgroup2 hierarchy can't be opened")]
    NoV2 {
        #[source]
        source: io::Error,
    },
    /// A limit was accepted but doesn't hold.
    #[error("{file} is `{found}` after writing `{written}`")]
    NotHeld { file: String, written: String, found: String },
    #[error("{what}")]
    Io {
        what: String,
        #[source]
        source: io::Error,
    },
}

/// What the launcher needs to put a process into a group before it runs anything.
#[derive(Debug)]
pub struct CgroupFds {
    /// Directory of the v2 group, for `CLONE_INTO_CGROUP`.
    pub v2: OwnedFd,
    /// `cgroup.procs` of each v1 group, open for writing.
    pub v1_procs: Vec<OwnedFd>,
    /// A process that is in the v1 groups already, whose clones are too.
    pub starter: Option<Starter>,
}

/// What a group uses now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    pub cpu_usec: u64,
    pub pids: u64,
}

/// What happened in a group since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Events {
    /// Processes of the group killed for want of memory, by whichever limit.
    pub oom_kills: u64,
    /// Forks that failed at the limit of processes.
    pub fork_fails: u64,
    /// Those of `oom_kills` that weren't the group's own limit: the one over all sessions, or the host.
    pub host_oom_kills: u64,
}

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

/// A group directory with the controllers that limit there.
#[derive(Debug)]
struct Group {
    dir: OwnedFd,
    controllers: Vec<Controller>,
}

/// The same group in every hierarchy that we use.
#[derive(Debug)]
struct Groups {
    v2: Group,
    v1: Vec<Group>,
}

impl Groups {
    /// `group` is empty for these groups, or `NAME/` for a group below them.
    fn usage(&self, group: &str) -> Usage {
        let file = |name: &str| format!("{group}{name}");
        let (memory, memory_version) = self.of(Controller::Memory);
        let (memory_bytes, memory_peak_bytes) = match memory_version {
            Version::V1 => ("memory.usage_in_bytes", "memory.max_usage_in_bytes"),
            Version::V2 => ("memory.current", "memory.peak"),
        };
        let (pids, _) = self.of(Controller::Pids);
        Usage {
            memory_bytes: number(memory, &file(memory_bytes)),
            memory_peak_bytes: number(memory, &file(memory_peak_bytes)),
            // v2 counts time in every group, with the controller or without.
            cpu_usec: keyed(self.v2.dir.as_fd(), &file("cpu.stat"), "usage_usec"),
            pids: number(pids, &file("pids.current")),
        }
    }

    /// As [`usage`](Self::usage).
    fn events(&self, group: &str) -> Events {
        let file = |name: &str| format!("{group}{name}");
        let (memory, version) = self.of(Controller::Memory);
        let (oom_kills, host_oom_kills) = match version {
            Version::V1 => {
                let kills = keyed(memory, &file("memory.oom_control"), "oom_kill");
                let is_own = || {
                    let (limit, peak) = ("memory.limit_in_bytes", "memory.max_usage_in_bytes");
                    let of = |name: &str| number(memory, &file(name));
                    v1_limit_was_reached(of(limit), of(peak))
                };
                (kills, if kills == 0 || is_own() { 0 } else { kills })
            }
            Version::V2 => {
                let kills = keyed(memory, &file("memory.events"), "oom_kill");
                let own = || keyed(memory, &file("memory.events"), "oom");
                (kills, if kills == 0 { 0 } else { kills.saturating_sub(own()) })
            }
        };
        let (pids, _) = self.of(Controller::Pids);
        Events { oom_kills, fork_fails: keyed(pids, &file("pids.events"), "max"), host_oom_kills }
    }
}

/// The files of a session's counters, open: they are read at both ends of every command, and to open
/// them costs more than to read them.
#[derive(Debug)]
pub struct Counters {
    memory: OwnedFd,
    pids: OwnedFd,
}

/// The host's hierarchies, and the group of ours that holds all sessions.
#[derive(Debug)]
pub struct Cgroups {
    host: Host,
    name: String,
    parent: Groups,
    pool: starter::Pool,
}

impl Cgroups {
    /// Finds the hierarchies and makes `sandkasten-<tag>` in each, capped by `parent`.
    ///
    /// # Errors
    /// Where a controller is missing or a limit isn't held.
    pub fn open(tag: &str, parent: &CgroupLimits) -> Result<Self, CgroupError> {
        fault::point("cgroup parent").map_err(|source| at("cgroup", source))?;
        let host = host::find()?;
        let name = format!("sandkasten-{tag}");
        let parent = match make_parents(&host, &name, parent) {
            Ok(parent) => parent,
            Err(error) => {
                remove_parents(&host, &name);
                return Err(error);
            }
        };
        let cgroups = Self { host, name, parent, pool: starter::Pool::default() };
        cgroups.remove_spares();
        Ok(cgroups)
    }

    /// Makes a session's groups with their limits, read back, or leaves nothing.
    ///
    /// # Errors
    /// The first file that can't be written or doesn't hold.
    pub fn create(&self, session: &str, limits: &CgroupLimits) -> Result<Cgroup, CgroupError> {
        let made = self.make_limited(session, limits);
        if made.is_err() {
            self.remove_dirs(session).map_err(|source| at("removing a cgroup", source))?;
        }
        made
    }

    fn make_limited(&self, session: &str, limits: &CgroupLimits) -> Result<Cgroup, CgroupError> {
        let starter = self.adopt(session);
        let mut v1 = Vec::new();
        for parent in &self.parent.v1 {
            fault::point("cgroup v1").map_err(|source| at("cgroup", source))?;
            let dir = make(parent.dir.as_fd(), session)?;
            v1.push(Group { dir, controllers: parent.controllers.clone() });
        }
        fault::point("cgroup v2").map_err(|source| at("cgroup", source))?;
        let dir = make(self.parent.v2.dir.as_fd(), session)?;
        let v2 = Group { dir, controllers: self.parent.v2.controllers.clone() };
        let groups = Groups { v2, v1 };
        fault::point("cgroup limits").map_err(|source| at("cgroup", source))?;
        groups.write(limits, Level::Session)?;
        let cgroup = self.cgroup(session, groups, starter);
        cgroup.map_err(|source| at("opening a cgroup", source))
    }

    /// The groups of a session that were made earlier.
    #[must_use]
    pub fn find(&self, session: &str) -> Option<Cgroup> {
        let name = Path::new(session);
        let open = |parent: &Group| {
            let dir = open_dir(parent.dir.as_fd(), name)?;
            Ok::<_, io::Error>(Group { dir, controllers: parent.controllers.clone() })
        };
        let v2 = open(&self.parent.v2).ok()?;
        let v1 = self.parent.v1.iter().map(open).collect::<Result<Vec<_>, _>>().ok()?;
        self.cgroup(session, Groups { v2, v1 }, None).ok()
    }

    /// What a session uses now, as [`Cgroup::usage`]; opens no more than the files it reads.
    #[must_use]
    pub fn usage(&self, session: &str) -> Usage {
        self.parent.usage(&format!("{session}/"))
    }

    /// What all sessions together use now.
    #[must_use]
    pub fn usage_of_all(&self) -> Usage {
        self.parent.usage("")
    }

    /// Counters of a session, as [`Cgroup::events`].
    #[must_use]
    pub fn events(&self, session: &str) -> Events {
        self.parent.events(&format!("{session}/"))
    }

    /// The files of a session's counters.
    ///
    /// # Errors
    /// Where the group is gone, or there is no descriptor left.
    pub fn counters(&self, session: &str) -> io::Result<Counters> {
        let (memory, version) = self.parent.of(Controller::Memory);
        let file = match version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let (pids, _) = self.parent.of(Controller::Pids);
        Ok(Counters {
            memory: files::open_for_reading(memory, &format!("{session}/{file}"))?,
            pids: files::open_for_reading(pids, &format!("{session}/pids.events"))?,
        })
    }

    /// As [`events`](Self::events), by the session's open files.
    #[must_use]
    pub fn events_by(&self, session: &str, counters: &Counters) -> Events {
        if keyed_now(&counters.memory, "oom_kill") > 0 {
            // Whose limit it was is in other files.
            return self.events(session);
        }
        let fork_fails = keyed_now(&counters.pids, "max");
        Events { oom_kills: 0, fork_fails, host_oom_kills: 0 }
    }

    /// Sessions that have a group in any hierarchy.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.parent.all().flat_map(|group| child_names(group.dir.as_fd())).collect();
        names.retain(|name| !starter::is_spare(name));
        names.sort();
        names.dedup();
        names
    }

    /// Removes what is left of a session's groups, also where [`find`](Self::find) finds it incomplete.
    ///
    /// # Errors
    /// `EBUSY` while a process is in one.
    pub fn remove(&self, session: &str) -> io::Result<()> {
        match self.find(session) {
            Some(cgroup) => cgroup.remove(),
            None => self.remove_dirs(session),
        }
    }

    /// Removes the group over all sessions where no session is left in it.
    pub fn close(&self) {
        self.remove_spares();
        remove_parents(&self.host, &self.name);
    }

    fn remove_dirs(&self, session: &str) -> io::Result<()> {
        self.parent.all().try_for_each(|parent| remove_emptying(parent.dir.as_fd(), session))
    }

    fn cgroup(
        &self,
        session: &str,
        groups: Groups,
        starter: Option<Starter>,
    ) -> io::Result<Cgroup> {
        let parents =
            self.parent.all().map(|parent| parent.dir.try_clone()).collect::<io::Result<_>>()?;
        Ok(Cgroup { name: session.to_owned(), groups, parents, starter: Mutex::new(starter) })
    }
}

/// The group over all sessions in each hierarchy, with its limits.
fn make_parents(host: &Host, name: &str, limits: &CgroupLimits) -> Result<Groups, CgroupError> {
    if host.v2.is_own {
        move_to_leaf(host.v2.dir.as_fd())?;
    }
    hand_down(host.v2.dir.as_fd(), &host.v2_controllers)?;
    let dir = make(host.v2.dir.as_fd(), name)?;
    let v2 = Group { dir, controllers: host.v2_controllers.clone() };
    let mut v1 = Vec::new();
    for hierarchy in &host.v1 {
        let dir = make(hierarchy.place.dir.as_fd(), name)?;
        v1.push(Group { dir, controllers: hierarchy.controllers.clone() });
    }
    let groups = Groups { v2, v1 };
    groups.write(limits, Level::Parent)?;
    hand_down(groups.v2.dir.as_fd(), &host.v2_controllers)?;
    Ok(groups)
}

/// Removes the group over all sessions wherever no session is in it.
fn remove_parents(host: &Host, name: &str) {
    let places = host.v1.iter().map(|hierarchy| &hierarchy.place).chain([&host.v2]);
    for place in places {
        // Busy: sessions go on without a daemon.
        drop(remove_dir(place.dir.as_fd(), name));
    }
}

/// One session's groups.
#[derive(Debug)]
pub struct Cgroup {
    name: String,
    groups: Groups,
    /// Directories that hold the groups, v1 first.
    parents: Vec<OwnedFd>,
    starter: Mutex<Option<Starter>>,
}

impl Cgroup {
    /// What a launch needs; the starter, if there is one, comes with the first call.
    ///
    /// # Errors
    /// Where the group is gone.
    pub fn fds(&self) -> io::Result<CgroupFds> {
        let procs = |group: &Group| open_for_writing(group.dir.as_fd(), "cgroup.procs");
        Ok(CgroupFds {
            v2: self.groups.v2.dir.try_clone()?,
            v1_procs: self.groups.v1.iter().map(procs).collect::<io::Result<_>>()?,
            starter: self.take_starter(),
        })
    }

    fn take_starter(&self) -> Option<Starter> {
        self.starter.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What it uses now; zeroes where the group is gone.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.groups.usage("")
    }

    /// Counters since the group was made; zeroes where it is gone.
    #[must_use]
    pub fn events(&self) -> Events {
        self.groups.events("")
    }

    /// Kills all its processes, frozen ones too.
    ///
    /// # Errors
    /// What the write to `cgroup.kill` says.
    pub fn kill(&self) -> io::Result<()> {
        write(self.groups.v2.dir.as_fd(), "cgroup.kill", "1")
    }

    /// Whether a process is in it.
    ///
    /// # Errors
    /// Where the group is gone.
    pub fn is_populated(&self) -> io::Result<bool> {
        let events = read(self.groups.v2.dir.as_fd(), "cgroup.events")?;
        Ok(events.lines().any(|line| line == "populated 1"))
    }

    /// `cgroup.events`: gives `POLLPRI` when "populated" has changed since it was last read.
    ///
    /// # Errors
    /// Where the group is gone.
    pub fn populated_fd(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.groups.v2.dir, "cgroup.events", flags, Mode::empty())?)
    }

    /// Removes the groups of every hierarchy; missing ones are fine. Waits for processes that are
    /// dying: a task leaves its groups just after its pidfd tells of its end.
    ///
    /// # Errors
    /// `EBUSY` where a process is still in one after two seconds.
    pub fn remove(&self) -> io::Result<()> {
        drop(self.take_starter());
        wait_until_empty(self.groups.v2.dir.as_fd())?;
        fault::point("cgroup remove")?;
        self.parents.iter().try_for_each(|parent| remove_emptying(parent.as_fd(), &self.name))
    }
}

/// Waits until no process is in a v2 group, or the group is gone. All hierarchies lose a process in the
/// same moment, so this stands for its v1 groups too.
fn wait_until_empty(group: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let events = match rustix::fs::openat(group, "cgroup.events", flags, Mode::empty()) {
        Err(Errno::NOENT | Errno::NODEV) => return Ok(()),
        events => events?,
    };
    loop {
        let mut text = [0; 64];
        let read = match rustix::io::pread(&events, &mut text, 0) {
            Err(Errno::NODEV) => return Ok(()),
            read => read?,
        };
        if text.get(..read).is_some_and(|text| text.starts_with(b"populated 0")) {
            return Ok(());
        }
        let mut polled = [PollFd::new(&events, PollFlags::PRI)];
        let ready =
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, Some(&EMPTY_TIMEOUT)))?;
        if ready == 0 {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
    }
}

/// Removes a group that is empty, or is just about to be for the kernel: v2 tells of the end of the last
/// process some instructions before v1 lets its groups be removed.
fn remove_emptying(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    const TRIES: u32 = 1000;
    for _ in 0..TRIES {
        match remove_dir(parent, name) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::yield_now(),
            other => return other,
        }
    }
    remove_dir(parent, name)
}

/// v1 doesn't count by which limit a process was killed. A group that never came near its own was hit by
/// another one. (Near: the kernel charges in batches, and a limit in whole pages is never met exactly.)
fn v1_limit_was_reached(limit: u64, peak: u64) -> bool {
    peak >= limit - limit / 64
}

/// Whose files a controller's group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Groups {
    /// v1 first, v2 last: the v2 group is the one by which a session is found.
    fn all(&self) -> impl Iterator<Item = &Group> {
        self.v1.iter().chain([&self.v2])
    }

    fn of(&self, controller: Controller) -> (BorrowedFd<'_>, Version) {
        let v1 = self.v1.iter().find(|group| group.controllers.contains(&controller));
        match v1 {
            Some(group) => (group.dir.as_fd(), Version::V1),
            None => (self.v2.dir.as_fd(), Version::V2),
        }
    }

    fn write(&self, limits: &CgroupLimits, level: Level) -> Result<(), CgroupError> {
        for controller in &self.v2.controllers {
            limits::write_v2(self.v2.dir.as_fd(), *controller, limits)?;
        }
        for group in &self.v1 {
            for controller in &group.controllers {
                limits::write_v1(group.dir.as_fd(), *controller, limits, level)?;
            }
        }
        Ok(())
    }
}

fn at(what: &str, source: io::Error) -> CgroupError {
    CgroupError::Io { what: what.to_owned(), source }
}

/// Makes a group, or opens it where it exists.
fn make(parent: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, CgroupError> {
    let context = |source| CgroupError::Io { what: format!("making the cgroup `{name}`"), source };
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => open_dir(parent, Path::new(name)).map_err(context),
        Err(errno) => Err(context(errno.into())),
    }
}

fn remove_dir(parent: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn child_names(dir: BorrowedFd<'_>) -> Vec<String> {
    let Ok(entries) = rustix::fs::Dir::read_from(dir) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type() == rustix::fs::FileType::Directory)
        .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned))
        .filter(|name| name != "." && name != "..")
        .collect()
}

/// Lets the groups below `dir` have the controllers.
fn hand_down(dir: BorrowedFd<'_>, controllers: &[Controller]) -> Result<(), CgroupError> {
    let context = |source| at("handing controllers down (cgroup.subtree_control)", source);
    let have = read(dir, "cgroup.subtree_control").map_err(context)?;
    for controller in controllers {
        if !have.split_ascii_whitespace().any(|name| name == controller.name()) {
            let text = format!("+{}", controller.name());
            write(dir, "cgroup.subtree_control", &text).map_err(context)?;
        }
    }
    Ok(())
}

/// v2 hands controllers down only from groups without processes: this process and its children (the
/// launcher) move to a leaf. Others that are in the group aren't ours to move, and make it fail.
fn move_to_leaf(dir: BorrowedFd<'_>) -> Result<(), CgroupError> {
    let context = |source| at("moving the daemon to a cgroup of its own", source);
    let ours = rustix::process::getpid().as_raw_nonzero().to_string();
    let procs = read(dir, "cgroup.procs").map_err(context)?;
    let leaf = make(dir, "sandkasten-daemon")?;
    for pid in procs.lines() {
        if pid == ours || is_child_of(pid, &ours) {
            write(leaf.as_fd(), "cgroup.procs", pid).map_err(context)?;
        }
    }
    Ok(())
}

fn is_child_of(pid: &str, parent: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parent_line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent_line.is_some_and(|found| found.trim() == parent)
}
