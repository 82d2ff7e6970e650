//! What an operator sees: the lines of the log, and `/metrics`.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandkasten_e2e::http::Client;
use sandkasten_e2e::lab::{self, Signal};
use sandkasten_e2e::{Lab, Session, host, wait};
use serde_json::{Value, json};

/// The lines of requests, oldest first.
fn requests(lab: &Lab) -> Vec<Value> {
    let log = lab.log();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["message"] == "request").collect()
}

/// The line of a request that is over, by its id.
#[track_caller]
fn line_of(lab: &Lab, id: &str) -> Value {
    let mut found = None;
    wait::until(id, Duration::from_secs(5), || {
        found = requests(lab).into_iter().find(|line| line["request_id"] == id);
        found.is_some()
    });
    found.expect("a line")
}

#[test]
fn a_request_line_says_who_asked_for_what_and_why_it_failed() {
    let lab = Lab::start();
    let send = |id: &str, method: &str, target: &str, body: &Value| {
        let request = lab.client.request(method, target).header("X-Request-Id", id);
        if body.is_null() { request.send() } else { request.json(body).send() }
    };
    let made = send("make", "POST", "/v1/sessions", &json!({})).ok(201);
    let session = lab.known(made["id"].as_str().expect("an id"));
    let made = line_of(&lab, "make");
    assert_eq!((&made["session"], &made["status"]), (&json!(session.id), &json!(201)));
    assert!(made["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{made}");
    assert!(made.get("code").is_none() && made.get("exec").is_none(), "{made}");

    send("run", "POST", &session.path("/exec"), &json!({ "cmd": "true", "exec_id": "mine" }))
        .ok(200);
    let run = line_of(&lab, "run");
    assert_eq!((&run["session"], &run["exec"]), (&json!(session.id), &json!("mine")));
    let started = json!({ "argv": ["sleep", "60"] });
    let started = send("start", "POST", &session.path("/processes"), &started).ok(201);
    assert_eq!(line_of(&lab, "start")["process"], started["process_id"]);
    let process = started["process_id"].as_str().expect("an id");
    send("look", "GET", &session.path(&format!("/processes/{process}")), &Value::Null).ok(200);
    assert_eq!(line_of(&lab, "look")["process"], started["process_id"]);

    send("lost", "GET", &session.path("/fs/read?path=nothing"), &Value::Null)
        .error(404, "FILE_NOT_FOUND");
    let lost = line_of(&lab, "lost");
    assert_eq!((&lost["code"], &lost["session"]), (&json!("FILE_NOT_FOUND"), &json!(session.id)));
    send("space", "GET", "/v1/workspaces/nobody", &Value::Null).error(404, "WORKSPACE_NOT_FOUND");
    assert_eq!(line_of(&lab, "space")["workspace"], "nobody");
    // A text that is no id is the client's, and stays out.
    send("odd", "GET", "/v1/sessions/%22%0aforged", &Value::Null).error(404, "SESSION_NOT_FOUND");
    assert!(line_of(&lab, "odd").get("session").is_none());
    ended_in_mid_stream(&lab, &session);
}

/// An error that comes as the last event of a stream has its code in the log too.
fn ended_in_mid_stream(lab: &Lab, session: &Session<'_>) {
    let request = lab.client.request("POST", &session.path("/exec/stream"));
    let body = json!({ "cmd": "echo on; sleep 60" });
    let mut stream = request.header("X-Request-Id", "cut").json(&body).stream();
    stream.next_chunk().expect("the first event");
    assert_eq!(session.delete().status(), 200);
    while stream.next_chunk().is_some() {}
    assert_eq!(line_of(lab, "cut")["code"], "SESSION_DESTROYED");
}

#[test]
fn the_level_is_set_by_variable_and_flag() {
    let lab = Lab::builder().variable("SANDKASTEN_LOG_LEVEL", "warn").start();
    lab.client.get("/v1/sessions").ok(200);
    assert!(!lab.log().contains("\"INFO\""), "{}", lab.log());
    let lab = Lab::builder().set("log.level", json!("error")).argument("--log-level=debug").start();
    lab.client.get("/v1/sessions").ok(200);
    wait::until("a line", Duration::from_secs(5), || lab.log().contains("\"INFO\""));
    let refused = Lab::builder().argument("--log-level=loud").try_start();
    let log = refused.expect_err("no such level").log;
    assert!(log.contains("--log-level") && log.contains("`loud`"), "{log}");
}

/// Calls of all kinds, right and wrong.
fn use_everything(lab: &Lab, session: &Session<'_>) {
    let document = lab.client.document.clone().expect("the document");
    // What comes back is for others to judge.
    let client = Client { document: None, ..lab.client.clone() };
    for (method, path) in document.operations() {
        // Streams would hold the test up.
        if ["/events", "/watch", "/attach"].iter().any(|end| path.ends_with(end)) {
            continue;
        }
        for id in [session.id.as_str(), "nobody", "%00"] {
            if method == "DELETE" && path == "/v1/sessions/{id}" && id == session.id {
                continue;
            }
            let path = path.replace("{id}", id).replace("{exec_id}", "mine");
            let path = path.replace("{process_id}", "none").replace("{name}", "nothing");
            for body in ["{}", "{", ""] {
                let request = client.request(&method, &format!("{path}?path=x"));
                drop(request.header("Content-Type", "application/json").body(body).try_send());
            }
        }
    }
    for body in [
        json!({ "cmd": "exit 3" }),
        json!({ "cmd": "sleep 60", "timeout_ms": 50 }),
        json!({ "cmd": "kill -9 $$" }),
        json!({ "cmd": "true", "cwd": "/nothing" }),
    ] {
        drop(session.try_exec(&body));
    }
    for body in [
        json!({ "argv": ["true"], "wait": true }),
        json!({ "argv": ["nothing"], "wait": true }),
        json!({ "argv": ["sleep", "60"], "wait": true, "timeout_ms": 50 }),
    ] {
        drop(session.request("POST", "/processes").json(&body).send());
    }
    for body in [json!({ "image": "nothing" }), json!({ "image": "/" }), json!({ "user": 1 })] {
        assert!(lab.try_session(&body).status() >= 400);
    }
}

/// Words of a text that look as Rust prints its values for programmers.
fn debug_shapes(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for shape in ["Some(", "None", "Ok(", "Err(", "Os {", "kind:", "code:", "Error {"] {
        if text.contains(shape) {
            found.push(shape.to_owned());
        }
    }
    // `Name(…)` and `Name { field: … }`.
    let words: Vec<&str> = text.split_whitespace().collect();
    for pair in words.windows(2) {
        let is_name = pair[0].starts_with(|c: char| c.is_ascii_uppercase())
            && pair[0].chars().all(|c| c.is_ascii_alphanumeric());
        if is_name && pair[1] == "{" {
            found.push(format!("{} {}", pair[0], pair[1]));
        }
    }
    for word in words {
        let name = word.split('(').next().unwrap_or_default();
        let is_name = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().any(|c| c.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric());
        if is_name && word.contains('(') {
            found.push(word.to_owned());
        }
    }
    found
}

#[test]
fn the_log_has_no_text_for_programmers() {
    let mut lab = Lab::builder().argument("--log-level=debug").start();
    let session = lab.session(&json!({ "workspace_id": "mine" }));
    use_everything(&lab, &session);
    let init = host::init_of(&session.id).expect("its init");
    host::signal(init, Signal::KILL);
    wait::until("it is crashed", Duration::from_secs(5), || session.info()["status"] == "crashed");
    drop(session);
    lab.stop();
    lab.restart();
    for line in lab.log().lines() {
        let value: Value = serde_json::from_str(line).expect("JSON");
        for (name, field) in value.as_object().expect("an object") {
            let text = field.as_str().unwrap_or_default();
            let found = debug_shapes(text);
            assert!(found.is_empty() || name == "target", "{found:?} in {line}");
        }
    }
}

/// A daemon in the background keeps its log within bounds.
#[test]
fn the_log_of_a_daemon_in_the_background_is_put_aside_when_full() {
    let lab = Lab::builder().prepare();
    let mut command = lab.command(&["daemon", "-d", "--listen", "127.0.0.1:0", "--json"]);
    command.env("SANDKASTEN_LOG_MAX_MB", "1").env("SANDKASTEN_LOG_KEEP", "1");
    let output = command.output().expect("run sandkasten");
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let address = value["url"].as_str().expect("a url").trim_start_matches("http://");
    let mut client = lab.client.clone();
    client.addr = address.parse().expect("an address");
    let mut connection = client.connect().expect("connect");
    let (log, older) = (lab.data_dir.join("daemon.log"), lab.data_dir.join("daemon.log.1"));
    let id = "x".repeat(64);
    while !older.exists() {
        let request = client.request("GET", "/v1/sessions").header("X-Request-Id", &id);
        assert_eq!(connection.send(&request).expect("an answer").status(), 200);
    }
    drop(connection);
    lab.must(&["stop"]);
    for file in [log, older] {
        let text = std::fs::read_to_string(&file).expect("the log");
        assert!(text.len() <= 1 << 20, "{} bytes", text.len());
        for line in text.lines() {
            serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        }
    }
    assert!(!lab.data_dir.join("daemon.log.2").exists());
}

/// What a daemon on a terminal writes to it.
fn on_a_terminal(no_color: &str) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let lab = Lab::builder().prepare();
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a PTY");
    grantpt(&master).and_then(|()| unlockpt(&master)).expect("a PTY");
    let name = ptsname(&master, Vec::new()).expect("its name");
    let slave = std::fs::File::options().read(true).write(true).open(name.to_str().expect("ASCII"));
    let mut command = lab.command(&["daemon", "--listen", "127.0.0.1:0"]);
    command.env("NO_COLOR", no_color).stderr(Stdio::from(slave.expect("the terminal")));
    let mut daemon = command.spawn().expect("start the daemon");
    // The terminal is the daemon's alone, so that its end is the end of what we read.
    drop(command);
    wait::until("it serves", Duration::from_secs(20), || lab.data_dir.join("addr").exists());
    lab.must(&["stop"]);
    daemon.wait().expect("its end");
    let (mut text, mut master) = (Vec::new(), std::fs::File::from(master));
    // The last read of a PTY whose other end is closed is an error.
    drop(master.read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn a_terminal_gets_colours_unless_told_not_to() {
    let (with, without) = (on_a_terminal(""), on_a_terminal("1"));
    assert!(with.contains("\u{1b}[") && with.contains("serving"), "{with:?}");
    assert!(!without.contains('\u{1b}') && without.contains("serving"), "{without:?}");
}

/// The page in both formats, as Prometheus' own parser for Python reads it: `name type sample value`.
const PARSE: &str = r#"
import sys
from prometheus_client.parser import text_string_to_metric_families as plain
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
parse = openmetrics if sys.argv[1] == "openmetrics" else plain
for family in parse(sys.stdin.read()):
    assert family.documentation, family
    for sample in family.samples:
        print(family.name, family.type, sample.name, sample.value)
"#;

fn parsed(format: &str, page: &str) -> Vec<Vec<String>> {
    let python = lab::venv("prometheus-0.22.1", &["prometheus-client==0.22.1"]);
    let mut child = Command::new(python)
        .args(["-c", PARSE, format])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("run python");
    let mut stdin = child.stdin.take().expect("its stdin");
    std::io::Write::write_all(&mut stdin, page.as_bytes()).expect("give it the page");
    drop(stdin);
    let output = child.wait_with_output().expect("its end");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{format}: {errors}\n{page}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

/// The rules of `promtool check metrics`, and of Prometheus' page on naming.
fn check_names(samples: &[Vec<String>]) {
    for sample in samples {
        let [name, kind, sample_name, _] = sample.as_slice() else { panic!("{sample:?}") };
        let ours = name.starts_with("sandkasten_") || name.starts_with("process_");
        assert!(ours && name.chars().all(|c| matches!(c, 'a'..='z' | '_')), "{name}");
        for odd in ["_ms", "_milliseconds", "_mb", "_kb", "_percent", "_minutes", "_gauge"] {
            assert!(!name.ends_with(odd) && !name.contains(&format!("{odd}_")), "{name}");
        }
        assert_eq!(sample_name.ends_with("_total"), kind == "counter", "{sample:?}");
        if kind == "gauge" {
            let reserved = ["_total", "_bucket", "_count", "_sum"];
            assert!(!reserved.iter().any(|end| name.ends_with(end)), "{name}");
        }
    }
}

/// Everything that is said of the page in the documentation.
const FIGURES: [&str; 22] = [
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
    "sandkasten_build_info",
    "sandkasten_http_requests_total",
    "sandkasten_http_request_duration_seconds_bucket",
    "sandkasten_errors_total",
    "sandkasten_sessions",
    "sandkasten_sessions_max",
    "sandkasten_session_creates_total",
    "sandkasten_session_create_duration_seconds_bucket",
    "sandkasten_execs_finished_total",
    "sandkasten_exec_duration_seconds_bucket",
    "sandkasten_disk_bytes",
    "sandkasten_disk_free_bytes",
    "sandkasten_disk_inodes_free",
    "sandkasten_host_memory_available_bytes",
    "sandkasten_sessions_memory_bytes",
    "sandkasten_sessions_memory_limit_bytes",
    "sandkasten_session_memory_max_bytes",
];

#[test]
fn metrics_are_as_prometheus_reads_them_and_stay_small() {
    let lab = Lab::start();
    let session = lab.session(&json!({ "workspace_id": "mine" }));
    use_everything(&lab, &session);
    let ask = |accept: &str| lab.client.request("GET", "/metrics").header("Accept", accept).send();
    for (accept, format, kind) in [
        ("*/*", "plain", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3",
            "openmetrics",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
    ] {
        let answer = ask(accept);
        assert_eq!(answer.header("Content-Type"), Some(kind));
        let page = answer.text();
        assert_eq!(page.ends_with("# EOF\n"), format == "openmetrics", "{page}");
        assert!(page.len() < 20 << 10, "{} bytes: {page}", page.len());
        println!("{format}: {} bytes", page.len());
        let samples = parsed(format, &page);
        check_names(&samples);
        let names: BTreeSet<&str> = samples.iter().map(|sample| sample[2].as_str()).collect();
        for name in FIGURES {
            assert!(names.contains(name), "{name} is missing: {page}");
        }
    }
    figures_tell_what_was(&ask("*/*").text());
}

fn figures_tell_what_was(page: &str) {
    for start in [
        "sandkasten_session_creates_total{result=\"made\"} ",
        "sandkasten_session_create_duration_seconds_count ",
        "sandkasten_execs_finished_total{kind=\"exec\",exit_reason=\"timeout\"} 1",
        "sandkasten_execs_finished_total{kind=\"process\",exit_reason=\"timeout\"} 1",
        "sandkasten_sessions{status=\"running\"} ",
        "sandkasten_session_creates_total{result=\"refused\"} ",
        "sandkasten_errors_total{code=\"SESSION_NOT_FOUND\"} ",
        "sandkasten_errors_total{code=\"INVALID_REQUEST\"} ",
        "sandkasten_http_requests_total{tag=\"sessions\",status=\"404\"} ",
    ] {
        assert!(page.lines().any(|have| have.starts_with(start)), "{start}: {page}");
    }
}
