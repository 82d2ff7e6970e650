//! `sandkasten result`: what a command wrote, for who was not there when it ran.

use serde_json::Value;

use super::call::{self, Begun};
use super::sessions::{self, segment};
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Result};

/// Print what a command wrote, wait for its end, and pass on its exit code.
///
/// For commands that were begun with --detach, or whose daemon was lost on the way. It may be asked
/// for again and again, as long as the session lives. Ctrl-C leaves the command alone.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Id of the session, its beginning, or the session's name
    #[arg(value_name = "SESSION")]
    session: String,
    /// Id of the command, as it was printed
    #[arg(value_name = "ID")]
    id: String,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    execute(args, context).map_err(Failure::not_run)
}

fn execute(args: &Args, context: &Context) -> Result<u8> {
    let mut client = Client::of_daemon(context)?;
    let session = sessions::find(&mut client, &args.session)?;
    let begun = found(&mut client, session.id.as_str(), &args.id)?;
    call::replay(client, &session.id, &begun, context)
}

/// An exec or a process: ids don't tell which.
fn found(client: &mut Client, session: &str, id: &str) -> Result<Begun> {
    let id = segment(id);
    for (noun, begun) in
        [("execs", Begun::Exec(id.clone())), ("processes", Begun::Process(id.clone()))]
    {
        let events = format!("/v1/sessions/{session}/{noun}");
        let answer: Value = client.call("GET", &events, None)?;
        let field = if noun == "execs" { "exec_id" } else { "process_id" };
        let mut all = answer.get(noun).and_then(Value::as_array).into_iter().flatten();
        if all.any(|one| one.get(field).and_then(Value::as_str) == Some(id.as_str())) {
            return Ok(begun);
        }
    }
    Err(Failure::new(format!("session {session} has no command with the id `{id}`"))
        .hint("a session keeps its last 1024 commands; ids are printed by --detach"))
}
