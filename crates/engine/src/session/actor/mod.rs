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

mod desk;
mod ending;
mod expiry;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sandkasten_jail::cgroup::Counters;
use sandkasten_protocol::{FileOp, FromInit, Hello};
use sandkasten_types::session::Shell;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::asked::Asked;
use super::command::Command;
use super::files::Files;
use super::link::{Greeting, Incoming, Link, LinkFault};
use super::note::{Counted, OnLeave};
use super::outcome::text;
use super::program::Started;
use super::runs::Runs;
use super::seat::Seat;
use super::state::{Cause, Effect, Event, State, next};
use super::stdin::{Stdins, Why};
use super::{Handle, View, lease};
use crate::error::Error;
use crate::host::Host;

/// How long after its timeout a command may take to be reported as ended.
const END_GRACE: Duration = Duration::from_secs(10);
/// How long the restart of a shell may take, on however little CPU the session has.
const RESTART_MS: u64 = 30_000;
/// A lease is written down at most this often.
const PERSIST_EVERY: Duration = Duration::from_secs(1);
/// init's death may show on its connection before it shows on its pidfd.
pub(crate) const DEATH_GRACE: Duration = Duration::from_millis(500);

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
