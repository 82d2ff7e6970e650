//! Sessions from their request to their end, with the real jail and init. Needs root.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::time::{Duration, Instant};

use sandkasten_engine::{Error, EventsFrom, ExecEvent, FileUser, Follow, IdempotencyKey, Place};
use sandkasten_types::exec::{ExecRequest, ExitReason, RestartShell, RunStatus};
use sandkasten_types::session::{CreateSession, Status};
use support::{lab, memory};

#[test]
fn a_first_session_runs_a_command_and_ends() {
    lab(async |lab| {
        let session = lab.create().await;
        assert_eq!(session.status, Status::Running);
        let text = lab.output(&session.id, "id -u; pwd; echo $HOME").await;
        assert_eq!(text, "1000\n/workspace\n/home/sandbox\n");
        let answer = lab.exec(&session.id, "cd /tmp; x=1; f() { return 3; }; f").await.unwrap();
        assert_eq!((answer.end.exit_code, answer.end.exit_reason), (3, ExitReason::Exited));
        assert_eq!(answer.end.cwd, "/tmp");
        assert_eq!(lab.output(&session.id, "pwd; echo $x").await, "/tmp\n1\n");
        assert_eq!(lab.engine.session(&session.id).await.unwrap().cwd, "/tmp");
        lab.engine.delete_session(&session.id).await.unwrap();
        let over = lab.engine.session(&session.id).await.unwrap();
        assert_eq!(
            (over.status, over.exit_reason.as_deref()),
            (Status::Destroyed, Some("deleted"))
        );
        assert_eq!(over.cwd, "/tmp");
        lab.engine.delete_session(&session.id).await.unwrap();
        let error = lab.exec(&session.id, "true").await.unwrap_err();
        assert!(matches!(&error, Error::Ended(ended) if ended.status == Status::Destroyed));
        lab
    });
}

#[test]
fn busybox_and_root_work_too() {
    lab(async |lab| {
        let request = CreateSession {
            image: Some("busybox".into()),
            user: Some("root".into()),
            env: Some([("A".to_owned(), "it's".to_owned())].into()),
            ..CreateSession::default()
        };
        let session = lab.create_with(request).await.unwrap();
        assert_eq!(session.shell, Some(sandkasten_types::session::Shell::Sh));
        assert_eq!(session.env_keys, ["A"]);
        assert_eq!(
            lab.output(&session.id, "id -u; echo $A $USER $SHELL").await,
            "0\nit's root /bin/sh\n"
        );
        lab
    });
}

#[test]
fn a_stream_comes_as_it_is_written() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = ExecRequest {
            cmd: "printf a; read x < /tmp/gate; printf 'b\\n'; exit 4".into(),
            ..ExecRequest::default()
        };
        lab.output(&session.id, "busybox mkfifo /tmp/gate; ( sleep 0.3; echo > /tmp/gate ) &")
            .await;
        let mut handle = lab.engine.exec(&session.id, request).await.unwrap();
        let first = handle.next().await;
        let Some(ExecEvent::Chunk(first)) = first else { panic!("{first:?}") };
        assert_eq!((first.chunk.as_deref(), first.seq), (Some("a"), 1));
        let second = handle.next().await;
        let Some(ExecEvent::Chunk(second)) = second else { panic!("{second:?}") };
        assert_eq!((second.chunk.as_deref(), second.seq), (Some("b\n"), 2));
        let Some(ExecEvent::Done { seq: 5, end }) = handle.next().await else { panic!() };
        assert_eq!((end.exit_code, end.exit_reason), (4, ExitReason::ShellExited));
        assert!(end.shell_restarted && handle.next().await.is_none());
        let (chunks, end) = lab.stream(&session.id, "seq 1 100000").await;
        let want: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
        assert!(chunks.concat() == want && end.exit_code == 0);
        lab
    });
}

