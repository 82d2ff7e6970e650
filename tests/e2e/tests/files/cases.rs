//! Cases from the field about files.

use std::path::Path;
use std::time::{Duration, Instant};

use sandkasten_e2e::session::quote;
use sandkasten_e2e::{Lab, wait};

use crate::{Files, Workspace, base};

/// Every byte, with what tends to be repaired on the way: a PNG's head, CRLF, a byte order mark.
fn binary() -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\r\n\xef\xbb\xbf".to_vec();
    bytes.extend((0..=255).cycle().take(256 * 4000));
    bytes
}

/// What goes in comes out, byte for byte, whoever made it.
#[test]
fn c57_binary_content_is_not_damaged() {
    let lab = Lab::shared();
    let session = base(&lab);
    let files = Files::of(&session);
    let bytes = binary();
    files.put("b.bin", &bytes);
    assert!(files.get("b.bin") == bytes, "b.bin is as it was written");
    let answer = files.upload("up", "b.bin", &bytes).ok(200);
    assert_eq!(answer["paths"][0], "/workspace/up/b.bin", "{answer}");
    assert_eq!(session.run("cmp b.bin up/b.bin && wc -c < b.bin"), format!("{}\n", bytes.len()));
    for path in ["empty", "up/empty"] {
        files.put(path, b"");
        assert_eq!(files.get(path), b"", "{path}");
        assert_eq!(session.run(&format!("wc -c < {}", quote(path))), "0\n");
    }
    let sum = session.run("head -c 999999 /dev/urandom > r.bin; sha256sum < r.bin");
    files.put("back.bin", &files.get("r.bin"));
    assert_eq!(session.run("sha256sum < back.bin"), sum);
    let workspace = Workspace::new(&lab, "c57");
    workspace.files().put("b.bin", &bytes);
    assert!(workspace.files().get("b.bin") == bytes, "b.bin of the workspace");
}

/// What the API makes is the shell's, parents too, by a session and without one.
#[test]
fn c60_files_belong_to_the_shells_user() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "c60");
    workspace.files().put("before/any/session.txt", b"x\n");
    let session = workspace.session();
    let files = Files::of(&session);
    files.put("a/b/c.sh", b"echo c\n");
    files.upload("a", "u.txt", b"u\n").ok(200);
    workspace.files().put("z/y.txt", b"y\n");
    let owners =
        "stat -c %U . a a/b a/b/c.sh a/u.txt z z/y.txt before before/any before/any/session.txt";
    assert_eq!(session.run(&format!("{owners} | sort -u")), session.run("whoami"));
    let change = "echo x >> a/b/c.sh && mv a/b/c.sh a/b/d && touch a/b/new && echo y >> a/u.txt \
        && echo y >> z/y.txt && rm -r a z before; echo rc=$?";
    assert_eq!(session.run(change), "rc=0\n");
    session.run("umask 077; mkdir p; echo s > p/q");
    assert_eq!(files.get("p/q"), b"s\n");
    assert_eq!(workspace.files().get("p/q"), b"s\n");
}

/// A file that is written over keeps its mode, its owner and the link that led to it.
#[test]
fn c62_overwriting_keeps_mode_and_link() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "c62");
    let session = workspace.session();
    session.run(
        "printf '#!/bin/sh\\necho hi\\n' > r.sh; chmod 755 r.sh; ln -s r.sh l.sh; ln r.sh h.sh; \
        echo k > ro; chmod 444 ro",
    );
    for (files, word) in [(Files::of(&session), "ho"), (workspace.files(), "hu")] {
        let script = |word: &str| format!("#!/bin/sh\necho {word}\n").into_bytes();
        files.put("r.sh", &script(word));
        assert_eq!(session.run("./r.sh; stat -c %a r.sh"), format!("{word}\n755\n"));
        files.put("l.sh", &script("linked"));
        assert_eq!(session.run("test -L l.sh && cmp r.sh l.sh && ./r.sh"), "linked\n");
        // The other name of the file that was replaced still has what it had: whole.
        assert_eq!(session.run("./h.sh"), "hi\n");
        files.write("ro", b"x").error(403, "PERMISSION_DENIED");
        assert_eq!(session.run("cat ro; stat -c %a ro"), "k\n444\n");
    }
}

