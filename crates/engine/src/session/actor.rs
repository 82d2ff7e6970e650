//! The task that owns a living session.
//!
//! ```text
//!                 commands              frames             pidfd     clock
//!                    |                    |                  |         |
//!   Engine ──────────+──> Actor::wait ────+──────────────────+─────────+
//!                              |
//!                              +──> exec queue, file operations, lease ──> View
//! ```
//!
//! It waits for one thing after the other and never for a command to end: files, figures and the
//! session's end are dealt with while a command runs.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sandkasten_jail::cgroup::Events;
use sandkasten_protocol::{
    End, FileOp, FromInit, Hello, Known, RECORD_BYTES_MAX, Record, ToInit, WINDOW_COST,
};
use sandkasten_types::ExecId;
use sandkasten_types::limits::EXEC_QUEUE_MAX;
use sandkasten_types::session::Shell;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::files::{FileReply, Files};
use super::job::Job;
use super::link::{Greeting, Incoming, Link, LinkFault};
use super::outcome::text;
use super::pipe::Outcome;
use super::state::{Cause, Effect, Event, State, next};
use super::{Handle, View, ended, lease, outcome, release};
use crate::error::{Ended, Error};
use crate::host::Host;

/// How long after its timeout a command may take to be reported as ended.
const END_GRACE: Duration = Duration::from_secs(10);
/// A lease is written down at most this often.
const PERSIST_EVERY: Duration = Duration::from_secs(1);
/// init's death may show on its connection before it shows on its pidfd.
pub(crate) const DEATH_GRACE: Duration = Duration::from_millis(500);
/// Exec ids chosen by clients that are remembered.
const CHOSEN_IDS_MAX: usize = 4096;

/// What others ask of a session.
#[derive(Debug)]
pub(crate) enum Command {
    /// Queue a command; answered at once.
    Exec {
        job: Box<Job>,
        reply: oneshot::Sender<Result<(), Error>>,
    },
    /// Its caller has gone.
    Cancel {
        ticket: u64,
    },
    /// Its caller has taken output of that cost.
    Consumed {
        ticket: u64,
        cost: u64,
    },
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
    queue: VecDeque<Box<Job>>,
    running: Option<Running>,
    next_run: u64,
    files: Files,
    /// Ids that clients chose, in the order they came.
    chosen: VecDeque<ExecId>,
    persisted_at: Instant,
    persist_due: Option<Instant>,
    oom_kills_at_start: u64,
}

/// The command that init works on.
#[derive(Debug)]
struct Running {
    /// `None`: its caller has gone, or it was begun by an earlier daemon.
    job: Option<Box<Job>>,
    id: u64,
    before: Events,
    /// Cost of what init sent and nobody has taken.
    unconsumed: u64,
    /// When it must have ended. `None`: its timeout is not known here.
    end_by: Option<Instant>,
}

