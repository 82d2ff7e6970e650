//! The task that owns a living session.
//!
//! ```text
//!                 commands              frames             pidfd     clock
//!                    |                    |                  |         |
//!   Engine ──────────+──> Actor::wait ────+──────────────────+─────────+
//!                              |
//!                              +──> runs, questions, stdin, file operations, lease ──> View
//! ```
//!
//! It waits for one thing after the other and never for a run to end: files, figures and the
//! session's end are dealt with while commands run.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandkasten_jail::cgroup::{Counters, Events};
use sandkasten_protocol::{
    Begun, End, FileOp, FromInit, Hello, Known, Replay, Run, Spool, Task, ToInit,
};
use sandkasten_types::session::Shell;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::asked::{Asked, PartReply};
use super::files::{FileReply, Files};
use super::job::{Job, JobStdin};
use super::link::{Greeting, Incoming, Link, LinkFault};
use super::note::{Counted, Given, Note, OnLeave, What};
use super::outcome::{Over, text};
use super::program::{Program, Started};
use super::runs::{Beginning, Found, Name, Runs};
use super::seat::{Role, Seat};
use super::spec::About;
use super::state::{Cause, Effect, Event, State, next};
use super::stdin::{self, Opened, Stdins, Told, Why};
use super::{Handle, View, ended, ended_in, lease, outcome, release};
use crate::clock;
use crate::error::Error;
use crate::figures::RunKind;
use crate::host::Host;

/// How long after its timeout a command may take to be reported as ended.
const END_GRACE: Duration = Duration::from_secs(10);
/// How long the restart of a shell may take, on however little CPU the session has.
const RESTART_MS: u64 = 30_000;
/// A lease is written down at most this often.
const PERSIST_EVERY: Duration = Duration::from_secs(1);
/// init's death may show on its connection before it shows on its pidfd.
pub(crate) const DEATH_GRACE: Duration = Duration::from_millis(500);
/// What others ask of a session.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run a command, or come to one that has run before; answered at once.
    Exec {
        job: Box<Job>,
        reply: oneshot::Sender<Result<Seated, Error>>,
    },
    /// Another shell; answered at once.
    Restart {
        task: Task,
        reply: oneshot::Sender<Result<Found, Error>>,
    },
    /// Start a program; answered when it has begun.
    Program {
        program: Box<Program>,
        reply: oneshot::Sender<Result<Started, Error>>,
    },
    /// A caller of a run has gone.
    Leave {
        run: u64,
        role: Role,
    },
    /// A caller has taken output of that cost.
    Consumed {
        run: u64,
        cost: u64,
    },
    /// The run goes on, whoever leaves.
    Keep {
        run: u64,
    },
    Cancel {
        run: u64,
    },
    /// How a run ended, once it has.
    Over {
        run: u64,
        /// What messages call it.
        subject: String,
        reply: oneshot::Sender<Result<Arc<Over>, Error>>,
    },
    Find {
        name: Name,
        reply: oneshot::Sender<Option<Found>>,
    },
    List {
        reply: oneshot::Sender<Vec<Found>>,
    },
    /// What is kept of a run. The tag of `replay` is chosen by the actor.
    Replay {
        replay: Replay,
        ticket: u64,
        reply: oneshot::Sender<PartReply>,
    },
    /// Who asked for what is kept has gone.
    Unwait {
        ticket: u64,
    },
    Stdin {
        run: u64,
        data: Bytes,
        end: stdin::End,
        told: Told,
    },
    /// A signal or a size for a program, unless it has ended.
    Tell {
        run: u64,
        frame: ToInit,
    },
    /// The lease is used.
    Renew,
    /// What can be changed is this now.
    Update {
        about: Arc<About>,
    },
    /// The lease is held until as many releases.
    Hold,
    Release,
    File {
        op: FileOp,
        reply: oneshot::Sender<FileReply>,
    },
    /// A temporary file that will not be needed.
    AbortFile {
        token: u32,
    },
    End {
        cause: Cause,
    },
    /// The daemon stops; the session goes on.
    Detach,
}

/// A caller's place at a command.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(crate) seat: Seat,
    pub(crate) note: Arc<Note>,
}

/// What an actor is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) host: Arc<Host>,
    pub(crate) handle: Arc<Handle>,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    pub(crate) view: watch::Sender<View>,
    pub(crate) link: Link,
    pub(crate) greeting: Greeting,
    pub(crate) pidfd: AsyncFd<OwnedFd>,
    /// Kept for the next session of the range.
    pub(crate) namespace: Option<OwnedFd>,
}

