//! Workspaces: what they say of themselves, who may have them, and that nothing is ever lost of one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sandkasten_e2e::http::Answer;
use sandkasten_e2e::lab::Signal;
use sandkasten_e2e::session::{decode, encode, escape};
use sandkasten_e2e::{Lab, Session, host, requires, wait};
use serde_json::{Value, json};

/// A file of a tree: mode, owner, and what it has or leads to.
type Entry = (u32, u32, Vec<u8>);

/// Everything below a directory of the host's, byte for byte.
fn tree(top: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
            let path = entry.expect("an entry").path();
            let stat = fs::symlink_metadata(&path).expect("stat");
            let bytes = match stat.file_type() {
                kind if kind.is_dir() => {
                    dirs.push(path.clone());
                    Vec::new()
                }
                kind if kind.is_symlink() => {
                    fs::read_link(&path).expect("a link").into_os_string().into_encoded_bytes()
                }
                _ => fs::read(&path).expect("a file"),
            };
            let name = path.strip_prefix(top).expect("below").to_owned();
            found.insert(name, (stat.mode(), stat.uid(), bytes));
        }
    }
    found
}

/// A workspace by the routes that need no session.
struct Space<'a> {
    lab: &'a Lab,
    id: &'a str,
}

impl<'a> Space<'a> {
    fn of(lab: &'a Lab, id: &'a str) -> Self {
        Self { lab, id }
    }

    fn url(&self, rest: &str) -> String {
        format!("/v1/workspaces/{}{rest}", self.id)
    }

    /// Where it lies on the host.
    fn dir(&self) -> PathBuf {
        self.lab.data_dir.join("workspaces").join(self.id)
    }

    fn put(&self, body: &Value) -> Answer {
        self.lab.client.request("PUT", &self.url("")).json(body).send()
    }

    fn get(&self) -> Answer {
        self.lab.client.get(&self.url(""))
    }

    fn delete(&self) -> Answer {
        self.lab.client.delete(&self.url(""))
    }

    fn try_write(&self, path: &str, bytes: &[u8]) -> std::io::Result<Answer> {
        let body = json!({ "path": path, "content_base64": encode(bytes) });
        self.lab.client.request("POST", &self.url("/fs/write")).json(&body).try_send()
    }

    #[track_caller]
    fn write(&self, path: &str, bytes: &[u8]) {
        let answer = self.try_write(path, bytes).expect("an answer");
        assert_eq!(answer.ok(200), json!({ "ok": true }), "{path}");
    }

    #[track_caller]
    fn read(&self, path: &str) -> Vec<u8> {
        let answer = self.lab.client.get(&self.url(&format!("/fs/read?path={}", escape(path))));
        decode(&answer.ok(200)["content_base64"])
    }

    fn session(&self) -> Session<'a> {
        self.lab.session(&json!({ "workspace_id": self.id }))
    }

    /// Some files of several kinds.
    fn fill(&self) {
        self.write("a/b/deep", b"deep\0bytes");
        self.write("plain", b"plain");
        let session = self.session();
        session.run("cd /workspace; seq 1 20000 > big; busybox ln -s plain link; mkdir -p e; busybox chmod 700 e");
    }
}

/// Ids of the list.
fn listed(lab: &Lab) -> Vec<String> {
    let list = lab.client.get("/v1/workspaces").ok(200);
    let id = |row: &Value| row["id"].as_str().expect("an id").to_owned();
    list["workspaces"].as_array().expect("a list").iter().map(id).collect()
}

#[test]
fn put_makes_and_changes_and_get_shows() {
    let lab = Lab::start();
    let space = Space::of(&lab, "first");
    space.get().error(404, "WORKSPACE_NOT_FOUND");
    let made = space.put(&json!({})).ok(201);
    assert_eq!((&made["id"], &made["labels"]), (&json!("first"), &json!({})));
    assert_eq!((&made["session_count"], &made["active_session_count"]), (&json!(0), &json!(0)));
    assert!(made["size_bytes"].is_u64() && made["created_at"].is_string(), "{made}");
    let labels = json!({ "team": "a", "empty": "" });
    assert_eq!(space.put(&json!({ "labels": labels })).ok(200)["labels"], labels);
    // What is absent stays; what is there replaces all.
    let same = space.put(&json!({})).ok(200);
    assert_eq!((&same["labels"], &same["created_at"]), (&labels, &made["created_at"]));
    let other = json!({ "other": "b" });
    assert_eq!(space.put(&json!({ "labels": other })).ok(200)["labels"], other);
    for bad in [json!({ "": "x" }), json!({ "k": "x".repeat(5000) }), json!({ "k": "a\nb" })] {
        space.put(&json!({ "labels": bad })).error(400, "INVALID_REQUEST");
    }
    space.put(&json!({ "labels": { "k": 1 } })).error(400, "INVALID_REQUEST");
    let list = lab.client.get("/v1/workspaces").ok(200);
    assert_eq!(list["workspaces"][0]["labels"], other, "{list}");
    assert_eq!(space.get().ok(200)["labels"], other);
    // A failed change makes nothing.
    let never = Space::of(&lab, "never");
    never.put(&json!({ "labels": { "": "x" } })).error(400, "INVALID_REQUEST");
    never.get().error(404, "WORKSPACE_NOT_FOUND");
    assert_eq!(listed(&lab), ["first"]);
}