#[test]
fn a_flood_is_capped_and_memory_stays() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = ExecRequest {
            cmd: "yes | head -c 50000000; echo; echo end".into(),
            max_output_bytes: Some(1000),
            ..ExecRequest::default()
        };
        let answer = lab.exec_with(&session.id, request).await.unwrap();
        assert_eq!(answer.end.output_bytes, 50_000_005);
        assert!(answer.end.truncated);
        let output = answer.output.output.unwrap();
        assert!(output.len() <= 1000);
        assert!(output.starts_with("y\ny\n") && output.ends_with("\nend\n"));
        assert!(output.contains("[… 49999"), "{output}");
        lab
    });
}

#[test]
fn a_timeout_ends_the_command_and_says_so() {
    lab(async |lab| {
        let session = lab.create().await;
        lab.output(&session.id, "cd /tmp").await;
        let request = ExecRequest {
            cmd: "echo so far; cd /; sleep 60; echo never".into(),
            timeout_ms: Some(300),
            ..ExecRequest::default()
        };
        let began = Instant::now();
        let answer = lab.exec_with(&session.id, request).await.unwrap();
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
        assert_eq!(answer.output.output.unwrap(), "so far\n");
        let end = answer.end;
        assert_eq!((end.exit_code, end.exit_reason), (124, ExitReason::Timeout));
        assert!(end.timed_out && end.shell_restarted);
        assert_eq!(lab.output(&session.id, "pwd").await, "/tmp\n");
        lab
    });
}

#[test]
fn a_caller_that_leaves_cancels_its_command() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = |cmd: &str| ExecRequest { cmd: cmd.into(), ..ExecRequest::default() };
        let cmd = "while :; do echo x >> /tmp/n; echo x; sleep 0.01; done";
        let mut running = lab.engine.exec(&session.id, request(cmd)).await.unwrap();
        assert!(matches!(running.next().await, Some(ExecEvent::Chunk(_))));
        let queued = lab.engine.exec(&session.id, request("touch /tmp/queued")).await.unwrap();
        assert_eq!(lab.engine.counts().execs_queued, 1);
        drop(queued);
        drop(running);
        // Nothing of either goes on.
        let text = lab.output(&session.id, "ls /tmp; wc -l < /tmp/n > /tmp/a; sleep 0.2; wc -l < /tmp/n | tr -d ' ' > /tmp/b; cat /tmp/a /tmp/b | tr -d ' ' | busybox uniq | wc -l").await;
        assert_eq!(text.replace(' ', ""), "n\n1\n");
        lab
    });
}

#[test]
fn a_delete_in_mid_command_tells_everybody() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = |cmd: &str| ExecRequest { cmd: cmd.into(), ..ExecRequest::default() };
        let mut streamed =
            lab.engine.exec(&session.id, request("echo out; sleep 60")).await.unwrap();
        let Some(ExecEvent::Chunk(chunk)) = streamed.next().await else { panic!() };
        assert_eq!(chunk.chunk.as_deref(), Some("out\n"));
        let waiting = lab.engine.exec(&session.id, request("echo never")).await.unwrap();
        // Neither files nor figures wait for the command.
        assert!(lab.engine.stats(&session.id).await.unwrap().pids > 1);
        let began = Instant::now();
        let (one, two) = tokio::join!(
            lab.engine.delete_session(&session.id),
            lab.engine.delete_session(&session.id)
        );
        one.and(two).unwrap();
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        let Some(ExecEvent::Failed { error: Error::Ended(ended), seq: 2 }) = streamed.next().await
        else {
            panic!()
        };
        assert_eq!((ended.status, ended.started), (Status::Destroyed, true));
        let Err(Error::Ended(ended)) = waiting.finish().await else { panic!() };
        assert_eq!((ended.started, ended.output), (false, None));
        lab
    });
}

#[test]
fn a_blocking_caller_gets_the_output_so_far() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = ExecRequest { cmd: "echo out; sleep 60".into(), ..ExecRequest::default() };
        let handle = lab.engine.exec(&session.id, request).await.unwrap();
        let engine = lab.engine.clone();
        let id = session.id.clone();
        let delete = tokio::spawn(async move {
            // The file call answers when the echo has run, since it is asked for after it.
            tokio::time::sleep(Duration::from_millis(300)).await;
            engine.delete_session(&id).await.unwrap();
        });
        let Err(Error::Ended(ended)) = handle.finish().await else { panic!() };
        assert_eq!((ended.started, ended.output.unwrap().output.as_deref()), (true, Some("out\n")));
        delete.await.unwrap();
        lab
    });
}

