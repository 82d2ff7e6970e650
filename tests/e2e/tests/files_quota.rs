//! Limits on disk space, by each mechanism that the host has: full is an error inside and 507 outside,
//! nothing else breaks by it, and nothing is left.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use sandkasten_e2e::host::Requirement;
use sandkasten_e2e::http::Answer;
use sandkasten_e2e::lab::{Builder as LabBuilder, Lab, Signal};
use sandkasten_e2e::session::decode;
use sandkasten_e2e::{host, skip, wait};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A daemon that may use this mechanism alone. `None`, said aloud: the host does not have it.
fn lab_with(mechanism: &str) -> Option<Lab> {
    lab_of(Lab::builder(), mechanism)
}

/// As [`lab_with`], with more settings.
fn lab_of(builder: LabBuilder, mechanism: &str) -> Option<Lab> {
    let lab = builder.set("disk_limits", json!([mechanism])).prepare();
    let line = line_of(&lab);
    let need = if line["given"] == false {
        let name = format!("disk_limits({mechanism})");
        Err(Requirement { name, reason: line["why"].to_string() })
    } else {
        Ok(())
    };
    if skip::lacks(&test_name(), &[need]) {
        return None;
    }
    Some(lab.started().unwrap_or_else(|refusal| panic!("{}", refusal.log)))
}

/// The test that runs.
fn test_name() -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default();
    name.rsplit("::").next().unwrap_or_default().to_owned()
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
    let table = host::proc_file(lab.pid(), "mountinfo");
    assert!(!table.contains(&*lab.data_dir.to_string_lossy()), "in the host's table: {table}");
    assert_eq!(session.delete().status(), 200);
    nothing_attached(&lab);
}

