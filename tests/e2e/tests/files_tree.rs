//! Trees of files: listed, found, searched, copied and watched, with a session and without one.

use std::time::{Duration, Instant};

use sandkasten_e2e::http::{Answer, Stream};
use sandkasten_e2e::session::{encode, escape};
use sandkasten_e2e::{Lab, Session};
use serde_json::{Value, json};

/// A call that waits for nothing.
const AT_ONCE: Duration = Duration::from_secs(3);

fn base(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "base" }))
}

/// Files of a session, or of a workspace that has none, by the same routes.
struct Files<'a> {
    lab: &'a Lab,
    base: String,
    /// What stands before a path in answers.
    above: &'static str,
}

impl<'a> Files<'a> {
    fn of(session: &Session<'a>) -> Self {
        Self { lab: session.lab, base: session.path(""), above: "/workspace/" }
    }

    fn workspace(lab: &'a Lab, name: &str) -> Self {
        let base = format!("/v1/workspaces/{name}-{}", std::process::id());
        Self { lab, base, above: "" }
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let body = json!({ "path": path, "content_base64": encode(bytes) });
        self.lab.client.post(&format!("{}/fs/write", self.base), &body).ok(200);
    }

    fn get(&self, rest: &str) -> Answer {
        self.lab.client.get(&format!("{}/fs{rest}", self.base))
    }

    fn post(&self, rest: &str, body: &Value) -> Answer {
        self.lab.client.post(&format!("{}/fs{rest}", self.base), body)
    }

    fn listed(&self, query: &str) -> Vec<String> {
        let listing = self.get(&format!("/list?{query}")).ok(200);
        assert_eq!(listing["truncated"], false);
        let entries = listing["entries"].as_array().expect("entries").iter();
        entries.map(|entry| self.short(&entry["path"])).collect()
    }

    fn globbed(&self, pattern: &str) -> Vec<String> {
        let found = self.get(&format!("/glob?pattern={}", escape(pattern))).ok(200);
        let paths = found["paths"].as_array().expect("paths").iter();
        paths.map(|path| self.short(path)).collect()
    }

    fn short(&self, path: &Value) -> String {
        let path = path.as_str().expect("a path");
        path.strip_prefix(self.above).unwrap_or_else(|| panic!("{path}")).to_owned()
    }

    fn watch(&self, query: &str) -> Watch<'_> {
        let request = self.lab.client.request("GET", &format!("{}/fs/watch?{query}", self.base));
        Watch { files: self, stream: request.stream(), events: Vec::new() }
    }
}

/// Runs a check on a session and on a workspace.
fn both(name: &str, check: impl Fn(&Files<'_>)) {
    let lab = Lab::shared();
    let session = base(&lab);
    check(&Files::of(&session));
    let files = Files::workspace(&lab, name);
    check(&files);
    lab.client.delete(&files.base).ok(200);
}

/// An open watch.
struct Watch<'a> {
    files: &'a Files<'a>,
    stream: Stream,
    events: Vec<(String, Value)>,
}

impl Watch<'_> {
    /// Reads until there is such an event.
    #[track_caller]
    fn until(&mut self, name: &str, path: &str) -> Value {
        loop {
            let found = |(told, data): &&(String, Value)| {
                told == name && self.files.short(&data["path"]) == path
            };
            if let Some((_, data)) = self.events.iter().find(found) {
                return data.clone();
            }
            assert!(self.read(), "no `{name}` of {path}: {:?}", self.events);
        }
    }

    /// Reads more. False at the end.
    fn read(&mut self) -> bool {
        let Some(chunk) = self.stream.next_chunk() else { return false };
        let text = String::from_utf8(chunk.data.clone()).expect("ASCII");
        for block in text.split_terminator("\n\n").filter(|block| !block.starts_with(':')) {
            let lines: Vec<&str> = block.split('\n').collect();
            let [_id, name, data] = lines.as_slice() else { panic!("{block}") };
            let name = name.strip_prefix("event: ").expect("a name").to_owned();
            let data = data.strip_prefix("data: ").expect("data");
            self.events.push((name, serde_json::from_str(data).expect("JSON")));
        }
        true
    }
}

