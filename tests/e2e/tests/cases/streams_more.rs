//! More of the kind of C31 to C44: bytes that programs write in all ways.

use serde_json::json;

use crate::{Asks, MANY_BYTES, Place, in_images};

in_images! {
    python: nul_bytes, output_at_the_cap, escapes_across_writes, escapes_of_all_kinds, open_escapes_at_the_end,
        progress_bars, line_ends_across_writes, characters_across_events, a_pty, a_pty_streamed, a_pty_full_of_lines,
        many_small_writes, blanks_are_kept, closed_outputs, broken_utf8_of_all_kinds, late_output_comes_nowhere_else,
        nothing_is_lost_when_the_shell_is_killed, two_writers_at_once, json_in_the_output, events_say_what_they_are,
        an_open_pipe_of_nobody, a_reader_that_goes_early, only_the_tail_matters, sixteen_kinds_of_length;
    busybox: nul_bytes, output_at_the_cap, escapes_across_writes, escapes_of_all_kinds, open_escapes_at_the_end,
        progress_bars, line_ends_across_writes, characters_across_events, a_pty, a_pty_streamed, a_pty_full_of_lines,
        many_small_writes, blanks_are_kept, closed_outputs, broken_utf8_of_all_kinds, late_output_comes_nowhere_else,
        nothing_is_lost_when_the_shell_is_killed, two_writers_at_once, json_in_the_output, events_say_what_they_are,
        a_reader_that_goes_early, only_the_tail_matters, sixteen_kinds_of_length;
}

fn nul_bytes(at: &Place) {
    let session = at.session();
    session.gives_both("printf 'a\\0b\\0\\0\\n\\0'", 0, "a\0b\0\0\n\0");
    session.gives_both("head -c 3 /dev/zero", 0, "\0\0\0");
}

/// Up to the cap all is there; beyond it, head and tail with a line between them.
fn output_at_the_cap(at: &Place) {
    let session = at.session();
    for cap in [64, 1000, 4096, 65_536] {
        for (more, truncated) in [(-1i64, false), (0, false), (1, true), (100_000, true)] {
            let bytes = cap + more;
            let cmd = format!("head -c {} /dev/zero | tr '\\0' x; printf E", bytes - 1);
            let done = session.exec_with(&json!({ "cmd": cmd, "max_output_bytes": cap }));
            assert_eq!(done.body["truncated"], truncated, "{cap}+{more}");
            assert_eq!(done.body["output_bytes"], bytes, "{cap}+{more}");
            let length = i64::try_from(done.output().len()).expect("a length");
            assert!(
                if truncated { length <= cap } else { length == bytes },
                "{cap}+{more}: {length}"
            );
            assert!(done.output().starts_with('x') && done.output().ends_with('E'), "{cap}+{more}");
            assert_eq!(done.output().contains(" bytes left out …]\n"), truncated, "{cap}+{more}");
        }
    }
}

fn escapes_across_writes(at: &Place) {
    let session = at.session();
    let pieces = [
        "a\\033",
        "[3",
        "1",
        "mred",
        "\\033[",
        "0m b\\033]0;ti",
        "tle\\033",
        "\\\\c\\033(",
        "B\\n",
    ];
    let cmd = pieces.map(|piece| format!("printf '{piece}'")).join("; sleep 0.03; ");
    session.gives_both(&cmd, 0, "ared bc\n");
}

fn escapes_of_all_kinds(at: &Place) {
    let session = at.session();
    for (text, clean) in [
        ("\\033[1;31mred\\033[0m\\n", "red\n"),
        ("\\033[38;2;1;2;3mx\\033[K\\033[2J\\033[H\\033[?25ly\\n", "xy\n"),
        ("\\033]0;title\\007x\\n", "x\n"),
        ("\\033]8;;http://example.com\\033\\\\link\\033]8;;\\033\\\\\\n", "link\n"),
        ("\\0337\\0338\\033=\\033>x\\033M\\n", "x\n"),
        ("a\\tb\\007\\b\\v\\fc\\n", "a\tb\u{7}\u{8}\u{b}\u{c}c\n"),
        ("\\033[31m\\033[1m\\033[0m", ""),
        ("[31m not one \\n", "[31m not one \n"),
    ] {
        session.gives_both(&format!("printf '{text}'"), 0, clean);
    }
}

