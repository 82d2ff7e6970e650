//! Programs: each beside everything else, under a supervisor of its own.
//!
//! ```text
//!   Starting ──> Running ──> Ending ──> (End is told) Over ──> forgotten
//!       │           │           ^         its children go on
//!       └───────────┴──> Killing (timeout, cancel)
//! ```
//!
//! A program is over when its own process has ended: waitid says so and how. What it has started may go
//! on, under the supervisor; a later cancel or the timeout takes that too.
//!
//! A command for box root is such a program as well, in the shell's place: how it ended is told to the
//! session, which goes on with it as with any command.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Pid, Signal, Uid};
use rustix::termios::Winsize;
use rustix::thread::CapabilitySet;
use sandkasten_protocol::{
    Begun, Bytes, FromInit, How, PROGRAMS_MAX, Run, RunUser, SignalTo, Stdin, Stream, Window,
};

use crate::accounts::Account;
use crate::clock::{self, Moment};
use crate::environment;
use crate::input::Input;
use crate::kill::{Found, GIVE_UP, Hunt, Pass};
use crate::outcome::{Outcome, QUIET};
use crate::output::{self, Source};
use crate::poll::Token;
use crate::processes::Kept;
use crate::rights::Ids;
use crate::runs::{Runs, Tell};
use crate::shell::Setup;
use crate::supervised::{News, Rest, Supervised};
use crate::supervisor::{self, Base, Dir, Ended, Failure};
use crate::world::World;

/// Where a program starts if nothing else is asked for.
const HOME: &[u8] = b"/workspace";
/// Signals that may wait for a program's begin.
const EARLY_SIGNALS_MAX: usize = 64;
/// Bytes of a program's name that are said where it can't be run.
const NAME_BYTES_MAX: usize = 1024;
const FOUND_NOWHERE: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

#[derive(Debug, Default)]
pub(crate) struct Programs {
    all: BTreeMap<u64, Live>,
}

/// What is to be started.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    /// Where the program may be.
    pub(crate) paths: Vec<CString>,
    pub(crate) argv: Vec<Bytes>,
    pub(crate) ids: Ids,
    pub(crate) env: Vec<CString>,
    pub(crate) base: Base<'a>,
    pub(crate) feed: Feed,
    pub(crate) output: Output,
    pub(crate) role: Role,
}

/// What stdin is.
#[derive(Debug)]
pub(crate) enum Feed {
    /// `/dev/null`.
    Empty,
    /// What the engine sends.
    Engine,
    /// This, which somebody else feeds.
    Given(OwnedFd),
}

/// Where output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Together,
    Apart,
    /// stdin too.
    Terminal(Window),
    /// A PTY for output alone, which nobody's terminal is.
    Screen,
}

/// What a program's end means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The end of a run.
    Program,
    /// The session goes on with its command.
    Command,
}

#[derive(Debug)]
struct Live {
    role: Role,
    /// Of the program, as it was asked for; not all of a long one.
    name: Bytes,
    process: Supervised,
    phase: Phase,
    started: Moment,
    /// When all that there is of it is ended.
    timeout: Option<Moment>,
    input: Option<Input>,
    /// The master of its PTY.
    terminal: Option<OwnedFd>,
    /// For all it is and has started.
    hunt: Option<Hunt>,
    /// Something has ended since it was seen that there is more of it.
    may_be_gone: bool,
}

#[derive(Debug)]
enum Phase {
    Starting { failure: Option<Failure>, signals: Vec<(i32, SignalTo)> },
    Running,
    Killing { why: How, give_up: Option<Moment>, ended: Option<Ended> },
    Ending { outcome: Outcome, finished: Moment, until: Moment },
    Over,
}

/// Descriptors of a program, and init's ends of them.
#[derive(Debug)]
struct Wires {
    stdin: Option<OwnedFd>,
    stdout: OwnedFd,
    stderr: OwnedFd,
    terminal: Option<OwnedFd>,
    sources: Vec<Source>,
    input: Option<Input>,
}

