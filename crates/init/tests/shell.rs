//! The persistent shell against the real init: cases from the field, in bash, dash and busybox.

mod boxed;

use boxed::{Kind, Sandbox};
use sandkasten_protocol::{How, OutputMode, Stream, Wait};

const ALL: [Kind; 3] = [Kind::Bash, Kind::Dash, Kind::Busybox];

fn in_each_shell(test: impl Fn(&mut Sandbox, Kind)) {
    for kind in ALL {
        test(&mut Sandbox::new(kind), kind);
    }
}

#[test]
fn hello_exec_end() {
    in_each_shell(|sandbox, _| {
        sandbox.run("echo hi; echo err >&2").is(0, "hi\nerr\n");
        sandbox.run("(exit 7)").is(7, "");
        let answer = sandbox.run("cd /tmp; pwd");
        answer.is(0, "/tmp\n");
        assert_eq!(answer.cwd(), "/tmp");
        assert_eq!(answer.end.output_bytes, 5);
    });
}

#[test]
fn starts_in_the_working_directory_with_a_clean_environment() {
    in_each_shell(|sandbox, _| {
        sandbox
            .run("pwd; echo $? [$OLDPWD] $PWD; umask")
            .is(0, "/workspace\n0 [] /workspace\n0022\n");
        sandbox.run("ls -a /.sandkasten; true");
        sandbox.run("env | grep -c sandkasten").is(1, "0\n");
        sandbox.run("id -u; id -g; id -G").is(0, "1000\n1000\n1000\n");
        let caps =
            sandbox.run("grep -E 'Groups|Cap|NoNewPrivs|Seccomp:|SigBlk|SigIgn' /proc/self/status");
        for line in [
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "NoNewPrivs:\t1",
            "CapInh:\t0000000000000000",
            "CapAmb:\t0000000000000000",
            "Seccomp:\t2",
            "SigBlk:\t0000000000000000",
            "SigIgn:\t0000000000000000",
        ] {
            assert!(caps.out.contains(line), "{line} not in {}", caps.out);
        }
        sandbox.run("ls /proc/self/fd | tr '\\n' ' '").is(0, "0 1 2 3 ");
        sandbox.run("ls -l /proc/$$/fd | grep -c socket").is(1, "0\n");
    });
}

/// The shell leads no group, so that `setsid` has no need to fork.
#[test]
fn programs_are_no_leaders() {
    in_each_shell(|sandbox, _| {
        sandbox.run("setsid sh -c 'echo in; exit 3'").is(3, "in\n");
    });
}

#[test]
fn c01_heredocs() {
    in_each_shell(|sandbox, _| {
        sandbox.run("cat > h.txt <<'EOF'\none\n  two $HOME\nEOF\nwc -l < h.txt").is(0, "2\n");
        sandbox.run("cat h.txt").is(0, "one\n  two $HOME\n");
        sandbox.run("cat <<-A <<'B'\n\tx\nA\ny\nB").is(0, "y\n");
        sandbox.run("cat - <<PY\nprint(1)\nPY").is(0, "print(1)\n");
        sandbox.is_alive();
    });
}

#[test]
fn c03_unbalanced_text_is_a_syntax_error() {
    in_each_shell(|sandbox, kind| {
        sandbox.run("mkdir -p k; cd k; export K=1");
        for cmd in ["echo 'unclosed", "echo \"a `b\")", "if true; then", "echo $(", "f() {"] {
            let answer = sandbox.run(cmd);
            assert_ne!(answer.code(), 0, "{kind:?} {cmd:?}");
            assert!(!answer.out.is_empty() && !answer.out.contains("> "), "{cmd:?} {}", answer.out);
            answer.at_once();
            // An old bash is replaced after an open substitution.
            if answer.end.shell_restarted {
                assert_eq!((kind, cmd), (Kind::Bash, "echo $("));
            }
            sandbox.run("pwd; echo $K").is(0, "/workspace/k\n1\n");
            sandbox.is_alive();
        }
        for n in 0..30 {
            sandbox.run(&format!("x=$(echo {n}); echo $x")).is(0, &format!("{n}\n"));
        }
    });
}