#[test]
fn counts_and_sizes_are_those_of_now() {
    let lab = Lab::start();
    let space = Space::of(&lab, "counted");
    let session = space.session();
    let shown = space.get().ok(200);
    assert_eq!((&shown["session_count"], &shown["active_session_count"]), (&json!(1), &json!(1)));
    let before = shown["size_bytes"].as_u64().expect("a size");
    session.run("dd if=/dev/urandom of=/workspace/f bs=1024 count=3072 2>/dev/null; busybox sync");
    // Names of one file, holes and links cost nothing more.
    session.run("cd /workspace; busybox ln f g; dd if=/dev/null of=hole bs=1 seek=1000000000000");
    session.run("busybox ln -s / /workspace/root");
    let grown = space.get().ok(200)["size_bytes"].as_u64().expect("a size") - before;
    assert!((3072 * 1024..3400 * 1024).contains(&grown), "{grown}");
    assert_eq!(session.delete().status(), 200);
    let shown = space.get().ok(200);
    assert_eq!((&shown["session_count"], &shown["active_session_count"]), (&json!(1), &json!(0)));
    assert!(shown["size_counted_at"].is_string());
}

/// A tree of many files is counted in bounded time: the answer comes, with or without a size.
#[test]
fn a_list_is_quick_whatever_is_in_a_workspace() {
    let lab = Lab::start();
    let space = Space::of(&lab, "many");
    let session = space.session();
    let make =
        "cd /workspace; for d in $(seq 1 200); do mkdir $d; (cd $d; touch $(seq 1 250)); done";
    session.run(make);
    for _ in 0..3 {
        let start = Instant::now();
        let shown = space.get().ok(200);
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        assert!(shown["size_bytes"].is_null() || shown["size_bytes"].as_u64() > Some(200 * 4096));
    }
    wait::until("its size", Duration::from_secs(60), || space.get().ok(200)["size_bytes"].is_u64());
}

/// F-10.
#[test]
fn f_10_a_workspace_in_use_is_not_deleted() {
    let lab = Lab::start();
    let space = Space::of(&lab, "used");
    space.fill();
    let before = tree(&space.dir());
    let [one, two] = [space.session(), space.session()];
    space.delete().error(409, "WORKSPACE_IN_USE");
    assert_eq!(one.delete().status(), 200);
    space.delete().error(409, "WORKSPACE_IN_USE");
    assert_eq!(tree(&space.dir()), before);
    two.alive();
    assert_eq!(two.delete().status(), 200);
    assert_eq!(tree(&space.dir()), before);
    assert_eq!(space.delete().ok(200), json!({ "ok": true }));
    space.delete().error(404, "WORKSPACE_NOT_FOUND");
    space.get().error(404, "WORKSPACE_NOT_FOUND");
    assert!(!space.dir().exists() && listed(&lab).is_empty());
    // The name is free; nothing of the old one comes back.
    let session = space.session();
    assert_eq!(session.run("ls -A /workspace"), "");
    let left =
        wait::until_empty(Duration::from_secs(10), || host::names(&lab.data_dir.join("trash")));
    assert!(left.is_empty(), "{left:?}");
}

