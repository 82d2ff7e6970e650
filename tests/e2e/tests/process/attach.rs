//! Sockets: two clients, late ones, orders, and clients that are no good.

use sandkasten_e2e::wait;

use super::*;

#[test]
fn output_stdin_and_the_end() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let cmd = "echo out; echo err >&2; read line; echo got $line; exit 6";
    let process = start(&session, &json!({ "cmd": cmd, "stdin": "open" }));
    let mut client = process.attach("");
    client.until("out\n");
    client.stdin(b"hello\n");
    let exit = client.exit();
    assert_eq!((&exit["exit_code"], &exit["exit_reason"]), (&json!(6), &json!("exited")));
    assert_eq!(
        (client.stdout.as_slice(), client.stderr.as_slice()),
        (&b"out\ngot hello\n"[..], &b"err\n"[..])
    );
    // It can still be attached to.
    let mut late = process.attach("");
    assert_eq!(late.exit(), exit);
    assert_eq!(late.stdout, client.stdout);
}

#[test]
fn eof_comes_behind_what_was_sent() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["wc", "-c"], "stdin": "open" }));
    let mut client = process.attach("");
    for _ in 0..64 {
        client.stdin(&vec![b'x'; 64 * 1024]);
    }
    client.order(&json!({ "type": "eof" }));
    assert_eq!(client.exit()["exit_code"], 0);
    assert_eq!(client.stdout, format!("{}\n", 4 * MIB).as_bytes());
}

#[test]
fn two_clients_see_and_do_the_same() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["cat"], "stdin": "open" }));
    let (mut one, mut two) = (process.attach(""), process.attach(""));
    one.stdin(b"from one\n");
    for client in [&mut one, &mut two] {
        client.until("from one\n");
    }
    two.stdin(b"from two\n");
    for client in [&mut one, &mut two] {
        client.until("from two\n");
    }
    // One may leave, with or without a word.
    one.socket.close();
    assert_eq!(one.socket.message(), Some(Message::Close(1000)));
    assert_eq!(one.socket.message(), None);
    let three = process.attach("");
    drop(three);
    two.stdin(b"still here\n");
    two.until("still here\n");
    two.order(&json!({ "type": "eof" }));
    assert_eq!(two.exit()["exit_code"], 0);
    assert_eq!(two.stdout, b"from one\nfrom two\nstill here\n");
}

#[test]
fn a_late_client_gets_the_recent_screenful() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "seq 1 100000; read line; echo after $line";
    let process = start(&session, &json!({ "cmd": cmd, "stdin": "open" }));
    let mut early = process.attach("?after=0");
    early.until("\n100000\n");
    let mut late = process.attach("");
    late.until("\n100000\n");
    assert!(early.stdout.ends_with(&late.stdout), "the end of what there is");
    let size = late.stdout.len();
    assert!((32 * 1024..=64 * 1024).contains(&size), "{size} bytes");
    late.stdin(b"x\n");
    late.until("after x\n");
    early.until("after x\n");
    // What is known already is not sent again.
    let events = process.events("");
    let last = events.iter().rfind(|event| event.name == "output").expect("an event").id;
    let mut knowing = process.attach(&format!("?after={last}"));
    assert_eq!(knowing.exit()["exit_code"], 0);
    assert_eq!(knowing.stdout, b"");
    for bad in ["?after=x", "?after=-1", "?after="] {
        let request = session.request("GET", &process.path(&format!("/attach{bad}")));
        request.upgrade().expect_err("no socket").error(400, "INVALID_REQUEST");
    }
}

#[test]
fn a_process_that_never_stops_writing_is_seen_all_the_same() {
    let lab = Lab::shared();
    let session = base(&lab);
    let process = start(&session, &json!({ "argv": ["yes"] }));
    let mut client = process.attach("");
    client.until("y\ny\n");
    process.kill();
    assert_eq!(client.text_but("gap")["exit_reason"], "cancelled");
}

#[test]
fn a_terminal_over_a_socket() {
    let lab = Lab::shared();
    let session = python(&lab);
    let request = json!({ "argv": ["bash", "--norc", "-i"], "tty": { "rows": 24, "cols": 80 }, "env": { "PS1": "> " } });
    let process = start(&session, &request);
    let mut client = process.attach("");
    client.until("> ");
    client.stdin(b"stty size; tty\n");
    client.until("24 80\r\n");
    client.until("/dev/pts/");
    client.order(&json!({ "type": "resize", "rows": 40, "cols": 120 }));
    client.stdin(b"stty size\n");
    client.until("40 120\r\n");
    // ^C ends what runs in the foreground, and the shell goes on.
    client.stdin(b"sleep 1000; echo not reached\n");
    wait::until("it sleeps", AT_ONCE, || session.run("ps -eo args").contains("sleep 1000"));
    client.stdin(b"\x03");
    client.stdin(b"echo st''ill here $?\n");
    client.until("still here 130\r\n");
    client.stdin(b"exit 3\n");
    assert_eq!(client.exit()["exit_code"], 3);
    assert!(client.stderr.is_empty());
}

#[test]
fn signals_do_not_wait_behind_stdin() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["sleep", "1000"], "stdin": "open" }));
    let mut client = process.attach("");
    for _ in 0..4 {
        client.stdin(&vec![b'x'; 60 * 1024]);
    }
    client.order(&json!({ "type": "signal", "signal": "TERM" }));
    let exit = client.text();
    assert_eq!((&exit["exit_code"], &exit["signal"]), (&json!(143), &json!(15)), "{exit}");
}

