//! Runs that are kept, queue, are read again, and write on after their end.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail loudly")]

mod boxed;

use std::path::Path;

use boxed::{Exec, Image, Keep, Kind, Sandbox, event, text_of};
use sandkasten_protocol::{
    DATA_BYTES_MAX, FileOp, FromInit, How, Item, KEPT_RUNS_MAX, RECORD_BYTES_MAX, Reader, Record,
    Run, RunUser, SPOOL_BYTES, ShellPreference, Spool, Stdin, Task, Then, ToInit, Wait,
};

fn unread(exec: &mut Exec) {
    exec.reader = Reader::None;
}

/// Nothing was said so far: the answer to a file operation is the next frame.
#[track_caller]
fn is_silent(sandbox: &mut Sandbox) {
    assert!(sandbox.file(FileOp::Abort { token: 1 }).0.is_err());
}

#[track_caller]
fn end_of(sandbox: &mut Sandbox, run: u64) -> sandkasten_protocol::End {
    match sandbox.next() {
        FromInit::End { run: ended, end } => {
            assert_eq!(ended, run);
            end
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn is_begun(sandbox: &mut Sandbox, run: u64) {
    match sandbox.next() {
        FromInit::Begun { run: begun, begun: of } => assert_eq!((begun, of.pid), (run, None)),
        other => panic!("{other:?}"),
    }
}

fn settle(sandbox: &mut Sandbox, run: u64, note: &[u8]) {
    sandbox.link.send(&ToInit::Settle { run, note: note.to_vec() });
}

fn wait_for(path: &Path) {
    while std::fs::metadata(path).is_err() {
        std::thread::yield_now();
    }
}

fn records(items: &[Item]) -> Vec<Record> {
    let record = |item: &Item| match item {
        Item::Record(record) => Some(record.clone()),
        Item::Gap { .. } | Item::End { .. } => None,
    };
    items.iter().filter_map(record).collect()
}

#[test]
fn a_replay_is_what_was_sent_for_every_engine() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let cmd = "for i in 1 2 3 4 5; do echo $i; sleep 0.02; done; seq 20000; exit 3";
    let run = sandbox.begin(cmd, |exec| exec.note = b"a note".to_vec());
    let mut sent: Vec<Record> = Vec::new();
    let end = loop {
        match sandbox.next() {
            FromInit::Output { records, .. } => sent.extend(records),
            FromInit::End { end, .. } => break end,
            other => panic!("{other:?}"),
        }
    };
    settle(sandbox, run, b"the end");
    let numbers: Vec<u64> = sent.iter().map(|record| record.seq).collect();
    assert_eq!(numbers, (1..=sent.len() as u64).collect::<Vec<_>>());
    assert_eq!((end.exit_code, end.seq), (3, sent.len() as u64 + 3));
    let (items, then) = sandbox.replay(run, 0);
    assert!(records(&items) == sent);
    assert_eq!((items.last(), then), (Some(&Item::End { seq: end.seq }), Then::Over));
    for _ in 0..3 {
        sandbox.reattach();
        let known = sandbox.known.pop().unwrap();
        assert_eq!((known.run, known.note), (run, b"a note".to_vec()));
        assert_eq!((known.end.as_ref(), known.settled), (Some(&end), Some(b"the end".to_vec())));
        assert!(known.begun.is_some());
        assert_eq!(sandbox.replay(run, 0), (items.clone(), Then::Over));
        for after in [1, 4, end.seq - 2, end.seq - 1, end.seq, 1 << 40] {
            let rest: Vec<_> = items.iter().filter(|i| event(i) > after).cloned().collect();
            assert_eq!(sandbox.replay(run, after), (rest, Then::Over));
        }
    }
    assert_eq!(sandbox.part(run + 1, 0, Wait::Yes), None);
}

#[test]
fn the_middle_of_much_is_one_gap() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let run = sandbox.begin("seq 5000000", unread);
    let end = end_of(sandbox, run);
    let all: String = (1..=5_000_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(end.output_bytes, all.len() as u64);
    let (items, then) = sandbox.replay(run, 0);
    assert_eq!(then, Then::Over);
    let at = items.iter().position(|item| matches!(item, Item::Gap { .. })).unwrap();
    let (head, tail) = (text_of(&items[..at]), text_of(&items[at..]));
    assert!(all.starts_with(&head) && all.ends_with(&tail));
    let most = usize::try_from(SPOOL_BYTES).unwrap();
    let half = most / 2;
    assert!(head.len() <= half && head.len() > half - RECORD_BYTES_MAX);
    assert!(head.len() + tail.len() <= most);
    assert!(tail.len() > half - RECORD_BYTES_MAX);
    let left_out = (all.len() - head.len() - tail.len()) as u64;
    let (before, behind) = (event(&items[at - 1]), event(&items[at + 1]));
    let gap = Item::Gap { bytes: left_out, from_seq: before + 1, to_seq: behind - 1 };
    assert_eq!(items[at], gap);
    assert_eq!(end.dropped_bytes, left_out);
    settle(sandbox, run, b"");
    sandbox.is_alive();
    sandbox.reattach();
    assert_eq!(sandbox.replay(run, 0).0, items);
    assert_eq!(sandbox.replay(run, before).0, items[at..]);
}

#[test]
fn a_spool_of_its_own_size_keeps_all_that_fits() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let run = sandbox.begin("head -c 40000000 /dev/zero | tr '\\0' x", |exec| {
        unread(exec);
        exec.spool = Spool::Together { bytes: 40_000_000 };
    });
    assert_eq!(end_of(sandbox, run).dropped_bytes, 0);
    let (items, _) = sandbox.replay(run, 0);
    assert_eq!(text_of(&items).len(), 40_000_000);
}

#[test]
fn nobody_waits_for_a_reader_that_is_not_there() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let run = sandbox.begin("yes | head -c 100000000; echo END", unread);
    let end = end_of(sandbox, run);
    assert_eq!((end.exit_code, end.output_bytes), (0, 100_000_004));
    settle(sandbox, run, b"");
    // One that has gone.
    let run = sandbox.begin("yes | head -c 20000000; echo END", |_| {});
    match sandbox.next() {
        FromInit::Output { .. } => sandbox.link.send(&ToInit::Unpace { run }),
        other => panic!("{other:?}"),
    }
    let end = loop {
        match sandbox.next() {
            FromInit::Output { .. } => {}
            FromInit::End { end, .. } => break end,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(end.output_bytes, 20_000_004);
    settle(sandbox, run, b"");
    // An engine that has gone.
    let run = sandbox.begin("yes | head -c 20000000; echo END", |_| {});
    sandbox.detach();
    sandbox.reattach();
    let tag = sandbox.ask(run, 1 << 40, Wait::Yes);
    let mut known = sandbox.known.pop().unwrap();
    if known.end.is_none() {
        known.end = Some(end_of(sandbox, run));
    }
    assert_eq!(sandbox.answer_to(tag).unwrap().then, Then::Over);
    let end = known.end.unwrap();
    assert_eq!((end.output_bytes, end.exit_code), (20_000_004, 0));
    settle(sandbox, run, b"");
    let (items, _) = sandbox.replay(run, 0);
    assert!(text_of(&items).ends_with("y\ny\nEND\n"));
}

#[test]
fn two_follow_while_it_runs() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let run = sandbox.begin("for i in 1 2 3 4; do sleep 0.05; echo $i; done", unread);
    let mut seen = [String::new(), String::new()];
    let mut tags: Vec<(u32, usize)> = (0..2).map(|n| (sandbox.ask(run, 0, Wait::Yes), n)).collect();
    let mut is_ended = false;
    while !tags.is_empty() {
        let (tag, part) = match sandbox.next() {
            FromInit::Replayed { tag, part } => (tag, part.unwrap()),
            FromInit::End { .. } => {
                is_ended = true;
                continue;
            }
            other => panic!("{other:?}"),
        };
        let at = tags.iter().position(|(asked, _)| *asked == tag).unwrap();
        let (_, reader) = tags.swap_remove(at);
        seen[reader] += &text_of(&part.items);
        if part.then != Then::Over {
            let after = event(part.items.last().expect("an answer that was waited for"));
            tags.push((sandbox.ask(run, after, Wait::Yes), reader));
        }
    }
    assert!(is_ended);
    assert_eq!(seen, ["1\n2\n3\n4\n"; 2]);
}

#[test]
fn who_waits_can_be_answered_with_nothing() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let run = sandbox.begin("sleep 1000", unread);
    let tag = sandbox.ask(run, 0, Wait::Yes);
    is_silent(sandbox);
    sandbox.link.send(&ToInit::Unwait { tag: tag + 1 });
    sandbox.link.send(&ToInit::Unwait { tag });
    let part = sandbox.answer_to(tag).unwrap();
    assert_eq!((part.items.len(), part.then), (0, Then::Quiet));
    sandbox.link.send(&ToInit::Unwait { tag });
    is_silent(sandbox);
    // Only so many wait.
    let tags: Vec<u32> = (0..257).map(|_| sandbox.ask(run, 0, Wait::Yes)).collect();
    assert_eq!(sandbox.answer_to(tags[256]).unwrap().then, Then::Quiet);
    is_silent(sandbox);
    sandbox.link.send(&ToInit::Cancel { run });
    assert_eq!(end_of(sandbox, run).how, How::Cancelled);
    for tag in &tags[..256] {
        let items = sandbox.answer_to(*tag).unwrap().items;
        assert!(matches!(items[..], [Item::End { .. }]));
    }
}

