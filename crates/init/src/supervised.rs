//! A process under a supervisor, as init follows it: the shell, or a program.
//!
//! ```text
//!   its pid is known, it may go ──> Begun ─────> Ended ──> (its children end) ──> all gone
//!         │                  └────> Failed ───────^
//!         └── no process is to be had ──> Failed, all gone
//! ```
//!
//! Box root may stop or kill a supervisor. One that says nothing when its process has ended is ended
//! too; what it had below it falls to init, which reaps it and so knows its end.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::CapabilitySet;

use crate::clock::Moment;
use crate::poll::{Poller, Token, Want};
use crate::processes::{Tree, signal_by};
use crate::rights::Rights;
use crate::spawn;
use crate::supervisor::{self, Ended, Failure, Program, Report, Supervisor};
use crate::world::World;

/// How long a supervisor may take to say that its process has ended, once that is so. Long: one that is
/// killed for a busy host's sake loses the children that have sessions of their own. Only box root, who
/// may stop it over and over, makes anybody wait for this.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a process may take to run its program.
const BIRTH_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Supervised {
    supervisor: Supervisor,
    rest: Rest,
    report_id: u32,
    main: Option<Main>,
    birth: Option<Birth>,
    has_ended: bool,
    /// When a supervisor that says nothing about its ended process is ended too.
    report_by: Option<Moment>,
}

/// The process itself.
#[derive(Debug)]
struct Main {
    pid: Pid,
    pidfd: OwnedFd,
    end_id: u32,
}

/// It has not run its program yet.
#[derive(Debug)]
struct Birth {
    id: u32,
    /// `None`: it had its time.
    until: Option<Moment>,
}

/// What there is beside the process itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Its supervisor lives, and perhaps what the process has started.
    Supervised,
    /// The supervisor was killed; what was below it is below init.
    Orphaned,
    /// Nothing.
    Gone,
}

/// What an event has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    None,
    /// It runs its program.
    Begun,
    /// It never will. Its end follows, unless there was no process.
    Failed(Failure),
    Ended(Ended),
    /// There is no process any more, and nobody knows why.
    Lost,
}

impl Supervised {
    /// # Errors
    /// No process or no descriptor is to be had.
    pub(crate) fn start(world: &mut World, program: &Program<'_>) -> io::Result<Self> {
        let supervisor = supervisor::start(world.rights, program)?;
        let report_id = world.poller.fresh_id();
        let birth_id = world.poller.fresh_id();
        let birth = Birth { id: birth_id, until: Some(Moment::now().after(BIRTH_TIMEOUT)) };
        let watched = world
            .poller
            .add(&supervisor.reports, Token::Report(report_id), Want::Read)
            .and_then(|()| world.poller.add(&supervisor.go, Token::Birth(birth_id), Want::Read));
        if let Err(error) = watched {
            world.poller.remove(&supervisor.reports);
            signal_by(world.rights, &supervisor.pidfd, Signal::KILL);
            return Err(error);
        }
        Ok(Self {
            supervisor,
            rest: Rest::Supervised,
            report_id,
            main: None,
            birth: Some(birth),
            has_ended: false,
            report_by: None,
        })
    }

