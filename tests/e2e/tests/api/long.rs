//! What takes long because its text says so.

use std::time::Duration;

use sandkasten_e2e::{Lab, wait};
use serde_json::json;

/// Idle connections are kept for at least 75 s: a server that closes first makes a POST fail.
#[test]
fn trap_11_idle_connections_are_kept() {
    let lab = Lab::shared();
    let request = || lab.client.request("GET", "/v1/sessions");
    let mut connection = lab.client.connect().expect("connect");
    assert_eq!(connection.send(&request()).expect("first answer").status(), 200);
    wait::prescribed(Duration::from_secs(75));
    assert_eq!(connection.send(&request()).expect("the connection is still there").status(), 200);
}

/// The reaper does not take a session in the middle of a command; the lease counts from its end.
#[test]
fn c69_ttl_does_not_end_a_running_command() {
    let lab = Lab::shared();
    let sessions = [(); 2].map(|()| lab.session(&json!({ "image": "base", "ttl_seconds": 10 })));
    let command = json!({ "cmd": "sleep 25; echo done", "timeout_ms": 60_000 });
    std::thread::scope(|scope| {
        let (id, client) = (sessions[1].id.clone(), lab.client.clone());
        let body = command.clone();
        let streamed = scope.spawn(move || {
            let path = format!("/v1/sessions/{id}/exec/stream");
            client.request("POST", &path).json(&body).stream().events().finish().text()
        });
        let answer = lab.client.post(&sessions[0].path("/exec"), &command).ok(200);
        assert_eq!(answer["output"], "done\n", "{answer}");
        assert_eq!(streamed.join().expect("the stream"), "done\n");
    });
    for session in &sessions {
        assert_eq!(session.info()["status"], "running");
    }
    // Ten seconds of the lease, five of the reaper.
    wait::until("both expire", Duration::from_secs(16), || {
        sessions.iter().all(|session| session.info()["status"] == "expired")
    });
    for session in &sessions {
        session.try_exec(&json!({ "cmd": "true" })).error(410, "SESSION_EXPIRED");
    }
    assert_eq!(lab.left_of_sessions(), Vec::<String>::new());
}
