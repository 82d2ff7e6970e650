//! Flags that commands share: one set for whatever makes a session, one for whatever runs a command,
//! and one for what both have. Each value has one parser.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::variable_of_caller;
use crate::failure::{Failure, Result, WRONG_USAGE};
use crate::units;

const OF_SESSION: &str = "Options of the session";
const OF_COMMAND: &str = "Options of the command";

/// What surrounds a command.
#[derive(Debug, clap::Args)]
pub(super) struct Surroundings {
    /// Variable of the command's environment; a NAME alone has the value that it has here
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = variable, help_heading = OF_COMMAND)]
    env: Vec<Variable>,
    /// User of the box: `root`, or any name or number of its passwd [default: the session's user]
    #[arg(short, long, value_name = "NAME", help_heading = OF_COMMAND)]
    pub(super) user: Option<String>,
    /// Directory of the box to be in
    #[arg(short = 'w', long, value_name = "DIR", help_heading = OF_COMMAND)]
    pub(super) cwd: Option<String>,
}

/// How a command is run.
#[derive(Debug, clap::Args)]
pub(super) struct HowRun {
    /// How long the command may take: 500ms, 30s, 5m; a bare number is seconds
    /// [default: 30s; with -t, and in an image without a shell, as long as it likes]
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = OF_COMMAND)]
    timeout: Option<Duration>,
    /// Leave the command to itself and print its id; `sandkasten result` has its output
    #[arg(short, long, conflicts_with_all = ["tty", "interactive"], help_heading = OF_COMMAND)]
    pub(super) detach: bool,
    /// Give it a terminal of the size of this one
    #[arg(short, long, help_heading = OF_COMMAND)]
    pub(super) tty: bool,
    /// Give it this stdin, which it has without -i too
    #[arg(short, long, help_heading = OF_COMMAND)]
    interactive: bool,
}

/// What a session is made of.
#[derive(Debug, clap::Args)]
pub(super) struct NewSession {
    /// Image, instead of the first word
    #[arg(long = "image", value_name = "IMAGE", help_heading = OF_SESSION)]
    pub(super) named_image: Option<String>,
    /// Memory, as 512m or 1g
    #[arg(long, value_name = "SIZE", value_parser = units::mebibytes, help_heading = OF_SESSION)]
    memory: Option<u64>,
    /// Cores, as 0.5 or 2
    #[arg(long, value_name = "NUMBER", value_parser = cores, help_heading = OF_SESSION)]
    cpus: Option<f64>,
    /// Room on disk outside a workspace, as 512m or 10g
    #[arg(long, value_name = "SIZE", value_parser = units::mebibytes, help_heading = OF_SESSION)]
    disk: Option<u64>,
    /// Processes and threads
    #[arg(long, value_name = "NUMBER", help_heading = OF_SESSION)]
    pids: Option<u64>,
    /// How long the session lives after its last use, as 30m
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = OF_SESSION)]
    pub(super) ttl: Option<Duration>,
    /// Name for people; commands take it in place of the id
    #[arg(long, value_name = "NAME", help_heading = OF_SESSION)]
    name: Option<String>,
    /// Label of the session, for `ps --filter`
    #[arg(long, value_name = "KEY=VALUE", value_parser = label, help_heading = OF_SESSION)]
    label: Vec<(String, String)>,
    /// Workspace to have at /workspace; it outlives the session
    #[arg(short = 'v', long, value_name = "ID", help_heading = OF_SESSION)]
    workspace: Option<String>,
}

/// `NAME=VALUE`, or `NAME` alone.
#[derive(Debug, Clone)]
struct Variable {
    name: String,
    value: Option<String>,
}

impl Surroundings {
    /// `env`, `user` and `cwd` of a request.
    pub(super) fn add_to(&self, request: &mut Map<String, Value>) -> Result<()> {
        let env = self.env()?;
        if !env.is_empty() {
            request.insert("env".into(), env.into());
        }
        add(request, "user", self.user.clone());
        add(request, "cwd", self.cwd.clone());
        Ok(())
    }

    /// A variable that is named alone, and is not there, is left out.
    pub(super) fn env(&self) -> Result<Map<String, Value>> {
        let mut env = Map::new();
        for Variable { name, value } in &self.env {
            let value = match value {
                Some(value) => Some(value.clone()),
                None => variable_of_caller(name)?,
            };
            add(&mut env, name, value);
        }
        Ok(env)
    }
}

impl HowRun {
    /// The field `timeout_ms` of a request.
    pub(super) fn add_to(&self, request: &mut Map<String, Value>) {
        add(request, "timeout_ms", self.timeout.map(milliseconds));
    }
}

