//! Commands that outlive who asked for them: ids, detach, the queue, replays after cut connections
//! and after a daemon that was killed, gaps, late output.

use std::time::Duration;

use sandkasten_e2e::session::decode;
use sandkasten_e2e::{Lab, Session, host, wait};
use serde_json::{Value, json};

use crate::{
    AT_ONCE, MIB, Replay, Told, base, cut_off, detach, finished, gives, is_running, play, python,
    replay, runs, status, timed,
};

/// A command with a moment in its middle: it writes, waits for the file `go`, and writes again.
fn in_two_parts(token: &str) -> String {
    format!(
        "echo {token} begun; printf 'é\\033[1mx\\r\\n'; echo {token} ran >> /tmp/{token}; \
         until test -e /tmp/go-{token}; do sleep 0.02; done; seq 300; echo {token} over >&2; (exit 5)"
    )
}

fn go(session: &Session<'_>, token: &str) {
    session.write(&format!("/tmp/go-{token}"), b"", "0644");
}

fn whole(token: &str) -> String {
    let numbers: String = (1..=300).map(|number| format!("{number}\n")).collect();
    format!("{token} begun\néx\n{numbers}{token} over\n")
}

#[test]
fn the_same_id_and_command_is_the_same_exec() {
    let lab = Lab::shared();
    let session = base(&lab);
    let request = json!({ "cmd": "echo $RANDOM$RANDOM; echo x >> /tmp/count; sleep 0.3; (exit 3)",
        "exec_id": "mine" });
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let ask = || session.try_exec(&request).ok(200);
        let all: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        all.into_iter().map(|one| one.join().expect("an answer")).collect()
    });
    assert!(answers.iter().all(|answer| answer == &answers[0]), "{answers:?}");
    assert_eq!((&answers[0]["exit_code"], &answers[0]["exec_id"]), (&json!(3), &json!("mine")));
    assert_eq!(session.exec_with(&request).body, answers[0]);
    let streamed = play(&session, &request);
    assert_eq!(streamed.last().expect("an end").data["exit_code"], 3);
    assert_eq!(streamed, replay(&session, "mine", "").events);
    gives(&session, "cat /tmp/count", 0, "x\n");
}

#[test]
fn another_command_under_a_used_id_is_refused() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.exec_with(&json!({ "cmd": "echo one", "exec_id": "used" }));
    for other in [
        json!({ "cmd": "echo two", "exec_id": "used" }),
        json!({ "cmd": "echo two", "exec_id": "used", "detach": true }),
    ] {
        session.try_exec(&other).error(409, "IDEMPOTENCY_MISMATCH");
    }
    let body = json!({ "cmd": "echo two", "exec_id": "used" });
    let stream = session.request("POST", "/exec/stream").json(&body).stream().answer();
    stream.error(409, "IDEMPOTENCY_MISMATCH");
    // Its own session alone knows the id.
    let neighbour = base(&lab);
    assert_eq!(neighbour.exec_with(&body).output(), "two\n");
}