#[test]
fn a_running_command_holds_the_lease() {
    lab(async |lab| {
        let request = CreateSession { ttl_seconds: Some(1), ..CreateSession::default() };
        let session = lab.create_with(request).await.unwrap();
        let began = Instant::now();
        assert_eq!(lab.output(&session.id, "sleep 1.6; echo done").await, "done\n");
        let ended = Instant::now();
        // Its task ends it at its time, without anybody asking.
        while lab.engine.session(&session.id).await.unwrap().status != Status::Expired {
            assert!(ended.elapsed() < Duration::from_secs(5));
            tokio::task::yield_now().await;
        }
        assert!(began.elapsed() > Duration::from_millis(2500), "{:?}", began.elapsed());
        let error = lab.exec(&session.id, "true").await.unwrap_err();
        assert!(matches!(&error, Error::Ended(ended) if ended.reason == "ttl"), "{error}");
        assert!(lab.engine.sessions().await.unwrap().is_empty());
        while !lab.left().is_empty() {
            assert!(ended.elapsed() < Duration::from_secs(6));
            tokio::task::yield_now().await;
        }
        lab
    });
}

#[test]
fn memory_that_is_full_is_told() {
    lab(async |lab| {
        let request = CreateSession { limits: Some(memory(32)), ..CreateSession::default() };
        let session = lab.create_with(request).await.unwrap();
        let answer = lab
            .exec(
                &session.id,
                "head -c 100000000 /dev/zero | tail -c 90000000 | wc -c; exit ${PIPESTATUS[1]}",
            )
            .await;
        match answer {
            Ok(answer) => {
                assert_eq!(answer.end.exit_reason, ExitReason::Oom, "{answer:?}");
                assert_eq!(answer.end.memory_limit, Some(32 << 20));
                assert!(answer.end.oom_kills > 0);
                assert_eq!(lab.output(&session.id, "echo on").await, "on\n");
            }
            Err(Error::Ended(ended)) => assert_eq!(ended.reason, "oom"),
            Err(error) => panic!("{error}"),
        }
        lab
    });
}

#[test]
fn a_key_makes_one_session_however_often() {
    lab(async |lab| {
        let key = || Some(IdempotencyKey::new("client", "k1").unwrap());
        let request = CreateSession { name: Some("one".into()), ..CreateSession::default() };
        let mut creates = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let (engine, request) = (lab.engine.clone(), request.clone());
            creates.spawn(async move { engine.create_session(request, key()).await.unwrap().id });
        }
        let ids = creates.join_all().await;
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
        assert_eq!(lab.engine.sessions().await.unwrap().len(), 1);
        let other = CreateSession { name: Some("two".into()), ..CreateSession::default() };
        let error = lab.engine.create_session(other, key()).await.unwrap_err();
        assert!(matches!(error, Error::IdempotencyMismatch(_)), "{error}");
        lab
    });
}

#[test]
fn a_caller_that_leaves_its_create_leaves_no_session() {
    lab(async |lab| {
        let engine = lab.engine.clone();
        let create =
            tokio::spawn(
                async move { engine.create_session(CreateSession::default(), None).await },
            );
        while lab.engine.sessions().await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        create.abort();
        let began = Instant::now();
        while !lab.engine.sessions().await.unwrap().is_empty() {
            assert!(began.elapsed() < Duration::from_secs(5));
            tokio::task::yield_now().await;
        }
        lab
    });
}

#[test]
fn the_limit_of_sessions_holds_under_a_herd() {
    lab(async |lab| {
        let mut creates = tokio::task::JoinSet::new();
        for _ in 0..40 {
            let engine = lab.engine.clone();
            creates
                .spawn(async move { engine.create_session(CreateSession::default(), None).await });
        }
        let done = creates.join_all().await;
        let made = done.iter().filter(|made| made.is_ok()).count();
        assert_eq!(made, 20);
        for error in done.into_iter().filter_map(Result::err) {
            assert!(matches!(error, Error::QuotaExceeded { limit: 20, .. }), "{error}");
        }
        lab
    });
}

