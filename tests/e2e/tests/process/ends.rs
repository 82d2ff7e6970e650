//! How processes end, and what goes with them.

use std::thread;

use sandkasten_e2e::wait;

use super::*;

#[test]
fn codes_are_those_of_a_shell() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let end = |request: &Value| {
        let done = run_with(&session, request);
        (done.code(), done.reason().to_owned(), done.body["signal"].as_i64())
    };
    let exited = |code: i64| (code, "exited".to_owned(), None);
    assert_eq!(end(&json!({ "argv": ["true"] })), exited(0));
    assert_eq!(end(&json!({ "cmd": "exit 255" })), exited(255));
    assert_eq!(end(&json!({ "argv": ["no-such-program"] })), exited(127));
    assert_eq!(end(&json!({ "argv": ["/no/such/program"] })), exited(127));
    assert_eq!(end(&json!({ "argv": ["/etc/passwd"] })), exited(126));
    assert_eq!(end(&json!({ "argv": ["/tmp"] })), exited(126));
    assert_eq!(end(&json!({ "cmd": "kill -9 $$" })), (137, "signaled".to_owned(), Some(9)));
    assert_eq!(end(&json!({ "cmd": "kill -SEGV $$" })), (139, "signaled".to_owned(), Some(11)));
}

#[test]
fn a_program_that_is_not_there_was_started_all_the_same() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["no-such-program"] }));
    assert_eq!(process.exit()["exit_code"], 127);
    assert_eq!(process.info()["status"], "finished");
}

#[test]
fn a_timeout_takes_all_that_it_started() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "setsid sh -c 'sleep 987 & sleep 987' & nohup sleep 987 & trap '' TERM INT; echo x; sleep 987";
    let done = run_with(&session, &json!({ "cmd": cmd, "timeout_ms": 500 }));
    assert_eq!((done.reason(), done.text().as_str()), ("timeout", "x\n"), "{}", done.body);
    assert!(done.took < Duration::from_millis(500 + 1000), "{:?}", done.took);
    assert_ne!(done.code(), 0);
    assert!(!session.run("ps -eo args").contains("sleep 987"));
}

#[test]
fn a_delete_takes_all_that_it_started() {
    let lab = Lab::shared();
    let session = base(&lab);
    let own = session.exec("sleep 986 & echo");
    assert_eq!(own.code(), 0);
    let cmd = "setsid sh -c '(sleep 988 &) ; sleep 988' & trap '' TERM; echo ready; while :; do sleep 988; done";
    let process = start(&session, &json!({ "cmd": cmd }));
    let mut client = process.attach("");
    client.until("ready");
    process.kill();
    let exit = client.exit();
    assert_eq!(exit["exit_reason"], "cancelled", "{exit}");
    let left = session.run("ps -eo args");
    assert!(!left.contains("sleep 988"), "{left}");
    assert!(left.contains("sleep 986"), "the shell's own jobs live on: {left}");
    // A second time it is over already.
    process.kill();
    assert_eq!(process.info()["exit_reason"], "cancelled");
}

#[test]
fn it_is_over_when_the_process_itself_is() {
    let lab = Lab::shared();
    let session = base(&lab);
    for cmd in ["sleep 985 & echo x", "setsid sleep 985 & echo x", "(sleep 985 &); echo x"] {
        let done = run_with(&session, &json!({ "cmd": cmd }));
        assert_eq!((done.code(), done.text().as_str()), (0, "x\n"), "{cmd}");
        assert!(done.took < AT_ONCE, "{cmd}: {:?}", done.took);
    }
    let count = session.run("ps -eo args | grep -c '^sleep 985'");
    assert_eq!(count, "3\n", "children that go on outlive their process");
}

#[test]
fn a_delete_takes_children_that_went_on() {
    let lab = Lab::shared();
    let session = base(&lab);
    let process = start(&session, &json!({ "cmd": "setsid sleep 984 & sleep 984 & echo x" }));
    assert_eq!(process.exit()["exit_code"], 0);
    assert!(session.run("ps -eo args").contains("sleep 984"));
    process.kill();
    assert!(!session.run("ps -eo args").contains("sleep 984"));
    assert_eq!(process.info()["exit_reason"], "exited", "it had ended before");
}

#[test]
fn the_end_of_a_session_is_the_end_of_its_processes() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["sleep", "1000"] }));
    let path = process.path("/events?follow=true");
    let follows = session.request("GET", &path).stream().replay();
    let mut client = process.attach("");
    assert_eq!(session.delete().status(), 200);
    let events = follows.all();
    let last = events.last().expect("an event");
    assert_eq!(
        (last.name.as_str(), &last.data["error_code"]),
        ("error", &json!("SESSION_DESTROYED"))
    );
    let error = client.text();
    assert_eq!(
        (&error["type"], &error["error_code"]),
        (&json!("error"), &json!("SESSION_DESTROYED"))
    );
    assert!(matches!(client.socket.message(), Some(Message::Close(_))));
}

