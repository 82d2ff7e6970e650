//! A session of a lab.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::http::{Answer, PATIENCE, Request};
use crate::lab::{Lab, probe};
use crate::sse::{Events, Played};

/// A session; deleted when it goes.
#[derive(Debug)]
pub struct Session<'a> {
    pub lab: &'a Lab,
    pub id: String,
    /// What create answered.
    pub info: Value,
}

/// The answer of a blocking exec that was 200.
#[derive(Debug, Clone)]
pub struct Done {
    pub body: Value,
    pub took: Duration,
}

impl Done {
    #[must_use]
    pub fn code(&self) -> i64 {
        self.body["exit_code"].as_i64().unwrap_or_else(|| panic!("no exit code: {}", self.body))
    }

    #[must_use]
    pub fn output(&self) -> &str {
        self.body["output"].as_str().unwrap_or_default()
    }

    #[must_use]
    pub fn reason(&self) -> &str {
        self.body["exit_reason"].as_str().unwrap_or_default()
    }
}

impl<'a> Session<'a> {
    pub(crate) fn new(lab: &'a Lab, info: Value) -> Self {
        let id = info["id"].as_str().expect("a session id").to_owned();
        lab.note(&id);
        Self { lab, id, info }
    }

    /// A path below this session.
    #[must_use]
    pub fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.id)
    }

    #[must_use]
    pub fn request(&self, method: &str, rest: &str) -> Request<'_> {
        self.lab.client.request(method, &self.path(rest))
    }

    /// Runs a command that is answered with 200, whatever its exit code.
    #[track_caller]
    pub fn exec(&self, cmd: &str) -> Done {
        self.exec_with(&json!({ "cmd": cmd }))
    }

    #[track_caller]
    pub fn exec_with(&self, request: &Value) -> Done {
        let answer = self.try_exec(request);
        Done { body: answer.ok(200), took: answer.took }
    }

    #[must_use]
    pub fn try_exec(&self, request: &Value) -> Answer {
        let limit = Duration::from_millis(request["timeout_ms"].as_u64().unwrap_or(30_000));
        let request = self.request("POST", "/exec").json(request);
        request.patience(limit + PATIENCE).send()
    }

    /// Output of a command that has to succeed.
    #[track_caller]
    pub fn run(&self, cmd: &str) -> String {
        let done = self.exec_with(&json!({ "cmd": cmd, "timeout_ms": 120_000 }));
        assert_eq!(done.code(), 0, "{cmd}: {}", done.body);
        done.output().to_owned()
    }

    /// Starts a streamed command.
    #[must_use]
    pub fn stream(&self, request: &Value) -> Events {
        self.request("POST", "/exec/stream").json(request).stream().events()
    }

    /// Plays a streamed command to its end.
    #[must_use]
    pub fn play(&self, cmd: &str) -> Played {
        self.stream(&json!({ "cmd": cmd })).finish()
    }

    /// Writes a file.
    #[track_caller]
    pub fn write(&self, path: &str, bytes: &[u8], mode: &str) {
        let body = json!({ "path": path, "content_base64": BASE64.encode(bytes), "mode": mode });
        let answer = self.request("POST", "/fs/write").json(&body).send();
        assert_eq!(answer.ok(200), json!({ "ok": true }));
    }

    /// Reads a file, which must be whole.
    #[must_use]
    #[track_caller]
    pub fn read(&self, path: &str) -> Vec<u8> {
        let answer = self.request("GET", &format!("/fs/read?path={}", escape(path))).send();
        let body = answer.ok(200);
        assert_eq!(body["truncated"], false, "{body}");
        decode(&body["content_base64"])
    }

    #[must_use]
    #[track_caller]
    pub fn stats(&self) -> Value {
        self.request("GET", "/stats").send().ok(200)
    }

    #[must_use]
    #[track_caller]
    pub fn info(&self) -> Value {
        self.request("GET", "").send().ok(200)
    }

    #[must_use]
    pub fn delete(&self) -> Answer {
        self.request("DELETE", "").send()
    }

    /// Runs steps of the probe; one line of result each. See `tests/probe`.
    ///
    /// # Panics
    /// Where the probe itself does not run to its end.
    #[must_use]
    #[track_caller]
    pub fn probe(&self, steps: &[&str]) -> Vec<String> {
        let done = self.exec(&self.probe_command(steps));
        assert_eq!(done.code(), 0, "probe: {}", done.body);
        done.output().lines().map(str::to_owned).collect()
    }

    /// The command that runs steps of the probe, which is put into the session first.
    #[must_use]
    #[track_caller]
    pub fn probe_command(&self, steps: &[&str]) -> String {
        let bytes = std::fs::read(probe()).expect("read the probe");
        self.write(PROBE, &bytes, "0755");
        let quoted: Vec<String> = steps.iter().map(|step| quote(step)).collect();
        format!("{PROBE} {}", quoted.join(" "))
    }

    /// The same session still runs commands.
    #[track_caller]
    pub fn alive(&self) {
        let done = self.exec("echo alive");
        assert_eq!((done.code(), done.output()), (0, "alive\n"), "{}", done.body);
        assert!(done.took < Duration::from_secs(2), "alive took {:?}", done.took);
    }
}

/// Where the probe is put in a session.
pub const PROBE: &str = "/tmp/probe";

impl Drop for Session<'_> {
    fn drop(&mut self) {
        drop(self.request("DELETE", "").try_send());
    }
}

/// A word of a shell command.
#[must_use]
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A value in a query.
#[must_use]
pub fn escape(text: &str) -> String {
    let safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    let one =
        |byte: u8| if safe(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(one).collect()
}

/// Bytes of a base64 field.
///
/// # Panics
/// Where it is none.
#[must_use]
#[track_caller]
pub fn decode(value: &Value) -> Vec<u8> {
    BASE64.decode(value.as_str().expect("a text")).expect("base64")
}

/// Bytes as a base64 field.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}
