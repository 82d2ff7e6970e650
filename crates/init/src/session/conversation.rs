//! The conversation with the engine: what it asks for, and what it is told.
//!
//! Invariant: a frame that nobody may send ends the connection, and nothing else.

use sandkasten_protocol::{
    Bytes, DATA_BYTES_MAX, FromInit, Hello, How, OutputMode, Run, RunUser, Stdin, Task, ToInit,
    VERSION, Window,
};

use crate::exec::{Exec, State, Work};
use crate::input::{Input, More};
use crate::link::Heard;
use crate::outcome::Outcome;
use crate::runs::Tell;

use super::Session;

impl Session {
    pub(super) fn on_connection(&mut self, id: u32) {
        if self.world.link.ready(&self.world.poller, id) == Heard::Attached {
            self.greet();
        }
        self.on_frames();
    }

    fn on_frames(&mut self) {
        while let Some(frame) = self.world.link.next_frame(&self.world.poller) {
            if self.on_frame(frame) == Verdict::Broken {
                self.world.link.close(&self.world.poller);
            }
        }
    }

    /// Sends what this turn has to say. Where that makes room, frames that waited for it are handled,
    /// and runs are read that did.
    pub(super) fn serve_engine(&mut self) {
        self.world.link.flush(&self.world.poller);
        while self.world.link.is_behind() {
            self.on_frames();
            self.proceed();
            self.world.link.flush(&self.world.poller);
        }
        self.files.let_go();
        self.note_link_change();
        self.runs.look_at_link(&self.world);
    }

    fn greet(&mut self) {
        self.files.abort_all(&self.world);
        self.runs.on_link_change(&self.world);
        let known = self.runs.known();
        let hello = FromInit::Hello(Hello {
            version: VERSION,
            nonce: self.nonce,
            shell: self.found.as_ref().map(|found| found.kind),
            cwd: self.saved.cwd().to_vec(),
            cwd_fault: self.cwd_fault,
            runs: u32::try_from(known.len()).unwrap_or(u32::MAX),
            next_run: self.runs.next_run(),
        });
        self.world.link.queue(&hello, None);
        for known in known {
            self.world.link.queue(&FromInit::Known(known), None);
        }
    }

    fn on_frame(&mut self, frame: ToInit) -> Verdict {
        match frame {
            ToInit::Attach { .. } => return Verdict::Broken,
            ToInit::Begin { run, task } => return self.on_begin(run, task),
            ToInit::Cancel { run } => self.cancel(run),
            ToInit::Credit { run, cost } => self.runs.add_credit(&self.world, run, cost),
            ToInit::Unpace { run } => self.runs.unpace(&self.world, run),
            ToInit::Settle { run, note } => {
                if self.runs.settle(run, note).is_err() {
                    return Verdict::Broken;
                }
                self.unsettled = self.unsettled.filter(|unsettled| *unsettled != run);
            }
            ToInit::Replay(replay) => self.runs.replay(&mut self.world, replay),
            ToInit::Unwait { tag } => self.runs.unwait(&mut self.world, tag),
            ToInit::Stdin { run, data, is_last } => {
                let more = if is_last { More::Never } else { More::MayCome };
                return self.on_stdin(run, &data, more);
            }
            ToInit::Signal { run, signal, to } => {
                self.programs.signal(&self.world, run, (signal, to));
            }
            ToInit::Resize { run, window } => self.programs.resize(run, window),
            ToInit::File { tag, op } => {
                let (result, descriptor) = self.files.run(&self.world, op);
                let answer = FromInit::File { tag, result };
                self.world.link.queue(&answer, descriptor);
            }
        }
        Verdict::Fine
    }

    fn on_begin(&mut self, run: Run, task: Task) -> Verdict {
        let work = match task {
            Task::Command { cmd, output, user } => Work::Command { cmd, output, user },
            Task::Restart { keep_state: true } => Work::Restart(State::Kept),
            Task::Restart { keep_state: false } => Work::Restart(State::Fresh),
            Task::Program { argv, user, tty } => return self.on_program(run, (argv, user, tty)),
        };
        let input = match run.stdin {
            Stdin::Empty => None,
            Stdin::Piped => Some(Input::for_command(&mut self.world.poller)),
        };
        self.on_exec(Exec { run, work, input })
    }