#[test]
fn c05_exit_ends_only_the_shell() {
    in_each_shell(|sandbox, _| {
        sandbox.run("mkdir -p k; cd k");
        for (cmd, code, out, how) in [
            ("echo x; exit 3", 3, "x\n", How::ShellExited),
            ("(exit 42)", 42, "", How::Exited),
            ("exit 300", 44, "", How::ShellExited),
            ("false || exit", 1, "", How::ShellExited),
            ("exec sh -c 'echo in; exit 9'", 9, "in\n", How::ShellExited),
            ("kill -9 $$", 137, "", How::Signaled(9)),
            ("kill -TERM $$", 143, "", How::Signaled(15)),
        ] {
            let answer = sandbox.run(cmd);
            answer.is(code, out);
            assert_eq!(answer.end.how, how, "{cmd}");
            assert_eq!(answer.end.shell_restarted, how != How::Exited);
            assert_eq!(answer.cwd(), "/workspace/k", "that of the new shell");
            sandbox.run("pwd").is(0, "/workspace/k\n");
            sandbox.is_alive();
        }
    });
}

#[test]
fn c06_errexit() {
    let mut sandbox = Sandbox::new(Kind::Bash);
    sandbox.run("set -euo pipefail; echo on").is(0, "on\n");
    sandbox.run("false; echo no").is(1, "");
    sandbox.run("echo a | grep z").is(1, "");
    assert_eq!(sandbox.run("ls /nonexistent").code(), 2);
    sandbox.is_alive();
    in_each_shell(|sandbox, _| {
        sandbox.run("set -eu");
        sandbox.run_with("echo $A", |exec| exec.env = vec![("A".into(), "b".into())]).is(0, "b\n");
        sandbox.run("echo $nope; echo no");
        sandbox.is_alive();
    });
}

#[test]
fn c10_stdin_is_empty() {
    in_each_shell(|sandbox, _| {
        sandbox.run("cat").is(0, "");
        sandbox.run("cat\necho two").is(0, "two\n");
        sandbox.run("read x; echo rc=$? x=[$x]").is(0, "rc=1 x=[]\n");
        sandbox.run("head -c1 | wc -c").is(0, "0\n");
        sandbox.is_alive();
    });
}

#[test]
fn c13_background_child_holds_the_pipe() {
    in_each_shell(|sandbox, _| {
        sandbox.run("sleep 60 &").is(0, "");
        sandbox.run("(sleep 60 & sleep 60) & echo go").is(0, "go\n");
        sandbox.run("sh -c 'sleep 60 & exit 4'").is(4, "");
        sandbox.run("yes & echo hi; kill $!").at_once();
        sandbox.is_alive();
    });
}

#[test]
fn c15_late_output_neither_blocks_nor_kills() {
    in_each_shell(|sandbox, kind| {
        // The job goes on when the exec is over; the FIFO tells when it has come through.
        sandbox.run("mkfifo f g");
        let job = "( read go < f; head -c 1048576 /dev/zero; echo e >&2; echo done > g ) &";
        sandbox.run(job).is(0, "");
        sandbox.run("echo go > f; cat g").is(0, "done\n");
        let pty = sandbox.run_with(job, |exec| exec.output = OutputMode::Pty);
        assert_eq!(pty.code(), 0, "{kind:?}");
        sandbox.run("echo go > f; cat g").is(0, "done\n");
    });
}

#[test]
fn c18_no_message_of_an_ended_job_in_a_later_command() {
    in_each_shell(|sandbox, _| {
        assert_eq!(sandbox.run_for("sleep 100", 100).end.how, How::Timeout);
        sandbox.run("echo hi").is(0, "hi\n");
        sandbox.run("sleep 0.1 &").is(0, "");
        sandbox.run("sleep 0.3; echo two").is(0, "two\n");
        assert_eq!(sandbox.run("sh -c 'kill -9 $$'").code(), 137);
        sandbox.run("echo three").is(0, "three\n");
        sandbox.run("sleep 50 & kill -9 $!").at_once();
        sandbox.run("sleep 0.1; echo four").is(0, "four\n");
    });
}

