//! Writes the seeds of the corpus afresh, from inside `fuzz`: `cargo run --example seeds`. Frames
//! change with the protocol, and seeds of an old one are worth little.

use std::fs;
use std::path::Path;

use sandkasten_protocol::*;
use serde::Serialize;

/// Where the rest of an input is cut.
const CUTS: [u8; 8] = [0, 1, 0, 5, 0, 9, 0, 40];

fn main() {
    for (number, frame) in from_init().into_iter().enumerate() {
        write("from_init", &format!("{number:02}"), &CUTS, &encoded(&frame));
    }
    let all: Vec<u8> = from_init().iter().flat_map(encoded).collect();
    write("from_init", "all", &CUTS, &all);
    write("from_init", "length", &CUTS, &[0xFF; 5]);
    for (number, item) in from_worker().into_iter().enumerate() {
        write("from_worker", &format!("{number:02}"), &CUTS, &encoded(&item));
    }
    let all: Vec<u8> = from_worker().iter().flat_map(encoded).collect();
    write("from_worker", "all", &CUTS, &all);
    write("from_worker", "length", &CUTS, &[0xFF; 5]);
    for (number, frame) in to_init().into_iter().enumerate() {
        write("to_init", &format!("{number:02}"), &CUTS, &encoded(&frame));
    }
    let all: Vec<u8> = to_init().iter().flat_map(encoded).collect();
    write("to_init", "all", &CUTS, &all);
    write("to_init", "length", &CUTS, &[0xFF; 5]);
    for (name, text) in OUTPUTS {
        for cap in [0u8, 1, 40, 255] {
            let head: Vec<u8> = [0, cap].into_iter().chain(CUTS).collect();
            write("cleaner", &format!("{name}-{cap}"), &head, text);
        }
    }
    for (name, sections) in DUMPS {
        let mut dump = sections.join("\0").into_bytes();
        dump.push(0);
        write("dump", name, &CUTS, &dump);
    }
}

const OUTPUTS: [(&str, &[u8]); 7] = [
    ("lines", b"one\r\ntwo\nthree\r\r\nfour\r"),
    ("progress", b"10%\r20%\r\x1b[K100%\ndone\n"),
    ("colours", b"\x1b[38;5;196;1mred\x1b[0m\x1b]0;title\x07\x1b]8;;x\x1b\\link\x1b(B\x1b7"),
    ("characters", "a→é😀\u{2028}\u{fffd}".as_bytes()),
    ("invalid", b"\xf0\x9f\x98\xed\xa0\x80\xc0\xaf\xff\xe2\x82"),
    ("marker", "first\n[… 12 bytes left out …]\nlast\n".as_bytes()),
    ("open", b"text\x1b]52;c;never closed\r\n\x1b[12"),
];

const DUMPS: [(&str, &[&str]); 6] = [
    (
        "bash",
        &[
            "declare -- A=\"x y\"\ndeclare -ix N=\"1\"\ndeclare -a L=([0]=\"a\" [1]=$'b\\n')\n\
             declare -rx R=\"\\$(id)\"\n",
            "f () \n{ \n    echo 'it'\n}\n",
            "declare -f f\ndeclare -fx printf\n",
            "alias ll='ls -l'\n",
            "0022\n",
            "set +o errexit\nset -o posix\nset -o emacs\nset +o vi\nset -o noexec\n",
            "checkwinsize:expand_aliases:extglob",
        ],
    ),
    (
        "sh",
        &[
            "A='x y'\nIFS=' \n'\nPPID='7'\nPWD='/tmp'\n",
            "export A='x y'\n",
            "readonly R='1'\n",
            "l='ls -l'\nq='it'\\''s'\n",
            "0077\n",
            "set -o errexit\nset +o nounset\n",
            "",
        ],
    ),
    (
        "hostile",
        &[
            "'; id; '",
            "$(id)",
            "declare -f $(id)\ndeclare -f; x",
            "`id`",
            "0;id",
            "set -o x;id",
            "a:b;c",
        ],
    ),
    ("quotes", &["declare -i x=\"'\\\"\ndeclare -i y=$'\\''\n", "''", "''''", "\\'", "9", "", ":"]),
    ("empty", &["", "", "", "", "", "", ""]),
    ("torn", &["declare -x A=\"1", ""]),
];

fn write(target: &str, name: &str, head: &[u8], rest: &[u8]) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&dir).expect("make the folder");
    fs::write(dir.join(name), [head, rest].concat()).expect("write a seed");
}

fn encoded(frame: &impl Serialize) -> Vec<u8> {
    encode(frame, TO_INIT_BYTES_MAX).expect("a small frame")
}