/// F-12.
/// What a session's user may not, a call without a session may not either, and nothing says it otherwise.
#[test]
fn rights_are_the_same_with_and_without_a_session() {
    let lab = Lab::shared();
    let space = Space::of(&lab, "rights-of-both");
    let session = space.session();
    let user = space.dir().join("closed");
    fs::create_dir_all(user.join("d")).expect("mkdir");
    fs::write(user.join("f"), "k").expect("write");
    fs::set_permissions(user.join("f"), PermissionsExt::from_mode(0o644)).expect("chmod");
    fs::set_permissions(&user, PermissionsExt::from_mode(0o700)).expect("chmod");
    symlink("closed/f", space.dir().join("link")).expect("link");
    let json = |path: &str, body: Value| ("POST", path.to_owned(), body.to_string());
    let calls = [
        ("GET", "file?path=closed/f".into(), String::new()),
        ("GET", "file?path=link".into(), String::new()),
        ("GET", "read?path=closed/f".into(), String::new()),
        ("GET", "stat?path=closed/f".into(), String::new()),
        ("GET", "list?path=closed/d".into(), String::new()),
        ("PUT", "file?path=closed/f".into(), "x".into()),
        ("PUT", "file?path=closed/new".into(), "x".into()),
        ("DELETE", "file?path=closed/f".into(), String::new()),
        json("write", json!({ "path": "link", "text": "x" })),
        json("chmod", json!({ "path": "closed/f", "mode": "0600" })),
        json("mkdir", json!({ "path": "closed/d/e" })),
        json("move", json!({ "from": "closed/f", "to": "f" })),
        json("copy", json!({ "from": "closed/f", "to": "f" })),
        json("edit", json!({ "path": "closed/f", "edits": [{ "old": "k", "new": "x" }] })),
    ];
    for (method, path, body) in calls {
        for base in [space.url("/fs"), format!("/v1/sessions/{}/fs", session.id)] {
            let request = lab.client.request(method, &format!("{base}/{path}"));
            request.body(body.as_bytes()).send().error(403, "PERMISSION_DENIED");
        }
    }
    assert_eq!(fs::read(user.join("f")).expect("read"), b"k");
    let read = lab.client.get(&space.url("/fs/file?path=closed/f&user=root"));
    assert_eq!(read.body, b"k");
}

#[test]
fn f_12_what_is_no_id_is_refused_everywhere() {
    let lab = Lab::start();
    Space::of(&lab, "user").put(&json!({})).ok(201);
    let long = "a".repeat(65);
    let fullwidth = "ｕｓｅｒ";
    let bad = [
        "User",
        "USER",
        "us er",
        "user.",
        ".user",
        "..",
        ".",
        "-user",
        "user-",
        "u",
        "user_1",
        &long,
        fullwidth,
        "usér",
        "us\u{200b}er",
        "user\u{0}",
        "a/b",
        "../user",
        "user/../other",
        "user\n",
        ".deleting-user",
        ".new-user",
        "sandkasten_ws_user",
        "user:1",
        "user%2f",
        "~user",
    ];
    for id in bad {
        let refused = |answer: Answer, what: &str| {
            let (status, code) = (answer.status(), answer.json()["error_code"].clone());
            assert_eq!((status, code), (400, json!("INVALID_WORKSPACE")), "{what} {id:?}");
        };
        let name: String = id.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let url = |rest: &str| format!("/v1/workspaces/{name}{rest}");
        let send = |method: &str, rest: &str| lab.client.request(method, &url(rest));
        refused(lab.client.post("/v1/sessions", &json!({ "workspace_id": id })), "create");
        refused(send("GET", "").send(), "get");
        refused(send("PUT", "").json(&json!({})).send(), "put");
        refused(send("DELETE", "").send(), "delete");
        refused(send("GET", "/fs?path=.").send(), "list");
        refused(send("GET", "/fs/read?path=a").send(), "read");
        let body = json!({ "path": "a", "text": "x" });
        refused(send("POST", "/fs/write").json(&body).send(), "write");
        let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx\r\n--b--\r\n";
        let upload = send("POST", "/fs/upload");
        let kind = "multipart/form-data; boundary=b";
        refused(upload.header("Content-Type", kind).body(form).send(), "upload");
    }
    let output = lab.cli(&["run", "--workspace", "../user", "tiny", "true"]);
    assert!(!output.status.success());
    // A prefix that looks like ours is an id like any other: one directory of its own.
    for id in ["sandkasten-ws-user", "ws-user", "user2"] {
        Space::of(&lab, id).write("f", id.as_bytes());
    }
    assert_eq!(listed(&lab), ["sandkasten-ws-user", "user", "user2", "ws-user"]);
    let names = host::names(&lab.data_dir.join("workspaces"));
    // Theirs and the staging directory.
    assert_eq!(names.len(), 5, "{names:?}");
    assert!(tree(&Space::of(&lab, "user").dir()).is_empty());
}

