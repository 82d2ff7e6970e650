//! `sandkasten exec`, and the streaming of a command that `run` shares with it. Invariant: an exit code
//! that is passed on is the command's own; ours are those of [`crate::failure`].

use std::net::TcpStream;

use serde_json::{Value, json};

use crate::cli::Context;
use crate::client::{Client, Events};
use crate::failure::{Failure, INTERRUPTED, NOT_RUN, Result};
use crate::interrupt::Interrupt;

/// Run a command in the shell of a session and pass on its exit code.
///
/// One word is shell text as it stands ('cd /tmp && ls'); several are a program and its arguments.
/// The shell is the session's own: directories, variables and functions stay. Ctrl-C cancels the
/// command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Id of the session
    #[arg(value_name = "ID")]
    session: String,
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

/// What bounds a command.
#[derive(Debug, clap::Args)]
pub(super) struct Limits {
    /// Seconds the command may take, at most `defaults.max_exec_timeout_ms` [default: 30]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

/// Exit code where the reader of stdout is gone: 128 + SIGPIPE.
const BROKEN_PIPE: u8 = 141;

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    execute(args, context).map_err(not_run)
}

fn execute(args: &Args, context: &Context) -> Result<u8> {
    let interrupt = Interrupt::watch()?;
    let client = Client::of_daemon(context)?;
    stream(client, &segment(&args.session), &args.command, &args.limits, context, &interrupt)
}

/// Marks a failure of ours, unless it already has a code of its own.
pub(super) fn not_run(failure: Failure) -> Failure {
    if failure.exit_code == INTERRUPTED { failure } else { failure.exit_code(NOT_RUN) }
}

/// Runs a command in a session and prints what it writes, as it comes.
#[expect(
    clippy::too_many_arguments,
    reason = "one call, from two commands; each is a thing of its own"
)]
pub(super) fn stream(
    client: Client,
    session: &str,
    command: &[String],
    limits: &Limits,
    context: &Context,
    interrupt: &Interrupt,
) -> Result<u8> {
    let mut request = json!({"cmd": shell_text(command)});
    if let (Some(seconds), Some(fields)) = (limits.timeout, request.as_object_mut()) {
        fields.insert("timeout_ms".into(), seconds.saturating_mul(1000).into());
    }
    let handle: TcpStream = client.handle()?;
    if !interrupt.cuts(handle) {
        return Err(interrupted());
    }
    let done = client
        .events(&format!("/v1/sessions/{session}/exec/stream"), &request)
        .and_then(|events| follow(events, context));
    interrupt.release();
    if interrupt.came() { Err(interrupted()) } else { done }
}

fn interrupted() -> Failure {
    Failure::new("interrupted; the command is cancelled").exit_code(INTERRUPTED)
}

/// Prints chunks until the command's end, and gives its exit code.
fn follow(mut events: Events, context: &Context) -> Result<u8> {
    loop {
        let event = events.next()?;
        let text = |name: &str| event.data.get(name).and_then(Value::as_str).unwrap_or_default();
        match event.name.as_str() {
            "chunk" if context.output.is_json() => context.output.json(&event.data),
            // Nobody reads on: leaving cancels the command, as a broken pipe would.
            "chunk" if !context.output.write(text("chunk").as_bytes()) => return Ok(BROKEN_PIPE),
            "done" => return Ok(end(&event.data, context)),
            "error" => return Err(Failure::new(text("error"))),
            _ => {}
        }
    }
}

fn end(done: &Value, context: &Context) -> u8 {
    if context.output.is_json() {
        context.output.json(done);
    } else if done.get("timed_out") == Some(&Value::Bool(true)) {
        context.output.note("the command took too long and was ended; --timeout gives it more");
    } else if done.get("exit_reason").is_some_and(|reason| reason == "oom") {
        context.output.note("the session's memory was full, and the command was killed");
    }
    let code = done.get("exit_code").and_then(Value::as_i64);
    code.and_then(|code| u8::try_from(code & 0xff).ok()).unwrap_or(NOT_RUN)
}

/// The command as the shell takes it.
fn shell_text(command: &[String]) -> String {
    match command {
        [one] => one.clone(),
        several => several.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    }
}

fn quoted(word: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./:=@%+,".contains(&b);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A word of the command line as one segment of a path.
pub(super) fn segment(word: &str) -> String {
    let mut segment = String::new();
    for byte in word.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            segment.push(char::from(byte));
        } else {
            segment.push_str(&format!("%{byte:02X}"));
        }
    }
    segment
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn words_reach_the_shell_as_they_are() {
        let text =
            |words: &[&str]| shell_text(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>());
        assert_eq!(text(&["cd /tmp && ls"]), "cd /tmp && ls");
        assert_eq!(text(&["echo", "$HOME", "it's", ""]), r"echo '$HOME' 'it'\''s' ''");
    }

    #[test]
    fn an_id_cannot_leave_its_segment() {
        assert_eq!(segment("../a?b"), "..%2Fa%3Fb");
    }
}
