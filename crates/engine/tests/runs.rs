//! Runs as the engine keeps account of them, against an init that does what a test says. Needs root.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use sandkasten_engine::{
    Error, EventsFrom, ExecEvent, Follow, Form, Last, ProcessEvent, ProcessEvents,
};
use sandkasten_protocol::{
    FromInit, How, Item, Known, Part, Reader, RunUser, SignalTo, Spool, Stdin, Stream, Task, Then,
    ToInit, Wait,
};
use sandkasten_types::exec::{ExecRequest, ExecStatus, ExitReason, RestartShell, RunStatus};
use sandkasten_types::process::{ProcessStdin, SignalName, SignalProcess, StartProcess, Tty};
use sandkasten_types::session::Status;
use support::fake::{Fake, begun, end, record, record_of, with_fake, with_fakes};

fn request(cmd: &str, id: Option<&str>) -> ExecRequest {
    let exec_id = id.map(str::to_owned);
    ExecRequest { cmd: cmd.into(), exec_id, ..ExecRequest::default() }
}

/// Answers the next frame, which must be a question, with that part.
async fn replay(fake: &mut Fake, want: (u64, u64, Wait), items: Vec<Item>, then: Then) {
    let frame = fake.next().await;
    let ToInit::Replay(asked) = frame else { panic!("{frame:?}") };
    assert_eq!((asked.run, asked.after, asked.wait), want);
    let part = Some(Part { items, then });
    fake.send(&FromInit::Replayed { tag: asked.tag, part }).await;
}

fn text(event: &ExecEvent) -> (u64, String) {
    match event {
        ExecEvent::Chunk(chunk) => (chunk.seq, chunk.chunk.clone().unwrap()),
        ExecEvent::Gap(gap) => (gap.seq, format!("gap {} {}", gap.bytes, gap.from_seq)),
        ExecEvent::Done { seq, end } => (*seq, format!("done {}", end.exit_code)),
        ExecEvent::Failed { seq, error } => (*seq, format!("failed {error}")),
    }
}

#[test]
fn a_command_is_begun_settled_and_answered() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let handle = lab.engine.exec(&id, request("true", None)).await.unwrap();
        let (run, task) = fake.begin().await;
        assert_eq!((run.id, run.reader, run.stdin), (1, Reader::Paced, Stdin::Empty));
        assert!(run.note.len() < 300, "{}", run.note.len());
        let Task::Command { cmd, user: RunUser::Session, .. } = task else { panic!("{task:?}") };
        assert_eq!(cmd, b"true");
        let records = vec![record(1, b"a\r\n"), record(2, b"b")];
        fake.send(&FromInit::Output { run: 1, records }).await;
        fake.end(1, end(4, How::Exited, 3)).await;
        let answer = handle.finish().await.unwrap();
        assert_eq!(answer.output.output.as_deref(), Some("a\nb"));
        assert_eq!((answer.end.exit_code, answer.end.exit_reason), (3, ExitReason::Exited));
        fake.is_left_alone().await;
        lab
    });
}

#[test]
fn a_stream_has_the_numbers_of_its_records() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let mut handle = lab.engine.exec(&id, request("x", None)).await.unwrap();
        fake.begin().await;
        let records = vec![record(1, b"\xE2"), record(2, b"\x82\xACx\r")];
        fake.send(&FromInit::Output { run: 1, records }).await;
        fake.end(1, end(5, How::Exited, 0)).await;
        let mut events = Vec::new();
        while let Some(event) = handle.next().await {
            events.push(text(&event));
        }
        let want = [(2, "€x"), (3, "\r"), (5, "done 0")];
        assert_eq!(events, want.map(|(seq, text)| (seq, text.to_owned())));
        lab
    });
}