#[test]
fn detach_list_status_cancel() {
    let lab = Lab::shared();
    let session = base(&lab);
    let first = detach(&session, &json!({ "cmd": "echo on; sleep 7101", "exec_id": "first" }));
    runs(&session, "sleep 7101");
    let second = detach(&session, &json!({ "cmd": "echo second; (exit 2)" }));
    let third = detach(&session, &json!({ "cmd": "touch /tmp/third" }));
    let list = session.request("GET", "/execs").send().ok(200);
    let ids: Vec<&str> = list["execs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|e| e["exec_id"].as_str())
        .collect();
    assert_eq!(ids, ["first", &second, &third], "{list}");
    let states: Vec<&Value> =
        list["execs"].as_array().into_iter().flatten().map(|e| &e["status"]).collect();
    assert_eq!(states, ["running", "queued", "queued"], "{list}");
    let queued = status(&session, &second);
    assert_eq!((&queued["status"], &queued["exit_code"]), (&json!("queued"), &Value::Null));
    assert!(queued["created_at"].is_string() && queued["started_at"].is_null(), "{queued}");
    assert_eq!(queued["cmd"], "echo second; (exit 2)");
    // One in the queue never runs; one that runs is ended with all that it started.
    let cancel = |id: &str| session.request("DELETE", &format!("/execs/{id}")).send().ok(200);
    assert_eq!(cancel(&third), json!({ "ok": true }));
    assert_eq!(finished(&session, &third)["exit_reason"], "cancelled");
    let (_, took) = timed(|| cancel(&first));
    assert!(took < AT_ONCE, "cancel took {took:?}");
    let ended = finished(&session, &first);
    assert_eq!((&ended["exit_code"], &ended["exit_reason"]), (&json!(130), &json!("cancelled")));
    assert_eq!(ended["output"], "on\n", "{ended}");
    assert!(!is_running(&session, "sleep 7101"));
    let ended = finished(&session, &second);
    assert_eq!((&ended["exit_code"], &ended["output"]), (&json!(2), &json!("second\n")), "{ended}");
    assert!(ended["started_at"].is_string() && ended["finished_at"].is_string(), "{ended}");
    assert_eq!(cancel(&second), json!({ "ok": true }), "one that is over stays as it is");
    assert_eq!(status(&session, &second), ended);
    gives(&session, "ls /tmp/third 2>/dev/null; true", 0, "");
    for path in ["/execs/nobody", "/execs/nobody/events"] {
        session.request("GET", path).send().error(404, "EXEC_NOT_FOUND");
    }
    session.request("DELETE", "/execs/nobody").send().error(404, "EXEC_NOT_FOUND");
}

#[test]
fn a_blocking_call_that_is_cancelled_is_answered() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("cd /tmp; K=kept");
    let request = json!({ "cmd": "echo so far; sleep 7102", "exec_id": "it" });
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| session.try_exec(&request).ok(200));
        runs(&session, "sleep 7102");
        assert_eq!(session.request("DELETE", "/execs/it").send().status(), 200);
        let answer = waiting.join().expect("an answer");
        assert_eq!(
            (&answer["exit_code"], &answer["exit_reason"]),
            (&json!(130), &json!("cancelled"))
        );
        assert_eq!((&answer["output"], &answer["cwd"]), (&json!("so far\n"), &json!("/tmp")));
    });
    gives(&session, "pwd; echo $K", 0, "/tmp\nkept\n");
}

/// Commands run one at a time in the order they came in; waiting does not count against their time.
#[test]
fn the_queue_keeps_its_order() {
    let lab = Lab::shared();
    let session = base(&lab);
    let blocker =
        detach(&session, &json!({ "cmd": "until test -e /tmp/open; do sleep 0.02; done" }));
    let ids: Vec<String> = (0..40)
        .map(|number| {
            let cmd = format!("echo {number} >> /tmp/order; last={number}");
            detach(&session, &json!({ "cmd": cmd, "timeout_ms": 1000 }))
        })
        .collect();
    wait::prescribed(Duration::from_millis(1100));
    // Files do not wait.
    session.write("/tmp/open", b"", "0644");
    for id in &ids {
        let ended = finished(&session, id);
        assert_eq!(
            (&ended["exit_code"], &ended["exit_reason"]),
            (&json!(0), &json!("exited")),
            "{ended}"
        );
    }
    let want: String = (0..40).map(|number| format!("{number}\n")).collect();
    gives(&session, "cat /tmp/order; echo $last", 0, &format!("{want}39\n"));
    assert_eq!(status(&session, &blocker)["exit_code"], 0);
}

