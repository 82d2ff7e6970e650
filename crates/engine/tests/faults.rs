//! A create that fails at any of its steps leaves nothing. Needs root and the feature
//! `fault-injection`.

#![cfg(feature = "fault-injection")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandkasten_engine::{Durability, Error, IdempotencyKey, Place};
use sandkasten_jail::fault;
use sandkasten_types::WorkspaceId;
use sandkasten_types::session::CreateSession;
use sandkasten_types::workspace::PutWorkspace;
use support::{Lab, config, lab, labs, runtime, start_with};

#[test]
fn a_create_that_fails_at_any_step_leaves_nothing() {
    let _alone = alone();
    lab(async |lab| {
        let request =
            || CreateSession { workspace_id: Some("fresh".into()), ..CreateSession::default() };
        // A key too: the retry with it makes a session.
        let key = || Some(IdempotencyKey::new("client", "key").unwrap());
        let mut failures = 0;
        loop {
            fault::fail_at(failures + 1);
            match lab.engine.create_session(request(), key()).await {
                Err(error) => {
                    assert!(matches!(error, Error::Internal(_)), "{error}");
                    failures += 1;
                    assert!(lab.engine.sessions().await.unwrap().is_empty(), "after {error}");
                    assert_eq!(lab.left(), Vec::<std::path::PathBuf>::new(), "after {error}");
                    assert!(lab.engine.workspaces().await.unwrap().is_empty(), "after {error}");
                    assert_eq!(lab.groups(), Vec::<std::path::PathBuf>::new(), "after {error}");
                }
                Ok(session) => {
                    fault::fail_at(0);
                    assert_eq!(lab.output(&session.id, "echo on").await, "on\n");
                    break;
                }
            }
        }
        // Each of the engine's own points at least; jail has more.
        assert!(failures >= 8, "{failures}");
        lab
    });
}

/// The faults are the process's: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls again and again, each time with a fault one step later, until it works. Counts the faults.
async fn at_each_step<T>(
    call: impl AsyncFn() -> Result<T, Error>,
    after_fault: impl AsyncFn(&Error),
) -> u64 {
    let mut faults = 0;
    loop {
        fault::fail_at(faults + 1);
        let done = call().await;
        fault::fail_at(0);
        match done {
            Ok(_) => return faults,
            Err(error) => {
                assert!(matches!(error, Error::Internal(_)), "{error}");
                faults += 1;
                after_fault(&error).await;
            }
        }
    }
}

/// Everything below a directory: what it has, byte for byte.
fn tree(top: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(top).unwrap() {
        let path = entry.unwrap().path();
        let is_dir = std::fs::symlink_metadata(&path).unwrap().is_dir();
        if is_dir {
            found.extend(tree(&path));
        }
        let bytes = if is_dir { Vec::new() } else { std::fs::read(&path).unwrap() };
        found.insert(path, bytes);
    }
    found
}

/// Every call on a workspace with a fault at each of its steps: no byte of it is lost, what has failed has
/// changed nothing, and what failed works the next time.
#[test]
fn a_workspace_survives_a_fault_at_any_step() {
    let _alone = alone();
    labs(|dir| {
        let with = sandkasten_engine::Config { durability: Durability::Fsync, ..config(dir) };
        runtime().block_on(async {
            let lab = start_with(with).await;
            fault_every_call(&lab).await;
            lab.end().await;
        });
    });
}

async fn fault_every_call(lab: &Lab) {
    let id: WorkspaceId = "kept".parse().unwrap();
    let place = || Place::Workspace(id.clone());
    for (path, bytes) in [("a/b/deep", "deep"), ("plain", "plain")] {
        lab.write(place(), path, bytes.as_bytes()).await.unwrap();
    }
    let dir = lab.dir.join("workspaces/kept");
    let before = tree(&dir);
    let intact = async |error: &Error| assert_eq!(tree(&dir), before, "after {error}");

    let request =
        || CreateSession { workspace_id: Some("kept".into()), ..CreateSession::default() };
    let steps = at_each_step(async || lab.create_with(request()).await, intact).await;
    assert!(steps >= 8, "create: {steps}");
    for session in lab.engine.sessions().await.unwrap() {
        lab.engine.delete_session(&session.id).await.unwrap();
    }
    assert_eq!(tree(&dir), before);

    let labels = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let put = || PutWorkspace { labels: Some(labels.clone()), ..PutWorkspace::default() };
    let steps = at_each_step(async || lab.engine.put_workspace(&id, put()).await, intact).await;
    assert!(steps >= 1, "put: {steps}");

    // A new one that could not be made is not there.
    let other: WorkspaceId = "other".parse().unwrap();
    let gone = async |error: &Error| {
        let found = lab.engine.workspace(&other).await;
        assert!(matches!(found, Err(Error::WorkspaceNotFound(_))), "after {error}: {found:?}");
    };
    let steps = at_each_step(async || lab.engine.put_workspace(&other, put()).await, gone).await;
    assert!(steps >= 5, "put of a new one: {steps}");

    // A write that failed has left the old file or made the new one, whole.
    let whole = async |error: &Error| {
        let mut now = tree(&dir);
        let text = now.insert(dir.join("a/b/deep"), b"deep".to_vec()).unwrap();
        assert!(text == b"deep" || text == b"new", "after {error}: {text:?}");
        assert_eq!(now, before, "after {error}");
    };
    let steps = at_each_step(async || lab.write(place(), "a/b/deep", b"new").await, whole).await;
    assert!(steps >= 5, "write: {steps}");

    let before = tree(&dir);
    let intact = async |error: &Error| {
        assert_eq!(tree(&dir), before, "after {error}");
        assert_eq!(lab.engine.workspace(&id).await.unwrap().labels, labels, "after {error}");
    };
    let steps = at_each_step(async || lab.engine.delete_workspace(&id).await, intact).await;
    assert!(steps >= 4, "delete: {steps}");
    assert!(!dir.exists());
}