#[test]
fn the_same_command_under_one_id_runs_once() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let first = lab.engine.exec(&id, request("make", Some("mine"))).await.unwrap();
        fake.begin().await;
        let second = lab.engine.exec(&id, request("make", Some("mine"))).await.unwrap();
        let error = lab.engine.exec(&id, request("take", Some("mine"))).await.unwrap_err();
        assert!(matches!(error, Error::IdempotencyMismatch(_)), "{error}");
        fake.send(&FromInit::Output { run: 1, records: vec![record(1, b"out\n")] }).await;
        fake.end(1, end(3, How::Exited, 5)).await;
        let answer = first.finish().await.unwrap();
        let read = async {
            let items = vec![Item::Record(record(1, b"out\n")), Item::End { seq: 3 }];
            replay(&mut fake, (1, 0, Wait::Yes), items, Then::Over).await;
        };
        let (same, ()) = tokio::join!(second.finish(), read);
        assert_eq!(same.unwrap(), answer);
        // And once more, when it is over.
        let third = lab.engine.exec(&id, request("make", Some("mine"))).await.unwrap();
        let read = async {
            let items = vec![Item::Record(record(1, b"out\n")), Item::End { seq: 3 }];
            replay(&mut fake, (1, 0, Wait::Yes), items, Then::Over).await;
        };
        let (same, ()) = tokio::join!(third.finish(), read);
        assert_eq!(same.unwrap(), answer);
        // Forgotten, it is another command.
        fake.send(&FromInit::Forgotten { run: 1 }).await;
        while !lab.engine.list_execs(&id).await.unwrap().is_empty() {}
        drop(lab.engine.exec(&id, request("take", Some("mine"))).await.unwrap());
        assert_eq!(fake.begin().await.0.id, 2);
        lab
    });
}

#[test]
fn the_last_caller_that_leaves_takes_the_command_with_it() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let first = lab.engine.exec(&id, request("make", Some("mine"))).await.unwrap();
        fake.begin().await;
        let second = lab.engine.exec(&id, request("make", Some("mine"))).await.unwrap();
        drop(first);
        assert_eq!(fake.next().await, ToInit::Unpace { run: 1 });
        drop(second);
        assert_eq!(fake.next().await, ToInit::Cancel { run: 1 });
        fake.end(1, end(2, How::Cancelled, 130)).await;
        lab
    });
}

#[test]
fn what_is_kept_goes_on_without_its_caller() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let keep =
            ExecRequest { on_disconnect: Some("keep".into()), ..request("make", Some("mine")) };
        drop(lab.engine.exec(&id, keep).await.unwrap());
        fake.begin().await;
        assert_eq!(fake.next().await, ToInit::Unpace { run: 1 });
        fake.end(1, end(2, How::Exited, 0)).await;
        let detached = ExecRequest { detach: Some(true), ..request("make", None) };
        let handle = lab.engine.exec(&id, detached).await.unwrap();
        let exec = handle.id().clone();
        handle.detach();
        let (run, _) = fake.begin().await;
        assert_eq!(run.reader, Reader::None);
        let cancelled = lab.engine.cancel_exec(&id, &exec);
        let end = async {
            assert_eq!(fake.next().await, ToInit::Cancel { run: 2 });
            fake.end(2, end(2, How::Cancelled, 130)).await;
        };
        let (cancelled, ()) = tokio::join!(cancelled, end);
        cancelled.unwrap();
        lab.engine.cancel_exec(&id, &exec).await.unwrap();
        fake.is_left_alone().await;
        let list = lab.engine.list_execs(&id).await.unwrap();
        let ended: Vec<_> = list.iter().map(|(_, one)| (one.status, one.exit_reason)).collect();
        let want = [ExitReason::Exited, ExitReason::Cancelled];
        assert_eq!(ended, want.map(|reason| (RunStatus::Finished, Some(reason))));
        lab
    });
}

#[test]
fn commands_wait_for_their_turn_in_init() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let first = lab.engine.exec(&id, request("one", None)).await.unwrap();
        let second = lab.engine.exec(&id, request("two", Some("two"))).await.unwrap();
        assert_eq!((fake.begin().await.0.id, fake.begin().await.0.id), (1, 2));
        let counts = lab.engine.counts();
        assert_eq!((counts.execs_running, counts.execs_queued), (1, 1));
        fake.end(1, end(2, How::Exited, 0)).await;
        first.finish().await.unwrap();
        let two = "two".parse().unwrap();
        let status = lab.engine.exec_status(&id, &two).await.unwrap();
        assert_eq!((status.status, status.started_at), (RunStatus::Queued, None));
        fake.send(&FromInit::Begun { run: 2, begun: begun(None) }).await;
        fake.end(2, end(2, How::Exited, 0)).await;
        second.finish().await.unwrap();
        let mut handles = Vec::new();
        for _ in 0..=256 {
            handles.push(lab.engine.exec(&id, request("x", None)).await.unwrap());
        }
        let error = lab.engine.exec(&id, request("x", None)).await.unwrap_err();
        assert!(matches!(error, Error::Overloaded(_)), "{error}");
        lab
    });
}