#[test]
fn a_queued_caller_that_leaves_never_runs() {
    let lab = Lab::shared();
    let session = base(&lab);
    let blocker = detach(&session, &json!({ "cmd": "sleep 7103" }));
    runs(&session, "sleep 7103");
    let ids = ["blocking", "streamed", "kept"];
    cut_off(&session, "/exec", &json!({ "cmd": "touch /tmp/blocking", "exec_id": "blocking" }));
    cut_off(
        &session,
        "/exec/stream",
        &json!({ "cmd": "touch /tmp/streamed", "exec_id": "streamed" }),
    );
    let keep = json!({ "cmd": "touch /tmp/kept", "exec_id": "kept", "on_disconnect": "keep" });
    cut_off(&session, "/exec", &keep);
    let known = |id: &str| session.request("GET", &format!("/execs/{id}")).send();
    wait::until("all have come and two are gone", Duration::from_secs(5), || {
        let [blocking, streamed, kept] = ids.map(known);
        let is_over = |answer: &sandkasten_e2e::http::Answer| {
            answer.status() == 404 || answer.json()["status"] == "finished"
        };
        is_over(&blocking) && is_over(&streamed) && kept.status() == 200
    });
    assert_eq!(session.request("DELETE", &format!("/execs/{blocker}")).send().status(), 200);
    assert_eq!(finished(&session, "kept")["exit_code"], 0);
    gives(&session, "cd /tmp; ls blocking streamed kept 2>/dev/null; true", 0, "kept\n");
}

/// what a client that goes away leaves, by the policy that it chose.
#[test]
fn x_11_a_cut_connection_cancels_or_keeps() {
    let lab = Lab::shared();
    let session = base(&lab);
    for (number, path) in ["/exec", "/exec/stream"].into_iter().enumerate() {
        let words = format!("sleep 71{number}4");
        cut_running(
            &session,
            path,
            &json!({ "cmd": format!("echo on; {words}; touch /tmp/late"), "exec_id": format!("c{number}") }),
            &words,
        );
        let (_, took) = timed(|| session.alive());
        assert!(took < AT_ONCE, "the next command waited {took:?}");
        assert!(!is_running(&session, &words));
        let ended = finished(&session, &format!("c{number}"));
        assert_eq!(
            (&ended["exit_reason"], &ended["exit_code"]),
            (&json!("cancelled"), &json!(130))
        );
        let token = format!("k{number}");
        let request =
            json!({ "cmd": in_two_parts(&token), "exec_id": token, "on_disconnect": "keep" });
        let begun = format!("/tmp/{token}");
        cut_at(&session, path, &request, || {
            session.request("GET", &format!("/fs/read?path={begun}")).send().status() == 200
        });
        go(&session, &token);
        let ended = finished(&session, &token);
        assert_eq!((&ended["exit_code"], &ended["output"]), (&json!(5), &json!(whole(&token))));
    }
    gives(&session, "ls /tmp/late 2>/dev/null; cat /tmp/k0 /tmp/k1", 0, "k0 ran\nk1 ran\n");
}

fn cut_running(session: &Session<'_>, path: &str, request: &Value, words: &str) {
    cut_at(session, path, request, || is_running(session, words));
}

/// Sends a request, waits for something to be so, and cuts the connection.
fn cut_at(session: &Session<'_>, path: &str, request: &Value, is_so: impl FnMut() -> bool) {
    let request = session.request("POST", path).json(request);
    let mut connection = session.lab.client.connect().expect("connect");
    connection.write(&request.bytes()).expect("send");
    wait::until("the command has begun", Duration::from_secs(10), is_so);
    drop(connection);
}

/// Fifty connections are cut in the middle; what was read before and what is read then is one whole,
/// however often and from wherever it is read.
#[test]
fn fifty_cut_connections_lose_nothing() {
    let lab = Lab::shared();
    let sessions = [(); 5].map(|()| base(&lab));
    std::thread::scope(|scope| {
        for (number, session) in sessions.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..10 {
                    cut_and_resumed(session, &format!("s{number}r{round}"));
                }
            });
        }
    });
}

