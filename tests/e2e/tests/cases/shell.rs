//! C01 to C24: the persistent shell.

use sandkasten_e2e::wait;
use serde_json::json;

use crate::{Asks, Place, in_images, long_command};

in_images! {
    python: c01_heredocs, c01_heredoc_of_python, c03_unbalanced_quotes, c05_exit, c06_errexit,
        c10_stdin_readers, c10_stdin_readers_of_python, c11_pagers, c11_git,
        c13_background_child_holds_the_pipe, c13_background_server_of_python,
        c18_killed_child_says_nothing_later, c19_current_directory_deleted,
        c19_current_directory_moved, c20_state_persists, c20_options_and_aliases_persist,
        c22_ends_of_commands, c24_pkill, c24_text_stands_in_no_argv;
    busybox: c01_heredocs, c03_unbalanced_quotes, c05_exit, c06_errexit, c10_stdin_readers, c11_pagers,
        c13_background_child_holds_the_pipe, c18_killed_child_says_nothing_later,
        c19_current_directory_deleted, c19_current_directory_moved, c20_state_persists,
        c22_ends_of_commands, c24_text_stands_in_no_argv;
    dash: c01_heredocs, c03_unbalanced_quotes, c05_exit, c06_errexit, c10_stdin_readers,
        c20_state_persists, c22_ends_of_commands;
    bookworm: c03_unbalanced_quotes, c03_thirty_plain_commands_follow, c06_errexit,
        c20_state_persists, c20_options_and_aliases_persist;
}

fn c01_heredocs(at: &Place) {
    let session = at.session();
    session.gives("cat > h.txt <<'EOF'\none\n  two $HOME\nEOF\nwc -l < h.txt", 0, "2\n");
    session.gives_both("cat <<-A <<'B'\n\tx\nA\ny\nB", 0, "y\n");
    assert_eq!(session.read("h.txt"), b"one\n  two $HOME\n");
    session.alive();
}

fn c01_heredoc_of_python(at: &Place) {
    let session = at.session();
    session.gives_both("python3 - <<PY\nprint(1)\nPY", 0, "1\n");
    session.alive();
}

const UNBALANCED: [&str; 5] =
    ["echo 'unclosed", "echo \"a `b", "if true; then", "echo $(", "f() {"];

fn c03_unbalanced_quotes(at: &Place) {
    let session = at.session();
    session.keep();
    for cmd in UNBALANCED {
        for streamed in [false, true] {
            let (code, output) = if streamed {
                let played = session.play(cmd);
                assert!(played.end().at < crate::AT_ONCE, "{cmd}: {:?}", played.end());
                (played.done()["exit_code"].clone(), played.text())
            } else {
                let done = session.exec(cmd);
                assert!(done.took < crate::AT_ONCE, "{cmd}: took {:?}", done.took);
                (done.body["exit_code"].clone(), done.output().to_owned())
            };
            assert_eq!(code, 2, "{cmd}: {output}");
            let said = output.to_lowercase();
            let named =
                ["syntax error", "unexpected eof", "unexpected end of file", "unterminated"];
            assert!(named.iter().any(|name| said.contains(name)), "{cmd}: {output}");
            assert!(!output.lines().any(|line| line.starts_with("> ")), "{cmd}: {output}");
            session.kept();
            session.alive();
        }
    }
}

/// An older bash breaks its heap on such a text: nothing of that may show later.
fn c03_thirty_plain_commands_follow(at: &Place) {
    let session = at.session();
    session.gives("echo $BASH_VERSION | cut -d'(' -f1", 0, "5.2.15\n");
    session.keep();
    for cmd in UNBALANCED {
        assert_eq!(session.exec(cmd).code(), 2, "{cmd}");
        for number in 0..30 {
            session.gives(&format!("x=$(echo {number}); echo \"$x\""), 0, &format!("{number}\n"));
        }
        session.kept();
    }
}

