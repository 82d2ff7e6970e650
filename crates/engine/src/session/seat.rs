//! A caller's place at a run: who leaves it unasked may take the run with it.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::Command;
use super::note::Note;

/// What a caller does at a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes the output as it comes.
    Reader,
    /// It waits for the end, or reads what is kept.
    Joined,
}

/// Dropping it tells the session that the caller has gone.
#[derive(Debug)]
pub(crate) struct Seat {
    run: u64,
    role: Role,
    /// `None`: there is nothing to tell any more.
    commands: Option<mpsc::UnboundedSender<Command>>,
}

impl Seat {
    pub(crate) fn new(run: u64, role: Role, commands: mpsc::UnboundedSender<Command>) -> Self {
        Self { run, role, commands: Some(commands) }
    }

    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// The run is over, or its session: nobody needs to know that the caller goes.
    pub(crate) fn leave_quietly(mut self) {
        self.commands = None;
    }

    /// The same, for one that is kept.
    pub(crate) fn quiet(&mut self) {
        self.commands = None;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(commands) = self.commands.take() {
            // A session that is gone needs no word.
            drop(commands.send(Command::Leave { run: self.run, role: self.role }));
        }
    }
}

/// A caller's place at a command.
#[derive(Debug)]
pub(crate) struct Seated {
    pub(crate) seat: Seat,
    pub(crate) note: Arc<Note>,
}
