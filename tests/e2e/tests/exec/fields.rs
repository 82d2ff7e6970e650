//! The fields of a request: stdin, cwd, env, user, split, encoding, the cap; and the shell's restart.

use std::time::Duration;

use sandkasten_e2e::Lab;
use sandkasten_e2e::session::{decode, encode};
use serde_json::{Value, json};

use crate::{MIB, base, gives, play};

#[test]
fn stdin_is_read_to_its_end() {
    let lab = Lab::shared();
    for image in ["base", "tiny"] {
        let session = lab.session(&json!({ "image": image }));
        let done = session.exec_with(&json!({ "cmd": "cat; echo; echo rc=$?", "stdin": "a\nb" }));
        assert_eq!((done.code(), done.output()), (0, "a\nb\nrc=0\n"), "{}", done.body);
        let done =
            session.exec_with(&json!({ "cmd": "read a; read b; echo $b $a", "stdin": "1\n2\n" }));
        assert_eq!(done.output(), "2 1\n", "{}", done.body);
        let done = session.exec_with(&json!({ "cmd": "cat | wc -c", "stdin": "" }));
        assert_eq!(done.output().trim(), "0", "{}", done.body);
        // What is not read is no harm, to this command or the next.
        let unread = "x".repeat(3 * MIB);
        let done = session.exec_with(&json!({ "cmd": "echo unread", "stdin": unread }));
        assert_eq!((done.code(), done.output()), (0, "unread\n"), "{}", done.body);
        let done = session.exec_with(&json!({ "cmd": "head -c 3; exec 0<&-", "stdin": unread }));
        assert_eq!(done.output(), "xxx", "{}", done.body);
        gives(&session, "cat", 0, "");
    }
}

#[test]
fn stdin_has_any_bytes() {
    let lab = Lab::shared();
    let session = base(&lab);
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_003).collect();
    let request = json!({ "cmd": "tee copy", "stdin": encode(&bytes), "encoding": "base64",
        "max_output_bytes": 2 * MIB });
    assert_eq!(decode(&session.exec_with(&request).body["output_base64"]), bytes);
    assert_eq!(session.read("copy"), bytes);
}

/// 50 MiB, which are 67 in base64.
#[test]
fn stdin_of_50_mib() {
    let lab = Lab::shared();
    let session = base(&lab);
    let bytes = vec![b's'; 50 * MIB];
    let request = json!({ "cmd": "wc -c", "stdin": encode(&bytes), "encoding": "base64" });
    let done = session.exec_with(&request);
    assert_eq!(decode(&done.body["output_base64"]), b"52428800\n", "{}", done.body);
    session.alive();
}

#[test]
fn cwd_is_a_cd_that_stays() {
    let lab = Lab::shared();
    for image in ["base", "tiny"] {
        let session = lab.session(&json!({ "image": image }));
        session.run("mkdir -p '/tmp/a b'; echo x > /tmp/file");
        let done = session.exec_with(&json!({ "cmd": "pwd", "cwd": "/tmp/a b" }));
        assert_eq!((done.output(), &done.body["cwd"]), ("/tmp/a b\n", &json!("/tmp/a b")));
        gives(&session, "pwd", 0, "/tmp/a b\n");
        for missing in ["/nowhere", "/tmp/file"] {
            let request = json!({ "cmd": "echo ran > /tmp/ran", "cwd": missing });
            let error = session.try_exec(&request).error(400, "INVALID_REQUEST");
            assert!(
                error["message"].as_str().is_some_and(|text| text.contains(missing)),
                "{error}"
            );
        }
        gives(&session, "pwd; cat /tmp/ran 2>/dev/null; true", 0, "/tmp/a b\n");
    }
}

