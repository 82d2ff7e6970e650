//! A data directory whose file system is full to the last block, or out of inodes: it is said, what is
//! there can be read and deleted, and all works again once there is room.
//!
//! Each test runs again in a mount namespace of its own, where a small ext4 is the data directory.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sandkasten_e2e::{Lab, host, wait};
use serde_json::{Value, json};

/// Set in the process that has mounts of its own.
const INSIDE: &str = "SANDKASTEN_TEST_OWN_MOUNTS";
/// The file system, with its journal; the daemon's reserves are a part of it.
const DISK_BYTES: u64 = 300 << 20;
/// How long the daemon may take to see that the disk is full, or is not any more.
const SEEN: Duration = Duration::from_secs(10);

/// Runs the test of that name in a mount namespace of its own; true: this is it.
fn is_inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let exe = std::env::current_exe().expect("own path");
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private"]).arg(exe);
    command.args(["--exact", &format!("full_disk::{name}"), "--nocapture"]).env(INSIDE, "1");
    let output = command.output().expect("run unshare");
    let (out, err) = (&output.stdout, &output.stderr);
    print!("{}", String::from_utf8_lossy(out));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(err));
    false
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("run it");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {err}");
}

/// A lab that is prepared, on a small ext4 of its own, which keeps so many percent back for root.
fn on_a_small_disk(kept_for_root: u8) -> Lab {
    let lab = Lab::builder().prepare();
    let (image, point) = (lab.dir().join("disk"), lab.dir().join("point"));
    File::create(&image).and_then(|file| file.set_len(DISK_BYTES)).expect("the image");
    fs::create_dir(&point).expect("a mount point");
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (image, point, data) = (text(&image), text(&point), text(&lab.data_dir));
    let kept = kept_for_root.to_string();
    run("mkfs.ext4", &["-q", "-F", "-N", "4096", "-m", &kept, &image]);
    run("mount", &["-o", "loop", &image, &point]);
    run("cp", &["-a", &format!("{data}/."), &point]);
    run("mount", &["--move", &point, &data]);
    lab
}

/// Puts what was below the small disk in its place, for the lab to clean up.
fn unmount(mut lab: Lab) {
    assert!(lab.stop().success());
    run("umount", &[lab.data_dir.to_str().expect("UTF-8")]);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Blocks,
    Inodes,
}

