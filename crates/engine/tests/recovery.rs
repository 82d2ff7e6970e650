//! What a daemon finds when it starts again, whether it stopped or died. Needs root.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use sandkasten_engine::{Error, EventsFrom, Follow, Place};
use sandkasten_types::exec::{ExecRequest, ExitReason, RunStatus};
use sandkasten_types::session::{CreateSession, Status};
use support::{labs, runtime, start};

fn request(cmd: &str) -> ExecRequest {
    ExecRequest { cmd: cmd.into(), ..ExecRequest::default() }
}

#[test]
fn sessions_go_on_when_the_daemon_stops() {
    labs(|dir| {
        let (idle, busy) = runtime().block_on(async {
            let lab = start(dir).await;
            let idle = lab.create().await;
            lab.output(
                &idle.id,
                "cd /tmp; K=kept; ( while :; do echo >> beat; sleep 0.05; done ) >/dev/null 2>&1 &",
            )
            .await;
            let busy = lab.create().await;
            let handle = lab.engine.exec(&busy.id, request("sleep 1; echo $((1+1)) > done")).await;
            lab.engine.stop().await;
            // The caller is told that the daemon stops; the command goes on.
            let error = handle.unwrap().finish().await.unwrap_err();
            assert!(matches!(error, Error::Draining), "{error}");
            (idle, busy)
        });
        runtime().block_on(async {
            let lab = start(dir).await;
            let began = Instant::now();
            assert_eq!(lab.engine.sessions().await.unwrap().len(), 2);
            let found = lab.engine.session(&idle.id).await.unwrap();
            assert_eq!((found.status, found.cwd.as_str()), (Status::Running, "/tmp"));
            assert_eq!(found.created_at, idle.created_at);
            let beats = "wc -l < beat | tr -d ' '";
            let text =
                lab.output(&idle.id, &format!("pwd; echo $K; {beats}; sleep 0.3; {beats}")).await;
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[..2], ["/tmp", "kept"]);
            assert!(lines[2].parse::<u32>().unwrap() < lines[3].parse().unwrap(), "{text}");
            // It waits for the command that an earlier daemon began.
            assert_eq!(lab.output(&busy.id, "cat done").await, "2\n");
            assert!(began.elapsed() < Duration::from_secs(5));
            lab.end().await;
        });
    });
}

#[test]
fn a_command_outlives_its_daemon_and_is_told_the_same() {
    labs(|dir| {
        let mine = "mine".parse().unwrap();
        let request = || ExecRequest {
            exec_id: Some("mine".into()),
            ..request(
                "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; sleep 0.05; \
                 while test $i = 6 && ! test -e /tmp/go; do sleep 0.02; done; done; exit 7",
            )
        };
        let first = runtime();
        let (id, seen) = first.block_on(async {
            let lab = start(dir).await;
            let id = lab.create().await.id;
            let mut handle = lab.engine.exec(&id, request()).await.unwrap();
            let mut seen = Vec::new();
            while seen.len() < 3 {
                seen.push(format!("{:?}", handle.next().await.unwrap()));
            }
            // Neither stop nor drop, as when it is killed.
            std::mem::forget((lab, handle));
            (id, seen)
        });
        first.shutdown_background();
        runtime().block_on(async {
            let lab = start(dir).await;
            let status = lab.engine.exec_status(&id, &mine).await.unwrap();
            assert_eq!(status.status, RunStatus::Running);
            lab.write(Place::Session(id.clone()), "/tmp/go", b"").await.unwrap();
            let from = |after| EventsFrom { after, follow: Follow::Yes };
            let all = lab.events(&id, &mine, from(0)).await;
            assert_eq!(all[..3], seen);
            let lines: Vec<_> = all.iter().filter(|event| event.contains("line ")).collect();
            assert_eq!(lines.len(), 9);
            assert!(all.last().unwrap().contains("exit_code: 7"));
            assert_eq!(lab.events(&id, &mine, from(3)).await, all[3..]);
            let answer = lab.exec_with(&id, request()).await.unwrap();
            assert_eq!(
                (answer.end.exit_code, answer.end.exit_reason),
                (7, ExitReason::ShellExited)
            );
            assert_eq!(answer.output.output.unwrap().lines().count(), 9);
            let before = lab.engine.list_execs(&id).await.unwrap();
            lab.engine.stop().await;
            let lab = start(dir).await;
            assert_eq!(lab.engine.list_execs(&id).await.unwrap(), before);
            assert_eq!(lab.events(&id, &mine, from(0)).await, all);
            assert_eq!(lab.output(&id, "echo on").await, "on\n");
            lab.end().await;
        });
    });
}

#[test]
fn a_daemon_that_dies_leaves_its_sessions_to_the_next() {
    labs(|dir| {
        let first = runtime();
        let session = first.block_on(async {
            let lab = start(dir).await;
            let session = lab.create().await;
            lab.output(&session.id, "x=1").await;
            // Neither stop nor drop: the next daemon finds the rows as they are.
            std::mem::forget(lab);
            session
        });
        first.shutdown_background();
        runtime().block_on(async {
            let lab = start(dir).await;
            assert_eq!(lab.output(&session.id, "echo $x").await, "1\n");
            lab.end().await;
        });
    });
}