fn cut_and_resumed(session: &Session<'_>, token: &str) {
    let request = json!({ "cmd": in_two_parts(token), "exec_id": token, "on_disconnect": "keep" });
    let mut live = session.stream(&request);
    let first = live.next().expect("an event");
    let head = Told { id: first.id, name: first.name, data: first.data };
    drop(live);
    // From where it was cut: some read before the end, some behind it.
    let tail = std::thread::scope(|scope| {
        let after = format!("after={}&follow=true", head.id);
        let following = scope.spawn(move || replay(session, token, &after));
        go(session, token);
        following.join().expect("a replay")
    });
    let all = replay(session, token, "follow=true");
    assert_eq!(all.events[0], head);
    assert_eq!(all.events[1..], tail.events[..]);
    assert_eq!(all.text(), whole(token));
    assert_eq!(all.done().data["exit_code"], 5);
    for _ in 0..3 {
        assert!(replay(session, token, "").bytes == all.bytes, "another replay");
    }
    let resumed = session.request("GET", &format!("/execs/{token}/events"));
    let resumed = Replay::of(&resumed.header("Last-Event-ID", &head.id.to_string()).send());
    assert_eq!(resumed.bytes, tail.bytes);
    let joined = play(session, &request);
    assert_eq!(joined, all.events, "the same exec, streamed once more");
    assert_eq!(session.read(&format!("/tmp/{token}")), format!("{token} ran\n").as_bytes());
}

/// The daemon is killed in the middle of commands. They go on; nothing of them is lost, changed or run
/// twice.
#[test]
fn a_killed_daemon_loses_nothing() {
    const SESSIONS: usize = 10;
    let mut lab = Lab::builder().recipe("base").set("default_image", json!("base")).start();
    let make = |lab: &Lab| {
        let info = lab.client.post("/v1/sessions", &json!({})).ok(201);
        info["id"].as_str().expect("an id").to_owned()
    };
    let ids: Vec<String> = (0..SESSIONS).map(|_| make(&lab)).collect();
    let told: Vec<[Vec<u8>; 2]> = ids.iter().map(|id| in_the_middle(&lab.known(id))).collect();
    // Somebody reads while it dies; that is no disconnect either.
    let path = format!("/v1/sessions/{}/execs/mid/events?follow=true", ids[0]);
    let reading = lab.client.request("GET", &path).stream();
    lab.kill();
    drop(reading);
    // Some end while there is no daemon, some under the next one.
    for id in &ids[..SESSIONS / 2] {
        let init = host::init_of(id).expect("an init");
        std::fs::write(format!("/proc/{init}/root/tmp/go-mid"), b"").expect("write into the box");
    }
    lab.restart();
    for (number, (id, told)) in ids.iter().zip(&told).enumerate() {
        let session = lab.known(id);
        if number >= SESSIONS / 2 {
            let state = status(&session, "mid");
            assert_eq!(state["status"], "running", "{state}");
            go(&session, "mid");
        }
        is_whole(&session, told);
    }
    // And once more, with nothing running.
    let first = all_told(&lab, &ids);
    lab.kill();
    lab.restart();
    assert!(all_told(&lab, &ids) == first, "another daemon, another replay");
}

/// One command that is over, one in its middle, three behind it; what is told of the first two.
fn in_the_middle(session: &Session<'_>) -> [Vec<u8>; 2] {
    session.run("cd /tmp; K=kept");
    let done = session.exec_with(&json!({ "cmd": "seq 5000; echo é >&2", "exec_id": "done" }));
    assert_eq!(done.code(), 0, "{}", done.body);
    detach(session, &json!({ "cmd": in_two_parts("mid"), "exec_id": "mid" }));
    for queued in ["q1", "q2", "q3"] {
        detach(
            session,
            &json!({ "cmd": format!("echo {queued} $K; (exit 6)"), "exec_id": queued }),
        );
    }
    wait::until("it is in the middle", Duration::from_secs(10), || {
        replay(session, "mid", "").text().contains('x')
    });
    ["done", "mid"].map(|id| replay(session, id, "").bytes)
}