#[test]
fn a_listing_is_as_deep_as_it_is_told() {
    both("tree-list", |files| {
        for path in ["a/b/c/f", "a/g", "z"] {
            files.write(path, b"1");
        }
        assert_eq!(files.listed("path=."), ["a", "z"]);
        assert_eq!(files.listed("path=.&depth=2"), ["a", "a/b", "a/g", "z"]);
        assert_eq!(files.listed("path=a&depth=64"), ["a/b", "a/b/c", "a/b/c/f", "a/g"]);
        assert_eq!(files.listed("path=/workspace/a/b"), ["a/b/c"]);
        files.get("/list?path=nope").error(404, "FILE_NOT_FOUND");
        files.get("/list?path=z").error(400, "NOT_A_DIRECTORY");
        files.get("/list?path=.&depth=65").error(400, "INVALID_REQUEST");
        let entry = &files.get("/list?path=a").ok(200)["entries"][1];
        assert_eq!((&entry["uid"], &entry["mode"]), (&json!(1000), &json!("0644")));
    });
}

#[test]
fn a_name_that_is_no_text_comes_back_in_base64() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("mkdir -p \"$(printf 'd\\377')/in\"; echo needle > \"$(printf 'd\\377')/f\"");
    let files = Files::of(&session);
    let listing = files.get("/list?path=.&depth=2").ok(200);
    let dir = &listing["entries"][0];
    assert_eq!((&dir["name"], &dir["name_base64"]), (&json!("d\u{fffd}"), &json!("ZP8=")));
    let below = files.get("/list?path_base64=ZP8%3D").ok(200);
    assert_eq!(below["entries"][0]["name"], "f");
    let whole = encode(b"/workspace/d\xff/f");
    assert_eq!(below["entries"][0]["path_base64"], json!(whole));
    assert!(below["entries"][0].get("name_base64").is_none());
    let found = files.get("/grep?pattern=needle").ok(200);
    assert_eq!(found["matches"][0]["path_base64"], json!(whole));
    let found = files.get("/glob?pattern=*/f").ok(200);
    assert_eq!(found["paths_base64"], json!([whole]));
}

#[test]
fn globs_find_paths() {
    both("tree-glob", |files| {
        for path in ["src/a.rs", "src/deep/b.rs", ".hidden.rs", "c.py"] {
            files.write(path, b"");
        }
        assert_eq!(files.globbed("*.rs"), [".hidden.rs"]);
        assert_eq!(files.globbed("**/*.rs"), [".hidden.rs", "src/a.rs", "src/deep/b.rs"]);
        assert_eq!(files.globbed("/workspace/src/*.{rs,py}"), ["src/a.rs"]);
        let cut = files.get("/glob?pattern=**&limit=2").ok(200);
        assert_eq!(
            (cut["paths"].as_array().map(Vec::len), &cut["truncated"]),
            (Some(2), &json!(true))
        );
        files.get("/glob?pattern=%5B").error(400, "INVALID_REQUEST");
        files.get("/glob").error(400, "INVALID_REQUEST");
        files.get("/glob?pattern=*&path=nope").error(404, "FILE_NOT_FOUND");
    });
}

