//! Raw bytes, facts, names and edits, by the same calls in a session and in a workspace.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sandkasten_e2e::http::{Answer, Client, Request};
use sandkasten_e2e::session::{encode, escape};
use sandkasten_e2e::{Lab, Session, wait};
use serde_json::{Value, json};

/// "At once", on a machine with other work.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Files of one place, by their routes.
struct Files<'a> {
    client: &'a Client,
    base: String,
    is_session: bool,
}

impl Files<'_> {
    fn request(&self, method: &str, rest: &str) -> Request<'_> {
        self.client.request(method, &format!("{}/fs/{rest}", self.base))
    }

    fn file(&self, method: &str, path: &str) -> Request<'_> {
        self.request(method, &format!("file?path={}", escape(path)))
    }

    /// Writes what has to be taken, and gives its tag.
    #[track_caller]
    fn put(&self, path: &str, bytes: &[u8]) -> String {
        let done = self.file("PUT", path).body(bytes).send().ok(200);
        assert_eq!(done["ok"], true);
        done["etag"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn get(&self, path: &str) -> Vec<u8> {
        let answer = self.file("GET", path).send();
        assert_eq!(answer.status(), 200, "{answer}");
        answer.body
    }

    fn post(&self, what: &str, body: &Value) -> Answer {
        self.request("POST", what).json(body).send()
    }

    #[track_caller]
    fn stat(&self, path: &str) -> Value {
        self.request("GET", &format!("stat?path={}&follow=false", escape(path))).send().ok(200)
    }
}

/// Runs a test in a session and in the workspace that the session has, one after the other.
fn in_both(name: &str, test: impl Fn(&Files<'_>, &Session<'_>)) {
    let lab = Lab::shared();
    let id = format!("{name}-{}", std::process::id());
    let session = lab.session(&json!({ "image": "base", "workspace_id": id }));
    let session_files = Files { client: &lab.client, base: session.path(""), is_session: true };
    test(&session_files, &session);
    session.run("rm -rf /workspace/* /workspace/.[!.]*");
    let base = format!("/v1/workspaces/{id}");
    let workspace_files = Files { client: &lab.client, base: base.clone(), is_session: false };
    test(&workspace_files, &session);
    session.delete().ok(200);
    lab.client.delete(&base).ok(200);
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

#[test]
fn bytes_of_any_size_go_in_and_out() {
    in_both("raw-sizes", |files, session| {
        let mib = 1 << 20;
        for size in [0, 1, 64, 65_536, mib - 1, mib, mib + 1, 3 * mib, 10 * mib + 7] {
            let bytes = pattern(size);
            let etag = files.put("d/f", &bytes);
            let answer = files.file("GET", "d/f").send();
            assert_eq!(answer.status(), 200);
            assert!(answer.body == bytes, "{size} bytes");
            assert_eq!(answer.header("ETag"), Some(etag.as_str()));
            assert_eq!(answer.header("Content-Length"), Some(size.to_string().as_str()));
            assert_eq!(answer.header("Content-Type"), Some("application/octet-stream"));
            assert_eq!(answer.header("Accept-Ranges"), Some("bytes"));
        }
        assert_eq!(session.run("stat -c '%U %a' d d/f; ls -A d"), "sandbox 755\nsandbox 644\nf\n");
        let head = files.file("HEAD", "d/f").send();
        assert_eq!(head.status(), 200);
        assert_eq!(head.header("Content-Length"), Some((10 * mib + 7).to_string().as_str()));
        assert!(head.body.is_empty());
    });
}

#[test]
fn a_part_of_a_file() {
    in_both("raw-ranges", |files, _| {
        let bytes = pattern(3 << 20);
        let size = bytes.len();
        let etag = files.put("f", &bytes);
        let ranged = |range: &str| files.file("GET", "f").header("Range", range).send();
        for (range, from, to) in [
            ("bytes=0-0", 0, 1),
            ("bytes=1000-2000000", 1000, 2_000_001),
            ("bytes=-5", size - 5, size),
            ("bytes=3000000-", 3_000_000, size),
            ("bytes=5-99999999999", 5, size),
        ] {
            let answer = ranged(range);
            assert_eq!(answer.status(), 206, "{range}: {answer}");
            assert!(answer.body == bytes[from..to], "{range}");
            let shown = format!("bytes {from}-{}/{size}", to - 1);
            assert_eq!(answer.header("Content-Range"), Some(shown.as_str()));
            assert_eq!(answer.header("ETag"), Some(etag.as_str()));
        }
        let outside = ranged(&format!("bytes={size}-"));
        assert_eq!(outside.status(), 416, "{outside}");
        assert_eq!(outside.header("Content-Range"), Some(format!("bytes */{size}").as_str()));
        assert_eq!(ranged("bytes=0-1,5-6").status(), 200);
        let with = |tag: &str| {
            let request = files.file("GET", "f").header("Range", "bytes=1-2");
            request.header("If-Range", tag).send().status()
        };
        assert_eq!((with(&etag), with("\"0-0-0-0\"")), (206, 200));
    });
}

#[test]
fn preconditions() {
    in_both("raw-conditions", |files, session| {
        let client = Client { document: None, ..files.client.clone() };
        let files =
            &Files { client: &client, base: files.base.clone(), is_session: files.is_session };
        let put = |header: &str, tag: &str, text: &str| {
            files.file("PUT", "f").header(header, tag).body(text).send()
        };
        assert_eq!(put("If-Match", "*", "x").status(), 412);
        assert_eq!(put("If-Match", "\"1-1-1-1\"", "x").status(), 412);
        files.file("GET", "f").send().error(404, "FILE_NOT_FOUND");
        let first = put("If-None-Match", "*", "one").ok(200)["etag"].as_str().unwrap().to_owned();
        put("If-None-Match", "*", "two").error(412, "PRECONDITION_FAILED");
        let get = |header: &str, tag: &str| files.file("GET", "f").header(header, tag).send();
        let known = get("If-None-Match", &first);
        assert_eq!((known.status(), known.body.len()), (304, 0));
        assert_eq!(known.header("ETag"), Some(first.as_str()));
        assert_eq!(get("If-Match", &first).body, b"one");
        let second = put("If-Match", &first, "two").ok(200)["etag"].as_str().unwrap().to_owned();
        assert_ne!(first, second);
        put("If-Match", &first, "three").error(412, "PRECONDITION_FAILED");
        get("If-Match", &first).error(412, "PRECONDITION_FAILED");
        assert_eq!(get("If-None-Match", &first).body, b"two");
        // Whoever writes in the box changes the tag too, even to the same size.
        session.run("printf owt > f");
        put("If-Match", &second, "three").error(412, "PRECONDITION_FAILED");
        let delete = |tag: &str| files.file("DELETE", "f").header("If-Match", tag).send();
        delete(&second).error(412, "PRECONDITION_FAILED");
        let third = files.file("HEAD", "f").send().header("ETag").unwrap().to_owned();
        delete(&third).ok(200);
        put("If-None-Match", &third, "x").error(400, "INVALID_REQUEST");
        put("If-Match", "bare", "x").error(400, "INVALID_REQUEST");
        assert_eq!(session.run("ls -A"), "");
    });
}

#[test]
fn modes_and_parents_of_a_put() {
    in_both("raw-modes", |files, session| {
        let put = |query: &str| {
            let target = format!("file?path=a/b/f&{query}");
            files.request("PUT", &target).body("x").send()
        };
        put("create_parents=false").error(404, "FILE_NOT_FOUND");
        put("mode=0750").ok(200);
        put("").ok(200);
        put("mode=9").error(400, "INVALID_REQUEST");
        assert_eq!(
            session.run("stat -c '%U %a' a a/b a/b/f"),
            "sandbox 755\nsandbox 755\nsandbox 750\n"
        );
        session.run("ln -s a/b/f link");
        files.put("link", b"through");
        assert_eq!(session.run("cat a/b/f; test -L link && echo link"), "throughlink\n");
        session.run("echo k > ro; chmod 444 ro");
        files.file("PUT", "ro").body("x").send().error(403, "PERMISSION_DENIED");
    });
}

#[test]
fn a_client_that_leaves_leaves_nothing() {
    in_both("raw-leaves", |files, session| {
        files.put("f", b"old");
        let request = files.file("PUT", "f").body(vec![7; 8 << 20]);
        let bytes = request.bytes();
        let mut connection = files.client.connect().unwrap();
        connection.write(&bytes[..bytes.len() / 2]).unwrap();
        drop(connection);
        // The temporary file in the box goes; in a workspace it never had a name.
        wait::until("the half file to go", Duration::from_secs(10), || {
            session.run("ls -A").trim() == "f"
        });
        assert_eq!(files.get("f"), b"old");
    });
}

#[test]
fn a_file_that_shrinks_breaks_the_answer_and_one_that_grows_does_not() {
    in_both("raw-shrinks", |files, session| {
        session.run("head -c 100000000 /dev/zero > big");
        let target = format!("{}/fs/file?path=big", files.base);
        let request = files.client.request("GET", &target);
        let mut connection = TcpStream::connect(files.client.addr).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        connection.write_all(&request.bytes()).unwrap();
        let mut start = [0; 16];
        connection.read_exact(&mut start).unwrap();
        assert!(start.starts_with(b"HTTP/1.1 200"));
        session.run("truncate -s 1000 big");
        let mut rest = Vec::new();
        // The end of the connection, or a reset of it: both say that it is not whole.
        let end = connection.read_to_end(&mut rest);
        assert!(!matches!(&end, Err(error) if error.kind() == ErrorKind::WouldBlock), "{end:?}");
        assert!(rest.len() < 100_000_000, "{}", rest.len());
        session.run("head -c 5000000 /dev/zero > grows");
        session.run("(while :; do echo more; done) >> grows & echo $! > pid");
        let answer = files.file("GET", "grows").send();
        assert_eq!(answer.status(), 200);
        session.run("kill $(cat pid)");
        assert!(answer.body.len() >= 5_000_000);
    });
}

#[test]
fn facts() {
    in_both("raw-facts", |files, session| {
        session.run(
            "mkdir -m 750 d; printf 12345 > d/f; chmod 640 d/f; ln -s d/f link; ln -s nowhere lost; \
             mkfifo fifo; touch -d '2001-02-03 04:05:06.789 UTC' d/f; printf x > $'odd\\xff'",
        );
        let entry = files.stat("d/f");
        let path = if files.is_session { "/workspace/d/f" } else { "d/f" };
        assert_eq!(
            entry,
            json!({"name": "f", "path": path, "type": "file", "is_dir": false, "size": 5, "mode": "0640",
                "uid": 1000, "gid": 1000, "mtime": "2001-02-03T04:05:06.789000000Z"})
        );
        assert_eq!(
            (&files.stat("d")["type"], &files.stat("d")["mode"]),
            (&json!("dir"), &json!("0750"))
        );
        assert_eq!(files.stat("fifo")["type"], "fifo");
        assert_eq!(files.stat("lost")["target"], "nowhere");
        assert_eq!(files.stat("link")["type"], "symlink");
        let followed = files.request("GET", "stat?path=link").send().ok(200);
        assert_eq!((&followed["type"], &followed["size"]), (&json!("file"), &json!(5)));
        files.request("GET", "stat?path=lost").send().error(404, "FILE_NOT_FOUND");
        let odd = escape(&encode(b"odd\xff"));
        let entry = files.request("GET", &format!("stat?path_base64={odd}")).send().ok(200);
        assert_eq!(entry["name_base64"], encode(b"odd\xff"));
        let bytes = files.request("GET", &format!("file?path_base64={odd}")).send();
        assert_eq!(bytes.body, b"x");
        files.request("DELETE", &format!("file?path_base64={odd}")).send().ok(200);
    });
}

#[test]
fn names_are_made_moved_and_removed() {
    in_both("raw-names", |files, session| {
        let post = |what: &str, body: Value| files.post(what, &body);
        post("mkdir", json!({"path": "a/b", "mode": "0700"})).ok(200);
        post("mkdir", json!({"path": "a/b/"})).ok(200);
        post("mkdir", json!({"path": "a/b", "parents": false})).error(409, "ALREADY_EXISTS");
        post("mkdir", json!({"path": "x/y", "parents": false})).error(404, "FILE_NOT_FOUND");
        files.put("a/f", b"one");
        post("mkdir", json!({"path": "a/f"})).error(409, "ALREADY_EXISTS");
        post("mkdir", json!({"path": "a/f/g"})).error(400, "NOT_A_DIRECTORY");
        assert_eq!(session.run("stat -c '%U %a' a a/b"), "sandbox 755\nsandbox 700\n");
        files.put("a/g", b"two");
        post("move", json!({"from": "a/f", "to": "a/g"})).error(409, "ALREADY_EXISTS");
        post("move", json!({"from": "a/f", "to": "a/g", "overwrite": true})).ok(200);
        assert_eq!(files.get("a/g"), b"one");
        post("move", json!({"from": "a/f", "to": "a/h"})).error(404, "FILE_NOT_FOUND");
        post("move", json!({"from": "a", "to": "c"})).ok(200);
        post("move", json!({"from": "c", "to": "c/b/in"})).error(400, "INVALID_PATH");
        post("move", json!({"from": "c/g"})).error(400, "INVALID_REQUEST");
        post("chmod", json!({"path": "c/g", "mode": "0400"})).ok(200);
        post("chmod", json!({"path": "nope", "mode": "0400"})).error(404, "FILE_NOT_FOUND");
        post("chmod", json!({"path": "c/g", "mode": "rw"})).error(400, "INVALID_REQUEST");
        assert_eq!(files.stat("c/g")["mode"], "0400");
        session.run("ln -s c/g link");
        files.file("DELETE", "link").send().ok(200);
        files.file("DELETE", "c").send().error(409, "CONFLICT");
        files.file("DELETE", "c/g").send().ok(200);
        files.file("DELETE", "c/g").send().error(404, "FILE_NOT_FOUND");
        files.file("DELETE", "c/b/").send().ok(200);
        files.file("DELETE", "c").send().ok(200);
        assert_eq!(files.file("DELETE", ".").send().status(), 403);
        assert_eq!(session.run("ls -A; pwd"), "/workspace\n");
    });
}

#[test]
fn edits_are_exact_and_all_or_nothing() {
    in_both("raw-edits", |files, session| {
        let edit = |body: Value| files.post("edit", &body);
        files.put("f", b"a = 1\nb = 1\n");
        session.run("chmod 755 f");
        let done = edit(json!({"path": "f", "edits": [
            {"old": "a = 1", "new": "a = 2"}, {"old": " = ", "new": "=", "count": 2}]}));
        let done = done.ok(200);
        assert_eq!((&done["ok"], &done["replaced"]), (&json!(true), &json!(3)));
        assert_eq!(session.run("cat f; stat -c %a f"), "a=2\nb=1\n755\n");
        let tag = done["etag"].as_str().unwrap();
        assert_eq!(files.file("HEAD", "f").send().header("ETag"), Some(tag));
        for (old, count, found) in [("=", 1, 2), ("=", 3, 2), ("zzz", 1, 0)] {
            let edits = json!([{"old": "a", "new": "A"}, {"old": old, "new": "", "count": count}]);
            let error = edit(json!({"path": "f", "edits": edits})).error(409, "CONFLICT");
            assert_eq!(error["details"]["found"], found, "{error}");
            assert_eq!(error["details"]["asked"], count, "{error}");
        }
        let edits = json!([{"old": "a", "new": "é"}]);
        let stale = json!({"path": "f", "edits": edits, "if_match": "\"1-2-3-4\""});
        edit(stale).error(412, "PRECONDITION_FAILED");
        assert_eq!(files.get("f"), b"a=2\nb=1\n");
        edit(json!({"path": "f", "edits": edits, "if_match": tag})).ok(200);
        assert_eq!(files.get("f"), "é=2\nb=1\n".as_bytes());
        edit(json!({"path": "f", "edits": []})).error(400, "INVALID_REQUEST");
        edit(json!({"path": "f", "edits": [{"old": "", "new": "x"}]}))
            .error(400, "INVALID_REQUEST");
        edit(json!({"path": "no", "edits": edits})).error(404, "FILE_NOT_FOUND");
    });
}

/// Edits at once do not lose each other: each is in the file at the end, or was refused.
#[test]
fn edits_at_once_lose_nothing() {
    in_both("raw-race", |files, _| {
        files.put("f", b"<>");
        let made: usize = std::thread::scope(|scope| {
            let editors: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let one = || {
                            files.post(
                                "edit",
                                &json!({"path": "f", "edits": [{"old": "<", "new": "<x"}]}),
                            )
                        };
                        let answers: Vec<Answer> = (0..10).map(|_| one()).collect();
                        assert!(answers.iter().all(|answer| matches!(answer.status(), 200 | 409)));
                        answers.iter().filter(|answer| answer.status() == 200).count()
                    })
                })
                .collect();
            editors.into_iter().map(|editor| editor.join().unwrap()).sum()
        });
        let text = files.get("f");
        assert_eq!(text.len(), 2 + made, "{}", String::from_utf8_lossy(&text));
        assert!(made > 0);
    });
}