#[test]
fn sessions_that_name_none_get_one_where_that_is_the_rule() {
    let lab = Lab::builder().set("workspace.persist_by_default", json!(true)).start();
    let ids = [(); 2].map(|()| {
        let session = lab.session(&json!({}));
        let id = session.info["workspace_id"].as_str().expect("it is named").to_owned();
        session.run("echo kept > /workspace/f");
        assert_eq!(session.delete().status(), 200);
        id
    });
    assert_ne!(ids[0], ids[1]);
    for id in &ids {
        let space = Space::of(&lab, id);
        assert_eq!(space.read("f"), b"kept\n");
        let again = space.session();
        assert_eq!(again.run("cat /workspace/f"), "kept\n");
    }
    // One that could not be made leaves no workspace that nobody knows.
    lab.client.post("/v1/sessions", &json!({ "image": "gone" })).error(404, "IMAGE_NOT_FOUND");
    assert_eq!(listed(&lab).len(), 2);
    // An empty text is no name, as clients of 0.3.0 send it.
    let session = lab.session(&json!({ "workspace_id": "" }));
    assert!(session.info["workspace_id"].is_string());
}

#[test]
fn workspaces_that_are_switched_off_are_refused_and_kept() {
    let mut lab = Lab::builder().set("workspace.enabled", json!(true)).start();
    Space::of(&lab, "kept").fill();
    let before = tree(&Space::of(&lab, "kept").dir());
    lab.stop();
    lab.variable("SANDKASTEN_WORKSPACE_ENABLED", "false");
    lab.restart();
    let space = Space::of(&lab, "kept");
    for answer in [
        space.get(),
        space.put(&json!({})),
        space.delete(),
        space.try_write("f", b"x").expect("an answer"),
        lab.client.get(&space.url("/fs?path=.")),
        lab.client.get(&space.url("/fs/read?path=plain")),
        lab.client.post("/v1/sessions", &json!({ "workspace_id": "kept" })),
        lab.client.post("/v1/sessions", &json!({ "workspace_id": "new" })),
    ] {
        answer.error(400, "INVALID_WORKSPACE");
    }
    let session = lab.session(&json!({}));
    assert!(session.info.get("workspace_id").is_none());
    session.run("echo x > /workspace/f");
    assert_eq!(tree(&space.dir()), before);
}

/// An acknowledged write is there after the daemon was killed, whole; others are old or new.
#[test]
fn f_08_acknowledged_writes_survive_the_daemon() {
    let mut lab = Lab::start();
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let space = Space::of(&lab, "kept");
        let pid = lab.pid();
        let (acked, _) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut acked = 0;
                loop {
                    let path = format!("r{round}/d{}/f{acked}", acked % 5);
                    match space.try_write(&path, text(round, acked).as_bytes()) {
                        Ok(answer) if answer.status() == 200 => acked += 1,
                        _ => return acked,
                    }
                }
            });
            let over = scope.spawn(|| {
                let mut n = 0;
                while space.try_write("over", text(round, n).repeat(3000).as_bytes()).is_ok() {
                    n += 1;
                }
                n
            });
            wait::prescribed(Duration::from_millis(700));
            host::signal(pid, Signal::KILL);
            (writer.join().expect("the writer"), over.join().expect("the other writer"))
        });
        assert!(acked > 10, "{acked}");
        acknowledged.push(acked);
        lab.wait();
        lab.restart();
    }
    let space = Space::of(&lab, "kept");
    for (round, acked) in acknowledged.iter().enumerate() {
        for n in 0..*acked {
            let path = format!("r{round}/d{}/f{n}", n % 5);
            assert_eq!(space.read(&path), text(round, n).as_bytes(), "{path}");
        }
    }
    // Whole: one text again and again.
    let over = String::from_utf8(space.read("over")).expect("text");
    let line = over.lines().next().expect("a line").to_owned() + "\n";
    assert_eq!(over, line.repeat(3000));
    // A write that nobody was told of may have left a name of ours, but no half file under a real one.
    let odd: Vec<_> = tree(&space.dir()).into_keys().filter(|path| is_odd(path)).collect();
    assert!(odd.len() <= 3, "{odd:?}");
}

fn text(round: usize, n: usize) -> String {
    format!("round {round} write {n}\n")
}

fn is_odd(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".sandkasten-"))
}

