//! A create that fails at any of its steps leaves nothing. Needs root and the feature
//! `fault-injection`.

#![cfg(feature = "fault-injection")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use sandkasten_engine::{Error, IdempotencyKey};
use sandkasten_jail::fault;
use sandkasten_types::session::CreateSession;
use support::lab;

#[test]
fn a_create_that_fails_at_any_step_leaves_nothing() {
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