/// One living session.
#[derive(Debug)]
pub(crate) struct Actor {
    host: Arc<Host>,
    handle: Arc<Handle>,
    commands: mpsc::UnboundedReceiver<Command>,
    view: watch::Sender<View>,
    link: Link,
    pidfd: AsyncFd<OwnedFd>,
    namespace: Option<OwnedFd>,
    state: State,
    runs: Runs,
    /// Who waits for a program to begin.
    starting: HashMap<u64, Starting>,
    stdins: Stdins,
    asked: Asked,
    files: Files,
    /// Those that hold the lease beside commands.
    holds: usize,
    persisted_at: Instant,
    persist_due: Option<Instant>,
    oom_kills_at_start: u64,
    /// Open while commands come; an idle session costs no descriptors for them.
    counters: Option<Counters>,
}

/// A program of which init has not said that it runs.
#[derive(Debug)]
struct Starting {
    reply: oneshot::Sender<Result<Started, Error>>,
    seat: Seat,
}

/// What an actor waits for.
#[derive(Debug)]
enum Happening {
    Command(Option<Command>),
    /// `None`: init takes more of what is to be sent.
    Frame(Result<Option<Incoming>, LinkFault>),
    InitDied,
    Time,
}

/// Whether the actor goes on.
#[derive(Debug)]
enum Turn {
    Go,
    End(Cause),
    Detach,
}

impl Actor {
    /// Starts the task of a session that is ready.
    pub(crate) fn spawn(parts: Parts) {
        let Parts { host, handle, commands, view, link, greeting, pidfd, namespace } = parts;
        let Greeting { hello, known } = greeting;
        let events = host.cgroups.events(handle.id.as_str());
        let mut actor = Self {
            host: Arc::clone(&host),
            runs: Runs::new(hello.next_run),
            handle,
            commands,
            view,
            link,
            pidfd,
            namespace,
            state: State::Creating,
            starting: HashMap::new(),
            stdins: Stdins::default(),
            asked: Asked::default(),
            files: Files::default(),
            holds: 0,
            persisted_at: Instant::now(),
            persist_due: None,
            oom_kills_at_start: events.oom_kills,
            counters: None,
        };
        let now = Counted::from(events);
        let adopted = known.into_iter().try_for_each(|known| actor.adopt(known, now));
        actor.announce(&hello);
        host.tasks.spawn(actor.run(adopted));
    }

    /// A run of an earlier engine. Where that one had no time to judge its end, it is judged here.
    fn adopt(&mut self, known: Known, now: Counted) -> Result<(), LinkFault> {
        let memory_limit = self.handle.spec.memory_bytes();
        let (id, is_running) = (known.run, known.begun.is_some() && known.end.is_none());
        if let Some(run) = self.runs.adopt(known, now, memory_limit)? {
            self.settle(run)?;
        }
        if is_running {
            self.set_end_by(id);
        }
        self.reopen_stdin(id)
    }

    /// The rest of what was to be given at once is gone with the earlier engine, if there was a rest:
    /// nobody must wait for it.
    fn reopen_stdin(&mut self, id: u64) -> Result<(), LinkFault> {
        let given = self.runs.unfinished(id).map_or(Given::Nothing, |run| run.note.stdin());
        match given {
            Given::Nothing => return Ok(()),
            Given::InPieces => self.stdins.open(id, Opened::Before),
            Given::AtOnce => {
                self.stdins.open(id, Opened::Before);
                self.stdins.push(id, Bytes::new(), stdin::End::OfFile, None);
            }
        }
        self.pump()
    }

    fn settle(&mut self, run: u64) -> Result<(), LinkFault> {
        let over = self.runs.get(run).and_then(|run| run.over.as_ref());
        match over.map(|over| over.verdict.encoded()) {
            Some(note) => self.link.send(&ToInit::Settle { run, note }),
            None => Ok(()),
        }
    }

    fn announce(&mut self, hello: &Hello) {
        // Whoever made it has written it down.
        self.turn(Event::Ready);
        self.publish_state();
        let ttl = self.view.borrow().about.ttl_seconds;
        let (is_held, running) = (!self.runs.is_idle(), self.runs.has_running());
        let queued = self.runs.queued();
        self.view.send_modify(|view| {
            view.shell = hello.shell.map(shell);
            view.cwd = text(&hello.cwd);
            (view.running, view.queued) = (running, queued);
            if is_held {
                view.lease = lease::held(ttl);
            } else if view.lease.deadline.is_none() {
                // It was held by a command that ended while no daemon was there.
                view.lease = lease::renewed(ttl);
            }
        });
    }

