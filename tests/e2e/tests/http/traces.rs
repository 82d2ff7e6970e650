//! what the log, errors, health and metrics say, and what they don't.

use std::time::Duration;

use sandkasten_e2e::http::Answer;
use sandkasten_e2e::lab::Signal;
use sandkasten_e2e::{Lab, Session, wait};
use serde_json::{Value, json};

/// Text that would forge a line, colour a terminal or close a JSON string.
const EVIL: &str =
    "x\r\n{\"level\":\"INFO\",\"forged\":true}\u{1b}[31m\u{7}\"}\u{202e}\u{85}forged-mark";

/// Each line of the log is one JSON object, and nothing of ours is in it that could not be printed.
#[track_caller]
fn sound(log: &str) -> Vec<Value> {
    let mut lines = Vec::new();
    for line in log.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        assert!(value["forged"].is_null(), "a forged line: {line}");
        assert!(!line.contains(['\u{1b}', '\u{7}', '\u{202e}', '\u{85}']), "raw control: {line:?}");
        lines.push(value);
    }
    assert!(!lines.is_empty(), "the log says nothing");
    lines
}

#[test]
fn a_08_no_field_forges_a_line() {
    let lab = Lab::start();
    let session = lab.session(&json!({ "env": { "A": EVIL } }));
    let encoded = sandkasten_e2e::session::escape(EVIL);
    for body in [
        json!({ "name": EVIL }),
        json!({ "labels": { "a": EVIL } }),
        json!({ "image": EVIL }),
        json!({ "workspace_id": EVIL }),
        json!({ "user": EVIL }),
        json!({ "network": EVIL }),
    ] {
        let answer = lab.try_session(&body);
        assert_eq!(answer.status(), 400, "{answer}");
    }
    let requests: [(&str, String); 6] = [
        ("GET", format!("/v1/sessions/{encoded}")),
        ("GET", session.path(&format!("/fs/read?path={encoded}"))),
        ("GET", format!("/{encoded}")),
        ("DELETE", format!("/v1/workspaces/{encoded}")),
        ("GET", format!("/v1/sessions?status={encoded}")),
        ("GET", format!("/v1/workspaces/ab/fs?path={encoded}")),
    ];
    for (method, target) in requests {
        let answer =
            lab.client.request(method, &target).header("User-Agent", "x\u{1b}[31mforged").send();
        assert!(answer.status() < 500, "{answer}");
    }
    session.exec(&format!("cd '{EVIL}'; mkdir -p '{EVIL}'; cd '{EVIL}'; echo '{EVIL}'"));
    sound(&lab.log());
}

#[test]
fn a_08_request_ids_are_checked() {
    let lab = Lab::start();
    let send = |id: &str| {
        let answer = lab.client.request("GET", "/v1/sessions").header("X-Request-Id", id).send();
        answer.header("X-Request-Id").expect("an id").to_owned()
    };
    for good in ["a", "Az0._-", &"x".repeat(64)] {
        assert_eq!(send(good), good);
    }
    for bad in ["", "a b", "a\u{1b}[31m", "{\"x\":1}", "é", &"x".repeat(65), "a,b"] {
        let id = send(bad);
        assert!(id != bad && (1..=64).contains(&id.len()), "{bad:?} gave {id:?}");
        assert!(id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)), "{id:?}");
    }
    sound(&lab.log());
}

#[test]
fn a_08_secrets_and_commands_are_not_logged() {
    let lab = Lab::start();
    let marks = ["mark-of-env", "mark-of-cmd", "mark-of-file", "mark-of-output"];
    let session = lab.session(&json!({ "env": { "TOKEN": marks[0] } }));
    session.run(&format!("echo {} > /dev/null; echo mark-of-$(echo output)", marks[1]));
    session.write("file", marks[2].as_bytes(), "0600");
    assert_eq!(session.read("file"), marks[2].as_bytes());
    let mut lab_marks = marks.map(str::to_owned).to_vec();
    lab_marks.push(lab.client.key.clone().unwrap_or_default());
    for mark in lab_marks {
        assert!(!lab.log().contains(&mark), "the log has {mark}");
    }
    sound(&lab.log());
}

/// The errors that a client can make, one of each kind.
fn errors(lab: &Lab, session: &Session<'_>) -> Vec<(Answer, u16, &'static str)> {
    let get = |path: &str| session.request("GET", path).send();
    let post = |path: &str, body: Value| session.request("POST", path).json(&body).send();
    vec![
        (lab.client.anonymous().get("/v1/sessions"), 401, "UNAUTHORIZED"),
        (lab.client.get("/nowhere"), 404, "ROUTE_NOT_FOUND"),
        (lab.client.request("PUT", "/v1/sessions").body("{}").send(), 405, "METHOD_NOT_ALLOWED"),
        (lab.client.get("/v1/sessions/nobody"), 404, "SESSION_NOT_FOUND"),
        (lab.client.get("/v1/workspaces/nobody/fs?path=."), 404, "WORKSPACE_NOT_FOUND"),
        (lab.try_session(&json!({ "image": "nothing" })), 404, "IMAGE_NOT_FOUND"),
        (lab.try_session(&json!({ "image": "/etc" })), 400, "INVALID_IMAGE"),
        (lab.try_session(&json!({ "workspace_id": "/etc" })), 400, "INVALID_WORKSPACE"),
        (post("/exec", json!({})), 400, "INVALID_REQUEST"),
        (get("/fs/read?path=nothing"), 404, "FILE_NOT_FOUND"),
        (get("/fs/read?path=/dev/null"), 400, "NOT_A_FILE"),
        (get("/fs/read?path=/"), 400, "IS_A_DIRECTORY"),
        (get("/fs/read?path="), 400, "INVALID_PATH"),
        (post("/fs/write", json!({ "path": "/etc/x", "text": "" })), 403, "PERMISSION_DENIED"),
        (lab.client.get("/v1/workspaces/mine/fs/read?path=../x"), 400, "PATH_NOT_ALLOWED"),
        (lab.client.get("/v1/workspaces/mine/fs/read?path=/etc/passwd"), 400, "PATH_NOT_ALLOWED"),
        (lab.client.delete("/v1/workspaces/mine"), 409, "WORKSPACE_IN_USE"),
    ]
}

