//! The keeper of the shell: it starts one, loses it, and puts another in its place.

use rustix::process::{Pid, Signal};
use sandkasten_protocol::How;

use crate::cwd;
use crate::exec::{Phase, State, Step, Work};
use crate::outcome::Outcome;
use crate::shell::{Change, ShellProcess};
use crate::supervisor::Ended;

use super::Session;

impl Session {
    pub(super) fn start_shell(&mut self) {
        self.kept.clear();
        // The payload may have put another in its place, or none.
        let Some(found) = self.setup.find(&self.world) else { return };
        self.saved.note_new_shell();
        self.shell = ShellProcess::start(&mut self.world, &self.setup, &found, &self.saved).ok();
        self.found = Some(found);
    }

    pub(super) fn on_change(&mut self, change: Change) {
        match change {
            Change::None => {}
            Change::Ready { pwd } => {
                let cwd = self.actual_cwd(&pwd);
                self.saved.take_over(cwd);
            }
            Change::Ended(ended) => self.on_shell_ended(ended),
        }
    }

    fn on_shell_ended(&mut self, ended: Ended) {
        self.take_last_record();
        self.take_last_dump();
        if let Some(shell) = self.shell.take() {
            self.forget_shell(shell, ended);
        }
    }

    fn forget_shell(&mut self, shell: ShellProcess, ended: Ended) {
        let was_ready = shell.is_ready();
        shell.close(&self.world);
        if let Some(running) = self.running.as_mut() {
            let outcome = match &running.phase {
                Phase::Waiting
                | Phase::Program { .. }
                | Phase::Ending { .. }
                | Phase::Settling { .. } => None,
                Phase::Line { step, .. } => {
                    let has_begun = *step == Step::Command && self.runs.were_opened(running.id());
                    Some(match ended {
                        // It has read to the end of its script without doing what stands there (`set -n`, no
                        // descriptor left).
                        Ended::Exited(_) if !has_begun => Outcome::of(How::Broken),
                        Ended::Exited(_) | Ended::Signaled(_) => Outcome::shell(ended),
                    })
                }
                Phase::Killing(killer) => Some(Outcome::of(killer.why)),
            };
            running.shell_restarted |= !matches!(running.phase, Phase::Waiting);
            if let Some(outcome) = outcome
                && let Phase::Killing(killer) =
                    running.finish(&mut self.world, &mut self.runs, outcome)
            {
                self.hunts.extend(killer.into_hunt());
            }
        }
        // One that dies before it is ready would die again: it is tried once more when it is needed.
        // So would one that is killed again and again without a command between.
        // What it was to load may be why: that is tried again, and then done without.
        let again = if was_ready {
            std::mem::take(&mut self.shell_is_wanted)
        } else {
            self.saved.on_failed_load()
        };
        if again {
            self.start_shell();
        }
    }

    /// Ends the shell and starts another; what it has started lives on.
    pub(super) fn replace_shell(&mut self) {
        self.dump_ahead = None;
        if let Some(dumping) = self.dumping.take() {
            dumping.close(&self.world.poller);
        }
        self.is_to_be_replaced = false;
        if let Some(shell) = self.shell.take() {
            shell.signal(&self.world, Signal::KILL);
            shell.close(&self.world);
        }
        self.start_shell();
    }

    pub(super) fn actual_cwd(&self, pwd: &[u8]) -> Vec<u8> {
        let shell = self.shell.as_ref().and_then(ShellProcess::tree);
        shell
            .and_then(|tree| Pid::from_raw(tree.shell))
            .and_then(|pid| {
                cwd::of(self.world.rights, self.world.proc.dir(), pid, self.setup.ids, pwd)
            })
            .unwrap_or_else(|| self.saved.cwd().to_vec())
    }

    pub(super) fn shell_pid(&self) -> Option<Pid> {
        let tree = self.shell.as_ref().and_then(ShellProcess::tree)?;
        Pid::from_raw(tree.shell)
    }

    /// The last shell could not be kept alive: one more try, for the command that wants it.
    pub(super) fn start_shell_for_command(&mut self) {
        if std::mem::take(&mut self.shell_is_wanted) {
            self.start_shell();
        } else if let Some(running) = self.running.as_mut() {
            running.finish(&mut self.world, &mut self.runs, Outcome::of(How::NoShell));
        }
    }

    pub(super) fn restart_shell(&mut self) {
        let Some(running) = self.running.as_mut() else { return };
        running.shell_restarted = true;
        running.finish(&mut self.world, &mut self.runs, Outcome::exited(0));
        if matches!(running.work, Work::Restart(State::Fresh)) {
            self.saved.forget();
        }
        self.replace_shell();
    }

    pub(super) fn replace_if_broken(&mut self) {
        if std::mem::take(&mut self.is_to_be_replaced) {
            self.replace_shell();
        }
    }

    /// What lives now outlives the timeout of a later command.
    pub(super) fn note_kept(&mut self) {
        self.kept.clear();
        let Some(tree) = self.shell.as_ref().and_then(ShellProcess::tree) else { return };
        let proc = &self.world.proc;
        let lonely = proc.children(tree.shell).is_some_and(|c| c.is_empty())
            && proc.children(tree.supervisor).is_some_and(|c| c == [tree.shell]);
        if lonely {
            return;
        }
        if let Ok(table) = proc.table() {
            self.kept = tree.members(&table).iter().map(|p| (p.pid, p.start)).collect();
        }
    }
}