#[test]
fn what_died_meanwhile_is_crashed_and_gone() {
    labs(|dir| {
        let (dead, half) = runtime().block_on(async {
            let lab = start(dir).await;
            let dead = lab.create().await;
            let half = lab.create().await;
            let ended = lab.create().await;
            lab.engine.delete_session(&ended.id).await.unwrap();
            let pid = lab.init_pid(&dead.id);
            lab.engine.stop().await;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            (dead.id, half.id)
        });
        // As if the daemon had died in the middle of making it.
        sql(dir, &format!("UPDATE sessions SET status = 'creating' WHERE id = '{half}'"));
        runtime().block_on(async {
            let lab = start(dir).await;
            let found = lab.engine.session(&dead).await.unwrap();
            assert_eq!(
                (found.status, found.exit_reason.as_deref()),
                (Status::Crashed, Some("init died"))
            );
            let error = lab.engine.session(&half).await.unwrap_err();
            assert!(matches!(error, Error::SessionNotFound(_)), "{error}");
            assert!(lab.engine.sessions().await.unwrap().is_empty());
            lab.end().await;
        });
    });
}

#[test]
fn after_a_reboot_sessions_are_lost_and_no_process_is_touched() {
    labs(|dir| {
        let session = runtime().block_on(async {
            let lab = start(dir).await;
            let request =
                CreateSession { workspace_id: Some("kept".into()), ..CreateSession::default() };
            let session = lab.create_with(request).await.unwrap();
            lab.output(&session.id, "echo data > f").await;
            let pid = lab.init_pid(&session.id);
            lab.engine.stop().await;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            session.id
        });
        // A decoy has the pid of its init, in another boot.
        let own = std::process::id();
        sql(dir, &format!("UPDATE sessions SET boot_id = 'another', init_pid = {own}"));
        runtime().block_on(async {
            let lab = start(dir).await;
            let found = lab.engine.session(&session).await.unwrap();
            assert_eq!(found.status, Status::Lost);
            let id = "kept".parse().unwrap();
            assert_eq!(lab.read(Place::Workspace(id), "f").await.unwrap(), b"data\n");
            lab.end().await;
        });
    });
}

#[test]
fn a_pid_that_was_given_to_another_process_is_left_alone() {
    labs(|dir| {
        let session = runtime().block_on(async {
            let lab = start(dir).await;
            let session = lab.create().await;
            let pid = lab.init_pid(&session.id);
            lab.engine.stop().await;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            session.id
        });
        sql(dir, &format!("UPDATE sessions SET init_pid = {}", std::process::id()));
        runtime().block_on(async {
            let lab = start(dir).await;
            assert_eq!(lab.engine.session(&session).await.unwrap().status, Status::Crashed);
            lab.end().await;
        });
    });
}

#[test]
fn what_no_row_knows_is_removed() {
    labs(|dir| {
        runtime().block_on(async {
            let lab = start(dir).await;
            lab.create().await;
            lab.engine.stop().await;
        });
        sql(dir, "DELETE FROM sessions");
        runtime().block_on(async {
            let lab = start(dir).await;
            assert!(lab.engine.counts().orphans_removed > 0);
            assert_eq!(lab.left(), Vec::<std::path::PathBuf>::new());
            lab.end().await;
        });
    });
}

#[test]
fn a_lease_that_ran_out_meanwhile_is_over() {
    labs(|dir| {
        let session = runtime().block_on(async {
            let lab = start(dir).await;
            let session = lab.create().await;
            lab.engine.stop().await;
            session.id
        });
        sql(dir, "UPDATE sessions SET deadline_boot_ms = 1");
        runtime().block_on(async {
            let lab = start(dir).await;
            let error = lab.exec(&session, "true").await.unwrap_err();
            assert!(matches!(&error, Error::Ended(ended) if ended.status == Status::Expired));
            let began = Instant::now();
            while !lab.left().is_empty() {
                assert!(began.elapsed() < Duration::from_secs(5));
                tokio::task::yield_now().await;
            }
            lab.end().await;
        });
    });
}

fn sql(dir: &std::path::Path, statement: &str) {
    let db = rusqlite::Connection::open(dir.join("sandkasten.db")).unwrap();
    db.execute_batch(statement).unwrap();
}

#[test]
fn layers_without_an_image_go_when_no_session_has_them() {
    labs(|dir| {
        let layers = || std::fs::read_dir(dir.join("layers")).unwrap().count();
        let session = runtime().block_on(async {
            let lab = start(dir).await;
            let request =
                CreateSession { image: Some("busybox".into()), ..CreateSession::default() };
            let session = lab.create_with(request).await.unwrap();
            let name = "busybox".parse().unwrap();
            lab.engine.images().remove(&name, &[]).unwrap();
            lab.engine.stop().await;
            session
        });
        let before = layers();
        runtime().block_on(async {
            let lab = start(dir).await;
            assert_eq!(layers(), before);
            assert_eq!(lab.output(&session.id, "ls /bin/busybox").await, "/bin/busybox\n");
            lab.end().await;
        });
        runtime().block_on(async {
            let lab = start(dir).await;
            assert!(layers() < before);
            lab.create().await;
            lab.end().await;
        });
    });
}
