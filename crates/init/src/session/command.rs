//! The command that runs: its lines, what its shell says of them, and its end.

use std::os::fd::AsFd;

use sandkasten_protocol::{Begun, How, Shell};

use crate::accounts::Account;
use crate::clock::{self, Moment};
use crate::exec::{Phase, Running, Step, Work};
use crate::kill::Killer;
use crate::line;
use crate::outcome::Outcome;
use crate::program::{self, Feed};
use crate::root;
use crate::runs::Tell;
use crate::state::Options;
use crate::status::{Record, Said};
use crate::supervisor::Base;

use super::Session;

impl Session {
    /// Begins the command whose turn it is, if it is one's turn.
    pub(super) fn begin_next(&mut self, tell: Tell) -> bool {
        let is_unheard = self.unsettled.is_some() && self.world.link.is_attached();
        if self.running.is_some() || is_unheard {
            return false;
        }
        let Some(exec) = self.queue.pop() else { return false };
        let begun = Begun { at_ms: clock::wall_ms(), pid: None };
        self.runs.begin(&mut self.world, exec.run.id, begun, tell);
        self.shell_is_wanted = true;
        let bad_name = exec.run.env.iter().any(|(name, _)| !line::is_name(name));
        let running = self.running.insert(Running::new(exec));
        if bad_name {
            running.finish(&mut self.world, &mut self.runs, Outcome::of(How::ReadOnlyEnv));
        } else if self.dumping.is_some() {
            running.wait_for_dump();
        }
        true
    }

    /// What a shell has said before its end still counts. A FIFO that it never opened reads as ended.
    pub(super) fn take_last_record(&mut self) {
        let phase = self.running.as_mut().map(|r| &mut r.phase);
        if let Some(Phase::Line { step, status, .. }) = phase
            && let Said::Record(record) = status.read()
        {
            let step = *step;
            self.on_record(step, &record);
        }
    }

    pub(super) fn is_status_of_running(&self, id: u32) -> bool {
        let phase = self.running.as_ref().map(|r| &r.phase);
        matches!(phase, Some(Phase::Line { status, .. }) if status.id == id)
    }

    pub(super) fn on_status(&mut self) {
        let Some(running) = self.running.as_mut() else { return };
        let Phase::Line { step, status, .. } = &mut running.phase else { return };
        let step = *step;
        match status.read() {
            Said::NotYet => {}
            Said::Record(record) => self.on_record(step, &record),
            Said::Broken => {
                status.unwatch(&self.world.poller);
                self.kill_running(How::Broken);
            }
        }
    }

    fn on_record(&mut self, step: Step, record: &Record) {
        let cwd = self.actual_cwd(&record.pwd);
        let Some(running) = self.running.as_mut() else { return };
        let outcome = match (step, record.code()) {
            (_, None) => return self.kill_running(How::Broken),
            (Step::Command, Some(_)) if !self.runs.were_opened(running.id()) => {
                return self.kill_running(How::Broken);
            }
            (Step::Command, Some(code)) => Outcome::exited(code),
            (Step::Variables, Some(code)) => return self.on_variables(code),
            (Step::Env | Step::Cwd, Some(0)) => {
                running.set_phase(&self.world, Phase::Waiting);
                return;
            }
            (Step::Env, Some(_)) => Outcome::of(How::ReadOnlyEnv),
            (Step::Cwd, Some(_)) => Outcome::of(How::BadCwd),
        };
        self.saved.take_over(cwd);
        self.saved.note_finished();
        let has_broken_heap = outcome.exit_code == 2
            && self.shell.as_ref().is_some_and(|s| s.breaks_on_open_substitution)
            && matches!(&running.work, Work::Command { cmd, .. } if has_substitution(cmd));
        running.finish(&mut self.world, &mut self.runs, outcome);
        if has_broken_heap {
            running.shell_restarted = true;
            self.is_to_be_replaced = true;
        }
    }