impl Programs {
    /// Starts a program of the engine's. Where that can't be, its end says why.
    pub(crate) fn begin(
        &mut self,
        (world, runs): (&mut World, &mut Runs),
        setup: &Setup,
        run: &Run,
        (argv, user, tty): (Vec<Bytes>, &RunUser, Option<Window>),
    ) -> Result<(), Outcome> {
        let account = Account::of_run(world.rights, setup.ids, user)?;
        let ids = account.as_ref().map_or(setup.ids, |account| account.ids);
        let base = setup.env.iter().map(|pair| pair.as_bytes());
        let mut changes = Vec::new();
        if let Some(account) = &account {
            changes.extend(account.variables());
        }
        if tty.is_some() {
            changes.extend(setup.terminal());
        }
        changes.push((b"PWD".to_vec(), start_dir(run)));
        changes.extend(run.env.iter().cloned());
        let env = environment::build(base, &changes).map_err(not_started)?;
        let home = CString::new(HOME).map_err(|_nul| not_started(Errno::INVAL))?;
        let output = tty.map_or(Output::Apart, Output::Terminal);
        let (base, role) = (Base::Path(home), Role::Program);
        let feed = match run.stdin {
            Stdin::Empty => Feed::Empty,
            Stdin::Piped => Feed::Engine,
        };
        let paths = environment::paths(&env, argv.first().map_or(&[], Vec::as_slice));
        let order = Order { paths, argv, ids, env, base, feed, output, role };
        self.start((world, runs), setup, run, order)
    }