    async fn run(mut self, adopted: Result<(), LinkFault>) {
        if let Err(fault) = adopted {
            let cause = self.cause_of(&fault);
            return self.end(cause).await;
        }
        let cause = loop {
            let turn = match self.wait().await {
                Happening::Command(command) => self.on_command(command),
                Happening::Frame(Ok(incoming)) => match self.on_incoming(incoming) {
                    Ok(()) => Turn::Go,
                    Err(fault) => self.on_fault(&fault),
                },
                Happening::Frame(Err(fault)) => self.on_fault(&fault),
                Happening::InitDied => Turn::End(self.cause_of_death()),
                Happening::Time => self.on_time(),
            };
            match turn {
                Turn::Go => {}
                Turn::End(cause) => break cause,
                Turn::Detach => return self.detach(),
            }
        };
        self.end(cause).await;
    }

    async fn wait(&mut self) -> Happening {
        let wake = self.next_wake();
        let time = async {
            match wake {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            command = self.commands.recv() => Happening::Command(command),
            incoming = self.link.turn() => Happening::Frame(incoming),
            _ = self.pidfd.readable() => Happening::InitDied,
            () = time => Happening::Time,
        }
    }

    // ---- commands

    fn on_command(&mut self, command: Option<Command>) -> Turn {
        let Some(command) = command else {
            // The handle keeps a sender, so that this happens only when the engine is dropped.
            return Turn::Detach;
        };
        let done = match command {
            Command::Exec { job, reply } => self.on_exec(*job, reply),
            Command::Restart { task, reply } => self.on_restart(task, reply),
            Command::Program { program, reply } => self.on_program(*program, reply),
            Command::Leave { run, role } => self.on_leave(run, role),
            Command::Consumed { run, cost } => self.on_consumed(run, cost),
            Command::Keep { run } => {
                if let Some(run) = self.runs.unfinished(run) {
                    run.on_leave = OnLeave::Keep;
                }
                Ok(())
            }
            Command::Cancel { run } => self.cancel(run),
            Command::Over { run, subject, reply } => self.on_over(run, &subject, reply),
            Command::Find { name, reply } => answered(reply, self.runs.find(&name)),
            Command::List { reply } => answered(reply, self.runs.list()),
            Command::Replay { replay, ticket, reply } => self.on_replay(replay, ticket, reply),
            Command::Unwait { ticket } => {
                self.asked.leave(ticket).map_or(Ok(()), |frame| self.link.send(&frame))
            }
            Command::Stdin { run, told, .. } if self.runs.unfinished(run).is_none() => {
                told.refuse(Why::HasEnded);
                Ok(())
            }
            Command::Stdin { run, data, end, told } => {
                self.stdins.push(run, data, end, Some(told));
                self.pump()
            }
            Command::Tell { run, frame } => match self.runs.unfinished(run) {
                Some(_) => self.link.send(&frame),
                None => Ok(()),
            },
            Command::Renew => {
                self.renew();
                Ok(())
            }
            Command::Update { about } => {
                self.view.send_modify(|view| view.about = about);
                Ok(())
            }
            Command::Hold => self.on_hold(self.holds.saturating_add(1)),
            Command::Release => self.on_hold(self.holds.saturating_sub(1)),
            Command::File { op, reply } => self.on_file(op, reply),
            Command::AbortFile { token } => {
                let frame = self.files.begin_quietly(FileOp::Abort { token });
                self.link.send(&frame)
            }
            Command::End { cause } => return Turn::End(cause),
            Command::Detach => return Turn::Detach,
        };
        match done {
            Ok(()) => self.check_lease(),
            Err(fault) => self.on_fault(&fault),
        }
    }

    fn on_exec(
        &mut self,
        mut job: Job,
        reply: oneshot::Sender<Result<Seated, Error>>,
    ) -> Result<(), LinkFault> {
        match self.joined(&job) {
            Ok(None) => {}
            Ok(Some(found)) => return self.join(&job, found, reply),
            Err(error) => return answered(reply, Err(error)),
        }
        let may_begin = self.may_queue(job.queue_bytes());
        if let Err(error) = may_begin.and_then(|()| self.stdins.may_take(job.stdin.len())) {
            return answered(reply, Err(error));
        }
        let note = Arc::new(job.note(self.counted()));
        let run = self.begin(Beginning {
            note: Arc::clone(&note),
            feed: job.feed.clone(),
            timeout_ms: Some(job.timeout_ms),
            queue_bytes: job.queue_bytes(),
            begun: self.begins_now(),
        });
        self.link.send(&job.frame(run, &note))?;
        self.give_stdin(run, std::mem::take(&mut job.stdin))?;
        self.publish_runs();
        let role = if job.feed.is_some() { Role::Reader } else { Role::Joined };
        self.seat(run, role, note, reply);
        Ok(())
    }

    /// The run of the same id, if there is one.
    fn joined(&self, job: &Job) -> Result<Option<Found>, Error> {
        self.check_commands()?;
        // An id that nobody chose is new.
        let Some(same) = job.same else { return Ok(None) };
        let Some(found) = self.runs.find(&Name::Exec(job.id.clone())) else { return Ok(None) };
        if found.note.exec().is_some_and(|exec| exec.same == Some(same)) {
            return Ok(Some(found));
        }
        let text = format!("`exec_id` `{}` was used for another command", job.id);
        Err(Error::IdempotencyMismatch(text))
    }

    fn join(
        &mut self,
        job: &Job,
        found: Found,
        reply: oneshot::Sender<Result<Seated, Error>>,
    ) -> Result<(), LinkFault> {
        if job.on_leave == OnLeave::Keep
            && let Some(run) = self.runs.unfinished(found.run)
        {
            run.on_leave = OnLeave::Keep;
        }
        self.renew();
        self.seat(found.run, Role::Joined, found.note, reply);
        Ok(())
    }

    /// A caller that left meanwhile drops its seat with the answer.
    fn seat(
        &mut self,
        run: u64,
        role: Role,
        note: Arc<Note>,
        reply: oneshot::Sender<Result<Seated, Error>>,
    ) {
        if let Some(run) = self.runs.unfinished(run) {
            run.callers += 1;
        }
        let seat = Seat::new(run, role, self.handle.commands.clone());
        drop(reply.send(Ok(Seated { seat, note })));
    }

    fn check_commands(&self) -> Result<(), Error> {
        if let Some(cause) = self.view.borrow().end() {
            return Err(ended(&self.handle.id, cause));
        }
        if self.view.borrow().shell.is_none() {
            return Err(outcome::no_shell());
        }
        Ok(())
    }

    fn may_queue(&self, bytes: usize) -> Result<(), Error> {
        self.check_commands()?;
        self.runs.may_queue(bytes)
    }

    /// When a command that is given to init now begins, if that is known.
    fn begins_now(&self) -> Option<Begun> {
        let at_ms = clock::now().unix_ms();
        self.runs.is_idle().then_some(Begun { at_ms, pid: None })
    }

    fn begin(&mut self, beginning: Beginning) -> u64 {
        let has_begun = beginning.begun.is_some();
        let id = self.runs.begin(beginning);
        if has_begun {
            self.set_end_by(id);
        }
        id
    }

    /// When a command that begins now must have ended.
    fn set_end_by(&mut self, run: u64) {
        let Some(run) = self.runs.unfinished(run) else { return };
        let is_program = matches!(run.note.what, What::Process(_));
        run.end_by = run
            .timeout_ms
            .filter(|_| !is_program)
            .map(|ms| Instant::now() + Duration::from_millis(ms) + END_GRACE);
    }

    fn on_restart(
        &mut self,
        task: Task,
        reply: oneshot::Sender<Result<Found, Error>>,
    ) -> Result<(), LinkFault> {
        if let Err(error) = self.may_queue(0) {
            return answered(reply, Err(error));
        }
        let note = Note {
            what: What::Restart,
            created_ms: clock::now().unix_ms(),
            before: self.counted(),
            on_leave: OnLeave::Keep,
            cwd: None,
            user: None,
        };
        let encoded = note.encoded();
        let run = self.begin(Beginning {
            note: Arc::new(note),
            feed: None,
            // init has limits of its own; it must not take for ever.
            timeout_ms: Some(RESTART_MS),
            queue_bytes: 0,
            begun: self.begins_now(),
        });
        let frame = Run { note: encoded, spool: Spool::Together { bytes: 0 }, ..Run::new(run) };
        self.link.send(&ToInit::Begin { run: frame, task })?;
        self.publish_runs();
        match self.runs.found(run) {
            Some(found) => answered(reply, Ok(found)),
            None => Ok(()),
        }
    }

    fn on_program(
        &mut self,
        program: Program,
        reply: oneshot::Sender<Result<Started, Error>>,
    ) -> Result<(), LinkFault> {
        let refused = match self.view.borrow().end() {
            Some(cause) => Err(ended(&self.handle.id, cause)),
            None => {
                let given = program.stdin.as_ref().map_or(0, |(data, _)| data.len());
                self.runs.may_start().and_then(|()| self.stdins.may_take(given))
            }
        };
        if let Err(error) = refused {
            return answered(reply, Err(error));
        }
        let note = Arc::new(program.note(self.counted()));
        let run = self.begin(Beginning {
            note: Arc::clone(&note),
            feed: None,
            timeout_ms: program.timeout_ms,
            queue_bytes: 0,
            begun: None,
        });
        if let Some(open) = self.runs.unfinished(run) {
            open.callers += 1;
        }
        let seat = Seat::new(run, Role::Joined, self.handle.commands.clone());
        self.starting.insert(run, Starting { reply, seat });
        let (frame, stdin) = program.into_frame(run, &note);
        self.link.send(&frame)?;
        if let Some((data, end)) = stdin {
            let is_whole = end == stdin::End::OfFile;
            self.stdins.open(run, if is_whole { Opened::Whole } else { Opened::InPieces });
            if is_whole {
                self.stdins.push(run, data, end, None);
            }
        }
        self.renew();
        self.pump()
    }

    fn give_stdin(&mut self, run: u64, stdin: JobStdin) -> Result<(), LinkFault> {
        match stdin {
            JobStdin::Empty => Ok(()),
            JobStdin::InPieces => {
                self.stdins.open(run, Opened::InPieces);
                Ok(())
            }
            JobStdin::Whole(bytes) => {
                self.stdins.open(run, Opened::Whole);
                self.stdins.push(run, bytes.into(), stdin::End::OfFile, None);
                self.pump()
            }
        }
    }

    /// Sends stdin as long as the connection takes it.
    fn pump(&mut self) -> Result<(), LinkFault> {
        while self.link.has_room() {
            match self.stdins.next_frame() {
                Some(frame) => self.link.send(&frame)?,
                None => break,
            }
        }
        Ok(())
    }

    /// A caller has gone. The last one takes the run with it where that was agreed.
    fn on_leave(&mut self, id: u64, role: Role) -> Result<(), LinkFault> {
        let Some(run) = self.runs.unfinished(id) else { return Ok(()) };
        run.callers = run.callers.saturating_sub(1);
        let is_last = run.callers == 0 && run.on_leave == OnLeave::Cancel;
        let is_unread = role == Role::Reader && run.feed.take().is_some();
        if is_unread {
            run.unconsumed = 0;
        }
        if is_last {
            self.cancel(id)?;
        }
        // What nobody reads must not hold it up.
        if is_unread { self.link.send(&ToInit::Unpace { run: id }) } else { Ok(()) }
    }

    fn cancel(&mut self, id: u64) -> Result<(), LinkFault> {
        let is_process =
            self.runs.get(id).is_some_and(|run| matches!(run.note.what, What::Process(_)));
        match self.runs.unfinished(id) {
            Some(run) if !is_process => run.end_by = Some(Instant::now() + END_GRACE),
            Some(_) => {}
            // What a process started may outlive it.
            None if is_process => {}
            None => return Ok(()),
        }
        self.link.send(&ToInit::Cancel { run: id })
    }

    fn on_consumed(&mut self, id: u64, cost: u64) -> Result<(), LinkFault> {
        let Some(run) = self.runs.unfinished(id) else { return Ok(()) };
        let cost = cost.min(run.unconsumed);
        run.unconsumed -= cost;
        if cost == 0 { Ok(()) } else { self.link.send(&ToInit::Credit { run: id, cost }) }
    }

    fn on_over(
        &mut self,
        id: u64,
        subject: &str,
        reply: oneshot::Sender<Result<Arc<Over>, Error>>,
    ) -> Result<(), LinkFault> {
        if let Some(run) = self.runs.unfinished(id) {
            run.waiters.retain(|waiter| !waiter.is_closed());
            run.waiters.push(reply);
            return Ok(());
        }
        let over = self.runs.get(id).and_then(|run| run.over.clone());
        let gone = || Error::Conflict(format!("{subject} is not kept any more"));
        answered(reply, over.ok_or_else(gone))
    }

    fn on_replay(
        &mut self,
        replay: Replay,
        ticket: u64,
        reply: oneshot::Sender<PartReply>,
    ) -> Result<(), LinkFault> {
        if self.runs.get(replay.run).is_none() {
            return answered(reply, Ok(None));
        }
        match self.asked.ask(replay, ticket, reply) {
            Some(frame) => self.link.send(&frame),
            None => Ok(()),
        }
    }

    fn on_hold(&mut self, holds: usize) -> Result<(), LinkFault> {
        self.holds = holds;
        self.publish_runs();
        Ok(())
    }

    fn on_file(&mut self, op: FileOp, reply: oneshot::Sender<FileReply>) -> Result<(), LinkFault> {
        if let Some(cause) = self.view.borrow().end() {
            drop(reply.send(Err(ended(&self.handle.id, cause))));
            return Ok(());
        }
        self.renew();
        match self.files.begin(op, reply) {
            Some(frame) => self.link.send(&frame),
            None => Ok(()),
        }
    }

    // ---- frames

    fn on_incoming(&mut self, incoming: Option<Incoming>) -> Result<(), LinkFault> {
        match incoming {
            Some(incoming) => self.on_frame(incoming),
            None => self.pump(),
        }
    }

    fn on_frame(&mut self, incoming: Incoming) -> Result<(), LinkFault> {
        match incoming.frame {
            FromInit::Output { run, records } => self.runs.on_output(run, records),
            FromInit::Begun { run, begun } => self.on_begun(run, begun),
            FromInit::End { run, end } => self.on_end(run, end),
            FromInit::Taken { run, bytes } => {
                self.stdins.on_taken(run, bytes)?;
                self.pump()
            }
            FromInit::Replayed { tag, part } => self.asked.answer(tag, part),
            FromInit::Forgotten { run } => self.runs.on_forgotten(run),
            FromInit::File { .. } => match self.files.answer(incoming)? {
                Some(frame) => self.link.send(&frame),
                None => Ok(()),
            },
            FromInit::Known(_) => Err(LinkFault::Protocol("it told of a run behind its hello")),
            FromInit::Hello(_) => Err(LinkFault::Protocol("it said hello twice")),
        }
    }

    fn on_begun(&mut self, id: u64, begun: Begun) -> Result<(), LinkFault> {
        let Some(run) = self.runs.on_begun(id, begun)? else { return Ok(()) };
        let note = Arc::clone(&run.note);
        self.set_end_by(id);
        if let Some(Starting { reply, seat }) = self.starting.remove(&id) {
            // A caller that left meanwhile drops its seat with the answer.
            drop(reply.send(Ok(Started { seat, note, begun })));
        } else {
            self.publish_runs();
        }
        Ok(())
    }

    fn on_end(&mut self, id: u64, end: End) -> Result<(), LinkFault> {
        let (now, memory_limit) = (self.counted(), self.handle.spec.memory_bytes());
        let cwd = text(&end.cwd);
        let run = self.runs.on_end(id, end, now, memory_limit)?;
        let (note, begun) = (Arc::clone(&run.note), run.begun);
        let (feed, waiters) = (run.feed.take(), std::mem::take(&mut run.waiters));
        let Some(over) = run.over.clone() else { return Ok(()) };
        self.runs.set_before(now);
        // Before anybody is told, so that no later daemon says anything else.
        self.settle(id)?;
        if let Some(feed) = feed {
            feed.end(Ok(Arc::clone(&over)));
        }
        for waiter in waiters {
            drop(waiter.send(Ok(Arc::clone(&over))));
        }
        if let Some(Starting { reply, seat }) = self.starting.remove(&id) {
            let begun = begun.unwrap_or(Begun { at_ms: over.verdict.started_ms, pid: None });
            let started =
                over.process(&note).map(|_| Started { seat, note: Arc::clone(&note), begun });
            drop(reply.send(started));
        }
        self.stdins.close(id);
        if !matches!(note.what, What::Process(_)) {
            self.view.send_modify(|view| view.cwd = cwd);
            self.publish_runs();
        }
        let took = Duration::from_millis(over.end.duration_ms);
        match &note.what {
            What::Exec(_) => self.host.counters.run_ended(RunKind::Exec, over.verdict.reason, took),
            What::Process(_) => {
                self.host.counters.run_ended(RunKind::Process, over.verdict.reason, took);
            }
            What::Restart => {}
        }
        Ok(())
    }

    // ---- time

    fn next_wake(&self) -> Option<Instant> {
        let deadline = self.view.borrow().lease.deadline;
        let expiry = deadline.map(|at| Instant::now() + at.remaining());
        let end_by = self.runs.next_end();
        [expiry, end_by, self.persist_due, self.files.next_deadline()].into_iter().flatten().min()
    }

    fn on_time(&mut self) -> Turn {
        let now = Instant::now();
        self.files.expire();
        if self.persist_due.is_some_and(|due| due <= now) {
            self.persist_lease();
        }
        for id in self.runs.open() {
            let Some(run) = self.runs.unfinished(id) else { continue };
            if run.end_by.is_none_or(|by| by > now) {
                continue;
            }
            if run.feed.as_ref().is_none_or(|feed| feed.is_empty()) {
                return Turn::End(Cause::crashed("init did not end a command in time"));
            }
            // A slow reader holds the command's output up, and with it its end.
            run.end_by = Some(now + END_GRACE);
        }
        self.check_lease()
    }

    fn check_lease(&self) -> Turn {
        match self.view.borrow().end() {
            Some(cause) => Turn::End(cause),
            None => Turn::Go,
        }
    }

    /// Publishes the runs, and the lease that follows from them.
    fn publish_runs(&mut self) {
        let (queued, running) = (self.runs.queued(), self.runs.has_running());
        let is_held = self.holds > 0 || !self.runs.is_idle();
        let ttl = self.view.borrow().about.ttl_seconds;
        self.view.send_modify(|view| {
            view.queued = queued;
            view.running = running;
            view.lease = if is_held { lease::held(ttl) } else { lease::renewed(ttl) };
        });
        self.persist_soon();
    }

    fn renew(&mut self) {
        let ttl = self.view.borrow().about.ttl_seconds;
        self.view.send_if_modified(|view| {
            // While a command holds the lease there is none to renew.
            let renews = view.lease.deadline.is_some();
            if renews {
                view.lease = lease::renewed(ttl);
            }
            renews
        });
        self.persist_soon();
    }

    fn persist_soon(&mut self) {
        if self.persist_due.is_none() {
            self.persist_due = Some(self.persisted_at + PERSIST_EVERY);
        }
    }

    fn persist_lease(&mut self) {
        let view = self.view.borrow().clone();
        self.host.db.post_lease(&self.handle.id, view.lease, view.cwd);
        self.persisted_at = Instant::now();
        self.persist_due = None;
        if self.runs.is_idle() {
            self.counters = None;
        }
    }

    // ---- the end

    /// Whatever init did, it costs this session and nothing else.
    fn on_fault(&self, fault: &LinkFault) -> Turn {
        Turn::End(self.cause_of(fault))
    }

    fn cause_of(&self, fault: &LinkFault) -> Cause {
        tracing::warn!(session = %self.handle.id, %fault, "session_link_failed");
        let reason = match fault {
            LinkFault::Connect(_) | LinkFault::Closed | LinkFault::Io(_) => "control channel lost",
            LinkFault::Late | LinkFault::Stalled => "init does not answer",
            LinkFault::Frame(_) | LinkFault::Protocol(_) => "init broke the protocol",
        };
        Cause::crashed(reason)
    }

    fn events(&mut self) -> Events {
        let (cgroups, session) = (&self.host.cgroups, self.handle.id.as_str());
        if self.counters.is_none() {
            self.counters = cgroups.counters(session).ok();
        }
        match &self.counters {
            Some(counters) => cgroups.events_by(session, counters),
            None => cgroups.events(session),
        }
    }

    fn counted(&mut self) -> Counted {
        self.events().into()
    }

    fn cause_of_death(&mut self) -> Cause {
        let oom = self.events().oom_kills > self.oom_kills_at_start;
        Cause::crashed(if oom { "oom" } else { "init died" })
    }

    /// The daemon stops. init notices that its connection is gone and goes on by itself.
    fn detach(mut self) {
        self.persist_lease();
        self.refuse_runs(|_| Error::Draining);
        self.files.refuse_all(|| Error::Draining);
    }

    async fn end(mut self, cause: Cause) {
        let cause = self.settle_cause(cause).await;
        let effects = self.turn(Event::End(cause));
        self.publish_state();
        for effect in effects {
            match effect {
                Effect::Persist => self.persist_state().await,
                Effect::RefuseCalls => self.refuse_calls(),
                Effect::Release => {
                    let namespace = self.namespace.take();
                    release(&self.host, &self.handle.id, Some(&self.pidfd), namespace).await;
                }
            }
        }
        // Commands that came meanwhile would else wait for ever.
        self.commands.close();
        while let Ok(command) = self.commands.try_recv() {
            self.refuse(command);
        }
        if !self.turn(Event::Gone).is_empty() {
            // Who is told that it is over finds it so in the database.
            self.persist_state().await;
        }
        self.publish_state();
        self.host.live.remove(&self.handle);
    }

    /// A connection that broke because init died is init's death.
    async fn settle_cause(&mut self, cause: Cause) -> Cause {
        let by_link = cause.status == sandkasten_types::session::Status::Crashed;
        if by_link && timeout(DEATH_GRACE, self.pidfd.readable()).await.is_ok() {
            return self.cause_of_death();
        }
        cause
    }

    fn turn(&mut self, event: Event) -> &'static [Effect] {
        match next(&self.state, event) {
            Ok((state, effects)) => {
                self.state = state;
                effects
            }
            Err(refused) => {
                tracing::error!(session = %self.handle.id, %refused, "session_event_refused");
                &[]
            }
        }
    }

