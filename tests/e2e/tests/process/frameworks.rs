//! What agent frameworks ask of a sandbox's processes, in their shapes.

use std::thread;

use super::*;

/// LangChain and the agents SDK read many outputs at once.
#[test]
fn five_outputs_of_500_kib_at_once() {
    let lab = Lab::shared();
    let session = python(&lab);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..5)
            .map(|n| {
                let session = &session;
                scope.spawn(move || {
                    let program = format!("print('{n}' * 512000, end='')");
                    let done = run(session, &["sh", "-lc", &format!("python3 -c \"{program}\"")]);
                    assert_eq!(done.body["truncated"], false);
                    assert!(done.text() == n.to_string().repeat(512_000));
                })
            })
            .collect();
        for reader in readers {
            reader.join().expect("its own output");
        }
    });
}

/// inspect: a timeout takes background children too; 1 MiB of arguments; errors told apart.
#[test]
fn a_tool_call_with_a_limit() {
    let lab = Lab::shared();
    let session = python(&lab);
    let cmd = json!(["bash", "-c", "sleep 982 & sleep 982"]);
    let done = run_with(&session, &json!({ "argv": cmd, "timeout_ms": 1000 }));
    assert_eq!(done.reason(), "timeout");
    assert!(!session.run("ps -eo args").contains("sleep 982"));
    let text = "x".repeat(100_000);
    let argv: Vec<&str> = ["sh", "-c", "echo $# $(printf %s \"$@\" | wc -c)", "sh"]
        .into_iter()
        .chain(std::iter::repeat_n(text.as_str(), 10))
        .collect();
    assert_eq!(says(&session, &argv), "10 1000000\n");
    let done = run_with(
        &session,
        &json!({ "argv": ["cat"], "stdin": data("ü\n".as_bytes()), "user": "root" }),
    );
    assert_eq!(done.text(), "ü\n");
    session.write("script", b"#!/bin/sh\necho no\n", "0644");
    assert_eq!(run(&session, &["/workspace/script"]).code(), 126);
}

/// pydantic-ai: `setsid` runs in place, and what it leaves behind survives.
#[test]
fn a_detached_child_survives_its_command() {
    let lab = Lab::shared();
    let session = base(&lab);
    let done = run(&session, &["setsid", "sh", "-c", "echo out; exit 4"]);
    assert_eq!((done.code(), done.text().as_str()), (4, "out\n"));
    let cmd =
        "setsid sh -c 'sleep 1; echo done > /workspace/detached' >/dev/null 2>&1 & echo started";
    assert_eq!(says(&session, &["sh", "-c", cmd]), "started\n");
    sandkasten_e2e::wait::until("it wrote", Duration::from_secs(5), || {
        session.exec("cat /workspace/detached").output() == "done\n"
    });
}

/// E2B: `bash -l` on a PTY, resized, typed into, killed; a rune that is cut at the edge of a read.
#[test]
fn a_terminal_that_is_killed() {
    let lab = Lab::shared();
    let session = python(&lab);
    let request = json!({ "argv": ["bash", "-l"], "tty": { "rows": 24, "cols": 80 }, "env": { "TERM": "xterm" } });
    let process = start(&session, &request);
    let mut client = process.attach("");
    client.stdin(b"echo $TERM $((20 + 3))\n");
    client.until("xterm 23\r\n");
    process.signal(&json!("KILL"));
    let exit = client.exit();
    assert_eq!((&exit["exit_code"], &exit["signal"]), (&json!(137), &json!(9)));
    let program = "import sys; sys.stdout.buffer.write(b'a' * 8191 + b'\\xe2'); sys.stdout.flush()";
    let done = run(&session, &["python3", "-c", program]);
    assert_eq!(done.stdout(), [vec![b'a'; 8191], vec![0xe2]].concat());
}