#[test]
fn env_holds_for_one_command() {
    let lab = Lab::shared();
    for image in ["base", "tiny"] {
        let session = lab.session(&json!({ "image": image }));
        session.run("export A=old; readonly R=1");
        let request = json!({ "cmd": "echo $A; env | grep -c '^NEW=a b$'; sh -c 'echo $A'",
            "env": { "A": "x'\"$y\n", "NEW": "a b" } });
        let done = session.exec_with(&request);
        assert_eq!(done.output(), "x'\"$y\n1\nx'\"$y\n", "{}", done.body);
        gives(&session, "echo $A [$NEW]", 0, "old []\n");
        let request = json!({ "cmd": "echo ran > /tmp/ran", "env": { "R": "2" } });
        session.try_exec(&request).error(400, "INVALID_REQUEST");
        for name in ["1A", "A-B", "", "A=B", "A B"] {
            let request = json!({ "cmd": "true", "env": { name: "x" } });
            session.try_exec(&request).error(400, "INVALID_REQUEST");
        }
        gives(&session, "cat /tmp/ran 2>/dev/null; true", 0, "");
    }
}

#[test]
fn root_runs_one_command() {
    let lab = Lab::shared();
    for image in ["base", "tiny"] {
        let session = lab.session(&json!({ "image": image }));
        session.run("cd /tmp; export A=1; b=2; f() { echo F; }");
        let cmd = "id -u; pwd; echo $A [$b] $HOME $USER $LOGNAME; f 2>/dev/null; touch /etc/mine; cd /; A=3; (exit 4)";
        let request = json!({ "cmd": cmd, "user": "root" });
        let done = session.exec_with(&request);
        let want = "0\n/tmp\n1 [] /root root root\n";
        assert_eq!((done.code(), done.output()), (4, want), "{image}: {}", done.body);
        gives(
            &session,
            "id -u; pwd; echo $A $b; f; test -e /etc/mine && echo there",
            0,
            "1000\n/tmp\n1 2\nF\nthere\n",
        );
        let events = play(&session, &request);
        assert_eq!(events.last().expect("an end").data["exit_code"], 4);
        let request = json!({ "cmd": "sleep 60", "user": "root", "timeout_ms": 300 });
        let done = session.exec_with(&request);
        assert_eq!((done.code(), done.reason()), (124, "timeout"), "{}", done.body);
        gives(&session, "echo $b; f", 0, "2\nF\n");
        session
            .try_exec(&json!({ "cmd": "true", "user": "nobody-there" }))
            .error(400, "INVALID_REQUEST");
    }
}

#[test]
fn split_keeps_both_orders() {
    let lab = Lab::shared();
    for image in ["base", "tiny"] {
        let session = lab.session(&json!({ "image": image }));
        let cmd = "echo out; sleep 0.1; echo err >&2; sleep 0.1; echo out2; (exit 7)";
        let done = session.exec_with(&json!({ "cmd": cmd, "split": true }));
        assert_eq!(done.code(), 7, "{}", done.body);
        let fields = ["output", "stdout", "stderr"].map(|name| done.body[name].as_str());
        assert_eq!(fields, [Some("out\nerr\nout2\n"), Some("out\nout2\n"), Some("err\n")]);
        let done = session.exec_with(&json!({ "cmd": cmd }));
        assert_eq!((&done.body["stdout"], &done.body["stderr"]), (&Value::Null, &Value::Null));
    }
}

/// Each field has the cap for itself, and its first and last half.
#[test]
fn the_cap_keeps_head_and_tail() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "seq 100000; seq 200000 >&2";
    let request = json!({ "cmd": cmd, "max_output_bytes": 1000, "split": true });
    let done = session.exec_with(&request);
    assert_eq!(done.body["truncated"], true, "{}", done.body);
    for (field, last, bytes) in [("stdout", "100000\n", 588_895), ("stderr", "200000\n", 1_288_895)]
    {
        let text = done.body[field].as_str().unwrap_or_default();
        assert!(text.len() <= 1000 && text.len() > 950, "{field}: {} bytes", text.len());
        assert!(text.starts_with("1\n2\n3\n") && text.ends_with(last), "{text}");
        let marker = text.lines().find(|line| line.starts_with("[… ")).expect("a marker");
        let left_out = marker.trim_start_matches("[… ").split(' ').next().expect("a number");
        let left_out: usize = left_out.parse().expect("a number");
        // The line of the marker, and the newline before it where the head has none at its end.
        let told = left_out + text.len() - marker.len() - 1;
        assert!(told == bytes || told == bytes + 1, "{field}: {marker}");
    }
    assert_eq!(done.body["output_bytes"], 588_895 + 1_288_895, "{}", done.body);
}

