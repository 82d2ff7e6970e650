//! `sandkasten run`: a session for one command. Invariant: however the command ends, the session is
//! deleted, or dies of its short lease; of one that was left to itself, and where the daemon is
//! gone, it lives on for who asks for the result.

use std::collections::BTreeMap;

use sandkasten_types::limits::LABEL_BYTES_MAX;
use sandkasten_types::session::Session;
use serde_json::{Map, Value, json};

use super::call::{Call, Ended};
use super::flags::{self, HowRun, NewSession, Surroundings};
use crate::client::Client;
use crate::context::Context;
use crate::failure::Result;
use crate::interrupt::Interrupt;
use crate::terminal;

const USAGE: &str = "sandkasten run [OPTIONS] IMAGE CMD...";

/// Run a command in a session of its own, and pass on its exit code.
///
/// Creates the session, gives the command this stdin, prints what it writes as it comes, byte for
/// byte, and deletes the session. One word is shell text as it stands ('cd /tmp && ls'); several
/// are a program and its arguments. With -t and no command it is the session's shell.
///
/// Ctrl-C and SIGTERM cancel the command, and the session is deleted all the same; with -t, Ctrl-C
/// goes to the program inside. stdin is read as it comes, whether the command reads it or not, as
/// ssh does: in a loop that reads, add `</dev/null`.
///
/// Options stand before the image; what stands behind it is the command.
#[derive(Debug, clap::Args)]
#[command(override_usage = USAGE)]
pub(crate) struct Args {
    /// Image of the session
    #[arg(required_unless_present = "named_image")]
    image: Option<String>,
    #[command(flatten)]
    session: NewSession,
    #[command(flatten)]
    surroundings: Surroundings,
    #[command(flatten)]
    how: HowRun,
    /// The command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Lease of the session, in seconds. A command that runs holds it, so this is only how long the
/// session outlives a `run` that was killed or has lost its daemon.
const LEASE_SECONDS: u64 = 300;

/// Marks the sessions of `run`.
pub(super) const RUN_LABEL: &str = "sandkasten.run";
/// What it runs, shortened.
pub(super) const COMMAND_LABEL: &str = "sandkasten.command";

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    execute(args, context).map_err(crate::failure::Failure::not_run)
}

fn execute(args: &Args, context: &Context) -> Result<u8> {
    let (image, command) = image_and_command(args);
    let first = args.image.as_deref().filter(|_| args.session.named_image.is_none());
    flags::check_command(&command, first.map(|word| (word, "image")), &context.words)?;
    if command.is_empty() && !args.how.tty {
        return Err(flags::no_command(USAGE));
    }
    if args.how.tty {
        terminal::required()?;
    }
    let interrupt = Interrupt::watch()?;
    let mut client = Client::of_daemon(context)?;
    let request = request(args, image, &command)?;
    let session: Session = client.call("POST", "/v1/sessions", Some(&request.into()))?;
    let call = Call { context, interrupt: &interrupt, session: &session, how: &args.how };
    if args.how.detach {
        return detach(&call, client, &command);
    }
    // Its connection is closed by the daemon where it is idle for long: it is made again.
    let cleaner = client.again();
    let done = call.run(client, &command, Map::new());
    if let Ok(Ended::Lost(failure)) = done {
        return Err(failure);
    }
    let path = format!("/v1/sessions/{}", session.id);
    let deleted = cleaner.and_then(|cleaner| cleaner.again()?.call::<Value>("DELETE", &path, None));
    if let Err(why) = deleted {
        context.output.warning(&format!("session {} was not deleted: {}", session.id, why.message));
    }
    ended(done?)
}

fn ended(ended: Ended) -> Result<u8> {
    match ended {
        Ended::Code(code) => Ok(code),
        Ended::Lost(failure) => Err(failure),
    }
}

fn image_and_command(args: &Args) -> (&str, Vec<String>) {
    let first = args.image.clone();
    match &args.session.named_image {
        Some(image) => (image, first.into_iter().chain(args.command.iter().cloned()).collect()),
        None => (args.image.as_deref().unwrap_or_default(), args.command.clone()),
    }
}

fn request(args: &Args, image: &str, command: &[String]) -> Result<Map<String, Value>> {
    let mut request = args.session.request(image);
    args.surroundings.add_to(&mut request)?;
    if args.session.ttl.is_none() && !args.how.detach {
        request.insert("ttl_seconds".into(), LEASE_SECONDS.into());
    }
    let ours = [(RUN_LABEL, "true".to_owned()), (COMMAND_LABEL, shortened(command))];
    let ours: BTreeMap<&str, String> = ours.into_iter().collect();
    for (key, value) in ours {
        if let Some(labels) = request.get_mut("labels").and_then(Value::as_object_mut) {
            labels.insert(key.to_owned(), value.into());
        }
    }
    Ok(request)
}

/// A command as a label may have it: no control characters, and not too long.
fn shortened(command: &[String]) -> String {
    let mut text = String::new();
    for c in command.join(" ").chars() {
        if text.len() + c.len_utf8() > LABEL_BYTES_MAX {
            break;
        }
        text.push(if c.is_control() { ' ' } else { c });
    }
    text
}

fn detach(call: &Call<'_>, client: Client, command: &[String]) -> Result<u8> {
    let id = &call.session.id;
    let cleaner = client.again();
    let begun = match call.detach(client, command, Map::new()) {
        Ok(begun) => begun,
        Err(why) => {
            let path = format!("/v1/sessions/{id}");
            // It dies of its lease otherwise.
            cleaner.and_then(|mut cleaner| cleaner.send("DELETE", &path, None)).ok();
            return Err(why);
        }
    };
    let output = &call.context.output;
    output.result(&json!({"session_id": id, "id": begun.id()}), || begun.id().to_owned());
    if !output.is_json() {
        output.note(&format!("`sandkasten result {id} {}` prints what it writes", begun.id()));
    }
    Ok(0)
}
