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
use crate::processes::{Kept, Tree};
use crate::shell::ShellProcess;
use crate::world::World;

/// Between two passes, for the killed to die.
const PAUSE: Duration = Duration::from_millis(1);
/// After it the shell is killed even if something can't be: the answer is due.
const GIVE_UP: Duration = Duration::from_millis(400);

#[derive(Debug)]
pub(crate) struct Killer {
    pub(crate) why: How,
    tree: Tree,
    stopped: BTreeSet<(i32, u64)>,
    /// When the next pass is due; `None`: all are dead and the shell's end is awaited.
    next: Option<Moment>,
    give_up: Moment,
}

impl Killer {
    /// Stops the shell. The passes follow.
    pub(crate) fn new(world: &World, shell: &ShellProcess, tree: Tree, why: How) -> Self {
        shell.signal(world, Signal::STOP);
        let now = Moment::now();
        let give_up = now.after(GIVE_UP);
        Self { why, tree, stopped: BTreeSet::new(), next: Some(now), give_up }
    }

    pub(crate) fn next_moment(&self) -> Option<Moment> {
        self.next
    }

    /// One pass over the processes, if it is due.
    pub(crate) fn on_time(
        &mut self,
        world: &World,
        shell: &ShellProcess,
        kept: &Kept,
        now: Moment,
    ) {
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        let victims = match world.proc.table() {
            Ok(table) => self.tree.victims(&table, kept),
            // No descriptor or no memory: the next pass may have it.
            Err(_) if now < self.give_up => {
                self.next = Some(now.after(PAUSE));
                return;
            }
            Err(_) => Vec::new(),
        };
        let new: Vec<_> =
            victims.iter().filter(|v| self.stopped.insert((v.pid, v.start))).collect();
        for victim in &new {
            world.proc.signal(world.rights, **victim, Signal::STOP);
        }
        let is_late = now >= self.give_up;
        if new.is_empty() || is_late {
            for victim in &victims {
                world.proc.signal(world.rights, *victim, Signal::KILL);
            }
        }
        self.next = if victims.is_empty() || is_late {
            shell.signal(world, Signal::KILL);
            None
        } else if new.is_empty() {
            Some(now.after(PAUSE))
        } else {
            Some(now)
        };
    }
}