fn open_escapes_at_the_end(at: &Place) {
    let session = at.session();
    for text in ["x\\033", "x\\033[", "x\\033[3;", "x\\033]0;never ends"] {
        let cmd = format!("printf '{text}'");
        let done = session.exec(&cmd);
        assert!(done.code() == 0 && done.output().starts_with('x'), "{text}: {}", done.body);
        assert_eq!(session.plays(&json!({ "cmd": cmd }), 0).text(), done.output(), "{text}");
        session.gives_both("echo next", 0, "next\n");
    }
    // A title without an end hides 4096 bytes at most.
    let done = session.exec("printf '\\033]0;'; head -c 10000 /dev/zero | tr '\\0' x; echo END");
    assert!(
        done.output().ends_with("xEND\n") && done.output().len() > 5000,
        "{}",
        done.output().len()
    );
}

fn progress_bars(at: &Place) {
    let session = at.session();
    for (cmd, blocking, streamed) in [
        ("for i in 1 2 3; do printf '\\r%d%%' $i; done; echo", "3%\n", "\r1%\r2%\r3%\n"),
        ("printf 'a\\rb\\rlonger\\nnext\\n'", "longer\nnext\n", "a\rb\rlonger\nnext\n"),
        ("printf 'a\\rb\\r\\n'", "b\n", "a\rb\n"),
        ("printf 'a\\rb\\r'", "b\r", "a\rb\r"),
        (
            "printf 'x\\r'; sleep 0.03; printf 'y'; sleep 0.03; printf '\\r'; sleep 0.03; printf '\\n'",
            "y\n",
            "x\ry\n",
        ),
        ("printf 'é\\r☕\\n'", "☕\n", "é\r☕\n"),
    ] {
        session.gives(cmd, 0, blocking);
        assert_eq!(session.plays(&json!({ "cmd": cmd }), 0).text(), streamed, "{cmd}");
    }
    // A bar of a million steps is a line, not a million.
    let cmd = "seq 200000 | tr '\\n' '\\r'; echo done";
    session.gives(cmd, 0, "done\n");
}

fn line_ends_across_writes(at: &Place) {
    let session = at.session();
    session.gives_both("printf 'a\\r'; sleep 0.03; printf '\\nb\\r\\n\\r\\nc'", 0, "a\nb\n\nc");
    let cmd = "yes \"$(printf 'line\\r')\" | head -n 20000";
    let want = "line\n".repeat(20_000);
    assert!(session.run(cmd) == want, "blocking");
    assert!(session.plays(&json!({ "cmd": cmd }), 0).text() == want, "streamed");
}

/// Characters of two to four bytes at every place where an event may be cut.
fn characters_across_events(at: &Place) {
    let session = at.session();
    for before in
        [0, 1, 2, 3, 4090, 4091, 4092, 4093, 8185, 8186, 8187, 8188, 8189, 8190, 8191, 8192]
    {
        let cmd =
            format!("head -c {before} /dev/zero | tr '\\0' x; printf '👩‍🚀é日%.0s' $(seq 2000)");
        let want = "x".repeat(before) + &"👩‍🚀é日".repeat(2000);
        let played = session.plays(&json!({ "cmd": cmd }), 0);
        assert!(played.text() == want, "{before}: streamed");
        assert!(session.run(&cmd) == want, "{before}: blocking");
    }
}

fn raw(session: &sandkasten_e2e::Session<'_>, cmd: &str) -> (i64, String) {
    let done = session.exec_with(&json!({ "cmd": cmd, "raw_output": true }));
    (done.code(), done.output().to_owned())
}

fn a_pty(at: &Place) {
    let session = at.session();
    let cmd = "test -t 1 && test -t 2 && ! test -t 0 && printf '\\033[31mred\\033[0m\\n'; cat; K=1; cd /tmp; (exit 3)";
    assert_eq!(raw(&session, cmd), (3, "\u{1b}[31mred\u{1b}[0m\r\n".into()));
    assert_eq!(
        raw(&session, "echo $K; pwd; echo $TERM"),
        (0, "1\r\n/tmp\r\nxterm-256color\r\n".into())
    );
    assert_eq!(raw(&session, "printf 'a\\377b\\0c'"), (0, "a\u{fffd}b\0c".into()));
    session.gives("test -t 1 || echo no; echo $K; echo $TERM", 0, "no\n1\ndumb\n");
    assert_eq!(raw(&session, "exit 4"), (4, String::new()));
    assert_eq!(raw(&session, "echo $K"), (0, "1\r\n".into()));
}