fn from_init() -> Vec<FromInit> {
    let hello = Hello {
        version: VERSION,
        nonce: [7; 16],
        shell: Some(Shell::Bash),
        cwd: b"/workspace".to_vec(),
        cwd_fault: None,
        runs: 1,
        next_run: 3,
    };
    let end = End {
        how: How::Signaled(9),
        exit_code: 137,
        cwd: b"/tmp/\xff".to_vec(),
        duration_ms: 300,
        shell_restarted: true,
        state_lost: false,
        output_bytes: 1 << 40,
        dropped_bytes: 12,
        seq: 9,
    };
    let begun = Begun { at_ms: 1_707_390_000_000, pid: Some(42) };
    let record = |seq, stream| Record {
        seq,
        stream,
        at_ms: 1_707_390_000_001,
        data: b"text\n\0\xff".to_vec(),
    };
    let part = Part {
        items: vec![
            Item::Record(record(1, Stream::Output)),
            Item::Gap { bytes: 70_000, from_seq: 2, to_seq: 7 },
            Item::End { seq: 9 },
        ],
        then: Then::Over,
    };
    let known = Known {
        run: 2,
        note: b"{}".to_vec(),
        begun: Some(begun),
        end: Some(end.clone()),
        settled: Some(b"note".to_vec()),
    };
    vec![
        FromInit::Hello(hello),
        FromInit::Known(known),
        FromInit::Begun { run: 3, begun },
        FromInit::Output {
            run: 3,
            records: vec![record(1, Stream::Stdout), record(2, Stream::Stderr)],
        },
        FromInit::End { run: 3, end },
        FromInit::Taken { run: 3, bytes: 65_536 },
        FromInit::Replayed { tag: 1, part: Some(part) },
        FromInit::Replayed { tag: 2, part: None },
        FromInit::Forgotten { run: 1 },
        FromInit::File { tag: 3, result: Ok(FileDone::Created { token: 1, path: b"/x".to_vec() }) },
        FromInit::File { tag: 4, result: Err(FileFault::Other(5)) },
        FromInit::File {
            tag: 5,
            result: Ok(FileDone::Written(Identity::new(1, 2, (3, 4), (5, 6)))),
        },
    ]
}

fn from_worker() -> Vec<work::Item> {
    use work::{Change, Entry, Event, Item, Kind, Match, Meta};

    let meta = Meta {
        kind: Kind::Symlink,
        size: 4096,
        mode: 0o777,
        uid: 1000,
        gid: 1000,
        mtime: (1_707_390_000, 999_999_999),
        ctime: (-1, 0),
        ino: 12,
        dev: 66,
        target: Some(b"../\xff".to_vec()),
    };
    let found = Match {
        path: b"src/lib.rs".to_vec(),
        line: 7,
        text: b"fn main() {".to_vec(),
        before: vec![Vec::new()],
        after: vec![b"}".to_vec()],
    };
    let event = Event {
        change: Change::Created,
        path: b"new".to_vec(),
        from: Some(b"old".to_vec()),
        kind: Kind::Dir,
    };
    vec![
        Item::Entry(Entry { path: b"a/b".to_vec(), meta }),
        Item::Path(b"x y\n".to_vec()),
        Item::Match(found),
        Item::Event(event),
        Item::Data(b"ustar\0".to_vec()),
        Item::Unpacked { entries: 10_000 },
        Item::Alive,
        Item::Done { truncated: true },
        Item::Failed { fault: FileFault::Archive(ArchiveFault::Gzip), path: b"a".to_vec() },
    ]
}

fn to_init() -> Vec<ToInit> {
    let window = Window { rows: 24, cols: 80 };
    let run = Run {
        note: b"{\"exec_id\":\"x\"}".to_vec(),
        timeout_ms: Some(30_000),
        cwd: Some(b"/tmp".to_vec()),
        env: vec![(b"A".to_vec(), b"1".to_vec())],
        stdin: Stdin::Piped,
        reader: Reader::Paced,
        spool: Spool::EachStream { bytes: 1 << 26 },
        ..Run::new(1)
    };
    let command = Task::Command {
        cmd: b"echo 'hi'".to_vec(),
        output: OutputMode::Split,
        user: RunUser::Root,
    };
    let program = Task::Program {
        argv: vec![b"/bin/cat".to_vec(), b"-".to_vec()],
        user: RunUser::Named(b"www-data".to_vec()),
        tty: Some(window),
    };
    let replay = Replay { tag: 1, run: 1, after: 4, stream: Some(Stream::Stderr), wait: Wait::Yes };
    let path = b"/workspace/x".to_vec();
    let create = FileOp::Create {
        path: path.clone(),
        user: FileUser::Session,
        mode: Some(0o644),
        parents: Parents::Make,
        expect: Expect::OneOf(vec![Identity::new(1, 2, (3, 4), (5, 6))]),
    };
    let put = FileOp::Put {
        path: path.clone(),
        user: FileUser::Root,
        mode: None,
        parents: Parents::MustExist,
        expect: Expect::Nothing,
        data: b"text".to_vec(),
    };
    let list = work::Job::List { path: path.clone(), depth: 2, limit: 100 };
    vec![
        ToInit::Attach { version: VERSION, nonce: [7; 16] },
        ToInit::Begin { run, task: command },
        ToInit::Begin { run: Run::new(2), task: program },
        ToInit::Begin { run: Run::new(3), task: Task::Restart { keep_state: true } },
        ToInit::Cancel { run: 1 },
        ToInit::Credit { run: 1, cost: 65_536 },
        ToInit::Unpace { run: 1 },
        ToInit::Stdin { run: 1, data: b"in\0\xff".to_vec(), is_last: true },
        ToInit::Signal { run: 2, signal: 15, to: SignalTo::Process },
        ToInit::Resize { run: 2, window },
        ToInit::Replay(replay),
        ToInit::Unwait { tag: 1 },
        ToInit::Settle { run: 1, note: b"note".to_vec() },
        ToInit::File { tag: 1, op: FileOp::Read { path, user: FileUser::Root } },
        ToInit::File { tag: 2, op: create },
        ToInit::File { tag: 6, op: put },
        ToInit::File { tag: 3, op: FileOp::Commit { token: 1 } },
        ToInit::File { tag: 5, op: FileOp::OpenDir { token: 1 } },
        ToInit::File { tag: 4, op: FileOp::Work { job: list, user: FileUser::Session } },
    ]
}