/// Where every session has an image, the next ones are there before they are asked for.
#[test]
fn images_are_made_ahead() {
    let builder = Lab::builder().set("ceilings.disk_mb", json!(48));
    let Some(mut lab) = lab_of(builder, "image") else { return };
    let ahead = lab.data_dir.join("ahead");
    let all = |ahead: &Path| {
        wait::until("images ahead", Duration::from_secs(20), || host::names(ahead) == ["0", "1"]);
    };
    all(&ahead);
    // What is cut off is none.
    lab.kill();
    std::fs::write(ahead.join("0"), "torn").expect("write");
    lab.restart();
    all(&ahead);
    let sessions: Vec<_> = (0..5).map(|_| lab.session(&json!({ "user": "root" }))).collect();
    for session in &sessions {
        assert_eq!(session.stats()["disk_limit"], 48 * MIB);
        assert_ne!(session.exec("head -c 60000000 /dev/zero > /root/f").code(), 0);
    }
    let other = lab.session(&json!({ "limits": { "disk_mb": 16 } }));
    assert_eq!(other.stats()["disk_limit"], 16 * MIB);
    all(&ahead);
    assert_eq!(attached_below(&lab.data_dir).len(), 6, "each has its own");
    drop((sessions, other));
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
        let (name, reason) = ("disk_limits".to_owned(), "the host has none".to_owned());
        if skip::lacks("inodes_are_limited", &[Err(Requirement { name, reason })]) {
            return;
        }
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

/// Sets a quota; what the daemon says.
fn quota(lab: &Lab, workspace: &str, mb: u64) -> Answer {
    let target = format!("/v1/workspaces/{workspace}");
    lab.client.request("PUT", &target).json(&json!({ "quota_mb": mb })).send()
}

/// Writes a file of a workspace without a session.
fn write_outside(lab: &Lab, workspace: &str, path: &str, text: &str) -> Answer {
    let target = format!("/v1/workspaces/{workspace}/fs/write");
    lab.client.post(&target, &json!({ "path": path, "text": text }))
}

fn read_outside(lab: &Lab, workspace: &str, path: &str) -> Vec<u8> {
    let target = format!("/v1/workspaces/{workspace}/fs/read?path={path}");
    decode(&lab.client.get(&target).ok(200)["content_base64"])
}

fn delete_workspace(lab: &Lab, workspace: &str) {
    assert_eq!(lab.client.delete(&format!("/v1/workspaces/{workspace}")).status(), 200);
    nothing_attached(lab);
    let gone = || host::names(&lab.data_dir.join("trash"));
    assert!(wait::until_empty(Duration::from_secs(10), gone).is_empty());
    assert!(!lab.data_dir.join("workspaces").join(workspace).exists());
}

/// Kills the daemon and its launcher at once, as the kernel would for want of memory.
fn kill_all(lab: &mut Lab) {
    let family = host::family(lab.pid()).into_iter();
    let launchers = family.filter(|&pid| host::proc_file(pid, "comm").trim() == "sk-launcher");
    for launcher in launchers.collect::<Vec<_>>() {
        host::signal(launcher, Signal::KILL);
    }
    lab.kill();
}

/// One image, two daemons, two sessions: one file system all along.
#[test]
fn a_workspace_with_a_quota_survives_the_daemon_and_is_shared() {
    let Some(mut lab) = lab_with("image") else { return };
    assert_eq!(quota(&lab, "shared", 64).status(), 201);
    for text in ["once", "twice", "0"] {
        write_outside(&lab, "shared", "outside", text).ok(200);
    }
    assert_eq!(read_outside(&lab, "shared", "outside"), b"0");
    let first = {
        let session = lab.session(&json!({ "workspace_id": "shared" }));
        session.run("for i in $(seq 50); do echo before > /workspace/first-$i; done");
        let id = session.id.clone();
        std::mem::forget(session);
        id
    };
    kill_all(&mut lab);
    lab.restart();
    let first = lab.known(&first);
    let second = lab.session(&json!({ "workspace_id": "shared" }));
    assert_eq!(attached_below(&lab.data_dir).len(), 1);
    for round in 0..20 {
        first.run(&format!("dd if=/dev/zero of=/workspace/a-{round} bs=64k count=3 2>/dev/null"));
        second.run(&format!("dd if=/dev/zero of=/workspace/b-{round} bs=64k count=3 2>/dev/null"));
    }
    let names = "ls -A /workspace | sort | tr '\\n' ' '";
    let expected = first.run(names);
    assert_eq!(expected.split_whitespace().count(), 1 + 50 + 20 + 20);
    assert_eq!(second.run(names), expected);
    assert_eq!(read_outside(&lab, "shared", "first-50"), b"before\n");
    let sums = "cd /workspace && cat a-* b-* first-* outside | md5sum";
    let sum = first.run(sums);
    assert_eq!(second.run(sums), sum);
    assert_eq!(first.delete().status(), 200);
    assert_eq!(second.run(sums), sum);
    assert_eq!(second.delete().status(), 200);
    nothing_attached(&lab);
    let third = lab.session(&json!({ "workspace_id": "shared" }));
    assert_eq!(third.run(sums), sum);
    assert_eq!(lab.client.delete("/v1/workspaces/shared").status(), 409);
    assert_eq!(third.delete().status(), 200);
    delete_workspace(&lab, "shared");
}

/// A workspace that has all that it may.
fn full_workspace(mechanism: &str) {
    let Some(lab) = lab_with(mechanism) else { return };
    assert_eq!(quota(&lab, "full", 16).status(), 201);
    let session = lab.session(&json!({ "workspace_id": "full" }));
    write_outside(&lab, "full", "kept", "old").ok(200);
    let filled = session.exec("dd if=/dev/zero of=/workspace/more bs=1M count=20 2>&1");
    assert_ne!(filled.code(), 0, "{}", filled.body);
    write_outside(&lab, "full", "kept", &"x".repeat(4 << 20)).error(507, "NO_SPACE");
    let body = json!({ "path": "/workspace/kept", "text": "x".repeat(4 << 20) });
    session.request("POST", "/fs/write").json(&body).send().error(507, "NO_SPACE");
    assert_eq!(read_outside(&lab, "full", "kept"), b"old");
    assert_eq!(session.run("ls -A /workspace"), "kept\nmore\n");
    // The session's own space is another.
    session
        .run("dd if=/dev/zero of=$HOME/own bs=1M count=20 2>/dev/null || true; rm /workspace/more");
    write_outside(&lab, "full", "kept", &"y".repeat(4 << 20)).ok(200);
    assert_eq!(session.delete().status(), 200);
    delete_workspace(&lab, "full");
}

#[test]
fn a_full_workspace_by_project() {
    full_workspace("project");
}

#[test]
fn a_full_workspace_by_image() {
    full_workspace("image");
}

/// Files that are there already are copied, by whoever has nobody beside.
#[test]
fn a_quota_for_a_workspace_with_files() {
    let Some(lab) = lab_with("image") else { return };
    let tree = "cd /workspace && find . | sort | while read f; do ls -lnd \"$f\" | tr -s ' ' | cut -d' ' -f1,3,4,5,9-; done; cat x/run 'a b' | md5sum";
    let session = lab.session(&json!({ "workspace_id": "grown", "user": "root" }));
    session.run("cd /workspace && mkdir -p x/y && echo 'exit 3' > x/run && chmod 4755 x/run && ln -s x/run link && echo 1 > 'a b' && chown 7:8 'a b' && mkfifo fifo && ln 'a b' hard");
    let sum = session.run(tree);
    quota(&lab, "grown", 32).error(409, "WORKSPACE_IN_USE");
    assert_eq!(session.run(tree), sum);
    assert_eq!(session.delete().status(), 200);
    assert_eq!(quota(&lab, "grown", 32).status(), 200);
    let session = lab.session(&json!({ "workspace_id": "grown", "user": "root" }));
    assert_eq!(session.run(tree), sum);
    let mut grown = 0;
    if quota(&lab, "grown", 64).status() == 200 {
        grown = 64;
        session.run(
            "dd if=/dev/zero of=/workspace/large bs=1M count=45 2>/dev/null && rm /workspace/large",
        );
    }
    assert_eq!(session.delete().status(), 200);
    if grown == 0 {
        println!("not tried: growing in use, for want of CAP_SYS_RESOURCE");
        assert_eq!(quota(&lab, "grown", 64).status(), 200);
    }
    let session = lab.session(&json!({ "workspace_id": "grown", "user": "root" }));
    assert_eq!(session.run(tree), sum);
    session.run("head -c 30000000 /dev/urandom > /workspace/large");
    assert_eq!(session.delete().status(), 200);
    quota(&lab, "grown", 16).error(507, "NO_SPACE");
    assert_eq!(host::names(&lab.data_dir.join("workspaces")), [".staging", "grown"]);
    let session = lab.session(&json!({ "workspace_id": "grown", "user": "root" }));
    assert_eq!(session.run("wc -c < /workspace/large").trim(), "30000000");
    session.run("rm /workspace/large");
    assert_eq!(session.run(tree), sum);
    assert_eq!(session.delete().status(), 200);
    assert_eq!(quota(&lab, "grown", 16).status(), 200);
    let session = lab.session(&json!({ "workspace_id": "grown", "user": "root" }));
    assert_eq!(session.run(tree), sum);
    assert_eq!(session.delete().status(), 200);
    delete_workspace(&lab, "grown");
}

#[test]
fn a_quota_that_can_not_be_kept_is_refused() {
    for mechanism in ["memory", "none"] {
        let lab = Lab::builder().set("disk_limits", json!([mechanism])).start();
        let error = quota(&lab, "none", 64).error(400, "INVALID_REQUEST");
        assert!(error.to_string().contains("`quota_mb` is not available"), "{error}");
        assert_eq!(lab.client.get("/v1/workspaces/none").status(), 404, "not made either");
    }
    let lab = Lab::start();
    quota(&lab, "small", 15).error(400, "INVALID_REQUEST");
}
