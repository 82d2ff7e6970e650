//! One command in a session: its output as it comes, this process's stdin into it, its end.
//!
//! ```text
//!   shell    POST …/exec/stream ──────────> events ──> stdout, stderr, exit code
//!            POST …/execs/ID/stdin      <── stdin, as it comes
//!   program  POST …/processes, GET …/processes/ID/events ──> the same
//!            POST …/processes/ID/stdin  <── stdin, POST …/resize <── SIGWINCH
//! ```
//!
//! A command of the shell waits for who reads its output, so that no byte is lost. A program beside
//! the shell does not wait: it is what has a terminal, and what there is where there is no shell.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sandkasten_types::process::Tty;
use sandkasten_types::session::{Session, Shell};
use sandkasten_types::{ExecId, SessionId};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::flags::HowRun;
use crate::client::{Client, Event, Events, Feeder, NoEvents};
use crate::context::Context;
use crate::failure::{Failure, NOT_RUN, Result, Tried};
use crate::interrupt::Interrupt;
use crate::terminal;

/// Exit code where the reader of stdout is gone: 128 + SIGPIPE.
const BROKEN_PIPE: u8 = 141;

/// Where a command is run, and for whom.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) context: &'a Context,
    pub(super) interrupt: &'a Interrupt,
    pub(super) session: &'a Session,
    pub(super) how: &'a HowRun,
}

/// How it ended for its caller.
#[derive(Debug)]
pub(super) enum Ended {
    /// With this exit code, the command's own.
    Code(u8),
    /// The daemon is not there any more. The command may go on.
    Lost(Failure),
}

/// How the reading of its output ended.
#[derive(Debug)]
enum Read {
    Code(u8),
    /// Nobody reads it here any more.
    Unread,
    Lost,
}

/// What was begun, as `result` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Begun {
    Exec(String),
    Process(String),
}

impl Begun {
    pub(super) fn id(&self) -> &str {
        let (Self::Exec(id) | Self::Process(id)) = self;
        id
    }

    fn path(&self, session: &SessionId) -> String {
        match self {
            Self::Exec(id) => format!("/v1/sessions/{session}/execs/{id}"),
            Self::Process(id) => format!("/v1/sessions/{session}/processes/{id}"),
        }
    }
}

