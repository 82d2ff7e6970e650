//! F-10: a workspace in use stays. F-11: several sessions, one workspace. F-12: one id is one directory.

use sandkasten_e2e::http::{Answer, Request};
use sandkasten_e2e::session::{encode, escape};
use sandkasten_e2e::{Lab, host};
use serde_json::{Value, json};

use crate::{Files, Workspace, document};

#[test]
fn f_10_a_workspace_in_use_stays() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f10");
    let target = format!("/v1/workspaces/{}", workspace.id);
    let session = workspace.session();
    session.run("mkdir -p d/e; head -c 100000 /dev/urandom > d/e/f; echo x > g");
    let hash = "find . -type f -exec sha256sum {} + | sort";
    let before = session.run(hash);
    for _ in 0..3 {
        lab.client.delete(&target).error(409, "WORKSPACE_IN_USE");
    }
    assert_eq!(session.run(hash), before);
    let second = workspace.session();
    assert_eq!(session.delete().ok(200), json!({ "ok": true }));
    lab.client.delete(&target).error(409, "WORKSPACE_IN_USE");
    assert_eq!(second.run(hash), before);
    assert_eq!(second.delete().ok(200), json!({ "ok": true }));
    assert_eq!(workspace.files().get("g"), b"x\n");
    assert_eq!(lab.client.delete(&target).ok(200), json!({ "ok": true }));
    lab.client.delete(&target).error(404, "WORKSPACE_NOT_FOUND");
    workspace.files().read("g").error(404, "WORKSPACE_NOT_FOUND");
}

/// Two sessions and the API write into one workspace at once: nothing is lost, nothing mixed.
#[test]
fn f_11_a_thousand_writes_at_once() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f11");
    let (one, other) = (workspace.session(), workspace.session());
    one.run("mkdir d");
    let places = [Files::of(&one).base, Files::of(&other).base, workspace.files().base];
    std::thread::scope(|scope| {
        for (number, base) in places.iter().enumerate() {
            scope.spawn({
                let client = &lab.client;
                move || {
                    let mut connection = client.connect().expect("connect");
                    for file in 0..334 {
                        // One name of each is fought over by all.
                        let name = if file % 10 == 0 {
                            format!("d/all{file}")
                        } else {
                            format!("d/{number}-{file}")
                        };
                        let text = format!("{number} {file}\n").repeat(50);
                        let body =
                            json!({ "path": name, "content_base64": encode(text.as_bytes()) });
                        let request =
                            client.request("POST", &format!("{base}/fs/write")).json(&body);
                        connection.send(&request).expect("an answer").ok(200);
                    }
                }
            });
        }
        for session in [&one, &other] {
            scope.spawn(|| {
                session.run("for i in $(seq 200); do flock lock sh -c 'echo $(($(cat n || echo 0) + 1)) > n.new && mv n.new n'; done 2>/dev/null");
            });
        }
    });
    assert_eq!(one.run("cat n"), "400\n", "every locked step counts once");
    for session in [&one, &other] {
        assert_eq!(session.run("ls d | wc -l"), format!("{}\n", 3 * 300 + 34));
        let whole = "for f in d/*; do [ $(wc -l < $f) = 50 ] && [ $(sort -u $f | wc -l) = 1 ] || echo $f; done";
        assert_eq!(session.run(whole), "", "files that are not whole");
    }
}

/// SQLite's rules hold between two sessions: its locks, its log beside the file, its shared memory.
#[test]
fn f_11_sqlite_in_two_sessions() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f11-sql");
    let (one, other) = (workspace.in_image("python"), workspace.in_image("python"));
    let open = "import sqlite3; c = sqlite3.connect('db', timeout=60, isolation_level=None)";
    one.run(&format!(
        "python3 -c \"{open}; print(c.execute('pragma journal_mode=wal').fetchone()); c.execute('create table t(n)')\""
    ));
    let fill = format!(
        "python3 -c \"{open}\nfor n in range(200): c.execute('insert into t values(?)', (n,))\""
    );
    std::thread::scope(|scope| {
        scope.spawn(|| one.run(&fill));
        scope.spawn(|| other.run(&fill));
    });
    let look = format!(
        "python3 -c \"{open}; print(c.execute('select count(*), sum(n) from t').fetchone(), c.execute('pragma integrity_check').fetchone())\""
    );
    for session in [&one, &other] {
        assert_eq!(session.run(&look), "(400, 39800) ('ok',)\n");
    }
}

