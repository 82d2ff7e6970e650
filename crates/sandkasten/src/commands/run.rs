//! `sandkasten run`: a session for one command. Invariant: however the command ends, the session is
//! deleted, or dies of its short lease.

use serde_json::{Value, json};

use super::exec::{self, Limits};
use crate::cli::Context;
use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

/// Run a command in a session of its own, and pass on its exit code.
///
/// Creates the session, prints what the command writes as it comes, and deletes the session. One
/// word is shell text as it stands ('cd /tmp && ls'); several are a program and its arguments.
/// Ctrl-C cancels the command, and the session is deleted all the same.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Image of the session
    image: String,
    /// Workspace to have at /workspace; it outlives the session
    #[arg(long, value_name = "ID")]
    workspace: Option<String>,
    #[command(flatten)]
    limits: Limits,
    /// The command
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<String>,
}

/// Lease of the session, in seconds. A command that runs holds it, so this is only how long the
/// session outlives a `run` that was killed.
const LEASE_SECONDS: u64 = 60;

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    execute(args, context).map_err(exec::not_run)
}

fn execute(args: &Args, context: &Context) -> Result<u8> {
    let interrupt = Interrupt::watch()?;
    let mut client = Client::of_daemon(context)?;
    let mut request = json!({"image": args.image, "ttl_seconds": LEASE_SECONDS});
    if let (Some(workspace), Some(fields)) = (&args.workspace, request.as_object_mut()) {
        fields.insert("workspace_id".into(), workspace.as_str().into());
    }
    let session: Value = client.call("POST", "/v1/sessions", Some(&request))?;
    let Some(id) = session.get("id").and_then(Value::as_str) else {
        return Err(Failure::new("the daemon's answer has no session id"));
    };
    let session = exec::segment(id);
    let cleaner = client.again();
    let done = exec::stream(client, &session, &args.command, &args.limits, context, &interrupt);
    let deleted = cleaner.and_then(|mut cleaner| {
        cleaner.call::<Value>("DELETE", &format!("/v1/sessions/{session}"), None)
    });
    if let Err(why) = deleted {
        context.output.warning(&format!("session {id} was not deleted: {}", why.message));
    }
    done
}