/// Fills the disk until nothing more goes on it; gives what to remove for room.
fn fill(lab: &Lab, of: Of) -> PathBuf {
    let filler = lab.data_dir.join("filler");
    fs::create_dir_all(&filler).expect("a folder");
    match of {
        Of::Blocks => fill_blocks(&filler),
        Of::Inodes => {
            for number in 0.. {
                match File::create(filler.join(format!("i{number}"))) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    filler
}

fn fill_blocks(filler: &Path) {
    for name in 0.. {
        let Ok(mut file) = File::create(filler.join(format!("b{name}"))) else { return };
        let mut wrote = 0;
        for size in [1 << 20, 4096] {
            let chunk = vec![7; size];
            loop {
                // What is not on the disk yet is counted late.
                match file.write(&chunk).and_then(|count| file.sync_data().map(|()| count)) {
                    Ok(0) => break,
                    Ok(count) => wrote += count,
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if wrote == 0 {
            return;
        }
    }
}

fn make_room(lab: &Lab, filler: &Path) {
    fs::remove_dir_all(filler).expect("remove the filler");
    wait::until("there is room again", SEEN, || lab.client.get("/readyz").status() == 200);
}

/// The value of a figure without labels.
fn figure(lab: &Lab, name: &str) -> u64 {
    let page = lab.client.get("/metrics").text();
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().expect("a number")
}

/// A lab with a session and a workspace that have files.
fn used(kept_for_root: u8) -> (Lab, String) {
    let mut lab = on_a_small_disk(kept_for_root);
    lab.restart();
    let made = lab.try_session(&json!({ "workspace_id": "kept" })).ok(201);
    let id = made["id"].as_str().expect("an id").to_owned();
    let session = lab.known(&id);
    session.write("/workspace/file", b"content", "0644");
    session.run(
        "head -c 1000000 /dev/zero > /home/large 2>/dev/null || head -c 1000000 /dev/zero > /tmp/x",
    );
    assert!(figure(&lab, "sandkasten_disk_reserve_bytes") > 0);
    assert_eq!(figure(&lab, "sandkasten_disk_full"), 0);
    (lab, id)
}

/// It is said everywhere, and in these words.
fn is_told(lab: &Lab) {
    wait::until("it is seen", SEEN, || lab.client.get("/readyz").status() == 503);
    let ready = lab.client.get("/readyz").error(503, "NO_SPACE");
    assert!(ready["message"].as_str().is_some_and(|text| text.contains("disk full")), "{ready}");
    let refused = lab.try_session(&json!({})).error(507, "NO_SPACE");
    assert!(
        refused["message"].as_str().is_some_and(|text| text.contains("disk full")),
        "{refused}"
    );
    assert_eq!(figure(lab, "sandkasten_disk_full"), 1);
    let log = lab.log();
    assert!(log.contains("disk_full"), "{log}");
    for wrong in ["modprobe", "as a bug", "panicked"] {
        assert!(!log.contains(wrong), "{wrong}: {log}");
    }
}

/// What is there is served.
fn is_served(lab: &Lab, id: &str) {
    let session = lab.known(id);
    let list = lab.client.get("/v1/sessions").ok(200);
    assert_eq!(list[0]["id"], *id);
    assert_eq!(session.info()["status"], "running");
    assert_eq!(session.read("/workspace/file"), b"content");
    assert!(session.stats()["pids"].as_u64().is_some());
    lab.client.get("/v1/workspaces/kept").ok(200);
    assert_eq!(session.run("cat /workspace/file"), "content");
}

#[test]
fn a_disk_that_is_full_before_the_start() {
    if !is_inside("a_disk_that_is_full_before_the_start") {
        return;
    }
    let (mut lab, id) = used(5);
    for of in [Of::Blocks, Of::Inodes] {
        assert!(lab.stop().success());
        let filler = fill(&lab, of);
        doctor_names_the_disk_alone(&lab);
        lab.restart();
        is_told(&lab);
        is_served(&lab, &id);
        // Again, with the reserve given up.
        assert!(lab.stop().success());
        lab.restart();
        is_told(&lab);
        is_served(&lab, &id);
        make_room(&lab, &filler);
        assert!(figure(&lab, "sandkasten_disk_reserve_bytes") > 0);
        assert_eq!(lab.session(&json!({})).delete().status(), 200);
    }
    assert_eq!(lab.known(&id).delete().status(), 200);
    unmount(lab);
}

/// Root has filled what the file system keeps for it too: what the reserve gives up goes back to root first,
/// and nobody else has any room.
#[test]
fn a_disk_that_keeps_room_for_root() {
    if !is_inside("a_disk_that_keeps_room_for_root") {
        return;
    }
    let (mut lab, id) = used(40);
    assert!(lab.stop().success());
    let filler = fill(&lab, Of::Blocks);
    doctor_names_the_disk_alone(&lab);
    lab.restart();
    is_told(&lab);
    let session = lab.known(&id);
    assert_eq!(session.info()["status"], "running");
    assert_eq!(session.read("/workspace/file"), b"content");
    let stopped = lab.cli(&["stop", "--delete-sessions"]);
    assert!(
        stopped.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&stopped.stderr),
        lab.log()
    );
    assert!(lab.wait().success());
    fs::remove_dir_all(&filler).expect("remove the filler");
    lab.restart();
    assert_eq!(lab.session(&json!({})).delete().status(), 200);
    unmount(lab);
}

fn doctor_names_the_disk_alone(lab: &Lab) {
    let output = lab.cli(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let all = report["guarantees"].as_array().cloned().expect("a list");
    let missing = all.iter().filter(|one| one["required"] == true && one["given"] == false);
    let names: Vec<&str> = missing.filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["disk-space"], "{report}");
    let row = all.iter().find(|one| one["name"] == "disk-space").expect("its row");
    assert!(row["why"].as_str().is_some_and(|why| why.contains("disk full")), "{row}");
}

#[test]
fn a_disk_that_fills_up_while_sessions_live() {
    if !is_inside("a_disk_that_fills_up_while_sessions_live") {
        return;
    }
    let (mut lab, id) = used(5);
    let filler = fill(&lab, Of::Blocks);
    is_told(&lab);
    is_served(&lab, &id);
    // What takes the reserve as well gets it; deletes and the stop need none of it.
    fill_blocks(&filler);
    let list = lab.client.get("/v1/sessions").ok(200);
    assert_eq!(list.as_array().map(Vec::len), Some(1));
    assert_eq!(lab.known(&id).read("/workspace/file"), b"content");
    let stopped = lab.cli(&["stop", "--delete-sessions", "--json"]);
    let errors = String::from_utf8_lossy(&stopped.stderr);
    assert!(stopped.status.success(), "{errors}\n{}", lab.log());
    assert!(lab.wait().success());
    make_room_without_a_daemon(&lab, &filler);
    lab.restart();
    assert_eq!(lab.client.get("/v1/sessions").ok(200), json!([]));
    lab.client.delete("/v1/workspaces/kept").ok(200);
    wait::until("it is ready", SEEN, || lab.client.get("/readyz").status() == 200);
    let trash = lab.data_dir.join("trash");
    wait::until("the trash is empty", SEEN, || host::names(&trash).is_empty());
    unmount(lab);
}

fn make_room_without_a_daemon(lab: &Lab, filler: &Path) {
    fs::remove_dir_all(filler).expect("remove the filler");
    assert!(!lab.data_dir.join("addr").exists());
}