#[test]
fn a_replay_shows_gaps_and_goes_on() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let detached = ExecRequest { detach: Some(true), ..request("make", Some("mine")) };
        lab.engine.exec(&id, detached).await.unwrap().detach();
        fake.begin().await;
        let mine = "mine".parse().unwrap();
        let from = EventsFrom { after: 1, follow: Follow::Yes };
        let mut events = lab.engine.exec_events(&id, &mine, from).await.unwrap();
        let read = async {
            let mut seen = Vec::new();
            while let Some(event) = events.next().await {
                seen.push(text(&event));
            }
            seen
        };
        let act = async {
            let items = vec![Item::Record(record(1, b"one\xC3"))];
            replay(&mut fake, (1, 0, Wait::Yes), items, Then::Quiet).await;
            let items = vec![
                Item::Record(record(2, b"\xA4\xC3")),
                Item::Gap { bytes: 9, from_seq: 3, to_seq: 5 },
                Item::Record(record(6, b"\xA4six")),
            ];
            replay(&mut fake, (1, 1, Wait::Yes), items, Then::More).await;
            replay(&mut fake, (1, 6, Wait::No), Vec::new(), Then::Quiet).await;
            let ToInit::Replay(asked) = fake.next().await else { panic!() };
            assert_eq!((asked.after, asked.wait), (6, Wait::Yes));
            let items = vec![Item::End { seq: 8 }, Item::Record(record(9, b"late"))];
            let part = Some(Part { items, then: Then::Quiet });
            // The end is told once it is known, in whatever order.
            fake.send(&FromInit::Replayed { tag: asked.tag, part }).await;
            fake.end(1, end(8, How::Exited, 0)).await;
            fake.is_left_alone().await;
        };
        let (seen, ()) = tokio::join!(read, act);
        let want = [(2, "ä\u{FFFD}"), (5, "gap 9 3"), (6, "six"), (8, "done 0"), (9, "late")];
        assert_eq!(seen, want.map(|(seq, text)| (seq, text.to_owned())));
        lab
    });
}

#[test]
fn a_reader_that_leaves_is_not_waited_for() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let detached = ExecRequest { detach: Some(true), ..request("make", Some("mine")) };
        lab.engine.exec(&id, detached).await.unwrap().detach();
        fake.begin().await;
        let from = EventsFrom { after: 0, follow: Follow::Yes };
        let mut events = lab.engine.exec_events(&id, &"mine".parse().unwrap(), from).await.unwrap();
        let next = tokio::spawn(async move { events.next().await.map(|event| text(&event)) });
        let ToInit::Replay(asked) = fake.next().await else { panic!() };
        next.abort();
        assert_eq!(fake.next().await, ToInit::Unwait { tag: asked.tag });
        let part = Some(Part { items: Vec::new(), then: Then::Quiet });
        fake.send(&FromInit::Replayed { tag: asked.tag, part }).await;
        assert!(lab.engine.list_execs(&id).await.is_ok());
        lab
    });
}

#[test]
fn fields_of_a_command_reach_init() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let all = ExecRequest {
            stdin: Some("aGVsbG8=".into()),
            encoding: Some("base64".into()),
            split: Some(true),
            user: Some("root".into()),
            max_output_bytes: Some(64 << 20),
            ..request("x", None)
        };
        let handle = lab.engine.exec(&id, all).await.unwrap();
        let (run, task) = fake.begin().await;
        assert_eq!((run.stdin, run.spool), (Stdin::Piped, Spool::Together { bytes: 64 << 20 }));
        let Task::Command { user: RunUser::Root, .. } = task else { panic!("{task:?}") };
        let stdin = ToInit::Stdin { run: 1, data: b"hello".to_vec(), is_last: true };
        assert_eq!(fake.next().await, stdin);
        fake.send(&FromInit::Taken { run: 1, bytes: 5 }).await;
        let records =
            vec![record_of(1, Stream::Stdout, b"\xFF\r\n"), record_of(2, Stream::Stderr, b"e")];
        fake.send(&FromInit::Output { run: 1, records }).await;
        fake.end(1, end(4, How::Exited, 0)).await;
        let output = handle.finish().await.unwrap().output;
        let bytes = |field: Option<sandkasten_types::Base64>| field.unwrap().0;
        assert_eq!(bytes(output.output_base64), b"\xFF\r\ne");
        assert_eq!(bytes(output.stdout_base64), b"\xFF\r\n");
        assert_eq!(bytes(output.stderr_base64), b"e");
        assert_eq!(output.output, None);
        lab
    });
}

