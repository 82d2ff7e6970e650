//! The binary `sandkasten`: command line, environment, configuration file, terminal.
//!
//! Invariant: only this crate prints, exits, or reads the environment; all output goes through
//! [`output`], and the environment through [`config`]. It knows how to ask for things, not how they
//! work.

mod cli;
mod client;
mod commands;
mod config;
mod context;
mod failure;
mod instance;
mod interrupt;
mod log;
mod output;
mod reach;
mod terminal;
mod units;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