    /// Starts a program, as a run that is entered.
    ///
    /// # Errors
    /// How it ended, where it can't begin.
    pub(crate) fn start(
        &mut self,
        (world, runs): (&mut World, &mut Runs),
        setup: &Setup,
        run: &Run,
        order: Order<'_>,
    ) -> Result<(), Outcome> {
        let living = self.all.values().filter(|live| !matches!(live.phase, Phase::Over)).count();
        if living >= PROGRAMS_MAX {
            return Err(not_started(Errno::AGAIN));
        }
        let path = run.cwd.clone().map(CString::new).transpose();
        let path = path.map_err(|_nul| not_started(Errno::INVAL))?;
        let name = order.argv.first().map_or(&[][..], Vec::as_slice);
        let name = name.get(..NAME_BYTES_MAX).unwrap_or(name).to_vec();
        let argv: Result<Vec<_>, _> = order.argv.into_iter().map(CString::new).collect();
        let argv = argv.map_err(|_nul| not_started(Errno::INVAL))?;
        if argv.is_empty() {
            return Err(not_started(Errno::INVAL));
        }
        let wires = Wires::new(world, order.ids, order.output, order.feed)
            .map_err(|error| not_started(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let is_terminal = matches!(order.output, Output::Terminal(_));
        let program = supervisor::Program {
            paths: order.paths,
            argv,
            env: &order.env,
            ids: order.ids,
            dir: Dir::Payloads { base: order.base, path },
            filter: &setup.filter,
            stdio: wires.stdio(),
            third: None,
            terminal: is_terminal.then(|| wires.stdout.as_fd()),
            open_files: setup.open_files,
        };
        let started = Moment::now();
        let process = Supervised::start(world, &program)
            .map_err(|error| not_started(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        for source in wires.sources {
            runs.add_source(world, run.id, source);
        }
        let live = Live {
            role: order.role,
            name,
            process,
            phase: Phase::Starting { failure: None, signals: Vec::new() },
            started,
            // A command's is the session's to keep.
            timeout: match order.role {
                Role::Program => run.timeout_ms.map(|ms| started.after(Duration::from_millis(ms))),
                Role::Command => None,
            },
            input: wires.input,
            terminal: wires.terminal,
            hunt: None,
            may_be_gone: true,
        };
        self.all.insert(run.id, live);
        Ok(())
    }

    // ---- the engine ----

    /// The stdin of a program that runs.
    pub(crate) fn input(&mut self, run: u64) -> Option<&mut Input> {
        self.all.get_mut(&run)?.input.as_mut()
    }

    /// To the program itself or its group. One that comes before it runs waits for that.
    pub(crate) fn signal(&mut self, world: &World, run: u64, (signal, to): (i32, SignalTo)) {
        let Some(live) = self.all.get_mut(&run) else { return };
        match &mut live.phase {
            Phase::Starting { signals, .. } if signals.len() < EARLY_SIGNALS_MAX => {
                signals.push((signal, to));
            }
            Phase::Running => live.signal(world, signal, to),
            Phase::Starting { .. } | Phase::Killing { .. } | Phase::Ending { .. } | Phase::Over => {
            }
        }
    }

    pub(crate) fn resize(&mut self, run: u64, window: Window) {
        let master = self.all.get(&run).and_then(|live| live.terminal.as_ref());
        if let Some(master) = master {
            // A terminal that is gone has no size.
            let _ = rustix::termios::tcsetwinsize(master, size(window));
        }
    }

    /// Ends a program with all it has started; where it has ended, what goes on of that.
    pub(crate) fn kill(&mut self, world: &World, run: u64, why: How) {
        let Some(live) = self.all.get_mut(&run) else { return };
        live.timeout = None;
        if live.hunt.is_none() {
            live.process.signal(world.rights, Signal::STOP);
            live.hunt = Some(Hunt::new(live.process.whole_tree(), Kept::new()));
        }
        if matches!(live.phase, Phase::Starting { .. } | Phase::Running) {
            let give_up = Some(Moment::now().after(GIVE_UP));
            live.phase = Phase::Killing { why, give_up, ended: None };
        }
    }

    // ---- events ----

    pub(crate) fn on_input(&mut self, world: &mut World, id: u32) {
        for (run, live) in &mut self.all {
            if let Some(input) = live.input.as_mut().filter(|input| input.id == id) {
                input.on_event(&world.poller);
                tell_taken(world, *run, input.take_taken());
            }
        }
    }

    /// Handles an event of a process, if it is a program's.
    pub(crate) fn on_event(&mut self, (world, runs): (&mut World, &mut Runs), token: Token) {
        let found = self.all.iter_mut().find(|(_, live)| live.process.owns(token));
        if let Some((run, live)) = found {
            let news = live.process.on_event(world, token);
            live.on_news((world, runs), *run, news);
        }
    }

    /// init has reaped a process: perhaps a supervisor, or a program that has none any more.
    pub(crate) fn on_reaped(
        &mut self,
        (world, runs): (&mut World, &mut Runs),
        (pid, ended): (Pid, Ended),
    ) {
        for (run, live) in &mut self.all {
            let news = live.process.on_reaped(world, pid, ended);
            live.on_news((world, runs), *run, news);
            live.may_be_gone = true;
        }
    }

    pub(crate) fn next_moment(&self, runs: &Runs) -> Option<Moment> {
        self.all.iter().filter_map(|(run, live)| live.next_moment(runs, *run)).min()
    }

    /// What is due at this moment. Gives the commands that have ended, and how.
    pub(crate) fn on_time(
        &mut self,
        (world, runs): (&mut World, &mut Runs),
        (now, pass): (Moment, &mut Pass),
        cwd: &[u8],
    ) -> Vec<(u64, Outcome)> {
        let mut commands = Vec::new();
        let late = |live: &Live| live.timeout.is_some_and(|timeout| timeout <= now);
        let late: Vec<u64> =
            self.all.iter().filter(|(_, live)| late(live)).map(|(run, _)| *run).collect();
        for run in late {
            self.kill(world, run, How::Timeout);
        }
        for (run, live) in &mut self.all {
            live.process.on_time(world, now);
            live.on_time_of_kill((world, runs), *run, (now, pass));
            match &live.phase {
                Phase::Ending { outcome, .. } if live.role == Role::Command => {
                    commands.push((*run, outcome.clone()));
                    live.phase = Phase::Over;
                }
                Phase::Ending { outcome, finished, until } if runs.is_read(*run, *until, now) => {
                    let mut end = outcome.end(cwd.to_vec());
                    let took = finished.since(live.started).as_millis();
                    end.duration_ms = u64::try_from(took).unwrap_or(u64::MAX);
                    runs.end(world, *run, end);
                    live.phase = Phase::Over;
                }
                Phase::Starting { .. }
                | Phase::Running
                | Phase::Killing { .. }
                | Phase::Ending { .. }
                | Phase::Over => {}
            }
        }
        self.forget_gone(world, pass);
        commands
    }

    /// Forgets programs that are over and have left nothing.
    fn forget_gone(&mut self, world: &World, pass: &mut Pass) {
        let mut gone = Vec::new();
        for (run, live) in &mut self.all {
            if matches!(live.phase, Phase::Over) && live.is_gone(world, pass) {
                gone.push(*run);
            }
        }
        for run in gone {
            if let Some(live) = self.all.remove(&run) {
                live.process.close(&world.poller);
            }
        }
    }
}

impl Live {
    fn next_moment(&self, runs: &Runs, run: u64) -> Option<Moment> {
        let phase = match &self.phase {
            Phase::Killing { give_up, .. } => *give_up,
            Phase::Ending { until, .. } if !runs.owes(run) => Some(*until),
            Phase::Starting { .. } | Phase::Running | Phase::Ending { .. } | Phase::Over => None,
        };
        let hunt = self.hunt.as_ref().map(Hunt::next_moment);
        let others = self.timeout.into_iter().chain(hunt).chain(self.process.next_moment());
        others.chain(phase).min()
    }

    fn on_news(&mut self, (world, runs): (&mut World, &mut Runs), run: u64, news: News) {
        match news {
            News::None => {}
            News::Begun => self.on_begun((world, runs), run),
            News::Failed(failure) => self.on_failed((world, runs), run, failure),
            News::Ended(ended) => self.on_ended((world, runs), run, ended),
            News::Lost => {
                let how =
                    if let Phase::Killing { why, .. } = self.phase { why } else { How::Broken };
                let outcome = Outcome::of(how);
                self.finish((world, runs), run, outcome);
            }
        }
    }

    fn on_begun(&mut self, (world, runs): (&mut World, &mut Runs), run: u64) {
        self.tell_begun((world, runs), run);
        if let Some(input) = self.input.as_mut() {
            input.release(&world.poller);
            tell_taken(world, run, input.take_taken());
        }
        if let Phase::Starting { signals, .. } = &mut self.phase {
            let signals = std::mem::take(signals);
            self.phase = Phase::Running;
            for (signal, to) in signals {
                self.signal(world, signal, to);
            }
        }
    }

    fn signal(&self, world: &World, signal: i32, to: SignalTo) {
        match to {
            SignalTo::Process => self.process.signal_raw(world.rights, signal),
            SignalTo::Group => {
                let foreground = self.terminal.as_ref();
                let foreground =
                    foreground.and_then(|master| rustix::termios::tcgetpgrp(master).ok());
                self.process.signal_groups(world.rights, signal, foreground);
            }
        }
    }

    /// A command has begun already, with the line that its shell was given.
    fn tell_begun(&self, (world, runs): (&mut World, &mut Runs), run: u64) {
        if self.role == Role::Program {
            let pid = self.process.pid().map(Pid::as_raw_pid);
            runs.begin(world, run, Begun { at_ms: clock::wall_ms(), pid }, Tell::Engine);
        }
    }

    fn on_failed(&mut self, (world, runs): (&mut World, &mut Runs), run: u64, failure: Failure) {
        match failure {
            Failure::NotFound | Failure::NotExecutable => {
                self.tell_begun((world, runs), run);
                self.tell_failure((world, runs), run, failure);
            }
            Failure::BadDir | Failure::NotStarted(_) => {}
        }
        if let Phase::Starting { failure: known, .. } = &mut self.phase {
            *known = Some(failure);
        }
        if self.process.pid().is_none() {
            // Nothing else tells of its end.
            self.finish((world, runs), run, failed(failure));
        }
    }

    /// Says on the program's stderr why it does not run, as a shell would.
    fn tell_failure(&self, (world, runs): (&mut World, &mut Runs), run: u64, failure: Failure) {
        if self.role == Role::Command {
            return;
        }
        let why: &[u8] = match failure {
            Failure::NotFound => b": no such program",
            Failure::NotExecutable | Failure::BadDir | Failure::NotStarted(_) => {
                b": not executable"
            }
        };
        let (stream, end): (_, &[u8]) = match self.terminal {
            Some(_) => (Stream::Pty, b"\r\n"),
            None => (Stream::Stderr, b"\n"),
        };
        let line = [b"sandkasten: ", self.name.as_slice(), why, end].concat();
        runs.say(world, run, stream, &line);
    }

    fn on_ended(&mut self, (world, runs): (&mut World, &mut Runs), run: u64, ended: Ended) {
        let news = self.process.last_news_of_birth(&world.poller);
        self.on_news((world, runs), run, news);
        match &mut self.phase {
            Phase::Starting { failure: Some(failure), .. } => {
                let outcome = failed(*failure);
                self.finish((world, runs), run, outcome);
            }
            Phase::Starting { .. } | Phase::Running => {
                let outcome = match ended {
                    Ended::Exited(code) => Outcome::exited(code),
                    Ended::Signaled(signal) => Outcome::of(How::Signaled(signal)),
                };
                self.finish((world, runs), run, outcome);
            }
            Phase::Killing { ended: known, .. } => *known = Some(ended),
            Phase::Ending { .. } | Phase::Over => {}
        }
    }

    fn finish(&mut self, (world, runs): (&mut World, &mut Runs), run: u64, outcome: Outcome) {
        self.close_input(world, run);
        self.terminal = None;
        let finished = Moment::now();
        if self.role == Role::Program {
            runs.note_over(world, run);
        }
        self.phase = Phase::Ending { outcome, finished, until: finished.after(QUIET) };
    }

    fn close_input(&mut self, world: &mut World, run: u64) {
        if let Some(input) = self.input.take() {
            let taken = input.close(&world.poller);
            tell_taken(world, run, taken);
        }
    }

    /// Takes a kill as far as it can go.
    fn on_time_of_kill(
        &mut self,
        (world, runs): (&mut World, &mut Runs),
        run: u64,
        (now, pass): (Moment, &mut Pass),
    ) {
        if let Some(hunt) = self.hunt.as_mut()
            && hunt.on_time(world, now, pass) == Found::Nothing
        {
            self.may_be_gone = true;
            if self.process.has_ended() {
                self.hunt = None;
            } else {
                // It has not been met yet, or it is dead and nobody has said so.
                hunt.pause(now);
            }
        }
        let Phase::Killing { why, give_up, ended } = &mut self.phase else { return };
        if give_up.is_some_and(|moment| moment <= now) {
            *give_up = None;
            self.process.kill(world.rights);
        }
        if let Some(ended) = *ended
            && (self.hunt.is_none() || give_up.is_none())
        {
            let outcome = match self.role {
                Role::Command => Outcome::of(*why),
                // As waitid has it.
                Role::Program => Outcome { how: *why, exit_code: ended.code() },
            };
            self.finish((world, runs), run, outcome);
        }
    }

    /// Whether nothing that it has started lives.
    fn is_gone(&mut self, world: &World, pass: &mut Pass) -> bool {
        match self.process.rest() {
            Rest::Supervised => false,
            Rest::Gone => true,
            // Nobody tells of the last one's end, but something has ended since the last look.
            Rest::Orphaned => {
                self.hunt.is_none()
                    && std::mem::take(&mut self.may_be_gone)
                    && pass
                        .table(world)
                        .is_some_and(|table| self.process.whole_tree().members(table).is_empty())
            }
        }
    }
}

impl Wires {
    fn new(world: &mut World, ids: Ids, output: Output, feed: Feed) -> io::Result<Self> {
        match output {
            Output::Terminal(window) => Self::terminal(world, ids, window, &feed),
            Output::Screen => {
                let (master, slave) = output::open_pty(world, ids, output::WINDOW)?;
                let source = Source::new(&mut world.poller, Stream::Pty, master);
                let stderr = slave.try_clone()?;
                Self::piped(world, ids, feed, (vec![source], slave, stderr))
            }
            Output::Together => {
                let (source, stdout) = pipe(world, ids, Stream::Output)?;
                let stderr = stdout.try_clone()?;
                Self::piped(world, ids, feed, (vec![source], stdout, stderr))
            }
            Output::Apart => {
                let (source, stdout) = pipe(world, ids, Stream::Stdout)?;
                let (other, stderr) = pipe(world, ids, Stream::Stderr)?;
                Self::piped(world, ids, feed, (vec![source, other], stdout, stderr))
            }
        }
    }

    fn terminal(world: &mut World, ids: Ids, window: Window, feed: &Feed) -> io::Result<Self> {
        let (master, slave) = output::open_pty(world, ids, size(window))?;
        let input = match feed {
            Feed::Engine => {
                let master = master.try_clone()?;
                Some(Input::for_terminal(&mut world.poller, master))
            }
            Feed::Empty | Feed::Given(_) => None,
        };
        let terminal = Some(master.try_clone()?);
        let sources = vec![Source::new(&mut world.poller, Stream::Pty, master)];
        let (stdin, stderr) = (Some(slave.try_clone()?), slave.try_clone()?);
        Ok(Self { stdin, stdout: slave, stderr, terminal, sources, input })
    }

    fn piped(
        world: &mut World,
        ids: Ids,
        feed: Feed,
        (sources, stdout, stderr): (Vec<Source>, OwnedFd, OwnedFd),
    ) -> io::Result<Self> {
        let (stdin, input) = match feed {
            Feed::Empty => (None, None),
            Feed::Given(stdin) => (Some(stdin), None),
            Feed::Engine => {
                let (read, write) = owned_pipe(world, ids)?;
                rustix::io::ioctl_fionbio(&write, true)?;
                (Some(read), Some(Input::for_pipe(&mut world.poller, write)))
            }
        };
        Ok(Self { stdin, stdout, stderr, terminal: None, sources, input })
    }

    fn stdio(&self) -> [Option<BorrowedFd<'_>>; 3] {
        let stdin = self.stdin.as_ref().map(AsFd::as_fd);
        [stdin, Some(self.stdout.as_fd()), Some(self.stderr.as_fd())]
    }
}

/// A pipe for a program's output.
fn pipe(world: &mut World, ids: Ids, stream: Stream) -> io::Result<(Source, OwnedFd)> {
    let (read, write) = owned_pipe(world, ids)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((Source::new(&mut world.poller, stream, read), write))
}

/// Both ends of a pipe that belongs to the program's user: it may be opened anew by its name in
/// `/proc`, as `/dev/stderr` is.
pub(crate) fn owned_pipe(world: &World, ids: Ids) -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    let (uid, gid) = (Uid::from_raw(ids.uid), Gid::from_raw(ids.gid));
    world.rights.with(CapabilitySet::CHOWN, || rustix::fs::fchown(&read, Some(uid), Some(gid)))?;
    Ok((read, write))
}

fn size(window: Window) -> Winsize {
    Winsize { ws_row: window.rows, ws_col: window.cols, ws_xpixel: 0, ws_ypixel: 0 }
}

fn tell_taken(world: &mut World, run: u64, bytes: u64) {
    if bytes > 0 {
        world.link.queue(&FromInit::Taken { run, bytes }, None);
    }
}

/// The directory that a program is asked to start in, as it will call it.
fn start_dir(run: &Run) -> Vec<u8> {
    match &run.cwd {
        Some(cwd) if cwd.starts_with(b"/") => cwd.clone(),
        Some(cwd) => [HOME, b"/", cwd].concat(),
        None => HOME.to_vec(),
    }
}

pub(crate) fn not_started(errno: Errno) -> Outcome {
    Outcome::of(How::NotStarted(errno.raw_os_error()))
}

fn failed(failure: Failure) -> Outcome {
    match failure {
        Failure::NotFound => Outcome::exited(FOUND_NOWHERE),
        Failure::NotExecutable => Outcome::exited(NOT_EXECUTABLE),
        Failure::BadDir => Outcome::of(How::BadCwd),
        Failure::NotStarted(errno) => Outcome::of(How::NotStarted(errno)),
    }
}