fn c05_exit(at: &Place) {
    let session = at.session();
    session.keep();
    for (cmd, code, output, ends_the_shell) in [
        ("echo x; exit 3", 3, "x\n", true),
        ("(exit 42)", 42, "", false),
        ("exit 300", 44, "", true),
        ("false || exit", 1, "", true),
    ] {
        let done = session.gives(cmd, code, output);
        assert_eq!(done.body["shell_restarted"], ends_the_shell, "{cmd}: {}", done.body);
        assert_eq!(done.reason() == "shell_exited", ends_the_shell, "{cmd}: {}", done.body);
        session.kept();
        let played = session.plays(&json!({ "cmd": cmd }), code);
        assert_eq!(played.text(), output, "{cmd}");
        assert_eq!(played.done()["shell_restarted"], ends_the_shell, "{cmd}");
        session.kept();
        session.alive();
    }
}

fn c06_errexit(at: &Place) {
    let session = at.session();
    // The dash of Debian 13 has no `pipefail`.
    let options = if at.image == "dash" { "set -eu" } else { "set -euo pipefail" };
    session.gives(&format!("{options}; echo on"), 0, "on\n");
    let missing = if at.image == "python" || at.image == "bookworm" { 2 } else { 1 };
    for (cmd, code) in [
        ("false; echo no", 1),
        ("echo a | grep z", 1),
        ("ls /nonexistent", missing),
        ("echo $none", 0),
    ] {
        let done = session.exec(cmd);
        // The status that an unset variable leaves is the shell's own.
        if code == 0 {
            assert_ne!(done.code(), 0, "{cmd}: {}", done.body);
        } else {
            assert_eq!(done.code(), code, "{cmd}: {}", done.body);
        }
        assert!(done.took < crate::AT_ONCE, "{cmd}: took {:?}", done.took);
        assert!(!done.output().contains("no\n"), "{cmd}: {}", done.body);
        assert_eq!(done.reason(), "shell_exited", "{cmd}: {}", done.body);
        assert_eq!(done.body["shell_restarted"], true, "{cmd}: {}", done.body);
        session.alive();
        session.gives("case $- in *e*) echo e;; esac; case $- in *u*) echo u;; esac", 0, "e\nu\n");
    }
}

fn c10_stdin_readers(at: &Place) {
    let session = at.session();
    session.gives_both("cat", 0, "");
    session.gives_both("cat\necho two", 0, "two\n");
    session.gives_both("read x; echo rc=$? x=[$x]", 0, "rc=1 x=[]\n");
    session.gives_both("head -c1 | wc -c", 0, "0\n");
    session.alive();
}

fn c10_stdin_readers_of_python(at: &Place) {
    let session = at.session();
    let done = session.exec("python3 -c 'input()'");
    assert_eq!(done.code(), 1, "{}", done.body);
    assert!(done.output().contains("EOFError"), "{}", done.body);
    let done = session.exec("ssh-keygen");
    assert!(done.took < crate::AT_ONCE, "ssh-keygen took {:?}", done.took);
    session.alive();
}

fn c11_pagers(at: &Place) {
    let session = at.session();
    for raw in [false, true] {
        let cmd = "man ls; systemctl --version; seq 500 | ${PAGER:-cat} | tail -1; seq 500 | ${PAGER:-cat}";
        let done = session.exec_with(&json!({ "cmd": cmd, "raw_output": raw }));
        let output = done.output().replace('\r', "");
        assert_eq!(done.code(), 0, "{}", done.body);
        assert!(
            output.ends_with("\n499\n500\n") && output.matches("\n500\n").count() == 2,
            "{output}"
        );
        no_pager_waits(&output);
        let left = "cat /proc/[0-9]*/comm 2>/dev/null | grep -cxE 'less|more|most|pager'";
        session.gives(left, 1, "0\n");
        session.alive();
    }
}

fn c11_git(at: &Place) {
    let session = at.session();
    session.does("command -v git >/dev/null");
    for raw in [false, true] {
        let cmd = "rm -rf r; git init -q r && cd r && for i in $(seq 60); do git -c user.name=a \
            -c user.email=a@b.c commit -q --allow-empty -m c$i; done; git log; git diff HEAD~1; \
            git branch -a; cd ..";
        let done = session.exec_with(&json!({ "cmd": cmd, "raw_output": raw }));
        assert_eq!(done.code(), 0, "{}", done.body);
        assert!(done.took.as_secs() < 15, "took {:?}", done.took);
        let commits = done.output().lines().filter(|line| line.contains("commit ")).count();
        assert_eq!(commits, 60, "{}", done.output());
        let last = done.output().lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with("* "), "the branch comes last: {last}");
        no_pager_waits(done.output());
        session.alive();
    }
}

