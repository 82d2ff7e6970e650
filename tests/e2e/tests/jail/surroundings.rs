//! I-29, I-31, R-03: daemons in surroundings that a test makes for them.

use std::process::Command;
use std::time::Duration;

use sandkasten_e2e::{Lab, host, requires, wait};
use serde_json::json;

/// Runs a program in the daemon's mount namespace.
#[track_caller]
fn in_its_mounts(lab: &Lab, words: &[&str]) {
    let pid = lab.pid().to_string();
    let output = Command::new("nsenter").args(["-t", &pid, "-m", "--"]).args(words).output();
    let output = output.expect("run nsenter");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Starts the daemon in a mount namespace of its own, whose `/` is shared.
const SHARED_ROOT: [&str; 6] =
    ["unshare", "-m", "sh", "-c", "mount --make-rshared / && exec \"$0\" \"$@\"", "env"];

#[test]
fn i_29_mounts_do_not_travel() {
    let lab = Lab::builder().within(&SHARED_ROOT).start();
    let table = || host::proc_file(lab.pid(), "mountinfo");
    let before = table();
    // Where `/` comes from differs: it may be a directory of another mount.
    let mut roots = before.lines().filter(|line| line.split(' ').nth(4) == Some("/"));
    assert!(roots.any(|line| line.contains("shared:")), "{before}");
    let session = lab.session(&json!({ "user": "root" }));
    session.run("mount -t tmpfs none /mnt 2>/dev/null; true");
    assert_eq!(table(), before, "a mount of the session shows on the host");
    let inside = session.run("cat /proc/self/mountinfo");
    in_its_mounts(&lab, &["mount", "-t", "tmpfs", "late", "/mnt"]);
    assert!(table().contains(" late "), "the host has its mount");
    assert_eq!(session.run("cat /proc/self/mountinfo"), inside);
    let later = lab.session(&json!({}));
    assert!(!later.run("cat /proc/self/mountinfo").contains(" late "));
}

/// What a payload would plant where a careless daemon looks for programs.
const PLANTED: [&str; 8] = [
    "/usr/local/bin/init",
    "/usr/local/bin/mount",
    "/usr/local/bin/tar",
    "/usr/local/bin/ip",
    "/usr/local/bin/sandkasten-init",
    "/init",
    "/sbin/init",
    "/bin/nft",
];

#[test]
fn i_31_nothing_of_the_box_is_run_by_the_daemon() {
    requires!(program("strace"));
    let log = tempfile::NamedTempFile::new().expect("a file");
    let path = log.path().to_string_lossy().into_owned();
    let calls = "trace=execve,execveat,fork,vfork,clone,clone3";
    let wrapper = ["strace", "-D", "-f", "-qq", "-o", &path, "-e", calls];
    let mut lab = Lab::builder().within(&wrapper).start();
    {
        let session = lab.session(&json!({ "user": "root" }));
        session.run("mkdir -p /sbin");
        for path in PLANTED {
            session.write(path, b"#!/bin/sh\necho $0 >> /workspace/planted\n", "0755");
        }
        // The planted shell goes on as one: what it ruins is its own session's business.
        let shell = b"#!/bin/busybox sh\nexec /bin/busybox sh \"$@\"\n";
        session.write("/usr/local/bin/sh", shell, "0755");
        assert_eq!(session.exec("exit 4").code(), 4);
        session.write("x", b"x", "0644");
        assert_eq!(session.read("x"), b"x");
        assert_eq!(session.exec("cat /workspace/planted").code(), 1, "a planted program ran");
        assert_eq!(session.delete().status(), 200);
    }
    lab.stop();
    let text = std::fs::read_to_string(log.path()).expect("strace's log");
    let bad = foreign_programs(&text);
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(text.contains("execveat("), "init was seen to be started");
}

/// Programs that the daemon's own processes started and that are neither ours nor a memfd. A
/// process that has become an init is a session's, and so is all that it starts.
fn foreign_programs(text: &str) -> Vec<String> {
    let mut ours = std::collections::BTreeSet::new();
    let mut bad = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some((pid, call)) = line.split_once(' ') else { continue };
        let (pid, call) = (pid.to_owned(), call.trim());
        if number == 0 {
            ours.insert(pid.clone());
        }
        if !ours.contains(&pid) {
            continue;
        }
        let result = call.rsplit(" = ").next().unwrap_or_default();
        if call.starts_with("exec") {
            // The empty name with AT_EMPTY_PATH is the memfd.
            let memfd = call.starts_with("execveat(") && call.contains(", \"\", ");
            if memfd {
                ours.remove(&pid);
            } else if !call.contains("sandkasten")
                && !call.contains("/proc/self/exe")
                && result == "0"
            {
                bad.push(line.to_owned());
            }
        } else if let Ok(child) = result.parse::<u32>() {
            ours.insert(child.to_string());
        }
    }
    bad
}

/// Where a controller's hierarchy is mounted.
fn hierarchy(controller: &str) -> String {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let mut unified = None;
    for line in table.lines() {
        let (left, right) = line.split_once(" - ").expect("a mountinfo line");
        let point = left.split(' ').nth(4).expect("a mount point").to_owned();
        let mut fields = right.split(' ');
        match fields.next() {
            Some("cgroup")
                if fields
                    .nth(1)
                    .is_some_and(|options| options.split(',').any(|o| o == controller)) =>
            {
                return point;
            }
            Some("cgroup2") => unified = Some(point),
            _ => {}
        }
    }
    unified.expect("a cgroup hierarchy")
}

/// The daemon may just have a file there open for writing; then the mount is busy.
#[track_caller]
fn remount(lab: &Lab, how: &str, point: &str) {
    let (pid, options) = (lab.pid().to_string(), format!("remount,bind,{how}"));
    wait::until("remount", Duration::from_secs(5), || {
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-m", "--", "mount", "-o", &options, point]);
        command.output().expect("run nsenter").status.success()
    });
}

/// Where a limit can't be written, nothing runs without it.
#[track_caller]
fn fails_closed(controller: &str) {
    let lab = Lab::builder().within(&["unshare", "-m", "env"]).start();
    let point = hierarchy(controller);
    remount(&lab, "ro", &point);
    let answer = lab.try_session(&json!({}));
    assert!(matches!(answer.status(), 500 | 503), "{answer}");
    let body = answer.json();
    answer.error(answer.status(), body["error_code"].as_str().unwrap_or_default());
    let list = lab.client.get("/v1/sessions").ok(200);
    assert_eq!(list, json!([]));
    assert_eq!(host::names(&lab.data_dir.join("sessions")), Vec::<String>::new());
    remount(&lab, "rw", &point);
    lab.session(&json!({})).alive();
}

mod r_03_limits_fail_closed {
    use super::fails_closed;

    #[test]
    fn memory() {
        fails_closed("memory");
    }

    #[test]
    fn pids() {
        fails_closed("pids");
    }

    #[test]
    fn cpu() {
        fails_closed("cpu");
    }
}
