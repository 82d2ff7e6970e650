//! The session: the loop, and what each event means for the shell and the command that runs.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};
use sandkasten_protocol::{
    Begun, Bytes, DATA_BYTES_MAX, FileFault, FromInit, Hello, How, OutputMode, Run, RunUser, Shell,
    Stdin, Task, ToInit, VERSION, Window,
};

use crate::accounts::Account;
use crate::clock::{self, Moment};
use crate::cwd;
use crate::dump::{Dumping, Got};
use crate::exec::{Exec, Phase, Running, State, Step, Work};
use crate::files::Files;
use crate::input::{Input, More};
use crate::kill::{Found as Met, Hunt, Killer, Pass};
use crate::line;
use crate::link::Heard;
use crate::lookup;
use crate::outcome::Outcome;
use crate::poll::Token;
use crate::processes::Kept;
use crate::program::{self, Feed, Programs};
use crate::queue::Queue;
use crate::root;
use crate::runs::{Runs, Tell};
use crate::runtime::Entry;
use crate::shell::{Change, Found, Setup, ShellProcess};
use crate::state::{self, Options, Saved, Words};
use crate::status::{Record, Said};
use crate::supervisor::{Base, Ended};
use crate::world::World;

/// Children that are reaped before other events have their turn.
const REAP_BATCH: usize = 256;

#[derive(Debug)]
pub(crate) struct Session {
    world: World,
    nonce: [u8; 16],
    children: OwnedFd,
    /// More children may wait to be reaped than one batch took.
    reap_again: bool,
    setup: Setup,
    found: Option<Found>,
    shell: Option<ShellProcess>,
    /// A command has run in this shell, or it has just been asked for.
    shell_is_wanted: bool,
    running: Option<Running>,
    /// Commands that come after it.
    queue: Queue,
    /// The last command that ended; the engine has not said yet that it knows.
    unsettled: Option<u64>,
    runs: Runs,
    kept: Kept,
    /// For what some earlier command has started and that did not die in time.
    hunts: Vec<Hunt>,
    saved: Saved,
    /// A file with what bash writes its state by.
    dump_words: Option<(Words, Entry)>,
    /// The shell is writing its state. The next command waits for that.
    dumping: Option<Dumping>,
    /// The shell will write its state when the command is over: it has been told to already.
    dump_ahead: Option<Dumping>,
    /// The shell is not to be trusted with another command.
    is_to_be_replaced: bool,
    programs: Programs,
    files: Files,
    was_attached: bool,
    /// Why the directory that was asked for at the start could not be made or entered.
    cwd_fault: Option<FileFault>,
}

impl Session {
    pub(crate) fn new(
        world: World,
        (nonce, children): ([u8; 16], OwnedFd),
        setup: Setup,
        saved: Saved,
        runs: Runs,
    ) -> Self {
        let found = setup.find(&world);
        let files = Files::new(setup.ids);
        let mut session = Self {
            world,
            nonce,
            children,
            reap_again: false,
            setup,
            found,
            shell: None,
            shell_is_wanted: true,
            running: None,
            queue: Queue::default(),
            unsettled: None,
            runs,
            kept: Kept::new(),
            hunts: Vec::new(),
            saved,
            dump_words: None,
            dumping: None,
            dump_ahead: None,
            is_to_be_replaced: false,
            programs: Programs::default(),
            files,
            was_attached: false,
            cwd_fault: None,
        };
        session.cwd_fault = session.make_first_dir().err();
        session.start_shell();
        session
    }

    /// Makes the directory that the shell starts in where it is missing, with the rights of its user.
    fn make_first_dir(&self) -> Result<(), FileFault> {
        self.world.rights.act_as(self.setup.ids, || lookup::enterable_dir(self.saved.cwd()))
    }