#[track_caller]
fn no_pager_waits(output: &str) {
    for mark in ["(END)", "--More--"] {
        assert!(!output.contains(mark), "{mark} in {output}");
    }
    assert!(!output.lines().any(|line| line.starts_with(':')), "{output}");
}

fn c13_background_child_holds_the_pipe(at: &Place) {
    let session = at.session();
    let limit = std::time::Duration::from_millis(1500);
    for (cmd, code, output) in [
        ("sleep 60 &", 0, ""),
        ("(sleep 60 & sleep 60) & echo go", 0, "go\n"),
        ("sh -c 'sleep 60 & exit 4'", 4, ""),
        ("sleep 60 & echo s", 0, "s\n"),
    ] {
        assert!(session.gives(cmd, code, output).took < limit, "{cmd}");
        let played = session.plays(&json!({ "cmd": cmd }), code);
        assert_eq!(played.text(), output, "{cmd}");
        assert!(played.end().at < limit, "{cmd}: {:?}", played.end());
    }
    session.alive();
}

fn c13_background_server_of_python(at: &Place) {
    let session = at.session();
    session.does("python3 -m http.server 8123 &");
    let fetch = "sleep 1; python3 -c \"import urllib.request as u;\
        print(u.urlopen('http://127.0.0.1:8123').status)\"";
    assert_eq!(session.run(fetch), "200\n");
    session.alive();
}

fn c18_killed_child_says_nothing_later(at: &Place) {
    let session = at.session();
    let done = session.exec("sh -c 'kill -9 $$'");
    let ended = (done.code(), done.reason(), &done.body["shell_restarted"]);
    assert_eq!(ended, (137, "exited", &json!(false)), "{}", done.body);
    session.gives_both("echo three", 0, "three\n");
    // A job is killed while no command runs.
    session.does("mkfifo gone; { sleep 99 & p=$!; (kill -9 $p; : > gone) & } 2>/dev/null");
    session.gives("cat gone; echo four", 0, "four\n");
    session.gives_both("echo five", 0, "five\n");
    session.does("sleep 0.05 &");
    session.gives("sleep 0.1; echo six", 0, "six\n");
    session.gives_both("echo seven", 0, "seven\n");
}

fn c19_current_directory_deleted(at: &Place) {
    current_directory_goes(at, "rm -rf ../d", "/workspace/d");
}

fn c19_current_directory_moved(at: &Place) {
    current_directory_goes(at, "mv ../d ../e", "/workspace/e");
}

#[track_caller]
fn current_directory_goes(at: &Place, change: &str, cwd: &str) {
    let session = at.session();
    let done = session.gives(&format!("mkdir d && cd d && {change}"), 0, "");
    assert_eq!(done.body["cwd"], cwd, "{}", done.body);
    let done = session.exec("echo ok");
    assert!(done.code() == 0 && done.output().ends_with("ok\n"), "{}", done.body);
    assert_eq!(done.body["cwd"], cwd, "{}", done.body);
    session.write("f", b"x", "0644");
    assert_eq!(session.read("/workspace/f"), b"x");
    assert_eq!(session.exec("ls; true").code(), 0);
    let done = session.gives("cd /workspace && pwd", 0, "/workspace\n");
    assert_eq!(done.body["cwd"], "/workspace");
    session.gives("cat f", 0, "x");
    session.alive();
}

