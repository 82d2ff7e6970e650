//! The persistent shell: found in the image, started under a supervisor, fed by a FIFO.
//!
//! ```text
//!   starting ── first record ──> ready <──> (a line runs)
//!       └────────── the process ends ──────────┴──> gone
//! ```
//!
//! Its stdin, stdout and stderr are `/dev/null`; the name of its script goes as soon as the shell has
//! answered its first line.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::process::{Pid, Rlimit, Signal};
use sandkasten_protocol::{Shell, ShellPreference};

use crate::clock::Moment;
use crate::line;
use crate::poll::Token;
use crate::processes::Tree;
use crate::rights::Ids;
use crate::runtime::ScriptPlace;
use crate::script::Script;
use crate::state::{self, Saved};
use crate::status::{Record, Said, Status};
use crate::supervised::{News, Supervised};
use crate::supervisor::{Dir, Ended, Program};
use crate::world::World;

/// How long a shell may take to answer its first line.
const START_TIMEOUT: Duration = Duration::from_secs(10);
pub(crate) const USUAL_PATH: &[u8] =
    b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What every shell of a session is started with.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) preference: ShellPreference,
    pub(crate) ids: Ids,
    pub(crate) env: Vec<CString>,
    pub(crate) path: Vec<u8>,
    pub(crate) filter: Vec<u8>,
    pub(crate) open_files: Rlimit,
}

/// A shell of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) kind: Shell,
    path: CString,
}

/// A shell that was started.
#[derive(Debug)]
pub(crate) struct ShellProcess {
    pub(crate) kind: Shell,
    /// A bash that breaks its heap on an unterminated `$(` (5.2 below 5.2.37).
    pub(crate) breaks_on_open_substitution: bool,
    process: Supervised,
    script: Script,
    starting: Option<Starting>,
}

#[derive(Debug)]
struct Starting {
    status: Status,
    place: ScriptPlace,
    until: Moment,
}

/// What an event has changed.
#[derive(Debug)]
pub(crate) enum Change {
    None,
    /// The shell takes commands now; this is what it calls its working directory.
    Ready {
        pwd: Vec<u8>,
    },
    Ended(Ended),
}

impl Setup {
    /// What a program on a PTY has for `TERM`, unless the session was made with another than the usual.
    pub(crate) fn terminal(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let own = self.env.iter().rev().find_map(|pair| pair.as_bytes().strip_prefix(b"TERM="));
        matches!(own, None | Some(b"dumb")).then(|| (b"TERM".into(), b"xterm-256color".into()))
    }

    /// Looks for the shell that is preferred, else the other.
    pub(crate) fn find(&self, world: &World) -> Option<Found> {
        let order = match self.preference {
            ShellPreference::Bash => [Shell::Bash, Shell::Sh],
            ShellPreference::Sh => [Shell::Sh, Shell::Bash],
        };
        order.into_iter().find_map(|kind| {
            let dirs = self.path.split(|b| *b == b':').chain(USUAL_PATH.split(|b| *b == b':'));
            dirs.filter(|dir| dir.starts_with(b"/")).find_map(|dir| {
                let path = CString::new([dir, b"/", name(kind).as_bytes()].concat()).ok()?;
                self.is_program(world, &path).then_some(Found { kind, path })
            })
        })
    }

    /// Whether the shell's user can run it. The path is the payload's: it is opened as that user, and
    /// nothing is read.
    fn is_program(&self, world: &World, path: &CString) -> bool {
        world.rights.act_as(self.ids, || {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let resolve = ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
                .and_then(|file| rustix::fs::fstat(&file))
                .is_ok_and(|stat| {
                    let mode = Mode::from_raw_mode(stat.st_mode);
                    let runs = Mode::XUSR | Mode::XGRP | Mode::XOTH;
                    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
                        && mode.intersects(runs)
                })
        })
    }
}

fn name(kind: Shell) -> &'static str {
    match kind {
        Shell::Bash => "bash",
        Shell::Sh => "sh",
    }
}

impl ShellProcess {
    /// Starts a shell that takes over what is saved.
    pub(crate) fn start(
        world: &mut World,
        setup: &Setup,
        found: &Found,
        saved: &Saved,
    ) -> io::Result<Self> {
        let name = name(found.kind);
        let load = saved.load_file(found.kind)?;
        let status = Status::new(&mut world.poller, &mut world.run)?;
        let words = if load.is_some() { state::load_words(found.kind) } else { Vec::new() };
        let first = line::start(found.kind, saved.cwd(), &words, &status.path());
        let at = (&mut world.poller, &world.run);
        let (script, place) = match Script::new(at, (found.kind, name), &first) {
            Ok(script) => script,
            Err(error) => {
                status.close(&world.poller);
                return Err(error);
            }
        };
        let argument = CString::new(name).map_err(|_nul| io::ErrorKind::InvalidInput)?;
        let program = Program {
            paths: vec![found.path.clone()],
            argv: vec![argument.clone(), argument],
            env: &setup.env,
            ids: setup.ids,
            dir: Dir::Own(place.dir.as_fd()),
            filter: &setup.filter,
            stdio: [None; 3],
            third: load.as_ref().map(AsFd::as_fd),
            terminal: None,
            open_files: setup.open_files,
        };
        let process = match Supervised::start(world, &program) {
            Ok(process) => process,
            Err(error) => {
                status.close(&world.poller);
                script.close(&world.poller);
                return Err(error);
            }
        };
        Ok(Self {
            kind: found.kind,
            breaks_on_open_substitution: false,
            process,
            script,
            starting: Some(Starting { status, place, until: Moment::now().after(START_TIMEOUT) }),
        })
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.starting.is_none()
    }