#[test]
fn init_that_dies_takes_its_session_with_it() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = ExecRequest { cmd: "echo out; sleep 60".into(), ..ExecRequest::default() };
        let handle = lab.engine.exec(&session.id, request).await.unwrap();
        let pid = lab.init_pid(&session.id);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let began = Instant::now();
        let Err(Error::Ended(ended)) = handle.finish().await else { panic!() };
        assert!(began.elapsed() < Duration::from_secs(1));
        assert_eq!((ended.status, ended.reason.as_str()), (Status::Crashed, "init died"));
        lab
    });
}

#[test]
fn what_will_not_die_is_deleted_all_the_same() {
    lab(async |lab| {
        let session = lab.create().await;
        let stubborn = "trap '' TERM INT HUP; sh -c 'trap \"\" TERM; sleep 600' & setsid sleep 601 & \
                        sleep 602 & kill -STOP $!; exec 9>held";
        lab.output(&session.id, stubborn).await;
        // A frozen group runs nothing, not even a signal's effect.
        lab.freeze(&session.id);
        let request = ExecRequest { cmd: "echo never".into(), ..ExecRequest::default() };
        let waiting = lab.engine.exec(&session.id, request).await.unwrap();
        let began = Instant::now();
        lab.engine.delete_session(&session.id).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        let Err(Error::Ended(ended)) = waiting.finish().await else { panic!() };
        assert_eq!(ended.status, Status::Destroyed);
        assert_eq!(lab.left(), Vec::<std::path::PathBuf>::new());
        lab
    });
}

#[test]
fn a_path_of_any_length_costs_no_session() {
    lab(async |lab| {
        let session = lab.create().await;
        let place = || Place::Session(session.id.clone());
        for path in ["x".repeat(10_000_000), "x/".repeat(3000), "a\0b".into(), String::new()] {
            let error = lab.write(place(), &path, b"").await.unwrap_err();
            assert!(matches!(error, Error::File { .. }), "{error}");
            let error = lab.read(place(), &path).await.unwrap_err();
            assert!(matches!(error, Error::File { .. }), "{error}");
        }
        assert_eq!(lab.output(&session.id, "echo on").await, "on\n");
        lab
    });
}

#[test]
fn an_exec_id_never_runs_twice() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = || ExecRequest {
            cmd: "echo $((n += 1))".into(),
            exec_id: Some("mine".into()),
            ..ExecRequest::default()
        };
        let answer = lab.exec_with(&session.id, request()).await.unwrap();
        assert_eq!(
            (answer.end.exec_id.as_str(), answer.output.output.as_deref()),
            ("mine", Some("1\n"))
        );
        assert_eq!(lab.exec_with(&session.id, request()).await.unwrap(), answer);
        let other = ExecRequest { cmd: "true".into(), ..request() };
        let error = lab.exec_with(&session.id, other).await.unwrap_err();
        assert!(matches!(error, Error::IdempotencyMismatch(_)), "{error}");
        assert_eq!(lab.output(&session.id, "echo $n").await, "1\n");
        let status = lab.engine.exec_status(&session.id, &answer.end.exec_id).await.unwrap();
        assert_eq!((status.status, status.exit_code), (RunStatus::Finished, Some(0)));
        assert_eq!(status.output, answer.output);
        assert_eq!((status.cmd.as_str(), status.cmd_bytes), ("echo $((n += 1))", 16));
        assert_eq!(lab.engine.list_execs(&session.id).await.unwrap().len(), 2);
        lab
    });
}

