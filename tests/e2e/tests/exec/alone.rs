//! and what else looks at the memory of the whole daemon. Nothing runs beside these.

use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandkasten_e2e::session::encode;
use sandkasten_e2e::{Lab, Session, host, wait};
use serde_json::{Value, json};

use crate::{MIB, cut_off, detach, finished, replay, timed};

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("raise the limit of files");
}

fn lab() -> Lab {
    Lab::builder().recipe("base").set("default_image", json!("base")).start()
}

/// Sends a request and never reads: the daemon sees a window that stays full.
fn deaf(session: &Session<'_>, method: &str, path: &str, body: Option<&Value>) -> TcpStream {
    let mut request = session.request(method, path);
    if let Some(body) = body {
        request = request.json(body);
    }
    let mut socket = TcpStream::connect(session.lab.client.addr).expect("connect");
    std::io::Write::write_all(&mut socket, &request.bytes()).expect("send");
    socket
}

/// 500 clients ask for events and never read them: nobody else waits, and neither the daemon nor the kernel
/// keeps much for them.
#[test]
fn a_11_clients_that_never_read() {
    const CLIENTS: usize = 500;
    const LIVE: usize = 20;
    raise_file_limit();
    let lab = lab();
    let sessions: Vec<Session<'_>> = (0..5).map(|_| lab.session(&json!({}))).collect();
    for session in &sessions {
        let request = json!({ "cmd": "seq 1500000", "exec_id": "kept", "timeout_ms": 60_000 });
        finished(session, &detach(session, &request));
    }
    let streamed: Vec<Session<'_>> = (0..LIVE).map(|_| lab.session(&json!({}))).collect();
    let neighbour = lab.session(&json!({}));
    neighbour.alive();
    let pid = lab.pid();
    let (before, buffered) = (host::anonymous_bytes(pid), host::tcp_buffer_bytes());
    let mut held = Vec::new();
    for session in &streamed {
        let body = json!({ "cmd": "yes", "timeout_ms": 4000 });
        held.push(deaf(session, "POST", "/exec/stream", Some(&body)));
    }
    let mut halfway = 0;
    for number in LIVE..CLIENTS {
        let session = &sessions[number % sessions.len()];
        held.push(deaf(session, "GET", "/execs/kept/events?follow=true", None));
        if number == CLIENTS / 2 {
            neighbour.alive();
            halfway = host::anonymous_bytes(pid);
        }
    }
    let mut most = 0;
    let look = || {
        most = most.max(host::anonymous_bytes(pid));
        std::thread::yield_now();
    };
    wait::meanwhile(look, || {
        for session in sessions.iter().chain([&neighbour]) {
            session.alive();
            session.write("file", b"x", "0644");
        }
        // What nobody reads holds its own command up, and that one has its time.
        for session in &streamed {
            let request = json!({ "cmd": "echo free", "timeout_ms": 5000 });
            let (answer, took) = timed(|| session.try_exec(&request).ok(200));
            assert_eq!(answer["output"], "free\n", "{answer}");
            assert!(took < Duration::from_secs(8), "the next command waited {took:?}");
        }
    });
    let grown = most.saturating_sub(before) / MIB as u64;
    assert!(
        grown < 120,
        "{grown} MiB for {CLIENTS} clients, {} at half of them",
        halfway / MIB as u64
    );
    let buffered = host::tcp_buffer_bytes().saturating_sub(buffered) / MIB as u64;
    assert!(buffered < 400, "the kernel holds {buffered} MiB for {CLIENTS} clients");
    drop(held);
    wait::until("they are gone", Duration::from_secs(10), || {
        host::descriptors(pid).iter().filter(|(_, to)| to.starts_with("socket:")).count() < 100
    });
    assert_eq!(replay(&sessions[0], "kept", "").done().data["exit_code"], 0);
}