#[test]
fn searches_find_lines() {
    both("tree-grep", |files| {
        files.write("a/x.txt", b"one\ntwo Needle\nthree\n");
        files.write(".git/config", b"needle\n");
        files.write("binary", b"needle\0");
        let found = files.get("/grep?pattern=needle&ignore_case=true&context=1").ok(200);
        let matches = found["matches"].as_array().expect("matches");
        let paths: Vec<_> = matches.iter().map(|one| files.short(&one["path"])).collect();
        assert_eq!(paths, [".git/config", "a/x.txt"]);
        let mut expected = matches[1].clone();
        expected["path"] = json!("");
        let line = json!({ "path": "", "line": 2, "text": "two Needle", "before": ["one"], "after": ["three"] });
        assert_eq!(expected, line);
        assert_eq!(found["truncated"], false);
        let found = files.get("/grep?pattern=e&include=*.txt&limit=1").ok(200);
        assert_eq!(
            (&found["matches"][0]["text"], &found["truncated"]),
            (&json!("one"), &json!(true))
        );
        let found = files.get("/grep?pattern=Need&path=a/x.txt").ok(200);
        assert_eq!(files.short(&found["matches"][0]["path"]), "a/x.txt");
        for bad in ["(", "a%5Cnb", "(%3F:a%7B1000%7D)%7B1000%7D"] {
            files.get(&format!("/grep?pattern={bad}")).error(400, "INVALID_REQUEST");
        }
    });
}

#[test]
fn nothing_holds_a_search_up() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("mkfifo fifo; echo needle > f; (while :; do echo x; done > grows) & sleep 0.1");
    let start = Instant::now();
    let files = Files::of(&session);
    let found = files.get("/grep?pattern=needle").ok(200);
    assert_eq!(found["matches"].as_array().map(Vec::len), Some(1));
    files.get("/grep?pattern=x&path=fifo").error(400, "NOT_A_FILE");
    files.get("/grep?pattern=x&path=/dev/zero").error(400, "NOT_A_FILE");
    files.get("/grep?pattern=x&path=/proc").error(403, "PERMISSION_DENIED");
    assert!(start.elapsed() < AT_ONCE, "{:?}", start.elapsed());
}

#[test]
fn copies_are_whole_or_not_there() {
    both("tree-copy", |files| {
        files.write("a/f", &[7; 100_000]);
        files.write("a/b/g", b"g");
        let copy = |body: &Value| files.post("/copy", body);
        copy(&json!({ "from": "a", "to": "c", "recursive": true })).ok(200);
        assert_eq!(files.listed("path=c&depth=9"), ["c/b", "c/b/g", "c/f"]);
        copy(&json!({ "from": "a/f", "to": "f" })).ok(200);
        let size = &files.get("/list?path=.").ok(200)["entries"][2]["size"];
        assert_eq!(*size, 100_000);
        copy(&json!({ "from": "a/f", "to": "f" })).error(409, "ALREADY_EXISTS");
        copy(&json!({ "from": "a/b/g", "to": "f", "overwrite": true })).ok(200);
        copy(&json!({ "from": "a", "to": "d" })).error(400, "IS_A_DIRECTORY");
        copy(&json!({ "from": "a", "to": "a/b/c", "recursive": true })).error(400, "INVALID_PATH");
        copy(&json!({ "from": "nope", "to": "d" })).error(404, "FILE_NOT_FOUND");
        copy(&json!({ "from": "a" })).error(400, "INVALID_REQUEST");
        assert_eq!(files.listed("path=."), ["a", "c", "f"]);
    });
}

#[test]
fn copies_in_a_session_have_its_users_rights() {
    let lab = Lab::shared();
    let session = base(&lab);
    session
        .run("mkdir s; mkfifo s/fifo; echo x > f; chmod 751 f; touch -d @1500000000 f; ln -s f l");
    let files = Files::of(&session);
    files.post("/copy", &json!({ "from": "f", "to": "g" })).ok(200);
    files.post("/copy", &json!({ "from": "l", "to": "m" })).ok(200);
    assert_eq!(session.run("stat -c '%a %Y %U' g; readlink m"), "751 1500000000 sandbox\nf\n");
    let special = json!({ "from": "s", "to": "t", "recursive": true });
    files.post("/copy", &special).error(400, "NOT_A_FILE");
    assert_eq!(session.run("ls -A"), "f\ng\nl\nm\ns\n");
    files.post("/copy?user=root", &special).ok(200);
    assert_eq!(session.run("stat -c %F t/fifo"), "fifo\n");
    files.post("/copy", &json!({ "from": "f", "to": "/etc/x" })).error(403, "PERMISSION_DENIED");
    files
        .post("/copy", &json!({ "from": "/etc/shadow", "to": "x" }))
        .error(403, "PERMISSION_DENIED");
}