    fn on_exec(&mut self, mut exec: Exec) -> Verdict {
        if matches!(exec.work, Work::Command { output: OutputMode::Pty, .. })
            && !exec.run.env.iter().any(|(name, _)| name == b"TERM")
        {
            exec.run.env.extend(self.setup.terminal());
        }
        let is_right = !has_nul(&exec) && self.queue.has_room_for(&exec);
        if !is_right || self.runs.enter(&mut exec.run).is_err() {
            return Verdict::Broken;
        }
        let tell = if self.queue.is_empty() { Tell::Nobody } else { Tell::Engine };
        self.queue.push(exec);
        if self.begin_next(tell) {
            self.proceed();
        }
        Verdict::Fine
    }

    fn on_stdin(&mut self, run: u64, data: &[u8], more: More) -> Verdict {
        if data.len() > DATA_BYTES_MAX {
            return Verdict::Broken;
        }
        let running = self.running.as_mut().filter(|running| running.id() == run);
        let input = match running {
            Some(running) => running.input.as_mut(),
            None => match self.queue.get_mut(run) {
                Some(exec) => exec.input.as_mut(),
                None => self.programs.input(run),
            },
        };
        let Some(input) = input else {
            // Nobody reads it any more.
            self.tell_taken(run, data.len() as u64);
            return Verdict::Fine;
        };
        if input.push(&self.world.poller, self.saved.spool(), (data, more)).is_err() {
            return Verdict::Broken;
        }
        let bytes = input.take_taken();
        self.tell_taken(run, bytes);
        Verdict::Fine
    }

    /// Stdin of a program or of the command goes on.
    pub(super) fn on_input(&mut self, id: u32) {
        self.programs.on_input(&mut self.world, id);
        let Some(running) = self.running.as_mut() else { return };
        let run = running.id();
        let Some(input) = running.input.as_mut().filter(|input| input.id == id) else { return };
        input.on_event(&self.world.poller);
        let bytes = input.take_taken();
        self.tell_taken(run, bytes);
    }

    fn tell_taken(&mut self, run: u64, bytes: u64) {
        if bytes > 0 {
            self.world.link.queue(&FromInit::Taken { run, bytes }, None);
        }
    }

    fn on_program(
        &mut self,
        mut run: Run,
        (argv, user, tty): (Vec<Bytes>, RunUser, Option<Window>),
    ) -> Verdict {
        if self.runs.enter(&mut run).is_err() {
            return Verdict::Broken;
        }
        let both = (&mut self.world, &mut self.runs);
        if let Err(outcome) = self.programs.begin(both, &self.setup, &run, (argv, &user, tty)) {
            let end = outcome.end(self.saved.cwd().to_vec());
            self.runs.end(&mut self.world, run.id, end);
        }
        Verdict::Fine
    }

    fn cancel(&mut self, run: u64) {
        if self.running.as_ref().is_some_and(|running| running.id() == run) {
            self.kill_running(How::Cancelled);
        } else if self.queue.remove(run).is_some() {
            let end = Outcome::of(How::Cancelled).end(self.saved.cwd().to_vec());
            self.runs.end(&mut self.world, run, end);
        } else {
            self.programs.kill(&self.world, run, How::Cancelled);
        }
    }

    /// Notices that the engine has gone.
    pub(super) fn note_link_change(&mut self) {
        let is_attached = self.world.link.is_attached();
        if self.was_attached && !is_attached {
            self.files.abort_all(&self.world);
            self.runs.on_link_change(&self.world);
        }
        self.was_attached = is_attached;
    }
}

/// A shell can't be given that.
fn has_nul(exec: &Exec) -> bool {
    let cmd = match &exec.work {
        Work::Command { cmd, .. } => Some(cmd),
        Work::Restart(_) => None,
    };
    let texts = cmd.into_iter().chain(&exec.run.cwd);
    let mut texts = texts.chain(exec.run.env.iter().flat_map(|(name, value)| [name, value]));
    texts.any(|text| text.contains(&0))
}

/// Whether a frame may stand where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    Broken,
}