#[test]
fn f04_what_is_no_file_is_an_error_at_once() {
    in_both("raw-odd", |files, session| {
        session.run(
            "mkfifo fifo; mkdir dir; ln -s loop loop; ln -s /proc/self/mem magic; \
             python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")' 2>&1; true",
        );
        let mut odd =
            vec![("fifo", "NOT_A_FILE"), ("dir", "IS_A_DIRECTORY"), ("loop", "INVALID_PATH")];
        if session.run("test -S socket && echo yes; true") == "yes\n" {
            odd.push(("socket", "NOT_A_FILE"));
        }
        if files.is_session {
            odd.extend([("/dev/zero", "NOT_A_FILE"), ("/dev/full", "NOT_A_FILE")]);
        }
        for (path, code) in odd {
            let edits = json!({"path": path, "edits": [{"old": "a", "new": "b"}]});
            for answer in [
                files.file("GET", path).send(),
                files.file("PUT", path).body("x").send(),
                files.post("edit", &edits),
            ] {
                answer.error(400, code);
                assert!(answer.took < AT_ONCE, "{path}: {:?}", answer.took);
            }
        }
        for path in ["magic", "../../etc/shadow", ""] {
            let start = Instant::now();
            let answer = files.file("GET", path).send();
            assert!(answer.status() >= 400, "{path}: {answer}");
            assert!(start.elapsed() < AT_ONCE);
        }
        let facts = files.request("GET", "stat?path=fifo").send();
        assert!(facts.took < AT_ONCE);
        assert_eq!(facts.ok(200)["type"], "fifo");
        files.file("DELETE", "fifo").send().ok(200);
    });
}