fn a_pty_streamed(at: &Place) {
    let session = at.session();
    let cmd = "printf 'a\\r\\033[1mb'; sleep 0.05; printf '\\n'; echo é >&2";
    let played = session.plays(&json!({ "cmd": cmd, "raw_output": true }), 0);
    assert_eq!(played.text(), "a\r\u{1b}[1mb\r\né\r\n");
    for event in &played.events[..played.events.len() - 1] {
        assert_eq!(event.data["stream"], "pty", "{event:?}");
    }
}

fn a_pty_full_of_lines(at: &Place) {
    let session = at.session();
    let request =
        json!({ "cmd": "seq 100000", "raw_output": true, "max_output_bytes": MANY_BYTES });
    let want: String = (1..=100_000).map(|number| format!("{number}\r\n")).collect();
    assert!(session.exec_with(&request).output() == want, "blocking");
    assert!(session.plays(&request, 0).text() == want, "streamed");
    let done = session.exec_with(&json!({ "cmd": "sleep 60 & seq 3", "raw_output": true }));
    assert_eq!((done.code(), done.output()), (0, "1\r\n2\r\n3\r\n"), "{}", done.body);
    assert!(done.took < crate::AT_ONCE, "{:?}", done.took);
}

fn many_small_writes(at: &Place) {
    let session = at.session();
    let cmd = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done";
    let want: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    assert!(session.run(cmd) == want, "blocking");
    assert!(session.plays(&json!({ "cmd": cmd }), 0).text() == want, "streamed");
}

fn blanks_are_kept(at: &Place) {
    let session = at.session();
    for text in ["\n", "\n\n\n", "  ", "  a  \n\n", "\t", "no end"] {
        let octal: String = text.bytes().map(|byte| format!("\\{byte:03o}")).collect();
        session.gives_both(&format!("printf '{octal}'"), 0, text);
    }
    session.gives_both("true", 0, "");
}

fn closed_outputs(at: &Place) {
    let session = at.session();
    session.exec("exec 1>&-; echo x");
    session.gives_both("echo y", 0, "y\n");
    let done = session.exec("(exec 1>&-; echo x) 2>/dev/null; echo $?; exec 2>&-; echo z");
    assert!(done.output().ends_with("z\n"), "{}", done.body);
    session.alive();
}

/// As a decoder of UTF-8 does it: one sign for each piece that can't be one.
fn broken_utf8_of_all_kinds(at: &Place) {
    let session = at.session();
    let mut bytes = Vec::new();
    let mut state = 12_345u32;
    for _ in 0..30_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let lead = [0xc0, 0xc3, 0xe0, 0xe2, 0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xff]
            [(state >> 8) as usize % 10];
        let any = (state >> 24) as u8;
        match state >> 5 & 3 {
            0 => bytes.push(lead),
            1 => bytes.push(0x80 | any & 0x3f),
            2 => bytes.extend("日".bytes()),
            _ => bytes.push(any),
        }
    }
    // What is cleaned is another matter.
    bytes.retain(|byte| !matches!(byte, 0x1b | b'\r'));
    session.write("noise", &bytes, "0644");
    let want = String::from_utf8_lossy(&bytes);
    let done = session.exec("cat noise");
    assert!(done.output() == want, "blocking: {} of {}", done.output().len(), want.len());
    assert!(session.plays(&json!({ "cmd": "cat noise" }), 0).text() == want, "streamed");
    let slowly = "head -c 1001 noise; sleep 0.02; tail -c +1002 noise | head -c 3; sleep 0.02; tail -c +1005 noise";
    assert!(session.plays(&json!({ "cmd": slowly }), 0).text() == want, "in pieces");
}

fn late_output_comes_nowhere_else(at: &Place) {
    let session = at.session();
    session.does("(sleep 0.15; echo LATE; echo LATE >&2) &");
    session.gives("sleep 0.3; echo next", 0, "next\n");
    session.does("for i in 1 2 3; do (sleep 0.1; yes LATE | head -n 5000) & done");
    for number in 0..10 {
        session.gives(&format!("sleep 0.03; echo {number}"), 0, &format!("{number}\n"));
    }
    session.does("wait");
}

