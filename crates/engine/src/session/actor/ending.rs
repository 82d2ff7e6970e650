//! The end of a session: its cause, what is undone, and what everybody is told who waits.
//!
//! Invariant: nobody waits on after the end; a row says that it is over only once nothing of it is left.

use tokio::time::timeout;

use crate::error::Error;
use crate::session::link::LinkFault;
use crate::session::state::{Cause, Effect, Event, State};
use crate::session::{ended, ended_in, release};

use super::{Actor, DEATH_GRACE, Starting, Turn};
use crate::session::command::Command;

impl Actor {
    /// Whatever init did, it costs this session and nothing else.
    pub(super) fn on_fault(&self, fault: &LinkFault) -> Turn {
        Turn::End(self.cause_of(fault))
    }

    pub(super) fn cause_of(&self, fault: &LinkFault) -> Cause {
        tracing::warn!(session = %self.handle.id, %fault, "session_link_failed");
        let reason = match fault {
            LinkFault::Connect(_) | LinkFault::Closed | LinkFault::Io(_) => "control channel lost",
            LinkFault::Late | LinkFault::Stalled => "init does not answer",
            LinkFault::Frame(_) | LinkFault::Protocol(_) => "init broke the protocol",
        };
        Cause::crashed(reason)
    }

    pub(super) fn cause_of_death(&mut self) -> Cause {
        let oom = self.events().oom_kills > self.oom_kills_at_start;
        Cause::crashed(if oom { "oom" } else { "init died" })
    }

    /// The daemon stops. init notices that its connection is gone and goes on by itself.
    pub(super) fn detach(mut self) {
        self.persist_lease();
        self.refuse_runs(|_| Error::Draining);
        self.files.refuse_all(|| Error::Draining);
    }

    pub(super) async fn end(mut self, cause: Cause) {
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

    pub(super) fn refuse(&self, command: Command) {
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
