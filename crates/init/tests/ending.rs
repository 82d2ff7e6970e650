//! Timeouts, cancels, dying shells and supervisors, orphans.

mod boxed;

use std::time::{Duration, Instant};

use boxed::{Image, Kind, Sandbox};
use sandkasten_protocol::{FromInit, How, OutputMode, ShellPreference, ToInit};

const ALL: [Kind; 3] = [Kind::Bash, Kind::Dash, Kind::Busybox];

/// Counts processes of the box whose command line holds a word; `[7]77` does not find itself.
fn count(sandbox: &mut Sandbox, word: &str) -> String {
    let (first, rest) = word.split_at(1);
    sandbox
        .run(&format!(
            "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null \
             | grep -c '[{first}]{rest}'"
        ))
        .out
}

fn timed_out(sandbox: &mut Sandbox, cmd: &str) {
    let answer = sandbox.run_for(cmd, 300);
    assert_eq!((answer.end.how, answer.code()), (How::Timeout, 124), "{cmd}");
    assert!(answer.end.shell_restarted);
    // 500 ms is promised on a quiet host; tests share theirs.
    assert!(answer.took < Duration::from_secs(3), "{cmd} took {:?}", answer.took);
}

#[test]
fn c47_timeout_takes_the_whole_tree() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        timed_out(sandbox, "sleep 7771 | sleep 7771");
        timed_out(sandbox, "sh -c 'sh -c \"sleep 7772\"; true'");
        timed_out(sandbox, "while :; do :; done");
        timed_out(sandbox, "setsid sleep 7773 & sleep 7774");
        timed_out(sandbox, "(setsid sh -c 'sleep 7775 & sleep 7775' &) ; sleep 7776");
        timed_out(sandbox, "nohup sleep 7777 >/dev/null 2>&1 & sleep 7778");
        timed_out(sandbox, "trap '' TERM INT HUP; sh -c 'trap \"\" TERM; sleep 7779'");
        timed_out(sandbox, "sleep 7770 & kill -STOP $!; kill -STOP $$; sleep 7770");
        timed_out(sandbox, "f() { f & f; }; sh -c 'while :; do sh -c : & wait; done'");
        timed_out(sandbox, "(while :; do setsid sleep 7771 & sleep 0.01; done)");
        assert_eq!(count(sandbox, "sleep 777"), "0\n", "{kind:?}");
        sandbox.is_alive();
    }
}

#[test]
fn nothing_of_a_timed_out_command_runs_on() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("mkdir -p q; cd q");
        timed_out(sandbox, "sleep 0.5; touch late");
        sandbox.run("sleep 0.6; pwd; ls").is(0, "/workspace/q\n");
    }
}

#[test]
fn output_before_a_timeout_is_kept() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let answer = sandbox.run_for("echo so far; sleep 60", 300);
    assert_eq!((answer.code(), answer.out.as_str()), (124, "so far\n"));
    let answer = sandbox.run_for("yes", 300);
    assert_eq!(answer.end.how, How::Timeout);
    assert!(answer.out.starts_with("y\ny\n"));
    assert_eq!(answer.end.output_bytes, answer.out.len() as u64);
}

#[test]
fn c49_earlier_background_jobs_live() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("sleep 500 & echo $! > p");
        // One whose parent is gone, and one of its own session that makes children.
        sandbox.run("(sleep 501 & echo $! > q); setsid sh -c 'while :; do sleep 0.05; done' & :");
        for _ in 0..3 {
            timed_out(sandbox, "sleep 60");
            sandbox.run("kill -0 $(cat p) && kill -0 $(cat q); echo rc=$?").is(0, "rc=0\n");
            // It may just be starting a child, which is its image then.
            assert_ne!(count(sandbox, "while :; do sleep"), "0\n", "{kind:?}");
        }
        sandbox.run("kill $(cat p)").is(0, "");
    }
}

#[test]
fn c51_old_output_never_runs_into_the_next_result() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        for round in 0..5 {
            let cmd = "for i in $(seq 100); do echo OLD$i; sleep 0.05; done";
            let cmd = if round == 4 { "yes" } else { cmd };
            timed_out(sandbox, cmd);
            for n in 0..5 {
                sandbox.run(&format!("echo NEW{n}")).is(0, &format!("NEW{n}\n"));
            }
        }
    }
}

#[test]
fn cancel() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let exec = sandbox.begin("echo begun; sleep 7771", |_| {});
    match sandbox.link.next() {
        Some(FromInit::Output { records, .. }) => assert_eq!(boxed::joined(&records), b"begun\n"),
        other => panic!("{other:?}"),
    }
    sandbox.link.send(&ToInit::Cancel { run: exec + 1 });
    sandbox.link.send(&ToInit::Cancel { run: exec });
    sandbox.link.send(&ToInit::Cancel { run: exec });
    let answer = sandbox.finish(exec);
    assert_eq!((answer.end.how, answer.code()), (How::Cancelled, 130));
    answer.at_once();
    assert_eq!(count(sandbox, "sleep 777"), "0\n");
    sandbox.link.send(&ToInit::Cancel { run: exec });
    sandbox.is_alive();
}