/// What one command had in its environment is no other's to read.
#[test]
fn the_script_is_not_shown() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let env = vec![(b"TOKEN".to_vec(), b"s3cret".to_vec())];
    sandbox.run_with("true", |exec| exec.env = env).is(0, "");
    let answer = sandbox.run("cat /proc/$$/fd/255; cat </proc/$$/fd/255; echo $?");
    assert!(!answer.out.contains("s3cret") && answer.out.ends_with("1\n"), "{answer:?}");
    sandbox.is_alive();
}

/// Programs of init's may still hold what bash waits at.
#[test]
fn programs_and_commands_do_not_mix() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    for round in 0..150 {
        let job = sandkasten_protocol::work::Job::List { path: b"/etc".into(), depth: 1, limit: 1 };
        let user = sandkasten_protocol::FileUser::Session;
        let (done, _socket) = sandbox.file(sandkasten_protocol::FileOp::Work { job, user });
        done.unwrap();
        let answer = sandbox.run(&format!("echo {round}"));
        answer.is(0, &format!("{round}\n"));
        assert!(!answer.end.shell_restarted, "{round}");
    }
}

/// A command that is refused while the shell still writes its state has it write nothing more.
#[test]
fn a_refusal_does_not_disturb_the_state() {
    in_each_shell(|sandbox, kind| {
        for round in 0..5 {
            sandbox.run("big=$(head -c 2000000 /dev/zero | tr '\\0' x)").is(0, "");
            let bad = vec![(b"A B".to_vec(), b"1".to_vec())];
            let answer = sandbox.run_with("touch ran", |exec| exec.env = bad);
            assert_eq!(answer.end.how, How::ReadOnlyEnv, "{kind:?}");
            let answer = sandbox.run(&format!("echo {round} ${{#big}}"));
            answer.is(0, &format!("{round} 2000000\n"));
            assert!(!answer.end.shell_restarted, "{kind:?}");
        }
    });
}

/// A shell that waits for its next line stays, whatever signals come.
#[test]
fn signals_between_commands_end_nothing() {
    in_each_shell(|sandbox, kind| {
        sandbox.run(
            "trap 'caught=yes' USR1; test -n \"${BASH_VERSION-}\" && trap 'ended=yes' CHLD; true",
        );
        let signals = "(sleep 0.1; kill -USR1 $$; sleep 0.1; kill -USR1 $$; echo sent) & x=kept";
        let run = sandbox.begin(signals, |_| {});
        let end = sandbox.finish(run).end;
        // The shell is idle while they come.
        assert!(sandbox.part(run, end.seq, Wait::Yes).is_some(), "{kind:?}");
        let answer = sandbox.run("echo $caught $x");
        answer.is(0, "yes kept\n");
        assert!(!answer.end.shell_restarted, "{kind:?}");
        sandbox.run("trap - USR1; test -n \"${BASH_VERSION-}\" && trap - CHLD; true");
        sandbox.run("exec 3>/tmp/three; echo a >&3").is(0, "");
        sandbox.run("echo b >&3; exec 3>&-; cat /tmp/three").is(0, "a\nb\n");
    });
}

#[test]
fn c19_deleted_working_directory() {
    in_each_shell(|sandbox, kind| {
        let answer = sandbox.run("mkdir d && cd d && rm -rf ../d");
        assert_eq!(answer.cwd(), "/workspace/d", "{kind:?}");
        let answer = sandbox.run("echo ok");
        assert_eq!((answer.code(), answer.out.ends_with("ok\n")), (0, true));
        assert_eq!(answer.cwd(), "/workspace/d");
        sandbox.run("ls; true").at_once();
        sandbox.run("cd /workspace && pwd").is(0, "/workspace\n");
        let answer = sandbox.run("mkdir d && cd d && mv ../d ../e");
        assert_eq!(answer.cwd(), "/workspace/e", "{kind:?}: the kernel knows the new name");
        sandbox.run("cd /workspace; mkdir 'x (deleted)'; cd 'x (deleted)'");
        assert_eq!(sandbox.run("true").cwd(), "/workspace/x (deleted)");
        sandbox.run("cd /workspace && pwd").is(0, "/workspace\n");
    });
}

