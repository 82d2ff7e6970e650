//! What exec promises: true answers whatever the payload does, commands that outlive connections and
//! daemons, and replays that never differ.
//!
//! Checks are tests named after them; each row of a table is a test of its
//! own.

mod alone;
mod durable;
mod fields;
mod hostile;
mod integrity;
mod many;
mod pieces;

use std::time::{Duration, Instant};

use sandkasten_e2e::http::Answer;
use sandkasten_e2e::{Lab, Session, host, wait};
use serde_json::{Value, json};

/// "At once", on a host that does other things too.
const AT_ONCE: Duration = Duration::from_secs(2);
const MIB: usize = 1 << 20;

fn base(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "base" }))
}

fn python(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "python" }))
}

/// The command is answered at once, with this exit code and exactly this output.
#[track_caller]
fn gives(session: &Session<'_>, cmd: &str, code: i64, output: &str) {
    let done = session.exec(cmd);
    assert_eq!((done.code(), done.output()), (code, output), "{cmd}: {}", done.body);
    assert!(done.took < AT_ONCE, "{cmd}: took {:?}", done.took);
}

/// One event as the daemon told it: its time of arrival is no part of it.
#[derive(Debug, Clone, PartialEq)]
struct Told {
    id: u64,
    name: String,
    data: Value,
}

/// What a replay gave.
#[derive(Debug, Clone, PartialEq)]
struct Replay {
    /// Without the comments that fill silence.
    bytes: Vec<u8>,
    events: Vec<Told>,
}

impl Replay {
    #[track_caller]
    fn of(answer: &Answer) -> Self {
        assert_eq!(answer.status(), 200, "{answer}");
        let kind = answer.header("Content-Type").unwrap_or_default();
        assert!(kind.starts_with("text/event-stream"), "{answer}");
        assert!(answer.body.is_ascii(), "bytes beyond ASCII");
        let text = answer.text();
        let blocks: Vec<&str> =
            text.split_terminator("\n\n").filter(|block| !block.starts_with(':')).collect();
        let events: Vec<Told> = blocks.iter().map(|block| told(block)).collect();
        // A stream that the daemon cuts off has an `error` and no event more.
        let own = events.iter().filter(|event| event.name != "error");
        let ids: Vec<u64> = own.map(|event| event.id).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "ids that do not rise: {ids:?}");
        Self { bytes: blocks.join("\n\n").into_bytes(), events }
    }

    fn text(&self) -> String {
        self.events.iter().filter_map(|event| event.data["chunk"].as_str()).collect()
    }

    fn named(&self, name: &str) -> Vec<&Told> {
        self.events.iter().filter(|event| event.name == name).collect()
    }

    /// The only `done`.
    #[track_caller]
    fn done(&self) -> &Told {
        let done = self.named("done");
        assert_eq!(done.len(), 1, "{:?}", self.events.last());
        done[0]
    }
}

#[track_caller]
fn told(block: &str) -> Told {
    assert!(block.len() + 2 <= sandkasten_e2e::sse::EVENT_BYTES_MAX, "{} bytes", block.len());
    let lines: Vec<&str> = block.split('\n').collect();
    let [id, name, data] = lines[..] else { panic!("not three lines: {block:?}") };
    let field = |line: &str, name: &str| {
        let value = line.strip_prefix(name).unwrap_or_else(|| panic!("no `{name}`: {block:?}"));
        value.to_owned()
    };
    Told {
        id: field(id, "id: ").parse().expect("a number"),
        name: field(name, "event: "),
        data: serde_json::from_str(&field(data, "data: ")).expect("JSON"),
    }
}

/// The events of an exec; `query` as `after=3&follow=true`.
#[track_caller]
fn replay(session: &Session<'_>, exec_id: &str, query: &str) -> Replay {
    let path = format!("/execs/{exec_id}/events?{query}");
    Replay::of(&session.request("GET", &path).send())
}

/// The events of a live stream, read to its end.
#[track_caller]
fn play(session: &Session<'_>, request: &Value) -> Vec<Told> {
    let played = session.stream(request).finish();
    let told = |event: sandkasten_e2e::sse::Event| Told {
        id: event.id,
        name: event.name,
        data: event.data,
    };
    played.events.into_iter().map(told).collect()
}

/// Starts a command that nobody waits for.
#[track_caller]
fn detach(session: &Session<'_>, request: &Value) -> String {
    let mut request = request.clone();
    request["detach"] = json!(true);
    let answer = session.request("POST", "/exec").json(&request).send();
    let body = answer.ok(202);
    assert!(answer.took < AT_ONCE, "detach took {:?}", answer.took);
    body["exec_id"].as_str().unwrap_or_else(|| panic!("no exec_id: {body}")).to_owned()
}

/// What is known of an exec.
#[track_caller]
fn status(session: &Session<'_>, exec_id: &str) -> Value {
    session.request("GET", &format!("/execs/{exec_id}")).send().ok(200)
}

/// Waits for the end of an exec by its events, and gives what is known of it then.
#[track_caller]
fn finished(session: &Session<'_>, exec_id: &str) -> Value {
    let all = replay(session, exec_id, "follow=true");
    assert!(!all.named("done").is_empty(), "{:?}", all.events.last());
    let status = status(session, exec_id);
    assert_eq!(status["status"], "finished", "{status}");
    status
}

/// Waits until a process with these words runs in the session.
#[track_caller]
fn runs(session: &Session<'_>, words: &str) {
    wait::until(words, Duration::from_secs(10), || is_running(session, words));
}

/// Whether a process of the session's has these words as its whole command.
fn is_running(session: &Session<'_>, words: &str) -> bool {
    host::processes_of(&session.id).into_iter().any(|pid| {
        let command = host::proc_file(pid, "cmdline").replace('\0', " ");
        command.trim() == words
    })
}

/// Cuts a connection once a request is on it and, where there is a line to wait for, answered so far.
fn cut_off(session: &Session<'_>, path: &str, request: &Value) {
    let request = session.request("POST", path).json(request);
    let mut connection = session.lab.client.connect().expect("connect");
    connection.write(&request.bytes()).expect("send");
    drop(connection);
}

/// How long something takes.
fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    (act(), start.elapsed())
}
