//! stdin: given with the start, or sent later at the pace at which it is read.

use std::thread;

use super::*;

#[test]
fn open_stdin_is_sent_in_pieces() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["cat"], "stdin": "open" }));
    let mut client = process.attach("");
    for piece in [&b"one\n"[..], b"\0\xff", b""] {
        assert_eq!(process.stdin(piece, "").ok(200), json!({ "ok": true }));
    }
    client.until("one\n");
    assert_eq!(process.stdin(b"last", "?eof=true").ok(200), json!({ "ok": true }));
    assert_eq!(client.exit()["exit_code"], 0);
    assert_eq!(client.stdout, b"one\n\0\xfflast");
    process.stdin(b"too late", "").error(409, "CONFLICT");
}

#[test]
fn stdin_that_is_not_open_takes_nothing() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    for stdin in [json!("none"), data(b"x")] {
        let request = json!({ "cmd": "cat; sleep 1000", "stdin": stdin });
        let process = start(&session, &request);
        process.stdin(b"more", "").error(409, "CONFLICT");
        process.kill();
    }
    let open = start(&session, &json!({ "argv": ["sleep", "1000"], "stdin": "open" }));
    open.stdin(b"x", "?eof=yes").error(400, "INVALID_REQUEST");
    assert_eq!(open.stdin(b"x", "?eof=true").status(), 200);
    open.stdin(b"x", "").error(409, "CONFLICT");
}

#[test]
fn fifty_mebibytes_come_with_the_start() {
    let lab = Lab::shared();
    let session = base(&lab);
    let bytes: Vec<u8> = (0u32..).flat_map(u32::to_le_bytes).take(50 * MIB).collect();
    let request = json!({ "argv": ["sha256sum"], "stdin": data(&bytes) });
    let large = run_with(&session, &request);
    session.write("same", &bytes, "0644");
    assert_eq!(large.text(), session.run("sha256sum < same"));
    let over = json!({ "argv": ["true"], "stdin": data(&vec![0; 73 * MIB]) });
    ask(&session, &over).error(413, "TOO_LARGE");
}

#[test]
fn a_body_is_stdin_of_any_length() {
    let lab = Lab::shared();
    let session = base(&lab);
    let process = start(&session, &json!({ "argv": ["sha256sum"], "stdin": "open" }));
    let piece: Vec<u8> = (0..=255).cycle().take(40 * MIB).collect();
    for query in ["", "", "?eof=true"] {
        assert_eq!(process.stdin(&piece, query).status(), 200);
    }
    assert_eq!(process.exit()["exit_code"], 0);
    let sum = String::from_utf8(bytes_of(&process.events(""), "stdout")).expect("hex");
    let script = "python3 -c \"import hashlib; print(hashlib.sha256(bytes(range(256)) * (120 << 12)).hexdigest(), ' -')\"";
    let other = python(&lab);
    assert_eq!(sum, other.run(script));
}

#[test]
fn a_body_waits_for_a_process_that_does_not_read() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "while [ ! -e /workspace/go ]; do sleep 0.1; done; wc -c";
    let process = start(&session, &json!({ "cmd": cmd, "stdin": "open" }));
    let body = vec![b'x'; 150 * MIB];
    thread::scope(|scope| {
        let sends = scope.spawn(|| process.stdin(&body, "?eof=true"));
        sandkasten_e2e::wait::prescribed(Duration::from_secs(2));
        assert!(!sends.is_finished(), "more is taken than may wait");
        session.run("touch /workspace/go");
        assert_eq!(sends.join().expect("no panic").status(), 200);
    });
    assert_eq!(process.exit()["exit_code"], 0);
    assert_eq!(bytes_of(&process.events(""), "stdout"), format!("{}\n", 150 * MIB).as_bytes());
    // Where the process ends instead, the body has nowhere to go.
    let process = start(&session, &json!({ "argv": ["sleep", "1000"], "stdin": "open" }));
    thread::scope(|scope| {
        let sends = scope.spawn(|| process.stdin(&body, "?eof=true"));
        sandkasten_e2e::wait::prescribed(Duration::from_secs(1));
        process.kill();
        let answer = sends.join().expect("no panic");
        assert!(matches!(answer.status(), 200 | 409), "{answer}");
    });
    session.alive();
}

#[test]
fn nothing_is_lost_between_a_slow_reader_and_a_large_body() {
    let lab = Lab::shared();
    let session = python(&lab);
    let program = "import sys, time\n\
        total = 0\n\
        while data := sys.stdin.buffer.read(1 << 20):\n    total += len(data); time.sleep(0.05)\n\
        print(total)";
    let argv = json!({ "argv": ["python3", "-c", program], "stdin": "open" });
    let process = start(&session, &argv);
    let answer = process.stdin(&vec![0; 20 * MIB], "?eof=true");
    assert_eq!(answer.status(), 200, "{answer}");
    assert_eq!(process.exit()["exit_code"], 0);
    assert_eq!(bytes_of(&process.events(""), "stdout"), format!("{}\n", 20 * MIB).as_bytes());
}

#[test]
fn stdin_of_a_tty_is_typed() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let tty = json!({ "rows": 24, "cols": 80 });
    let process = start(&session, &json!({ "cmd": "read line; echo got $line; cat", "tty": tty }));
    let mut client = process.attach("");
    assert_eq!(process.stdin(b"hello\n", "").status(), 200);
    client.until("got hello\r\n");
    // ^D at the start of a line ends `cat`.
    assert_eq!(process.stdin(b"\x04", "").status(), 200);
    assert_eq!(client.exit()["exit_code"], 0);
}