#[test]
fn what_never_opened_its_output_is_over() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("p=$$; (sleep 0.2; kill -STOP $p; echo x > stopped) &");
    wait_for(&sandbox.path("stopped"));
    let run = sandbox.begin("echo never", |exec| exec.timeout_ms = 50);
    assert_eq!(end_of(sandbox, run).how, How::Timeout);
    let (items, then) = sandbox.replay(run, 0);
    assert_eq!((items.len(), then), (1, Then::Over));
}

#[test]
fn commands_queue_in_their_order() {
    for kind in [Kind::Bash, Kind::Busybox] {
        let sandbox = &mut Sandbox::new(kind);
        let first = sandbox.begin("sleep 0.2; echo 1", |_| {});
        let second = sandbox.begin("sleep 0.5; echo 2", |exec| exec.timeout_ms = 600);
        let third = sandbox.begin("echo 3", |_| {});
        let fourth = sandbox.restart(Keep::State);
        let fifth = sandbox.begin("echo $$", |_| {});
        sandbox.finish(first).is(0, "1\n");
        is_begun(sandbox, second);
        sandbox.finish(second).is(0, "2\n");
        is_begun(sandbox, third);
        sandbox.finish(third).is(0, "3\n");
        is_begun(sandbox, fourth);
        assert!(sandbox.finish(fourth).end.shell_restarted);
        is_begun(sandbox, fifth);
        assert_eq!(sandbox.finish(fifth).code(), 0);
    }
}