    /// Ends the command, what it has started, and the shell.
    pub(super) fn kill_running(&mut self, why: How) {
        let Some(running) = self.running.as_mut() else { return };
        match running.phase {
            Phase::Waiting => {
                running.finish(&mut self.world, &mut self.runs, Outcome::of(why));
                // The shell has had long enough for its state.
                if why == How::Timeout && self.dumping.is_some() {
                    running.shell_restarted = true;
                    self.replace_shell();
                }
            }
            Phase::Line { .. } => {
                let tree = self.shell.as_ref().and_then(|s| Some((s, s.tree()?)));
                if let Some((shell, tree)) = tree {
                    let hunt = (tree, self.kept.clone());
                    let killer = Killer::new(&self.world, shell, hunt, why);
                    running.set_phase(&self.world, Phase::Killing(killer));
                } else {
                    running.finish(&mut self.world, &mut self.runs, Outcome::of(why));
                }
            }
            Phase::Program { .. } => {
                running.phase = Phase::Program { killed_for: Some(why) };
                self.programs.kill(&self.world, running.id(), why);
            }
            Phase::Killing(_) | Phase::Ending { .. } | Phase::Settling { .. } => {}
        }
    }

    /// A shell that waits for its next line without having ended this one never will.
    pub(super) fn look_at_shell(&mut self) {
        let ids = self.setup.ids;
        if self.shell.as_ref().is_some_and(|shell| shell.waits_for_script(&self.world, ids)) {
            // What it said before it began to wait.
            self.on_status();
            if matches!(self.running.as_ref().map(|r| &r.phase), Some(Phase::Line { .. })) {
                self.kill_running(How::Broken);
            }
        }
    }

    /// Takes the command as far as it can go without another event.
    pub(super) fn proceed(&mut self) {
        loop {
            let Some(running) = self.running.as_mut() else {
                if self.begin_next(Tell::Engine) {
                    continue;
                }
                return;
            };
            match &running.phase {
                Phase::Waiting
                    if self.dumping.is_some() && !running.gives_up_dump(Moment::now()) =>
                {
                    return;
                }
                Phase::Waiting if matches!(running.work, Work::Restart(_)) => self.restart_shell(),
                Phase::Waiting if running.variables.is_some() => self.start_roots_command(),
                Phase::Waiting => match &self.shell {
                    Some(shell) if shell.is_ready() => self.say_next_line(),
                    Some(_) => return,
                    None => self.start_shell_for_command(),
                },
                Phase::Line { .. } | Phase::Killing(_) | Phase::Program { .. } => return,
                Phase::Ending { outcome, until } => {
                    if !self.runs.is_read(running.id(), *until, Moment::now()) {
                        return;
                    }
                    let outcome = outcome.clone();
                    running.set_phase(&self.world, Phase::Settling { outcome });
                }
                Phase::Settling { outcome } => {
                    if self.shell.as_ref().is_some_and(|s| !s.is_ready()) {
                        return;
                    }
                    let outcome = match running.work {
                        Work::Restart(_) if self.shell.is_none() => Outcome::of(How::NoShell),
                        Work::Restart(_) | Work::Command { .. } => outcome.clone(),
                    };
                    self.end_running(&outcome);
                }
            }
        }
    }

    fn say_next_line(&mut self) {
        let (Some(running), Some(shell)) = (self.running.as_mut(), self.shell.as_mut()) else {
            return;
        };
        let mode = match self.saved.options() {
            Options::Usual => line::Mode::Bash,
            Options::Posix | Options::Traced | Options::Unknown => line::Mode::MayBePosix,
        };
        let both = (&mut self.world, &mut self.runs);
        match running.next_line(both, (shell.kind, mode), self.setup.ids) {
            Ok(Some(mut line)) => {
                // bash goes on to its state by itself. Another shell reads ahead, and a subshell of it might
                // come upon that line.
                if shell.kind == Shell::Bash && running.says_command() {
                    line.extend(self.dump_line_ahead());
                }
                if let Some(shell) = self.shell.as_mut() {
                    shell.say(&self.world, &line);
                }
            }
            // No descriptor or no room for a FIFO; the command has not begun.
            Ok(None) | Err(_) => {
                drop(running.finish(&mut self.world, &mut self.runs, Outcome::of(How::Broken)));
            }
        }
    }

