//! Every field of a start, and every error.

use super::*;

/// A request, in a tiny session, that is refused; the message names `named`.
#[track_caller]
fn refused(request: &Value, want: (u16, &str), named: &str) {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let answer = ask(&session, request);
    let error = answer.error(want.0, want.1);
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains(named), "the message names `{named}`: {message}");
    assert!(answer.took < AT_ONCE, "took {:?}", answer.took);
    // What could not be started may be listed with its error; nothing runs.
    let list = session.request("GET", "/processes").send().ok(200);
    for one in list["processes"].as_array().expect("a list") {
        assert!(one["status"] == "finished" && one["error"].is_string(), "{list}");
    }
    session.alive();
}

macro_rules! refused {
    ($($name:ident: $request:expr => $named:expr;)+) => {
        $(#[test]
        fn $name() {
            refused(&$request, (400, "INVALID_REQUEST"), $named);
        })+
    };
}

refused! {
    neither_argv_nor_cmd: json!({}) => "argv";
    both_argv_and_cmd: json!({"argv": ["true"], "cmd": "true"}) => "argv";
    empty_argv: json!({"argv": []}) => "argv";
    argv_that_is_a_text: json!({"argv": "true"}) => "argv";
    argv_with_a_number: json!({"argv": ["sleep", 1]}) => "argv";
    argv_with_a_nul: json!({"argv": ["echo", "a\u{0}b"]}) => "NUL";
    cmd_with_a_nul: json!({"cmd": "echo \u{0}"}) => "NUL";
    cmd_that_is_a_list: json!({"cmd": ["true"]}) => "cmd";
    env_name_with_an_equals_sign: json!({"argv": ["true"], "env": {"A=B": "x"}}) => "A=B";
    env_value_with_a_nul: json!({"argv": ["true"], "env": {"A": "\u{0}"}}) => "NUL";
    env_that_is_a_list: json!({"argv": ["true"], "env": ["A=1"]}) => "env";
    cwd_that_is_not_there: json!({"argv": ["true"], "cwd": "/nowhere"}) => "cwd";
    cwd_that_is_a_file: json!({"argv": ["true"], "cwd": "/etc/passwd"}) => "cwd";
    user_that_is_not_there: json!({"argv": ["true"], "user": "nobody-knows"}) => "user";
    user_that_is_a_number: json!({"argv": ["true"], "user": 0}) => "user";
    stdin_of_an_unknown_mode: json!({"argv": ["true"], "stdin": "later"}) => "stdin";
    stdin_of_broken_base64: json!({"argv": ["true"], "stdin": {"base64": "a*b="}}) => "base64";
    stdin_without_base64: json!({"argv": ["true"], "stdin": {}}) => "stdin";
    tty_without_rows: json!({"argv": ["true"], "tty": {"cols": 80}}) => "tty";
    tty_of_no_rows: json!({"argv": ["true"], "tty": {"rows": 0, "cols": 80}}) => "rows";
    tty_of_too_many_columns: json!({"argv": ["true"], "tty": {"rows": 24, "cols": 65536}}) => "65535";
    no_time: json!({"argv": ["true"], "timeout_ms": 0}) => "timeout_ms";
    negative_time: json!({"argv": ["true"], "timeout_ms": -1}) => "timeout_ms";
    a_word_for_time: json!({"argv": ["true"], "timeout_ms": "soon"}) => "timeout_ms";
    wait_that_is_a_word: json!({"argv": ["true"], "wait": "yes"}) => "wait";
    on_disconnect_that_never_was: json!({"argv": ["true"], "on_disconnect": "cancel"}) => "on_disconnect";
}

#[test]
fn argv_and_env_of_more_than_2_mib() {
    let many: Vec<String> = (0..33).map(|_| "x".repeat(65536)).collect();
    let mut argv = vec!["true".to_owned()];
    argv.extend(many);
    refused(&json!({ "argv": argv }), (413, "TOO_LARGE"), "2097152");
}