/// All of that under another daemon.
fn is_whole(session: &Session<'_>, [done, begun]: &[Vec<u8>; 2]) {
    let mid = replay(session, "mid", "follow=true");
    assert_eq!(mid.text(), whole("mid"));
    assert_eq!(mid.done().data["exit_code"], 5);
    assert!(mid.bytes.starts_with(begun), "what was told before has changed");
    assert!(replay(session, "done", "").bytes == *done, "a replay has changed");
    let joined = session.exec_with(&json!({ "cmd": in_two_parts("mid"), "exec_id": "mid" }));
    assert_eq!((joined.code(), joined.output()), (5, whole("mid").as_str()));
    let other = json!({ "cmd": "true", "exec_id": "mid" });
    session.try_exec(&other).error(409, "IDEMPOTENCY_MISMATCH");
    for queued in ["q1", "q2", "q3"] {
        let ended = finished(session, queued);
        let want = json!(format!("{queued} kept\n"));
        assert_eq!((&ended["exit_code"], &ended["output"]), (&json!(6), &want), "{ended}");
    }
    gives(session, "cat mid; pwd; echo $K", 0, "mid ran\n/tmp\nkept\n");
    for _ in 0..4 {
        assert!(replay(session, "mid", "").bytes == mid.bytes, "replays differ");
    }
}

fn all_told(lab: &Lab, ids: &[String]) -> Vec<Vec<u8>> {
    let all = ids.iter().flat_map(|id| ["mid", "done", "q1"].map(|exec| (id, exec)));
    all.map(|(id, exec)| replay(&lab.known(id), exec, "").bytes).collect()
}

/// 40 MB: the first and the last 8 MiB are kept, exactly, with one gap between them.
#[test]
fn a_long_output_has_one_gap() {
    const HALF: usize = 8 * MIB;
    let lab = Lab::shared();
    let session = base(&lab);
    let line = |number: usize| format!("{number:09}\n");
    let cmd = "seq -f %09.0f 4000000; (exit 3)";
    let id = detach(&session, &json!({ "cmd": cmd, "timeout_ms": 60_000 }));
    let ended = finished(&session, &id);
    assert_eq!((&ended["exit_code"], &ended["output_bytes"]), (&json!(3), &json!(40_000_000)));
    let all = replay(&session, &id, "");
    let gaps = all.named("gap");
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    let at = all.events.iter().position(|event| event.name == "gap").expect("a gap");
    let text = |events: &[Told]| -> String {
        events.iter().filter_map(|event| event.data["chunk"].as_str()).collect()
    };
    let (head, tail) = (text(&all.events[..at]), text(&all.events[at + 1..]));
    let gap = &gaps[0].data;
    let missing = gap["bytes"].as_u64().expect("a number");
    assert_eq!(head.len() + tail.len() + usize::try_from(missing).expect("a number"), 40_000_000);
    for (part, name) in [(&head, "head"), (&tail, "tail")] {
        // Whole records.
        assert!(part.len().abs_diff(HALF) < 6 * 1024, "{name}: {} bytes", part.len());
    }
    let expected: String = (1..=4_000_000).map(line).collect();
    assert!(expected.starts_with(&head) && expected.ends_with(&tail), "other bytes");
    assert_eq!(gaps[0].id, gap["to_seq"].as_u64().expect("a number"));
    assert_eq!(all.events[at - 1].id + 1, gap["from_seq"].as_u64().expect("a number"));
    assert_eq!(all.events[at + 1].id, gaps[0].id + 1);
    for _ in 0..3 {
        assert!(replay(&session, &id, "").bytes == all.bytes, "replays differ");
    }
    let inside = format!("after={}", all.events[at - 1].id + 1);
    assert_eq!(
        replay(&session, &id, &inside).named("gap").len(),
        1,
        "a replay that begins in the gap says so"
    );
}

