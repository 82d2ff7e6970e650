//! Commands for box root: a fresh `sh` that takes over the shell's directory and variables, and leaves
//! the shell as it was.

#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests fail loudly")]

mod boxed;

use boxed::{Answer, Exec, Image, Kind, Sandbox};
use sandkasten_protocol::{
    FromInit, How, OutputMode, RunUser, ShellPreference, Stdin, Stream, ToInit, id,
};

const ALL: [Kind; 3] = [Kind::Bash, Kind::Dash, Kind::Busybox];

fn as_root(sandbox: &mut Sandbox, cmd: &str) -> Answer {
    with(sandbox, cmd, |_| {})
}

fn with(sandbox: &mut Sandbox, cmd: &str, change: impl FnOnce(&mut Exec)) -> Answer {
    sandbox.run_with(cmd, |exec| {
        exec.user = RunUser::Root;
        change(exec);
    })
}

#[test]
fn it_is_root_where_the_shell_is() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        let who = "id -u; id -g; pwd; echo $HOME $USER $LOGNAME; grep CapEff /proc/self/status";
        let all = "0\n0\n/workspace\n/root root root\nCapEff:\t00000000800405fb\n";
        as_root(sandbox, who).is(0, all);
        sandbox.run("mkdir -p 'a b'; chmod 700 'a b'; cd 'a b'").is(0, "");
        let answer = as_root(sandbox, "pwd; cd /; exit 3");
        answer.is(3, "/workspace/a b\n");
        assert_eq!((answer.end.how, answer.cwd().as_str()), (How::Exited, "/workspace/a b"));
        assert!(!answer.end.shell_restarted && !answer.end.state_lost);
        // A directory that has no name any more.
        sandbox.run("rmdir '/workspace/a b'").is(0, "");
        let answer = as_root(sandbox, "ls -A . | wc -l; readlink /proc/self/cwd");
        // A shell may say that it does not know where it is.
        assert!(answer.out.ends_with("0\n/workspace/a b (deleted)\n"), "{}", answer.out);
        sandbox.run("cd /workspace; id -u").is(0, "1000\n");
    }
}

#[test]
fn exported_variables_are_seen_byte_for_byte() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("export A='x\n\"y'\\''z ' B=$(printf '\\377\\001='); C=hidden").is(0, "");
        let show = "printf '%s' \"$A$B\" | od -An -tx1 | tr -d ' \\n'; echo; echo ${C-unset}";
        as_root(sandbox, show).is(0, "780a227927 7a20ff013d\nunset\n".replace(' ', "").as_str());
        let answer = with(sandbox, "echo $A$D; A=new; export E=5", |exec| {
            exec.env = vec![(b"A".to_vec(), b"a".to_vec()), (b"D".to_vec(), b"d".to_vec())];
        });
        answer.is(0, "ad\n");
        sandbox
            .run("printf '%s\\n' \"$A\" | head -n 1; echo ${D-unset} ${E-unset}")
            .is(0, "x\nunset unset\n");
    }
}

#[test]
fn the_shell_stays_as_it_was() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("x=1; f() { echo f; }; set -e; umask 077; sleep 500 & echo $! >p").is(0, "");
        let shell = sandbox.run("echo $$").out;
        as_root(sandbox, "false; x=2; umask 0; kill -9 $$").at_once();
        let answer = sandbox.run("echo $$ $x; f; umask; kill -0 $(cat p); echo $?");
        answer.is(0, &format!("{} 1\nf\n0077\n0\n", shell.trim()));
        // Whatever the shell makes of the words that init says to it.
        sandbox.run("printf() { echo no; }; read() { return 1; }; alias sh=false").is(0, "");
        as_root(sandbox, "echo yes").is(0, "yes\n");
    }
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox
        .run(
            "command() { :; }; export -f command; eval() { :; }; printf() { :; }; \
                 export -f printf eval; PATH=/nowhere; set -uo pipefail",
        )
        .is(0, "");
    as_root(sandbox, "echo $PATH").is(0, "/nowhere\n");
}

#[test]
fn how_it_ends() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        as_root(sandbox, "").is(0, "");
        assert_eq!(as_root(sandbox, "no-such-command").code(), 127);
        let killed = as_root(sandbox, "kill -9 $$");
        assert_eq!((killed.end.how, killed.code()), (How::Signaled(9), 137));
        let bad = with(sandbox, "echo no", |exec| exec.cwd = Some(b"nowhere".to_vec()));
        assert_eq!((bad.end.how, bad.out.as_str()), (How::BadCwd, ""));
        sandbox.run("mkdir d").is(0, "");
        with(sandbox, "pwd", |exec| exec.cwd = Some(b"d".to_vec())).is(0, "/workspace/d\n");
        sandbox.run("pwd").is(0, "/workspace\n");
    }
}

