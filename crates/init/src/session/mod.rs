//! The session: the loop, and what each event means for the shell and the command that runs.

mod command;
mod conversation;
mod dumps;
mod keeper;

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions};
use sandkasten_protocol::{FileFault, How};

use crate::clock::Moment;
use crate::dump::Dumping;
use crate::exec::{Phase, Running};
use crate::files::Files;
use crate::kill::{Found as Met, Hunt, Pass};
use crate::lookup;
use crate::poll::Token;
use crate::processes::Kept;
use crate::program::Programs;
use crate::queue::Queue;
use crate::runs::Runs;
use crate::runtime::Entry;
use crate::shell::{Found, Setup, ShellProcess};
use crate::state::{Saved, Words};
use crate::supervisor::Ended;
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
}