    /// `None` before it is known.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.main.as_ref().map(|main| main.pid)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(crate) fn rest(&self) -> Rest {
        self.rest
    }

    /// All that it is and has started.
    pub(crate) fn whole_tree(&self) -> Tree {
        let supervisor = self.supervisor.pid.as_raw_pid();
        let orphaned = (self.rest != Rest::Supervised).then_some(supervisor);
        Tree { supervisor, shell: supervisor, orphaned }
    }

    /// All that it has started. `None` before it is known itself.
    pub(crate) fn tree_below(&self) -> Option<Tree> {
        let shell = self.pid()?.as_raw_pid();
        let tree = self.whole_tree();
        let is_supervised = self.rest == Rest::Supervised;
        let supervisor = if is_supervised { tree.supervisor } else { shell };
        Some(Tree { supervisor, shell, ..tree })
    }

    pub(crate) fn signal(&self, rights: Rights, signal: Signal) {
        if let Some(main) = &self.main {
            signal_by(rights, &main.pidfd, signal);
        }
    }

    /// Any signal by its number; nothing where there is none such, or the process has ended.
    pub(crate) fn signal_raw(&self, rights: Rights, signal: i32) {
        if let Some(main) = &self.main {
            // EINVAL and ESRCH: there is nothing to signal, or nobody.
            drop(rights.with(CapabilitySet::KILL, || spawn::signal(&main.pidfd, signal)));
        }
    }

    /// Any signal to the process group of the process, and to another one that is its terminal's.
    pub(crate) fn signal_groups(&self, rights: Rights, signal: i32, other: Option<Pid>) {
        let Some(main) = &self.main else { return };
        // The process is there until it is reaped, and that is not before its end was told.
        let own = rustix::process::getpgid(Some(main.pid)).ok();
        let other = other.filter(|other| Some(*other) != own);
        for group in own.into_iter().chain(other) {
            if group != rustix::process::getpgrp() {
                // EINVAL and ESRCH: there is nothing to signal, or nobody.
                drop(rights.with(CapabilitySet::KILL, || spawn::signal_group(group, signal)));
            }
        }
    }

    /// Whether such an event is for this one.
    pub(crate) fn owns(&self, token: Token) -> bool {
        let birth = self.birth.as_ref().map(|birth| Token::Birth(birth.id));
        let end = self.main.as_ref().map(|main| Token::ProcessEnd(main.end_id));
        token == Token::Report(self.report_id) || Some(token) == birth || Some(token) == end
    }

    /// Handles an event that is for this one.
    pub(crate) fn on_event(&mut self, world: &mut World, token: Token) -> News {
        if token == Token::Report(self.report_id) {
            return self.on_report(world);
        }
        if self.birth.as_ref().is_some_and(|birth| token == Token::Birth(birth.id)) {
            return self.on_birth(&world.poller);
        }
        self.on_end_without_report(world);
        News::None
    }

    /// What the process has said of its begin, where its end was met first.
    pub(crate) fn last_news_of_birth(&mut self, poller: &Poller) -> News {
        if self.birth.is_some() { self.on_birth(poller) } else { News::None }
    }

    /// Kills the process, or where that is not known the supervisor.
    pub(crate) fn kill(&self, rights: Rights) {
        match &self.main {
            Some(main) => signal_by(rights, &main.pidfd, Signal::KILL),
            None => signal_by(rights, &self.supervisor.pidfd, Signal::KILL),
        }
    }

    /// init itself has reaped a child: this one's supervisor, or the process if that was killed.
    pub(crate) fn on_reaped(&mut self, world: &mut World, pid: Pid, ended: Ended) -> News {
        let is_supervisor = pid == self.supervisor.pid && self.rest == Rest::Supervised;
        if !is_supervisor && (self.pid() != Some(pid) || self.has_ended) {
            return News::None;
        }
        // What its supervisor has said is of this process for sure; the number may be another's by now.
        let mut news = self.on_report(world);
        while news == News::None && !self.has_ended && self.has_report() {
            news = self.on_report(world);
        }
        if !is_supervisor {
            return if self.has_ended { news } else { self.end(&world.poller, ended) };
        }
        world.poller.remove(&self.supervisor.reports);
        // By itself it ends when there is nothing below it.
        let is_killed = matches!(ended, Ended::Signaled(_));
        self.rest = if is_killed { Rest::Orphaned } else { Rest::Gone };
        if !self.has_ended && self.main.is_none() {
            self.has_ended = true;
            return News::Lost;
        }
        news
    }

    /// When [`Self::on_time`] has to be called.
    pub(crate) fn next_moment(&self) -> Option<Moment> {
        let birth = self.birth.as_ref().and_then(|birth| birth.until);
        birth.into_iter().chain(self.report_by).min()
    }

    pub(crate) fn on_time(&mut self, world: &World, now: Moment) {
        if let Some(birth) = self.birth.as_mut().filter(|b| b.until.is_some_and(|by| by <= now)) {
            birth.until = None;
            self.signal(world.rights, Signal::KILL);
            signal_by(world.rights, &self.supervisor.pidfd, Signal::KILL);
        }
        if self.report_by.is_some_and(|by| by <= now) {
            self.report_by = None;
            // Its process falls to init, which reaps it and so knows how it ended.
            signal_by(world.rights, &self.supervisor.pidfd, Signal::KILL);
        }
    }

    /// Follows it no longer. Its supervisor stays as long as there is something below it.
    pub(crate) fn close(self, poller: &Poller) {
        poller.remove(&self.supervisor.reports);
        if self.birth.is_some() {
            poller.remove(&self.supervisor.go);
        }
        if let Some(main) = &self.main {
            poller.remove(&main.pidfd);
        }
    }

    fn has_report(&self) -> bool {
        rustix::io::ioctl_fionread(&self.supervisor.reports).is_ok_and(|bytes| bytes > 0)
    }

    fn on_report(&mut self, world: &mut World) -> News {
        match Report::read(&self.supervisor.reports) {
            Ok(Some(Report::Started(pid))) => {
                if let Some(pid) = Pid::from_raw(pid) {
                    self.on_started(world, pid);
                }
                News::None
            }
            Ok(Some(Report::Ended(ended))) => self.end(&world.poller, ended),
            Ok(Some(Report::Failed(errno))) => {
                self.has_ended = true;
                News::Failed(Failure::NotStarted(errno))
            }
            Err(Errno::AGAIN | Errno::INTR) => News::None,
            Ok(None) | Err(_) => {
                // It will be reaped in a moment.
                world.poller.remove(&self.supervisor.reports);
                News::None
            }
        }
    }

    fn on_started(&mut self, world: &mut World, pid: Pid) {
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            // It waits for what will never come, or it is dead.
            signal_by(world.rights, &self.supervisor.pidfd, Signal::KILL);
            return;
        };
        let end_id = world.poller.fresh_id();
        // Where it can't be watched the supervisor's report is all there is, which is enough as long
        // as nobody stops the supervisor.
        drop(world.poller.add(&pidfd, Token::ProcessEnd(end_id), Want::Read));
        self.main = Some(Main { pid, pidfd, end_id });
        let _ = rustix::io::write(&self.supervisor.go, &[0]);
    }

    fn on_birth(&mut self, poller: &Poller) -> News {
        match Failure::read(&self.supervisor.go) {
            Err(Errno::AGAIN | Errno::INTR) => News::None,
            Ok(Some(failure)) => {
                self.end_birth(poller);
                News::Failed(failure)
            }
            Ok(None) | Err(_) => {
                self.end_birth(poller);
                if self.main.is_some() { News::Begun } else { News::None }
            }
        }
    }

    fn end_birth(&mut self, poller: &Poller) {
        if self.birth.take().is_some() {
            poller.remove(&self.supervisor.go);
        }
    }

    fn end(&mut self, poller: &Poller, ended: Ended) -> News {
        if std::mem::replace(&mut self.has_ended, true) {
            return News::None;
        }
        if let Some(main) = &self.main {
            poller.remove(&main.pidfd);
        }
        self.report_by = None;
        News::Ended(ended)
    }

    /// The process has ended, and the supervisor's report is not here yet. Box root may have stopped
    /// it.
    fn on_end_without_report(&mut self, world: &World) {
        if let Some(main) = &self.main {
            world.poller.remove(&main.pidfd);
        }
        if self.rest == Rest::Supervised {
            signal_by(world.rights, &self.supervisor.pidfd, Signal::CONT);
            self.report_by = Some(Moment::now().after(REPORT_TIMEOUT));
        }
    }
}
