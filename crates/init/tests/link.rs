//! The control channel: who may speak, what breaks it, credit, engines that come and go.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail loudly")]

mod boxed;

use boxed::{Client, Exec, Kind, Sandbox, joined};
use sandkasten_protocol::{
    FromInit, How, QUEUE_MAX, Record, ShellPreference, TO_INIT_BYTES_MAX, ToInit, VERSION,
    WINDOW_COST, encode,
};

fn exec(id: u64, cmd: &str) -> ToInit {
    Exec { timeout_ms: 10_000, ..Exec::new(cmd) }.begin(id)
}

#[test]
fn strangers_are_sent_away_and_hold_nobody_up() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let mut strangers = Vec::new();
    for frame in [
        ToInit::Attach { version: VERSION, nonce: [0; 16] },
        ToInit::Attach { version: VERSION + 1, nonce: *b"0123456789abcdef" },
        exec(1, "touch ran"),
        ToInit::Cancel { run: 1 },
    ] {
        let mut stranger = Client::connect(sandbox.socket_dir());
        stranger.send(&frame);
        assert_eq!(stranger.next(), None, "{frame:?}");
        // Silent, half a frame, a length that can't be.
        let silent = Client::connect(sandbox.socket_dir());
        let mut half = Client::connect(sandbox.socket_dir());
        half.send_bytes(&encode(&frame, TO_INIT_BYTES_MAX).unwrap()[..5]);
        let mut huge = Client::connect(sandbox.socket_dir());
        huge.send_bytes(&u32::MAX.to_le_bytes());
        assert_eq!(huge.next(), None);
        strangers.extend([silent, half]);
    }
    for _ in 0..100 {
        strangers.push(Client::connect(sandbox.socket_dir()));
    }
    sandbox.is_alive();
    sandbox.run("ls").is(0, "");
}

#[test]
fn a_half_frame_holds_nothing_up() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let id = sandbox.begin("echo one; sleep 0.2; echo two", |_| {});
    let frame = encode(&ToInit::Cancel { run: 99 }, TO_INIT_BYTES_MAX).unwrap();
    let (head, tail) = frame.split_at(5);
    sandbox.link.send_bytes(head);
    for expected in ["one\n", "two\n"] {
        match sandbox.link.next() {
            Some(FromInit::Output { records, .. }) => {
                assert_eq!(joined(&records), expected.as_bytes());
            }
            other => panic!("{other:?}"),
        }
    }
    sandbox.link.send_bytes(tail);
    assert_eq!(sandbox.finish(id).code(), 0);
}

#[test]
fn a_broken_protocol_ends_the_connection_and_nothing_else() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("X=1").is(0, "");
    let attach = ToInit::Attach { version: VERSION, nonce: *b"0123456789abcdef" };
    for frame in [attach, exec(1, "id used before"), exec(1000, "a\0b")] {
        sandbox.link.send(&frame);
        assert_eq!(sandbox.link.next(), None, "{frame:?}");
        sandbox.reattach();
    }
    let id = sandbox.begin("sleep 0.3", |_| {});
    sandbox.link.send(&ToInit::Settle { run: id, note: Vec::new() });
    assert_eq!(sandbox.link.next(), None);
    sandbox.reattach();
    assert_eq!(sandbox.finish(id).code(), 0);
    sandbox.run("echo $X").is(0, "1\n");
}

#[test]
fn a_queue_that_is_too_long_ends_the_connection_and_nothing_else() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let first = sandbox.begin("echo begun; sleep 1000", |_| {});
    for _ in 0..=QUEUE_MAX {
        sandbox.begin("echo", |_| {});
    }
    while sandbox.link.next().is_some() {}
    sandbox.reattach();
    let waiting: Vec<u64> = sandbox.known.iter().map(|known| known.run).collect();
    assert_eq!(waiting, (first..=first + QUEUE_MAX as u64).collect::<Vec<_>>());
    for run in waiting.into_iter().rev() {
        sandbox.link.send(&ToInit::Cancel { run });
        assert_eq!(sandbox.finish(run).end.how, How::Cancelled);
    }
    sandbox.is_alive();
}

/// With less credit init does not read.
const CREDIT_MIN: u64 = 8 * 1024;
/// What it keeps of a window for the end of a run.
const END_COST: u64 = 160 * 1024;