#[test]
fn what_leaves_the_queue_never_runs() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let first = sandbox.begin("read x < /dev/zero & wait; sleep 1000", |_| {});
    let second = sandbox.begin("touch ran", |_| {});
    let third = sandbox.begin("ls", |_| {});
    sandbox.link.send(&ToInit::Cancel { run: second });
    let end = end_of(sandbox, second);
    assert_eq!((end.how, end.exit_code, end.duration_ms), (How::Cancelled, 130, 0));
    sandbox.link.send(&ToInit::Cancel { run: second });
    sandbox.link.send(&ToInit::Cancel { run: first });
    assert_eq!(end_of(sandbox, first).how, How::Cancelled);
    settle(sandbox, second, b"");
    is_silent(sandbox);
    settle(sandbox, first, b"");
    is_begun(sandbox, third);
    sandbox.finish(third).is(0, "");
    let (items, then) = sandbox.replay(second, 0);
    assert_eq!((items, then), (vec![Item::End { seq: end.seq }], Then::Over));
}

#[test]
fn the_next_begins_when_the_last_is_settled_or_nobody_is_there() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let first = sandbox.begin("echo one > f", |_| {});
    let second = sandbox.begin("cat f", |_| {});
    end_of(sandbox, first);
    is_silent(sandbox);
    settle(sandbox, first, b"told");
    is_begun(sandbox, second);
    let answer = sandbox.finish(second);
    answer.is(0, "one\n");
    let third = sandbox.begin("mkfifo go; read x < go", |_| {});
    let fourth = sandbox.begin("echo four", |_| {});
    let fifth = sandbox.begin("echo five", |_| {});
    sandbox.detach();
    let go = sandbox.path("go");
    wait_for(&go);
    std::fs::write(go, "x\n").unwrap();
    // It goes on without an engine; the one that comes may be there before all have ended.
    loop {
        sandbox.reattach();
        let ended: Vec<u64> =
            sandbox.known.iter().filter(|k| k.end.is_some()).map(|k| k.run).collect();
        if ended.contains(&fifth) {
            break;
        }
        sandbox.detach();
    }
    for (run, text) in [(third, ""), (fourth, "four\n"), (fifth, "five\n")] {
        assert_eq!(text_of(&sandbox.replay(run, 0).0), text);
    }
    is_silent(sandbox);
    settle(sandbox, fifth, b"");
    sandbox.is_alive();
}

