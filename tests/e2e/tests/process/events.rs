//! Events: numbered, kept, the same however often they are read.

use sandkasten_e2e::wait;

use super::*;

fn texts(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.text.as_str()).collect()
}

#[test]
fn a_replay_has_the_same_bytes_each_time() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let cmd = r"for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.1; done; printf '\377\000'; exit 2";
    let process = start(&session, &json!({ "cmd": cmd }));
    let live = process.events("?follow=true");
    assert_eq!(bytes_of(&live, "stdout"), b"out 1\nout 2\nout 3\n\xff\0");
    assert_eq!(bytes_of(&live, "stderr"), b"err 1\nerr 2\nerr 3\n");
    let exit = live.last().expect("an event");
    assert_eq!((exit.name.as_str(), &exit.data["exit_code"]), ("exit", &json!(2)));
    for query in ["", "?follow=true", "?after=0", "?follow=false"] {
        assert_eq!(texts(&process.events(query)), texts(&live), "{query}");
    }
    for (n, event) in live.iter().enumerate() {
        assert_eq!(event.data.get("seq").unwrap_or(&json!(event.id)), &json!(event.id));
        let rest = process.events(&format!("?after={}", event.id));
        assert_eq!(texts(&rest), texts(&live[n + 1..]), "after {}", event.id);
    }
}

#[test]
fn output_leaves_as_it_is_written() {
    let lab = Lab::shared();
    let session = python(&lab);
    let program = "import time\n\
        for n in range(5):\n    print(time.time(), flush=True); time.sleep(0.3)";
    let process = start(&session, &json!({ "argv": ["python3", "-c", program] }));
    let path = process.path("/events?follow=true");
    let begin = std::time::SystemTime::now();
    let events = session.request("GET", &path).stream().replay().all();
    let begin = begin.duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs_f64();
    for event in events.iter().filter(|event| event.name == "output").skip(1) {
        let bytes = decode(&event.data["data_base64"]);
        let written: f64 =
            String::from_utf8_lossy(&bytes).trim().parse().expect("one line a write");
        let late = begin + event.at.as_secs_f64() - written;
        assert!(late < 0.15, "{late} s late");
        let stamp = event.data["timestamp"].as_f64().expect("a number") / 1000.0;
        assert!((stamp - written).abs() < 0.15, "{stamp} for {written}");
    }
}

#[test]
fn the_header_says_where_to_go_on() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process =
        start(&session, &json!({ "cmd": "echo a; sleep 0.1; echo b; sleep 0.1; echo c" }));
    let all = process.events("?follow=true");
    let with = |query: &str, id: &str| {
        let request = session.request("GET", &process.path(&format!("/events{query}")));
        request.header("Last-Event-ID", id).stream().replay().all()
    };
    let second = all[1].id.to_string();
    assert_eq!(texts(&with("", &second)), texts(&all[2..]));
    assert_eq!(texts(&with("?after=0&follow=true", &second)), texts(&all[2..]));
    for bad in ["x", "-1", "1.5", "+1", "0x1"] {
        let path = process.path(&format!("/events?after={}", sandkasten_e2e::session::escape(bad)));
        session.request("GET", &path).send().error(400, "INVALID_REQUEST");
        let request = session.request("GET", &process.path("/events"));
        request.header("Last-Event-ID", bad).send().error(400, "INVALID_REQUEST");
    }
    for bad in ["after=", "after=1&after=2", "follow=yes", "follow=", "follow=1"] {
        let path = process.path(&format!("/events?{bad}"));
        session.request("GET", &path).send().error(400, "INVALID_REQUEST");
    }
}

#[test]
fn without_follow_what_is_there_is_given_at_once() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "cmd": "echo x; sleep 1000" }));
    let mut client = process.attach("");
    client.until("x\n");
    let begin = std::time::Instant::now();
    let events = process.events("");
    assert!(begin.elapsed() < AT_ONCE);
    assert_eq!(bytes_of(&events, "stdout"), b"x\n");
    assert!(events.iter().all(|event| event.name == "output"), "{events:?}");
    assert!(process.events("?after=1000").is_empty());
}

#[test]
fn the_middle_of_what_is_too_much_is_one_gap() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "echo first; head -c 50000000 /dev/zero; echo last";
    let process = start(&session, &json!({ "cmd": cmd }));
    wait::until("it ends", Duration::from_secs(60), || process.info()["status"] == "finished");
    let events = process.events("");
    let gaps: Vec<&Event> = events.iter().filter(|event| event.name == "gap").collect();
    assert_eq!(gaps.len(), 1, "one gap");
    let gap = &gaps[0].data;
    let kept = bytes_of(&events, "");
    assert!(kept.starts_with(b"first\n\0") && kept.ends_with(b"\0last\n"));
    assert_eq!(kept.len() as u64 + gap["bytes"].as_u64().expect("a number"), 50_000_011);
    assert_eq!((gap["seq"].as_u64(), gap["to_seq"].as_u64()), (Some(gaps[0].id), Some(gaps[0].id)));
    assert!(kept.len() > 15 * MIB, "16 MiB are kept: {}", kept.len());
    assert_eq!(texts(&process.events("?follow=true")), texts(&events));
    let end = events.last().expect("an event");
    assert_eq!((end.name.as_str(), &end.data["truncated"]), ("exit", &json!(true)));
}

#[test]
fn output_of_a_child_that_goes_on_comes_behind_the_exit() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let cmd = "(sleep 0.5; echo late) & echo early";
    let process = start(&session, &json!({ "cmd": cmd }));
    let exit = process.events("?follow=true");
    let exit_id = exit.iter().find(|event| event.name == "exit").expect("an exit").id;
    let late = process.events(&format!("?after={exit_id}&follow=true"));
    assert_eq!(bytes_of(&late, "stdout"), b"late\n");
    let all = process.events("");
    let names: Vec<&str> = all.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["output", "exit", "output"]);
}

#[test]
fn silence_is_filled() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let process = start(&session, &json!({ "argv": ["sleep", "1000"] }));
    let path = process.path("/events?follow=true");
    let mut stream = session.request("GET", &path).stream();
    let chunk = stream.next_chunk().expect("a comment");
    assert!(chunk.data.starts_with(b":") && chunk.data.ends_with(b"\n\n"), "{chunk:?}");
    assert!((9..13).contains(&chunk.at.as_secs()), "{:?}", chunk.at);
}

#[test]
fn followers_do_not_hold_anybody_up() {
    let lab = Lab::shared();
    let session = base(&lab);
    let process = start(
        &session,
        &json!({ "cmd": "read go; head -c 30000000 /dev/zero; echo", "stdin": "open" }),
    );
    // One that never reads.
    let path = process.path("/events?follow=true");
    let _stalled = session.request("GET", &path).stream();
    assert_eq!(process.stdin(b"go\n", "").status(), 200);
    wait::until("it ends", Duration::from_secs(30), || process.info()["status"] == "finished");
    session.alive();
}