/// Takes what comes without credit: what it costs, and its bytes.
fn take_a_window(sandbox: &mut Sandbox) -> (u64, u64) {
    let (mut cost, mut bytes) = (0, 0);
    while cost <= WINDOW_COST - END_COST - CREDIT_MIN {
        match sandbox.link.next() {
            Some(FromInit::Output { records, .. }) => {
                cost += records.iter().map(Record::cost).sum::<u64>();
                bytes += joined(&records).len() as u64;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(cost <= WINDOW_COST);
    (cost, bytes)
}

#[test]
fn without_credit_output_stops_at_the_window() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let id = sandbox.begin("head -c 5000000 /dev/zero; echo END", |_| {});
    let (cost, got) = take_a_window(sandbox);
    // Nothing more comes: the answer to a file operation is the next frame.
    let op = sandkasten_protocol::FileOp::Abort { token: 1 };
    assert!(sandbox.file(op).0.is_err());
    sandbox.link.send(&ToInit::Credit { run: id, cost });
    let answer = sandbox.finish(id);
    assert_eq!(answer.end.output_bytes, 5_000_004);
    assert_eq!(answer.out.len() as u64, 5_000_004 - got);
    assert!(answer.out.ends_with("END\n"));
}

#[test]
fn a_reader_that_stops_does_not_keep_the_end() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    // More than is read while it runs by less than a pipe holds: the command ends, its output is still
    // there, and comes without credit, before the end.
    let bytes = WINDOW_COST - END_COST;
    let cmd = format!("head -c {bytes} /dev/zero | tr '\\0' x; sleep 100 &");
    let id = sandbox.begin(&cmd, |_| {});
    let mut got = 0;
    let end = loop {
        match sandbox.link.next() {
            Some(FromInit::Output { records, .. }) => got += joined(&records).len() as u64,
            Some(FromInit::End { run, end }) if run == id => break end,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((got, end.output_bytes), (bytes, bytes));
}

#[test]
fn an_engine_that_goes_leaves_the_command_running() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let id = sandbox.begin(
        "echo begun; read x < go; head -c 3000000 /dev/zero; echo end > told; cat go",
        |_| {},
    );
    sandbox.detach();
    sandbox.reattach();
    assert_eq!(sandbox.hello.next_run, id + 1);
    let known: Vec<_> = sandbox.known.iter().map(|k| (k.run, k.end.is_some())).collect();
    assert_eq!(known, [(id, false)]);
    sandbox.detach();
    sandbox.reattach();
    sandbox.link.send(&ToInit::Cancel { run: id });
    assert_eq!(sandbox.finish(id).end.how, How::Cancelled);
}

#[test]
fn a_later_engine_replaces_the_earlier() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    for _ in 0..50 {
        sandbox.reattach();
    }
    let id = sandbox.begin("sleep 0.1; echo new", |_| {});
    assert_eq!(sandbox.finish(id).out, "new\n");
}

#[test]
fn sh_is_taken_where_it_is_preferred() {
    let sandbox = Sandbox::with(boxed::Image::Debian, ShellPreference::Sh, 1000);
    assert_eq!(sandbox.hello.shell, Some(sandkasten_protocol::Shell::Sh));
    assert_eq!(sandbox.hello.cwd, b"/workspace");
}

#[test]
fn nothing_of_init_grows() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let status = format!("/proc/{}", sandbox.init.as_raw_pid());
    let rss = || {
        let text = std::fs::read_to_string(format!("{status}/status")).unwrap();
        let line = text.lines().find(|l| l.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let descriptors = || std::fs::read_dir(format!("{status}/fd")).unwrap().count();
    // More than are kept, and one that needs the file of the spool.
    sandbox.run("head -c 50000000 /dev/zero");
    for _ in 0..1100 {
        sandbox.run("true");
    }
    let before = (rss(), descriptors());
    for _ in 0..1000 {
        sandbox.run("true");
    }
    sandbox.run("head -c 50000000 /dev/zero");
    sandbox.run("true");
    // The shell may be writing its state, and the FIFOs of the next command may be there or not.
    assert!(descriptors() <= before.1 + 3, "{} before, {} after", before.1, descriptors());
    assert!(rss() < before.0 + 4096, "{} KiB before, {} KiB after", before.0, rss());
    sandbox.run("ls /proc/1/fd; ls -a /.sandkasten 2>&1 | head -3; true");
}