impl Call<'_> {
    /// Runs it and prints what it writes, as it comes.
    ///
    /// # Errors
    /// Where it can't be run, or is cut off.
    pub(super) fn run(
        &self,
        client: Client,
        command: &[String],
        more: Map<String, Value>,
    ) -> Result<Ended> {
        if self.how.tty || self.session.shell.is_none() {
            self.program(client, command, more)
        } else {
            self.shell(client, command, more)
        }
    }

    /// Begins it, and says under which id.
    ///
    /// # Errors
    /// Where it can't be begun.
    pub(super) fn detach(
        &self,
        mut client: Client,
        command: &[String],
        mut more: Map<String, Value>,
    ) -> Result<Begun> {
        self.how.add_to(&mut more);
        let id_of = |answer: &Value, name: &str| {
            let id = answer.get(name).and_then(Value::as_str);
            id.map(str::to_owned).ok_or_else(|| Failure::new("the daemon's answer has no id"))
        };
        if self.session.shell.is_none() {
            let answer = self.start(&mut client, command, more)?;
            return id_of(&answer, "process_id").map(Begun::Process);
        }
        more.insert("cmd".into(), shell_text(command).into());
        more.insert("split".into(), true.into());
        more.insert("encoding".into(), "base64".into());
        more.insert("detach".into(), true.into());
        let path = format!("/v1/sessions/{}/exec", self.session.id);
        let answer: Value = client.call("POST", &path, Some(&more.into()))?;
        id_of(&answer, "exec_id").map(Begun::Exec)
    }

    /// In the session's shell.
    fn shell(
        &self,
        client: Client,
        command: &[String],
        mut request: Map<String, Value>,
    ) -> Result<Ended> {
        // Chosen here, so that it is known even where no answer comes.
        let id = ExecId::random().tried(|| "random exec id".to_owned())?.to_string();
        self.how.add_to(&mut request);
        request.insert("cmd".into(), shell_text(command).into());
        request.insert("exec_id".into(), id.as_str().into());
        request.insert("split".into(), true.into());
        if !self.context.output.is_json() {
            request.insert("encoding".into(), "base64".into());
        }
        let has_stdin = Feeder::is_needed();
        request.insert("stdin_open".into(), has_stdin.into());
        let begun = Begun::Exec(id);
        let feeding = if has_stdin { Some(client.again()?) } else { None };
        self.cut_by_signals(&client)?;
        let path = format!("/v1/sessions/{}/exec/stream", self.session.id);
        let events = match (client.events(&path, &request.into()), self.interrupt.failure()) {
            (Ok(events), _) => events,
            (Err(_), Some(interrupted)) => return Err(interrupted),
            (Err(NoEvents::Lost(_)), None) => return Ok(Ended::Lost(self.lost(&begun))),
            (Err(NoEvents::Refused(why)), None) => return Err(why),
        };
        let feeder = feeding.map(|client| self.feed(client, &begun)).transpose()?;
        let read = self.follow(events);
        self.interrupt.release();
        feeder.into_iter().for_each(Feeder::stop);
        self.ended(read, &begun)
    }

    /// As a program of its own, on a terminal where that is asked for.
    fn program(
        &self,
        mut client: Client,
        command: &[String],
        mut request: Map<String, Value>,
    ) -> Result<Ended> {
        self.how.add_to(&mut request);
        let has_stdin = self.how.tty || Feeder::is_needed();
        request.insert("stdin".into(), if has_stdin { "open" } else { "none" }.into());
        let (feeding, resizing) = (client.again()?, client.again()?);
        // Watched before it is looked at, so that no change is missed.
        let sizes = if self.how.tty { Some(Sizes::watch()?) } else { None };
        let size = terminal::size();
        let raw = if self.how.tty { Some(terminal::Raw::enter()?) } else { None };
        if raw.is_some() {
            request.insert("tty".into(), json!(size));
        }
        // Not cut by signals: it would be unknown whether there is a program.
        let started = self.start(&mut client, command, request)?;
        let id = started.get("process_id").and_then(Value::as_str).unwrap_or_default();
        let begun = Begun::Process(id.to_owned());
        let cleaner = client.again();
        let path = begun.path(&self.session.id);
        if let Some(sizes) = sizes {
            sizes.send(resizing, format!("{path}/resize"), size);
        }
        let read = self.cut_by_signals(&client).and_then(|()| {
            let events = match client.replay(&format!("{path}/events?follow=true")) {
                Err(NoEvents::Lost(_)) => return Ok(Read::Lost),
                events => events?,
            };
            let feeder = if has_stdin { Some(self.feed(feeding, &begun)?) } else { None };
            let read = self.follow(events);
            feeder.into_iter().for_each(Feeder::stop);
            read
        });
        self.interrupt.release();
        drop(raw);
        if !matches!(read, Ok(Read::Code(_) | Read::Lost)) || self.interrupt.failure().is_some() {
            // Where the session is gone, or goes next, so is the program.
            cleaner.and_then(|cleaner| cleaner.again()?.send("DELETE", &path, None)).ok();
        }
        self.ended(read, &begun)
    }

    /// Starts a program beside the shell, in the session's directory unless the request names another.
    fn start(
        &self,
        client: &mut Client,
        command: &[String],
        mut request: Map<String, Value>,
    ) -> Result<Value> {
        request.insert("argv".into(), json!(self.argv(command)));
        request.entry("cwd").or_insert_with(|| self.session.cwd.as_str().into());
        client.call(
            "POST",
            &format!("/v1/sessions/{}/processes", self.session.id),
            Some(&request.into()),
        )
    }

    /// From here on a signal cuts the connection.
    fn cut_by_signals(&self, client: &Client) -> Result<()> {
        self.interrupt.cuts(client.handle()?);
        self.interrupt.failure().map_or(Ok(()), Err)
    }

    fn feed(&self, client: Client, begun: &Begun) -> Result<Feeder> {
        Feeder::start(client, &format!("{}/stdin", begun.path(&self.session.id)))
    }

    fn ended(&self, read: Result<Read>, begun: &Begun) -> Result<Ended> {
        if let Some(interrupted) = self.interrupt.failure() {
            return Err(interrupted);
        }
        Ok(match read? {
            Read::Code(code) => Ended::Code(code),
            Read::Unread => Ended::Code(BROKEN_PIPE),
            Read::Lost => Ended::Lost(self.lost(begun)),
        })
    }

    fn lost(&self, begun: &Begun) -> Failure {
        let (session, id) = (&self.session.id, begun.id());
        let kind = match begun {
            Begun::Exec(_) => "exec",
            Begun::Process(_) => "process",
        };
        Failure::new(format!(
            "the daemon is gone; the command may go on as {kind} {id} of session {session}"
        ))
        .hint(format!(
            "once a daemon runs again, `sandkasten result {session} {id}` prints what it wrote"
        ))
    }

    /// Prints output until the command's end.
    fn follow(&self, events: Events) -> Result<Read> {
        follow(events, self.context)
    }

    /// A command as a program takes it.
    fn argv(&self, command: &[String]) -> Vec<String> {
        let shell = match self.session.shell {
            Some(Shell::Bash) => "bash",
            Some(Shell::Sh) => "sh",
            None => return command.to_vec(),
        };
        match command {
            [] => vec![shell.to_owned()],
            [one] => vec![shell.to_owned(), "-c".to_owned(), one.clone()],
            several => several.to_vec(),
        }
    }
}

