//! A create that fails half-way leaves nothing: no mount, cgroup, process, directory, claim or row.
//!
//! The binary is built with `fault-injection`: with `SANDKASTEN_FAIL_AT=N` the N-th step that each
//! process of the daemon reaches fails. N rises until nothing is left to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use sandkasten_e2e::host;
use sandkasten_e2e::http::Answer;
use sandkasten_e2e::lab::Lab;
use sandkasten_e2e::{Binary, leaks, wait};
use serde_json::json;

/// More steps than a start and a create have.
const STEPS_MAX: usize = 200;
/// Fewer than this and the injection does not work.
const STEPS_MIN: usize = 10;

/// What became of a create with the N-th step failing.
enum Outcome {
    /// The daemon itself did not start.
    NoDaemon,
    Failed,
    Made,
}

#[test]
fn create_that_fails_at_any_step_leaves_nothing() {
    let mut failed = 0;
    for step in 1..STEPS_MAX {
        // Shown where the test fails.
        println!("step {step}");
        match create_with_a_fault_at(step) {
            Outcome::NoDaemon => {}
            Outcome::Failed => failed += 1,
            Outcome::Made if failed >= STEPS_MIN => return,
            Outcome::Made => {}
        }
    }
    panic!("{failed} creates failed within {STEPS_MAX} steps");
}

fn create_with_a_fault_at(step: usize) -> Outcome {
    let builder = Lab::builder().binary(Binary::Faulty);
    let prepared = builder.variable("SANDKASTEN_FAIL_AT", &step.to_string()).prepare();
    let data_dir = prepared.data_dir.clone();
    let Ok(mut lab) = prepared.started() else {
        assert!(!data_dir.exists(), "the lab has removed it");
        return Outcome::NoDaemon;
    };
    let before = things(&lab);
    let answer = lab.try_session(&json!({ "workspace_id": "mine" }));
    println!("{answer}");
    if answer.status() == 201 {
        // The fault may come in the delete, then; what that leaves is the next daemon's to remove.
        let id = answer.json()["id"].as_str().unwrap_or_default().to_owned();
        drop(lab.client.delete(&format!("/v1/sessions/{id}")));
        lab.stop();
        lab.unset("SANDKASTEN_FAIL_AT");
        lab.restart();
        return Outcome::Made;
    }
    answer.error(answer.status(), answer.json()["error_code"].as_str().unwrap_or_default());
    assert!(answer.status() >= 500, "step {step}: {answer}");
    let left = wait::until_empty(leaks::SETTLE, || {
        things(&lab).difference(&before).cloned().collect::<Vec<_>>()
    });
    assert!(left.is_empty(), "step {step} ({answer}) left {left:#?}");
    // The fault has been: the same daemon makes the next one.
    let session = lab.session(&json!({ "workspace_id": "mine" }));
    session.alive();
    assert_eq!(session.delete().status(), 200);
    Outcome::Failed
}

/// What a create makes on the host and in the database.
fn things(lab: &Lab) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for dir in ["sessions", "trash"] {
        let names = host::names(&lab.data_dir.join(dir)).into_iter();
        found.extend(names.map(|name| format!("{dir}/{name}")));
    }
    let group = format!("/{}/", leaks::group_of(&lab.data_dir));
    for dir in host::cgroups() {
        let text = dir.display().to_string();
        // A session's group lies in the group of its daemon. Spare ones wait there for the next.
        if !text.contains("/spare-") && text.contains(&group) {
            found.insert(format!("cgroup {text}"));
        }
    }
    for pid in host::family(lab.pid()) {
        let name = host::proc_file(pid, "comm");
        if name.trim() != "sk-starter" {
            found.insert(format!("process {pid} {}", name.trim()));
        }
    }
    let mounts = host::proc_file(lab.pid(), "mountinfo");
    // Others on this host may mount meanwhile.
    let dir = lab.data_dir.to_string_lossy();
    let ours = mounts.lines().filter(|line| line.contains(&*dir));
    found.extend(ours.map(|line| format!("mount {line}")));
    found.extend(leaks::claims_of(&lab.data_dir.to_string_lossy()));
    found.extend(rows(lab));
    found
}

/// Sessions in the database that have not ended.
fn rows(lab: &Lab) -> Vec<String> {
    let list = lab.client.get("/v1/sessions").ok(200);
    let row = |session: &serde_json::Value| format!("row {}", session["id"]);
    list.as_array().into_iter().flatten().map(row).collect()
}

/// So many runs without a fault, after those that had one, and every step has had its own.
const QUIET_RUNS: usize = 8;
/// Fewer than this and the injection does not work: the calls have more steps.
const FAULTS_MIN: usize = 20;

