//! Processes: programs by argv beside the shell, their stdin, events, sockets and ends.
//!
//! Fields and errors are rows of tables, each a test of its own.

mod alone;
mod attach;
mod bare;
mod ends;
mod events;
mod fields;
mod frameworks;
mod stdin;
mod wait;

use std::time::Duration;

use sandkasten_e2e::http::Answer;
use sandkasten_e2e::session::{decode, encode};
use sandkasten_e2e::sse::Event;
use sandkasten_e2e::websocket::{Message, WebSocket};
use sandkasten_e2e::{Lab, Session};
use serde_json::{Value, json};

/// "At once", on a host that does other things too.
const AT_ONCE: Duration = Duration::from_secs(2);
const MIB: usize = 1 << 20;

fn tiny(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "tiny" }))
}

fn base(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "base" }))
}

fn python(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "python" }))
}

/// A process that was started.
struct Process<'a> {
    session: &'a Session<'a>,
    id: String,
    pid: i64,
}

/// Starts a process that goes on.
#[track_caller]
fn start<'a>(session: &'a Session<'a>, request: &Value) -> Process<'a> {
    let body = ask(session, request).ok(201);
    let id = body["process_id"].as_str().expect("an id").to_owned();
    Process { session, id, pid: body["pid"].as_i64().expect("a pid") }
}

#[track_caller]
fn ask(session: &Session<'_>, request: &Value) -> Answer {
    let patience = Duration::from_millis(request["timeout_ms"].as_u64().unwrap_or(0));
    let post = session.request("POST", "/processes").json(request);
    post.patience(sandkasten_e2e::http::PATIENCE + patience).send()
}

/// What a process that was waited for gave.
struct Done {
    body: Value,
    took: Duration,
}

impl Done {
    #[track_caller]
    fn code(&self) -> i64 {
        self.body["exit_code"].as_i64().unwrap_or_else(|| panic!("no code: {}", self.body))
    }

    fn reason(&self) -> &str {
        self.body["exit_reason"].as_str().unwrap_or_default()
    }

    #[track_caller]
    fn stdout(&self) -> Vec<u8> {
        decode(&self.body["stdout_base64"])
    }

    #[track_caller]
    fn stderr(&self) -> Vec<u8> {
        decode(&self.body["stderr_base64"])
    }

    #[track_caller]
    fn text(&self) -> String {
        String::from_utf8(self.stdout()).expect("UTF-8")
    }
}

/// Runs a process to its end.
#[track_caller]
fn run_with(session: &Session<'_>, request: &Value) -> Done {
    let mut request = request.clone();
    request["wait"] = json!(true);
    let answer = ask(session, &request);
    Done { body: answer.ok(200), took: answer.took }
}

#[track_caller]
fn run(session: &Session<'_>, argv: &[&str]) -> Done {
    run_with(session, &json!({ "argv": argv }))
}

/// stdout of a process that has to succeed.
#[track_caller]
fn says(session: &Session<'_>, argv: &[&str]) -> String {
    let done = run(session, argv);
    assert_eq!((done.code(), done.stderr()), (0, vec![]), "{argv:?}: {}", done.body);
    done.text()
}

impl Process<'_> {
    fn path(&self, rest: &str) -> String {
        format!("/processes/{}{rest}", self.id)
    }

    #[track_caller]
    fn send(&self, method: &str, rest: &str, body: &Value) -> Answer {
        self.session.request(method, &self.path(rest)).json(body).send()
    }

    #[track_caller]
    fn info(&self) -> Value {
        self.session.request("GET", &self.path("")).send().ok(200)
    }

    #[track_caller]
    fn signal(&self, signal: &Value) {
        let answer = self.send("POST", "/signal", &json!({ "signal": signal }));
        assert_eq!(answer.ok(200), json!({ "ok": true }));
    }

    #[track_caller]
    fn kill(&self) {
        let answer = self.session.request("DELETE", &self.path("")).send();
        assert_eq!(answer.ok(200), json!({ "ok": true }));
    }

    #[track_caller]
    fn stdin(&self, bytes: &[u8], query: &str) -> Answer {
        self.session.request("POST", &self.path(&format!("/stdin{query}"))).body(bytes).send()
    }

    /// Events of a replay, to the end of the answer.
    #[track_caller]
    fn events(&self, query: &str) -> Vec<Event> {
        self.session.request("GET", &self.path(&format!("/events{query}"))).stream().replay().all()
    }

    /// Waits for its end and gives the data of `exit`.
    #[track_caller]
    fn exit(&self) -> Value {
        let events = self.events("?follow=true");
        let exit = events.iter().find(|event| event.name == "exit");
        exit.unwrap_or_else(|| panic!("no exit: {events:?}")).data.clone()
    }

    #[track_caller]
    fn attach(&self, query: &str) -> Attached {
        let request = self.session.request("GET", &self.path(&format!("/attach{query}")));
        let socket = request.upgrade().unwrap_or_else(|answer| panic!("no socket: {answer}"));
        Attached { socket, stdout: Vec::new(), stderr: Vec::new() }
    }
}

/// The bytes that events of a stream have, all of them where it is empty.
fn bytes_of(events: &[Event], stream: &str) -> Vec<u8> {
    let of_stream = |event: &&Event| {
        event.name == "output" && (stream.is_empty() || event.data["stream"] == stream)
    };
    events.iter().filter(of_stream).flat_map(|event| decode(&event.data["data_base64"])).collect()
}

/// A client on a process, and all that it was told.
struct Attached {
    socket: WebSocket,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Attached {
    #[track_caller]
    fn stdin(&mut self, bytes: &[u8]) {
        self.socket.binary(&[&[0], bytes].concat());
    }

    #[track_caller]
    fn order(&mut self, order: &Value) {
        self.socket.text(order);
    }

    /// The next text; output on the way is kept.
    #[track_caller]
    fn text(&mut self) -> Value {
        loop {
            match self.socket.message() {
                Some(Message::Text(text)) => return text,
                Some(Message::Binary(frame)) => self.take(&frame),
                other => panic!("no text: {other:?}"),
            }
        }
    }

    /// The next text of another type.
    #[track_caller]
    fn text_but(&mut self, kind: &str) -> Value {
        loop {
            let text = self.text();
            if text["type"] != kind {
                return text;
            }
        }
    }

    #[track_caller]
    fn take(&mut self, frame: &[u8]) {
        let (stream, data) = frame.split_first().expect("a byte for the stream");
        match stream {
            1 => self.stdout.extend_from_slice(data),
            2 => self.stderr.extend_from_slice(data),
            other => panic!("stream {other}"),
        }
    }

    /// Reads until stdout has this text.
    #[track_caller]
    fn until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.stdout).contains(text) {
            match self.socket.message() {
                Some(Message::Binary(frame)) => self.take(&frame),
                Some(Message::Text(text)) if text["type"] == "gap" => {}
                other => {
                    let so_far = String::from_utf8_lossy(&self.stdout).into_owned();
                    panic!("no {text:?} in {so_far:?} before {other:?}");
                }
            }
        }
    }

    /// Reads to `exit`, the close behind it and the end of the connection.
    #[track_caller]
    fn exit(&mut self) -> Value {
        let exit = self.text();
        assert_eq!(exit["type"], "exit", "{exit}");
        assert_eq!(self.socket.message(), Some(Message::Close(1000)));
        self.socket.close();
        assert_eq!(self.socket.message(), None);
        exit
    }
}

/// A base64 stdin.
fn data(bytes: &[u8]) -> Value {
    json!({ "base64": encode(bytes) })
}