#[test]
fn a_wait_says_when_the_session_ended_under_it() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    thread::scope(|scope| {
        let waits =
            scope.spawn(|| ask(&session, &json!({ "argv": ["sleep", "1000"], "wait": true })));
        wait::until("the process runs", AT_ONCE, || {
            let list = session.request("GET", "/processes").send().ok(200);
            list["processes"][0]["status"] == "running"
        });
        assert_eq!(session.delete().status(), 200);
        waits.join().expect("no panic").error(410, "SESSION_DESTROYED");
    });
}

#[test]
fn who_leaves_a_wait_kills_unless_it_is_to_be_kept() {
    let lab = Lab::shared();
    let session = base(&lab);
    let leave = |request: Value| {
        let mut connection = lab.client.connect().expect("connect");
        let post = session.request("POST", "/processes").json(&request);
        connection.write(&post.bytes()).expect("send");
        wait::until("it runs", AT_ONCE, || session.run("ps -eo args").contains("sleep 983"));
        drop(connection);
    };
    leave(json!({ "cmd": "setsid sleep 983 & sleep 983", "wait": true }));
    wait::until("it is gone", AT_ONCE, || !session.run("ps -eo args").contains("sleep 983"));
    let list = session.request("GET", "/processes").send().ok(200);
    let left = &list["processes"][0];
    // Its processes are gone a moment before that is known: an event tells when.
    let id = left["process_id"].as_str().expect("an id").to_owned();
    let left = Process { session: &session, id, pid: left["pid"].as_i64().expect("a pid") };
    assert_eq!(left.exit()["exit_reason"], "cancelled");

    leave(json!({ "cmd": "echo kept; sleep 983; exit 4", "wait": true, "on_disconnect": "keep" }));
    let list = session.request("GET", "/processes").send().ok(200);
    let kept = list["processes"].as_array().expect("a list").last().expect("one").clone();
    assert_eq!(kept["status"], "running", "{kept}");
    let id = kept["process_id"].as_str().expect("an id").to_owned();
    let pid = kept["pid"].as_i64().expect("a pid");
    let process = Process { session: &session, id, pid };
    session.run("kill $(ps -eo pid,args | grep 'sleep 983$' | grep -v -e sh -e grep | cut -c1-8)");
    assert_eq!(process.exit()["exit_code"], 4);
    assert_eq!(bytes_of(&process.events(""), "stdout"), b"kept\n");
}

#[test]
fn many_run_side_by_side_and_beside_the_shell() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base", "limits": { "pids": 512 } }));
    thread::scope(|scope| {
        let shell = scope.spawn(|| session.exec("sleep 3; echo shell"));
        let start = std::time::Instant::now();
        let waits: Vec<_> = (0..20)
            .map(|n| {
                let session = &session;
                scope.spawn(move || {
                    let done = run_with(session, &json!({ "cmd": format!("sleep 1; echo {n}") }));
                    assert_eq!(done.text(), format!("{n}\n"));
                })
            })
            .collect();
        for wait in waits {
            wait.join().expect("its own output");
        }
        assert!(
            start.elapsed() < Duration::from_millis(2900),
            "side by side: {:?}",
            start.elapsed()
        );
        assert_eq!(shell.join().expect("no panic").output(), "shell\n");
    });
    session.alive();
}

#[test]
fn the_program_leads_neither_session_nor_group() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "set -- $(cut -d' ' -f1,5,6 /proc/self/stat); test $1 != $2 && test $1 != $3 && echo no leader";
    assert_eq!(says(&session, &["sh", "-c", cmd]), "no leader\n");
    // So that this runs in place and is waited for.
    let done = run(&session, &["setsid", "sh", "-c", "echo in place; exit 9"]);
    assert_eq!((done.code(), done.text().as_str()), (9, "in place\n"));
}

#[test]
fn want_of_memory_is_named() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "python", "limits": { "memory_mb": 128 } }));
    let done =
        run(&session, &["python3", "-c", "x = bytearray(1 << 30); x[::4096] = b'x' * (1 << 18)"]);
    assert_eq!((done.code(), done.reason()), (137, "oom"), "{}", done.body);
    assert!(done.body["oom_kills"].as_u64() >= Some(1), "{}", done.body);
    assert_eq!(done.body["memory_limit"], 128 << 20, "{}", done.body);
    session.alive();
}
