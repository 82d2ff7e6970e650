//! Cases from the field about the life of a session: C71, C73. (C69 is in `long`; the suite `cases` has those
//! about commands.)

use std::time::Duration;

use sandkasten_e2e::{Lab, Session, host, wait};
use serde_json::json;

/// A killed daemon's sessions are usable once it is back, with their state; nothing is left over.
#[test]
fn c71_sessions_survive_the_daemon() {
    let mut lab = Lab::start();
    let client = lab.client.clone();
    let make = |number: usize| {
        let id = client.post("/v1/sessions", &json!({})).ok(201)["id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let cmd = format!("cd /tmp; K={number}; echo {number} > /workspace/mine");
        client.post(&format!("/v1/sessions/{id}/exec"), &json!({ "cmd": cmd })).ok(200);
        id
    };
    let ids: Vec<String> = (0..3).map(make).collect();
    let cmd = "while :; do echo x >> /tmp/loop; sleep 0.1; done > /dev/null 2>&1 &";
    client.post(&format!("/v1/sessions/{}/exec", ids[0]), &json!({ "cmd": cmd })).ok(200);
    // The daemon dies under this one. That is no disconnect of the client.
    let cmd = json!({ "cmd": "echo on; sleep 2; echo over > /tmp/over" });
    let path = format!("/v1/sessions/{}/exec/stream", ids[1]);
    let mut stream = client.request("POST", &path).json(&cmd).stream().events();
    assert!(stream.next().is_some_and(|event| event.data["chunk"] == "on\n"));
    let inits: Vec<Option<u32>> = ids.iter().map(|id| host::init_of(id)).collect();
    lab.kill();
    drop(stream);
    let start = std::time::Instant::now();
    lab.restart();
    assert!(start.elapsed() < Duration::from_secs(10), "restart took {:?}", start.elapsed());
    let list = lab.client.get("/v1/sessions").ok(200);
    let mut listed: Vec<&str> =
        list.as_array().into_iter().flatten().filter_map(|s| s["id"].as_str()).collect();
    listed.sort_unstable();
    let mut want: Vec<&str> = ids.iter().map(String::as_str).collect();
    want.sort_unstable();
    assert_eq!(listed, want);
    for (number, id) in ids.iter().enumerate() {
        let exec = |cmd: &str| {
            let path = format!("/v1/sessions/{id}/exec");
            lab.client.post(&path, &json!({ "cmd": cmd })).ok(200)
        };
        let answer = exec("pwd; echo $K; cat /workspace/mine");
        assert_eq!(answer["output"], format!("/tmp\n{number}\n{number}\n"), "{answer}");
    }
    // A daemon that dies is no disconnect: the command went on to its end.
    let exec = |id: &str, cmd: &str| {
        lab.client.post(&format!("/v1/sessions/{id}/exec"), &json!({ "cmd": cmd })).ok(200)
    };
    assert_eq!(exec(&ids[1], "cat /tmp/over")["output"], "over\n");
    let grown = || {
        exec(&ids[0], "wc -l < /tmp/loop")["output"]
            .as_str()
            .unwrap_or_default()
            .trim()
            .parse::<u64>()
    };
    let before = grown().expect("a number");
    wait::until("the loop goes on", Duration::from_secs(3), || {
        grown().is_ok_and(|lines| lines > before)
    });
    let after: Vec<Option<u32>> = ids.iter().map(|id| host::init_of(id)).collect();
    assert_eq!(inits, after, "the same inits");
    lab.session(&json!({})).alive();
    for id in &ids {
        assert_eq!(lab.client.delete(&format!("/v1/sessions/{id}")).ok(200), json!({ "ok": true }));
    }
    assert_eq!(lab.left_of_sessions(), Vec::<String>::new());
}

/// Deletes a session that makes it hard; twice, and twice at once.
#[track_caller]
fn goes_away(lab: &Lab, session: &Session<'_>) {
    let start = std::time::Instant::now();
    let (client, path) = (&lab.client, session.path(""));
    std::thread::scope(|scope| {
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| client.delete(&path))).collect();
        for one in both {
            assert_eq!(one.join().expect("an answer").ok(200), json!({ "ok": true }));
        }
    });
    assert!(start.elapsed() < Duration::from_secs(10), "took {:?}", start.elapsed());
    assert_eq!(session.delete().ok(200), json!({ "ok": true }));
    session.try_exec(&json!({ "cmd": "true" })).error(410, "SESSION_DESTROYED");
    assert_eq!(lab.left_of_sessions(), Vec::<String>::new());
}

mod c73_destroy_never_hangs {
    use sandkasten_e2e::lab::Signal;

    use super::{Duration, Lab, goes_away, host, json};

    macro_rules! hard {
        ($($name:ident: $cmd:expr;)+) => {
            $(#[test]
            fn $name() {
                let lab = Lab::shared();
                let session = lab.session(&json!({ "image": "base" }));
                session.run($cmd);
                goes_away(&lab, &session);
            })+
        };
    }

    hard! {
        ignored_signals: "bash -c 'trap \"\" TERM INT HUP; while :; do sleep 1000; done' > /dev/null 2>&1 &";
        stopped_process: "sleep 1000 > /dev/null 2>&1 & kill -STOP $!";
        open_files: "exec 5> /workspace/open; cd /workspace; tail -f /workspace/open > /dev/null 2>&1 &";
        busy_directory: "mkdir -p /tmp/deep/er; cd /tmp/deep/er; (cd /tmp/deep; sleep 1000) > /dev/null 2>&1 &";
        setsid_tree: "setsid sh -c 'sleep 1000 & setsid sleep 1001 & wait' > /dev/null 2>&1 &";
        unreadable_tree: "mkdir -p /workspace/a/b ~/x/y; touch ~/x/y/z; chmod 000 /workspace/a ~/x/y ~/x";
    }

    #[test]
    fn running_command() {
        let lab = Lab::shared();
        let session = lab.session(&json!({ "image": "base" }));
        std::thread::scope(|scope| {
            let (client, path) = (&lab.client, session.path("/exec"));
            let mut started = session.stream(&json!({ "cmd": "echo on" }));
            assert!(started.next().is_some());
            let body = json!({ "cmd": "echo begun; sleep 1000", "timeout_ms": 300_000 });
            let waiting = scope.spawn(move || client.post(&path, &body));
            super::wait::until("it runs", Duration::from_secs(5), || {
                let all = host::processes_of(&session.id);
                all.iter().any(|&pid| host::proc_file(pid, "cmdline").contains("sleep\x001000"))
            });
            goes_away(&lab, &session);
            let error = waiting.join().expect("an answer").error(410, "SESSION_DESTROYED");
            assert_eq!(error["details"]["started"], true, "{error}");
            assert_eq!(error["details"]["output"], "begun\n", "{error}");
        });
    }

    /// A session whose init is killed has crashed, says so, and can still be deleted.
    #[test]
    fn killed_init() {
        let lab = Lab::shared();
        let session = lab.session(&json!({ "image": "base" }));
        let init = host::init_of(&session.id).expect("an init");
        host::signal(init, Signal::KILL);
        super::wait::until("it has crashed", Duration::from_secs(5), || {
            session.info()["status"] == "crashed"
        });
        session.try_exec(&json!({ "cmd": "true" })).error(410, "SESSION_CRASHED");
        assert_eq!(session.delete().ok(200), json!({ "ok": true }));
        assert_eq!(session.info()["status"], "crashed", "the first reason stays");
        assert_eq!(lab.left_of_sessions(), Vec::<String>::new());
    }
}
