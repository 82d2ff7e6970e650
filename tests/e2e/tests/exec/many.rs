//! Many at once: every answer is its own, every session's commands run one after the other.

use std::collections::BTreeSet;

use sandkasten_e2e::session::{decode, encode};
use sandkasten_e2e::{Lab, Session};
use serde_json::{Value, json};

use crate::{base, detach, finished, play, replay};

const SESSIONS: usize = 50;
const EACH: usize = 20;

fn sessions(lab: &Lab) -> Vec<Session<'_>> {
    (0..SESSIONS).map(|_| base(lab)).collect()
}

/// a thousand at once.
#[test]
fn x_12_a_thousand_at_once() {
    let lab = Lab::shared();
    let sessions = sessions(&lab);
    std::thread::scope(|scope| {
        let mut all = Vec::new();
        for (number, session) in sessions.iter().enumerate() {
            for turn in 0..EACH {
                let token = format!("T{number}x{turn}");
                // Two commands of one session that ran at once would see each other's mark.
                let cmd = format!(
                    "test -e /tmp/mark && echo TWO; : > /tmp/mark; n=$((n+1)); echo {token} $n; \
                     echo {token} >&2; rm /tmp/mark; (exit {turn})"
                );
                let ask = move || session.exec_with(&json!({ "cmd": cmd, "timeout_ms": 60_000 }));
                let thread = std::thread::Builder::new().stack_size(256 << 10);
                all.push((number, turn, token, thread.spawn_scoped(scope, ask).expect("a thread")));
            }
        }
        let mut turns = vec![BTreeSet::new(); SESSIONS];
        for (number, turn, token, thread) in all {
            let done = thread.join().expect("an answer");
            assert_eq!(done.code(), i64::try_from(turn).expect("a number"), "{}", done.body);
            let lines: Vec<&str> = done.output().lines().collect();
            let [first, second] = lines[..] else { panic!("{token}: {lines:?}") };
            let (own, n) = first.split_once(' ').expect("two words");
            assert_eq!((own, second), (token.as_str(), token.as_str()));
            turns[number].insert(n.parse::<usize>().expect("a number"));
        }
        // Each ran once, and each saw what the one before it had left.
        assert!(turns.iter().all(|turns| turns.iter().copied().eq(1..=EACH)), "{turns:?}");
    });
}

/// A thousand of all kinds: blocking, streamed, detached, by their events, with stdin, split, as bytes,
/// as programs.
#[test]
fn a_thousand_of_all_kinds() {
    let lab = Lab::shared();
    let sessions = sessions(&lab);
    std::thread::scope(|scope| {
        for (number, session) in sessions.iter().enumerate() {
            scope.spawn(move || {
                session.run("n=0");
                let mut turn = 0;
                for round in 0..EACH / 10 {
                    for kind in 0..10 {
                        let token = format!("T{number}x{round}x{kind}");
                        let counts = of_kind(session, kind, &token, turn + 1);
                        turn += usize::from(counts);
                    }
                }
            });
        }
    });
}

/// Does one of a kind; whether the shell ran it. `turn`: how many the shell has then run.
#[track_caller]
fn of_kind(session: &Session<'_>, kind: usize, token: &str, turn: usize) -> bool {
    let cmd = format!("n=$((n+1)); echo {token} $n; (exit 3)");
    let want = format!("{token} {turn}\n");
    let is_right = |answer: &Value| {
        assert_eq!(
            (&answer["exit_code"], &answer["output"]),
            (&json!(3), &json!(want)),
            "{answer}"
        );
    };
    let text = |events: &[crate::Told]| -> String {
        events.iter().filter_map(|event| event.data["chunk"].as_str()).collect()
    };
    match kind {
        0 => is_right(&session.exec_with(&json!({ "cmd": cmd })).body),
        1 => assert_eq!(text(&play(session, &json!({ "cmd": cmd }))), want),
        2 => {
            let id = detach(session, &json!({ "cmd": cmd }));
            is_right(&finished(session, &id));
        }
        3 => {
            let request = json!({ "cmd": cmd, "exec_id": token });
            is_right(&session.exec_with(&request).body);
            is_right(&session.exec_with(&request).body);
            assert_eq!(replay(session, token, "").text(), want);
        }
        4 => {
            let request = json!({ "cmd": format!("n=$((n+1)); cat; echo $n; (exit 3)"),
                "stdin": format!("{token} ") });
            is_right(&session.exec_with(&request).body);
        }
        5 => {
            let cmd = format!("n=$((n+1)); echo {token} $n; echo {token}e >&2; (exit 3)");
            let answer = session.exec_with(&json!({ "cmd": cmd, "split": true })).body;
            assert_eq!(answer["stdout"], want, "{answer}");
            assert_eq!(answer["stderr"], format!("{token}e\n"), "{answer}");
        }
        6 => {
            let answer = session.exec_with(&json!({ "cmd": cmd, "encoding": "base64" })).body;
            assert_eq!(decode(&answer["output_base64"]), want.as_bytes());
        }
        7 => {
            let answer = session.exec_with(&json!({ "cmd": cmd, "raw_output": true })).body;
            assert_eq!(answer["output"], want.replace('\n', "\r\n"), "{answer}");
        }
        8 => {
            let body = json!({ "argv": ["cat"], "stdin": { "base64": encode(want.as_bytes()) }, "wait": true });
            let answer = session.request("POST", "/processes").json(&body).send().ok(200);
            assert_eq!(decode(&answer["stdout_base64"]), want.as_bytes(), "{answer}");
            return false;
        }
        _ => {
            let body = json!({ "cmd": format!("echo {token}; exit 4") });
            let answer = session.request("POST", "/processes").json(&body).send().ok(201);
            let id = answer["process_id"].as_str().expect("an id");
            let path = format!("/processes/{id}/events?follow=true");
            let told = crate::Replay::of(&session.request("GET", &path).send());
            let outputs = told.named("output");
            let bytes: Vec<u8> =
                outputs.iter().flat_map(|event| decode(&event.data["data_base64"])).collect();
            assert_eq!(bytes, format!("{token}\n").as_bytes());
            assert_eq!(told.named("exit")[0].data["exit_code"], 4);
            return false;
        }
    }
    true
}