#[test]
fn late_output_is_its_own_commands() {
    for kind in [Kind::Bash, Kind::Dash, Kind::Busybox] {
        let sandbox = &mut Sandbox::new(kind);
        let cmd = "mkfifo g h; (read x < g; echo late; read x < h; echo later) & echo now";
        let run = sandbox.begin(cmd, |_| {});
        let answer = sandbox.finish(run);
        answer.is(0, "now\n");
        let end = answer.end.seq;
        let tag = sandbox.ask(run, end, Wait::Yes);
        std::fs::write(sandbox.path("g"), "x\n").unwrap();
        let part = sandbox.answer_to(tag).unwrap();
        assert_eq!((text_of(&part.items).as_str(), part.then), ("late\n", Then::Quiet));
        sandbox.run("echo other").is(0, "other\n");
        assert_eq!(event(&part.items[0]), end + 1);
        let tag = sandbox.ask(run, end + 1, Wait::Yes);
        std::fs::write(sandbox.path("h"), "x\n").unwrap();
        assert_eq!(text_of(&sandbox.answer_to(tag).unwrap().items), "later\n");
        assert_eq!(sandbox.part(run, end + 2, Wait::Yes).unwrap().then, Then::Over);
        let (items, then) = sandbox.replay(run, 0);
        assert_eq!((text_of(&items).as_str(), then), ("now\nlate\nlater\n", Then::Over));
        assert_eq!(items[1], Item::End { seq: end });
    }
}

#[test]
fn a_job_that_never_stops_writing_is_bounded_and_lives() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let run = sandbox.begin("(yes & echo $! > pid); echo now", |_| {});
    let mut cost = 0;
    let end = loop {
        match sandbox.next() {
            FromInit::Output { records, .. } => {
                cost += records.iter().map(Record::cost).sum::<u64>();
                sandbox.link.send(&ToInit::Credit { run, cost });
                cost = 0;
            }
            FromInit::End { end, .. } => break end,
            other => panic!("{other:?}"),
        }
    };
    settle(sandbox, run, b"");
    // More than is kept.
    sandbox
        .run("while [ $(grep wchar /proc/$(cat pid)/io | cut -d: -f2) -lt 200000000 ]; do :; done");
    for n in 0..20 {
        sandbox.run(&format!("echo {n}")).is(0, &format!("{n}\n"));
    }
    sandbox.run("kill -0 $(cat pid) && kill $(cat pid)").is(0, "");
    let over = sandbox.part(run, 1 << 40, Wait::Yes).unwrap();
    assert_eq!(over.then, Then::Over);
    let (items, _) = sandbox.replay(run, end.seq);
    let kept: usize = records(&items).iter().map(|record| record.data.len()).sum();
    assert!(kept <= 8 << 20 && kept > 7 << 20, "{kept}");
    assert_eq!(items.iter().filter(|i| matches!(i, Item::Gap { .. })).count(), 1);
}

#[test]
fn the_oldest_run_is_forgotten() {
    let sandbox = &mut Sandbox::with(Image::Busybox, ShellPreference::Sh, 1000);
    let first = sandbox.begin("echo first", |_| {});
    assert_eq!(sandbox.finish(first).out, "first\n");
    for _ in 1..KEPT_RUNS_MAX {
        sandbox.run("");
    }
    assert_eq!(text_of(&sandbox.replay(first, 0).0), "first\n");
    let last = sandbox.begin("", |_| {});
    assert_eq!(end_of(sandbox, last).exit_code, 0);
    match sandbox.next() {
        FromInit::Forgotten { run } => assert_eq!(run, first),
        other => panic!("{other:?}"),
    }
    settle(sandbox, last, b"");
    settle(sandbox, first, b"too late");
    assert_eq!(sandbox.part(first, 0, Wait::Yes), None);
    sandbox.reattach();
    assert_eq!(sandbox.known.len(), KEPT_RUNS_MAX);
}