#[test]
fn stdin_of_any_length_goes_as_init_takes_it() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let stdin = Some("x".repeat(70 << 20));
        let handle = lab.engine.exec(&id, ExecRequest { stdin, ..request("x", None) }).await;
        fake.begin().await;
        let (mut sent, mut taken) = (0, 0);
        loop {
            let frame = fake.next().await;
            let ToInit::Stdin { run: 1, data, is_last } = frame else { panic!("{frame:?}") };
            assert!(data.len() <= 64 << 10);
            sent += data.len();
            assert!(sent - taken <= 64 << 20);
            if is_last {
                break;
            }
            if sent == 64 << 20 {
                fake.is_left_alone().await;
                taken = 10 << 20;
                fake.send(&FromInit::Taken { run: 1, bytes: taken as u64 }).await;
            }
        }
        assert_eq!(sent, 70 << 20);
        fake.end(1, end(2, How::Exited, 0)).await;
        handle.unwrap().finish().await.unwrap();
        lab
    });
}

#[test]
fn a_later_engine_knows_what_ran_and_says_the_same() {
    let (kept, verdict) = (std::cell::RefCell::new(None), std::cell::RefCell::new(None));
    let before: std::cell::RefCell<Vec<(u64, ExecStatus)>> = std::cell::RefCell::default();
    with_fakes(
        |place| {
            let (kept, verdict, before) = (&kept, &verdict, &before);
            async move {
                let (lab, mut fake) = place.start(Vec::new()).await;
                let id = lab.engine.sessions().await.unwrap()[0].id.clone();
                let request = request("make it", Some("mine"));
                let handle = lab.engine.exec(&id, request.clone()).await.unwrap();
                let (run, _) = fake.begin().await;
                let second = lab.engine.exec(&id, self::request("sleep", Some("2"))).await.unwrap();
                let (other, _) = fake.begin().await;
                let end = end(3, How::Exited, 4);
                fake.send(&FromInit::End { run: 1, end: end.clone() }).await;
                let ToInit::Settle { note, .. } = fake.next().await else { panic!() };
                handle.finish().await.unwrap();
                before.replace(lab.engine.list_execs(&id).await.unwrap());
                *kept.borrow_mut() = Some((run.note, other.note, end));
                *verdict.borrow_mut() = Some(note);
                lab.engine.stop().await;
                drop(second);
                let (first, second, end) = kept.borrow_mut().take().unwrap();
                let one = |run, note, end: Option<_>, settled| Known {
                    run,
                    note,
                    begun: end.is_some().then(|| begun(None)),
                    end,
                    settled,
                };
                let known = vec![
                    one(1, first, Some(end), verdict.borrow_mut().take()),
                    one(2, second, None, None),
                ];
                place.start(known).await
            }
        },
        async |lab, id, mut fake| {
            assert_eq!(lab.engine.list_execs(&id).await.unwrap(), before.take());
            assert_eq!(lab.engine.counts().execs_queued, 1);
            // It ended while no engine was there to say how; this one does.
            fake.send(&FromInit::Begun { run: 2, begun: begun(None) }).await;
            fake.end(2, end(2, How::Exited, 0)).await;
            let joined = lab.engine.exec(&id, request("make it", Some("mine"))).await.unwrap();
            let read = async {
                let items = vec![Item::Record(record(1, b"out\n")), Item::End { seq: 3 }];
                replay(&mut fake, (1, 0, Wait::Yes), items, Then::Over).await;
            };
            let (answer, ()) = tokio::join!(joined.finish(), read);
            let answer = answer.unwrap();
            assert_eq!((answer.end.exit_code, answer.output.output.as_deref()), (4, Some("out\n")));
            let next = lab.engine.exec(&id, request("next", None)).await.unwrap();
            assert_eq!(fake.begin().await.0.id, 3);
            drop(next);
            lab
        },
    );
}