/// 64 clients send 64 MiB each to a command: what does not fit is refused before it is read.
#[test]
fn a_16_stdin_does_not_fill_the_memory() {
    let lab = lab();
    let sessions: Vec<Session<'_>> = (0..4).map(|_| lab.session(&json!({}))).collect();
    let body = json!({ "cmd": "wc -c", "stdin": encode(&vec![0; 48 * MIB]), "encoding": "base64",
        "timeout_ms": 60_000 });
    let body = body.to_string();
    let pid = lab.pid();
    let mut most = 0;
    let look = || {
        most = most.max(host::anonymous_bytes(pid));
        std::thread::yield_now();
    };
    let statuses = wait::meanwhile(look, || {
        std::thread::scope(|scope| {
            let send = |session: &Session<'_>| {
                session.request("POST", "/exec").body(body.as_bytes()).send().status()
            };
            let senders: Vec<_> = (0..64)
                .map(|number| {
                    let session = &sessions[number % 4];
                    scope.spawn(move || send(session))
                })
                .collect();
            let all = senders.into_iter().map(|sender| sender.join().expect("an answer"));
            all.collect::<Vec<u16>>()
        })
    });
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    assert!(statuses.contains(&200), "{statuses:?}");
    assert!(most < 400 << 20, "the daemon had {} MiB", most >> 20);
    for session in &sessions {
        session.alive();
    }
}

/// a thousand clients go away in the middle of commands, by turns of each policy.
#[test]
fn x_11_a_thousand_leavers_leave_nothing() {
    let lab = lab();
    let pid = lab.pid();
    let sessions: Vec<Session<'_>> = (0..8).map(|_| lab.session(&json!({}))).collect();
    let leave = |session: &Session<'_>, rounds: usize| {
        for round in 0..rounds {
            let path = ["/exec", "/exec/stream"][round % 2];
            let request = match round % 4 {
                0 | 1 => json!({ "cmd": "sleep 7200" }),
                _ => json!({ "cmd": "echo kept", "on_disconnect": "keep" }),
            };
            cut_off(session, path, &request);
        }
        session.alive();
    };
    let all = |rounds| {
        std::thread::scope(|scope| {
            for session in &sessions {
                scope.spawn(move || leave(session, rounds));
            }
        });
    };
    let threads = || host::names(std::path::Path::new(&format!("/proc/{pid}/task"))).len();
    let open = || host::descriptors(pid).len();
    all(16);
    wait::until("connections are closed", Duration::from_secs(10), || open() < 150);
    let before = (open(), threads(), host::anonymous_bytes(pid));
    all(125);
    wait::until("descriptors are back", Duration::from_secs(10), || open() <= before.0 + 4);
    assert!(threads() <= before.1 + 2, "{} threads, {} before", threads(), before.1);
    let grown = host::anonymous_bytes(pid).saturating_sub(before.2) / MIB as u64;
    assert!(grown < 24, "{grown} MiB more");
    for session in &sessions {
        assert!(!crate::is_running(session, "sleep 7200"));
    }
}

/// The spool of a session ends at its bound; the oldest finished commands go first, and are unknown then.
#[test]
fn the_spool_of_a_session_is_bounded() {
    let lab = lab();
    let session = lab.session(&json!({}));
    let ids: Vec<String> = (0..20)
        .map(|number| {
            let request = json!({ "cmd": "head -c 17000000 /dev/zero | tr '\\0' x", "timeout_ms": 60_000,
                "exec_id": format!("e{number}") });
            let id = detach(&session, &request);
            assert_eq!(finished(&session, &id)["exit_code"], 0);
            id
        })
        .collect();
    let last = replay(&session, &ids[19], "");
    assert!(last.text().len() > 15 * MIB, "{} bytes", last.text().len());
    session.request("GET", &format!("/execs/{}", ids[0])).send().error(404, "EXEC_NOT_FOUND");
    let again = json!({ "cmd": "echo anew", "exec_id": ids[0] });
    assert_eq!(session.exec_with(&again).output(), "anew\n", "its id is free");
}
