//! What a new shell takes over from the one before.
//!
//! Now it is the working directory alone. The rest of the state (variables, functions, aliases,
//! options, umask) is dumped by the shell after each command and loaded here: [`Saved::take_over`]
//! runs once an answer has left, and [`Saved::cwd`] grows into the lines a new shell starts with.

/// State of the last finished command.
#[derive(Debug)]
pub(crate) struct Saved {
    cwd: Vec<u8>,
}

impl Saved {
    pub(crate) fn new(cwd: Vec<u8>) -> Self {
        Self { cwd }
    }

    /// A command has finished in this directory.
    pub(crate) fn take_over(&mut self, cwd: Vec<u8>) {
        self.cwd = cwd;
    }

    pub(crate) fn cwd(&self) -> &[u8] {
        &self.cwd
    }
}