    /// Gives the shell a line. It must be idle. One that can't be given it is ended.
    pub(crate) fn say(&mut self, world: &World, line: &[u8]) {
        if self.script.say((&world.poller, &world.run), line).is_err() {
            self.signal(world, Signal::KILL);
        }
    }

    /// Makes what the next line will need, while nobody waits.
    pub(crate) fn make_spare(&mut self, world: &World) {
        self.script.make_spare(&world.run);
    }

    /// Its processes. `None` before the shell's own is known.
    pub(crate) fn tree(&self) -> Option<Tree> {
        self.process.tree_below()
    }

    /// Whether the shell has taken all that it was given and waits for more. One that owes a status
    /// then will never give it: its state forbids that (`ulimit -n 8`, `set -r`, `enable -n printf`).
    pub(crate) fn waits_for_script(&self, world: &World, ids: Ids) -> bool {
        let Some(pid) = self.process.pid() else { return false };
        // init may not trace the payload, so it asks with the rights of the shell's user.
        world.rights.act_as(ids, || self.script.is_awaited(&world.proc, pid))
    }

    pub(crate) fn signal(&self, world: &World, signal: Signal) {
        self.process.signal(world.rights, signal);
    }

    /// Handles an event that may be this shell's.
    pub(crate) fn on_event(&mut self, world: &mut World, token: Token) -> Change {
        if self.process.owns(token) {
            let news = self.process.on_event(world, token);
            return self.on_news(news);
        }
        self.script.on_event(&world.poller, token);
        let starting = self.starting.as_ref().map(|starting| starting.status.id);
        if starting.is_some_and(|id| token == Token::Status(id)) {
            return self.on_first_record(world);
        }
        Change::None
    }

    /// init itself has reaped a process: the shell, if its supervisor is gone.
    pub(crate) fn on_reaped(&mut self, world: &mut World, pid: Pid, ended: Ended) -> Change {
        let news = self.process.on_reaped(world, pid, ended);
        self.on_news(news)
    }

    fn on_news(&self, news: News) -> Change {
        match news {
            News::Ended(ended) => Change::Ended(ended),
            News::Lost => Change::Ended(Ended::Exited(1)),
            // Without a process nothing else tells of its end.
            News::Failed(_) if self.process.pid().is_none() => Change::Ended(Ended::Exited(1)),
            News::None | News::Begun | News::Failed(_) => Change::None,
        }
    }

    /// When [`Self::on_time`] has to be called.
    pub(crate) fn next_moment(&self) -> Option<Moment> {
        let starting = self.starting.as_ref().map(|s| s.until);
        starting.into_iter().chain(self.process.next_moment()).min()
    }

    pub(crate) fn on_time(&mut self, world: &World, now: Moment) {
        if self.starting.as_ref().is_some_and(|s| s.until <= now) {
            self.signal(world, Signal::KILL);
        }
        self.process.on_time(world, now);
    }

    /// Forgets the shell; with `Signal::KILL` sent before, its end too.
    pub(crate) fn close(self, world: &World) {
        self.process.close(&world.poller);
        self.script.close(&world.poller);
        if let Some(starting) = self.starting {
            starting.status.close(&world.poller);
        }
    }

    fn on_first_record(&mut self, world: &World) -> Change {
        let Some(mut starting) = self.starting.take() else { return Change::None };
        match starting.status.read() {
            Said::NotYet => {
                self.starting = Some(starting);
                Change::None
            }
            Said::Record(record) => {
                starting.status.close(&world.poller);
                // The shell has left it and holds its script open: the names can go.
                drop(starting.place);
                self.script.hide();
                self.breaks_on_open_substitution = breaks_on_open_substitution(&record);
                Change::Ready { pwd: record.pwd }
            }
            Said::Broken => {
                self.signal(world, Signal::KILL);
                starting.status.unwatch(&world.poller);
                self.starting = Some(starting);
                Change::None
            }
        }
    }
}

/// bash 5.2 up to 5.2.36 corrupts its heap when `eval` meets an unterminated `$(`.
fn breaks_on_open_substitution(record: &Record) -> bool {
    let version = String::from_utf8_lossy(&record.word);
    let mut numbers = version.split(['.', '(']).map(str::parse::<u32>);
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Ok(5)), Some(Ok(2)), Some(Ok(patch))) => patch < 37,
        _ => false,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn versions_that_break() {
        let breaks = |version: &str| {
            breaks_on_open_substitution(&Record { word: version.into(), pwd: Vec::new() })
        };
        assert!(breaks("5.2.15(1)-release"));
        assert!(breaks("5.2.36(1)-release"));
        for good in ["5.2.37(1)-release", "5.3.0(1)-release", "5.1.16(1)-release", ""] {
            assert!(!breaks(good), "{good}");
        }
    }
}
