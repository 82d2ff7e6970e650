//! The command line: what can be said, and who does it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::commands::{bench, daemon, doctor, exec, image, ps, result, run, stop, version};
use crate::config::Sources;
use crate::context::Context;
use crate::failure::Result;
use crate::output::{Format, Output};

/// Isolated Linux boxes for AI agents, over HTTP.
///
/// Settings come from a flag, a `SANDKASTEN_…` variable, the file of --config or
/// `./sandkasten.yaml`, or their defaults, in this order.
///
/// `run`, `exec`, `ps`, `result` and `bench` ask the daemon of --url or SANDKASTEN_URL, with the key
/// in SANDKASTEN_API_KEY, as any user; else the one of the data directory, as root.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + n ended by the signal n (130 Ctrl-C, 143
/// SIGTERM). `run`, `exec` and `result` pass on the command's own code, and have 125 where
/// Sandkasten itself failed.
#[derive(Debug, Parser)]
#[command(name = "sandkasten", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const GLOBAL: &str = "Options of all commands";

/// What every command takes.
#[derive(Debug, clap::Args)]
struct Global {
    /// Configuration file [default: ./sandkasten.yaml, if there is one]
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    config: Option<PathBuf>,
    /// Data directory, before that of any file or variable
    #[arg(long, global = true, value_name = "DIR", help_heading = GLOBAL)]
    data_dir: Option<PathBuf>,
    /// Daemon to ask, as in http://127.0.0.1:8080, in place of the data directory's; its key is in
    /// SANDKASTEN_API_KEY
    #[arg(long, global = true, value_name = "URL", help_heading = GLOBAL)]
    url: Option<String>,
    /// Print JSON, for programs
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Daemon(daemon::Args),
    Stop(stop::Args),
    Ps(ps::Args),
    Run(run::Args),
    Exec(exec::Args),
    Result(result::Args),
    Doctor(doctor::Args),
    Image(image::Args),
    Bench(bench::Args),
    Version(version::Args),
}

/// Runs the command line of this process.
pub(crate) fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return Output::usage(&usage),
    };
    let format = if cli.global.json { Format::Json } else { Format::Human };
    let mut sources = Sources::of_process();
    sources.config = cli.global.config;
    sources.data_dir = cli.global.data_dir;
    sources.url = cli.global.url;
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let mut context = Context { sources, output: Output::new(format), words };
    match cli.command.run(&mut context) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            context.output.failure(&failure);
            ExitCode::from(failure.exit_code)
        }
    }
}

impl Command {
    /// The exit code of the process, where nothing failed.
    fn run(self, context: &mut Context) -> Result<u8> {
        match self {
            Self::Daemon(args) => daemon::run(&args, context),
            Self::Stop(args) => stop::run(&args, context),
            Self::Ps(args) => ps::run(&args, context),
            Self::Run(args) => run::run(&args, context),
            Self::Exec(args) => exec::run(&args, context),
            Self::Result(args) => result::run(&args, context),
            Self::Doctor(args) => doctor::run(&args, context),
            Self::Image(args) => image::run(&args, context),
            Self::Bench(args) => bench::run(&args, context),
            Self::Version(args) => version::run(&args, context),
        }
    }
}

#[cfg(test)]
mod test {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