#[test]
fn callers_of_one_command_share_it() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = || ExecRequest {
            cmd: "echo one; while ! test -e /tmp/go; do sleep 0.02; done; echo $((n += 1))".into(),
            exec_id: Some("shared".into()),
            ..ExecRequest::default()
        };
        let mut handles = Vec::new();
        for _ in 0..5 {
            handles.push(lab.engine.exec(&session.id, request()).await.unwrap());
        }
        let mut streamed = lab.engine.exec(&session.id, request()).await.unwrap();
        let Some(ExecEvent::Chunk(chunk)) = streamed.next().await else { panic!() };
        assert_eq!((chunk.chunk.as_deref(), chunk.seq), (Some("one\n"), 1));
        // The first one reads as it comes; that it leaves holds nobody up.
        drop(handles.remove(0));
        lab.write(Place::Session(session.id.clone()), "/tmp/go", b"").await.unwrap();
        let mut answers = Vec::new();
        for handle in handles {
            answers.push(handle.finish().await.unwrap());
        }
        assert_eq!(answers[0].output.output.as_deref(), Some("one\n1\n"));
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        assert!(matches!(streamed.next().await, Some(ExecEvent::Chunk(_))));
        let Some(ExecEvent::Done { end, .. }) = streamed.next().await else { panic!() };
        assert_eq!(end, answers[0].end);
        lab
    });
}

#[test]
fn a_detached_command_waits_under_its_id() {
    lab(async |lab| {
        let session = lab.create().await;
        let id = &session.id;
        let request = |cmd: &str, exec: &str| ExecRequest {
            cmd: cmd.into(),
            exec_id: Some(exec.into()),
            detach: Some(true),
            ..ExecRequest::default()
        };
        let cmd = "printf 'a\\303'; sleep 0.1; printf '\\244b'; (sleep 0.3; echo late) & exit 5";
        lab.engine.exec(id, request(cmd, "mine")).await.unwrap().detach();
        let mine = "mine".parse().unwrap();
        let from = |after, follow| EventsFrom { after, follow };
        let (mut first, mut after) = (lab.events(id, &mine, from(0, Follow::Yes)).await, 0);
        let done = first.iter().position(|event| event.contains("Done")).unwrap();
        assert!(first[done].contains("exit_code: 5") && first[done].contains("ShellExited"));
        // What comes late is there for who asks for it.
        while !first.iter().any(|event| event.contains("late")) {
            let seq = lab.last_seq(id, &mine).await;
            first.extend(lab.events(id, &mine, from(seq, Follow::Yes)).await);
        }
        assert_eq!(first.concat().matches("Done").count(), 1);
        assert_eq!(lab.events(id, &mine, from(0, Follow::No)).await, first);
        for event in &first {
            let rest = lab.events(id, &mine, from(after, Follow::No)).await;
            assert_eq!(rest[0], *event);
            after = event
                .split("seq: ")
                .nth(1)
                .unwrap()
                .split(|c: char| !c.is_ascii_digit())
                .next()
                .unwrap()
                .parse()
                .unwrap();
        }
        // One that is ended by its id.
        lab.engine.exec(id, request("sleep 60", "long")).await.unwrap().detach();
        let long = "long".parse().unwrap();
        lab.engine.cancel_exec(id, &long).await.unwrap();
        let status = lab.engine.exec_status(id, &long).await.unwrap();
        assert_eq!(
            (status.exit_code, status.exit_reason),
            (Some(130), Some(ExitReason::Cancelled))
        );
        let error = lab.engine.cancel_exec(id, &"none".parse().unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::ExecNotFound(_)), "{error}");
        lab
    });
}

#[test]
fn a_replay_of_a_flood_has_its_ends() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = ExecRequest {
            cmd: "echo begin; seq 1 5000000; echo end".into(),
            exec_id: Some("flood".into()),
            detach: Some(true),
            ..ExecRequest::default()
        };
        lab.engine.exec(&session.id, request.clone()).await.unwrap().detach();
        let same = ExecRequest { detach: None, max_output_bytes: Some(2000), ..request };
        let answer = lab.exec_with(&session.id, same).await.unwrap();
        let output = answer.output.output.unwrap();
        assert!(output.starts_with("begin\n1\n2\n") && output.ends_with("\n5000000\nend\n"));
        assert!(answer.end.truncated && output.len() <= 2000);
        let bytes = answer.end.output_bytes - output.len() as u64;
        let said: u64 = output
            .split(" bytes left")
            .next()
            .unwrap()
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(said.abs_diff(bytes) < 100, "{said} {bytes}");
        let flood = "flood".parse().unwrap();
        let from = EventsFrom::default();
        let (one, two) = (
            lab.events(&session.id, &flood, from).await,
            lab.events(&session.id, &flood, from).await,
        );
        assert_eq!(one.iter().filter(|event| event.starts_with("Gap")).count(), 1);
        assert!(one == two);
        lab
    });
}

