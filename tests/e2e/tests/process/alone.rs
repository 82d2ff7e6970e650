//! Processes and their daemon: stops, kills, and what waits for a new one.

use super::*;

#[test]
fn a_process_outlives_its_daemon() {
    let mut lab = Lab::start();
    let id = {
        let session = lab.session(&json!({}));
        let cmd = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i + 1)); sleep 0.1; done; read x; echo $x; exit 9";
        let process = start(&session, &json!({ "cmd": cmd, "stdin": "open" }));
        let mut client = process.attach("");
        client.until("line 3\n");
        let ids = (session.id.clone(), process.id.clone(), process.events(""));
        // It is to live on.
        std::mem::forget(session);
        ids
    };
    let (session_id, process_id, before) = id;
    lab.kill();
    lab.restart();
    let path = format!("/v1/sessions/{session_id}/processes/{process_id}");
    let events =
        |query: &str| lab.client.request("GET", &format!("{path}/events{query}")).stream().replay();
    let text = |event: &Event| event.text.clone();
    let again: Vec<String> = events("").all().iter().map(text).collect();
    let first: Vec<String> = before.iter().map(text).collect();
    assert_eq!(again[..first.len()], first, "the same bytes from another daemon");
    let input = lab.client.request("POST", &format!("{path}/stdin")).body("typed\n").send();
    assert_eq!(input.status(), 200, "{input}");
    let all = events("?follow=true").all();
    let lines: String = (0..40).map(|n| format!("line {n}\n")).chain(["typed\n".into()]).collect();
    assert_eq!(String::from_utf8(bytes_of(&all, "stdout")).expect("text"), lines);
    assert_eq!(all.last().expect("an event").data["exit_code"], 9);
    lab.stop();
    lab.restart();
    let events = lab.client.request("GET", &format!("{path}/events")).stream().replay().all();
    assert_eq!(
        events.iter().map(text).collect::<Vec<_>>(),
        all.iter().map(text).collect::<Vec<_>>()
    );
    assert_eq!(lab.client.get(&path).ok(200)["exit_code"], 9);
    assert_eq!(lab.client.delete(&format!("/v1/sessions/{session_id}")).status(), 200);
}

#[test]
fn a_stop_closes_sockets_and_follows_at_once() {
    let mut lab = Lab::start();
    let (mut client, follows, session_id) = {
        let session = lab.session(&json!({}));
        let process = start(&session, &json!({ "cmd": "echo x; sleep 1000" }));
        let mut client = process.attach("");
        client.until("x\n");
        let path = process.path("/events?follow=true");
        let mut follows = session.request("GET", &path).stream().replay();
        assert_eq!(follows.next().expect("an event").name, "output");
        let id = session.id.clone();
        std::mem::forget(session);
        (client, follows, id)
    };
    let begin = std::time::Instant::now();
    let status = lab.stop();
    assert!(status.success() && begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(client.socket.message(), Some(Message::Close(1001)));
    let last = follows.all().pop().expect("an event");
    assert_eq!((last.name.as_str(), &last.data["error_code"]), ("error", &json!("DRAINING")));
    assert_eq!(last.id, 1, "a client goes on behind what it had");
    lab.restart();
    assert_eq!(lab.client.delete(&format!("/v1/sessions/{session_id}")).status(), 200);
}

#[test]
fn an_attached_session_does_not_expire() {
    let lab = Lab::start();
    let session = lab.session(&json!({ "ttl_seconds": 2 }));
    let process = start(&session, &json!({ "cmd": "read x; exit 3", "stdin": "open" }));
    let mut client = process.attach("");
    sandkasten_e2e::wait::prescribed(Duration::from_secs(4));
    client.stdin(b"x\n");
    assert_eq!(client.exit()["exit_code"], 3);
}

#[test]
fn clients_that_never_read_cost_the_daemon_little() {
    let lab = Lab::start();
    let session = lab.session(&json!({}));
    let process = start(&session, &json!({ "argv": ["yes"] }));
    let mut client = process.attach("");
    client.until("y\ny\n");
    let before = resident_mib(&lab);
    let mut stalled: Vec<Attached> = (0..40).map(|_| process.attach("")).collect();
    // And what they send goes nowhere.
    for client in &mut stalled {
        client.order(&json!({ "type": "eof" }));
    }
    sandkasten_e2e::wait::prescribed(Duration::from_secs(3));
    let after = resident_mib(&lab);
    assert!(after < before + 60, "{before} MiB became {after} MiB");
    session.alive();
    process.kill();
}

/// The most memory that the daemon ever had.
pub(crate) fn resident_mib(lab: &Lab) -> usize {
    let status = sandkasten_e2e::host::proc_file(lab.pid(), "status");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("VmHWM");
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok());
    kib.expect("a number") / 1024
}
