//! Programs by argv, with the real jail and init. Needs root.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use sandkasten_engine::{Error, EventsFrom, Follow, Form, Kept, Last, ProcessEvent, ProcessResult};
use sandkasten_types::exec::{ExitReason, RunStatus};
use sandkasten_types::process::{
    ProcessEnd, ProcessStdin, SignalName, SignalProcess, StartProcess, Tty,
};
use sandkasten_types::session::CreateSession;
use sandkasten_types::{Base64, ProcessId, SessionId};
use support::{Lab, lab, labs, memory, runtime, start};

fn shell(cmd: &str) -> StartProcess {
    StartProcess { cmd: Some(cmd.into()), ..StartProcess::default() }
}

fn waited(cmd: &str) -> StartProcess {
    StartProcess { wait: Some(true), ..shell(cmd) }
}

fn open(cmd: &str) -> StartProcess {
    StartProcess { stdin: Some(ProcessStdin::Mode("open".into())), ..shell(cmd) }
}

async fn whole(mut kept: Kept) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(piece) = kept.next().await.unwrap() {
        all.extend_from_slice(&piece);
    }
    all
}

/// Runs a program to its end. Gives that, stdout and stderr.
async fn run(lab: &Lab, id: &SessionId, request: StartProcess) -> (ProcessEnd, String, String) {
    let handle = lab.engine.start_process(id, request).await.unwrap();
    let ProcessResult { end, stdout, stderr, .. } = handle.wait().await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (end, text(whole(stdout).await), text(whole(stderr).await))
}

/// Starts a program that goes on by itself.
async fn begin(lab: &Lab, id: &SessionId, request: StartProcess) -> ProcessId {
    let handle = lab.engine.start_process(id, request).await.unwrap();
    assert!(handle.started().pid > 1);
    handle.started().process_id.clone()
}

/// What a program wrote, up to its end.
async fn followed(lab: &Lab, id: &SessionId, process: &ProcessId) -> (String, ProcessEnd) {
    let from = EventsFrom { after: 0, follow: Follow::Yes };
    let mut events = lab.engine.process_events(id, process, from, Form::Bytes).await.unwrap();
    let mut text = Vec::new();
    loop {
        match events.next().await.expect("an end") {
            ProcessEvent::Output(written) => text.extend_from_slice(written.data.as_bytes()),
            ProcessEvent::Exit { end, .. } => return (String::from_utf8(text).unwrap(), end),
            ProcessEvent::Gap(gap) => panic!("{gap:?}"),
            ProcessEvent::Failed { error, .. } => panic!("{error}"),
        }
    }
}

#[test]
fn a_program_runs_with_its_arguments_beside_the_shell() {
    lab(async |lab| {
        let session = lab.create().await;
        let id = &session.id;
        let argv = ["sh", "-c", "printf '<%s>' \"$@\"; pwd; echo $A >&2; exit 3", "sh", "a b", ""];
        let request = StartProcess {
            argv: Some(argv.map(str::to_owned).to_vec()),
            env: Some([("A".to_owned(), "it's".to_owned())].into()),
            cwd: Some("/tmp".into()),
            wait: Some(true),
            ..StartProcess::default()
        };
        let (end, out, err) = run(&lab, id, request).await;
        assert_eq!((end.exit_code, end.exit_reason), (3, ExitReason::Exited));
        assert_eq!((out.as_str(), err.as_str()), ("<a b><>/tmp\n", "it's\n"));
        for (argv, code) in [(["nothing-of-that-name"], 127), (["/etc"], 126)] {
            let argv = Some(argv.map(str::to_owned).to_vec());
            let request = StartProcess { argv, wait: Some(true), ..StartProcess::default() };
            assert_eq!(run(&lab, id, request).await.0.exit_code, code);
        }
        let (end, ..) = run(&lab, id, waited("kill -TERM $$")).await;
        assert_eq!((end.exit_code, end.signal), (143, Some(15)));
        assert_eq!(end.exit_reason, ExitReason::Signaled);
        let (_, out, _) =
            run(&lab, id, StartProcess { user: Some("root".into()), ..waited("id -u") }).await;
        assert_eq!(out, "0\n");
        let unknown = StartProcess { user: Some("nobody-here".into()), ..shell("true") };
        let error = lab.engine.start_process(id, unknown).await.unwrap_err();
        assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
        let nowhere = StartProcess { cwd: Some("/nowhere".into()), ..shell("true") };
        let error = lab.engine.start_process(id, nowhere).await.unwrap_err();
        assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
        assert_eq!(lab.output(id, "pwd; echo [$A]").await, "/workspace\n[]\n");
        lab
    });
}

