//! Limits on disk space, by each mechanism that the host has: full is an error inside and 507 outside,
//! nothing else breaks by it, and nothing is left.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use sandkasten_e2e::lab::Lab;
use sandkasten_e2e::{host, wait};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A daemon that may use this mechanism alone. `None`, said aloud: the host does not have it.
fn lab_with(mechanism: &str) -> Option<Lab> {
    let builder = Lab::builder().set("disk_limits", json!([mechanism]));
    let lab = builder.prepare();
    let line = line_of(&lab);
    if line["given"] == false {
        println!("SKIP {mechanism}: {}", line["why"]);
        return None;
    }
    Some(lab.started().unwrap_or_else(|refusal| panic!("{}", refusal.log)))
}

/// What `doctor` says about disk limits.
fn line_of(lab: &Lab) -> Value {
    let output = lab.cli(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let all = report["guarantees"].as_array().cloned().expect("a list");
    all.into_iter().find(|one| one["name"] == "disk-limits").expect("a line")
}

/// Files behind loop devices that lie below `dir`, removed or not.
fn attached_below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block").expect("/sys/block").flatten() {
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        found.extend(file.ok().filter(|file| Path::new(file.trim()).starts_with(dir)));
    }
    found
}

fn nothing_attached(lab: &Lab) {
    let left = wait::until_empty(Duration::from_secs(10), || attached_below(&lab.data_dir));
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn doctor_says_by_what_and_why_by_nothing_better() {
    let lab = Lab::builder().prepare();
    let line = line_of(&lab);
    assert_eq!(line["required"], false);
    let off = Lab::builder().set("disk_limits", json!("none")).prepare();
    let line = line_of(&off);
    assert_eq!(line["given"], false, "{line}");
    for mechanism in ["project", "image", "memory"] {
        let why = format!("{mechanism}: switched off by `disk_limits`");
        assert!(line["why"].as_str().is_some_and(|text| text.contains(&why)), "{line}");
    }
    let memory = Lab::builder().set("disk_limits", json!(["memory"])).prepare();
    let line = line_of(&memory);
    assert!(line["says"].as_str().is_some_and(|text| text.contains("by a tmpfs")), "{line}");
}

#[test]
fn what_the_host_can_not_limit_is_refused() {
    let lab = Lab::builder().set("disk_limits", json!("none")).start();
    let answer = lab.try_session(&json!({ "limits": { "disk_mb": 64 } }));
    let error = answer.error(400, "INVALID_REQUEST");
    assert!(
        error.to_string().contains("`limits.disk_mb` is not available on this host"),
        "{error}"
    );
    let session = lab.session(&json!({}));
    assert_eq!(session.stats()["disk_limit"], Value::Null);
    let lab = Lab::builder().set("disk_limits", json!("none"));
    let refusal = lab.set("ceilings.disk_mb", json!(100)).try_start().expect_err("a refusal");
    assert!(refusal.log.contains("`ceilings.disk_mb` is set"), "{}", refusal.log);
}

#[test]
fn limits_outside_of_their_range_are_refused() {
    let lab = Lab::builder().set("ceilings.disk_mb", json!(100)).start();
    for mb in [0, 15, 101] {
        let answer = lab.try_session(&json!({ "limits": { "disk_mb": mb } }));
        let error = answer.error(400, "INVALID_REQUEST");
        assert!(error.to_string().contains("limits.disk_mb"), "{error}");
    }
    // With a ceiling, nobody is unlimited.
    let session = lab.session(&json!({}));
    assert_eq!(session.info()["limits"]["disk_mb"], 100);
    assert_eq!(session.stats()["disk_limit"], 100 * MIB);
}

/// A session that has filled all that it may.
fn full(mechanism: &str) {
    let Some(lab) = lab_with(mechanism) else { return };
    let mounts = host::proc_file(lab.pid(), "mountinfo");
    let limits = json!({ "disk_mb": 32, "memory_mb": 256 });
    let session = lab.session(&json!({ "limits": limits, "user": "root" }));
    assert_eq!(session.info()["limits"]["disk_mb"], 32);
    assert_eq!(session.stats()["disk_limit"], 32 * MIB);
    session.write("/workspace/kept", b"old", "0644");
    session.run("dd if=/dev/zero of=/root/some bs=1M count=20 2>&1 || dd if=/dev/zero of=/some bs=1M count=20");
    if mechanism != "memory" {
        let used = session.stats()["disk_bytes"].as_u64().expect("a number");
        assert!((20 * MIB..32 * MIB).contains(&used), "{used}");
    }

    let filled = session.exec("dd if=/dev/zero of=/workspace/more bs=1M count=40 2>&1");
    assert_ne!(filled.code(), 0);
    assert!(
        filled.output().contains("No space left") || filled.output().contains("quota"),
        "{}",
        filled.body
    );
    // Root file system and workspace share the limit.
    assert_ne!(session.exec("dd if=/dev/zero of=/etc/more bs=64k count=32 2>&1").code(), 0);

    let body = json!({ "path": "/workspace/kept", "text": "x".repeat(4 << 20) });
    let answer = session.request("POST", "/fs/write").json(&body).send();
    answer.error(507, "NO_SPACE");
    assert_eq!(session.read("/workspace/kept"), b"old");
    let names = session.run("ls -A /workspace");
    assert_eq!(names, "kept\nmore\n", "nothing half-made is left");
    // Output goes to the spool, which is not the session's space.
    let output = session.run("head -c 200000 /dev/zero | tr '\\0' x");
    assert_eq!(output.len(), 200_000);
    assert_eq!(lab.client.get("/v1/sessions").status(), 200);

    session.run("rm /workspace/more");
    session.write("/workspace/kept", &vec![b'y'; 4 << 20], "0644");
    assert_eq!(host::proc_file(lab.pid(), "mountinfo"), mounts, "the host's table");
    assert_eq!(session.delete().status(), 200);
    nothing_attached(&lab);
}

#[test]
fn full_by_project() {
    full("project");
}

#[test]
fn full_by_image() {
    full("image");
}

#[test]
fn full_by_memory() {
    full("memory");
}

/// Files without content have a limit too.
#[test]
fn inodes_are_limited() {
    let lab = Lab::start();
    if line_of(&lab)["given"] == false {
        println!("SKIP no disk limits here");
        return;
    }
    let session = lab.session(&json!({ "limits": { "disk_mb": 16 } }));
    let done = session.exec_with(&json!({
        "cmd": "i=0; while [ $i -lt 6000 ]; do true > /workspace/$i || break; i=$((i+1)); done; echo $i",
        "timeout_ms": 120_000
    }));
    let made: u64 = done.output().lines().last().unwrap_or_default().parse().expect("a number");
    assert!((1000..4000).contains(&made), "{}", done.body);
    session.alive();
}

/// The daemon's end changes nothing for a session with an image, and the next one ends it cleanly.
#[test]
fn an_image_outlives_the_daemon() {
    let Some(mut lab) = lab_with("image") else { return };
    let id = {
        let session = lab.session(&json!({ "limits": { "disk_mb": 32 } }));
        session.write("/workspace/a", b"before", "0644");
        let id = session.id.clone();
        std::mem::forget(session);
        id
    };
    lab.kill();
    lab.restart();
    let session = lab.known(&id);
    assert_eq!(session.read("/workspace/a"), b"before");
    assert_eq!(session.stats()["disk_limit"], 32 * MIB);
    assert_eq!(attached_below(&lab.data_dir).len(), 1);
    assert_eq!(session.delete().status(), 200);
    nothing_attached(&lab);
}

/// A loop device that somebody else has is not ours, and stays.
#[test]
fn what_others_have_attached_stays() {
    let Some(lab) = lab_with("image") else { return };
    let before: Vec<u64> = loop_inodes();
    let session = lab.session(&json!({ "limits": { "disk_mb": 16 } }));
    assert_eq!(session.delete().status(), 200);
    nothing_attached(&lab);
    let after = loop_inodes();
    assert!(before.iter().all(|node| after.contains(node)), "{before:?} {after:?}");
}

fn loop_inodes() -> Vec<u64> {
    let all = std::fs::read_dir("/dev").expect("/dev").flatten();
    let loops = all.filter(|entry| entry.file_name().to_string_lossy().starts_with("loop"));
    loops.filter_map(|entry| Some(File::open(entry.path()).ok()?.metadata().ok()?.ino())).collect()
}