#[test]
fn a_shell_is_restarted_in_its_turn() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let request = RestartShell { keep_state: Some(false) };
        let act = async {
            let (run, task) = fake.begin().await;
            assert_eq!((run.id, task), (1, Task::Restart { keep_state: false }));
            fake.end(1, end(2, How::Exited, 0)).await;
        };
        let (done, ()) = tokio::join!(lab.engine.restart_shell(&id, request), act);
        assert_eq!(done.unwrap().cwd, "/tmp");
        assert!(lab.engine.list_execs(&id).await.unwrap().is_empty());
        lab
    });
}

fn program(argv: &[&str]) -> StartProcess {
    let argv = Some(argv.iter().map(|&arg| arg.to_owned()).collect());
    StartProcess { argv, ..StartProcess::default() }
}

async fn all(events: &mut ProcessEvents) -> Vec<(u64, String)> {
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(match event {
            ProcessEvent::Output(written) => {
                (written.seq, String::from_utf8(written.data.as_bytes().to_vec()).unwrap())
            }
            ProcessEvent::Gap(gap) => (gap.seq, "gap".into()),
            ProcessEvent::Exit { seq, end } => (seq, format!("exit {}", end.exit_code)),
            ProcessEvent::Failed { seq, error } => (seq, format!("failed {error}")),
        });
    }
    seen
}

#[test]
fn a_process_is_started_written_to_and_killed() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let open = StartProcess {
            stdin: Some(ProcessStdin::Mode("open".into())),
            tty: Some(Tty { rows: 24, cols: 80 }),
            ..program(&["cat"])
        };
        let act = async {
            let (run, task) = fake.begin().await;
            assert_eq!((run.id, run.reader, run.stdin), (1, Reader::None, Stdin::Piped));
            let Task::Program { argv, tty: Some(_), .. } = task else { panic!("{task:?}") };
            assert_eq!(argv, [b"cat"]);
            fake.send(&FromInit::Begun { run: 1, begun: begun(Some(42)) }).await;
        };
        let (handle, ()) = tokio::join!(lab.engine.start_process(&id, open), act);
        let handle = handle.unwrap();
        let process = handle.started().process_id.clone();
        assert_eq!(handle.started().pid, 42);
        drop(handle);
        lab.engine.process_stdin(&id, &process, "hi".into(), Last::Yes).await.unwrap();
        let stdin = ToInit::Stdin { run: 1, data: b"hi".to_vec(), is_last: true };
        assert_eq!(fake.next().await, stdin);
        let error =
            lab.engine.process_stdin(&id, &process, "more".into(), Last::No).await.unwrap_err();
        assert!(matches!(error, Error::Conflict(_)), "{error}");
        let term = SignalProcess { signal: SignalName::Name("TERM".into()), group: None };
        lab.engine.signal_process(&id, &process, &term).await.unwrap();
        assert_eq!(fake.next().await, ToInit::Signal { run: 1, signal: 15, to: SignalTo::Process });
        let size = Tty { rows: 1, cols: 2 };
        lab.engine.resize_process(&id, &process, size).await.unwrap();
        assert!(matches!(fake.next().await, ToInit::Resize { run: 1, .. }));
        let end = async {
            assert_eq!(fake.next().await, ToInit::Cancel { run: 1 });
            fake.end(1, end(3, How::Cancelled, 137)).await;
            replay(&mut fake, (1, u64::MAX, Wait::No), Vec::new(), Then::Quiet).await;
        };
        let (killed, ()) = tokio::join!(lab.engine.kill_process(&id, &process), end);
        killed.unwrap();
        // Its children too, once it has ended.
        let end = async {
            assert_eq!(fake.next().await, ToInit::Cancel { run: 1 });
            replay(&mut fake, (1, u64::MAX, Wait::No), Vec::new(), Then::Quiet).await;
        };
        let (killed, ()) = tokio::join!(lab.engine.kill_process(&id, &process), end);
        killed.unwrap();
        let status = lab.engine.process(&id, &process).await.unwrap();
        assert_eq!((status.status, status.pid), (RunStatus::Finished, Some(42)));
        assert_eq!(status.end.unwrap().exit_reason, ExitReason::Cancelled);
        // What has ended takes nothing, and that is known.
        lab.engine.signal_process(&id, &process, &term).await.unwrap();
        fake.is_left_alone().await;
        let from = EventsFrom { after: 1, follow: Follow::Yes };
        let mut events =
            lab.engine.process_events(&id, &process, from, Form::AsAsked).await.unwrap();
        let read = async {
            let items = vec![Item::End { seq: 3 }];
            replay(&mut fake, (1, 1, Wait::Yes), items, Then::Over).await;
        };
        let (seen, ()) = tokio::join!(all(&mut events), read);
        assert_eq!(seen, [(3, "exit 137".to_owned())]);
        lab
    });
}