    fn publish_state(&self) {
        self.view.send_modify(|view| view.state = self.state.clone());
    }

    async fn persist_state(&self) {
        let (id, db) = (self.handle.id.clone(), &self.host.db);
        let cwd = self.view.borrow().cwd.clone();
        let written = match &self.state {
            State::Creating | State::Running => Ok(()),
            State::Stopping(cause) => db.set_stopping(id, cause.clone()).await,
            State::Over(cause) => {
                tracing::info!(
                    session = %id,
                    status = cause.status.as_str(),
                    reason = cause.reason,
                    "session_over"
                );
                self.host.counters.ended(cause.status);
                db.set_over(id, cause.clone(), cwd).await
            }
        };
        if let Err(error) = written {
            // The row stays as it was; recovery compares it with the host again.
            tracing::error!(session = %self.handle.id, %error, "session_state_not_written");
        }
    }

    fn refuse_calls(&mut self) {
        let Some(cause) = self.state.cause().cloned() else { return };
        let id = self.handle.id.clone();
        self.refuse_runs(|has_begun| {
            if has_begun { ended_in(&id, cause.clone()) } else { ended(&id, cause.clone()) }
        });
        self.files.refuse_all(|| ended(&id, cause.clone()));
        self.view.send_modify(|view| (view.queued, view.running) = (0, false));
    }