#[test]
fn a_command_reads_what_it_is_given() {
    lab(async |lab| {
        let session = lab.create().await;
        let exec = async |cmd: &str, stdin: String| {
            let request =
                ExecRequest { cmd: cmd.into(), stdin: Some(stdin), ..ExecRequest::default() };
            lab.exec_with(&session.id, request).await.unwrap().output.output.unwrap()
        };
        let text = exec("read a; echo [$a]; cat; echo $?", "one two\nä\n".into()).await;
        assert_eq!(text, "[one two]\nä\n0\n");
        assert_eq!(exec("wc -c", "x".repeat(20_000_000)).await.trim(), "20000000");
        // Who does not read it is not held up, and the next command has its own.
        assert_eq!(exec("head -c 3", "abc".repeat(1_000_000)).await, "abc");
        assert_eq!(exec("true", "x".repeat(1_000_000)).await, "");
        assert_eq!(lab.output(&session.id, "cat; echo end").await, "end\n");
        lab
    });
}

#[test]
fn streams_are_told_apart_and_bytes_are_exact() {
    lab(async |lab| {
        let session = lab.create().await;
        let cmd =
            "printf 'o\\r\\n\\377'; sleep 0.05; printf '\\033[1me\\n' >&2; sleep 0.05; echo p";
        let request =
            || ExecRequest { cmd: cmd.into(), split: Some(true), ..ExecRequest::default() };
        let output = lab.exec_with(&session.id, request()).await.unwrap().output;
        assert_eq!(output.stdout.as_deref(), Some("o\n\u{FFFD}p\n"));
        assert_eq!(output.stderr.as_deref(), Some("e\n"));
        assert_eq!(output.output.as_deref(), Some("o\n\u{FFFD}e\np\n"));
        let exact = ExecRequest { encoding: Some("base64".into()), ..request() };
        let output = lab.exec_with(&session.id, exact).await.unwrap().output;
        assert_eq!(output.stdout_base64.unwrap().0, b"o\r\n\xFFp\n");
        assert_eq!(output.stderr_base64.unwrap().0, b"\x1b[1me\n");
        assert_eq!((output.output, output.stdout), (None, None));
        lab
    });
}

#[test]
fn one_command_may_be_roots() {
    lab(async |lab| {
        let session = lab.create().await;
        lab.output(&session.id, "cd /tmp; export A=exported; b=plain").await;
        let request = ExecRequest {
            cmd: "id -u; pwd; echo $A $b $HOME; cd /; A=changed".into(),
            user: Some("root".into()),
            ..ExecRequest::default()
        };
        let answer = lab.exec_with(&session.id, request).await.unwrap();
        assert_eq!(answer.output.output.unwrap(), "0\n/tmp\nexported /root\n");
        let text = lab.output(&session.id, "id -u; pwd; echo $A $b").await;
        assert_eq!(text, "1000\n/tmp\nexported plain\n");
        lab
    });
}

#[test]
fn a_shell_is_restarted_with_or_without_its_state() {
    lab(async |lab| {
        let session = lab.create().await;
        lab.output(&session.id, "cd /tmp; x=1").await;
        let keep = RestartShell::default();
        assert_eq!(lab.engine.restart_shell(&session.id, keep).await.unwrap().cwd, "/tmp");
        assert_eq!(lab.output(&session.id, "pwd; echo $x").await, "/tmp\n1\n");
        let fresh = RestartShell { keep_state: Some(false) };
        lab.engine.restart_shell(&session.id, fresh).await.unwrap();
        assert_eq!(lab.output(&session.id, "echo \"[$x]\"").await, "[]\n");
        lab
    });
}