/// Each call on a workspace with a fault at each of its steps, and a daemon that is killed or stopped
/// after it: not a byte is lost, and what failed works the next time.
#[test]
fn a_workspace_survives_a_fault_at_any_step() {
    let builder = Lab::builder().binary(Binary::Faulty);
    let mut lab = builder.set("durability", json!("fsync")).start();
    for (path, text) in [("a/b/deep", "deep"), ("plain", "plain"), ("over", "x0")] {
        write(&lab, "kept", path, text).ok(200);
    }
    let before = kept(&lab);
    let (mut failed, mut quiet) = (0, 0);
    for step in 1..STEPS_MAX {
        println!("step {step}");
        if step % 2 == 0 {
            assert!(lab.stop().success());
        } else {
            lab.kill();
        }
        lab.variable("SANDKASTEN_FAIL_AT", &step.to_string());
        let faults = match lab.try_restart() {
            Ok(()) => call_everything(&lab, step, &before),
            Err(_refusal) => {
                lab.unset("SANDKASTEN_FAIL_AT");
                lab.restart();
                assert_eq!(kept(&lab), before);
                1
            }
        };
        failed += faults;
        quiet = if faults == 0 { quiet + 1 } else { 0 };
        // Steps of the start may fail without a trace: those come first.
        if failed >= FAULTS_MIN && quiet >= QUIET_RUNS {
            return;
        }
    }
    panic!("{failed} faults, {quiet} quiet runs within {STEPS_MAX} steps");
}

/// Every call once, and once more where it failed. Counts those that did.
fn call_everything(lab: &Lab, step: usize, before: &BTreeMap<PathBuf, Vec<u8>>) -> usize {
    let mut faults = 0;
    let mut twice = |what: &str, status: u16, call: &dyn Fn() -> Answer| {
        let first = call();
        assert_eq!(&kept(lab), before, "step {step}: {what}: {first}");
        if first.status() != status {
            assert!(first.status() >= 500, "step {step}: {what}: {first}");
            faults += 1;
            assert_eq!(call().status(), status, "step {step}: {what} after {first}");
            assert_eq!(&kept(lab), before, "step {step}: {what} again");
        }
    };
    let put = |id: &str| {
        let request = lab.client.request("PUT", &format!("/v1/workspaces/{id}"));
        request.json(&json!({ "labels": { "step": step.to_string() } })).send()
    };
    twice("put", 200, &|| put("kept"));
    twice("session", 201, &|| lab.try_session(&json!({ "workspace_id": "kept" })));
    twice("put of a new one", 201, &|| put("victim"));
    twice("write", 200, &|| write(lab, "victim", "a/b", "x"));
    twice("overwrite", 200, &|| write(lab, "kept", "over", &format!("x{step}")));
    twice("delete", 200, &|| {
        let answer = lab.client.delete("/v1/workspaces/victim");
        if answer.status() != 200 {
            let file = lab.data_dir.join("workspaces/victim/a/b");
            assert_eq!(std::fs::read(file).expect("it is still there"), b"x", "step {step}");
        }
        answer
    });
    let list = lab.client.get("/v1/sessions").ok(200);
    for session in list.as_array().into_iter().flatten() {
        let id = session["id"].as_str().unwrap_or_default();
        drop(lab.client.delete(&format!("/v1/sessions/{id}")));
    }
    faults
}

fn write(lab: &Lab, id: &str, path: &str, text: &str) -> Answer {
    let body = json!({ "path": path, "text": text });
    lab.client.post(&format!("/v1/workspaces/{id}/fs/write"), &body)
}

/// The files of the workspace `kept`; of the one that is written, whether it is whole.
fn kept(lab: &Lab) -> BTreeMap<PathBuf, Vec<u8>> {
    let top = lab.data_dir.join("workspaces/kept");
    let mut files = BTreeMap::new();
    let mut dirs = vec![top.clone()];
    while let Some(dir) = dirs.pop() {
        for name in host::names(&dir) {
            let path = dir.join(name);
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).expect("a file");
            let name = path.strip_prefix(&top).expect("below").to_owned();
            let is_whole = name == Path::new("over") && bytes.starts_with(b"x") && bytes.len() < 5;
            files.insert(name, if is_whole { b"whole".to_vec() } else { bytes });
        }
    }
    files
}

/// A daemon that a user has on this host, with a session, is no leak of ours; a group, a claim and a
/// process of our own are.
#[test]
fn another_daemon_is_no_leak_and_our_own_is() {
    let other = Lab::builder().tagged("strangers-daemon").start();
    let session = other.session(&json!({ "workspace_id": "mine" }));
    session.run("sleep 1000 > /dev/null 2>&1 &");
    let own = Lab::builder().tagged(&format!("{}-own", leaks::tag())).start();
    let kept = own.session(&json!({}));
    let marks = leaks::Marks::new(own.marks());
    let found = leaks::Snapshot::take(&marks).beyond(&leaks::Snapshot::empty());
    for (kind, part) in
        [("cgroup ", kept.id.as_str()), ("claim ", &kept.id), ("process ", &kept.id)]
    {
        let is_there = found.iter().any(|entry| entry.starts_with(kind) && entry.contains(part));
        assert!(is_there, "no {kind}with {part}: {found:#?}");
    }
    let strange = [other.marks(), vec![session.id.clone()]].concat();
    let seen: Vec<_> =
        found.iter().filter(|entry| strange.iter().any(|mark| entry.contains(mark))).collect();
    assert!(seen.is_empty(), "{seen:#?}");
}
