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

use sandkasten_protocol::{Bytes, End, How, OutputMode, Run, RunUser, Shell};

use crate::clock::Moment;
use crate::input::Input;
use crate::kill::Killer;
use crate::line::{self, Streams};
use crate::outcome::{Outcome, QUIET};
use crate::output::{self, Sinks};
use crate::rights::Ids;
use crate::root::Helper;
use crate::runs::Runs;
use crate::runtime::Entry;
use crate::status::Status;
use crate::world::World;

/// How long a restart waits for the state of a shell that is asked for it.
const DUMP_PATIENCE: Duration = Duration::from_secs(1);
/// How long a command waits for the state of the shell before its time runs.
const DUMP_WAIT: Duration = Duration::from_secs(2);
/// Output of a command is not listened for before this: most are over by then, and each time that bash opens
/// or closes the FIFO of one that has none would wake init for nothing. A stream's first chunk may be late by
/// as much.
const LISTEN: Duration = Duration::from_millis(2);
/// Between two looks at a shell that is silent for long.
const LOOK: Duration = Duration::from_millis(200);

/// What is done in the shell, one after the other.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) run: Run,
    pub(crate) work: Work,
    /// `None`: its stdin is empty.
    pub(crate) input: Option<Input>,
}

#[derive(Debug)]
pub(crate) enum Work {
    Command {
        cmd: Bytes,
        output: OutputMode,
        user: RunUser,
    },
    /// A new shell.
    Restart(State),
}

/// What a new shell has of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Kept,
    Fresh,
}

#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) run: Run,
    pub(crate) work: Work,
    pub(crate) input: Option<Input>,
    pub(crate) phase: Phase,
    pub(crate) shell_restarted: bool,
    started: Moment,
    finished: Option<Moment>,
    timeout: Moment,
    steps: VecDeque<Step>,
    sinks: Option<Sinks>,
    /// Closed with this value.
    spent: Vec<Status>,
    pub(crate) text: Option<Entry>,
    /// Of root's command: what reads the shell's variables, and these.
    pub(crate) helper: Option<Helper>,
    pub(crate) variables: Option<Vec<Bytes>>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    /// For a shell that takes commands.
    Waiting,
    /// `listen`: when to begin to read output; `look`: when to see whether the shell can still answer.
    Line {
        step: Step,
        status: Status,
        listen: Option<Moment>,
        look: Moment,
    },
    Killing(Killer),
    /// Root's command is a program of its own; `killed_for`: it is being ended.
    Program {
        killed_for: Option<How>,
    },
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
    /// What the shell exports, for root's command.
    Variables,
}