#[test]
fn the_cap_goes_up_to_64_mib() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base", "limits": { "memory_mb": 512 } }));
    let most = 64 * MIB;
    let cmd = format!("head -c {most} /dev/zero | tr '\\0' a");
    let request = json!({ "cmd": cmd, "max_output_bytes": most, "timeout_ms": 60_000 });
    let done = session.exec_with(&request);
    assert_eq!((done.code(), &done.body["truncated"]), (0, &json!(false)));
    assert!(done.output().len() == most && done.output().bytes().all(|byte| byte == b'a'));
    let request = json!({ "cmd": "true", "max_output_bytes": most + 1 });
    session.try_exec(&request).error(400, "INVALID_REQUEST");
    session.alive();
}

#[test]
fn the_shell_is_restarted_on_request() {
    let lab = Lab::shared();
    for image in ["base", "tiny"] {
        let session = lab.session(&json!({ "image": image }));
        let restart =
            |body: &Value| session.request("POST", "/shell/restart").json(body).send().ok(200);
        session.run("cd /tmp; export A=1; b=2; umask 077; sleep 7010 & true");
        let pid = session.run("echo $$");
        restart(&json!({ "keep_state": true }));
        gives(&session, "pwd; echo $A $b; umask", 0, "/tmp\n1 2\n0077\n");
        assert_ne!(session.run("echo $$"), pid);
        assert!(crate::is_running(&session, "sleep 7010"), "background jobs live on");
        restart(&json!({ "keep_state": false }));
        gives(&session, "pwd; echo $A [$b]", 0, "/workspace\n[]\n");
        session.alive();
    }
}

#[test]
fn bad_fields_are_refused_by_name() {
    let lab = Lab::shared();
    let session = base(&lab);
    for (field, value) in [
        ("timeout_ms", json!(0)),
        ("timeout_ms", json!(-1)),
        ("timeout_ms", json!("30")),
        ("timeout_ms", json!(600_001)),
        ("encoding", json!("hex")),
        ("on_disconnect", json!("maybe")),
        ("exec_id", json!("")),
        ("exec_id", json!("a/b")),
        ("exec_id", json!("x".repeat(65))),
        ("user", json!("nobody-there")),
        ("max_output_bytes", json!(0)),
        ("max_output_bytes", json!(-5)),
        ("cwd", json!("a\0b")),
        ("split", json!("yes")),
        ("stdin", json!(5)),
    ] {
        let error = session
            .try_exec(&json!({ "cmd": "touch /tmp/ran", field: value }))
            .error(400, "INVALID_REQUEST");
        let message = error["message"].as_str().unwrap_or_default();
        let named = [field.to_owned(), field.replace('_', " ")];
        assert!(named.iter().any(|name| message.contains(name)), "{field}: {message}");
    }
    let request = json!({ "cmd": "true", "stdin": "no base64!", "encoding": "base64" });
    session.try_exec(&request).error(400, "INVALID_REQUEST");
    let body = json!({ "cmd": "true", "detach": true });
    let stream = session.request("POST", "/exec/stream").json(&body).stream().answer();
    stream.error(400, "INVALID_REQUEST");
    gives(&session, "ls /tmp/ran 2>/dev/null; true", 0, "");
}

/// Two seconds of silence after output that came byte by byte.
#[test]
fn chunks_leave_when_they_are_written() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "for i in 1 2 3 4 5; do date +%s%N; sleep 0.2; done";
    let events = session.stream(&json!({ "cmd": cmd })).finish().events;
    let at = |event: &sandkasten_e2e::sse::Event| {
        event.data["chunk"]
            .as_str()
            .map(|text| text.trim().parse::<i64>().expect("nanoseconds") / 1_000_000)
    };
    let chunks: Vec<_> = events.iter().filter(|event| event.name == "chunk").collect();
    assert_eq!(chunks.len(), 5, "{events:?}");
    for chunk in &chunks {
        let late = chunk.data["timestamp"].as_i64().expect("ms") - at(chunk).expect("a time");
        assert!((-2..=50).contains(&late), "seen {late} ms after it was written");
    }
    let gaps = chunks.windows(2).map(|two| two[1].at - two[0].at);
    for gap in gaps {
        assert!(gap > Duration::from_millis(150) && gap < Duration::from_millis(300), "{gap:?}");
    }
}