#[test]
fn fields_of_a_command_reach_its_shell() {
    lab(async |lab| {
        let session = lab.create().await;
        let request = ExecRequest {
            cmd: "echo $A; pwd; test -t 1 && echo tty".into(),
            env: Some([("A".to_owned(), "a'b".to_owned())].into()),
            cwd: Some("/tmp".into()),
            raw_output: Some(true),
            ..ExecRequest::default()
        };
        let answer = lab.exec_with(&session.id, request).await.unwrap();
        assert_eq!(answer.output.output.unwrap(), "a'b\r\n/tmp\r\ntty\r\n");
        let request = ExecRequest {
            cmd: "echo never".into(),
            cwd: Some("/nowhere".into()),
            ..ExecRequest::default()
        };
        let error = lab.exec_with(&session.id, request).await.unwrap_err();
        assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
        assert_eq!(lab.output(&session.id, "echo \"[$A]\"; pwd").await, "[]\n/tmp\n");
        lab
    });
}

#[test]
fn commands_run_in_the_order_of_their_arrival() {
    lab(async |lab| {
        let session = lab.create().await;
        let mut handles = Vec::new();
        for n in 0..8 {
            let cmd = format!("echo B{n}; export T={n}; sleep 0.02; echo E{n} $T; (exit {n})");
            let request = ExecRequest { cmd, ..ExecRequest::default() };
            handles.push(lab.engine.exec(&session.id, request).await.unwrap());
        }
        for (n, handle) in handles.into_iter().enumerate() {
            let answer = handle.finish().await.unwrap();
            assert_eq!(answer.output.output.unwrap(), format!("B{n}\nE{n} {n}\n"));
            assert_eq!(answer.end.exit_code, i32::try_from(n).unwrap());
        }
        lab
    });
}

#[test]
fn files_go_in_and_out_while_a_command_runs() {
    lab(async |lab| {
        let session = lab.create().await;
        let place = || Place::Session(session.id.clone());
        let request = ExecRequest { cmd: "sleep 60".into(), ..ExecRequest::default() };
        let running = lab.engine.exec(&session.id, request).await.unwrap();
        let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
        assert_eq!(lab.write(place(), "a/b.bin", &bytes).await.unwrap(), "/workspace/a/b.bin");
        assert_eq!(lab.read(place(), "/workspace/a/b.bin").await.unwrap(), bytes);
        let error = lab.read(place(), "a").await.unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error}");
        drop(running);
        let text =
            lab.output(&session.id, "stat -c '%u %a' a; stat -c '%u %a %s' a/b.bin; ls -A a").await;
        assert_eq!(text, "1000 755\n1000 644 300000\nb.bin\n");
        lab
    });
}

#[test]
fn a_workspace_outlives_its_sessions() {
    lab(async |lab| {
        let request =
            || CreateSession { workspace_id: Some("ws-1".into()), ..CreateSession::default() };
        let session = lab.create_with(request()).await.unwrap();
        lab.output(&session.id, "echo kept > f; mkdir d").await;
        let id = "ws-1".parse().unwrap();
        let error = lab.engine.delete_workspace(&id).await.unwrap_err();
        assert!(matches!(error, Error::WorkspaceInUse(_)), "{error}");
        lab.engine.delete_session(&session.id).await.unwrap();
        assert_eq!(lab.read(Place::Workspace(id.clone()), "f").await.unwrap(), b"kept\n");
        lab.write(Place::Workspace(id.clone()), "d/g", b"more").await.unwrap();
        let session = lab.create_with(request()).await.unwrap();
        let text = lab.output(&session.id, "cat f d/g; stat -c %u d/g; echo >> d/g").await;
        assert_eq!(text, "kept\nmore1000\n");
        let [listed] = &lab.engine.workspaces().await.unwrap()[..] else { panic!() };
        assert_eq!((listed.session_count, listed.active_session_count), (2, 1));
        let names = lab.engine.list_workspace_dir(&id, b"", FileUser::Session).await.unwrap();
        assert_eq!(names.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["d", "f"]);
        lab.engine.delete_session(&session.id).await.unwrap();
        lab.engine.delete_workspace(&id).await.unwrap();
        let error = lab.engine.delete_workspace(&id).await.unwrap_err();
        assert!(matches!(error, Error::WorkspaceNotFound(_)), "{error}");
        lab
    });
}