    pub(super) fn is_of_helper(&self, status: u32) -> bool {
        let helper = self.running.as_ref().and_then(|running| running.helper.as_ref());
        helper.is_some_and(|helper| helper.owns(status))
    }

    pub(super) fn on_helper(&mut self) {
        let shell = self.shell_pid();
        if let Some(helper) = self.running.as_mut().and_then(|running| running.helper.as_mut()) {
            helper.on_status(&self.world, shell, self.setup.ids);
        }
    }

    /// The shell's helper has ended.
    fn on_variables(&mut self, code: i32) {
        let Some(running) = self.running.as_mut() else { return };
        running.close_helper(&self.world);
        if running.variables.is_some() {
            running.set_phase(&self.world, Phase::Waiting);
            return;
        }
        // 126 and 127: there is no `sh`, for root neither.
        let outcome = if code >= 126 { Outcome::exited(code) } else { Outcome::of(How::Broken) };
        running.finish(&mut self.world, &mut self.runs, outcome);
    }

    fn start_roots_command(&mut self) {
        let started = self.try_roots_command();
        let Some(running) = self.running.as_mut() else { return };
        match started {
            Ok(()) => drop(running.set_phase(&self.world, Phase::Program { killed_for: None })),
            Err(outcome) => drop(running.finish(&mut self.world, &mut self.runs, outcome)),
        }
    }

    fn try_roots_command(&mut self) -> Result<(), Outcome> {
        let shell = self.shell_pid();
        let broken = || Outcome::of(How::Broken);
        let running = self.running.as_mut().ok_or_else(broken)?;
        let Work::Command { cmd, output, user } = &running.work else { return Err(broken()) };
        let account = Account::of_run(self.world.rights, self.setup.ids, user)?;
        let account = account.ok_or_else(broken)?;
        let (variables, cmd) = (running.variables.take().unwrap_or_default(), cmd.clone());
        let text = if cmd.len() > root::ARGUMENT_BYTES_MAX {
            let file = self.world.run.text(&cmd).map_err(|_no_room| broken())?;
            [b". ", running.text.insert(file).path().as_bytes()].concat()
        } else {
            cmd
        };
        let feed = match &mut running.input {
            Some(input) => {
                let pipe = program::owned_pipe(&self.world, account.ids);
                let (read, write) = pipe.map_err(|_no_descriptor| broken())?;
                rustix::io::ioctl_fionbio(&write, true).map_err(|_never| broken())?;
                input.open_for_program(&self.world.poller, write);
                Feed::Given(read)
            }
            None => Feed::Empty,
        };
        let dir = shell.and_then(|pid| root::dir_of(&self.world, pid, self.setup.ids).ok());
        let base = dir.as_ref().map(|dir| Base::Open(dir.as_fd())).ok_or_else(broken)?;
        let command = (text, *output);
        let order = root::order(&account, command, &variables, &running.run, (base, feed))?;
        let both = (&mut self.world, &mut self.runs);
        self.programs.start(both, &self.setup, &running.run, order)
    }

    fn end_running(&mut self, outcome: &Outcome) {
        let Some(mut running) = self.running.take() else { return };
        running.set_phase(&self.world, Phase::Waiting);
        let mut end = running.end(outcome, self.saved.cwd().to_vec());
        end.state_lost = self.saved.take_lost();
        self.runs.end(&mut self.world, running.id(), end);
        self.unsettled = Some(running.id());
        // The answer leaves before anything else is done.
        self.world.link.flush(&self.world.poller);
        self.shell_is_wanted = true;
        self.start_dump(self.saved.words());
        // The words of a dump start nothing.
        self.note_kept();
        self.world.run.make_spares();
        if let Some(shell) = self.shell.as_mut() {
            shell.make_spare(&self.world);
        }
    }
}

fn has_substitution(cmd: &[u8]) -> bool {
    cmd.windows(2).any(|two| two == b"$(")
}