#[test]
fn argv_and_env_of_nearly_2_mib_arrive() {
    let lab = Lab::shared();
    let session = base(&lab);
    let mut argv = vec!["printf".to_owned(), "%s".to_owned()];
    argv.extend((0..15).map(|n| format!("{n:x}").repeat(65536)));
    let env = json!({ "LARGE": "y".repeat(65536) });
    let done = run_with(&session, &json!({ "argv": argv, "env": env }));
    assert_eq!(done.code(), 0, "{:?}", done.stderr());
    assert!(done.stdout() == argv[2..].concat().into_bytes(), "1 MiB of arguments");
}

#[test]
fn the_arguments_arrive_as_they_are() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let argv = ["printf", "%s|", "a b", "", "$HOME", "`id`", "ü\n\"'\\", "*", "-n"];
    assert_eq!(says(&session, &argv), "a b||$HOME|`id`|ü\n\"'\\|*|-n|");
    let done = run_with(&session, &json!({ "cmd": "echo $((6 * 7)) | cat; exit 3" }));
    assert_eq!((done.code(), done.text().as_str()), (3, "42\n"));
}

#[test]
fn stdout_and_stderr_are_apart_and_exact() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let cmd = r"printf 'out\000\377\033[1m\r\n'; printf 'err\200' >&2";
    let done = run_with(&session, &json!({ "cmd": cmd }));
    assert_eq!(done.stdout(), b"out\x00\xff\x1b[1m\r\n");
    assert_eq!(done.stderr(), b"err\x80");
    assert_eq!(done.body["truncated"], false);
}

#[test]
fn env_is_the_sessions_and_the_requests() {
    let lab = Lab::shared();
    let session =
        lab.session(&json!({ "image": "tiny", "env": { "A": "session", "B": "session" } }));
    session.run("export A=shell");
    let request = json!({ "argv": ["env"], "env": { "B": "own", "C": "a=b c" } });
    let text = run_with(&session, &request).text();
    let lines: Vec<&str> = text.lines().collect();
    for line in ["A=session", "B=own", "C=a=b c", "TERM=dumb", "PAGER=cat"] {
        assert!(lines.contains(&line), "{line}: {text}");
    }
    let id = format!("SANDKASTEN_SESSION_ID={}", session.id);
    assert!(lines.contains(&id.as_str()), "{text}");
    // The search is along the PATH that the program itself gets.
    let done = run_with(&session, &json!({ "argv": ["env"], "env": { "PATH": "/nowhere" } }));
    assert_eq!(done.code(), 127, "{}", done.body);
}

#[test]
fn it_starts_where_it_is_told() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    session.run("mkdir -p /workspace/dir; cd /tmp");
    assert_eq!(says(&session, &["pwd"]), "/workspace\n");
    for (cwd, pwd) in
        [("dir", "/workspace/dir\n"), ("/", "/\n"), ("/workspace/dir/..", "/workspace\n")]
    {
        let done = run_with(&session, &json!({ "cmd": "pwd -P", "cwd": cwd }));
        assert_eq!(done.text(), pwd, "{cwd}");
    }
    assert_eq!(session.run("pwd"), "/tmp\n", "the shell is where it was");
}

#[test]
fn it_runs_as_whom_it_is_told() {
    let lab = Lab::shared();
    let session = base(&lab);
    let who = |user: &str| {
        let cmd = "echo $(id -u) $(id -g) $HOME $USER $LOGNAME";
        run_with(&session, &json!({ "cmd": cmd, "user": user })).text()
    };
    assert_eq!(says(&session, &["id", "-un"]), session.run("id -un"));
    assert_eq!(who("root"), "0 0 /root root root\n");
    let daemon = session.run("grep '^daemon:' /etc/passwd | cut -d: -f3,4,6 | tr : ' '");
    assert_eq!(who("daemon"), format!("{} daemon daemon\n", daemon.trim_end()));
    // Modes count.
    let root = json!({ "cmd": "umask 077; echo secret > /tmp/of-root", "user": "root" });
    assert_eq!(run_with(&session, &root).code(), 0);
    assert_ne!(run(&session, &["cat", "/tmp/of-root"]).code(), 0);
}