/// What a session wrote by the API or by a command is there after its init, and then the daemon, was
/// killed.
#[test]
fn acknowledged_writes_survive_init_and_daemon() {
    let mut lab = Lab::start();
    let id = {
        let session = Space::of(&lab, "kept").session();
        session.write("/workspace/by-api/f", b"api", "0640");
        session.run("echo shell > /workspace/by-shell");
        let before = tree(&Space::of(&lab, "kept").dir());
        host::signal(host::init_of(&session.id).expect("its init"), Signal::KILL);
        wait::until("the crash", Duration::from_secs(20), || session.info()["status"] == "crashed");
        assert_eq!(tree(&Space::of(&lab, "kept").dir()), before);
        session.id.clone()
    };
    let made = lab.try_session(&json!({ "workspace_id": "kept" })).ok(201);
    let other = made["id"].as_str().expect("an id").to_owned();
    let text = lab.known(&other).run("cat /workspace/by-shell /workspace/by-api/f");
    assert_eq!(text, "shell\napi");
    lab.known(&other).write("/workspace/late", b"late", "0644");
    let before = tree(&Space::of(&lab, "kept").dir());
    lab.kill();
    assert_eq!(tree(&Space::of(&lab, "kept").dir()), before);
    lab.restart();
    assert_eq!(lab.known(&other).run("cat /workspace/late"), "late");
    assert_eq!(tree(&Space::of(&lab, "kept").dir()), before);
    assert_eq!(lab.known(&id).info()["status"], "crashed");
}

/// Rows and directories that do not fit: whatever the database lost, no file is.
#[test]
fn torn_and_missing_rows_lose_nothing() {
    requires!(program("python3"));
    let mut lab = Lab::start();
    let ids = ["adopted", "torn", "rowless", "cut-off", "over"];
    for id in ids {
        Space::of(&lab, id).fill();
        Space::of(&lab, id).put(&json!({ "labels": { "k": id } })).ok(200);
    }
    let trees = ids.map(|id| tree(&Space::of(&lab, id).dir()));
    lab.kill();
    let dir = lab.data_dir.join("workspaces");
    // A delete that was cut off before its row had gone, and one after that.
    fs::rename(dir.join("cut-off"), dir.join(".deleting-cut-off")).expect("rename");
    fs::rename(dir.join("over"), dir.join(".deleting-over")).expect("rename");
    fs::create_dir(dir.join("No Workspace")).expect("mkdir");
    fs::write(dir.join("No Workspace/f"), "x").expect("write");
    fs::create_dir(dir.join(".new-0123")).expect("mkdir");
    sql(&lab, "DELETE FROM workspaces WHERE id IN ('adopted', 'over')");
    sql(&lab, "UPDATE workspaces SET labels = '{\"k' WHERE id = 'torn'");
    sql(&lab, "INSERT INTO workspaces (id, created_ms, labels) VALUES ('nowhere', 1, '{}')");
    sql(&lab, "INSERT INTO workspaces (id, created_ms, labels) VALUES ('No Id', 1, '{}')");
    lab.restart();
    assert_eq!(listed(&lab), ["adopted", "cut-off", "nowhere", "rowless", "torn"]);
    for (id, before) in ids.iter().zip(&trees).filter(|(id, _)| **id != "over") {
        assert_eq!(&tree(&Space::of(&lab, id).dir()), before, "{id}");
    }
    assert_eq!(Space::of(&lab, "cut-off").get().ok(200)["labels"], json!({ "k": "cut-off" }));
    assert_eq!(Space::of(&lab, "torn").get().ok(200)["labels"], json!({}));
    Space::of(&lab, "over").get().error(404, "WORKSPACE_NOT_FOUND");
    assert_eq!(fs::read(dir.join("No Workspace/f")).expect("still there"), b"x");
    assert!(!dir.join(".new-0123").exists());
    // A row without a directory is an empty workspace.
    let nowhere = Space::of(&lab, "nowhere");
    assert_eq!(lab.client.get(&nowhere.url("/fs?path=.")).ok(200)["entries"], json!([]));
    nowhere.write("f", b"x");
    assert_eq!(nowhere.session().run("cat /workspace/f"), "x");
}

/// Runs SQL on the database of a daemon that does not run.
fn sql(lab: &Lab, statement: &str) {
    let program = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute(sys.argv[2]); db.commit()";
    let status = Command::new("python3")
        .args(["-c", program])
        .arg(lab.data_dir.join("sandkasten.db"))
        .arg(statement)
        .status();
    assert!(status.expect("python3").success(), "{statement}");
}

