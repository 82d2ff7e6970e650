//! One command from its request to its end.
//!
//! ```text
//!   Waiting ──> Line (env?, cwd?, command) ──────────────┐
//!                 │ timeout, cancel, broken status       v
//!                 ├──> Killing ──── shell is dead ──> Ending ──> Settling ──> End is sent
//!                 └─────────── shell is dead ────────────┘
//! ```
//!
//! `Ending` reads what the command has written, `Settling` waits for a new shell where one is needed.
//! All output of the command is sent before its end.

use std::collections::VecDeque;
use std::time::Duration;

use sandkasten_protocol::{
    Begun, Bytes, End, FromInit, How, OutputMode, RECORD_BYTES_MAX, RECORD_COST, Record, Run,
    Shell, WINDOW_COST,
};

use crate::clock::{self, Moment};
use crate::kill::Killer;
use crate::line::{self, Text};
use crate::output::{self, Sinks, Source, Wanted};
use crate::rights::Ids;
use crate::runtime::Entry;
use crate::status::Status;
use crate::supervisor::Ended;
use crate::world::World;

/// How long output is awaited that a child still holds.
const QUIET: Duration = Duration::from_millis(20);
/// Between two looks at a shell that is silent for long.
const LOOK: Duration = Duration::from_millis(200);
/// Longer commands go to bash through a file: it reads its script a byte a system call.
const INLINE_BYTES_MAX: usize = 4096;

/// A command of the engine's.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) run: Run,
    pub(crate) cmd: Bytes,
    pub(crate) output: OutputMode,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) exec: Exec,
    pub(crate) phase: Phase,
    pub(crate) shell_restarted: bool,
    pub(crate) begun: Begun,
    seq: u64,
    started: Moment,
    finished: Option<Moment>,
    timeout: Moment,
    steps: VecDeque<Step>,
    sources: Vec<Source>,
    sinks: Option<Sinks>,
    text: Option<Entry>,
    credit: u64,
    output_bytes: u64,
    dropped_bytes: u64,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// For a shell that takes commands.
    Waiting,
    /// `look`: when to see whether the shell can still answer.
    Line {
        step: Step,
        status: Status,
        look: Moment,
    },
    Killing(Killer),
    Ending {
        outcome: Outcome,
        until: Moment,
    },
    Settling {
        outcome: Outcome,
    },
}

/// What one line asks of the shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Env,
    Cwd,
    Command,
}

/// How a command ended, and what its shell said then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) how: How,
    pub(crate) exit_code: i32,
}

impl Outcome {
    /// An end that has only one code.
    pub(crate) fn of(how: How) -> Self {
        let exit_code = match how {
            How::Timeout => 124,
            How::Cancelled => 130,
            How::NoShell => 127,
            How::Signaled(signal) => 128 + signal,
            How::Exited
            | How::ShellExited
            | How::BadCwd
            | How::ReadOnlyEnv
            | How::Broken
            | How::UnknownUser
            | How::NotStarted(_) => 1,
        };
        Self { how, exit_code }
    }

    pub(crate) fn exited(exit_code: i32) -> Self {
        Self { how: How::Exited, exit_code }
    }

    /// The shell has ended under the command.
    pub(crate) fn shell(ended: Ended) -> Self {
        match ended {
            Ended::Exited(exit_code) => Self { how: How::ShellExited, exit_code },
            Ended::Signaled(signal) => Self::of(How::Signaled(signal)),
        }
    }
}

impl Running {
    pub(crate) fn new(exec: Exec) -> Self {
        let started = Moment::now();
        let mut steps = VecDeque::new();
        if !exec.run.env.is_empty() {
            steps.push_back(Step::Env);
        }
        if exec.run.cwd.is_some() {
            steps.push_back(Step::Cwd);
        }
        steps.push_back(Step::Command);
        Self {
            timeout: started
                .after(exec.run.timeout_ms.map_or(Duration::MAX, Duration::from_millis)),
            exec,
            phase: Phase::Waiting,
            begun: Begun { at_ms: clock::wall_ms(), pid: None },
            seq: 0,
            shell_restarted: false,
            started,
            finished: None,
            steps,
            sources: Vec::new(),
            sinks: None,
            text: None,
            credit: WINDOW_COST,
            output_bytes: 0,
            dropped_bytes: 0,
        }
    }

    /// The next line for the shell; the phase is that line's then.
    pub(crate) fn next_line(
        &mut self,
        world: &mut World,
        shell: Shell,
        ids: Ids,
    ) -> std::io::Result<Option<Vec<u8>>> {
        let Some(step) = self.steps.pop_front() else { return Ok(None) };
        let status = Status::new(&mut world.poller, &world.run)?;
        let path = status.path();
        let line = match (step, &self.exec.run.cwd) {
            (Step::Env, _) => line::probe_env(shell, &self.exec.run.env, &path),
            (Step::Cwd, Some(dir)) => line::change_dir(shell, dir, &path),
            (Step::Cwd | Step::Command, _) => match self.command_line(world, shell, ids, &path) {
                Ok(line) => line,
                Err(error) => {
                    status.close(&world.poller);
                    return Err(error);
                }
            },
        };
        self.phase = Phase::Line { step, status, look: Moment::now().after(LOOK) };
        Ok(Some(line))
    }

