//! The wire traps: what clients of today stumble over. One test each, named by its number.

use std::time::{Duration, Instant};

use sandkasten_e2e::session::{decode, encode};
use sandkasten_e2e::{Lab, Session};
use serde_json::{Value, json};

fn python(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "python" }))
}

/// The reader of the harness fails on an event in two pieces or of more than 8 KiB.
#[test]
fn trap_01_an_event_is_one_write_of_8_kib() {
    let lab = Lab::shared();
    let session = python(&lab);
    // Every character grows sixfold when it is escaped.
    let cmd = "python3 -c \"print('\\u2028' * 50000, end='')\"";
    assert_eq!(session.play(cmd).text(), "\u{2028}".repeat(50_000));
    let cmd = "python3 -c \"print('a' * 1000000, end='')\"";
    assert_eq!(session.play(cmd).text().len(), 1_000_000);
    let request = session.request("POST", "/exec/stream").header("Accept-Encoding", "gzip, br");
    let stream = request.json(&json!({ "cmd": "seq 10000" })).stream();
    assert_eq!(stream.head.header("Content-Encoding"), None);
    assert_eq!(stream.head.header("X-Accel-Buffering"), Some("no"));
    assert_eq!(stream.events().finish().done()["exit_code"], 0);
}

#[test]
fn trap_02_events_are_ascii() {
    let lab = Lab::shared();
    let session = python(&lab);
    let text = "\u{2028}\u{2029}\u{85}é😀\u{b}\u{c}\u{1c}";
    session.write("odd", text.as_bytes(), "0644");
    assert_eq!(session.play("cat odd").text(), text);
}

#[test]
fn trap_03_the_body_ends_with_the_last_event() {
    let lab = Lab::shared();
    let session = python(&lab);
    let mut events = session.stream(&json!({ "cmd": "echo x; sleep 60 &" }));
    let done = events.by_ref().find(|event| event.name == "done").expect("done");
    assert!(events.next().is_none(), "something after done");
    let start = Instant::now();
    assert!(start.elapsed() < Duration::from_secs(1), "the body went on after {:?}", done.at);
}

#[test]
fn trap_04_empty_objects_and_content_types_without_a_body() {
    let lab = Lab::shared();
    let info = lab.client.post("/v1/sessions", &json!({})).ok(201);
    let path = format!("/v1/sessions/{}", info["id"].as_str().expect("an id"));
    let send = |method: &str| {
        lab.client.request(method, &path).header("Content-Type", "application/json").send()
    };
    assert_eq!(send("GET").ok(200)["id"], info["id"]);
    assert_eq!(send("DELETE").ok(200), json!({ "ok": true }));
    let exec = lab.client.request("POST", "/v1/sessions");
    let session = exec.body("{}").send().ok(201);
    let path = format!("/v1/sessions/{}", session["id"].as_str().expect("an id"));
    assert_eq!(lab.client.delete(&path).status(), 200);
}

#[test]
fn trap_05_empty_content_is_content() {
    let lab = Lab::shared();
    let session = python(&lab);
    for body in [
        json!({ "path": "empty", "text": "" }),
        json!({ "path": "empty", "content_base64": "" }),
        json!({ "path": "empty", "text": "", "content_base64": null }),
    ] {
        session.write("empty", b"full", "0644");
        let answer = session.request("POST", "/fs/write").json(&body).send();
        assert_eq!(answer.ok(200), json!({ "ok": true }), "{body}");
        assert_eq!(session.read("empty"), b"", "{body}");
    }
}