/// Somebody mounted something where it should not be: what is mounted is never walked into.
#[test]
fn a_busy_mount_keeps_its_files() {
    let lab = Lab::start();
    let space = Space::of(&lab, "busy");
    space.fill();
    let outside = lab.dir().join("outside");
    fs::create_dir(&outside).expect("mkdir");
    fs::write(outside.join("canary"), "host").expect("write");

    // On the workspace itself: it can't be renamed, and stays as it is.
    let mounted = Mounted::bind(&outside, &space.dir());
    assert_eq!(space.delete().status(), 500);
    assert_eq!(listed(&lab), ["busy"]);
    drop(mounted);
    assert_eq!(space.read("plain"), b"plain");

    // Below it: it goes to the trash, which is not emptied while something is mounted there.
    let before = tree(&space.dir());
    let mounted = Mounted::bind(&outside, &space.dir().join("e"));
    assert_eq!(space.delete().ok(200), json!({ "ok": true }));
    Space::of(&lab, "other").put(&json!({})).ok(201);
    Space::of(&lab, "other").delete().ok(200);
    wait::until("the trash", Duration::from_secs(10), || lab.log().contains("trash_not_emptied"));
    assert_eq!(fs::read(outside.join("canary")).expect("the canary"), b"host");
    drop(mounted);
    assert!(before.contains_key(Path::new("plain")));
    Space::of(&lab, "other").put(&json!({})).ok(201);
    Space::of(&lab, "other").delete().ok(200);
    let left =
        wait::until_empty(Duration::from_secs(10), || host::names(&lab.data_dir.join("trash")));
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(fs::read(outside.join("canary")).expect("the canary"), b"host");
}

/// A bind mount in the namespace of the tests, undone at its end wherever it has moved.
struct Mounted(fs::File);

impl Mounted {
    fn bind(from: &Path, to: &Path) -> Self {
        let status = Command::new("mount").arg("--bind").args([from, to]).status();
        assert!(status.expect("mount").success());
        Self(fs::File::open(to).expect("open what is mounted"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.0);
        let place = fs::read_link(format!("/proc/self/fd/{fd}")).expect("its place");
        let status = Command::new("umount").arg("-l").arg(place).status();
        assert!(status.is_ok_and(|status| status.success()));
    }
}

/// Two daemons with a workspace of the same name have one each, and one whose folder leads to
/// another's does not start.
#[test]
fn two_daemons_never_share_a_workspace() {
    let [one, two] = [Lab::start(), Lab::start()];
    let [first, second] = [Space::of(&one, "same"), Space::of(&two, "same")];
    first.write("f", b"one");
    second.write("f", b"two");
    let [a, b] = [first.session(), second.session()];
    assert_eq!(
        (a.run("cat /workspace/f"), b.run("cat /workspace/f")),
        ("one".into(), "two".into())
    );
    drop(b);
    assert_eq!(second.delete().ok(200), json!({ "ok": true }));
    assert_eq!(a.run("cat /workspace/f"), "one");
    assert_eq!(first.read("f"), b"one");

    let third = Lab::builder().prepare();
    let folder = third.data_dir.join("workspaces");
    drop(fs::remove_dir(&folder));
    symlink(one.data_dir.join("workspaces"), &folder).expect("a link");
    let refusal = third.started().expect_err("a link to another daemon's workspaces");
    assert!(refusal.log.contains("data directory"), "{}", refusal.log);
    assert_eq!(first.read("f"), b"one");
}

/// A workspace of the suite's daemon, with two sessions that have Python.
struct Shared<'a> {
    lab: &'a Lab,
    id: String,
}

impl<'a> Shared<'a> {
    fn new(lab: &'a Lab, name: &str) -> Self {
        Self { lab, id: format!("{name}-{}", std::process::id()) }
    }

    fn space(&self) -> Space<'_> {
        Space::of(self.lab, &self.id)
    }

    fn session(&self) -> Session<'a> {
        self.lab.session(&json!({ "image": "python", "workspace_id": self.id }))
    }

    /// Runs two programs at once, a session each.
    fn both(&self, one: &str, two: &str) -> [String; 2] {
        let sessions = [self.session(), self.session()];
        std::thread::scope(|scope| {
            let runs = [(&sessions[0], one), (&sessions[1], two)]
                .map(|(session, text)| scope.spawn(move || python(session, text)));
            runs.map(|run| run.join().expect("a program"))
        })
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        drop(self.lab.client.request("DELETE", &self.space().url("")).try_send());
    }
}

/// Runs a program in Python; it may wait for a file of the workspace and make one.
#[track_caller]
fn python(session: &Session<'_>, text: &str) -> String {
    const HEAD: &str = "import fcntl, mmap, os, sqlite3, time\n\
        os.chdir('/workspace')\n\
        def tell(name): open(name, 'w').close()\n\
        def await_(name):\n    \
            end = time.time() + 30\n    \
            while not os.path.exists(name):\n        \
                assert time.time() < end, name\n        \
                time.sleep(0.002)\n";
    let program = format!("{HEAD}{text}");
    session.write("/tmp/program.py", program.as_bytes(), "0644");
    session.run("python3 /tmp/program.py")
}