/// A live stream that keeps up has all of it; the replay has the gap.
#[test]
fn a_live_stream_has_no_gap() {
    let lab = Lab::shared();
    let session = base(&lab);
    let events = play(&session, &json!({ "cmd": "seq -f %09.0f 3000000", "exec_id": "long" }));
    assert!(events.iter().all(|event| event.name != "gap"));
    let chunks = events.iter().filter_map(|event| event.data["chunk"].as_str());
    assert_eq!(chunks.map(str::len).sum::<usize>(), 30_000_000);
    let kept = replay(&session, "long", "");
    assert_eq!(kept.named("gap").len(), 1);
    for event in kept.events.iter().filter(|event| event.name == "chunk") {
        let at = events.partition_point(|live| live.id < event.id);
        assert_eq!(&events[at], event, "an event of the stream, word for word");
    }
    assert_eq!(kept.done(), events.last().expect("an end"));
}

/// Output of a job that goes on behind `done`: in no answer, in the events of its exec, in their order.
#[test]
fn late_output_is_in_the_events_alone() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("mkfifo go1 go2");
    let cmd = "(read x <go1; echo late 1; read x <go2; echo late 2 >&2) & echo first";
    let done = session.exec_with(&json!({ "cmd": cmd, "exec_id": "job" }));
    assert_eq!((done.output(), &done.body["output_bytes"]), ("first\n", &json!(6)));
    let early = replay(&session, "job", "");
    assert_eq!(
        (early.text().as_str(), early.events.last().map(|e| e.name.as_str())),
        ("first\n", Some("done"))
    );
    let last = early.done().id;
    let follow = format!("after={last}&follow=true");
    let late = std::thread::scope(|scope| {
        let following = scope.spawn(|| replay(&session, "job", &follow));
        gives(&session, "echo >go1", 0, "");
        gives(&session, "echo >go2", 0, "");
        following.join().expect("a replay")
    });
    assert_eq!(late.text(), "late 1\nlate 2\n");
    assert!(late.events.iter().all(|event| event.id > last && event.name == "chunk"), "{late:?}");
    let all = replay(&session, "job", "");
    assert_eq!(all.events, [early.events, late.events].concat());
    assert_eq!(session.exec_with(&json!({ "cmd": cmd, "exec_id": "job" })).body, done.body);
}

/// A job that writes for ever neither blocks nor is killed, and its exec's own events stay.
#[test]
fn late_output_of_any_length_does_no_harm() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd =
        "(head -c 30000000 /dev/zero | tr '\\0' l; echo over > /tmp/over) & sleep 0.01; echo first";
    let done = session.exec_with(&json!({ "cmd": cmd, "exec_id": "flood" }));
    assert_eq!(done.code(), 0, "{}", done.body);
    let done_at = replay(&session, "flood", "").done().clone();
    wait::until("the job is over", Duration::from_secs(20), || {
        session.exec("cat /tmp/over 2>/dev/null").output() == "over\n"
    });
    let all = replay(&session, "flood", "");
    assert_eq!(all.done(), &done_at);
    assert!(all.text().len() <= 26 * MIB, "{} bytes are kept", all.text().len());
    session.alive();
}

/// An answer above the spool's 16 MiB raises it, so that a joined call has it all too.
#[test]
fn a_large_cap_is_kept_for_those_who_join() {
    let lab = Lab::shared();
    let session = python(&lab);
    let request = json!({ "cmd": "head -c 30000000 /dev/zero | tr '\\0' m", "exec_id": "large",
        "max_output_bytes": 32 * MIB, "timeout_ms": 60_000 });
    let first = session.exec_with(&request);
    assert_eq!((first.output().len(), &first.body["truncated"]), (30_000_000, &json!(false)));
    let again = session.exec_with(&request);
    assert!(again.body == first.body, "another answer");
    assert_eq!(replay(&session, "large", "").text().len(), 30_000_000);
}

