//! Long texts where nothing of the payload's can be trusted or used: its programs, its mounts, its files.

use sandkasten_e2e::image::Rootfs;
use sandkasten_e2e::{Lab, Session, debian};
use serde_json::json;

use crate::{Asks, Place, in_images, long_command};

in_images! {
    python: six_kilobytes_after_a_function, six_kilobytes_after_an_alias, six_kilobytes_without_a_path,
        after_root_removed_all;
    bookworm: six_kilobytes_after_a_function, six_kilobytes_after_an_alias, six_kilobytes_without_a_path,
        after_root_removed_all;
    dash: six_kilobytes_after_a_function, six_kilobytes_after_an_alias, six_kilobytes_without_a_path,
        after_root_removed_all;
    busybox: six_kilobytes_after_a_function, six_kilobytes_after_an_alias, six_kilobytes_without_a_path,
        after_root_removed_all;
}

/// A command of 6 KB that says `yes`, keeps a variable and fails with 5.
fn six_kilobytes() -> String {
    let body: String =
        (0..150).map(|number| format!("v='{number} it is a line of no use at all'\n")).collect();
    assert!((5000..7000).contains(&body.len()));
    format!("{body}echo yes; V=$v; (exit 5)")
}

fn six_kilobytes_after(at: &Place, first: &str) {
    let session = at.session();
    session.does(first);
    for streamed in [false, true] {
        if streamed {
            assert_eq!(session.plays(&json!({ "cmd": six_kilobytes() }), 5).text(), "yes\n");
        } else {
            session.gives(&six_kilobytes(), 5, "yes\n");
        }
        session.gives("echo \"$V\"", 0, "149 it is a line of no use at all\n");
    }
    session.gives(&long_command("echo long; (exit 6)"), 6, "long\n");
    // The same in the shell that comes after this one.
    assert_eq!(session.exec("kill -9 $$ || exit 137").code(), 137);
    session.gives(&six_kilobytes(), 5, "yes\n");
    session.alive();
}

fn six_kilobytes_after_a_function(at: &Place) {
    six_kilobytes_after(at, "cat(){ :; }");
}

fn six_kilobytes_after_an_alias(at: &Place) {
    if at.is_bash() {
        six_kilobytes_after(at, "shopt -s expand_aliases");
    }
    six_kilobytes_after(at, "alias cat='cat -n'");
}

fn six_kilobytes_without_a_path(at: &Place) {
    six_kilobytes_after(at, "PATH=/nowhere");
}

fn after_root_removed_all(at: &Place) {
    let session = at.lab.session(&json!({ "image": at.image, "user": "root" }));
    session.gives("id -u", 0, "0\n");
    session.keep();
    session.exec(
        "rm -rf /tmp/* /run/* /tmp/.[!.]* /run/.[!.]* /var/run/* /dev/shm/* 2>/dev/null; true",
    );
    exec_works(&session);
    // Names of init's that a command needs go too: that one is lost, and says so.
    let answer =
        session.try_exec(&json!({ "cmd": "rm -rf /.sandkasten /.sandkasten/* 2>/dev/null" }));
    assert!(answer.took < crate::AT_ONCE, "{answer}");
    assert!(answer.json()["exit_code"] != 0, "{answer}");
    exec_works(&session);
    session.kept();
    session.exec("rm -rf /workspace/* ~ 2>/dev/null; true");
    session.gives("echo still; (exit 3)", 3, "still\n");
    session.exec("cd /");
    exec_works(&session);
}

/// Commands of all lengths, streams, a timeout and what a new shell takes over.
#[track_caller]
fn exec_works(session: &Session<'_>) {
    session.gives(&six_kilobytes(), 5, "yes\n");
    session.gives_both("echo short; echo too >&2", 0, "short\ntoo\n");
    let done = session.exec_with(&json!({ "cmd": "seq 300000", "max_output_bytes": 4_000_000 }));
    assert!(done.output().ends_with("\n299999\n300000\n"), "{} bytes", done.output().len());
    session.gives(&long_command("S=kept; (exit 6)"), 6, "");
    session.times_out("S=lost; sleep 60");
    session.gives("echo $S", 0, "kept\n");
    let raw = session.exec_with(&json!({ "cmd": "echo on", "raw_output": true }));
    assert_eq!((raw.code(), raw.output()), (0, "on\r\n"), "{}", raw.body);
    session.alive();
}

/// Every place that the payload may write to, memory or disk, has neither bytes nor inodes left.
mod full {
    use super::{Asks, Lab, Rootfs, debian, exec_works, json};

    /// The daemon's sessions lie on a small file system of their own, which only it and they see.
    const SMALL: &str = "mkdir -p data/sessions && \
        mount -t tmpfs -o size=8m,nr_inodes=3000,mode=0700 small data/sessions && exec \"$0\" \"$@\"";

    /// Bytes until there is no room, then files without a byte until there is no inode.
    const FILL: &str = "for d in $WHERE; do dd if=/dev/zero of=$d/big bs=64k; \
        (cd $d && i=0; while : > f$i; do i=$((i+1)); done); done 2>/dev/null; true";

    fn in_a_full_box(image: &str, user: &str) {
        let lab = Lab::builder()
            .image("busybox", Rootfs::busybox())
            .image("dash", Rootfs::dash())
            .archive("bookworm", debian::bookworm())
            .within(&["unshare", "-m", "sh", "-c", SMALL])
            .start();
        let session =
            lab.session(&json!({ "image": image, "user": user, "limits": { "memory_mb": 192 } }));
        session.keep();
        let places = "/tmp /dev/shm /workspace $HOME /var/tmp /run";
        let cmd = format!("WHERE=\"{places}\"; {FILL}");
        let done = session.exec_with(&json!({ "cmd": cmd, "timeout_ms": 120_000 }));
        assert_eq!(done.code(), 0, "{}", done.body);
        session.kept();
        let write = "for d in /tmp /dev/shm /workspace; do \
            (: > $d/new) 2>/dev/null && echo inodes in $d; (echo x > $d/big2) 2>/dev/null && echo bytes in $d; done; true";
        session.gives(write, 0, "");
        exec_works(&session);
        session.kept();
    }

    #[test]
    fn every_mount_is_full_in_bash() {
        in_a_full_box("bookworm", "sandbox");
    }

    #[test]
    fn every_mount_is_full_in_dash() {
        in_a_full_box("dash", "sandbox");
    }

    #[test]
    fn every_mount_is_full_in_busybox() {
        in_a_full_box("busybox", "sandbox");
    }

    #[test]
    fn every_mount_is_full_of_root_in_bash() {
        in_a_full_box("bookworm", "root");
    }

    #[test]
    fn every_mount_is_full_of_root_in_busybox() {
        in_a_full_box("busybox", "root");
    }
}