fn c20_state_persists(at: &Place) {
    let session = at.session();
    let step = |cmd: &str, code: i64, output: &str, cwd: &str| {
        let done = session.gives(cmd, code, output);
        assert_eq!(done.body["cwd"], cwd, "{cmd}");
    };
    step("cd /tmp; export V=1; u=2; f(){ echo F$1; }; umask 027", 0, "", "/tmp");
    step("pwd; echo $V $u; f 2; umask", 0, "/tmp\n1 2\nF2\n0027\n", "/tmp");
    step(&long_command("export BIG=1; cd /"), 0, "", "/");
    step("echo $BIG; pwd", 0, "1\n/\n", "/");
    step("env | grep -c '^BIG=1$'; f 3", 0, "1\nF3\n", "/");
}

fn c20_options_and_aliases_persist(at: &Place) {
    let session = at.session();
    session.does("set -o pipefail; shopt -s expand_aliases; alias hi='echo H'");
    session.gives("false | true", 1, "");
    session.gives("hi", 0, "H\n");
    session.does(&long_command(":"));
    session.gives("hi; false | true", 1, "H\n");
}

fn c22_ends_of_commands(at: &Place) {
    let session = at.session();
    for (cmd, code, outputs) in [
        ("echo a # c", 0, &["a\n"][..]),
        ("echo b \\", 0, &["b\n", "b \n", "b \\\n"]),
        ("echo c;", 0, &["c\n"]),
        ("echo d &", 0, &["d\n"]),
        ("echo e |", 2, &[]),
        ("# only a comment", 0, &[""]),
        ("", 0, &[""]),
        ("echo f }", 0, &["f }\n"]),
        ("echo g; }", 2, &[]),
    ] {
        let done = session.exec(cmd);
        assert!(done.took < crate::AT_ONCE, "{cmd}: took {:?}", done.took);
        let played = session.plays(&json!({ "cmd": cmd }), code);
        assert_eq!(done.code(), code, "{cmd}: {}", done.body);
        for output in [done.output().to_owned(), played.text()] {
            if outputs.is_empty() {
                let said = output.to_lowercase();
                let is_named = said.contains("syntax error") || said.contains("unexpected");
                assert!(is_named, "{cmd}: {output}");
            } else {
                assert!(outputs.contains(&output.as_str()), "{cmd}: {output:?}");
            }
        }
        session.alive();
    }
}

fn c24_pkill(at: &Place) {
    let session = at.session();
    session.keep();
    let cmd = "sleep 300 & echo marker_zz9; pkill -f marker_zz9; echo after; kill %1";
    session.gives(cmd, 0, "marker_zz9\nafter\n");
    session.gives("pkill -f python3; pkill bash_nonexist; echo still", 0, "still\n");
    session.kept();
}

fn c24_text_stands_in_no_argv(at: &Place) {
    let session = at.session();
    let cmd = ": marker_zz8; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'marker_zz[8]'";
    session.gives_both(cmd, 1, "0\n");
}

/// Prescribed pauses.
mod waits {
    use std::time::Duration;

    use super::{Asks, Place, in_images, json, wait};

    in_images! {
        python: c15_late_output, c18_job_control_messages;
        busybox: c15_late_output, c18_job_control_messages;
    }

    fn c15_late_output(at: &Place) {
        let session = at.session();
        let ticks =
            "( for i in 1 2 3 4 5; do sleep 1; echo tick $i; echo e >&2; done; echo done > FIN ) &";
        let flood = "( sleep 1; head -c 1048576 /dev/zero | tr '\\0' x; \
            head -c 1048576 /dev/zero | tr '\\0' y >&2; echo done > FIN ) &";
        for (number, job) in [ticks, flood].into_iter().enumerate() {
            session.does(&job.replace("FIN", &format!("fin{number}")));
            let played =
                session.plays(&json!({ "cmd": job.replace("FIN", &format!("sfin{number}")) }), 0);
            assert_eq!(played.text(), "");
        }
        wait::prescribed(Duration::from_secs(7));
        session.gives("cat fin0 fin1 sfin0 sfin1", 0, "done\ndone\ndone\ndone\n");
        session.alive();
    }

    fn c18_job_control_messages(at: &Place) {
        let session = at.session();
        session.times_out("sleep 100");
        session.gives_both("echo hi", 0, "hi\n");
        session.does("sleep 0.3 &");
        session.gives("sleep 1; echo two", 0, "two\n");
        session.gives_both("echo three", 0, "three\n");
    }
}