#[test]
fn cwd_is_shown_as_the_shell_calls_it() {
    in_each_shell(|sandbox, _| {
        sandbox.run("mkdir -p real; ln -s real link; cd link");
        assert_eq!(sandbox.run("true").cwd(), "/workspace/link");
        // A $PWD that lies is not believed.
        assert_eq!(sandbox.run("PWD=/etc").cwd(), "/workspace/real");
        sandbox.run("cd /workspace; mkdir 'a b:\n'; cd 'a b:\n'");
        assert_eq!(sandbox.run("true").cwd(), "/workspace/a b:\n");
    });
}

#[test]
fn c20_state_persists() {
    let set = "cd /tmp; export V=1; u=2; f(){ echo F$1; }; umask 027";
    in_each_shell(|sandbox, _| {
        sandbox.run(set).is(0, "");
        sandbox.run("pwd; echo $V $u; f 2; umask").is(0, "/tmp\n1 2\nF2\n0027\n");
        let long = format!(": {}\nexport BIG=1; cd /", "x".repeat(20_000));
        assert_eq!(sandbox.run(&long).cwd(), "/");
        sandbox.run("echo $BIG; pwd").is(0, "1\n/\n");
    });
    let mut sandbox = Sandbox::new(Kind::Bash);
    sandbox.run("set -o pipefail; shopt -s expand_aliases; alias hi='echo H'").is(0, "");
    sandbox.run("false | true").is(1, "");
    sandbox.run("hi").is(0, "H\n");
}

#[test]
fn c22_ends_of_commands() {
    in_each_shell(|sandbox, kind| {
        sandbox.run("echo a # c").is(0, "a\n");
        let answer = sandbox.run("echo b \\");
        assert!(answer.code() == 0 && answer.out.starts_with('b'), "{kind:?} {answer:?}");
        sandbox.run("echo c;").is(0, "c\n");
        sandbox.run("echo d &").is(0, "d\n");
        assert_eq!(sandbox.run("echo e |").code(), 2, "{kind:?}");
        sandbox.run("# only a comment").is(0, "");
        sandbox.run("").is(0, "");
        sandbox.run("false");
        sandbox.run("echo $?").is(0, "0\n");
        sandbox.run("echo f }").is(0, "f }\n");
        assert_eq!(sandbox.run("echo g; }").code(), 2, "{kind:?}");
        sandbox.is_alive();
    });
}

#[test]
fn c24_pkill_does_not_find_the_shell() {
    // This busybox has no pkill.
    for kind in [Kind::Bash, Kind::Dash] {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("mkdir -p k; cd k; export K=1");
        let cmd = "sleep 300 & echo marker_zz9; pkill -f marker_zz9; echo after; kill $!";
        sandbox.run(cmd).is(0, "marker_zz9\nafter\n");
        sandbox.run("pkill -f python3; pkill bash_nonexist; echo still").is(0, "still\n");
        sandbox.run("pwd; echo $K").is(0, "/workspace/k\n1\n");
    }
}

#[test]
fn names_of_ours_can_be_taken_by_the_payload() {
    let functions = ["eval(){ :; }", "printf(){ :; }", "exec(){ :; }", "cat(){ :; }", "cd(){ :; }"];
    in_each_shell(|sandbox, kind| {
        for function in functions {
            sandbox.run(function);
        }
        if kind == Kind::Bash {
            sandbox.run("builtin(){ :; }; command(){ :; }; shopt -s expand_aliases");
            sandbox.run("alias :=exit builtin=false command=false if=false A=1");
        }
        sandbox.run("PATH=/nowhere");
        let long = format!("# {}\n(exit 5)", "x".repeat(6000));
        sandbox.run(&long).is(5, "");
        sandbox.run_with("(exit 3)", |exec| {
            exec.env = vec![("A".into(), "1".into())];
            exec.cwd = Some("/tmp".into());
        });
        assert_eq!(sandbox.run("(exit 4)").code(), 4);
    });
}