#[test]
fn stdin_is_empty_or_what_is_given() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    for request in [json!({ "argv": ["cat"] }), json!({ "argv": ["cat"], "stdin": "none" })] {
        let done = run_with(&session, &request);
        assert_eq!((done.code(), done.stdout()), (0, vec![]), "{request}");
        assert!(done.took < AT_ONCE);
    }
    let bytes: Vec<u8> = (0..=255).collect();
    for bytes in [&b""[..], b"x", &bytes] {
        let done = run_with(&session, &json!({ "argv": ["cat"], "stdin": data(bytes) }));
        assert_eq!(done.stdout(), bytes);
    }
    // A program that does not read it is not hurt.
    let done = run_with(&session, &json!({ "argv": ["true"], "stdin": data(&vec![0; MIB]) }));
    assert_eq!(done.code(), 0, "{}", done.body);
}

#[test]
fn a_tty_is_one() {
    let lab = Lab::shared();
    let session = python(&lab);
    let tty = json!({ "rows": 33, "cols": 101 });
    let cmd = "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM && echo err >&2";
    let done = run_with(&session, &json!({ "cmd": cmd, "tty": tty, "stdin": "none" }));
    assert_eq!((done.code(), done.text().as_str()), (0, "33 101\r\nxterm-256color\r\nerr\r\n"));
    assert_eq!(done.stderr(), b"");
    let program = "import os; print(os.tcgetpgrp(0) == os.getpgrp(), os.ttyname(0))";
    let request = json!({ "argv": ["python3", "-c", program], "tty": tty });
    let done = run_with(&session, &request);
    assert!(done.text().starts_with("True /dev/pts/"), "{}: {}", done.text(), done.body);
}

#[test]
fn a_start_is_answered_at_once() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let answer = ask(&session, &json!({ "argv": ["sleep", "1000"], "on_disconnect": "keep" }));
    let body = answer.ok(201);
    assert!(answer.took < AT_ONCE, "{:?}", answer.took);
    let fields: Vec<&str> =
        body.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(fields, ["pid", "process_id", "started_at"]);
    let comm = session.run(&format!("cat /proc/{}/comm", body["pid"]));
    assert_eq!(comm, "sleep\n", "the pid is the program's");
    assert!(body["started_at"].as_str().is_some_and(|time| time.ends_with('Z')), "{body}");
}

#[test]
fn processes_are_listed_and_looked_up() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let first = start(&session, &json!({ "argv": ["sleep", "1000"] }));
    let second = start(&session, &json!({ "cmd": "exit 5" }));
    assert_eq!(second.exit()["exit_code"], 5);
    let list = session.request("GET", "/processes").send().ok(200);
    let list = list["processes"].as_array().expect("a list");
    let ids: Vec<&Value> = list.iter().map(|one| &one["process_id"]).collect();
    assert_eq!(ids, [&json!(first.id), &json!(second.id)]);
    let running = first.info();
    assert_eq!(running, list[0]);
    assert_eq!(
        (&running["status"], &running["pid"], &running["argv"], &running["tty"]),
        (&json!("running"), &json!(first.pid), &json!(["sleep", "1000"]), &json!(false))
    );
    assert!(
        running.get("exit_code").is_none() && running.get("finished_at").is_none(),
        "{running}"
    );
    let over = second.info();
    assert_eq!(
        (&over["status"], &over["exit_code"], &over["exit_reason"]),
        (&json!("finished"), &json!(5), &json!("exited"))
    );
    assert!(over["finished_at"].is_string() && over["started_at"].is_string(), "{over}");
}

