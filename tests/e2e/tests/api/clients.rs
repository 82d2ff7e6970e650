//! Clients that speak to the daemon in their own way.

use std::path::PathBuf;
use std::process::Command;

use sandkasten_e2e::recorder::Recorder;
use sandkasten_e2e::{Lab, host, lab, requires};

/// Runs a client's script with the address of a recorder, and judges what went through it.
#[track_caller]
fn speaks(program: PathBuf, script: &str, more: &[&str]) {
    let lab = Lab::shared();
    let recorder = Recorder::start(lab.client.addr);
    let script = lab::checkout().join("tests/clients").join(script);
    let mut command = Command::new(program);
    command.arg(script).arg(format!("http://{}", recorder.addr));
    command.arg(lab.client.key.clone().unwrap_or_default()).args(more);
    let output =
        command.env("NO_PROXY", "*").env("no_proxy", "*").output().expect("run the client");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let document = lab.client.document.as_ref().expect("the document");
    let count = recorder.judge(document);
    assert!(count >= 20, "only {count} answers were recorded");
}

#[test]
fn published_python_client() {
    let python = lab::venv("client-0.3.0", &["sandkasten[agents]==0.3.0"]);
    speaks(python, "published_client.py", &["agents"]);
}

#[test]
fn typescript_shaped_client() {
    requires!(program("node"));
    speaks(host::find_program("node").expect("just seen"), "fetch_client.mjs", &[]);
}

#[test]
fn document_has_no_free_form_objects() {
    let lab = Lab::shared();
    let document = lab.client.document.as_ref().expect("the document");
    assert_eq!(document.free_form(), Vec::<String>::new());
    assert!(document.root()["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
}

/// Every route that is not new in this version.
#[test]
fn document_has_every_route() {
    let lab = Lab::shared();
    let document = lab.client.document.as_ref().expect("the document");
    let have = document.operations();
    let want = [
        ("GET", "/healthz"),
        ("POST", "/v1/sessions"),
        ("GET", "/v1/sessions"),
        ("GET", "/v1/sessions/{id}"),
        ("DELETE", "/v1/sessions/{id}"),
        ("GET", "/v1/sessions/{id}/stats"),
        ("POST", "/v1/sessions/{id}/exec"),
        ("POST", "/v1/sessions/{id}/exec/stream"),
        ("POST", "/v1/sessions/{id}/fs/write"),
        ("GET", "/v1/sessions/{id}/fs/read"),
        ("POST", "/v1/sessions/{id}/fs/upload"),
        ("GET", "/v1/workspaces"),
        ("DELETE", "/v1/workspaces/{id}"),
        ("POST", "/v1/workspaces/{id}/fs/write"),
        ("POST", "/v1/workspaces/{id}/fs/upload"),
        ("GET", "/v1/workspaces/{id}/fs"),
        ("GET", "/v1/workspaces/{id}/fs/read"),
    ];
    for (method, path) in want {
        let found = have.iter().any(|(m, p)| m == method && p == path);
        assert!(found, "{method} {path} is not in {have:?}");
    }
}