    /// Tells everybody who waits for a run why that will not end. `why` is told whether it had begun.
    fn refuse_runs(&mut self, why: impl Fn(bool) -> Error) {
        for id in self.runs.open() {
            let Some(run) = self.runs.unfinished(id) else { continue };
            let has_begun = run.begun.is_some();
            if let Some(feed) = run.feed.take() {
                feed.end(Err(why(has_begun)));
            }
            for waiter in run.waiters.drain(..) {
                drop(waiter.send(Err(why(has_begun))));
            }
        }
        for (_, Starting { reply, seat }) in self.starting.drain() {
            seat.leave_quietly();
            drop(reply.send(Err(why(true))));
        }
        self.stdins.refuse_all(|| why(true));
        let runs = &self.runs;
        self.asked.refuse_all(|run| why(runs.get(run).is_some_and(|run| run.begun.is_some())));
    }

    fn refuse(&self, command: Command) {
        let Some(cause) = self.state.cause().cloned() else { return };
        let error = ended(&self.handle.id, cause);
        match command {
            Command::Exec { reply, .. } => drop(reply.send(Err(error))),
            Command::Restart { reply, .. } => drop(reply.send(Err(error))),
            Command::Program { reply, .. } => drop(reply.send(Err(error))),
            Command::Over { reply, .. } => drop(reply.send(Err(error))),
            Command::Replay { reply, .. } => drop(reply.send(Err(error))),
            Command::Stdin { told, .. } => told.tell(Err(error)),
            Command::File { reply, .. } => drop(reply.send(Err(error))),
            // Who gets no answer looks why.
            Command::Find { .. }
            | Command::List { .. }
            | Command::Leave { .. }
            | Command::Consumed { .. }
            | Command::Keep { .. }
            | Command::Cancel { .. }
            | Command::Unwait { .. }
            | Command::Tell { .. }
            | Command::Renew
            | Command::Update { .. }
            | Command::Hold
            | Command::Release
            | Command::AbortFile { .. }
            | Command::End { .. }
            | Command::Detach => {}
        }
    }
}

/// Gives an answer to who may have gone meanwhile.
fn answered<T>(reply: oneshot::Sender<T>, answer: T) -> Result<(), LinkFault> {
    drop(reply.send(answer));
    Ok(())
}

pub(super) fn shell(shell: sandkasten_protocol::Shell) -> Shell {
    match shell {
        sandkasten_protocol::Shell::Bash => Shell::Bash,
        sandkasten_protocol::Shell::Sh => Shell::Sh,
    }
}
