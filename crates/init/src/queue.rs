//! Commands that wait for the shell, in the order they came.

use std::collections::VecDeque;

use sandkasten_protocol::{QUEUE_BYTES_MAX, QUEUE_MAX};

use crate::exec::{Exec, Work};

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: VecDeque<Exec>,
    bytes: usize,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the engine may send this one.
    pub(crate) fn has_room_for(&self, exec: &Exec) -> bool {
        self.waiting.len() < QUEUE_MAX && self.bytes + bytes_of(exec) <= QUEUE_BYTES_MAX
    }

    pub(crate) fn push(&mut self, exec: Exec) {
        self.bytes += bytes_of(&exec);
        self.waiting.push_back(exec);
    }

    pub(crate) fn pop(&mut self) -> Option<Exec> {
        let exec = self.waiting.pop_front()?;
        self.bytes -= bytes_of(&exec);
        Some(exec)
    }

    pub(crate) fn get_mut(&mut self, run: u64) -> Option<&mut Exec> {
        self.waiting.iter_mut().find(|exec| exec.run.id == run)
    }

    /// Takes a command out of its turn.
    pub(crate) fn remove(&mut self, run: u64) -> Option<Exec> {
        let index = self.waiting.iter().position(|exec| exec.run.id == run)?;
        let exec = self.waiting.remove(index)?;
        self.bytes -= bytes_of(&exec);
        Some(exec)
    }
}

fn bytes_of(exec: &Exec) -> usize {
    let cmd = match &exec.work {
        Work::Command { cmd, .. } => cmd.len(),
        Work::Restart(_) => 0,
    };
    let env = exec.run.env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
    cmd + env + exec.run.cwd.as_ref().map_or(0, Vec::len)
}