#[test]
fn stdin_is_given_at_once_or_piece_by_piece() {
    lab(async |lab| {
        let session = lab.create().await;
        let id = &session.id;
        let data = ProcessStdin::Data { base64: Base64(vec![7; 10_000_000]) };
        let request = StartProcess { stdin: Some(data), ..waited("wc -c") };
        assert_eq!(run(&lab, id, request).await.1.trim(), "10000000");
        let cat = begin(&lab, id, open("cat; echo end")).await;
        for piece in ["one\n", "two\n"] {
            lab.engine.process_stdin(id, &cat, piece.into(), Last::No).await.unwrap();
        }
        lab.engine.process_stdin(id, &cat, "three\n".into(), Last::Yes).await.unwrap();
        assert_eq!(followed(&lab, id, &cat).await.0, "one\ntwo\nthree\nend\n");
        let error = lab.engine.process_stdin(id, &cat, "x".into(), Last::No).await.unwrap_err();
        assert!(matches!(error, Error::Conflict(_)), "{error}");
        lab
    });
}

#[test]
fn a_process_is_signalled_and_killed_with_all_it_started() {
    lab(async |lab| {
        let session = lab.create().await;
        let id = &session.id;
        let trap = begin(
            &lab,
            id,
            shell("trap 'echo got; exit 4' USR1; echo on; while :; do sleep 0.05; done"),
        )
        .await;
        let from = EventsFrom { after: 0, follow: Follow::Yes };
        let mut events = lab.engine.process_events(id, &trap, from, Form::Bytes).await.unwrap();
        assert!(matches!(events.next().await, Some(ProcessEvent::Output(_))));
        let usr1 = SignalProcess { signal: SignalName::Name("SIGUSR1".into()), group: None };
        lab.engine.signal_process(id, &trap, &usr1).await.unwrap();
        let (text, end) = followed(&lab, id, &trap).await;
        assert_eq!((text.as_str(), end.exit_code), ("on\ngot\n", 4));
        let tree = "setsid sleep 71 & (setsid sh -c 'sleep 72 & sleep 73' &) ; sleep 74";
        let tree = begin(&lab, id, shell(tree)).await;
        let count = "ps -o args | busybox grep -c '[s]leep 7'";
        while lab.output(id, &format!("{count} || :")).await.trim() != "4" {}
        let began = Instant::now();
        lab.engine.kill_process(id, &tree).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(1));
        assert_eq!(lab.output(id, &format!("{count} || :")).await.trim(), "0");
        let status = lab.engine.process(id, &tree).await.unwrap();
        assert_eq!(status.end.unwrap().exit_reason, ExitReason::Cancelled);
        let timed = StartProcess { timeout_ms: Some(200), ..waited("setsid sleep 75 & sleep 76") };
        let (end, ..) = run(&lab, id, timed).await;
        assert_eq!(end.exit_reason, ExitReason::Timeout);
        assert_eq!(lab.output(id, &format!("{count} || :")).await.trim(), "0");
        lab
    });
}

#[test]
fn what_a_process_left_lives_on_until_it_is_deleted() {
    lab(async |lab| {
        let session = lab.create().await;
        let id = &session.id;
        let parent = begin(&lab, id, shell("setsid sleep 77 >/dev/null 2>&1 & echo started")).await;
        assert_eq!(followed(&lab, id, &parent).await.0, "started\n");
        let count = "ps -o args | busybox grep -c '[s]leep 77' || :";
        assert_eq!(lab.output(id, count).await, "1\n");
        lab.engine.kill_process(id, &parent).await.unwrap();
        assert_eq!(lab.output(id, count).await, "0\n");
        lab
    });
}

#[test]
fn who_leaves_a_wait_takes_the_process_with_it() {
    lab(async |lab| {
        let session = lab.create().await;
        let id = &session.id;
        let handle = lab.engine.start_process(id, waited("sleep 78")).await.unwrap();
        let process = handle.started().process_id.clone();
        drop(handle);
        let (_, end) = followed(&lab, id, &process).await;
        assert_eq!(end.exit_reason, ExitReason::Cancelled);
        let keep =
            StartProcess { on_disconnect: Some("keep".into()), ..waited("sleep 0.3; echo on") };
        let handle = lab.engine.start_process(id, keep).await.unwrap();
        let process = handle.started().process_id.clone();
        drop(handle);
        assert_eq!(followed(&lab, id, &process).await.0, "on\n");
        lab
    });
}

