//! F-06: bytes of every kind and size, there and back by every route. F-07: owners and modes. F-08: a write
//! is whole or has not been.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandkasten_e2e::http::Answer;
use sandkasten_e2e::session::{encode, escape};
use sandkasten_e2e::{Lab, Session, wait};
use serde_json::json;

use crate::{Files, Workspace, base};

const MIB: usize = 1 << 20;

/// Bytes that repeat only after a long while, so that no two places look the same.
fn bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..=255).take(count).collect();
    while bytes.len() < count {
        bytes.extend(next());
    }
    bytes.truncate(count);
    bytes
}

/// What sha256sum says of bytes, on the host.
fn sum(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("run sha256sum");
    child.stdin.take().expect("its stdin").write_all(bytes).expect("feed it");
    let output = child.wait_with_output().expect("its end");
    String::from_utf8(output.stdout).expect("text")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Json,
    Form,
    Raw,
}

/// Sends so many bytes by a way and gets them back by every one that takes so many.
#[track_caller]
fn round_trip(way: Way, count: usize) {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f06");
    let session = workspace.session();
    let sent = bytes(count);
    for files in [Files::of(&session), workspace.files()] {
        if way == Way::Raw && !files.has("PUT", "/file") {
            continue;
        }
        match way {
            Way::Json => files.put("d/f", &sent),
            Way::Form => drop(files.upload("d", "f", &sent).ok(200)),
            Way::Raw => {
                let status = raw(&files, "PUT", "d/f").body(sent.clone()).send().status();
                assert!([200, 201, 204].contains(&status), "{status}");
            }
        }
        assert_eq!(session.run("sha256sum < d/f"), sum(&sent), "{way:?}");
        if count <= 10 * MIB {
            assert!(files.get("d/f") == sent, "{way:?}, read as JSON");
        }
        if files.has("GET", "/file") {
            let answer = raw(&files, "GET", "d/f").send();
            assert_eq!(answer.status(), 200, "{answer}");
            assert!(answer.body == sent, "{way:?}, read raw");
        }
        session.run("rm -r d");
    }
}

fn raw<'a>(files: &'a Files<'_>, method: &str, path: &str) -> sandkasten_e2e::http::Request<'a> {
    let target = files.url(&format!("/file?path={}", escape(path)));
    files.lab.client.request(method, &target).patience(Duration::from_secs(120))
}

macro_rules! sizes {
    ($($name:ident: $count:expr, [$($way:ident),+];)+) => {
        mod f_06 {
            $(mod $name {
                use super::super::{Way, round_trip};
                $(crate::contents::size!($way, $count);)+
            })+
        }
    };
}

macro_rules! size {
    (Json, $count:expr) => {
        #[test]
        fn as_json() {
            round_trip(Way::Json, $count);
        }
    };
    (Form, $count:expr) => {
        #[test]
        fn as_a_form() {
            round_trip(Way::Form, $count);
        }
    };
    (Raw, $count:expr) => {
        #[test]
        fn raw() {
            round_trip(Way::Raw, $count);
        }
    };
}

use size;

sizes! {
    nothing: 0, [Json, Form, Raw];
    one_byte: 1, [Json, Form, Raw];
    every_byte: 256, [Json, Form, Raw];
    a_block_less_one: 65_535, [Json, Form, Raw];
    a_block: 65_536, [Json, Form, Raw];
    a_block_and_one: 65_537, [Json, Form, Raw];
    nearly_4_mib: 39 * (1 << 20) / 10, [Json, Form, Raw];
    five_mib: 5 << 20, [Json, Form, Raw];
    ten_mib: 10 << 20, [Json, Form, Raw];
    hundred_mib: 100 << 20, [Raw];
}

/// Writes with the fields given beside the path.
fn write_with(files: &Files<'_>, path: &str, more: &serde_json::Value, user: &str) -> Answer {
    let mut body = json!({ "path": path, "text": "x" });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    files.lab.client.post(&files.url(&format!("/write?user={user}")), &body)
}

#[test]
fn f_07_what_the_api_writes_is_the_sessions() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f07");
    let session = workspace.session();
    for files in [Files::of(&session), workspace.files()] {
        for (mode, want) in [("0644", "644"), ("0600", "600"), ("755", "755"), ("0444", "444")] {
            write_with(&files, "new/dir/f", &json!({ "mode": mode }), "sandbox").ok(200);
            assert_eq!(session.run("stat -c '%a %U' new/dir/f"), format!("{want} sandbox\n"));
            session.run("rm -f new/dir/f");
        }
        write_with(&files, "new/dir/f", &json!({}), "sandbox").ok(200);
        let kinds = "stat -c '%a %U %G' new new/dir new/dir/f";
        let dir = "755 sandbox sandbox\n";
        assert_eq!(session.run(kinds), format!("{dir}{dir}644 sandbox sandbox\n"));
        // An editor's life: append, replace, remove.
        session.run("echo y >> new/dir/f; sed -i s/y/z/ new/dir/f; rm -r new");
    }
}