#[test]
fn a_pty_command_is_timed_out_too() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let answer = sandbox.run_with("echo tty; sleep 60", |exec| {
        exec.output = OutputMode::Pty;
        exec.timeout_ms = 300;
    });
    assert_eq!((answer.end.how, answer.out.as_str()), (How::Timeout, "tty\r\n"));
    sandbox.is_alive();
}

#[test]
fn a_shell_that_dies_between_commands_is_replaced() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        for n in 0..3 {
            sandbox.run("cd /tmp; p=$$; (sleep 0.05; kill -9 $p) &").is(0, "");
            sandbox.run(&format!("sleep 0.2; echo {n}"));
            sandbox.run("pwd").is(0, "/tmp\n");
        }
    }
}

#[test]
fn an_image_without_a_shell() {
    let sandbox = &mut Sandbox::with(Image::Bare, ShellPreference::Bash, 1000);
    assert_eq!(sandbox.hello.shell, None);
    let answer = sandbox.run("echo");
    assert_eq!((answer.end.how, answer.code()), (How::NoShell, 127));
}

#[test]
fn a_shell_that_can_not_start_is_no_loop() {
    let sandbox = &mut Sandbox::with(Image::Busybox, ShellPreference::Bash, 0);
    sandbox.run(
        "cp /bin/busybox /bin/keep; rm -f /bin/sh; echo nonsense > /bin/sh; chmod 755 /bin/sh",
    );
    let answer = sandbox.run("exit 3");
    assert_eq!((answer.end.how, answer.code()), (How::ShellExited, 3));
    for _ in 0..3 {
        assert_eq!(sandbox.run("echo").end.how, How::NoShell);
    }
}

#[test]
fn r08_orphans_are_reaped() {
    for kind in [Kind::Bash, Kind::Busybox] {
        let sandbox = &mut Sandbox::new(kind);
        let flood = "for i in $(seq 1000); do (sh -c : & ) ; done; echo flooded";
        assert!(sandbox.run(flood).out.ends_with("flooded\n"));
        let zombies = "cat /proc/[0-9]*/stat 2>/dev/null | grep -c ' Z '";
        sandbox.run(&format!("sleep 0.5; {zombies}")).is(1, "0\n");
    }
}

#[test]
fn box_root_can_not_break_init() {
    let sandbox = &mut Sandbox::with(Image::Debian, ShellPreference::Bash, 0);
    let caps = sandbox.run("grep CapPrm /proc/self/status");
    caps.is(0, "CapPrm:\t00000000800405fb\n");
    // I-07: nothing of init is to be had.
    let cmd = "for f in mem environ maps; do head -c1 /proc/1/$f 2>/dev/null && echo got $f; done; \
               for l in exe cwd root fd/0 fd/3 fd/5; do readlink /proc/1/$l; done; true";
    sandbox.run(cmd).is(0, "");
    for signal in ["TERM", "QUIT", "ABRT", "SEGV", "STOP", "KILL", "HUP", "USR1", "RTMIN"] {
        sandbox.run(&format!("kill -{signal} 1; true"));
    }
    sandbox.is_alive();
    sandbox.run("prlimit --pid 1 --nofile=1 2>/dev/null; renice 5 1 2>/dev/null; true");
    // Its supervisor, stopped, then killed: the shell's end is still seen.
    sandbox.run("kill -STOP $PPID");
    assert_eq!(sandbox.run("exit 5").code(), 5);
    sandbox.is_alive();
    sandbox.run("kill -KILL $PPID; sleep 0.1");
    sandbox.is_alive();
    let answer = sandbox.run("exit 6");
    assert_eq!((answer.end.how, answer.code()), (How::ShellExited, 6));
    sandbox.is_alive();
    sandbox.run("kill -KILL $PPID; sleep 0.1");
    timed_out(sandbox, "sleep 7771");
    assert_eq!(count(sandbox, "sleep 777"), "0\n");
}

#[test]
fn the_session_user_can_not_touch_supervisors() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("kill -9 $PPID 2>/dev/null || kill -STOP $PPID 2>/dev/null || echo refused");
    let cmd = "head -c1 /proc/$PPID/environ 2>/dev/null && echo got; \
               head -c1 /proc/1/environ 2>/dev/null && echo got; true";
    sandbox.run(cmd).is(0, "");
    sandbox.run("kill -9 -1; true");
    sandbox.is_alive();
}

#[test]
fn a_flood_of_signals_changes_nothing() {
    let sandbox = &mut Sandbox::with(Image::Debian, ShellPreference::Bash, 0);
    let began = Instant::now();
    sandbox
        .run("for i in $(seq 3000); do kill -HUP 1; kill -CHLD 1; kill -RTMIN 1; done")
        .is(0, "");
    sandbox.is_alive();
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_short_time_does_not_cost_the_state_of_the_command_before() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("big=$(head -c 300000 /dev/zero | tr '\\0' x)").is(0, "");
        for n in 0..10 {
            sandbox.run(&format!("K={n}")).is(0, "");
            let answer = sandbox.run_with("sleep 60", |exec| exec.timeout_ms = 1);
            assert_eq!(answer.end.how, How::Timeout);
            sandbox.run("echo $K ${#big}").is(0, &format!("{n} 300000\n"));
        }
    }
}
