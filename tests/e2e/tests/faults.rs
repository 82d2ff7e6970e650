//! A create that fails half-way leaves nothing: no mount, cgroup, process, directory, claim or row.
//!
//! The binary is built with `fault-injection`: with `SANDKASTEN_FAIL_AT=N` the N-th step that each
//! process of the daemon reaches fails. N rises until nothing is left to fail.

use std::collections::BTreeSet;

use sandkasten_e2e::host;
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
    for dir in host::cgroups() {
        let text = dir.display().to_string();
        // A session's group lies in the group of its daemon. Spare ones wait there for the next.
        if !text.contains("/spare-")
            && dir.parent().is_some_and(|parent| parent.to_string_lossy().contains("sandkasten-"))
        {
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
    found.extend(mounts.lines().map(|line| format!("mount {line}")));
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
