//! Sessions from their request to their end, with the real jail and init. Needs root.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use sandkasten_types::exec::ExitReason;
use sandkasten_types::session::Status;
use support::lab;

#[test]
fn a_first_session_runs_a_command_and_ends() {
    lab(async |lab| {
        let session = lab.create().await;
        assert_eq!(session.status, Status::Running);
        assert_eq!(
            lab.output(&session.id, "id -u; pwd; echo $HOME").await,
            "1000\n/workspace\n/home/sandbox\n"
        );
        let answer = lab
            .exec(&session.id, "cd /tmp; x=1; exit_code() { return 3; }; exit_code")
            .await
            .unwrap();
        assert_eq!((answer.end.exit_code, answer.end.exit_reason), (3, ExitReason::Exited));
        assert_eq!(answer.end.cwd, "/tmp");
        assert_eq!(lab.output(&session.id, "pwd; echo $x").await, "/tmp\n1\n");
        lab.engine.delete_session(&session.id).await.unwrap();
        let over = lab.engine.session(&session.id).await.unwrap();
        assert_eq!(
            (over.status, over.exit_reason.as_deref()),
            (Status::Destroyed, Some("deleted"))
        );
        lab.engine.delete_session(&session.id).await.unwrap();
        lab
    });
}
