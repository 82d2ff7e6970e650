//! What callers ask of runs: begun, joined, given stdin, waited for and read.
//!
//! Invariant: a caller gets one answer, whether it waits for it or not; what init says of a run is judged by
//! [`Runs`](crate::session::runs::Runs) before anybody hears of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandkasten_jail::cgroup::Events;
use sandkasten_protocol::{Begun, End, FileOp, Known, Replay, Run, Spool, Task, ToInit};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock;
use crate::error::Error;
use crate::figures::RunKind;
use crate::session::asked::PartReply;
use crate::session::files::FileReply;
use crate::session::job::{Job, JobStdin};
use crate::session::link::LinkFault;
use crate::session::note::{Counted, Given, Note, OnLeave, What};
use crate::session::outcome::{Over, text};
use crate::session::program::{Program, Started};
use crate::session::runs::{Beginning, Found, Name};
use crate::session::seat::{Role, Seat, Seated};
use crate::session::stdin::{self, Opened};
use crate::session::{ended, outcome};

use super::{Actor, END_GRACE, RESTART_MS, Starting, answered};

impl Actor {
    /// A run of an earlier engine. Where that one had no time to judge its end, it is judged here.
    pub(super) fn adopt(&mut self, known: Known, now: Counted) -> Result<(), LinkFault> {
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

    pub(super) fn on_exec(
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
    pub(super) fn seat(
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

    pub(super) fn on_restart(
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

    pub(super) fn on_program(
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
    pub(super) fn pump(&mut self) -> Result<(), LinkFault> {
        while self.link.has_room() {
            match self.stdins.next_frame() {
                Some(frame) => self.link.send(&frame)?,
                None => break,
            }
        }
        Ok(())
    }

    /// A caller has gone. The last one takes the run with it where that was agreed.
    pub(super) fn on_leave(&mut self, id: u64, role: Role) -> Result<(), LinkFault> {
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

    pub(super) fn cancel(&mut self, id: u64) -> Result<(), LinkFault> {
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

    pub(super) fn on_consumed(&mut self, id: u64, cost: u64) -> Result<(), LinkFault> {
        let Some(run) = self.runs.unfinished(id) else { return Ok(()) };
        let cost = cost.min(run.unconsumed);
        run.unconsumed -= cost;
        if cost == 0 { Ok(()) } else { self.link.send(&ToInit::Credit { run: id, cost }) }
    }

    pub(super) fn on_over(
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

    pub(super) fn on_replay(
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

    pub(super) fn on_file(
        &mut self,
        op: FileOp,
        reply: oneshot::Sender<FileReply>,
    ) -> Result<(), LinkFault> {
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

    pub(super) fn on_begun(&mut self, id: u64, begun: Begun) -> Result<(), LinkFault> {
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

    pub(super) fn on_end(&mut self, id: u64, end: End) -> Result<(), LinkFault> {
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

    pub(super) fn events(&mut self) -> Events {
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
}