/// What an actor waits for.
#[derive(Debug)]
enum Happening {
    Command(Option<Command>),
    Frame(Result<Incoming, LinkFault>),
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
        // The shell takes nothing before its last command is settled.
        let ended = known.iter().filter(|known| known.end.is_some() && known.settled.is_none());
        let ended: Vec<u64> = ended.map(|known| known.run).collect();
        let running = known.into_iter().find(|known| known.end.is_none());
        let running = running.map(|Known { run, .. }| Running {
            job: None,
            id: run,
            before: events,
            unconsumed: 0,
            end_by: None,
        });
        let mut actor = Self {
            host: Arc::clone(&host),
            handle,
            commands,
            view,
            link,
            pidfd,
            namespace,
            state: State::Creating,
            queue: VecDeque::new(),
            running,
            next_run: hello.next_run,
            files: Files::default(),
            chosen: VecDeque::new(),
            persisted_at: Instant::now(),
            persist_due: None,
            oom_kills_at_start: events.oom_kills,
        };
        for run in ended {
            // A link that fails says so again where it is read.
            drop(actor.link.send(&ToInit::Settle { run, note: Vec::new() }));
        }
        actor.announce(&hello);
        host.tasks.spawn(actor.run());
    }

    fn announce(&mut self, hello: &Hello) {
        // Whoever made it has written it down.
        self.turn(Event::Ready);
        self.publish_state();
        let ttl = self.handle.spec.ttl_seconds;
        let running = self.running.is_some();
        self.view.send_modify(|view| {
            view.shell = hello.shell.map(shell);
            view.cwd = text(&hello.cwd);
            view.running = running;
            if running {
                view.lease = lease::held(ttl);
            } else if view.lease.deadline.is_none() {
                // It was held by a command that ended while no daemon was there.
                view.lease = lease::renewed(ttl);
            }
        });
    }

    async fn run(mut self) {
        let cause = loop {
            let turn = match self.wait().await {
                Happening::Command(command) => self.on_command(command),
                Happening::Frame(Ok(incoming)) => match self.on_frame(incoming) {
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
            incoming = self.link.next() => Happening::Frame(incoming),
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
            Command::Exec { job, reply } => self.on_exec(job, reply),
            Command::Cancel { ticket } => self.on_cancel(ticket),
            Command::Consumed { ticket, cost } => self.on_consumed(ticket, cost),
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
        job: Box<Job>,
        reply: oneshot::Sender<Result<(), Error>>,
    ) -> Result<(), LinkFault> {
        if let Err(error) = self.may_queue(&job) {
            drop(reply.send(Err(error)));
            return Ok(());
        }
        self.queue.push_back(job);
        let started = self.start_next();
        // A caller that left meanwhile has sent a cancel behind its command.
        drop(reply.send(Ok(())));
        started
    }

    fn may_queue(&mut self, job: &Job) -> Result<(), Error> {
        if let Some(cause) = self.view.borrow().end() {
            return Err(ended(&self.handle.id, cause));
        }
        if self.view.borrow().shell.is_none() {
            return Err(outcome::no_shell());
        }
        if self.queue.len() >= EXEC_QUEUE_MAX {
            let text = format!("{EXEC_QUEUE_MAX} commands of the session wait already");
            return Err(Error::Overloaded(text));
        }
        if job.id_is_chosen {
            self.remember(&job.id)?;
        }
        Ok(())
    }

    /// A command must never run twice under one id. What ran is not kept yet, so that joining it is
    /// refused.
    fn remember(&mut self, id: &ExecId) -> Result<(), Error> {
        if self.chosen.contains(id) {
            return Err(Error::InvalidRequest(format!(
                "`exec_id` `{id}` was used before; joining an exec is not available in this version"
            )));
        }
        if self.chosen.len() >= CHOSEN_IDS_MAX {
            self.chosen.pop_front();
        }
        self.chosen.push_back(id.clone());
        Ok(())
    }

    /// Gives init the next command, if it has none.
    fn start_next(&mut self) -> Result<(), LinkFault> {
        if self.running.is_none()
            && let Some(mut job) = self.queue.pop_front()
        {
            let id = self.next_run;
            // What init said is the next one can be any number.
            self.next_run = id.saturating_add(1);
            let frame = job.frame(id);
            let end_by = Instant::now() + Duration::from_millis(job.timeout_ms) + END_GRACE;
            self.running = Some(Running {
                job: Some(job),
                id,
                before: self.events(),
                unconsumed: 0,
                end_by: Some(end_by),
            });
            self.link.send(&frame)?;
        }
        self.publish_queue();
        Ok(())
    }

    fn on_cancel(&mut self, ticket: u64) -> Result<(), LinkFault> {
        self.queue.retain(|job| job.ticket != ticket);
        if let Some(running) = &mut self.running
            && running.job.as_ref().is_some_and(|job| job.ticket == ticket)
        {
            let run = running.id;
            running.job = None;
            let cost = std::mem::take(&mut running.unconsumed);
            self.link.send(&ToInit::Cancel { run })?;
            // What nobody reads must not hold up the end.
            self.credit(run, cost)?;
        }
        self.publish_queue();
        Ok(())
    }

    fn on_consumed(&mut self, ticket: u64, cost: u64) -> Result<(), LinkFault> {
        let Some(running) = &mut self.running else { return Ok(()) };
        if running.job.as_ref().is_none_or(|job| job.ticket != ticket) {
            return Ok(());
        }
        let cost = cost.min(running.unconsumed);
        running.unconsumed -= cost;
        let run = running.id;
        self.credit(run, cost)
    }

    fn credit(&mut self, run: u64, cost: u64) -> Result<(), LinkFault> {
        if cost == 0 { Ok(()) } else { self.link.send(&ToInit::Credit { run, cost }) }
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

    fn on_frame(&mut self, incoming: Incoming) -> Result<(), LinkFault> {
        match incoming.frame {
            FromInit::Output { run, records } => self.on_output(run, records),
            FromInit::End { run, end } => self.on_end(run, &end),
            FromInit::File { .. } => match self.files.answer(incoming)? {
                Some(frame) => self.link.send(&frame),
                None => Ok(()),
            },
            FromInit::Begun { .. } | FromInit::Forgotten { .. } => Ok(()),
            FromInit::Known(_) | FromInit::Taken { .. } | FromInit::Replayed { .. } => {
                Err(LinkFault::Protocol("it answered what was never asked"))
            }
            FromInit::Hello(_) => Err(LinkFault::Protocol("it said hello twice")),
        }
    }

    fn on_output(&mut self, run: u64, records: Vec<Record>) -> Result<(), LinkFault> {
        let odd = |record: &Record| record.data.is_empty() || record.data.len() > RECORD_BYTES_MAX;
        if records.iter().any(odd) {
            return Err(LinkFault::Protocol("output of a length that is not allowed"));
        }
        if run >= self.next_run {
            return Err(LinkFault::Protocol("output of an exec that was never begun"));
        }
        let cost = records.iter().map(Record::cost).sum();
        let Some(running) = self.running.as_mut().filter(|running| running.id == run) else {
            return self.credit(run, cost);
        };
        let Some(job) = &running.job else { return self.credit(run, cost) };
        running.unconsumed += cost;
        if running.unconsumed > WINDOW_COST {
            return Err(LinkFault::Protocol("more output than it had room for"));
        }
        if !records.iter().all(|record| job.has(record.stream)) {
            return Err(LinkFault::Protocol("output of another stream than asked for"));
        }
        for record in records {
            job.pipe.push(record);
        }
        Ok(())
    }

    fn on_end(&mut self, run: u64, end: &End) -> Result<(), LinkFault> {
        let Some(running) = self.running.take_if(|running| running.id == run) else {
            return Err(LinkFault::Protocol("the end of an exec that does not run"));
        };
        let cwd = text(&end.cwd);
        self.link.send(&ToInit::Settle { run, note: Vec::new() })?;
        if let Some(job) = &running.job {
            let rise = outcome::Rise::between(running.before, self.events());
            let memory_limit = self.handle.spec.memory_bytes();
            job.pipe.end(outcome::of(job, end, rise, memory_limit));
        }
        self.host.counters.exec_finished();
        self.view.send_modify(|view| view.cwd = cwd);
        self.start_next()
    }

    // ---- time

    fn next_wake(&self) -> Option<Instant> {
        let deadline = self.view.borrow().lease.deadline;
        let expiry = deadline.map(|at| Instant::now() + at.remaining());
        let end_by = self.running.as_ref().and_then(|running| running.end_by);
        [expiry, end_by, self.persist_due, self.files.next_deadline()].into_iter().flatten().min()
    }

    fn on_time(&mut self) -> Turn {
        let now = Instant::now();
        self.files.expire();
        if self.persist_due.is_some_and(|due| due <= now) {
            self.persist_lease();
        }
        if let Some(running) = &mut self.running
            && running.end_by.is_some_and(|by| by <= now)
        {
            let unread = running.job.as_ref().is_some_and(|job| !job.pipe.is_empty());
            if !unread {
                return Turn::End(Cause::crashed("init did not end a command in time"));
            }
            // A slow reader holds the command's output up, and with it its end.
            running.end_by = Some(now + END_GRACE);
        }
        self.check_lease()
    }

    fn check_lease(&self) -> Turn {
        match self.view.borrow().end() {
            Some(cause) => Turn::End(cause),
            None => Turn::Go,
        }
    }

    /// Publishes the queue, and the lease that follows from it.
    fn publish_queue(&mut self) {
        let (queued, running) = (self.queue.len(), self.running.is_some());
        let ttl = self.handle.spec.ttl_seconds;
        self.view.send_modify(|view| {
            view.queued = queued;
            view.running = running;
            view.lease = if running { lease::held(ttl) } else { lease::renewed(ttl) };
        });
        self.persist_soon();
    }

    fn renew(&mut self) {
        let ttl = self.handle.spec.ttl_seconds;
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
    }

    // ---- the end

    /// Whatever init did, it costs this session and nothing else.
    fn on_fault(&self, fault: &LinkFault) -> Turn {
        tracing::warn!(session = %self.handle.id, %fault, "session_link_failed");
        let reason = match fault {
            LinkFault::Connect(_) | LinkFault::Closed | LinkFault::Io(_) => "control channel lost",
            LinkFault::Late | LinkFault::Stalled => "init does not answer",
            LinkFault::Frame(_) | LinkFault::Protocol(_) => "init broke the protocol",
        };
        Turn::End(Cause::crashed(reason))
    }

    fn events(&self) -> Events {
        self.host.cgroups.events(self.handle.id.as_str())
    }

    fn cause_of_death(&self) -> Cause {
        let oom = self.events().oom_kills > self.oom_kills_at_start;
        Cause::crashed(if oom { "oom" } else { "init died" })
    }

    /// The daemon stops. init notices that its connection is gone and goes on by itself.
    fn detach(mut self) {
        self.persist_lease();
        let running = self.running.take().and_then(|running| running.job);
        for job in running.into_iter().chain(self.queue.drain(..)) {
            job.pipe.end(Outcome::Failed(Error::Draining));
        }
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
    async fn settle_cause(&self, cause: Cause) -> Cause {
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
        if let Some(job) = self.running.take().and_then(|running| running.job) {
            let Cause { status, reason } = cause.clone();
            let ended = Ended { id: id.clone(), status, reason, started: true, output: None };
            job.pipe.end(Outcome::Failed(Error::Ended(Box::new(ended))));
        }
        for job in self.queue.drain(..) {
            job.pipe.end(Outcome::Failed(ended(&id, cause.clone())));
        }
        self.files.refuse_all(|| ended(&id, cause.clone()));
        self.view.send_modify(|view| (view.queued, view.running) = (0, false));
    }

    fn refuse(&self, command: Command) {
        let Some(cause) = self.state.cause().cloned() else { return };
        let error = ended(&self.handle.id, cause);
        match command {
            Command::Exec { reply, .. } => drop(reply.send(Err(error))),
            Command::File { reply, .. } => drop(reply.send(Err(error))),
            Command::Cancel { .. }
            | Command::Consumed { .. }
            | Command::AbortFile { .. }
            | Command::End { .. }
            | Command::Detach => {}
        }
    }
}

pub(super) fn shell(shell: sandkasten_protocol::Shell) -> Shell {
    match shell {
        sandkasten_protocol::Shell::Bash => Shell::Bash,
        sandkasten_protocol::Shell::Sh => Shell::Sh,
    }
}