#[test]
fn unknown_processes_are_404_everywhere() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    for id in ["0123456789abcdef", "a%20b", "..%2f..", &"x".repeat(65)] {
        for (method, rest, body) in [
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "/stdin", Some("x")),
            ("POST", "/signal", Some(r#"{"signal":"TERM"}"#)),
            ("POST", "/resize", Some(r#"{"rows":1,"cols":1}"#)),
            ("GET", "/events", None),
        ] {
            let mut request = session.request(method, &format!("/processes/{id}{rest}"));
            if let Some(body) = body {
                request = request.body(body);
            }
            request.send().error(404, "PROCESS_NOT_FOUND");
        }
        let socket = session.request("GET", &format!("/processes/{id}/attach")).upgrade();
        socket.expect_err("no socket").error(404, "PROCESS_NOT_FOUND");
    }
    for rest in ["/processes", "/processes/x", "/processes/x/events"] {
        let path = format!("/v1/sessions/nobody{rest}");
        lab.client.get(&path).error(404, "SESSION_NOT_FOUND");
    }
    assert_eq!(session.delete().status(), 200);
    session.request("GET", "/processes").send().error(410, "SESSION_DESTROYED");
    ask(&session, &json!({ "argv": ["true"] })).error(410, "SESSION_DESTROYED");
}

#[test]
fn signals_have_names_and_numbers() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    for (signal, number) in [
        (json!("TERM"), 15),
        (json!("SIGINT"), 2),
        (json!(1), 1),
        (json!("9"), 9),
        (json!("USR1"), 10),
    ] {
        let process = start(&session, &json!({ "argv": ["sleep", "1000"] }));
        process.signal(&signal);
        let exit = process.exit();
        assert_eq!(
            (&exit["exit_code"], &exit["signal"], &exit["exit_reason"]),
            (&json!(128 + number), &json!(number), &json!("signaled")),
            "{signal}"
        );
        // One that has ended gets none, and that is no error.
        process.signal(&signal);
    }
    let process = start(&session, &json!({ "argv": ["sleep", "1000"] }));
    for bad in
        [json!("NOPE"), json!(""), json!(-1), json!(65), json!("term!"), json!(null), json!(1.5)]
    {
        let answer = process.send("POST", "/signal", &json!({ "signal": bad }));
        answer.error(400, "INVALID_REQUEST");
    }
    process.send("POST", "/signal", &json!({})).error(400, "INVALID_REQUEST");
    assert_eq!(process.info()["status"], "running");
}

#[test]
fn a_signal_is_for_the_process_itself() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let cmd = "trap 'echo got; exit 7' TERM; sleep 1000 & echo ready; wait; wait";
    let process = start(&session, &json!({ "cmd": cmd }));
    let mut client = process.attach("");
    client.until("ready\n");
    process.signal(&json!("TERM"));
    assert_eq!(client.exit()["exit_code"], 7);
    assert_eq!(client.stdout, b"ready\ngot\n");
    // Its child had none.
    assert!(session.run("ps -o args").contains("sleep 1000"));
    process.kill();
}

#[test]
fn a_resize_is_seen() {
    let lab = Lab::shared();
    let session = python(&lab);
    let program = "import os, signal, time\n\
        signal.signal(signal.SIGWINCH, lambda *_: print(*os.get_terminal_size(), flush=True))\n\
        print('ready', flush=True)\n\
        while True: time.sleep(1)";
    let tty = json!({ "rows": 24, "cols": 80 });
    let process = start(&session, &json!({ "argv": ["python3", "-c", program], "tty": tty }));
    let mut client = process.attach("");
    client.until("ready");
    let answer = process.send("POST", "/resize", &json!({ "rows": 50, "cols": 132 }));
    assert_eq!(answer.ok(200), json!({ "ok": true }));
    client.until("132 50");
    for bad in [
        json!({}),
        json!({"rows": 0, "cols": 1}),
        json!({"rows": 1, "cols": 65536}),
        json!({"rows": "1", "cols": 1}),
    ] {
        process.send("POST", "/resize", &bad).error(400, "INVALID_REQUEST");
    }
    process.kill();
    let plain = start(&session, &json!({ "argv": ["sleep", "1000"] }));
    plain.send("POST", "/resize", &json!({ "rows": 1, "cols": 1 })).error(409, "CONFLICT");
}

#[test]
fn unknown_fields_are_refused_and_known_ones_come_once() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let future = json!({ "argv": ["echo", "x"], "future": { "a": [1] } });
    let error = ask(&session, &future).error(400, "INVALID_REQUEST");
    assert_eq!(error["message"], "unknown field `future`");
    let twice = r#"{"argv":["echo","a"],"argv":["echo","b"]}"#;
    session.request("POST", "/processes").body(twice).send().error(400, "INVALID_REQUEST");
    let large = json!({ "argv": ["true"], "pad": "x".repeat(17 * MIB) });
    ask(&session, &large).error(413, "TOO_LARGE");
}