/// A form with `path` first and then files.
fn form(path: &str, files: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let mut body =
        format!("--b\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n{path}\r\n")
            .into_bytes();
    for (field, name, bytes) in files {
        let head = format!(
            "--b\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--b--\r\n");
    body
}

#[test]
fn trap_06_the_path_comes_before_the_files() {
    let lab = Lab::shared();
    let session = python(&lab);
    let binary: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let files: [(&str, &str, &[u8]); 3] =
        [("file", "one", &binary), ("files", "t%22w%0Do", b"\r\n--c"), ("files", "three", b"")];
    let body = form("/workspace/in", &files);
    let request = session.request("POST", "/fs/upload");
    let answer =
        request.header("Content-Type", "multipart/form-data; boundary=b").body(body).send();
    let paths = ["/workspace/in/one", "/workspace/in/t\"w\ro", "/workspace/in/three"];
    assert_eq!(answer.ok(200), json!({ "ok": true, "paths": paths }));
    for ((_, _, bytes), path) in files.iter().zip(paths) {
        assert_eq!(&session.read(path), bytes, "{path:?}");
    }
}

#[test]
fn trap_07_bodies_may_be_as_large_as_is_written() {
    let lab = Lab::shared();
    let session = python(&lab);
    let large = vec![b'x'; 50 << 20];
    session.write("large", &large, "0644");
    let path = format!("/fs/read?path=large&max_bytes={}", 64 << 20);
    let answer = session.request("GET", &path).send().ok(200);
    assert!(decode(&answer["content_base64"]) == large, "50 MiB come back");
    // 1 MiB of text, each character escaped sixfold.
    let body = format!("{{\"cmd\": \"{}\"}}", "\\u003a".repeat(1 << 20));
    let answer = session.request("POST", "/exec").body(body).send();
    assert_eq!(answer.status(), 200, "{answer}");
    let body = json!({ "cmd": "sha256sum", "stdin": encode(&large), "encoding": "base64" });
    let sum = session.request("POST", "/exec").json(&body).send().ok(200);
    assert_eq!(decode(&sum["output_base64"]), session.run("sha256sum < large").into_bytes());
    let text = "é".repeat(10 << 20);
    let body = json!({ "cmd": "cat", "stdin": text, "max_output_bytes": 64 << 20 });
    let answer = session.request("POST", "/exec").json(&body).send().ok(200);
    assert!(answer["output"] == text.as_str(), "20 MiB of text go in and come out");
    let body = json!({ "cmd": "cat large", "encoding": "base64", "max_output_bytes": 64 << 20 });
    let answer = session.request("POST", "/exec").json(&body).send().ok(200);
    assert!(decode(&answer["output_base64"]) == large, "50 MiB come out");
    let body = json!({ "path": "x", "content_base64": encode(&vec![0; 73 << 20]) });
    let answer = session.request("POST", "/fs/write").json(&body).send();
    answer.error(413, "TOO_LARGE");
    let body = json!({ "cmd": "true", "pad": "x".repeat(8 << 20) });
    session.request("POST", "/exec").json(&body).send().error(413, "TOO_LARGE");
    session.alive();
}

#[test]
fn trap_08_errors_before_a_stream_are_no_events() {
    let lab = Lab::shared();
    let session = python(&lab);
    let stream =
        |path: &str, body: &Value| lab.client.request("POST", path).json(body).stream().answer();
    let path = session.path("/exec/stream");
    stream(&path, &json!({})).error(400, "INVALID_REQUEST");
    stream("/v1/sessions/nobody/exec/stream", &json!({ "cmd": "true" }))
        .error(404, "SESSION_NOT_FOUND");
    assert_eq!(session.delete().status(), 200);
    stream(&path, &json!({ "cmd": "true" })).error(410, "SESSION_DESTROYED");
}

#[test]
fn trap_09_cors_is_off_unless_it_is_set() {
    let preflight = |lab: &Lab| {
        let client = lab.client.anonymous();
        let request =
            client.request("OPTIONS", "/v1/sessions").header("Origin", "https://app.example.com");
        let request = request.header("Access-Control-Request-Method", "POST");
        request.header("Access-Control-Request-Headers", "authorization, content-type").send()
    };
    let shared = Lab::shared();
    assert_eq!(preflight(&shared).header("Access-Control-Allow-Origin"), None);
    let lab = Lab::builder().set("cors_origins", json!(["https://app.example.com"])).start();
    let answer = preflight(&lab);
    assert!((200..300).contains(&answer.status()), "{answer}");
    assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("https://app.example.com"));
    let allowed = answer.header("Access-Control-Allow-Headers").unwrap_or_default().to_lowercase();
    assert!(allowed.contains("authorization") && allowed.contains("content-type"), "{allowed}");
    let request = lab.client.request("GET", "/v1/sessions");
    let answer = request.header("Origin", "https://app.example.com").send();
    assert_eq!(answer.header("Access-Control-Allow-Origin"), Some("https://app.example.com"));
    let request = lab.client.request("GET", "/v1/sessions");
    let answer = request.header("Origin", "https://evil.example.com").send();
    assert_ne!(answer.header("Access-Control-Allow-Origin"), Some("https://evil.example.com"));
    assert_ne!(answer.header("Access-Control-Allow-Origin"), Some("*"));
}

#[test]
fn trap_10_an_ended_session_is_remembered() {
    let lab = Lab::shared();
    let session = python(&lab);
    session.run("cd /tmp");
    for _ in 0..2 {
        assert_eq!(session.delete().ok(200), json!({ "ok": true }));
        let info = session.info();
        assert_eq!(
            (&info["status"], &info["cwd"]),
            (&json!("destroyed"), &json!("/tmp")),
            "{info}"
        );
        assert!(info["exit_reason"].is_string(), "{info}");
    }
    let ended = |answer: sandkasten_e2e::http::Answer| {
        let error = answer.error(410, "SESSION_DESTROYED");
        assert!(error["details"]["reason"].is_string(), "{error}");
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(&session.id)),
            "{error}"
        );
    };
    ended(session.try_exec(&json!({ "cmd": "true" })));
    ended(session.request("GET", "/stats").send());
    ended(session.request("GET", "/fs/read?path=x").send());
    ended(session.request("POST", "/fs/write").json(&json!({ "path": "x", "text": "" })).send());
    let upload = session.request("POST", "/fs/upload");
    let upload = upload.header("Content-Type", "multipart/form-data; boundary=b");
    ended(upload.body(form("/workspace", &[("file", "x", b"x")])).send());
    let list = lab.client.get("/v1/sessions").ok(200);
    assert!(!list.to_string().contains(&session.id), "an ended session is in the list");
}
