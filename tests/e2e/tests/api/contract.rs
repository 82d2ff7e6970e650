//! Nothing is passed over in silence, and one rule holds everywhere.

use std::time::{Duration, Instant};

use sandkasten_e2e::session::encode;
use sandkasten_e2e::{Lab, Session, wait};
use serde_json::{Value, json};

fn tiny(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "tiny" }))
}

/// The document as it is checked in, which a unit test holds against the daemon's.
fn document() -> Value {
    let file = sandkasten_e2e::lab::checkout().join("docs/openapi.json");
    let text = std::fs::read(file).expect("docs/openapi.json");
    serde_json::from_slice(&text).expect("JSON")
}

/// What a `$ref` stands for.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|link| link.strip_prefix('#')) {
        Some(pointer) => resolved(root, root.pointer(pointer).expect("a schema")),
        None => schema,
    }
}

/// The properties that a schema names, those of its alternatives included.
fn properties<'a>(root: &'a Value, schema: &'a Value) -> Vec<(String, &'a Value)> {
    let schema = resolved(root, schema);
    let own = schema["properties"].as_object().into_iter().flatten();
    let mut found: Vec<_> = own.map(|(name, inner)| (name.clone(), inner)).collect();
    for list in ["oneOf", "anyOf", "allOf"] {
        for part in schema[list].as_array().into_iter().flatten() {
            found.extend(properties(root, part));
        }
    }
    found
}

/// Bodies with a field that nobody knows: at the top, and in each object below it.
fn bodies(root: &Value, schema: &Value) -> Vec<(String, Value)> {
    let mut all = vec![(String::new(), json!({ "no_such_field": 1 }))];
    for (name, inner) in properties(root, schema) {
        let is_list = resolved(root, inner)["items"].is_object();
        let item = if is_list { &resolved(root, inner)["items"] } else { inner };
        if properties(root, item).is_empty() {
            continue;
        }
        let object = json!({ "no_such_field": 1 });
        let value = if is_list { json!([object]) } else { object };
        all.push((name.clone(), json!({ name: value })));
    }
    all
}

fn filled(path: &str, session: &str) -> String {
    let id = if path.starts_with("/v1/workspaces") { "any-space" } else { session };
    path.replace("{id}", id)
        .replace("{exec_id}", "any")
        .replace("{process_id}", "any")
        .replace("{name}", "any")
}

#[test]
fn every_body_of_the_document_refuses_a_field_that_nobody_knows() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let root = document();
    let mut count = 0;
    for (path, item) in root["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if schema.is_null() {
                continue;
            }
            for (at, body) in bodies(&root, schema) {
                let target = filled(path, &session.id);
                let request = lab.client.request(&method.to_uppercase(), &target).json(&body);
                let error = request.send().error(400, "INVALID_REQUEST");
                let message = error["message"].as_str().unwrap_or_default();
                let place = if at.is_empty() {
                    "unknown field `no_such_field`".into()
                } else {
                    format!("`{at}")
                };
                assert!(message.contains("no_such_field"), "{method} {path} {body}: {message}");
                assert!(message.contains(&place), "{method} {path} {body}: {message}");
                count += 1;
            }
        }
    }
    assert!(count >= 25, "{count} bodies");
}

#[test]
fn every_route_of_the_document_refuses_a_query_name_that_it_does_not_have() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let root = document();
    for (path, item) in root["paths"].as_object().expect("paths") {
        for method in item.as_object().expect("operations").keys() {
            let target = format!("{}?no_such_name=1", filled(path, &session.id));
            let answer = lab.client.request(&method.to_uppercase(), &target).send();
            let status = answer.status();
            assert_eq!(status, 400, "{method} {path}: {answer}");
            if method != "head" {
                let error = answer.error(400, "INVALID_REQUEST");
                assert_eq!(error["message"], "unknown query parameter `no_such_name`", "{path}");
            }
        }
    }
    let error = session.request("GET", "/fs/read?path=a&max_byte=1").send();
    let error = error.error(400, "INVALID_REQUEST");
    assert_eq!(error["message"], "unknown query parameter `max_byte`; did you mean `max_bytes`?");
}