/// F-11: locks are those of one machine.
#[test]
fn f_11_locks_hold_between_sessions() {
    let lab = Lab::shared();
    for (name, lock) in [("flock", "fcntl.flock"), ("fcntl", "fcntl.lockf")] {
        let shared = Shared::new(&lab, name);
        let holder = format!(
            "f = open('lock', 'w')\n{lock}(f, fcntl.LOCK_EX)\ntell('held')\nawait_('tried')\n\
             open('done', 'w').write('by the holder')\n{lock}(f, fcntl.LOCK_UN)\n"
        );
        let other = format!(
            "await_('held')\nf = open('lock', 'r+')\n\
             try:\n    {lock}(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    print('taken')\n\
             except BlockingIOError:\n    print('refused')\n\
             tell('tried')\n{lock}(f, fcntl.LOCK_EX)\nprint(open('done').read())\n"
        );
        let [_, said] = shared.both(&holder, &other);
        assert_eq!(said, "refused\nby the holder\n", "{name}");
    }
}

/// F-11: a name always leads to one of the files, whole, and what is mapped is one memory.
#[test]
fn f_11_renames_and_mappings_are_shared() {
    let lab = Lab::shared();
    let shared = Shared::new(&lab, "rename");
    let writer = "for n in range(1500):\n    \
            open('beside', 'w').write(str(n % 10) * 10000)\n    os.replace('beside', 'name')\n    \
            if n == 0: tell('begun')\n\
        tell('ended')\n";
    let reader = "await_('begun')\nseen = 0\n\
        while not os.path.exists('ended'):\n    \
            text = open('name').read()\n    assert text == text[0] * 10000, len(text)\n    seen += 1\n\
        print(seen > 0)\n";
    assert_eq!(shared.both(writer, reader)[1], "True\n");

    let shared = Shared::new(&lab, "mmap");
    let one = "f = open('map', 'w+b')\nf.truncate(8192)\nm = mmap.mmap(f.fileno(), 8192)\n\
        m[0:4] = b'ping'\ntell('mapped')\nend = time.time() + 30\n\
        while m[4096:4100] != b'pong': assert time.time() < end\n\
        print(m[0:4])\n";
    let two = "await_('mapped')\nf = open('map', 'r+b')\nm = mmap.mmap(f.fileno(), 8192)\n\
        assert m[0:4] == b'ping'\nm[4096:4100] = b'pong'\n";
    assert_eq!(shared.both(one, two)[0], "b'ping'\n");
    assert_eq!(&shared.space().read("map")[4096..4100], b"pong");
}

/// F-11: two sessions at one SQLite database in WAL mode lose no row.
#[test]
fn f_11_sqlite_in_wal_mode_is_shared() {
    let lab = Lab::shared();
    let shared = Shared::new(&lab, "sqlite");
    let program = |name: &str, other: &str| {
        format!(
            "db = sqlite3.connect('rows.db', timeout=60, isolation_level=None)\n\
             assert db.execute('PRAGMA journal_mode=WAL').fetchone() == ('wal',)\n\
             db.execute('CREATE TABLE IF NOT EXISTS rows (who TEXT, n INTEGER)')\n\
             tell('{name}')\nawait_('{other}')\n\
             for n in range(300):\n    \
                 db.execute('BEGIN IMMEDIATE')\n    \
                 db.execute('INSERT INTO rows VALUES (?, ?)', ('{name}', n))\n    db.execute('COMMIT')\n\
             tell('{name}-ended')\nawait_('{other}-ended')\n\
             print(db.execute('SELECT count(*), count(DISTINCT who || n) FROM rows').fetchone())\n\
             print(db.execute('PRAGMA integrity_check').fetchone()[0])\n"
        )
    };
    let said = shared.both(&program("one", "two"), &program("two", "one"));
    assert_eq!(said, ["(600, 600)\nok\n"; 2]);
}

/// F-11: a thousand writes at once, of two sessions and of the API.
#[test]
fn f_11_a_thousand_writes_at_once() {
    let lab = Lab::shared();
    let shared = Shared::new(&lab, "thousand");
    shared.space().write("count", b"0");
    let program = |name: &str| {
        format!(
            "for n in range(400):\n    \
                 open('{name}-%d' % n, 'w').write('{name} %d' % n)\n    \
                 with open('count', 'r+') as f:\n        \
                     fcntl.flock(f, fcntl.LOCK_EX)\n        now = int(f.read()) + 1\n        \
                     f.seek(0)\n        f.write(str(now))\n        f.flush()\n"
        )
    };
    std::thread::scope(|scope| {
        for part in 0..4 {
            let space = shared.space();
            scope.spawn(move || {
                for n in 0..50 {
                    let text = format!("api {part} {n}");
                    space.write(&format!("api-{part}-{n}"), text.as_bytes());
                }
            });
        }
        shared.both(&program("one"), &program("two"));
    });
    assert_eq!(shared.space().read("count"), b"800");
    let files = tree(&shared.space().dir());
    assert_eq!(files.len(), 1001);
    for (path, (_, owner, bytes)) in files {
        let text = String::from_utf8(bytes).expect("text");
        let name = path.to_string_lossy().replace('-', " ");
        assert!(name == text || name == "count", "{name}: {text:?}");
        assert_eq!(owner, 1000, "{name}");
    }
}