#[test]
fn bad_messages_are_told_and_forgiven() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["cat"], "stdin": "open" }));
    let mut client = process.attach("");
    for bad in [
        "",
        "eof",
        "[]",
        "{}",
        r#"{"type":"exit"}"#,
        r#"{"type":"signal"}"#,
        r#"{"type":"signal","signal":"NOPE"}"#,
        r#"{"type":"resize","rows":1}"#,
    ] {
        client.socket.raw_text(bad);
        let error = client.text();
        assert_eq!(
            (&error["type"], &error["error_code"]),
            (&json!("error"), &json!("INVALID_REQUEST")),
            "{bad}: {error}"
        );
    }
    client.order(&json!({ "type": "resize", "rows": 1, "cols": 1 }));
    assert_eq!(client.text()["error_code"], "CONFLICT", "it has no PTY");
    for bad in [&b""[..], b"\x01x", b"\x07"] {
        client.socket.binary(bad);
        assert_eq!(client.text()["error_code"], "INVALID_REQUEST");
    }
    client.stdin(b"fine\n");
    client.until("fine\n");
    let closed = start(&session, &json!({ "argv": ["sleep", "1000"] }));
    let mut client = closed.attach("");
    client.stdin(b"x");
    assert_eq!(client.text()["error_code"], "CONFLICT", "it takes no stdin");
}

#[test]
fn messages_have_a_limit() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["wc", "-c"], "stdin": "open" }));
    let mut client = process.attach("");
    client.stdin(&vec![b'x'; MIB - 1]);
    client.order(&json!({ "type": "eof" }));
    assert_eq!(client.exit()["exit_code"], 0);
    assert_eq!(client.stdout, format!("{}\n", MIB - 1).as_bytes());
    let process = start(&session, &json!({ "argv": ["cat"], "stdin": "open" }));
    let mut client = process.attach("");
    // The daemon closes before it has read it all.
    drop(client.socket.frame(2, &vec![0; MIB + 1]));
    let closed = loop {
        match client.socket.try_next() {
            Ok(Some(Message::Close(code))) => break code,
            Ok(Some(_)) => {}
            other => panic!("no close: {other:?}"),
        }
    };
    assert_eq!(closed, 1009);
    assert_eq!(process.info()["status"], "running");
    session.alive();
}

#[test]
fn a_client_that_never_reads_holds_nobody_up() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "read go; head -c 15000000 /dev/zero | tr '\\0' y; echo; echo end";
    let process = start(&session, &json!({ "cmd": cmd, "stdin": "open" }));
    let _stalled = process.attach("");
    let mut client = process.attach("");
    client.stdin(b"go\n");
    client.socket.set_patience(Duration::from_secs(30));
    assert_eq!(client.exit()["exit_code"], 0);
    assert_eq!(client.stdout.len(), 15_000_005);
    assert!(client.stdout.ends_with(b"y\nend\n"), "to the end");
    session.alive();
}

#[test]
fn what_was_sent_before_leaving_arrives() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process =
        start(&session, &json!({ "cmd": "cat > /workspace/file; echo whole", "stdin": "open" }));
    let mut client = process.attach("");
    client.stdin(b"all of it\n");
    client.order(&json!({ "type": "eof" }));
    drop(client);
    assert_eq!(process.exit()["exit_code"], 0);
    assert_eq!(session.run("cat /workspace/file"), "all of it\n");
}

#[test]
fn a_socket_wants_the_key_and_the_handshake() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["cat"], "stdin": "open" }));
    let path = session.path(&process.path("/attach"));
    let anonymous = lab.client.anonymous();
    anonymous.request("GET", &path).upgrade().expect_err("no socket").error(401, "UNAUTHORIZED");
    lab.client.get(&path).error(400, "INVALID_REQUEST");
    lab.client.post(&path, &json!({})).error(405, "METHOD_NOT_ALLOWED");
}

#[test]
fn a_real_client_talks_to_it() {
    let python = sandkasten_e2e::lab::venv("websockets", &["websockets==15.0.1"]);
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["cat"], "stdin": "open" }));
    let program = "import asyncio, json, sys\n\
        from websockets.asyncio.client import connect\n\
        async def main():\n\
        \x20   async with connect(sys.argv[1], additional_headers={'Authorization': 'Bearer ' + sys.argv[2]}) as socket:\n\
        \x20       await socket.send(b'\\0hello')\n\
        \x20       print(await socket.recv())\n\
        \x20       await (await socket.ping())\n\
        \x20       await socket.send(json.dumps({'type': 'eof'}))\n\
        \x20       print(json.loads(await socket.recv())['exit_code'])\n\
        \x20       await socket.wait_closed()\n\
        \x20       print(socket.close_code)\n\
        asyncio.run(main())";
    let address = format!("ws://{}{}", lab.client.addr, session.path(&process.path("/attach")));
    let key = lab.client.key.clone().unwrap_or_default();
    let output = std::process::Command::new(python).args(["-c", program, &address, &key]).output();
    let output = output.expect("run python");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text, "b'\\x01hello'\n0\n1000\n", "{errors}");
}