#[test]
fn a_form_field_that_nobody_knows_is_refused() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let form = "--x\r\nContent-Disposition: form-data; name=\"pth\"\r\n\r\n.\r\n--x--\r\n";
    let request = session.request("POST", "/fs/upload").body(form);
    let answer = request.header("Content-Type", "multipart/form-data; boundary=x").send();
    let error = answer.error(400, "INVALID_REQUEST");
    assert_eq!(error["message"], "unknown form field `pth`; did you mean `path`?");
}

#[test]
fn the_nearest_field_is_told_and_no_type_of_rust() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let create = |body: Value| {
        let error = lab.client.post("/v1/sessions", &body).error(400, "INVALID_REQUEST");
        error["message"].as_str().expect("a message").to_owned()
    };
    assert_eq!(
        create(json!({"limits": {"memory": 5}})),
        "unknown field `memory` in `limits`; did you mean `memory_mb`?"
    );
    assert_eq!(
        create(json!({"limits": {"cpu": "1"}})),
        "`limits.cpu` must be a number, not the text \"1\""
    );
    let start = |body: Value| {
        let error = session.request("POST", "/processes").json(&body).send();
        error.error(400, "INVALID_REQUEST")["message"].as_str().expect("a message").to_owned()
    };
    assert!(start(json!({"argv": ["true"], "stdin": 7})).starts_with("`stdin` must be `none`"));
    assert!(
        start(json!({"argv": ["true"], "tty": {"rows": 0, "cols": 1}})).starts_with("`tty.rows`")
    );
    let body = json!({"argv": ["true"], "timeout_ms": 30000.0, "wait": true});
    session.request("POST", "/processes").json(&body).send().ok(200);
}

#[test]
fn a_directory_to_start_in_is_made_or_the_create_is_refused() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "tiny", "cwd": "/workspace/a/b" }));
    assert_eq!(session.info()["cwd"], "/workspace/a/b");
    let nowhere = json!({ "cmd": "true", "cwd": "" });
    for answer in [
        lab.try_session(&json!({ "image": "tiny", "cwd": "" })),
        session.try_exec(&nowhere),
        session.request("POST", "/processes").json(&nowhere).send(),
    ] {
        assert_eq!(answer.error(400, "INVALID_REQUEST")["message"], "`cwd` is empty");
    }
    assert_eq!(session.run("pwd"), "/workspace/a/b\n");
    for cwd in ["/root/x", "/etc/passwd", "/nowhere/x", "/proc/1/x"] {
        let answer = lab.try_session(&json!({ "image": "tiny", "cwd": cwd }));
        let error = answer.error(400, "INVALID_REQUEST");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("`cwd`") && message.contains(cwd), "{message}");
    }
    let root = lab.session(&json!({ "image": "tiny", "cwd": "/nowhere/x", "user": "root" }));
    assert_eq!(root.run("pwd; id -u"), "/nowhere/x\n0\n");
}

