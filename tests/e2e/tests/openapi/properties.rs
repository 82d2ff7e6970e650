//! Schemathesis asks the daemon for everything that the document says, and for what it forbids.

use sandkasten_e2e::Lab;
use serde_json::json;

use crate::tools;

/// Requests that fit the document and requests that do not, at every call, against a session, an exec, a
/// process and a workspace that are there. The same ones in each run.
#[test]
fn alone_the_daemon_does_what_its_document_says() {
    let lab = Lab::builder().set("max_sessions", json!(4000)).start();
    let (dir, document) = tools::document(&lab);
    let session = lab.session(&json!({ "ttl_seconds": 3600 }));
    let files = lab.session(&json!({ "workspace_id": "asked", "ttl_seconds": 3600 }));
    let doomed = lab.session(&json!({}));
    for one in [&session, &files] {
        one.run("mkdir dir; echo text > file; cp file dir");
    }
    let route = format!("/v1/sessions/{}", session.id);
    let exec = json!({ "cmd": "echo kept", "exec_id": "asked" });
    lab.client.post(&format!("{route}/exec"), &exec).ok(200);
    let start = json!({ "argv": ["/bin/sh", "-c", "cat >/dev/null"], "stdin": "open", "tty": { "rows": 9, "cols": 9 } });
    let started = lab.client.post(&format!("{route}/processes"), &start).ok(201);
    let ended = json!({ "argv": ["echo", "ended"], "wait": true });
    let ended = lab.client.post(&format!("{route}/processes"), &ended).ok(200);
    let mut run = tools::program("schemathesis");
    run.arg("--config-file").arg(tools::file("schemathesis.toml")).arg("run").arg(document);
    run.arg("--no-color").current_dir(dir.path());
    run.env("SANDKASTEN_URL", format!("http://{}", lab.client.addr));
    run.env("SANDKASTEN_API_KEY", lab.client.key.clone().unwrap_or_default());
    run.env("DOOMED", &doomed.id);
    run.env("FILES", &files.id)
        .env("SESSION", &session.id)
        .env("EXEC", "asked")
        .env("WORKSPACE", "asked");
    run.env("SCHEMATHESIS_HOOKS", "schemathesis_hooks").env("PYTHONPATH", tools::file(""));
    run.env("ENDED", ended["process_id"].as_str().expect("an id"));
    run.env("PROCESS", started["process_id"].as_str().expect("an id"));
    let output = tools::must(&mut run);
    println!("{}", String::from_utf8_lossy(&output.stdout));
}