#[test]
fn text_of_every_length_is_exact() {
    in_each_shell(|sandbox, kind| {
        for length in [0, 1, 4095, 4096, 4097, 16 * 1024, 128 * 1024 - 1, 1024 * 1024] {
            let body = "é".repeat(length / 2);
            let cmd = format!("v='{body}'");
            sandbox.run(&cmd).is(0, "");
            let count = format!("{}\n", body.len());
            sandbox.run("LC_ALL=C; printf %s \"$v\" | wc -c; unset LC_ALL v").is(0, &count);
        }
        // Newlines at the end belong to an open heredoc.
        let cmd = format!("cat <<EOF | tail -n 3 | wc -l\n{}\n\n\n", "x\n".repeat(3000));
        let answer = sandbox.run(&cmd);
        assert!(answer.out.ends_with("3\n"), "{kind:?} {}", answer.out);
    });
}

#[test]
fn request_fields() {
    in_each_shell(|sandbox, kind| {
        let env = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect::<Vec<_>>()
        };
        let both = env(&[("A", "it's"), ("B", "")]);
        let cmd = "echo $A [${B-none}]; sh -c 'echo $A'; echo $A";
        sandbox.run_with(cmd, |exec| exec.env = both).is(0, "it's []\nit's\nit's\n");
        sandbox.run("echo [$A]").is(0, "[]\n");
        sandbox.run("readonly R=1");
        let answer =
            sandbox.run_with("touch ran", |exec| exec.env = env(&[("A", "1"), ("R", "2")]));
        assert_eq!((answer.end.how, answer.out.as_str()), (How::ReadOnlyEnv, ""), "{kind:?}");
        let answer = sandbox.run_with("touch ran", |exec| exec.env = env(&[("A;touch ran", "1")]));
        assert_eq!(answer.end.how, How::ReadOnlyEnv);
        let answer = sandbox.run_with("touch ran", |exec| exec.cwd = Some("/nowhere".into()));
        assert_eq!((answer.end.how, answer.out.as_str()), (How::BadCwd, ""), "{kind:?}");
        assert_eq!(answer.cwd(), "/workspace");
        sandbox.run("ls").is(0, "");
        let answer = sandbox.run_with("pwd", |exec| exec.cwd = Some("/tmp".into()));
        answer.is(0, "/tmp\n");
        sandbox.run("pwd").is(0, "/tmp\n");
    });
}

#[test]
fn split_and_pty() {
    in_each_shell(|sandbox, kind| {
        let cmd = "echo out; echo err >&2; (exit 7)";
        let answer = sandbox.run_with(cmd, |exec| exec.output = OutputMode::Split);
        assert_eq!(answer.code(), 7);
        assert_eq!(answer.of(Stream::Stdout), "out\n", "{kind:?}");
        assert_eq!(answer.of(Stream::Stderr), "err\n");
        let cmd = "test -t 1 && test -t 2 && ! test -t 0 && echo tty; echo x > /dev/stderr";
        let answer = sandbox.run_with(cmd, |exec| exec.output = OutputMode::Pty);
        assert_eq!(answer.of(Stream::Pty), "tty\r\nx\r\n", "{kind:?}");
        let cmd = "stty size < /proc/self/fd/1; (: < /dev/tty) 2>/dev/null || echo none";
        let answer = sandbox.run_with(cmd, |exec| exec.output = OutputMode::Pty);
        assert_eq!(answer.out, "24 80\r\nnone\r\n", "{kind:?}");
        sandbox.run("X=1; echo x > /dev/stdout; echo y > /dev/stderr").is(0, "x\ny\n");
        sandbox.run("test -t 1").is(1, "");
    });
}

#[test]
fn c36_c37_output_is_whole_and_in_order() {
    in_each_shell(|sandbox, _| {
        let cmd = "echo out; echo err >&2; echo out2; (exit 7)";
        sandbox.run(cmd).is(7, "out\nerr\nout2\n");
        for n in 0..200 {
            sandbox.run(&format!("printf x{n}")).is(0, &format!("x{n}"));
        }
        let answer = sandbox.run("head -c 3000000 /dev/zero | tr '\\0' a; printf END");
        assert_eq!(answer.out.len(), 3_000_003);
        assert!(answer.out.ends_with("aEND"));
        assert_eq!(answer.end.output_bytes, 3_000_003);
        assert_eq!(answer.end.dropped_bytes, 0);
    });
}

