//! What needs the host for itself: F-03, the race, and F-05's look at memory.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sandkasten_e2e::session::{encode, escape};
use sandkasten_e2e::{Lab, host};
use serde_json::json;

use crate::canary::Canary;
use crate::{Files, Workspace};

/// What the check asks for.
const REQUESTS: usize = 20_000;
const SWAPS: usize = 200_000;
const CLIENTS: usize = 4;

/// Requests that go where the swapped name leads, in turn.
fn requests(files: &Files<'_>) -> Vec<sandkasten_e2e::http::Request<'static>> {
    let client: &'static _ = Box::leak(Box::new(files.lab.client.clone()));
    let get = |rest: &str| client.request("GET", &files.url(rest));
    let post =
        |rest: &str, body: serde_json::Value| client.request("POST", &files.url(rest)).json(&body);
    let text = encode(b"from the API");
    let write = |path: &str| post("/write", json!({ "path": path, "content_base64": text }));
    let mut all = vec![
        get("/read?path=d/f"),
        write("d/f"),
        get("/read?path=d/../d/f"),
        write("d/new"),
        write("d/sub/new"),
        get(&format!("/read?path={}", escape("/workspace/d/f"))),
        get(if files.base.contains("workspaces") { "?path=d" } else { "/list?path=d" }),
    ];
    let more = [
        ("GET", "/file", get("/file?path=d/f")),
        ("PUT", "/file", client.request("PUT", &files.url("/file?path=d/f")).body("raw")),
        ("DELETE", "/file", client.request("DELETE", &files.url("/file?path=d/new"))),
        (
            "DELETE",
            "/file",
            client.request("DELETE", &files.url("/file?path=d/sub&recursive=true")),
        ),
        ("GET", "/stat", get("/stat?path=d/f")),
        ("GET", "/list", get("/list?path=.&depth=3")),
        ("GET", "/grep", get("/grep?path=d&pattern=secret")),
        ("GET", "/glob", get("/glob?path=.&pattern=d/*")),
        ("GET", "/archive", get("/archive?path=d")),
        ("POST", "/mkdir", post("/mkdir", json!({ "path": "d/made/deep" }))),
        ("POST", "/chmod", post("/chmod", json!({ "path": "d/f", "mode": "0640" }))),
        (
            "POST",
            "/chmod",
            post("/chmod", json!({ "path": "d", "mode": "0755", "recursive": true })),
        ),
        (
            "POST",
            "/copy",
            post("/copy", json!({ "from": "d/f", "to": "stolen", "overwrite": true })),
        ),
        ("POST", "/copy", post("/copy", json!({ "from": "own", "to": "d/f", "overwrite": true }))),
        (
            "POST",
            "/move",
            post("/move", json!({ "from": "d/new", "to": "d/f", "overwrite": true })),
        ),
    ];
    let there = files.routes();
    let is_there = |method: &str, rest: &str| {
        there.iter().any(|route| route.method == method && route.rest == rest)
    };
    all.extend(more.into_iter().filter(|(m, rest, _)| is_there(m, rest)).map(|(_, _, ask)| ask));
    all
}

/// A directory and a link out of the workspace change places as fast as they can, while the API reads and
/// writes through the name: nothing of the host is read, nothing written.
#[track_caller]
fn race(has_session: bool) {
    let lab = Lab::shared();
    let canary = Canary::in_data_dir(&lab);
    let workspace = Workspace::new(&lab, "f03");
    let files = workspace.files();
    files.put("d/f", b"inside");
    files.put("own", b"own");
    let session = has_session.then(|| workspace.session());
    let files = session.as_ref().map_or(files, Files::of);
    let dir = lab.data_dir.join("workspaces").join(&workspace.id);
    std::os::unix::fs::symlink(canary.path(), dir.join("out")).expect("the link");
    let asked = requests(&files);
    let (done, swaps, inside) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) < REQUESTS || swaps.load(Ordering::Relaxed) < SWAPS {
                swap(&dir.join("d"), &dir.join("out"));
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut connection = lab.client.connect().expect("connect");
                loop {
                    let number = done.fetch_add(1, Ordering::Relaxed);
                    if number >= REQUESTS {
                        return;
                    }
                    let request = &asked[number % asked.len()];
                    let answer = connection.send(request).expect("an answer");
                    canary.is_not_in("the race", &answer);
                    assert!(answer.status() < 500, "{answer}");
                    inside.fetch_add(usize::from(answer.status() < 300), Ordering::Relaxed);
                }
            });
        }
    });
    canary.is_untouched("the race");
    let (swaps, inside) = (swaps.into_inner(), inside.into_inner());
    println!("{REQUESTS} requests, {inside} of them found the directory, {swaps} swaps");
    assert!(inside > REQUESTS / 20, "only {inside} of {REQUESTS} found the directory");
    assert!(inside < REQUESTS, "none met the link");
}

/// Two names change places at once. One of the two may be gone: the API removes and moves things too.
fn swap(one: &Path, other: &Path) {
    let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
}

#[test]
fn f_03_no_swap_leads_out_of_a_workspace() {
    race(false);
}

#[test]
fn f_03_no_swap_leads_out_of_a_session() {
    race(true);
}

#[test]
fn f_05_sparse_file_of_1_tib() {
    let lab = Lab::shared();
    let pid = lab.pid();
    let before = host::anonymous_bytes(pid);
    crate::kinds::f_05(&lab);
    let grown = host::anonymous_bytes(pid).saturating_sub(before);
    // Twice the cap: what was read, and what an allocator keeps of it.
    assert!(grown < 20 << 20, "the daemon has grown by {grown} bytes");
}