    fn command_line(
        &mut self,
        world: &mut World,
        shell: Shell,
        ids: Ids,
        status: &str,
    ) -> std::io::Result<Vec<u8>> {
        let (sources, sinks) = output::open(world, self.exec.output, ids)?;
        self.sources = sources;
        let sinks = self.sinks.insert(sinks);
        let cmd = &self.exec.cmd;
        // A plain shell has no `$(<…)`, and `$(cat …)` would run whatever the payload calls so.
        let newlines_at_end = line::newlines_at_end(cmd);
        let path;
        let text = if shell == Shell::Bash && cmd.len() - newlines_at_end > INLINE_BYTES_MAX {
            let bytes = cmd.get(..cmd.len() - newlines_at_end).unwrap_or_default();
            path = self.text.insert(world.run.text(bytes)?).path();
            Text::InFile { path: &path, newlines_at_end }
        } else {
            Text::Inline(cmd)
        };
        let line = line::command(shell, text, &self.exec.run.env, sinks.outputs(), status);
        self.watch_outputs(world);
        Ok(line)
    }

    /// The command is over: reads what it has written, and waits a little for its children. Gives the
    /// phase that this ends.
    pub(crate) fn finish(&mut self, world: &World, outcome: Outcome) -> Phase {
        self.sinks = None;
        self.text = None;
        let now = Moment::now();
        self.finished = Some(now);
        for source in &mut self.sources {
            source.note_owed();
        }
        self.set_phase(world, Phase::Ending { outcome, until: now.after(QUIET) })
    }

    /// Gives the phase before.
    pub(crate) fn set_phase(&mut self, world: &World, phase: Phase) -> Phase {
        if let Phase::Line { status, .. } = &self.phase {
            status.unwatch(&world.poller);
        }
        std::mem::replace(&mut self.phase, phase)
    }

    /// Whether all output of the command is read, or has had its time.
    pub(crate) fn is_read(&self, until: Moment, now: Moment) -> bool {
        self.sources.iter().all(Source::is_over)
            || (now >= until && !self.sources.iter().any(Source::owes))
    }

    /// When something is due. A command that waits for credit has no time of its own.
    pub(crate) fn next_moment(&self) -> Option<Moment> {
        match &self.phase {
            Phase::Waiting => Some(self.timeout),
            Phase::Line { look, .. } => Some(self.timeout.min(*look)),
            Phase::Killing(killer) => killer.next_moment(),
            Phase::Ending { until, .. } if !self.sources.iter().any(Source::owes) => Some(*until),
            Phase::Ending { .. } | Phase::Settling { .. } => None,
        }
    }

    pub(crate) fn is_timed_out(&self, now: Moment) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Line { .. }) && now >= self.timeout
    }

    /// Whether the shell could open what it was to write to, and so ran the command.
    pub(crate) fn has_run(&self) -> bool {
        self.sources.iter().all(Source::was_opened)
    }

    /// Whether it is time to look at the shell; the next time is later.
    pub(crate) fn is_look_due(&mut self, now: Moment) -> bool {
        match &mut self.phase {
            Phase::Line { look, .. } if *look <= now => {
                *look = now.after(LOOK.max(now.since(self.started) / 4));
                true
            }
            Phase::Waiting
            | Phase::Line { .. }
            | Phase::Killing(_)
            | Phase::Ending { .. }
            | Phase::Settling { .. } => false,
        }
    }

    /// Reads and passes on what a source has. `false`: it is none of this command's.
    pub(crate) fn on_output(&mut self, world: &mut World, id: u32) -> bool {
        let Some(source) = self.sources.iter_mut().find(|s| s.id == id) else { return false };
        let is_attached = world.link.is_attached();
        let most = if is_attached { self.credit.saturating_sub(RECORD_COST) } else { u64::MAX };
        if most == 0 {
            return true;
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX).min(RECORD_BYTES_MAX);
        let data = source.read(&world.poller, most);
        let length = data.len() as u64;
        self.output_bytes += length;
        if data.is_empty() {
            return true;
        }
        if is_attached {
            self.seq += 1;
            let (seq, stream, at_ms) = (self.seq, source.stream, clock::wall_ms());
            let record = Record { seq, stream, at_ms, data };
            self.credit = self.credit.saturating_sub(record.cost());
            let frame = FromInit::Output { run: self.exec.run.id, records: vec![record] };
            world.link.send(&world.poller, &frame, None);
        } else {
            self.dropped_bytes += length;
        }
        self.watch_outputs(world);
        true
    }

    pub(crate) fn add_credit(&mut self, world: &World, cost: u64) {
        self.credit = self.credit.saturating_add(cost).min(WINDOW_COST);
        self.watch_outputs(world);
    }

    /// Another engine has attached, or the last one has gone.
    pub(crate) fn on_link_change(&mut self, world: &World) {
        self.credit = WINDOW_COST;
        self.watch_outputs(world);
    }

    pub(crate) fn end(&self, outcome: &Outcome, cwd: Vec<u8>) -> End {
        let finished = self.finished.unwrap_or_else(Moment::now);
        End {
            how: outcome.how,
            exit_code: outcome.exit_code,
            cwd,
            duration_ms: u64::try_from(finished.since(self.started).as_millis())
                .unwrap_or(u64::MAX),
            shell_restarted: self.shell_restarted,
            state_lost: false,
            output_bytes: self.output_bytes,
            dropped_bytes: self.dropped_bytes,
            seq: self.seq + 2,
        }
    }

    /// Ends this value; what still can write is left to the caller.
    pub(crate) fn into_sources(mut self, world: &World) -> Vec<Source> {
        self.set_phase(world, Phase::Waiting);
        self.sources
    }

    fn watch_outputs(&mut self, world: &World) {
        let wanted = if self.credit > RECORD_COST || !world.link.is_attached() {
            Wanted::Yes
        } else {
            Wanted::No
        };
        for source in &mut self.sources {
            source.watch(&world.poller, wanted);
        }
    }
}