/// Paths of a session mean the box's own tree; those of a workspace lead nowhere else.
#[test]
fn c63_no_path_leads_out() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "c63");
    let session = workspace.session();
    let evil = format!("evil-{}", std::process::id());
    session.run(
        "ln -s /etc/passwd leak; ln -s / up; ln -s /nonexistent/x dangling; mkdir real; ln -s real ok",
    );
    let files = Files::of(&session);
    assert_eq!(files.get("leak"), session.run("cat /etc/passwd").as_bytes());
    assert_eq!(files.get("up/etc/hostname"), session.run("cat /etc/hostname").as_bytes());
    files.put(&format!("up/tmp/{evil}"), b"inside");
    assert_eq!(session.run(&format!("cat /tmp/{evil}")), "inside");
    for path in ["leak", "/etc/passwd"] {
        files.write(path, b"x").error(403, "PERMISSION_DENIED");
    }
    for path in ["dangling", "../x", "a/../../x"] {
        let status = files.write(path, b"x").status();
        assert!([403, 404].contains(&status), "{path}: {status}");
    }
    let outside = workspace.files();
    for path in ["leak", "up/etc/hostname", "dangling", "../x", "/etc/passwd", "a/../../x"] {
        outside.read(path).error(400, "PATH_NOT_ALLOWED");
        outside.write(path, b"x").error(400, "PATH_NOT_ALLOWED");
    }
    outside.write(&format!("up/tmp/{evil}"), b"x").error(400, "PATH_NOT_ALLOWED");
    for (target, name) in [(".", "../../evil"), (".", "/etc/evil")] {
        files.upload(target, name, b"x").error(400, "INVALID_PATH");
        outside.upload(target, name, b"x").error(400, "INVALID_PATH");
    }
    outside.upload("up/tmp", &evil, b"x").error(400, "PATH_NOT_ALLOWED");
    for files in [&files, &outside] {
        files.put("ok/f", b"f");
        assert_eq!(session.run("cat real/f; rm real/f"), "f");
    }
    session.run(&format!(
        "mkdir sw; (while :; do mv sw sx; ln -s /tmp sw; rm sw; mv sx sw; done) > /dev/null 2>&1 & \
        echo {evil} > /dev/null"
    ));
    for round in 0..500 {
        let status = outside.write(&format!("sw/{evil}-{round}"), b"x").status();
        assert!([200, 400, 404, 409].contains(&status), "round {round}: {status}");
    }
    assert_eq!(session.run(&format!("ls /tmp | grep -c {evil}- || true")), "0\n");
    for dir in ["/", "/tmp", "/etc", "/workspace"] {
        let names = sandkasten_e2e::host::names(Path::new(dir));
        let ours = |name: &&String| name.contains(&evil) || ["evil", "x"].contains(&name.as_str());
        assert_eq!(names.iter().find(ours), None, "{dir} of the host");
    }
}

/// What is no regular file is told apart at once, and nothing waits for it.
#[test]
fn c64_what_is_no_file_blocks_nobody() {
    let lab = Lab::shared();
    let workspace = Workspace::new(&lab, "c64");
    let session = workspace.in_image("python");
    session.run(
        "mkfifo p; mkdir dir; ln -s /dev/zero z; echo yes > file; python3 -c 'import socket; \
        socket.socket(socket.AF_UNIX).bind(\"s\")'",
    );
    let limit = Duration::from_secs(1);
    for (files, of_zero) in
        [(Files::of(&session), "NOT_A_FILE"), (workspace.files(), "PATH_NOT_ALLOWED")]
    {
        for (path, code) in
            [("p", "NOT_A_FILE"), ("s", "NOT_A_FILE"), ("dir", "IS_A_DIRECTORY"), ("z", of_zero)]
        {
            for answer in [files.read(path), files.write(path, b"x")] {
                answer.error(400, code);
                assert!(answer.took < limit, "{path}: {answer}");
            }
        }
        files.read("nope").error(404, "FILE_NOT_FOUND");
    }
    // A crowd at the FIFO leaves the others alone.
    let files = Files::of(&session);
    wait::meanwhile(
        || drop(workspace.files().read("p")),
        || {
            for _ in 0..20 {
                let begin = Instant::now();
                assert_eq!(files.get("file"), b"yes\n");
                assert!(begin.elapsed() < limit, "{:?}", begin.elapsed());
            }
        },
    );
    assert_eq!(session.run("stat -c %F p dir s"), "fifo\ndirectory\nsocket\n");
}