#[test]
fn exec_goes_on_when_every_writable_place_is_gone() {
    in_each_shell(|sandbox, _| {
        sandbox.run("rm -rf /tmp/* /run/* /.sandkasten/* 2>/dev/null; true");
        sandbox.run("cd /tmp; head -c 100000000 /dev/zero > full 2>/dev/null; true");
        let long = format!("# {}\necho yes", "x".repeat(6000));
        sandbox.run(&long).is(0, "yes\n");
        sandbox.run("rm full");
    });
}

/// In busybox an error in a subshell comes out of the `eval` around it, in the subshell's process.
#[test]
fn an_error_in_a_subshell_does_not_make_a_second_shell() {
    in_each_shell(|sandbox, kind| {
        let answer = sandbox.run("(: < /nowhere) 2>/dev/null || echo none");
        answer.is(0, "none\n");
        let answer = sandbox.run("(echo ${x?gone}) 2>/dev/null; test $? != 0 && echo failed");
        answer.is(0, "failed\n");
        sandbox.run("{ echo ${x?gone}; } 2>/dev/null & wait; echo w").is(0, "w\n");
        for n in 0..20 {
            sandbox.run(&format!("echo {n}")).is(0, &format!("{n}\n"));
        }
        if kind != Kind::Busybox {
            let shells = sandbox.run("ps -o args= | grep -cE '^(ba)?sh (ba)?sh'");
            assert!(shells.code() < 2, "{shells:?}");
        }
    });
}

/// X-05: what a command does to its shell's own state is gone or harmless in the next one.
#[test]
fn the_shell_survives_what_is_done_to_its_own_state() {
    in_each_shell(|sandbox, kind| {
        for cmd in [
            "exec >/dev/null",
            "exec 1>&-",
            "exec 2>&- 0<&-",
            "exec 5>/dev/null",
            "PS1='$ '; PS2=; PS4=",
            "IFS=0123456789; set -f",
            "set -x",
            "set +x; set -C",
            "trap 'echo bye' EXIT",
            "trap '' TERM INT CHLD",
            "stty raw 2>/dev/null; printf '\\033c'",
            "unset PWD HOME PATH",
        ] {
            sandbox.run(cmd);
            let answer = sandbox.run("echo next; (exit 3)");
            assert_eq!(answer.code(), 3, "{kind:?} {cmd}");
            assert!(answer.out.contains("next\n"), "{kind:?} {cmd}: {}", answer.out);
            assert!(!answer.end.shell_restarted, "{kind:?} {cmd}");
        }
    });
}

/// bash runs no command that such a trap refuses.
const SKIPPING: &str = "shopt -s extdebug; trap false DEBUG";

#[test]
fn a_shell_that_can_not_answer_is_replaced_at_once() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        let cmds: &[&str] = match kind {
            Kind::Bash => &["ulimit -n 3", "set -r", "enable -n printf", "set -n", SKIPPING],
            Kind::Dash | Kind::Busybox => &["ulimit -n 3", "set -n"],
        };
        for cmd in cmds {
            sandbox.run(cmd);
            // This one may be lost, but that is said; the next one is not.
            let lost = sandbox.run("echo lost");
            lost.at_once();
            let is_told = lost.end.how == How::Broken || lost.out == "lost\n";
            assert!(is_told, "{kind:?} {cmd}: {lost:?}");
            sandbox.is_alive();
        }
    }
}

#[test]
fn a_quiet_command_is_left_alone() {
    in_each_shell(|sandbox, _| {
        sandbox.run("sleep 1.2; echo done").is(0, "done\n");
        sandbox.run("mkfifo f; (sleep 1.2; echo in > f) & read x < f; echo $x; rm f").is(0, "in\n");
    });
}