/// Prints what a command wrote, and waits for its end; for who was not there when it ran.
///
/// # Errors
/// Where the command can't be followed to its end.
pub(super) fn replay(
    client: Client,
    session: &SessionId,
    begun: &Begun,
    context: &Context,
) -> Result<u8> {
    let events = client.replay(&format!("{}/events?follow=true", begun.path(session)))?;
    match follow(events, context)? {
        Read::Code(code) => Ok(code),
        Read::Unread => Ok(BROKEN_PIPE),
        Read::Lost => Err(Failure::new("the daemon is gone")
            .hint("once a daemon runs again, the same command goes on")),
    }
}

fn follow(mut events: Events, context: &Context) -> Result<Read> {
    loop {
        let Ok(event) = events.next() else { return Ok(Read::Lost) };
        let text = |name: &str| event.data.get(name).and_then(Value::as_str).unwrap_or_default();
        match event.name.as_str() {
            "error" if text("error_code") == "DRAINING" => return Ok(Read::Lost),
            "error" => return Err(Failure::new(text("error"))),
            "done" | "exit" => return Ok(Read::Code(end(&event.data, context))),
            "chunk" | "output" | "gap" if !show(&event, context)? => return Ok(Read::Unread),
            _ => {}
        }
    }
}

/// False: nobody reads on. Leaving cancels the command, as a broken pipe would.
fn show(event: &Event, context: &Context) -> Result<bool> {
    let output = &context.output;
    let text = |name: &str| event.data.get(name).and_then(Value::as_str);
    if output.is_json() {
        return Ok(output.event(&event.data));
    }
    if event.name == "gap" {
        let bytes = event.data.get("bytes").and_then(Value::as_u64).unwrap_or(0);
        output.warning(&format!("{bytes} bytes of output are not kept, and are left out here"));
        return Ok(true);
    }
    let bytes = match text("chunk_base64").or_else(|| text("data_base64")) {
        Some(base64) => STANDARD.decode(base64).tried(|| "output".to_owned())?,
        None => text("chunk").unwrap_or_default().into(),
    };
    if text("stream") == Some("stderr") {
        output.write_stderr(&bytes);
        return Ok(true);
    }
    Ok(output.write(&bytes))
}

fn end(done: &Value, context: &Context) -> u8 {
    let reason = done.get("exit_reason").and_then(Value::as_str).unwrap_or_default();
    if context.output.is_json() {
        context.output.json(done);
    } else if reason == "timeout" {
        context.output.note("the command took too long and was ended; --timeout gives it more");
    } else if reason == "oom" {
        context.output.note("the session's memory was full, and the command was killed");
    }
    let code = done.get("exit_code").and_then(Value::as_i64);
    code.and_then(|code| u8::try_from(code & 0xff).ok()).unwrap_or(NOT_RUN)
}

/// Changes of the terminal's size.
#[derive(Debug)]
struct Sizes {
    runtime: tokio::runtime::Runtime,
    changes: tokio::signal::unix::Signal,
}

impl Sizes {
    fn watch() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.tried(|| "runtime".to_owned())?;
        let changes = {
            let _inside = runtime.enter();
            signal(SignalKind::window_change()).tried(|| "signals".to_owned())?
        };
        Ok(Self { runtime, changes })
    }

    /// Tells the program's terminal of each change, until this process ends.
    fn send(self, client: Client, path: String, mut known: Tty) {
        let Self { runtime, mut changes } = self;
        std::thread::spawn(move || {
            while runtime.block_on(changes.recv()).is_some() {
                let size = terminal::size();
                if size != known {
                    // A connection of its own: one that is idle for long is closed. Once the program
                    // has ended there is nobody to tell.
                    let told = |mut client: Client| client.send("POST", &path, Some(&json!(size)));
                    client.again().and_then(told).ok();
                }
                known = size;
            }
        });
    }
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
}