/// With `durability: fsync`, a file is on disk before it gets its name, and its name and those above it
/// before the call is answered. The kernel's calls show it.
#[test]
fn fsync_puts_files_and_names_on_disk_in_order() {
    requires!(program("strace"));
    let lab = Lab::builder().set("durability", json!("fsync")).start();
    let space = Space::of(&lab, "synced");
    let trace = Trace::of(&lab, &[]);
    space.put(&json!({})).ok(201);
    space.write("a/b/new", b"one");
    space.write("a/b/new", b"two");
    space.delete().ok(200);
    let calls = trace.calls();
    let top = "/workspaces/synced";
    calls.in_order(&[
        ("the new directory", "fsync", "/workspaces/.new-"),
        ("gets its name", "renameat2", "\"synced\""),
        ("which is on disk", "fsync", "/data/workspaces>"),
        ("a file without a name", "fsync", &format!("{top}/a/b/#")),
        ("gets it", "linkat", "\"new\""),
        ("in a directory", "fsync", &format!("{top}/a/b>")),
        ("and above", "fsync", &format!("{top}/a>")),
        ("up to the workspace", "fsync", &format!("{top}>")),
        ("the second file", "fsync", &format!("{top}/a/b/#")),
        ("gets a name that nobody sees", "linkat", "/workspaces/.staging>"),
        ("takes its place", "renameat|renameat2", "\"new\""),
        ("in the directory", "fsync", &format!("{top}/a/b>")),
        ("a delete takes the name away", "renameat2", "\".deleting-synced\""),
        ("on disk", "fsync", "/data/workspaces>"),
        ("before the files go", "renameat2", "/data/trash>"),
    ]);
    let session = Space::of(&lab, "of-session").session();
    let init = host::init_of(&session.id).expect("its init");
    let trace = Trace::of(&lab, &[init]);
    session.write("/workspace/c/d/new", b"one", "0644");
    let calls = trace.calls();
    calls.in_order(&[
        ("a temporary file", "fsync", "/.sandkasten-"),
        ("gets its name", "renameat|renameat2", "\"new\""),
        ("in a directory", "fsync", "/d>"),
        ("and above", "fsync", "/c>"),
    ]);
}

/// The kernel calls of a daemon and others that change names or sync.
struct Trace {
    strace: std::process::Child,
    file: PathBuf,
}

impl Trace {
    fn of(lab: &Lab, others: &[u32]) -> Self {
        let file = lab.dir().join("trace");
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-s", "200", "-o"]).arg(&file);
        command.args(["-e", "trace=fsync,fdatasync,linkat,renameat,renameat2,rename"]);
        for pid in others.iter().copied().chain([lab.pid()]) {
            command.args(["-p", &pid.to_string()]);
        }
        let strace = command.stderr(std::process::Stdio::null()).spawn().expect("run strace");
        // It has attached when every thread has its tracer.
        let pids: Vec<u32> = others.iter().copied().chain([lab.pid()]).collect();
        let is_traced = |pid: &u32| host::status(*pid, "TracerPid").trim() != "0";
        wait::until("strace", Duration::from_secs(10), || pids.iter().all(is_traced));
        Self { strace, file }
    }

    fn calls(mut self) -> Calls {
        host::signal(self.strace.id(), Signal::INT);
        self.strace.wait().expect("strace ends");
        Calls(fs::read_to_string(&self.file).expect("its file"))
    }
}

struct Calls(String);

impl Calls {
    /// Each of these comes after the one before: what it is, its call or calls that do the same with a `|`
    /// between them, and a part of its line.
    #[track_caller]
    fn in_order(&self, wanted: &[(&str, &str, &str)]) {
        let mut lines = self.0.lines();
        for (what, call, part) in wanted {
            let is_call =
                |line: &str| call.split('|').any(|call| line.contains(&format!(" {call}(")));
            let found = lines.any(|line| is_call(line) && line.contains(part));
            assert!(found, "no {call}(…) with `{part}` in its place: {what}\n{}", self.0);
        }
    }
}
