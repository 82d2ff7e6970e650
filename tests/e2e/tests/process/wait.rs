//! Answers of `wait`: whole, exact, large.

use super::alone::resident_mib;
use super::*;

#[test]
fn an_answer_has_its_fields() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let done = run_with(&session, &json!({ "cmd": "echo out; echo err >&2; sleep 0.2" }));
    let fields: Vec<&str> =
        done.body.as_object().expect("an object").keys().map(String::as_str).collect();
    let must = [
        "duration_ms",
        "exit_code",
        "exit_reason",
        "process_id",
        "stderr_base64",
        "stdout_base64",
        "truncated",
    ];
    for field in must {
        assert!(fields.contains(&field), "{field}: {}", done.body);
    }
    assert_eq!((done.text().as_str(), done.stderr().as_slice()), ("out\n", &b"err\n"[..]));
    let took = done.body["duration_ms"].as_u64().expect("a number");
    assert!((200..1500).contains(&took), "{took} ms");
    assert!(done.body.get("signal").is_none(), "{}", done.body);
}

#[test]
fn sixty_four_mebibytes_a_stream_come_back() {
    let lab = Lab::shared();
    let session = python(&lab);
    // Random enough that a piece at the wrong place is seen.
    let program = "import hashlib, sys\n\
        data = b''.join(hashlib.sha256(b'%d' % n).digest() for n in range(2 << 20))\n\
        sys.stdout.buffer.write(data); sys.stderr.buffer.write(data[::-1])\n\
        sys.stdout.flush(); sys.stderr.flush()\n\
        open('/workspace/sum', 'w').write(hashlib.sha256(data).hexdigest() + ' ' + hashlib.sha256(data[::-1]).hexdigest())";
    let done =
        run_with(&session, &json!({ "argv": ["python3", "-c", program], "timeout_ms": 120_000 }));
    assert_eq!((done.code(), &done.body["truncated"]), (0, &json!(false)));
    let (out, err) = (done.stdout(), done.stderr());
    assert_eq!((out.len(), err.len()), (64 * MIB, 64 * MIB));
    assert!(err.iter().rev().eq(out.iter()), "stderr is stdout backwards");
    session.write("out", &out[..16 * MIB], "0644");
    let check = "python3 -c \"import hashlib\n\
        data = b''.join(hashlib.sha256(b'%d' % n).digest() for n in range(512 << 10))\n\
        print(open('/workspace/out', 'rb').read() == data)\"";
    assert_eq!(session.run(check), "True\n");
}

#[test]
fn more_than_is_kept_is_said() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "echo first; head -c 100000000 /dev/zero; echo last";
    let done = run_with(&session, &json!({ "cmd": cmd, "timeout_ms": 120_000 }));
    assert_eq!((done.code(), &done.body["truncated"]), (0, &json!(true)));
    let out = done.stdout();
    assert!(out.starts_with(b"first\n\0") && out.ends_with(b"\0last\n"), "head and tail");
    assert!((60 * MIB..=64 * MIB).contains(&out.len()), "{} bytes", out.len());
    assert_eq!(done.body["output_bytes"], 100_000_011);
}

#[test]
fn large_answers_cost_the_daemon_nothing() {
    let lab = Lab::start();
    let session = lab.session(&json!({}));
    assert_eq!(run(&session, &["true"]).code(), 0);
    let before = resident_mib(&lab);
    let cmd = "dd if=/dev/zero bs=1048576 count=60 2>/dev/null";
    for _ in 0..3 {
        let done = run_with(&session, &json!({ "cmd": cmd, "timeout_ms": 120_000 }));
        assert_eq!(done.stdout().len(), 60 * MIB);
    }
    let after = resident_mib(&lab);
    assert!(after < before + 40, "{before} MiB became {after} MiB");
}

#[test]
fn a_wait_with_a_tty_has_all_in_stdout() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let tty = json!({ "rows": 24, "cols": 80 });
    let done = run_with(&session, &json!({ "cmd": "echo out; echo err >&2", "tty": tty }));
    assert_eq!((done.text().as_str(), done.stderr()), ("out\r\nerr\r\n", vec![]));
}

#[test]
fn a_process_that_was_waited_for_can_be_looked_up() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let done = run_with(&session, &json!({ "cmd": "echo x; exit 3" }));
    let id = done.body["process_id"].as_str().expect("an id").to_owned();
    let process = Process { session: &session, id, pid: 0 };
    assert_eq!(process.info()["exit_code"], 3);
    assert_eq!(bytes_of(&process.events(""), "stdout"), b"x\n");
}