/// Every entry point that takes a workspace's id.
fn entry_points<'a>(lab: &'a Lab, escaped: &str) -> Vec<Request<'a>> {
    let at = |method: &str, rest: &str| {
        lab.client.request(method, &format!("/v1/workspaces/{escaped}{rest}"))
    };
    let document = document(lab);
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().into_iter().flatten() {
        let Some(rest) = path.strip_prefix("/v1/workspaces/{id}") else { continue };
        for (method, call) in methods.as_object().into_iter().flatten() {
            let method = method.to_uppercase();
            let rest = format!("{rest}?{}", query(&document, call));
            let request = at(&method, &rest);
            all.push(match method.as_str() {
                "POST" if rest.contains("/upload") => request
                    .header("Content-Type", "multipart/form-data; boundary=b")
                    .body("--b--\r\n"),
                "POST" => {
                    request.json(&json!({ "path": "f", "text": "x", "from": "f", "to": "g" }))
                }
                "PUT" if !rest.starts_with("/fs") => request.json(&json!({})),
                "PUT" => request.body(""),
                _ => request,
            });
        }
    }
    assert!(all.len() >= 5, "{}", all.len());
    all
}

/// What a call needs in its query: names that it does not have are refused before all else.
fn query(document: &Value, call: &Value) -> String {
    let has = |wanted: &str| {
        call["parameters"].as_array().into_iter().flatten().any(|one| {
            let link = one["$ref"].as_str().and_then(|link| link.strip_prefix('#'));
            let one = link.and_then(|pointer| document.pointer(pointer)).unwrap_or(one);
            one["in"] == "query" && one["name"] == wanted
        })
    };
    let names = ["path", "pattern"].into_iter().filter(|name| has(name));
    names.map(|name| format!("{name}=f")).collect::<Vec<_>>().join("&")
}

#[track_caller]
fn refused(answer: &Answer) {
    // What no id can be may also be no route at all.
    if answer.status() == 404 {
        answer.error(404, "ROUTE_NOT_FOUND");
    } else if !answer.body.is_empty() {
        answer.error(400, "INVALID_WORKSPACE");
    } else {
        assert_eq!(answer.status(), 400);
    }
}

/// An id that is none is refused wherever one can be given.
#[track_caller]
fn is_no_id(id: &str) {
    let lab = Lab::shared();
    let folder = lab.data_dir.join("workspaces");
    let escaped: String = id.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for request in entry_points(&lab, &escaped) {
        refused(&request.send());
    }
    lab.try_session(&json!({ "workspace_id": id })).error(400, "INVALID_WORKSPACE");
    let names = host::names(&folder);
    let odd = names.iter().find(|name| name.len() < 2 || name.contains(['_', ' ', '\\']));
    assert_eq!(odd, None);
    assert!(!names.iter().any(|name| name == id), "{names:?}");
}

macro_rules! no_ids {
    ($($name:ident: $id:expr;)+) => {
        mod f_12 {
            $(
                #[test]
                fn $name() {
                    super::is_no_id($id);
                }
            )+
        }
    };
}

no_ids! {
    one_letter: "a";
    too_long: &"a".repeat(65);
    capitals: "User";
    all_capitals: "USER";
    hyphen_first: "-user";
    hyphen_last: "user-";
    underscore: "user_one";
    dot: "user.one";
    dots: "..";
    parent: "../other";
    slash: "user/one";
    absolute: "/etc";
    space: "user one";
    space_last: "user ";
    newline: "user\n";
    nul: "user\0";
    umlaut: "üser";
    full_width: "ｕｓｅｒ";
    cyrillic_that_looks_the_same: "usеr";
    combining: "u\u{308}ser";
    hidden: ".new-user";
    escaped: "%2e%2e";
}

/// Ids that look alike, or like a name of ours, are workspaces of their own.
#[test]
fn f_12_one_id_is_one_directory() {
    let lab = Lab::shared();
    let ids = [
        "sandkasten-ws-x",
        "ws-x",
        "sandkasten-ws-x-1",
        "x--y",
        "x-y",
        "00",
        "a0",
        &"a".repeat(64),
    ];
    let mine: Vec<Workspace<'_>> =
        ids.iter().map(|id| Workspace { lab: &lab, id: (*id).to_owned() }).collect();
    for workspace in &mine {
        workspace.files().put("who", workspace.id.as_bytes());
    }
    for workspace in &mine {
        assert_eq!(workspace.files().get("who"), workspace.id.as_bytes());
        let session = workspace.session();
        assert_eq!(session.run("cat who"), workspace.id);
        assert_eq!(session.info["workspace_id"], workspace.id.as_str());
    }
    let folder = host::names(&lab.data_dir.join("workspaces"));
    assert!(ids.iter().all(|id| folder.iter().any(|name| name == id)), "{folder:?}");
    let listed = lab.client.get("/v1/workspaces").ok(200);
    for id in ids {
        let found = listed["workspaces"].as_array().into_iter().flatten();
        assert_eq!(found.filter(|workspace| workspace["id"] == id).count(), 1, "{id}");
    }
    let target = format!("/v1/workspaces/{}/fs/read?path={}", ids[0], escape("../ws-x/who"));
    lab.client.get(&target).error(400, "PATH_NOT_ALLOWED");
}