fn nothing_is_lost_when_the_shell_is_killed(at: &Place) {
    let session = at.session();
    for (end, code) in [("kill -9 $$", 137), ("exit 7", 7), ("exec true", 0)] {
        let cmd = format!("seq 20000; {end}");
        let want: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
        let done = session.exec(&cmd);
        assert_eq!(done.code(), code, "{end}");
        assert!(done.output() == want, "{end}: {} bytes", done.output().len());
        assert!(session.plays(&json!({ "cmd": cmd }), code).text() == want, "{end}: streamed");
    }
    session.alive();
}

/// Short writes stay whole, and each writer's own stay in order.
fn two_writers_at_once(at: &Place) {
    let session = at.session();
    let cmd = "for i in $(seq 3000); do echo o$i; done & for i in $(seq 3000); do echo e$i; done >&2 & wait";
    let played = session.plays(&json!({ "cmd": cmd }), 0);
    let text = played.text();
    for writer in ["o", "e"] {
        let lines: String = text
            .lines()
            .filter_map(|line| line.strip_prefix(writer))
            .map(|n| n.to_owned() + "\n")
            .collect();
        let want: String = (1..=3000).map(|number| format!("{number}\n")).collect();
        assert_eq!(lines.len(), want.len(), "{writer}");
        assert!(lines == want, "{writer}");
    }
}

fn json_in_the_output(at: &Place) {
    let session = at.session();
    let text =
        "{\"exit_code\": 0, \"x\": \"\\\\u0000 \\\" \\\\n\"}\n\u{2028}\u{feff}</script>\u{7f}\n";
    session.write("json", text.as_bytes(), "0644");
    session.gives_both("cat json; (exit 3)", 3, text);
}

fn events_say_what_they_are(at: &Place) {
    let session = at.session();
    let played = session.plays(&json!({ "cmd": "echo a; sleep 0.1; echo b >&2" }), 0);
    let mut last = 0;
    let chunks = &played.events[..played.events.len() - 1];
    assert_eq!(chunks.len(), 2, "{chunks:?}");
    for event in chunks {
        assert_eq!(event.data["stream"], "output", "{event:?}");
        assert_eq!(event.data["seq"], event.id, "{event:?}");
        let time = event.data["timestamp"].as_u64().expect("milliseconds");
        assert!(time >= last && time > 1_600_000_000_000, "{event:?}");
        last = time;
    }
    assert!(played.end().id > chunks[1].id);
}

/// A pipe's end that a background process keeps open, without writing.
fn an_open_pipe_of_nobody(at: &Place) {
    let session = at.session();
    let hold = "python3 -c 'import os,time; os.setsid(); time.sleep(60)' & disown; echo go";
    for _ in 0..3 {
        assert_eq!(session.gives(hold, 0, "go\n").code(), 0);
    }
    session.gives_both("seq 3 | head -n 1", 0, "1\n");
}

fn a_reader_that_goes_early(at: &Place) {
    let session = at.session();
    session.gives_both("yes | head -n 2", 0, "y\ny\n");
    session.gives_both("seq 1000000 | head -n 1; echo $?", 0, "1\n0\n");
    let mut events = session.stream(&json!({ "cmd": "yes" }));
    assert!(events.next().is_some());
    drop(events);
    session.gives("echo free", 0, "free\n");
}

fn only_the_tail_matters(at: &Place) {
    let session = at.session();
    let done = session.exec_with(&json!({ "cmd": "seq 2000000; echo error: it broke >&2; (exit 2)", "max_output_bytes": 10_000 }));
    assert_eq!(done.code(), 2);
    assert!(done.output().starts_with("1\n2\n3\n"), "{}", done.body);
    assert!(done.output().ends_with("2000000\nerror: it broke\n"), "{}", done.body);
}

fn sixteen_kinds_of_length(at: &Place) {
    let session = at.session();
    for length in [
        1, 2, 3, 511, 512, 513, 4095, 4096, 4097, 8191, 8192, 8193, 65_535, 65_536, 65_537, 200_001,
    ] {
        let cmd = format!("head -c {length} /dev/zero | tr '\\0' z");
        let want = "z".repeat(length);
        assert!(session.run(&cmd) == want, "{length}: blocking");
        assert!(session.plays(&json!({ "cmd": cmd }), 0).text() == want, "{length}: streamed");
    }
}