#[test]
fn a_watch_tells_of_changes() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("mkdir d");
    let files = Files::of(&session);
    let mut watch = files.watch("path=.&recursive=true");
    session.run("echo 1 > d/f; mv d/f d/g; rm d/g; mkdir -p n/m; echo 1 > n/m/late; mkfifo p");
    assert_eq!(watch.until("created", "d/f")["type"], "file");
    watch.until("modified", "d/f");
    let moved = watch.until("moved", "d/g");
    assert_eq!((&moved["from"], &moved["type"]), (&json!("/workspace/d/f"), &json!("file")));
    watch.until("removed", "d/g");
    assert_eq!(watch.until("created", "n/m")["type"], "dir");
    watch.until("created", "n/m/late");
    assert_eq!(watch.until("created", "p")["type"], "fifo");
    files.get("/watch?path=nope").error(404, "FILE_NOT_FOUND");
    session.delete().ok(200);
    while watch.read() {}
    let (name, data) = watch.events.last().expect("an end");
    assert_eq!((name.as_str(), &data["error_code"]), ("error", &json!("SESSION_DESTROYED")));
}

#[test]
fn a_workspace_is_watched_without_a_session() {
    let lab = Lab::shared();
    let files = Files::workspace(&lab, "tree-watch");
    files.write("f", b"1");
    let mut watch = files.watch("path=.");
    files.write("g", b"1");
    assert_eq!(watch.until("created", "g")["type"], "file");
    drop(watch);
    lab.client.delete(&files.base).ok(200);
}

#[test]
fn watches_are_limited_and_given_back() {
    let lab = Lab::shared();
    let session = base(&lab);
    let files = Files::of(&session);
    let watches: Vec<_> = (0..8).map(|_| files.watch("path=.")).collect();
    let refused = files.get("/watch?path=.").error(503, "OVERLOADED");
    assert!(refused["message"].as_str().is_some_and(|text| text.contains('8')), "{refused}");
    assert_eq!(files.listed("path=."), Vec::<String>::new());
    drop(watches);
    let start = Instant::now();
    while files.get("/watch?path=nope").status() != 404 {
        assert!(start.elapsed() < Duration::from_secs(20), "watches are not given back");
    }
}

/// The payload has the ids of a worker. What it does to one costs that call alone.
#[test]
fn a_worker_that_is_killed_or_stopped_costs_its_call_alone() {
    let lab = Lab::shared();
    let session = base(&lab);
    let files = Files::of(&session);
    let worker = "for p in /proc/[0-9]*; do [ \"$(awk '/^PPid/{print $2}' $p/status)\" = 1 ] && \
                  [ \"$(awk '/^Uid/{print $2}' $p/status)\" = 1000 ] && \
                  ! [ -r $p/environ ] && kill -SIG ${p#/proc/}; done 2>/dev/null; true";
    for signal in ["KILL", "STOP"] {
        let mut watch = files.watch("path=.");
        let start = Instant::now();
        session.run(&worker.replace("SIG", signal));
        while watch.read() {}
        let (name, data) = watch.events.last().unwrap_or_else(|| panic!("no end after {signal}"));
        assert_eq!((name.as_str(), &data["error_code"]), ("error", &json!("CONFLICT")), "{data}");
        assert!(start.elapsed() < Duration::from_secs(15), "{signal}: {:?}", start.elapsed());
        assert_eq!(files.listed("path=."), Vec::<String>::new());
        session.alive();
    }
}
