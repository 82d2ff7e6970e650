//! `sandkasten ps`: what the running daemon says of its sessions, as a table.

use std::time::Duration;

use sandkasten_types::Timestamp;
use sandkasten_types::session::{Session, Status};

use super::run::{COMMAND_LABEL, RUN_LABEL};
use super::sessions::SHORT_ID;
use crate::client::Client;
use crate::context::Context;
use crate::failure::Result;
use crate::output::fitted;
use crate::{terminal, units};

/// List the sessions of the running daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Sessions of the last 24 hours that have ended, too
    #[arg(short, long)]
    all: bool,
    /// Print the ids alone, whole
    #[arg(short, long)]
    quiet: bool,
    /// Only sessions with this: status=running, label=KEY=VALUE, label=KEY, name=NAME; each that is
    /// given must hold
    #[arg(short, long, value_name = "WHAT", value_parser = filter)]
    filter: Vec<Filter>,
}

/// What a session must have to be listed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    Status(Status),
    Label { key: String, value: Option<String> },
    Name(String),
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    let mut client = Client::of_daemon(context)?;
    let mut sessions: Vec<Session> = client.list("/v1/sessions")?;
    let of_ended = |filter: &Filter| matches!(filter, Filter::Status(status) if status.is_over());
    if args.all || args.filter.iter().any(of_ended) {
        let ended: Vec<Session> = client.list("/v1/sessions?status=ended")?;
        let is_new = |one: &Session| !sessions.iter().any(|known| known.id == one.id);
        let ended: Vec<Session> = ended.into_iter().filter(is_new).collect();
        sessions.extend(ended);
    }
    sessions.retain(|session| args.filter.iter().all(|filter| filter.holds(session)));
    if args.quiet && !context.output.is_json() {
        sessions.iter().for_each(|session| context.output.line(session.id.as_str()));
        return Ok(0);
    }
    context.output.result(&sessions, || table(&sessions, Timestamp::now()));
    Ok(0)
}

fn table(sessions: &[Session], now: Timestamp) -> String {
    const HEAD: [&str; 7] = ["SESSION", "NAME", "IMAGE", "STATUS", "AGE", "EXPIRES", "COMMAND"];
    /// Columns that may be cut, the first of them first.
    const SOFT: [usize; 3] = [6, 1, 2];
    let rows: Vec<_> = sessions.iter().map(|session| row(session, now)).collect();
    fitted(&HEAD, &rows, &SOFT, terminal::width())
}

fn row(session: &Session, now: Timestamp) -> Vec<String> {
    let between = |from: Timestamp, to: Timestamp| {
        Duration::from_millis(u64::try_from(to.unix_ms() - from.unix_ms()).unwrap_or(0))
    };
    let expires = if session.status.is_over() {
        "-".to_owned()
    } else {
        format!("in {}", units::rough(between(now, session.expires_at)))
    };
    let is_of_run = session.labels.get(RUN_LABEL).is_some_and(|value| value == "true");
    let command = session.labels.get(COMMAND_LABEL).filter(|_| is_of_run);
    vec![
        session.id.as_str().chars().take(SHORT_ID).collect(),
        session.name.clone().unwrap_or_else(|| "-".to_owned()),
        session.image.to_string(),
        session.status.as_str().to_owned(),
        units::rough(between(session.created_at, now)),
        expires,
        match command {
            Some(command) => format!("run: {command}"),
            None if is_of_run => "run".to_owned(),
            None => "-".to_owned(),
        },
    ]
}

fn filter(text: &str) -> std::result::Result<Filter, String> {
    match text.split_once('=') {
        Some(("status", status)) => status.parse().map(Filter::Status),
        Some(("name", name)) => Ok(Filter::Name(name.to_owned())),
        Some(("label", label)) => {
            let (key, value) = match label.split_once('=') {
                Some((key, value)) => (key, Some(value.to_owned())),
                None => (label, None),
            };
            Ok(Filter::Label { key: key.to_owned(), value })
        }
        _ => Err("write status=…, label=KEY=VALUE or name=…".to_owned()),
    }
}

impl Filter {
    fn holds(&self, session: &Session) -> bool {
        match self {
            Self::Status(status) => session.status == *status,
            Self::Name(name) => session.name.as_ref() == Some(name),
            Self::Label { key, value: None } => session.labels.contains_key(key),
            Self::Label { key, value } => session.labels.get(key) == value.as_ref(),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn filters_have_three_kinds() {
        assert_eq!(filter("status=running"), Ok(Filter::Status(Status::Running)));
        assert_eq!(filter("name=a=b"), Ok(Filter::Name("a=b".into())));
        let label = |key: &str, value: Option<&str>| {
            Ok(Filter::Label { key: key.into(), value: value.map(str::to_owned) })
        };
        assert_eq!(filter("label=k=v=w"), label("k", Some("v=w")));
        assert_eq!(filter("label=k"), label("k", None));
        assert!(filter("status=asleep").unwrap_err().contains("asleep"));
        assert!(filter("image=base").unwrap_err().contains("status=…"));
    }
}