    /// Serves for ever. It comes back only when the poller itself fails.
    pub(crate) fn run(mut self) -> std::io::Result<()> {
        loop {
            let tokens = self.world.poller.wait(self.timeout())?;
            for token in tokens {
                self.on_event(token);
            }
            if self.reap_again {
                self.reap();
            }
            self.on_time(Moment::now());
            self.proceed();
            self.serve_engine();
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if self.reap_again {
            return Some(Duration::ZERO);
        }
        let shell = self.shell.as_ref().and_then(ShellProcess::next_moment);
        let running = self.running.as_ref().and_then(|r| r.next_moment(&self.runs));
        let hunts = self.hunts.iter().map(Hunt::next_moment);
        let dump = self.dumping.as_ref().map(Dumping::next_moment);
        let programs = self.programs.next_moment(&self.runs);
        let others = running.into_iter().chain(hunts).chain(dump).chain(programs);
        let next = shell.into_iter().chain(others).min()?;
        Some(next.since(Moment::now()))
    }

    fn on_event(&mut self, token: Token) {
        match token {
            Token::Listener => self.world.link.accept(&mut self.world.poller),
            Token::Children => self.reap(),
            Token::Connection(id) => self.on_connection(id),
            Token::Output(id) => self.runs.on_output(&mut self.world, id),
            Token::Status(id) if self.is_status_of_running(id) => self.on_status(),
            Token::Status(id) if self.is_of_helper(id) => self.on_helper(),
            Token::Dump(id) if self.dumping.as_ref().is_some_and(|d| d.id() == id) => {
                self.on_dump();
            }
            Token::Dump(_) => {}
            Token::Input(id) => self.on_input(id),
            Token::Report(_)
            | Token::ProcessEnd(_)
            | Token::Birth(_)
            | Token::Script(_)
            | Token::Status(_) => {
                self.programs.on_event((&mut self.world, &mut self.runs), token);
                let Some(shell) = self.shell.as_mut() else { return };
                let change = shell.on_event(&mut self.world, token);
                self.on_change(change);
            }
        }
        self.note_link_change();
    }

    // ---- the engine ----

    fn on_connection(&mut self, id: u32) {
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
    fn serve_engine(&mut self) {
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
    fn on_input(&mut self, id: u32) {
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

    /// Begins the command whose turn it is, if it is one's turn.
    fn begin_next(&mut self, tell: Tell) -> bool {
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
    fn note_link_change(&mut self) {
        let is_attached = self.world.link.is_attached();
        if self.was_attached && !is_attached {
            self.files.abort_all(&self.world);
            self.runs.on_link_change(&self.world);
        }
        self.was_attached = is_attached;
    }

    // ---- children ----

    fn reap(&mut self) {
        // Empties the descriptor; how often a signal came says nothing.
        let _ = rustix::io::read(&self.children, &mut [0; 1024]);
        self.reap_again = false;
        for _ in 0..REAP_BATCH {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if let Some(ended) = Ended::of(status) {
                        self.on_reaped(pid, ended);
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
        self.reap_again = true;
    }

    fn on_reaped(&mut self, pid: Pid, ended: Ended) {
        self.files.on_reaped(pid);
        self.programs.on_reaped((&mut self.world, &mut self.runs), (pid, ended));
        if let Some(shell) = self.shell.as_mut() {
            let change = shell.on_reaped(&mut self.world, pid, ended);
            self.on_change(change);
        }
    }

    // ---- the shell ----

    fn start_shell(&mut self) {
        self.kept.clear();
        // The payload may have put another in its place, or none.
        let Some(found) = self.setup.find(&self.world) else { return };
        self.saved.note_new_shell();
        self.shell = ShellProcess::start(&mut self.world, &self.setup, &found, &self.saved).ok();
        self.found = Some(found);
    }

    fn on_change(&mut self, change: Change) {
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

    /// What a shell has said before its end still counts. A FIFO that it never opened reads as ended.
    fn take_last_record(&mut self) {
        let phase = self.running.as_mut().map(|r| &mut r.phase);
        if let Some(Phase::Line { step, status, .. }) = phase
            && let Said::Record(record) = status.read()
        {
            let step = *step;
            self.on_record(step, &record);
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
    fn replace_shell(&mut self) {
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

    fn actual_cwd(&self, pwd: &[u8]) -> Vec<u8> {
        let shell = self.shell.as_ref().and_then(ShellProcess::tree);
        shell
            .and_then(|tree| Pid::from_raw(tree.shell))
            .and_then(|pid| {
                cwd::of(self.world.rights, self.world.proc.dir(), pid, self.setup.ids, pwd)
            })
            .unwrap_or_else(|| self.saved.cwd().to_vec())
    }

    // ---- the command ----

    fn is_status_of_running(&self, id: u32) -> bool {
        let phase = self.running.as_ref().map(|r| &r.phase);
        matches!(phase, Some(Phase::Line { status, .. }) if status.id == id)
    }

    fn on_status(&mut self) {
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
    fn kill_running(&mut self, why: How) {
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

    fn on_time(&mut self, now: Moment) {
        if let Some(shell) = self.shell.as_mut() {
            shell.on_time(&self.world, now);
        }
        let pass = &mut Pass::default();
        let world = &self.world;
        self.hunts.retain_mut(|hunt| hunt.on_time(world, now, pass) == Met::Something);
        let both = (&mut self.world, &mut self.runs);
        for (run, outcome) in self.programs.on_time(both, (now, pass), self.saved.cwd()) {
            if let Some(running) = self.running.as_mut().filter(|r| r.id() == run) {
                running.finish(&mut self.world, &mut self.runs, outcome);
            }
        }
        self.look_at_dump(now);
        let Some(running) = self.running.as_mut() else { return };
        running.listen(&self.world, &mut self.runs, now);
        if running.is_timed_out(now) {
            self.kill_running(How::Timeout);
        } else if running.is_look_due(now) {
            self.look_at_shell();
        } else if let (Phase::Killing(killer), Some(shell)) = (&mut running.phase, &self.shell) {
            killer.on_time(&self.world, shell, (now, pass));
        }
    }

    /// A shell that waits for its next line without having ended this one never will.
    fn look_at_shell(&mut self) {
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
    fn proceed(&mut self) {
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

    // ---- root's command ----

    fn is_of_helper(&self, status: u32) -> bool {
        let helper = self.running.as_ref().and_then(|running| running.helper.as_ref());
        helper.is_some_and(|helper| helper.owns(status))
    }

    fn on_helper(&mut self) {
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

    fn shell_pid(&self) -> Option<Pid> {
        let tree = self.shell.as_ref().and_then(ShellProcess::tree)?;
        Pid::from_raw(tree.shell)
    }

    /// The last shell could not be kept alive: one more try, for the command that wants it.
    fn start_shell_for_command(&mut self) {
        if std::mem::take(&mut self.shell_is_wanted) {
            self.start_shell();
        } else if let Some(running) = self.running.as_mut() {
            running.finish(&mut self.world, &mut self.runs, Outcome::of(How::NoShell));
        }
    }

    fn restart_shell(&mut self) {
        let Some(running) = self.running.as_mut() else { return };
        running.shell_restarted = true;
        running.finish(&mut self.world, &mut self.runs, Outcome::exited(0));
        if matches!(running.work, Work::Restart(State::Fresh)) {
            self.saved.forget();
        }
        self.replace_shell();
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

    // ---- its state ----

    /// Has the shell write its state, where a command has changed it.
    fn start_dump(&mut self, words: Words) {
        if self.dumping.is_some() {
            // What has ended since then has not come to the shell.
            return;
        }
        let ahead = self.dump_ahead.take();
        let is_ready = self.shell.as_ref().is_some_and(ShellProcess::is_ready);
        // No descriptor or no room: the last dump stays.
        if !(self.saved.is_stale() && is_ready && self.say_dump(words, ahead).is_ok()) {
            self.replace_if_broken();
        }
    }

    fn say_dump(&mut self, words: Words, ahead: Option<Dumping>) -> std::io::Result<()> {
        let mut dumping = match ahead {
            Some(dumping) => dumping,
            None => {
                let (dumping, line) = self.new_dump(words)?;
                if let Some(shell) = self.shell.as_mut() {
                    shell.say(&self.world, &line);
                }
                dumping
            }
        };
        dumping.listen(&self.world.poller)?;
        self.dumping = Some(dumping);
        Ok(())
    }

    /// What to say behind a command. Nothing where there is no room: then it is tried when that is over.
    fn dump_line_ahead(&mut self) -> Vec<u8> {
        let Ok((dumping, line)) = self.new_dump(self.saved.words()) else { return Vec::new() };
        self.dump_ahead = Some(dumping);
        line
    }

    /// The way of a dump, and the line that asks for it.
    fn new_dump(&mut self, words: Words) -> std::io::Result<(Dumping, Vec<u8>)> {
        let kind = self.shell.as_ref().map_or(Shell::Sh, |shell| shell.kind);
        let dumping = Dumping::new(&mut self.world, (kind, words), &self.saved)?;
        // The box's root may have removed it.
        self.dump_words =
            self.dump_words.take().filter(|(of, file)| *of == words && file.is_there());
        if self.dump_words.is_none() && kind == Shell::Bash {
            let text = state::dump_words(Shell::Bash, words);
            let file = self.world.run.open_text(words.name(), &text).ok();
            self.dump_words = file.map(|file| (words, file));
        }
        let file = self.dump_words.as_ref().map(|(_, file)| file.path());
        let line = state::dump_line(kind, words, &dumping.path(), file.as_deref());
        Ok((dumping, line))
    }

    fn on_dump(&mut self) {
        let Some(dumping) = self.dumping.as_mut() else { return };
        match dumping.read(&self.saved) {
            Got::NotYet => {}
            Got::Whole(Some(dump)) if dump.is_doubtful(dumping.words()) => {
                if let Some(doubtful) = self.dumping.take() {
                    doubtful.close(&self.world.poller);
                }
                self.start_dump(Words::Guarded);
                if self.dumping.is_none() {
                    self.end_dump();
                }
            }
            Got::Whole(dump) => {
                if let Some(dump) = dump {
                    self.saved.keep(dump);
                }
                self.end_dump();
            }
            Got::Broken => self.end_dump(),
        }
    }

    fn end_dump(&mut self) {
        if let Some(dumping) = self.dumping.take() {
            dumping.close(&self.world.poller);
        }
        if let Some(running) = self.running.as_mut() {
            running.on_dump_over();
        }
        self.replace_if_broken();
    }

    fn replace_if_broken(&mut self) {
        if std::mem::take(&mut self.is_to_be_replaced) {
            self.replace_shell();
        }
    }

    /// The shell has ended: what it has written may be whole.
    fn take_last_dump(&mut self) {
        self.is_to_be_replaced = false;
        let ahead = self.dump_ahead.take();
        self.dumping = self.dumping.take().or(ahead);
        if let Some(dumping) = self.dumping.as_mut()
            && let Got::Whole(Some(dump)) = dumping.read(&self.saved)
            && !dump.is_doubtful(dumping.words())
        {
            self.saved.keep(dump);
        }
        self.end_dump();
    }

    /// A shell that waits for its next line has written all that it will; one that takes for ever is
    /// ended.
    fn look_at_dump(&mut self, now: Moment) {
        let Some(dumping) = self.dumping.as_mut() else { return };
        if dumping.is_overdue(now) {
            self.replace_shell();
        } else if dumping.is_look_due(now) {
            let ids = self.setup.ids;
            if self.shell.as_ref().is_some_and(|shell| shell.waits_for_script(&self.world, ids)) {
                // What it has written before it began to wait. Another may have been asked for then.
                let id = dumping.id();
                self.on_dump();
                if self.dumping.as_ref().is_some_and(|dumping| dumping.id() == id) {
                    self.end_dump();
                }
            } else {
                dumping.read_as_it_comes(&self.world.poller);
            }
        }
    }

    /// What lives now outlives the timeout of a later command.
    fn note_kept(&mut self) {
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

fn has_substitution(cmd: &[u8]) -> bool {
    cmd.windows(2).any(|two| two == b"$(")
}

/// Whether a frame may stand where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    Broken,
}
