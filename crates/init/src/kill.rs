//! Ends a command with all it started, and its shell.
//!
//! The shell is stopped first, so that it starts nothing more; then everything of the command is
//! stopped, again and again until a pass over `/proc` meets no new process, and killed; the shell is
//! killed last. What was kept from earlier commands is left alone.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use sandkasten_protocol::How;

use crate::clock::Moment;
use crate::processes::{Kept, Table, Tree};
use crate::shell::ShellProcess;
use crate::world::World;

/// Between two passes, for the killed to die. It grows where something does not.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// After it the shell, or a program, is killed even if something else still lives: the answer is due.
/// The hunt goes on.
pub(crate) const GIVE_UP: Duration = Duration::from_millis(400);

/// The end of a command, up to that of its shell.
#[derive(Debug)]
pub(crate) struct Killer {
    pub(crate) why: How,
    /// `None`: all are dead and the shell's end is awaited.
    hunt: Option<Hunt>,
    /// When the shell is killed at the latest; `None`: it has been.
    give_up: Option<Moment>,
}

/// The search for what a command has started.
#[derive(Debug)]
pub(crate) struct Hunt {
    tree: Tree,
    kept: Kept,
    stopped: BTreeSet<(i32, u64)>,
    pause: Duration,
    next: Moment,
}

impl Killer {
    /// Stops the shell. The passes follow.
    pub(crate) fn new(world: &World, shell: &ShellProcess, hunt: (Tree, Kept), why: How) -> Self {
        shell.signal(world, Signal::STOP);
        let (tree, kept) = hunt;
        let give_up = Moment::now().after(GIVE_UP);
        Self { why, hunt: Some(Hunt::new(tree, kept)), give_up: Some(give_up) }
    }

    pub(crate) fn next_moment(&self) -> Option<Moment> {
        self.hunt.as_ref().map(|hunt| hunt.next)
    }

    /// What is due at this moment.
    pub(crate) fn on_time(
        &mut self,
        world: &World,
        shell: &ShellProcess,
        (now, pass): (Moment, &mut Pass),
    ) {
        if self.hunt.as_mut().is_some_and(|hunt| hunt.on_time(world, now, pass) == Found::Nothing) {
            self.hunt = None;
        }
        if self.give_up.is_some_and(|moment| self.hunt.is_none() || moment <= now) {
            self.give_up = None;
            shell.signal(world, Signal::KILL);
        }
    }

    /// The shell is dead; something of its command may not be.
    pub(crate) fn into_hunt(self) -> Option<Hunt> {
        self.hunt
    }
}

/// One look at all processes, for all who want one at a time. What was signalled before it began has
/// had its signals.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    table: Option<Option<Table>>,
}

impl Pass {
    /// `None`: no descriptor or no memory; the next pass may have it.
    pub(crate) fn table(&mut self, world: &World) -> Option<&Table> {
        self.table.get_or_insert_with(|| world.proc.table().ok()).as_ref()
    }
}

/// What a pass has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Something,
}

impl Hunt {
    /// For what is in a tree and not kept. The first pass is due at once.
    pub(crate) fn new(tree: Tree, kept: Kept) -> Self {
        Self { tree, kept, stopped: BTreeSet::new(), pause: PAUSE, next: Moment::now() }
    }

    pub(crate) fn next_moment(&self) -> Moment {
        self.next
    }

    /// One pass over the processes, if it is due.
    pub(crate) fn on_time(&mut self, world: &World, now: Moment, pass: &mut Pass) -> Found {
        if self.next > now {
            return Found::Something;
        }
        let Some(table) = pass.table(world) else { return self.pause(now) };
        let victims = self.tree.victims(table, &self.kept);
        if victims.is_empty() {
            return Found::Nothing;
        }
        let new: Vec<_> =
            victims.iter().filter(|v| self.stopped.insert((v.pid, v.start))).collect();
        for victim in &new {
            world.proc.signal(world.rights, **victim, Signal::STOP);
        }
        if !new.is_empty() {
            // Whatever these have started before they stopped is met at once.
            self.next = now;
            return Found::Something;
        }
        for victim in &victims {
            world.proc.signal(world.rights, *victim, Signal::KILL);
        }
        self.pause(now)
    }

    /// Puts the next pass off, longer each time.
    pub(crate) fn pause(&mut self, now: Moment) -> Found {
        self.next = now.after(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Found::Something
    }
}