#[test]
fn a_terminal_is_one() {
    lab(async |lab| {
        let session = lab.create().await;
        let id = &session.id;
        let tty = Some(Tty { rows: 7, cols: 33 });
        let cmd = "test -t 0 && test -t 1 && test -t 2 && echo tty; busybox stty size; echo $TERM; \
                   read line; busybox stty size; sleep 79";
        let process = begin(&lab, id, StartProcess { tty, ..shell(cmd) }).await;
        let size = Tty { rows: 9, cols: 44 };
        lab.engine.resize_process(id, &process, size).await.unwrap();
        lab.engine.process_stdin(id, &process, "go\n".into(), Last::No).await.unwrap();
        let from = EventsFrom { after: 0, follow: Follow::Yes };
        let mut events = lab.engine.process_events(id, &process, from, Form::Bytes).await.unwrap();
        let mut text = String::new();
        while !(text.contains("9 44") && text.contains("xterm-256color")) {
            let Some(ProcessEvent::Output(written)) = events.next().await else { panic!("{text}") };
            text.push_str(std::str::from_utf8(written.data.as_bytes()).unwrap());
        }
        assert!(text.contains("tty\r\n"), "{text}");
        // ^C reaches what runs in the foreground.
        lab.engine.process_stdin(id, &process, "\u{3}".into(), Last::No).await.unwrap();
        let (_, end) = followed(&lab, id, &process).await;
        assert_eq!(end.exit_code, 130, "{end:?}");
        lab
    });
}

#[test]
fn memory_that_is_full_is_told_of_a_program_too() {
    lab(async |lab| {
        let request = CreateSession { limits: Some(memory(32)), ..CreateSession::default() };
        let session = lab.create_with(request).await.unwrap();
        let cmd = "exec tail -c 90000000 /dev/zero";
        let (end, ..) = run(&lab, &session.id, waited(cmd)).await;
        assert_eq!((end.exit_reason, end.exit_code), (ExitReason::Oom, 137), "{end:?}");
        assert_eq!(end.memory_limit, Some(32 << 20));
        assert_eq!(lab.output(&session.id, "echo on").await, "on\n");
        lab
    });
}

#[test]
fn many_run_at_once_and_streams_are_kept_to_64_mib() {
    lab(async |lab| {
        let session = lab.create().await;
        let id = &session.id;
        let mut all = Vec::new();
        for n in 0..20 {
            all.push(begin(&lab, id, shell(&format!("sleep 0.2; echo {n}"))).await);
        }
        assert_eq!(lab.engine.list_processes(id).await.unwrap().len(), 20);
        for (n, process) in all.iter().enumerate() {
            assert_eq!(followed(&lab, id, process).await.0, format!("{n}\n"));
        }
        let cmd = "head -c 70000000 /dev/zero; head -c 1000000 /dev/zero >&2; echo end";
        let handle = lab.engine.start_process(id, waited(cmd)).await.unwrap();
        let ProcessResult { end, stdout, stderr, .. } = handle.wait().await.unwrap();
        assert!(end.truncated && end.output_bytes == 71_000_004);
        let stdout = whole(stdout).await;
        assert!(stdout.len() <= 64 << 20 && stdout.len() > 63 << 20, "{}", stdout.len());
        assert!(stdout.ends_with(b"\0end\n"));
        assert_eq!(whole(stderr).await.len(), 1_000_000);
        lab
    });
}

#[test]
fn a_process_outlives_its_daemon() {
    labs(|dir| {
        let (id, process) = runtime().block_on(async {
            let lab = start(dir).await;
            let id = lab.create().await.id;
            let process = begin(&lab, &id, open("echo one; read x; echo got $x; exit 6")).await;
            lab.engine.stop().await;
            (id, process)
        });
        runtime().block_on(async {
            let lab = start(dir).await;
            let status = lab.engine.process(&id, &process).await.unwrap();
            assert_eq!(status.status, RunStatus::Running);
            lab.engine.process_stdin(&id, &process, "it\n".into(), Last::Yes).await.unwrap();
            let (text, end) = followed(&lab, &id, &process).await;
            assert_eq!((text.as_str(), end.exit_code), ("one\ngot it\n", 6));
            lab.end().await;
        });
    });
}

#[test]
fn an_attached_process_holds_the_lease() {
    lab(async |lab| {
        let request = CreateSession { ttl_seconds: Some(1), ..CreateSession::default() };
        let session = lab.create_with(request).await.unwrap();
        let process = begin(&lab, &session.id, shell("sleep 1.6; echo done")).await;
        assert_eq!(followed(&lab, &session.id, &process).await.0, "done\n");
        begin(&lab, &session.id, shell("sleep 80")).await;
        let began = Instant::now();
        while !lab.engine.sessions().await.unwrap().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(5));
            tokio::task::yield_now().await;
        }
        // It answers no call any more; this waits until it is gone too.
        lab.engine.delete_session(&session.id).await.unwrap();
        lab
    });
}
