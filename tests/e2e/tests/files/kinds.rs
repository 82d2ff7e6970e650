//! F-04: what is no regular file, on every route. F-05: a file that is larger than any memory. F-09: hard links.

use std::time::Duration;

use sandkasten_e2e::{Lab, host};

use crate::routes::{Route, is_civil};
use crate::{Files, Workspace};

/// What the check gives a route.
const LIMIT: Duration = Duration::from_secs(1);

/// Asks every route for something of another kind; `code` is what reads and writes of a file get.
#[track_caller]
fn on_every_route(make: &str, path: &str, session_code: &str, workspace_code: &str) {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f04");
    let session = workspace.in_image("python");
    let opens_file = |route: &Route| {
        matches!(
            (route.method, route.rest),
            ("GET", "/read" | "/file") | ("PUT", "/file") | ("POST", "/write" | "/edit")
        )
    };
    for (files, code) in [(Files::of(&session), session_code), (workspace.files(), workspace_code)]
    {
        for route in files.routes() {
            session.run(&format!("cd /workspace; rm -rf odd copied moved; {make}"));
            files.put("own", b"own");
            let answer = route.ask(&files, path.as_bytes());
            is_civil(&route, path.as_bytes(), &answer, LIMIT);
            if opens_file(&route) {
                answer.error(if code == "PERMISSION_DENIED" { 403 } else { 400 }, code);
            }
        }
    }
    nobody_waits(&lab);
    session.alive();
}

/// No thread of the daemon hangs in an open.
#[track_caller]
fn nobody_waits(lab: &Lab) {
    let pid = lab.pid();
    for thread in host::names(std::path::Path::new(&format!("/proc/{pid}/task"))) {
        let place = host::proc_file(pid, &format!("task/{thread}/wchan"));
        assert!(
            !place.contains("fifo") && !place.contains("wait_for_partner"),
            "{thread}: {place}"
        );
    }
}

macro_rules! kinds {
    ($($name:ident: $make:expr, $path:expr => $session:expr, $workspace:expr;)+) => {
        mod f_04 {
            $(
                #[test]
                fn $name() {
                    super::on_every_route($make, $path, $session, $workspace);
                }
            )+
        }
    };
}

kinds! {
    fifo: "mkfifo odd", "odd" => "NOT_A_FILE", "NOT_A_FILE";
    fifo_behind_a_link: "mkdir odd; mkfifo odd/p; ln -s p odd/l", "odd/l" => "NOT_A_FILE", "NOT_A_FILE";
    socket: "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"odd\")'", "odd"
        => "NOT_A_FILE", "NOT_A_FILE";
    directory: "mkdir odd; touch odd/f", "odd" => "IS_A_DIRECTORY", "IS_A_DIRECTORY";
    endless_device: "ln -s /dev/zero odd", "odd" => "NOT_A_FILE", "PATH_NOT_ALLOWED";
    device_that_is_full: "ln -s /dev/full odd", "odd" => "NOT_A_FILE", "PATH_NOT_ALLOWED";
}

/// A look at /proc gives an error or a few bytes, at once, and never what the daemon or init has.
#[test]
fn f_04_magic_links() {
    let lab = Lab::shared();
    let session = lab.session(&serde_json::json!({ "image": "base" }));
    let files = Files::of(&session);
    for path in [
        "/proc/self/exe",
        "/proc/self/fd/0",
        "/proc/self/fd/1",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd/x",
        "/proc/self/mem",
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/1/root/etc/passwd",
        "/proc/thread-self/fd/0",
        "/dev/stdin",
        "/dev/tty",
    ] {
        for answer in [files.read(path), files.write(path, b"x")] {
            assert!((400..500).contains(&answer.status()), "{path}: {answer}");
            assert!(answer.took < LIMIT, "{path}: {answer}");
        }
    }
    session.alive();
}

#[test]
fn f_09_hard_links() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "f09");
    let session = workspace.session();
    // Nobody links into the workspace what is not theirs.
    for file in ["/etc/shadow", "/etc/passwd", "/bin/sh"] {
        let done = session.exec(&format!("ln {file} /workspace/stolen 2>&1"));
        assert_ne!(done.code(), 0, "{file}: {}", done.body);
    }
    let as_root =
        serde_json::json!({ "cmd": "umask 077; echo r > /workspace/roots", "user": "root" });
    assert_eq!(session.exec_with(&as_root).code(), 0);
    assert_ne!(session.exec("ln /workspace/roots /workspace/stolen").code(), 0);
    // What has several names is a file as others are; a write gives one of them another file.
    for (number, files) in [Files::of(&session), workspace.files()].iter().enumerate() {
        session.run("rm -f one two; echo both > one; ln one two");
        assert_eq!(files.get("two"), b"both\n");
        files.put("one", b"new\n");
        assert_eq!(session.run("cat one two"), "new\nboth\n", "place {number}");
        files.read("roots").error(403, "PERMISSION_DENIED");
        files.write("roots", b"x").error(403, "PERMISSION_DENIED");
    }
}

/// The amounts that a read may ask for, and what a file of 1 TiB gives.
pub(crate) fn f_05(lab: &Lab) {
    let workspace = Workspace::new(lab, "f05");
    let session = workspace.session();
    session.run("truncate -s 1T sparse");
    let (tib, cap) = (1_u64 << 40, 10 << 20);
    for files in [Files::of(&session), workspace.files()] {
        let ask = |more: &str| lab.client.get(&files.url(&format!("/read?path=sparse{more}")));
        let body = ask("").ok(200);
        assert_eq!((body["truncated"].as_bool(), body["size"].as_u64()), (Some(true), Some(tib)));
        assert_eq!(sandkasten_e2e::session::decode(&body["content_base64"]).len(), cap);
        for huge in
            ["67108865", "1000000000000000000", "99999999999999999999999", "-1", "1e18", "x", ""]
        {
            ask(&format!("&max_bytes={huge}")).error(400, "INVALID_REQUEST");
        }
        assert_eq!(ask("&max_bytes=0").ok(200)["content_base64"], "");
        if files.has("HEAD", "/file") {
            let head = lab.client.request("HEAD", &files.url("/file?path=sparse")).send();
            assert_eq!(head.header("Content-Length"), Some(tib.to_string().as_str()), "{head}");
            let request = lab.client.request("GET", &files.url("/file?path=sparse"));
            let last = request.header("Range", "bytes=-5").send();
            assert_eq!((last.status(), last.body.as_slice()), (206, &[0; 5][..]), "{last}");
        }
    }
    let stats = session.stats();
    assert!(stats["memory_bytes"].as_u64().is_some_and(|bytes| bytes < 200 << 20), "{stats}");
}
