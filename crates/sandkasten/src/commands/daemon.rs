//! The daemon starts in two stages of one program, so that it inherits nothing.
//!
//! Stage one reads file, environment and flags, and executes the binary again with a clean
//! environment and signal mask, the settings in a sealed memfd as its standard input (see
//! [`stage_one`]). Stage two forks the launcher before anything else, so that the launcher has never
//! seen a setting, and only then reads them (see [`serve`]). With `-d` stage two is a child, and
//! stage one waits until it serves.

mod serve;
mod stage_one;

use std::time::Duration;

use super::stop;
use crate::config::Insecure;
use crate::context::Context;
use crate::failure::{Failure, Result, WRONG_USAGE};
use crate::log::Colours;
use crate::{instance, reach};

/// How long a daemon of our own may take to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// Run the daemon that makes sessions and serves the HTTP API; `daemon stop` stops it.
///
/// It logs to stderr: text on a terminal, else JSON, one line an event. SIGTERM and SIGINT stop it:
/// running requests get a second, sessions and their commands live on and the next daemon finds
/// them. SIGHUP is ignored: settings are read at the start alone. The data directory's `addr` has
/// the address.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Go to the background once it serves, and log to `daemon.log` in the data directory
    #[arg(short, long)]
    detach: bool,
    /// HOST:PORT to listen on; port 0 picks one
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The least important events to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Allow settings that weaken the isolation (`security.seccomp: off`)
    #[arg(long)]
    insecure: bool,
    /// Start without this required guarantee (`sandkasten doctor` names them)
    #[arg(long, value_name = "NAME")]
    allow_degraded: Vec<String>,
    /// Stage two: the settings are on standard input
    #[arg(long, hide = true)]
    settings_on_stdin: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Stop(stop::Args),
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Result<u8> {
    if args.settings_on_stdin {
        return serve::run(args, colours(context));
    }
    if let Some(Command::Stop(stop)) = &args.command {
        args.refuse_own_flags()?;
        return stop::run(stop, context);
    }
    reach::refuse_url("daemon", context)?;
    context.sources.listen.clone_from(&args.listen);
    context.sources.log_level.clone_from(&args.log_level);
    if args.insecure {
        context.sources.insecure = Insecure::Allowed;
    }
    stage_one::run(args, context)
}

impl Args {
    /// Clap has a setting for this, which would refuse the options of all commands too.
    fn refuse_own_flags(&self) -> Result<()> {
        let is_plain = !self.detach
            && !self.insecure
            && self.listen.is_none()
            && self.log_level.is_none()
            && self.allow_degraded.is_empty();
        if is_plain {
            return Ok(());
        }
        let message = "`sandkasten daemon stop` takes no option that starts a daemon";
        Err(Failure::new(message)
            .hint("`sandkasten daemon stop --help` shows its own")
            .exit_code(WRONG_USAGE))
    }
}

/// As <https://no-color.org> has it.
fn colours(context: &Context) -> Colours {
    if context.sources.variable("NO_COLOR").is_some() { Colours::No } else { Colours::Yes }
}

/// Starts a daemon for a command that needs one, and stops it when that is done.
#[derive(Debug)]
pub(super) struct Private<'a>(&'a Context);

impl<'a> Private<'a> {
    pub(super) fn start(context: &'a Context) -> Result<Self> {
        stage_one::start_private(context)?;
        Ok(Self(context))
    }

    pub(super) fn stop(self) -> Result<()> {
        let data_dir = self.0.load()?.settings.data_dir;
        match instance::find(&data_dir)? {
            Some(running) => super::stop::stop(&running, PATIENCE),
            None => Ok(()),
        }
    }
}