#[test]
fn the_room_is_of_the_last() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let mut forgotten = Vec::new();
    let mut first = None;
    let mut last = 0;
    // 20 times 16 MiB do not fit into 256.
    for _ in 0..20 {
        let run = sandbox.begin("head -c 20000000 /dev/zero | tr '\\0' x", unread);
        first.get_or_insert(run);
        last = run;
        loop {
            match sandbox.next() {
                FromInit::Forgotten { run } => forgotten.push(run),
                FromInit::End { end, .. } => {
                    assert_eq!((end.output_bytes, end.exit_code), (20_000_000, 0));
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        settle(sandbox, run, b"");
    }
    let first = first.unwrap();
    let count = forgotten.len() as u64;
    assert!((4..8).contains(&count), "{forgotten:?}");
    assert_eq!(forgotten, (first..first + count).collect::<Vec<_>>());
    assert_eq!(sandbox.part(first, 0, Wait::No), None);
    let kept: usize = text_of(&sandbox.replay(last, 0).0).len();
    assert!(kept > 16_000_000, "{kept}");
}

#[test]
fn a_new_shell_when_it_is_asked_for() {
    for kind in [Kind::Bash, Kind::Dash] {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("X=1; cd /tmp; sleep 1000 & echo $$ > /tmp/pid").is(0, "");
        let run = sandbox.restart(Keep::State);
        let answer = sandbox.finish(run);
        assert_eq!((answer.end.how, answer.code()), (How::Exited, 0));
        assert!(answer.end.shell_restarted && !answer.end.state_lost);
        assert_eq!(answer.cwd(), "/tmp");
        let cmd = "echo $X; pwd; [ $$ != $(cat /tmp/pid) ] && pgrep -c sleep";
        sandbox.run(cmd).is(0, "1\n/tmp\n1\n");
        let run = sandbox.restart(Keep::Nothing);
        let answer = sandbox.finish(run);
        assert_eq!((answer.code(), answer.cwd().as_str()), (0, "/workspace"));
        assert!(!answer.end.state_lost);
        sandbox.run("echo ${X-unset}; pwd; pgrep -c sleep").is(0, "unset\n/workspace\n1\n");
        // One that was broken.
        sandbox.run("p=$$; (sleep 0.2; kill -STOP $p; echo x > stopped) &");
        wait_for(&sandbox.path("stopped"));
        let run = sandbox.restart(Keep::State);
        assert_eq!(sandbox.finish(run).code(), 0);
        sandbox.is_alive();
    }
}

/// Sends the stdin of a run as an engine does.
fn feed(sandbox: &mut Sandbox, run: u64, data: &[u8]) {
    for part in data.chunks(DATA_BYTES_MAX) {
        sandbox.link.send(&ToInit::Stdin { run, data: part.to_vec(), is_last: false });
    }
    sandbox.link.send(&ToInit::Stdin { run, data: Vec::new(), is_last: true });
}

/// Takes everything up to the end: what was told of stdin, and the output.
#[track_caller]
fn fed(sandbox: &mut Sandbox, run: u64) -> (u64, String, sandkasten_protocol::End) {
    let (mut taken, mut out) = (0, Vec::new());
    loop {
        match sandbox.next() {
            FromInit::Taken { run: of, bytes } if of == run => taken += bytes,
            FromInit::Taken { run: of, .. } => assert!(of < run),
            FromInit::Output { records, .. } => {
                let cost = records.iter().map(Record::cost).sum();
                sandbox.link.send(&ToInit::Credit { run, cost });
                out.extend(records.into_iter().flat_map(|record| record.data));
            }
            FromInit::End { end, .. } => {
                settle(sandbox, run, b"");
                return (taken, String::from_utf8(out).unwrap(), end);
            }
            other => panic!("{other:?}"),
        }
    }
}

fn piped(exec: &mut Exec) {
    exec.stdin = Stdin::Piped;
}

#[test]
fn a_command_reads_its_stdin() {
    for kind in [Kind::Bash, Kind::Dash, Kind::Busybox] {
        let sandbox = &mut Sandbox::new(kind);
        let first = sandbox.begin("cat; echo end", piped);
        // It waits for its turn.
        let second = sandbox.begin("read x; echo \"[$x]\"; cat", piped);
        feed(sandbox, second, b"one\ntwo\n");
        feed(sandbox, first, b"first");
        let (taken, out, end) = fed(sandbox, first);
        assert_eq!((taken, out.as_str(), end.exit_code), (5, "firstend\n", 0), "{kind:?}");
        is_begun(sandbox, second);
        let (taken, out, end) = fed(sandbox, second);
        assert_eq!((taken, out.as_str(), end.exit_code), (8, "[one]\ntwo\n", 0));
        for cmd in ["cat /dev/stdin", "cat < /dev/stdin", "sh /dev/stdin | cat"] {
            let run = sandbox.begin(cmd, piped);
            feed(sandbox, run, b"echo 1");
            let (_, out, end) = fed(sandbox, run);
            let expected = if cmd.starts_with("sh") { "1\n" } else { "echo 1" };
            assert_eq!((out.as_str(), end.exit_code), (expected, 0), "{kind:?} {cmd}");
        }
        let run = sandbox.begin("cat", piped);
        feed(sandbox, run, b"");
        assert_eq!(fed(sandbox, run).1, "");
        // The next one has none.
        sandbox.run("cat; wc -c").is(0, "0\n");
    }
}

#[test]
fn much_stdin_goes_through() {
    for kind in [Kind::Bash, Kind::Busybox] {
        let sandbox = &mut Sandbox::new(kind);
        let data: Vec<u8> = (0..50u32 << 20).map(|n| n.to_le_bytes()[1] ^ 0x5a).collect();
        let run = sandbox.begin("wc -c", piped);
        feed(sandbox, run, &data);
        let (taken, out, _) = fed(sandbox, run);
        assert_eq!((taken, out.trim()), (data.len() as u64, "52428800"));
        let run = sandbox.begin("md5sum", piped);
        feed(sandbox, run, &data);
        let (taken, out, _) = fed(sandbox, run);
        assert_eq!(taken, data.len() as u64, "{out}");
        std::fs::write(sandbox.path("data"), &data).unwrap();
        let expected = sandbox.run("md5sum < data");
        assert_eq!(out, expected.out);
    }
}

#[test]
fn a_command_that_reads_nothing_holds_nothing_up() {
    for kind in [Kind::Bash, Kind::Dash] {
        let sandbox = &mut Sandbox::new(kind);
        for (cmd, out) in [
            ("sleep 0.1; echo done", "done\n"),
            ("exec <&-; echo done", "done\n"),
            ("head -c 3", "xxx"),
        ] {
            let run = sandbox.begin(cmd, piped);
            feed(sandbox, run, &vec![b'x'; 5 << 20]);
            let (_, got, end) = fed(sandbox, run);
            assert_eq!((got.as_str(), end.exit_code), (out, 0), "{kind:?} {cmd}");
        }
        // One that is killed, and one whose job goes on with it.
        let run = sandbox.begin("sleep 1000", |exec| {
            piped(exec);
            exec.timeout_ms = 200;
        });
        feed(sandbox, run, &vec![b'x'; 5 << 20]);
        assert_eq!(fed(sandbox, run).2.how, How::Timeout);
        let run = sandbox.begin("sleep 1000 <&0 & echo job", piped);
        feed(sandbox, run, &vec![b'x'; 5 << 20]);
        assert_eq!(fed(sandbox, run).1, "job\n");
        // What comes after the end is taken too.
        sandbox.link.send(&ToInit::Stdin { run, data: vec![1; 9], is_last: true });
        loop {
            match sandbox.next() {
                FromInit::Taken { run: of, bytes: 9 } if of == run => break,
                FromInit::Taken { run: of, .. } => assert_eq!(of, run),
                other => panic!("{other:?}"),
            }
        }
        sandbox.is_alive();
    }
}

#[test]
fn many_at_once_cost_init_little() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let argv = ["sh", "-c", "yes | head -c 10000000"].map(|arg| arg.as_bytes().to_vec()).to_vec();
    for id in 1..=20 {
        let reader = if id % 2 == 0 { Reader::Paced } else { Reader::None };
        let spool = Spool::EachStream { bytes: 64 << 20 };
        let run = Run { reader, spool, ..Run::new(id) };
        let (argv, user, tty) = (argv.clone(), RunUser::Session, None);
        sandbox.link.send(&ToInit::Begin { run, task: Task::Program { argv, user, tty } });
    }
    let mut ended = 0;
    while ended < 20 {
        match sandbox.next() {
            FromInit::Output { run, records } => {
                let cost = records.iter().map(Record::cost).sum();
                sandbox.link.send(&ToInit::Credit { run, cost });
            }
            FromInit::End { end, .. } => {
                assert_eq!((end.output_bytes, end.dropped_bytes), (10_000_000, 0));
                ended += 1;
            }
            FromInit::Begun { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    let status = format!("/proc/{}/status", sandbox.init.as_raw_pid());
    let status = std::fs::read_to_string(status).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 32 * 1024, "{kib} KiB");
}