/// [`Answer::error`] looks at the shape of each, and for host paths and traces.
#[test]
fn a_14_errors_show_nothing_of_the_inside() {
    let lab = Lab::start();
    let session = lab.session(&json!({ "workspace_id": "mine" }));
    let data_dir = lab.data_dir.to_string_lossy().into_owned();
    let mut ids = std::collections::BTreeSet::new();
    for (answer, status, code) in errors(&lab, &session) {
        answer.error(status, code);
        assert!(!answer.text().contains(&data_dir), "a host path: {answer}");
        let id = answer.header("X-Request-Id").expect("an id").to_owned();
        assert!(ids.insert(id), "an id twice: {answer}");
    }
}

/// What breaks inside is one sentence with the request's id outside; the log has the id and more.
#[test]
fn a_14_internal_errors_are_found_by_their_id() {
    let lab = Lab::builder().within(&["unshare", "-m", "env"]).start();
    let pid = lab.pid().to_string();
    let point = std::path::Path::new("/sys/fs/cgroup").join(pids_hierarchy());
    let remount = |how: &str| {
        let options = format!("remount,bind,{how}");
        // The daemon may just have a file there open for writing; then the mount is busy.
        wait::until("remount", Duration::from_secs(5), || {
            let mut command = std::process::Command::new("nsenter");
            command.args(["-t", &pid, "-m", "mount", "-o", &options]).arg(&point);
            command.output().expect("run nsenter").status.success()
        });
    };
    remount("ro");
    let request = lab.client.request("POST", "/v1/sessions").header("X-Request-Id", "find-me");
    let answer = request.body("{}").send();
    remount("rw");
    assert!(answer.status() >= 500, "{answer}");
    answer.error(answer.status(), answer.json()["error_code"].as_str().unwrap_or_default());
    assert_eq!(answer.header("X-Request-Id"), Some("find-me"));
    assert!(!answer.text().contains("/sys/fs"), "{answer}");
    let found = sound(&lab.log()).into_iter().filter(|line| line.to_string().contains("find-me"));
    assert!(found.count() >= 1, "the log does not have the id: {}", lab.log());
}

/// The folder of the hierarchy with the pids controller, below the usual mount point.
fn pids_hierarchy() -> &'static str {
    if std::path::Path::new("/sys/fs/cgroup/pids").is_dir() { "pids" } else { "" }
}

#[test]
fn a_15_health_and_metrics_have_no_ids() {
    let lab = Lab::start();
    let session = lab.session(&json!({ "workspace_id": "mine-alone", "name": "named-so" }));
    session.run("echo output-mark");
    lab.client.get("/v1/sessions/not-a-session").error(404, "SESSION_NOT_FOUND");
    assert_eq!(lab.client.anonymous().get("/healthz").ok(200), json!({ "status": "ok" }));
    assert!(lab.client.anonymous().get("/metrics").status() == 401);
    let metrics = lab.client.get("/metrics");
    assert_eq!(metrics.status(), 200);
    let text = metrics.text();
    assert!(text.contains("sandkasten_sessions"), "{text}");
    let key = lab.client.key.clone().unwrap_or_default();
    let data_dir = lab.data_dir.to_string_lossy().into_owned();
    for mark in
        [&session.id, "mine-alone", "named-so", "output-mark", "not-a-session", &key, &data_dir]
    {
        assert!(!text.contains(mark), "metrics have {mark}: {text}");
    }
}

#[test]
fn a_15_readiness_ends_before_the_daemon() {
    let mut lab = Lab::start();
    assert_eq!(lab.client.get("/readyz").status(), 200);
    let session = lab.session(&json!({}));
    let (id, client) = (session.id.clone(), lab.client.clone());
    // The session outlives the daemon; it is deleted after the restart.
    std::mem::forget(session);
    let running = std::thread::spawn(move || {
        let body = json!({ "cmd": "sleep 60", "timeout_ms": 90_000 });
        client.request("POST", &format!("/v1/sessions/{id}/exec")).json(&body).send()
    });
    wait::until("it runs", Duration::from_secs(5), || {
        lab.client.get("/metrics").text().contains("sandkasten_execs_running 1")
    });
    lab.signal(Signal::TERM);
    wait::until("it drains", Duration::from_secs(1), || lab.client.get("/readyz").status() == 503);
    let refused = lab.try_session(&json!({}));
    refused.error(503, "DRAINING");
    assert!(refused.header("Retry-After").is_some(), "{refused}");
    assert_eq!(lab.client.anonymous().get("/healthz").status(), 200);
    // It goes on in its session; who waited is told, and not cut off.
    running.join().expect("an answer").error(503, "DRAINING");
    assert!(lab.wait().success(), "a drained daemon ends well");
    lab.restart();
}