fn ids(list: &Value) -> Vec<String> {
    let ids = list.as_array().expect("a list").iter();
    ids.map(|one| one["id"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn sessions_are_listed_page_by_page() {
    let lab = Lab::start();
    let made: Vec<Session<'_>> = (0..5)
        .map(|n| {
            lab.session(&json!({ "image": "tiny", "labels": { "n": n.to_string(), "all": "yes" } }))
        })
        .collect();
    let (mut found, mut cursor) = (Vec::new(), String::new());
    let mut pages = 0;
    loop {
        let answer = lab.client.get(&format!("/v1/sessions?label=all=yes&limit=2{cursor}"));
        found.extend(ids(&answer.ok(200)));
        pages += 1;
        if pages == 1 {
            // What comes meanwhile moves nothing.
            std::mem::forget(lab.session(&json!({ "image": "tiny" })));
        }
        match answer.header("X-Next-Cursor") {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let want: Vec<String> = made.iter().map(|session| session.id.clone()).collect();
    assert_eq!((found, pages), (want, 3));
    let one = lab.client.get("/v1/sessions?label=all=yes&label=n=3").ok(200);
    assert_eq!(ids(&one), [made[3].id.clone()]);
    assert_eq!(ids(&lab.client.get("/v1/sessions?status=stopping").ok(200)), Vec::<String>::new());
    for bad in ["cursor=x", "cursor=bm9uZQ", "limit=0", "limit=1001", "status=gone", "label=x"] {
        lab.client.get(&format!("/v1/sessions?{bad}")).error(400, "INVALID_REQUEST");
    }
}

#[test]
fn sessions_that_have_ended_are_listed_for_a_day() {
    let lab = Lab::start();
    let mut gone = Vec::new();
    for n in 0..3 {
        let session = lab.session(
            &json!({ "image": "tiny", "name": format!("n{n}"), "labels": { "n": n.to_string() } }),
        );
        session.delete().ok(200);
        gone.push(session.id.clone());
        std::mem::forget(session);
    }
    let living = tiny(&lab);
    let first = lab.client.get("/v1/sessions?status=ended&limit=2");
    assert_eq!(ids(&first.ok(200)), gone[..2]);
    assert_eq!(first.ok(200)[0]["name"], "n0");
    let cursor = first.header("X-Next-Cursor").expect("another page");
    let second = lab.client.get(&format!("/v1/sessions?status=ended&limit=2&cursor={cursor}"));
    assert_eq!(ids(&second.ok(200)), gone[2..]);
    assert_eq!(second.header("X-Next-Cursor"), None);
    assert_eq!(ids(&lab.client.get("/v1/sessions?status=destroyed&label=n=1").ok(200)), gone[1..2]);
    assert_eq!(ids(&lab.client.get("/v1/sessions?status=crashed").ok(200)), Vec::<String>::new());
    assert_eq!(ids(&lab.client.get("/v1/sessions").ok(200)), std::slice::from_ref(&living.id));
}

#[test]
fn the_other_lists_have_pages_too() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    for n in 0..3 {
        session.exec_with(&json!({ "cmd": "true", "exec_id": format!("e{n}") }));
        let body = json!({ "argv": ["true"], "wait": true });
        session.request("POST", "/processes").json(&body).send().ok(200);
    }
    for (path, noun) in [("/execs", "execs"), ("/processes", "processes")] {
        let first =
            session.request("GET", &format!("{path}?limit=2&status=finished")).send().ok(200);
        assert_eq!(first[noun].as_array().map(Vec::len), Some(2), "{first}");
        let next = first["next_cursor"].as_str().expect("another page");
        let second =
            session.request("GET", &format!("{path}?limit=2&cursor={next}")).send().ok(200);
        assert_eq!(second[noun].as_array().map(Vec::len), Some(1), "{second}");
        assert!(second.get("next_cursor").is_none(), "{second}");
        session.request("GET", &format!("{path}?cursor=x")).send().error(400, "INVALID_REQUEST");
        session.request("GET", &format!("{path}?status=done")).send().error(400, "INVALID_REQUEST");
    }
    for id in ["page-a", "page-b"] {
        let body = json!({ "labels": { "pages": "yes" } });
        lab.client.request("PUT", &format!("/v1/workspaces/{id}")).json(&body).send().ok(201);
    }
    let first = lab.client.get("/v1/workspaces?label=pages=yes&limit=1").ok(200);
    assert_eq!(first["workspaces"][0]["id"], "page-a");
    let next = first["next_cursor"].as_str().expect("another page");
    let second =
        lab.client.get(&format!("/v1/workspaces?label=pages=yes&limit=1&cursor={next}")).ok(200);
    assert_eq!(second["workspaces"][0]["id"], "page-b");
    let images = lab.client.get("/v1/images?limit=1").ok(200);
    assert_eq!(images["images"].as_array().map(Vec::len), Some(1));
    lab.client.get("/v1/images?cursor=!").error(400, "INVALID_REQUEST");
    let labelled = lab.client.get("/v1/images?label=no-image=has-it").ok(200);
    assert_eq!(labelled, json!({ "images": [] }));
    lab.client.get("/v1/images?label=x").error(400, "INVALID_REQUEST");
}

#[test]
fn a_session_is_changed_where_that_is_asked_for() {
    let mut lab = Lab::start();
    let made = lab
        .client
        .post("/v1/sessions", &json!({ "image": "tiny", "name": "old", "labels": { "a": "1" } }))
        .ok(201);
    let path = format!("/v1/sessions/{}", made["id"].as_str().expect("an id"));
    let patch = |lab: &Lab, body: Value| lab.client.request("PATCH", &path).json(&body).send();
    let same = patch(&lab, json!({})).ok(200);
    assert_eq!((&same["name"], &same["labels"]), (&json!("old"), &json!({ "a": "1" })));
    assert_eq!(same["expires_at"], made["expires_at"]);
    let changed =
        patch(&lab, json!({ "name": "new", "labels": { "b": "2" }, "ttl_seconds": 7200 })).ok(200);
    assert_eq!((&changed["name"], &changed["labels"]), (&json!("new"), &json!({ "b": "2" })));
    assert!(changed["expires_at"].as_str() > made["expires_at"].as_str(), "{changed}");
    for bad in
        [json!({ "ttl_seconds": -1 }), json!({ "name": "x".repeat(200) }), json!({ "nam": "x" })]
    {
        patch(&lab, bad).error(400, "INVALID_REQUEST");
    }
    let none = patch(&lab, json!({ "ttl_seconds": 0 })).error(400, "INVALID_REQUEST");
    assert_eq!(none["message"], "`ttl_seconds` is 0; it must be 1 to 86400");
    lab.stop();
    lab.restart();
    let after = lab.client.get(&path).ok(200);
    assert_eq!((&after["name"], &after["labels"]), (&json!("new"), &json!({ "b": "2" })));
    assert_eq!(patch(&lab, json!({ "name": "" })).ok(200).get("name"), None);
    lab.client.delete(&path).ok(200);
    patch(&lab, json!({ "name": "x" })).error(410, "SESSION_DESTROYED");
}

#[test]
fn the_users_of_the_image_are_the_same_everywhere() {
    let lab = Lab::shared();
    let own = lab.session(&json!({ "image": "base" }));
    let exec = |user: &str| own.exec_with(&json!({ "cmd": "id -u; echo $USER", "user": user }));
    let program = |user: &str| {
        let body =
            json!({ "cmd": "id -u; echo $USER", "user": user, "wait": true, "encoding": "text" });
        own.request("POST", "/processes").json(&body).send()
    };
    for (user, says) in [
        ("", "1000\nsandbox\n"),
        ("sandbox", "1000\nsandbox\n"),
        ("1000", "1000\nsandbox\n"),
        ("root", "0\nroot\n"),
        ("0", "0\nroot\n"),
        ("daemon", "1\ndaemon\n"),
        ("1", "1\ndaemon\n"),
    ] {
        let done = exec(user);
        assert_eq!(done.output(), says, "exec as {user}");
        assert_eq!(program(user).ok(200)["stdout"], says, "process as {user}");
        let path = format!("/fs/write?user={user}");
        let file = format!("/tmp/of-{user}");
        own.request("POST", &path).json(&json!({ "path": file, "text": "x" })).send().ok(200);
        let uid: u64 = says.lines().next().and_then(|uid| uid.parse().ok()).expect("a uid");
        assert_eq!(own.request("GET", &format!("/fs/stat?path={file}")).send().ok(200)["uid"], uid);
        let create = json!({ "image": "base", "user": user, "cwd": "/workspace/made/here" });
        let session = lab.session(&create);
        assert_eq!(session.run("id -u; echo $USER"), says, "session of {user}");
        // A `/workspace` of its own is its user's.
        let write = json!({ "path": "written/by-call", "text": "x" });
        session.request("POST", "/fs/write").json(&write).send().ok(200);
        assert_eq!(session.run("touch /workspace/t && stat -c %u /workspace"), format!("{uid}\n"));
    }
    // One that outlives the session is `sandbox`'s, whoever comes.
    let shared =
        lab.session(&json!({ "image": "base", "user": "daemon", "workspace_id": "users" }));
    assert_eq!(shared.run("stat -c %u /workspace; touch /workspace/t || echo no").trim_end(), {
        "1000\ntouch: cannot touch '/workspace/t': Permission denied\nno"
    });
    lab.client
        .post("/v1/workspaces/users/fs/chmod", &json!({ "path": ".", "mode": "0777" }))
        .ok(200);
    assert_eq!(shared.run("touch /workspace/t && stat -c %u /workspace/t"), "1\n");
    // The session's own user runs in its shell.
    own.run("x=kept");
    assert_eq!(own.exec_with(&json!({ "cmd": "echo $x", "user": "sandbox" })).output(), "kept\n");
    let nobody = "nobody-knows";
    let told = |error: Value| error["message"].as_str().unwrap_or_default().contains(nobody);
    assert!(told(
        own.try_exec(&json!({ "cmd": "true", "user": nobody })).error(400, "INVALID_REQUEST")
    ));
    assert!(told(program(nobody).error(400, "INVALID_REQUEST")));
    let list = own.request("GET", &format!("/fs/list?path=.&user={nobody}")).send();
    assert!(told(list.error(400, "INVALID_REQUEST")));
    let create = lab.try_session(&json!({ "image": "base", "user": nobody }));
    assert!(told(create.error(400, "INVALID_REQUEST")));
}

#[test]
fn every_call_on_files_takes_a_user() {
    let document = document();
    let paths = document["paths"].as_object().expect("paths");
    let of_files = paths.iter().filter(|(path, _)| path.contains("/fs"));
    let mut count = 0;
    for (path, calls) in of_files {
        for method in ["get", "put", "post", "delete"] {
            let Some(call) = calls.get(method) else { continue };
            let parameters = call["parameters"].as_array().expect("parameters");
            let has_user = parameters.iter().any(|one| resolved(&document, one)["name"] == "user");
            assert!(has_user, "{method} {path}");
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
    let lab = Lab::shared();
    let base = "/v1/workspaces/of-root/fs";
    let write = json!({ "path": "d/f", "text": "x", "mode": "0600" });
    lab.client.post(&format!("{base}/write?user=root"), &write).ok(200);
    let read = format!("{base}/read?path=d/f");
    lab.client.get(&read).error(403, "PERMISSION_DENIED");
    assert_eq!(lab.client.get(&format!("{read}&user=0")).ok(200)["content_base64"], "eA==");
    let found = lab.client.get(&format!("{base}/stat?path=d/f&user=root")).ok(200);
    assert_eq!((&found["uid"], &found["path"]), (&json!(0), &json!("d/f")));
    lab.client.get(&format!("{base}?path=d&user=root")).ok(200);
    let other = lab.client.get(&format!("{read}&user=daemon")).error(400, "INVALID_REQUEST");
    assert_eq!(other["message"], "`user` of a workspace's files must be `sandbox` or `root`");
}

#[test]
fn what_a_delete_cuts_off_says_that_it_had_begun() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let mut events = session.stream(&json!({ "cmd": "echo up; sleep 1000" }));
    events.by_ref().find(|event| event.name == "chunk").expect("it runs");
    let blocked = std::thread::scope(|scope| {
        let call = scope.spawn(|| session.try_exec(&json!({ "cmd": "true" })));
        wait::until("it waits", Duration::from_secs(5), || {
            session.request("GET", "/execs?status=queued").send().ok(200)["execs"][0].is_object()
        });
        session.delete().ok(200);
        call.join().expect("an answer")
    });
    let last = events.last().expect("an error");
    let begun = "the call had begun";
    let message = last.data["error"].as_str().unwrap_or_default();
    assert!(message.contains(begun), "{message}");
    assert_eq!(last.data["seq"], last.id);
    let queued = blocked.error(410, "SESSION_DESTROYED");
    assert!(!queued["message"].as_str().unwrap_or_default().contains(begun), "{queued}");
    let later = session.try_exec(&json!({ "cmd": "true" })).error(410, "SESSION_DESTROYED");
    assert_eq!(later["message"], queued["message"]);
}

#[test]
fn a_client_that_closes_is_gone_also_with_connection_close() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let mut connection = lab.client.connect().expect("a connection");
    let request = session.request("POST", "/exec").header("Connection", "close");
    let request = request.json(&json!({ "cmd": "touch begun; sleep 1000" }));
    connection.write(&request.bytes()).expect("sent");
    wait::until("it runs", Duration::from_secs(5), || {
        session.request("GET", "/fs/stat?path=begun").send().status() == 200
    });
    drop(connection);
    let start = Instant::now();
    assert_eq!(session.run("echo next"), "next\n");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn text_goes_in_and_out_of_processes() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let body = json!({ "argv": ["cat"], "stdin": { "text": "h\u{e9}\r\n\u{1b}[1m" }, "wait": true, "encoding": "text" });
    let done = session.request("POST", "/processes").json(&body).send().ok(200);
    assert_eq!((&done["stdout"], &done["stderr"]), (&json!("h\u{e9}\r\n\u{1b}[1m"), &json!("")));
    assert_eq!(done.get("stdout_base64"), None);
    // A character in two writes, and bytes that are none.
    let cmd = "printf '\\303'; sleep 0.2; printf '\\251\\377'; printf '\\303' >&2";
    let body = json!({ "cmd": cmd, "wait": true, "encoding": "text" });
    let done = session.request("POST", "/processes").json(&body).send().ok(200);
    assert_eq!((&done["stdout"], &done["stderr"]), (&json!("\u{e9}\u{fffd}"), &json!("\u{fffd}")));
    let id = done["process_id"].as_str().expect("an id");
    let events = session.request("GET", &format!("/processes/{id}/events?follow=true")).stream();
    let events: Vec<_> = events.replay().collect();
    let text: String = events
        .iter()
        .filter(|e| e.data["stream"] == "stdout")
        .filter_map(|e| e.data["data"].as_str())
        .collect();
    assert_eq!(text, "\u{e9}\u{fffd}");
    for event in &events {
        assert_eq!(event.data["seq"], event.id, "{}", event.name);
    }
    let both = json!({ "argv": ["cat"], "stdin": { "text": "a", "base64": encode(b"a") } });
    session.request("POST", "/processes").json(&both).send().error(400, "INVALID_REQUEST");
}

#[test]
fn a_program_that_cannot_be_started_says_so() {
    let lab = Lab::shared();
    let session = tiny(&lab);
    let run = |argv: Value| {
        let body = json!({ "argv": argv, "wait": true, "encoding": "text" });
        session.request("POST", "/processes").json(&body).send().ok(200)
    };
    let missing = run(json!(["no-such-program"]));
    assert_eq!(
        (&missing["exit_code"], &missing["stderr"]),
        (&json!(127), &json!("sandkasten: no-such-program: no such program\n"))
    );
    let directory = run(json!(["/etc"]));
    assert_eq!(
        (&directory["exit_code"], &directory["stderr"]),
        (&json!(126), &json!("sandkasten: /etc: not executable\n"))
    );
}

#[test]
fn a_signal_goes_to_the_group_where_that_is_asked_for() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base" }));
    let sleeping = || session.run("grep -l '^sleep' /proc/[0-9]*/comm 2>/dev/null | wc -l");
    let body = json!({ "cmd": "sleep 1000 & sleep 1000; echo over", "encoding": "text" });
    let started = session.request("POST", "/processes").json(&body).send().ok(201);
    let path = format!("/processes/{}", started["process_id"].as_str().expect("an id"));
    wait::until("both sleep", Duration::from_secs(5), || sleeping().trim() == "2");
    let signal = json!({ "signal": "TERM", "group": true });
    session.request("POST", &format!("{path}/signal")).json(&signal).send().ok(200);
    wait::until("it has ended", Duration::from_secs(5), || {
        session.request("GET", &path).send().ok(200)["status"] == "finished"
    });
    assert_eq!(session.request("GET", &path).send().ok(200)["exit_code"], 143);
    wait::until("none sleeps", Duration::from_secs(5), || sleeping().trim() == "0");
}

#[test]
fn the_daemon_says_what_it_is_and_has() {
    let lab = Lab::shared();
    let info = lab.client.get("/v1/info").ok(200);
    assert_eq!(info["limits"]["max_ttl_seconds"], 86_400);
    assert!(info["version"].as_str().is_some_and(|version| !version.is_empty()), "{info}");
    assert!(
        info["guarantees"]["given"].as_array().is_some_and(|given| !given.is_empty()),
        "{info}"
    );
    assert!(info["features"].as_array().expect("features").contains(&json!("exec")), "{info}");
    let image = lab.client.get("/v1/images/tiny").ok(200);
    assert_eq!(image["name"], "tiny");
    lab.client.get("/v1/images/no-such").error(404, "IMAGE_NOT_FOUND");
    let session = tiny(&lab);
    lab.client.delete("/v1/images/tiny").error(409, "CONFLICT");
    assert_eq!(session.stats()["disk_bytes"], Value::Null);
    lab.client.anonymous().get("/readyz").ok(200);
    lab.client.anonymous().get("/v1/info").error(401, "UNAUTHORIZED");
}