#[test]
fn a_process_that_is_waited_for_gives_its_streams_in_pieces() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        let waited = StartProcess { wait: Some(true), ..program(&["x"]) };
        let act = async {
            let (run, _) = fake.begin().await;
            assert_eq!(run.spool, Spool::EachStream { bytes: 64 << 20 });
            fake.send(&FromInit::Begun { run: 1, begun: begun(Some(7)) }).await;
        };
        let (handle, ()) = tokio::join!(lab.engine.start_process(&id, waited.clone()), act);
        let end = async {
            let mut end = end(9, How::Signaled(9), 137);
            end.dropped_bytes = 5;
            fake.end(1, end).await;
        };
        let (result, ()) = tokio::join!(handle.unwrap().wait(), end);
        let mut result = result.unwrap();
        assert!(result.end.truncated);
        assert_eq!((result.end.signal, result.end.exit_reason), (Some(9), ExitReason::Signaled));
        let read = async {
            let items = vec![
                Item::Record(record_of(1, Stream::Stdout, b"a")),
                Item::Gap { bytes: 5, from_seq: 2, to_seq: 6 },
                Item::Record(record_of(7, Stream::Stdout, b"b")),
                Item::End { seq: 9 },
            ];
            replay(&mut fake, (1, 0, Wait::No), items, Then::Quiet).await;
        };
        let pieces = async {
            let mut pieces = Vec::new();
            while let Some(piece) = result.stdout.next().await.unwrap() {
                pieces.push(piece);
            }
            pieces
        };
        let (pieces, ()) = tokio::join!(pieces, read);
        assert_eq!(pieces, ["a", "b"]);
        drop(result);
        // Who leaves takes it with it.
        let act = async {
            fake.begin().await;
            fake.send(&FromInit::Begun { run: 2, begun: begun(Some(8)) }).await;
        };
        let (handle, ()) = tokio::join!(lab.engine.start_process(&id, waited), act);
        drop(handle);
        assert_eq!(fake.next().await, ToInit::Cancel { run: 2 });
        lab
    });
}

#[test]
fn a_program_that_cannot_be_started_says_why() {
    with_fake(Vec::new(), async |lab, id, mut fake| {
        for how in [How::UnknownUser, How::BadCwd, How::NotStarted(7)] {
            let act = async {
                let (run, _) = fake.begin().await;
                fake.end(run.id, end(2, how, 0)).await;
            };
            let (handle, ()) = tokio::join!(lab.engine.start_process(&id, program(&["x"])), act);
            let error = handle.unwrap_err();
            assert!(matches!(error, Error::InvalidRequest(_)), "{error}");
        }
        lab
    });
}