/// Split and exact bytes are the same in a replay as they were in the stream.
#[test]
fn replays_keep_streams_and_bytes() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "head -c 100000 /dev/urandom; head -c 50000 /dev/urandom >&2; printf '\\377\\r'";
    for (id, extra) in [
        ("a", json!({ "split": true, "encoding": "base64" })),
        ("b", json!({ "split": true })),
        ("c", json!({ "raw_output": true })),
        ("d", json!({ "encoding": "base64" })),
    ] {
        let mut request = json!({ "cmd": cmd, "exec_id": id, "max_output_bytes": MIB });
        request
            .as_object_mut()
            .expect("an object")
            .extend(extra.as_object().expect("an object").clone());
        let live = play(&session, &request);
        assert_eq!(live, replay(&session, id, "").events, "{id}");
        let joined = session.exec_with(&request).body;
        if id == "a" {
            let of = |stream: &str| -> Vec<u8> {
                let chunks = live.iter().filter(|event| event.data["stream"] == stream);
                chunks.flat_map(|event| decode(&event.data["chunk_base64"])).collect()
            };
            assert!(
                decode(&joined["stdout_base64"]) == of("stdout")
                    && decode(&joined["stderr_base64"]) == of("stderr")
            );
            assert_eq!((of("stdout").len(), of("stderr").len()), (100_002, 50_000));
        }
    }
}

/// A replay of what runs: without `follow` what is there, with it to the end.
#[test]
fn replays_of_a_running_command() {
    let lab = Lab::shared();
    let session = base(&lab);
    let id = detach(&session, &json!({ "cmd": in_two_parts("live"), "exec_id": "live" }));
    wait::until("it has begun", Duration::from_secs(5), || {
        replay(&session, &id, "").text().contains('x')
    });
    let now = replay(&session, &id, "");
    assert!(now.named("done").is_empty(), "{now:?}");
    let queued = detach(&session, &json!({ "cmd": "echo behind" }));
    assert!(replay(&session, &queued, "").events.is_empty());
    std::thread::scope(|scope| {
        let follow = scope.spawn(|| replay(&session, &queued, "follow=true"));
        go(&session, "live");
        assert_eq!(follow.join().expect("a replay").text(), "behind\n");
    });
    let all = replay(&session, &id, "follow=true");
    assert!(all.bytes.starts_with(&now.bytes) && all.text() == whole("live"));
    let past = format!("after={}", all.done().id);
    assert!(replay(&session, &id, &past).events.is_empty());
    for bad in ["after=x", "after=-1", "follow=maybe"] {
        let answer = session.request("GET", &format!("/execs/{id}/events?{bad}")).send();
        answer.error(400, "INVALID_REQUEST");
    }
}

/// A session that ends ends its execs, and says so to everybody who waits.
#[test]
fn a_deleted_session_tells_those_who_wait() {
    let lab = Lab::shared();
    let session = base(&lab);
    let path = session.path("/execs/it/events?follow=true");
    std::thread::scope(|scope| {
        let request = json!({ "cmd": "echo so far; sleep 7105", "exec_id": "it" });
        let session = &session;
        let blocking = scope.spawn(move || session.try_exec(&request));
        runs(session, "sleep 7105");
        let following = scope.spawn(move || session.lab.client.get(&path));
        let queued = scope.spawn(move || session.try_exec(&json!({ "cmd": "echo queued" })));
        wait::until("it waits", Duration::from_secs(5), || {
            let list = session.request("GET", "/execs").send().ok(200);
            list["execs"].as_array().is_some_and(|all| all.len() == 2)
        });
        assert_eq!(session.delete().status(), 200);
        let error = blocking.join().expect("an answer").error(410, "SESSION_DESTROYED");
        assert_eq!(
            (&error["details"]["started"], &error["details"]["output"]),
            (&json!(true), &json!("so far\n"))
        );
        let error = queued.join().expect("an answer").error(410, "SESSION_DESTROYED");
        assert_ne!(error["details"]["started"], true, "{error}");
        let replay = Replay::of(&following.join().expect("an answer"));
        let last = replay.events.last().expect("an event");
        assert_eq!(
            (last.name.as_str(), &last.data["error_code"]),
            ("error", &json!("SESSION_DESTROYED"))
        );
    });
}