#[test]
fn f_07_modes_count_and_root_is_the_boxs_own() {
    let lab = Lab::shared();
    let session = base(&lab);
    let files = Files::of(&session);
    session.run(
        "umask 077; echo s > secret; chmod 000 secret; mkdir shut; echo t > shut/t; chmod 000 shut",
    );
    for path in ["secret", "shut/t"] {
        files.read(path).error(403, "PERMISSION_DENIED");
        files.write(path, b"x").error(403, "PERMISSION_DENIED");
        let rooted = format!("/read?user=root&path={}", escape(path));
        lab.client.get(&files.url(&rooted)).ok(200);
    }
    write_with(&files, "by/root", &json!({ "mode": "0600" }), "root").ok(200);
    assert_eq!(session.run("stat -c '%U %a' by by/root"), "root 755\nroot 600\n");
    files.read("by/root").error(403, "PERMISSION_DENIED");
    files.write("by/root", b"x").error(403, "PERMISSION_DENIED");
    files.write("by/new", b"x").error(403, "PERMISSION_DENIED");
    write_with(&files, "/etc/by-root", &json!({}), "root").ok(200);
    files.write("/etc/by-root", b"x").error(403, "PERMISSION_DENIED");
    session.run("echo old > mine; chmod 640 mine");
    // Root writes over a file of another: it stays the other's.
    write_with(&files, "mine", &json!({}), "root").ok(200);
    assert_eq!(session.run("stat -c '%U %a' mine; cat mine"), "sandbox 640\nx");
}

/// A loop of readers in the box never sees a file that is half one and half the other.
#[test]
fn f_08_readers_see_one_file_or_the_other() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f08");
    let session = workspace.session();
    let (one, other) = (vec![b'a'; MIB], vec![b'b'; MIB]);
    for (name, files) in [("s", Files::of(&session)), ("w", workspace.files())] {
        files.put(name, &one);
        let cmd = format!(
            "rm -f stop torn; (while [ ! -e stop ]; do n=$(tr -d a < {name} | wc -c); \
            [ $n = 0 ] || [ $n = {MIB} ] || echo torn $n >> torn; \
            n=$(wc -c < {name}); [ $n = {MIB} ] || echo short $n >> torn; echo . >> rounds; done) > /dev/null 2>&1 &"
        );
        session.run(&cmd);
        for round in 0..60 {
            files.put(name, if round % 2 == 0 { &other } else { &one });
        }
        wait::until("the reader has read", Duration::from_secs(30), || {
            session.run("wc -l < rounds").trim().parse::<u32>().is_ok_and(|rounds| rounds >= 3)
        });
        assert_eq!(
            session.run("touch stop; cat torn 2>/dev/null || echo none; rm rounds"),
            "none\n"
        );
    }
}

/// The daemon is killed while files are written: each is the old or the new one, and one that was
/// acknowledged is there.
#[test]
fn f_08_a_killed_daemon_tears_nothing() {
    let mut lab = Lab::start();
    let id = lab.client.post("/v1/sessions", &json!({ "workspace_id": "f08" })).ok(201);
    let id = id["id"].as_str().expect("an id").to_owned();
    let size = 4 * MIB;
    let whole = |letter: u8| vec![letter; size];
    for round in 0..6_u8 {
        let places = [format!("/v1/sessions/{id}/fs"), "/v1/workspaces/f08/fs".to_owned()];
        let writers: Vec<_> = places
            .iter()
            .enumerate()
            .map(|(number, base)| {
                let (client, target) = (lab.client.clone(), format!("{base}/write"));
                std::thread::spawn(move || {
                    let mut acknowledged = None;
                    for letter in (b'a'..=b'z').cycle() {
                        let body = json!({ "path": format!("f{number}"),
                            "content_base64": encode(&vec![letter; size]) });
                        match client.request("POST", &target).json(&body).try_send() {
                            Ok(answer) if answer.status() == 200 => acknowledged = Some(letter),
                            _ => return (acknowledged, letter),
                        }
                    }
                    unreachable!("the letters go round")
                })
            })
            .collect();
        wait::prescribed(Duration::from_millis(150 + 130 * u64::from(round)));
        lab.kill();
        let ends: Vec<_> =
            writers.into_iter().map(|writer| writer.join().expect("its end")).collect();
        lab.restart();
        let session = lab.known(&id);
        let files = Files { lab: &lab, base: "/v1/workspaces/f08".into() };
        for (number, (acknowledged, attempted)) in ends.into_iter().enumerate() {
            let name = format!("f{number}");
            let found = files.read(&name);
            if found.status() == 404 {
                assert_eq!(acknowledged, None, "round {round}: {name} is lost");
                continue;
            }
            let found = sandkasten_e2e::session::decode(&found.ok(200)["content_base64"]);
            let letter = *found.first().expect("bytes");
            assert!(found == whole(letter), "round {round}: {name} is torn");
            if let Some(acknowledged) = acknowledged {
                assert!([acknowledged, attempted].contains(&letter), "round {round}: {name}");
            }
        }
        only_whole_names(&session);
    }
}

/// No half file stands under a name that a user would find.
#[track_caller]
fn only_whole_names(session: &Session<'_>) {
    let names = session.run("ls -A /workspace");
    let odd: Vec<&str> = names.lines().filter(|name| !["f0", "f1"].contains(name)).collect();
    assert!(odd.is_empty(), "left behind: {odd:?}");
}
