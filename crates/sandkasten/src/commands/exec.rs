//! `sandkasten exec`. Invariant: an exit code that is passed on is the command's own; ours are those
//! of [`crate::failure`].

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandkasten_types::session::Session;
use serde_json::{Map, Value, json};

use super::call::{Call, Ended};
use super::flags::{self, HowRun, Surroundings};
use super::sessions;
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::terminal;

const USAGE: &str = "sandkasten exec [OPTIONS] SESSION CMD...";

/// Run a command in the shell of a session and pass on its exit code.
///
/// One word is shell text as it stands ('cd /tmp && ls'); several are a program and its arguments.
/// The shell is the session's own: directories, variables and functions stay, and commands run one
/// after the other. --cwd is a `cd` that stays too, --env holds for this command alone, and with
/// --user it runs in a shell of its own.
///
/// stdin goes to the command as it comes, of any length; one that does not read it ends all the
/// same. It is read whether the command reads it or not, as ssh does: in a loop that reads, add
/// `</dev/null`. Output comes byte for byte; Ctrl-C and SIGTERM cancel the command.
///
/// With -t the command is a program of its own beside the shell, since the shell has no terminal:
/// in the shell's directory, with its exported variables where it is not busy; what it changes of
/// them does not come back, and Ctrl-C goes to it. Without a command it is another shell.
///
/// Options stand before the session; what stands behind it is the command.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(crate) struct Args {
    /// Id of the session, its beginning, or the session's name
    #[arg(value_name = "SESSION")]
    session: String,
    #[command(flatten)]
    surroundings: Surroundings,
    #[command(flatten)]
    how: HowRun,
    /// The command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<String>,
}

/// How long a shell that is busy is waited for, for its variables.
const SHELL_PATIENCE: Duration = Duration::from_secs(2);

/// Variables of a shell that are not those of another program.
const OF_SHELL_ALONE: [&str; 4] = ["_", "SHLVL", "PWD", "OLDPWD"];
/// Variables that follow from the user.
const OF_USER: [&str; 4] = ["HOME", "USER", "LOGNAME", "SHELL"];

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    execute(args, context).map_err(Failure::not_run)
}

fn execute(args: &Args, context: &Context) -> Result<u8> {
    flags::check_command(&args.command, Some((&args.session, "session")), &context.words)?;
    if args.command.is_empty() && !args.how.tty {
        return Err(flags::no_command(USAGE));
    }
    if args.how.tty {
        terminal::required()?;
    }
    let interrupt = Interrupt::watch()?;
    let mut client = Client::of_daemon(context)?;
    let session = sessions::find(&mut client, &args.session)?;
    let call = Call { context, interrupt: &interrupt, session: &session, how: &args.how };
    let mut more = Map::new();
    args.surroundings.add_to(&mut more)?;
    if args.how.detach {
        let begun = call.detach(client, &args.command, more)?;
        let value = json!({"session_id": session.id, "id": begun.id()});
        context.output.result(&value, || begun.id().to_owned());
        return Ok(0);
    }
    if args.how.tty && session.shell.is_some() {
        let output = &context.output;
        beside_the_shell((&client, output), &session, &args.surroundings, &mut more)?;
    }
    match call.run(client, &args.command, more)? {
        Ended::Code(code) => Ok(code),
        Ended::Lost(failure) => Err(failure),
    }
}

/// Variables of the shell, for a program beside it. What is asked for goes before.
fn beside_the_shell(
    (client, output): (&Client, &Output),
    session: &Session,
    asked: &Surroundings,
    request: &mut Map<String, Value>,
) -> Result<()> {
    let mut env = exported(client, session).unwrap_or_else(|| {
        output
            .note("the shell does not tell its exported variables; the command goes without them");
        Map::new()
    });
    if asked.user.is_some() {
        env.retain(|name, _| !OF_USER.contains(&name.as_str()));
    }
    env.extend(asked.env()?);
    request.insert("env".into(), env.into());
    Ok(())
}

/// The variables that the shell exports; `None` where it does not tell them at once.
fn exported(client: &Client, session: &Session) -> Option<Map<String, Value>> {
    let mut client = client.again().ok()?;
    client.set_patience(SHELL_PATIENCE).ok()?;
    let path = format!("/v1/sessions/{}/exec", session.id);
    // `$?` stays what it was, and a PATH of the shell's own does not hide `env`.
    let cmd = "(x=$?; command -p env -0; exit $x)";
    let request = json!({"cmd": cmd, "encoding": "base64", "split": true});
    // Out of patience the connection is cut, which takes the command out of the queue.
    let answer: Value = client.call("POST", &path, Some(&request)).ok()?;
    let bytes = STANDARD.decode(answer.get("stdout_base64")?.as_str()?).ok()?;
    // Every shell has some: it could not run `env`.
    if bytes.is_empty() {
        return None;
    }
    Some(bytes.split(|byte| *byte == 0).filter_map(variable).collect())
}

/// One variable that another program may have.
fn variable(line: &[u8]) -> Option<(String, Value)> {
    let (name, value) = std::str::from_utf8(line).ok()?.split_once('=')?;
    let is_name = |text: &str| {
        let mut bytes = text.bytes();
        let first = bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
        first && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    // A terminal is not dumb.
    let stays = !OF_SHELL_ALONE.contains(&name) && (name, value) != ("TERM", "dumb");
    (is_name(name) && stays).then(|| (name.to_owned(), value.into()))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_program_has_the_shells_exported_variables() {
        let name = |line: &str| variable(line.as_bytes()).map(|(name, _)| name);
        assert_eq!(name("A_1=x=y").as_deref(), Some("A_1"));
        assert_eq!(name("TERM=vt100").as_deref(), Some("TERM"));
        for line in ["", "_=x", "PWD=/", "TERM=dumb", "BASH_FUNC_f%%=() {", "1A=x"] {
            assert_eq!(name(line), None, "{line}");
        }
    }
}