/// What init must not say, each at a time when run 1 is a command that runs, paced, and run 2 a
/// detached one that waits.
fn lies() -> Vec<(&'static str, Vec<FromInit>)> {
    let output = |run, records| FromInit::Output { run, records };
    let replayed = |tag| FromInit::Replayed { tag, part: None };
    let one_end = |run, seq| FromInit::End { run, end: end(seq, How::Exited, 0) };
    let known = Known { run: 9, note: Vec::new(), begun: None, end: None, settled: None };
    let flood = |from: u64| {
        let records = (from..from + 12).map(|seq| record(seq, &[b'x'; 5000])).collect();
        output(1, records)
    };
    vec![
        ("output of an unknown run", vec![output(77, vec![record(1, b"x")])]),
        ("output of nobody's", vec![output(2, vec![record(1, b"x")])]),
        ("no output", vec![output(1, Vec::new())]),
        ("an empty record", vec![output(1, vec![record(1, b"")])]),
        ("a long record", vec![output(1, vec![record(1, &[b'x'; 5377])])]),
        ("seq 0", vec![output(1, vec![record(0, b"x")])]),
        ("seqs that fall", vec![output(1, vec![record(5, b"x"), record(4, b"x")])]),
        ("another stream", vec![output(1, vec![record_of(1, Stream::Stderr, b"x")])]),
        ("over the window", (0..30).map(|n| flood(1 + n * 12)).collect()),
        ("an unknown end", vec![one_end(77, 2)]),
        ("two ends", vec![one_end(1, 2), one_end(1, 3)]),
        ("an end before output", vec![output(1, vec![record(9, b"x")]), one_end(1, 9)]),
        ("output behind the end", vec![one_end(1, 2), output(1, vec![record(3, b"x")])]),
        ("an unknown begin", vec![FromInit::Begun { run: 77, begun: begun(None) }]),
        ("an unknown answer", vec![replayed(3)]),
        ("a known run behind the hello", vec![FromInit::Known(known)]),
        ("forgetting what runs", vec![FromInit::Forgotten { run: 1 }]),
        (
            "forgetting twice",
            vec![one_end(1, 2), FromInit::Forgotten { run: 1 }, FromInit::Forgotten { run: 1 }],
        ),
    ]
}

#[test]
fn an_init_that_lies_costs_its_session_alone() {
    for (what, frames) in lies() {
        with_fake(Vec::new(), async |lab, id, mut fake| {
            let other = lab.create().await;
            let mut streamed = lab.engine.exec(&id, request("x", None)).await.unwrap();
            let detached = ExecRequest { detach: Some(true), ..request("y", None) };
            lab.engine.exec(&id, detached).await.unwrap().detach();
            fake.begin().await;
            fake.begin().await;
            for frame in &frames {
                // The engine closes the connection at the first lie.
                if fake.try_send(frame).await.is_err() {
                    break;
                }
            }
            while streamed.next().await.is_some() {}
            let mut session = lab.engine.session(&id).await.unwrap();
            while !session.status.is_over() {
                tokio::task::yield_now().await;
                session = lab.engine.session(&id).await.unwrap();
            }
            let found = (session.status, session.exit_reason.as_deref());
            assert_eq!(found, (Status::Crashed, Some("init broke the protocol")), "{what}");
            assert_eq!(lab.output(&other.id, "echo on").await, "on\n", "{what}");
            lab
        });
    }
}

#[test]
fn runs_that_cannot_be_cost_their_session_at_once() {
    let note = || {
        let bytes = std::cell::RefCell::new(Vec::new());
        with_fake(Vec::new(), async |lab, id, mut fake| {
            let handle = lab.engine.exec(&id, request("x", Some("mine"))).await.unwrap();
            bytes.replace(fake.begin().await.0.note);
            drop(handle);
            lab
        });
        bytes.take()
    };
    let note = note();
    let known = |run, note: &[u8]| Known {
        run,
        note: note.to_vec(),
        begun: None,
        end: None,
        settled: None,
    };
    let cases: [(&str, u64, Vec<Known>); 5] = [
        ("a note that is none", 5, vec![known(1, b"")]),
        ("a long note", 5, vec![known(1, &[1; 5000])]),
        ("an id to come", 1, vec![known(1, &note)]),
        ("ids that fall", 5, vec![known(2, &note), known(1, &note)]),
        ("one name twice", 5, vec![known(1, &note), known(2, &note)]),
    ];
    for (what, next_run, known) in cases {
        with_fakes(
            |place| async move {
                let runs = u32::try_from(known.len()).unwrap();
                let (lab, fake) = place.start_with(next_run, runs, known).await;
                (lab, fake.unwrap())
            },
            async |lab, id, _fake| {
                while !lab.engine.session(&id).await.unwrap().status.is_over() {
                    tokio::task::yield_now().await;
                }
                let session = lab.engine.session(&id).await.unwrap();
                assert_eq!(session.status, Status::Crashed, "{what}");
                lab
            },
        );
    }
}
