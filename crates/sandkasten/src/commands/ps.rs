//! `sandkasten ps`: what the running daemon says of its sessions, as a table.

use sandkasten_types::session::Session;

use crate::cli::Context;
use crate::client::Client;
use crate::failure::Result;
use crate::output::table;

/// List the sessions of the running daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args, context: &Context) -> Result<u8> {
    let sessions: Vec<Session> = Client::of_daemon(context)?.call("GET", "/v1/sessions", None)?;
    context.output.result(&sessions, || {
        let head = ["SESSION", "IMAGE", "STATUS", "CREATED", "EXPIRES", "WORKSPACE", "CWD"];
        let rows: Vec<_> = sessions.iter().map(row).collect();
        table(&head, &rows)
    });
    Ok(0)
}

fn row(session: &Session) -> Vec<String> {
    let seconds = |time: String| time.split('.').next().unwrap_or_default().replace('T', " ");
    vec![
        session.id.to_string(),
        session.image.to_string(),
        session.status.as_str().to_owned(),
        seconds(session.created_at.to_string()),
        seconds(session.expires_at.to_string()),
        session.workspace_id.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
        session.cwd.clone(),
    ]
}