impl Running {
    pub(crate) fn new(exec: Exec) -> Self {
        let Exec { run, work, input } = exec;
        let started = Moment::now();
        let mut steps = VecDeque::new();
        let is_of_another =
            matches!(&work, Work::Command { user, .. } if *user != RunUser::Session);
        if is_of_another {
            // Its directory and environment are its own.
            steps.push_back(Step::Variables);
        } else {
            if !run.env.is_empty() {
                steps.push_back(Step::Env);
            }
            if run.cwd.is_some() {
                steps.push_back(Step::Cwd);
            }
            steps.push_back(Step::Command);
        }
        Self {
            timeout: started.after(time_of(&run)),
            run,
            work,
            input,
            phase: Phase::Waiting,
            shell_restarted: false,
            started,
            finished: None,
            steps,
            sinks: None,
            spent: Vec::new(),
            text: None,
            helper: None,
            variables: None,
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.run.id
    }

    /// The next line for the shell; the phase is that line's then.
    pub(crate) fn next_line(
        &mut self,
        (world, runs): (&mut World, &mut Runs),
        (shell, mode): (Shell, line::Mode),
        ids: Ids,
    ) -> std::io::Result<Option<Vec<u8>>> {
        let Some(step) = self.steps.pop_front() else { return Ok(None) };
        let status = Status::new(&mut world.poller, &mut world.run)?;
        let path = status.path();
        let line = match (step, &self.run.cwd) {
            (Step::Env, _) => line::probe_env(shell, &self.run.env, &path),
            (Step::Variables, _) => match Helper::new(world) {
                Ok(helper) => self.helper.insert(helper).line(shell, &path),
                Err(error) => {
                    status.close(&world.poller);
                    return Err(error);
                }
            },
            (Step::Cwd, Some(dir)) => line::change_dir(shell, dir, &path),
            (Step::Cwd | Step::Command, _) => {
                match self.command_line((world, runs), (shell, mode), ids, &path) {
                    Ok(line) => line,
                    Err(error) => {
                        status.close(&world.poller);
                        return Err(error);
                    }
                }
            }
        };
        let now = Moment::now();
        let listen = (step == Step::Command).then(|| now.after(LISTEN));
        self.phase = Phase::Line { step, status, listen, look: now.after(LOOK) };
        Ok(Some(line))
    }

    /// Whether the line that was said last is the command itself.
    pub(crate) fn says_command(&self) -> bool {
        matches!(self.phase, Phase::Line { step: Step::Command, .. })
    }

    fn command_line(
        &mut self,
        (world, runs): (&mut World, &mut Runs),
        (shell, mode): (Shell, line::Mode),
        ids: Ids,
        status: &str,
    ) -> std::io::Result<Vec<u8>> {
        let Work::Command { cmd, output, .. } = &self.work else { return Ok(b"\n".to_vec()) };
        let (sources, sinks) = output::open(world, *output, ids)?;
        for source in sources {
            runs.add_quiet_source(self.run.id, source);
        }
        let sinks = self.sinks.insert(sinks);
        let input = match &mut self.input {
            Some(input) => {
                input.open_for_shell(&world.poller, &world.run)?;
                input.path()
            }
            None => None,
        };
        let input = input.as_deref().unwrap_or(line::NO_INPUT);
        let streams = Streams { input, outputs: sinks.outputs() };
        Ok(line::command((shell, mode), cmd, &self.run.env, streams, status))
    }

    /// The command is over: reads what it has written, and waits a little for its children. Gives the
    /// phase that this ends.
    pub(crate) fn finish(&mut self, world: &mut World, runs: &mut Runs, outcome: Outcome) -> Phase {
        // A terminal's slave goes at once, or its master would never end; names go with this value,
        // when the answer has left.
        self.sinks = self.sinks.take().filter(|sinks| !matches!(sinks, Sinks::Pty { .. }));
        self.close_helper(world);
        if let Some(input) = self.input.take() {
            input.close(&world.poller);
        }
        let now = Moment::now();
        self.finished = Some(now);
        runs.note_over(world, self.run.id);
        self.set_phase(world, Phase::Ending { outcome, until: now.after(QUIET) })
    }

    /// The variables are there, or never will be.
    pub(crate) fn close_helper(&mut self, world: &World) {
        if let Some(helper) = self.helper.take() {
            self.variables = helper.close(world);
        }
    }

    /// Gives the phase before, but for the lines that were said.
    pub(crate) fn set_phase(&mut self, world: &World, phase: Phase) -> Phase {
        match std::mem::replace(&mut self.phase, phase) {
            Phase::Line { status, .. } => {
                status.unwatch(&world.poller);
                self.spent.push(status);
                Phase::Waiting
            }
            before @ (Phase::Waiting
            | Phase::Killing(_)
            | Phase::Program { .. }
            | Phase::Ending { .. }
            | Phase::Settling { .. }) => before,
        }
    }

    /// Whether this is done even if the shell has not written its state by then.
    pub(crate) fn gives_up_dump(&self, now: Moment) -> bool {
        self.dump_by().is_some_and(|by| by <= now)
    }

    /// A new shell is asked for where the old one does not go on.
    fn dump_by(&self) -> Option<Moment> {
        match (&self.phase, &self.work) {
            (Phase::Waiting, Work::Restart(State::Fresh)) => Some(self.started),
            (Phase::Waiting, Work::Restart(State::Kept)) => Some(self.started.after(DUMP_PATIENCE)),
            _ => None,
        }
    }

    /// The shell still writes the state of the command before: that is not this one's time.
    pub(crate) fn wait_for_dump(&mut self) {
        self.timeout = self.timeout.max(self.started.after(DUMP_WAIT));
    }

    /// The shell has written it: the time begins.
    pub(crate) fn on_dump_over(&mut self) {
        if matches!(self.phase, Phase::Waiting) {
            self.started = Moment::now();
            self.timeout = self.started.after(time_of(&self.run));
        }
    }

    /// When something is due. A command that waits for credit has no time of its own.
    pub(crate) fn next_moment(&self, runs: &Runs) -> Option<Moment> {
        match &self.phase {
            Phase::Waiting => self.dump_by().into_iter().chain([self.timeout]).min(),
            Phase::Line { look, listen, .. } => {
                [self.timeout, *look].into_iter().chain(*listen).min()
            }
            Phase::Killing(killer) => killer.next_moment(),
            Phase::Program { killed_for: None } => Some(self.timeout),
            Phase::Program { killed_for: Some(_) } => None,
            Phase::Ending { until, .. } if !runs.owes(self.run.id) => Some(*until),
            Phase::Ending { .. } | Phase::Settling { .. } => None,
        }
    }

    pub(crate) fn is_timed_out(&self, now: Moment) -> bool {
        let may_time_out = matches!(
            self.phase,
            Phase::Waiting | Phase::Line { .. } | Phase::Program { killed_for: None }
        );
        may_time_out && now >= self.timeout
    }

    /// Reads the command's output as it comes, once it is time to.
    pub(crate) fn listen(&mut self, world: &World, runs: &mut Runs, now: Moment) {
        if let Phase::Line { listen, .. } = &mut self.phase
            && listen.is_some_and(|at| at <= now)
        {
            *listen = None;
            runs.listen(world, self.run.id);
        }
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
            | Phase::Program { .. }
            | Phase::Ending { .. }
            | Phase::Settling { .. } => false,
        }
    }

    /// The numbers of its output are not in it.
    pub(crate) fn end(&self, outcome: &Outcome, cwd: Vec<u8>) -> End {
        let finished = self.finished.unwrap_or_else(Moment::now);
        End {
            duration_ms: u64::try_from(finished.since(self.started).as_millis())
                .unwrap_or(u64::MAX),
            shell_restarted: self.shell_restarted,
            ..outcome.end(cwd)
        }
    }
}

fn time_of(run: &Run) -> Duration {
    run.timeout_ms.map_or(Duration::MAX, Duration::from_millis)
}