impl NewSession {
    /// The fields of a create.
    pub(super) fn request(&self, image: &str) -> Map<String, Value> {
        let mut request = Map::new();
        add(&mut request, "image", Some(image));
        add(&mut request, "ttl_seconds", self.ttl.map(|ttl| milliseconds(ttl).div_ceil(1000)));
        add(&mut request, "name", self.name.clone());
        add(&mut request, "workspace_id", self.workspace.clone());
        let labels: Map<String, Value> =
            self.label.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        request.insert("labels".into(), labels.into());
        let mut limits = Map::new();
        add(&mut limits, "memory_mb", self.memory);
        add(&mut limits, "cpu", self.cpus);
        add(&mut limits, "disk_mb", self.disk);
        add(&mut limits, "pids", self.pids);
        request.insert("limits".into(), limits.into());
        request
    }
}

fn add(request: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        request.insert(name.to_owned(), value.into());
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn time(text: &str) -> Result<Duration, String> {
    let duration = units::duration(text)?;
    if duration.is_zero() { Err("it must be more than nothing".into()) } else { Ok(duration) }
}

fn cores(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let number = number.filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("`{text}` is no number of cores; write 0.5 or 2"))
}

fn variable(text: &str) -> Result<Variable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err("a variable needs a name: NAME=VALUE".into());
    }
    Ok(Variable { name: name.to_owned(), value })
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    if key.is_empty() {
        return Err("a label needs a key: KEY=VALUE".into());
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// Says that options of ours stand where only the command's own may.
///
/// `first` is the word before the command; without one the command's first word is the first of all.
/// `all` are the words of the whole command line.
///
/// # Errors
/// Where an option stands behind the first word, and no `--` says that it is the command's own.
pub(super) fn check_command(
    command: &[String],
    first: Option<(&str, &str)>,
    all: &[String],
) -> Result<()> {
    let (before, behind) = all.split_at(all.len().saturating_sub(command.len()));
    let (before, is_meant) = match before.split_last() {
        Some((last, before)) if last == "--" => (before, true),
        _ => (before, false),
    };
    let is_option = |word: &&String| word.starts_with('-');
    let late = match first {
        None if behind != command => all.iter().rfind(is_option),
        None => None,
        Some((word, _)) => {
            let words_behind = before.iter().rev().take_while(|other| *other != word);
            let own = command.first().filter(is_option).filter(|_| !is_meant);
            words_behind.filter(is_option).last().or(own)
        }
    };
    let noun = first.map_or("command's first word", |(_, noun)| noun);
    late.map_or(Ok(()), |option| Err(misplaced(option, noun)))
}

/// An option of ours that stands too late.
fn misplaced(option: &str, behind: &str) -> Failure {
    let option = option.split('=').next().unwrap_or(option);
    Failure::new(format!("the option {option} stands behind the {behind}"))
        .hint(format!(
            "put it before the {behind}; `--` before the command says that what follows is the command's own"
        ))
        .exit_code(WRONG_USAGE)
}

/// No command, and nothing that would stand for one.
pub(super) fn no_command(usage: &str) -> Failure {
    Failure::new("no command is given").hint(format!("usage: {usage}")).exit_code(WRONG_USAGE)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn options_of_ours_stand_before_the_first_word() {
        let told = |line: &str, command: usize, first: Option<(&str, &str)>| {
            let all: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let at = all.len() - command;
            check_command(&all[at..], first, &all).map_err(|why| why.message)
        };
        let image = Some(("tiny", "image"));
        for (line, command) in [
            ("s --json run tiny true", 1),
            ("s run --name tiny tiny true --json", 2),
            ("s run tiny -- --json", 1),
            ("s run -t tiny", 0),
        ] {
            assert_eq!(told(line, command, image), Ok(()), "{line}");
        }
        for (line, command, option) in [
            ("s run tiny --json true", 1, "--json"),
            ("s run tiny --url=x -- true", 1, "--url"),
            ("s run tiny --memroy 1g true", 3, "--memroy"),
            ("s run -t tiny --json", 0, "--json"),
        ] {
            let message = told(line, command, image).unwrap_err();
            assert_eq!(message, format!("the option {option} stands behind the image"), "{line}");
        }
        assert_eq!(told("s run --image tiny python a.py", 2, None), Ok(()));
        let words = ["s", "run", "--image", "tiny", "python", "-u", "a.py"].map(str::to_owned);
        // What follows -u was taken for a user.
        let told = check_command(&words[4..5], None, &words).unwrap_err();
        assert_eq!(told.message, "the option -u stands behind the command's first word");
    }
}
