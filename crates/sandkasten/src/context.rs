//! What every command is run with: where settings come from, and how results are shown.

use crate::config::{Loaded, Sources};
use crate::failure::Result;
use crate::output::Output;

/// What a command is run with.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) sources: Sources,
    pub(crate) output: Output,
    /// The words of the command line.
    pub(crate) words: Vec<String>,
}

impl Context {
    /// The configuration. Its warnings are the daemon's business.
    pub(crate) fn load(&self) -> Result<Loaded> {
        self.sources.load()
    }
}
