//! By the clock: a stop is done within two seconds, whatever runs, and the next daemon goes on.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sandkasten_e2e::http::Client;
use sandkasten_e2e::{Lab, host, wait};
use serde_json::{Value, json};

/// What a stop may take.
const STOP: Duration = Duration::from_secs(2);

/// Stops the daemon and says how long that took.
#[track_caller]
fn stop(lab: &mut Lab) -> Duration {
    let began = Instant::now();
    assert!(lab.stop().success(), "{}", lab.log());
    let took = began.elapsed();
    println!("stopped in {took:?}");
    assert!(took <= STOP, "it took {took:?}: {}", lab.log());
    took
}

/// Nothing is left in the trash of a daemon that runs.
#[track_caller]
fn trash_is_emptied(lab: &Lab) {
    let trash = lab.data_dir.join("trash");
    wait::until("the trash is empty", Duration::from_secs(30), || host::names(&trash).is_empty());
}

#[test]
fn after_deletes_of_large_trees() {
    let mut lab = Lab::start();
    let sessions: Vec<_> = (0..5).map(|_| lab.session(&json!({}))).collect();
    let make = "mkdir -p /workspace/t && cd /workspace/t && for d in 1 2 3 4 5 6 7 8; do mkdir $d; \
                i=0; while [ $i -lt 600 ]; do : > $d/$i; i=$((i+1)); done; done; \
                head -c 20000000 /dev/zero > large";
    std::thread::scope(|scope| {
        for session in &sessions {
            scope
                .spawn(|| session.exec_with(&json!({ "cmd": make, "timeout_ms": 120_000 })).code());
        }
    });
    let ids: Vec<String> = sessions.iter().map(|session| session.id.clone()).collect();
    for session in sessions {
        assert_eq!(session.delete().status(), 200);
        std::mem::forget(session);
    }
    stop(&mut lab);
    lab.restart();
    for id in ids {
        let info = lab.client.get(&format!("/v1/sessions/{id}")).ok(200);
        assert_eq!(info["status"], "destroyed");
    }
    trash_is_emptied(&lab);
}

/// Sends a request and leaves in the way of Python's urllib: it asks for the end of the connection.
fn ask_and_leave(client: &Client, path: &str, body: &Value) {
    let request = client.request("POST", path).header("Connection", "close").json(body);
    let mut socket = TcpStream::connect(client.addr).expect("connect");
    socket.write_all(&request.bytes()).expect("send");
}

#[test]
fn with_commands_of_clients_that_are_gone() {
    let mut lab = Lab::start();
    let session = lab.session(&json!({}));
    for number in 0..5 {
        let body = json!({ "cmd": format!("sleep 60; echo {number}"), "timeout_ms": 120_000 });
        ask_and_leave(&lab.client, &session.path("/exec"), &body);
    }
    let id = session.id.clone();
    std::mem::forget(session);
    stop(&mut lab);
    lab.restart();
    assert_eq!(lab.known(&id).info()["status"], "running");
}

/// Event streams of commands, processes and directories, a WebSocket, an upload that stands still, and
/// clients that read nothing.
#[test]
fn with_streams_sockets_and_uploads() {
    let mut lab = Lab::start();
    let session = lab.session(&json!({}));
    let started = json!({ "argv": ["sh", "-c", "while :; do echo line; sleep 0.01; done"] });
    let started = session.request("POST", "/processes").json(&started).send().ok(201);
    let process = format!("/processes/{}", started["process_id"].as_str().expect("an id"));
    let detached = json!({ "cmd": "sleep 60", "detach": true, "exec_id": "kept" });
    session.request("POST", "/exec").json(&detached).send().ok(202);
    let mut open = Vec::new();
    for path in
        ["/execs/kept/events?follow=true", &format!("{process}/events?follow=true"), "/fs/watch"]
    {
        open.push(session.request("GET", path).stream());
    }
    let live = json!({ "cmd": "yes", "timeout_ms": 120_000 });
    // It is never read.
    open.push(session.request("POST", "/exec/stream").json(&live).stream());
    let socket = session.request("GET", &format!("{process}/attach")).upgrade().expect("a socket");
    let mut upload = TcpStream::connect(lab.client.addr).expect("connect");
    let request = session.request("PUT", "/fs/file?path=half").header("Content-Length", "1000000");
    let bytes =
        request.without_header("Content-Length").header("Content-Length", "1000000").bytes();
    upload.write_all(&bytes).and_then(|()| upload.write_all(&[0; 1000])).expect("send");
    let half_open = TcpStream::connect(lab.client.addr).expect("connect");
    half_open.shutdown(std::net::Shutdown::Write).expect("half close");
    let id = session.id.clone();
    std::mem::forget(session);
    stop(&mut lab);
    drop((open, socket, upload, half_open));
    lab.restart();
    let session = lab.known(&id);
    let kept = session.request("GET", "/execs/kept").send().ok(200);
    assert_eq!(kept["status"], "running", "{kept}");
    assert_eq!(session.request("GET", &process).send().ok(200)["status"], "running");
    session.request("GET", "/fs/stat?path=half").send().error(404, "FILE_NOT_FOUND");
}

#[test]
fn with_fifty_sessions_that_all_run_something() {
    const SESSIONS: usize = 50;
    let mut lab = Lab::start();
    let body = json!({ "cmd": "sleep 60", "detach": true, "exec_id": "kept" });
    let ids: Vec<String> = (0..SESSIONS)
        .map(|_| {
            let session = lab.session(&json!({ "limits": { "pids": 16, "memory_mb": 32 } }));
            session.request("POST", "/exec").json(&body).send().ok(202);
            let id = session.id.clone();
            std::mem::forget(session);
            id
        })
        .collect();
    let waits: Vec<_> = ids[..10]
        .iter()
        .map(|id| {
            let (client, path) = (lab.client.clone(), format!("/v1/sessions/{id}/exec"));
            std::thread::spawn(move || client.post(&path, &json!({ "cmd": "sleep 61" })))
        })
        .collect();
    wait::until("they wait", Duration::from_secs(10), || {
        lab.client.get("/metrics").text().contains("sandkasten_execs_queued 10")
    });
    stop(&mut lab);
    for wait in waits {
        // Who waits is told, not cut off.
        wait.join().expect("an answer").error(503, "DRAINING");
    }
    lab.restart();
    let running = ids.iter().filter(|id| {
        let status = lab.client.get(&format!("/v1/sessions/{id}/execs/kept")).ok(200);
        status["status"] == "running"
    });
    assert_eq!(running.count(), SESSIONS);
}

/// What ends within the drain gets its answer; what comes meanwhile is told to come again.
#[test]
fn running_requests_get_their_answers() {
    let mut lab = Lab::start();
    let session = lab.session(&json!({}));
    let (client, path) = (lab.client.clone(), session.path("/exec"));
    let body = json!({ "cmd": "echo on; sleep 0.4; echo over" });
    let running = std::thread::spawn(move || client.post(&path, &body));
    wait::until("it runs", Duration::from_secs(5), || {
        lab.client.get("/metrics").text().contains("sandkasten_execs_running 1")
    });
    std::mem::forget(session);
    stop(&mut lab);
    assert_eq!(running.join().expect("an answer").ok(200)["output"], "on\nover\n");
    lab.restart();
}