#[test]
fn output_goes_where_it_is_to_go() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        let cmd = "echo a; echo b >&2; echo c; echo d >/dev/stderr";
        as_root(sandbox, cmd).is(0, "a\nb\nc\nd\n");
        let split = with(sandbox, cmd, |exec| exec.output = OutputMode::Split);
        assert_eq!(
            (split.of(Stream::Stdout), split.of(Stream::Stderr)),
            ("a\nc\n".into(), "b\nd\n".into())
        );
        let pty = with(sandbox, "test -t 1 && test -t 2 && echo tty; test -t 0; echo $?", |exec| {
            exec.output = OutputMode::Pty;
        });
        assert_eq!(pty.of(Stream::Pty), "tty\r\n1\r\n");
        let seq = as_root(sandbox, "seq 100000");
        assert_eq!((seq.code(), seq.out.len()), (0, 588_895));
    }
}

#[test]
fn long_commands() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        for length in [90_000, 110_000, 1_000_000] {
            let cmd = format!("echo start; : '{}'; echo end; exit 9", "x".repeat(length));
            as_root(sandbox, &cmd).is(9, "start\nend\n");
        }
    }
}

#[test]
fn stdin() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        as_root(sandbox, "cat").is(0, "");
        let data: Vec<u8> = (0..300_000_u32).flat_map(|n| n.to_le_bytes()).collect();
        let run = sandbox.begin("cat >in; stat -c %s in; id -u", |exec| {
            exec.user = RunUser::Root;
            exec.stdin = Stdin::Piped;
        });
        for part in data.chunks(60_000) {
            sandbox.link.send(&ToInit::Stdin { run, data: part.to_vec(), is_last: false });
        }
        sandbox.link.send(&ToInit::Stdin { run, data: Vec::new(), is_last: true });
        let (mut taken, mut out) = (0, Vec::new());
        let end = loop {
            match sandbox.next() {
                FromInit::Taken { bytes, .. } => taken += bytes,
                FromInit::Output { records, .. } => out.extend(boxed::joined(&records)),
                FromInit::End { end, .. } => break end,
                other => panic!("{other:?}"),
            }
        };
        sandbox.link.send(&ToInit::Settle { run, note: Vec::new() });
        assert_eq!((end.exit_code, taken), (0, data.len() as u64));
        assert_eq!(String::from_utf8(out).unwrap(), format!("{}\n0\n", data.len()));
        assert!(std::fs::read(sandbox.path("in")).unwrap() == data);
    }
}

fn count(sandbox: &mut Sandbox, word: &str) -> String {
    let (first, rest) = word.split_at(1);
    let cmd = format!(
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null \
         | grep -c '[{first}]{rest}'"
    );
    sandbox.run(&cmd).out
}

#[test]
fn a_timeout_takes_its_tree_and_leaves_the_shell() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("x=kept; sleep 7821 & :").is(0, "");
        let shell = sandbox.run("echo $$").out;
        for cmd in ["sleep 7822", "setsid sleep 7822 & sleep 7822", "(sleep 7822 &); sleep 7822"] {
            let answer =
                with(sandbox, &format!("echo so far; {cmd}"), |exec| exec.timeout_ms = 300);
            assert_eq!((answer.end.how, answer.code()), (How::Timeout, 124));
            assert_eq!((answer.out.as_str(), answer.end.shell_restarted), ("so far\n", false));
            assert_eq!(count(sandbox, "sleep 7822"), "0\n");
        }
        let run = sandbox.begin("echo up; sleep 7823", |exec| exec.user = RunUser::Root);
        assert!(matches!(sandbox.next(), FromInit::Output { .. }));
        sandbox.link.send(&ToInit::Cancel { run });
        let answer = sandbox.finish(run);
        assert_eq!((answer.end.how, answer.code()), (How::Cancelled, 130));
        assert_eq!(count(sandbox, "sleep 7823"), "0\n");
        assert_eq!(count(sandbox, "sleep 7821"), "1\n");
        sandbox.run("echo $$ $x").is(0, &format!("{} kept\n", shell.trim()));
    }
}

#[test]
fn a_child_goes_on_and_writes_late() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let answer = as_root(sandbox, "sleep 7824 & echo started");
    answer.is(0, "started\n");
    // A later command's timeout is nothing to it.
    assert_eq!(sandbox.run_for("sleep 60", 200).end.how, How::Timeout);
    let answer = with(sandbox, "sleep 60", |exec| exec.timeout_ms = 200);
    assert_eq!(answer.end.how, How::Timeout);
    assert_eq!(count(sandbox, "sleep 7824"), "1\n");
}

#[test]
fn it_outlives_its_shell() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("x=1; echo $$ >shell").is(0, "");
    let answer = as_root(sandbox, "kill -9 $(cat shell); sleep 0.3; echo still; exit 4");
    assert_eq!((answer.code(), answer.out.as_str()), (4, "still\n"));
    assert_eq!(answer.end.how, How::Exited);
    assert!(answer.end.shell_restarted);
    sandbox.run("echo $x").is(0, "1\n");
}

#[test]
fn without_a_shell_there_is_none() {
    let sandbox = &mut Sandbox::with(Image::Bare, ShellPreference::Bash, id::SANDBOX);
    assert_eq!(as_root(sandbox, "id").end.how, How::NoShell);
    // Without an `sh` neither.
    let sandbox = &mut Sandbox::new(Kind::Busybox);
    as_root(sandbox, "mv /bin/sh /bin/hidden").is(0, "");
    as_root(sandbox, "echo no").is(127, "");
    sandbox.run("echo yes").is(0, "yes\n");
}