#[test]
fn the_rights_are_those_of_the_user_or_of_root() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base" }));
    let files = Files { client: &lab.client, base: session.path(""), is_session: true };
    let as_root = |method: &str, rest: &str| files.request(method, &format!("{rest}&user=root"));
    files.file("PUT", "/etc/made").body("x").send().error(403, "PERMISSION_DENIED");
    as_root("PUT", "file?path=/etc/made&mode=0600").body("secret").send().ok(200);
    files.file("GET", "/etc/made").send().error(403, "PERMISSION_DENIED");
    files.file("DELETE", "/etc/made").send().error(403, "PERMISSION_DENIED");
    files
        .post("chmod", &json!({"path": "/etc/made", "mode": "0644"}))
        .error(403, "PERMISSION_DENIED");
    files.post("mkdir", &json!({"path": "/etc/d"})).error(403, "PERMISSION_DENIED");
    assert_eq!(as_root("GET", "file?path=/etc/made").send().body, b"secret");
    assert_eq!(as_root("GET", "stat?path=/etc/made").send().ok(200)["uid"], 0);
    let edit = json!({"path": "/etc/made", "edits": [{"old": "secret", "new": "open"}]});
    files.request("POST", "edit?user=root").json(&edit).send().ok(200);
    let chmod = json!({"path": "/etc/made", "mode": "0644"});
    files.request("POST", "chmod?user=root").json(&chmod).send().ok(200);
    assert_eq!(session.run("cat /etc/made; stat -c '%U %a' /etc/made"), "openroot 644\n");
    as_root("DELETE", "file?path=/etc/made").send().ok(200);
    as_root("GET", "file?path=/proc/1/environ").send().error(403, "PERMISSION_DENIED");
}
