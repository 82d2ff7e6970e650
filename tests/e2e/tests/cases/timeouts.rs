//! C47 to C56: timeouts, cancelling, many at once.

use std::time::{Duration, Instant};

use sandkasten_e2e::{Session, host, wait};
use serde_json::{Value, json};

use crate::{Asks, Place, in_images};

in_images! {
    python: c49_earlier_jobs_live, c54_parallel_execs, c54_parallel_execs_and_streams,
        c56_stuck_exec_blocks_nothing;
    busybox: c49_earlier_jobs_live, c54_parallel_execs, c54_parallel_execs_and_streams,
        c56_stuck_exec_blocks_nothing;
}

fn c49_earlier_jobs_live(at: &Place) {
    let session = at.session();
    session.does("sleep 500 & echo $! > p");
    session.times_out("sleep 60");
    session.gives("kill -0 $(cat p); echo rc=$?", 0, "rc=0\n");
}

fn c54_parallel_execs(at: &Place) {
    in_parallel(at, 0);
}

fn c54_parallel_execs_and_streams(at: &Place) {
    in_parallel(at, 4);
}

/// Eight at once, the first of them streamed: all are queued, none sees another's output.
fn in_parallel(at: &Place, streams: usize) {
    let session = at.session();
    let one = |number: usize| {
        let cmd = format!(
            "echo B{number}; export T={number}; sleep 0.3; echo E{number} $T; (exit {number})"
        );
        let (code, output) = if number <= streams {
            let played = session.play(&cmd);
            (played.done()["exit_code"].as_i64(), played.text())
        } else {
            let done = session.exec(&cmd);
            (Some(done.code()), done.output().to_owned())
        };
        assert_eq!(code, i64::try_from(number).ok(), "{output}");
        assert_eq!(output, format!("B{number}\nE{number} {number}\n"));
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (1..=8).map(|number| scope.spawn(move || one(number))).collect();
        all.into_iter().for_each(|one| one.join().expect("all of them right"));
    });
    session.alive();
}

fn c56_stuck_exec_blocks_nothing(at: &Place) {
    let session = at.session();
    std::thread::scope(|scope| {
        let (client, path) = (&at.lab.client, session.path("/exec"));
        let body = json!({ "cmd": "echo so far; sleep 120", "timeout_ms": 300_000 });
        let waiting = scope.spawn(move || (client.post(&path, &body), Instant::now()));
        runs(&session, "sleep\x00120");
        within(1, "write", || session.write("f", b"x", "0644"));
        within(1, "read", || assert_eq!(session.read("f"), b"x"));
        within(1, "list of files", || session.request("GET", "/fs/list?path=.").send().ok(200));
        within(1, "stats", || session.stats());
        within(1, "get", || session.info());
        within(1, "list", || at.lab.client.get("/v1/sessions").ok(200));
        let answer = within(10, "delete", || session.delete().ok(200));
        let deleted = Instant::now();
        assert_eq!(answer, json!({ "ok": true }));
        let (cut, ended) = waiting.join().expect("an answer");
        let error = cut.error(410, "SESSION_DESTROYED");
        assert_eq!(error["details"]["output"], "so far\n", "{error}");
        assert!(ended < deleted + Duration::from_secs(2), "it ends at once");
    });
}

/// Waits until a process of the session has this in its command line (words end with NUL).
#[track_caller]
pub(crate) fn runs(session: &Session<'_>, words: &str) {
    wait::until(words, Duration::from_secs(5), || is_running(session, words));
}

pub(crate) fn is_running(session: &Session<'_>, words: &str) -> bool {
    let all = host::processes_of(&session.id);
    all.iter().any(|&pid| host::proc_file(pid, "cmdline").contains(words))
}

#[track_caller]
fn within<T>(seconds: u64, what: &str, act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = act();
    assert!(start.elapsed() < Duration::from_secs(seconds), "{what} took {:?}", start.elapsed());
    value
}

/// Prescribed pauses.
mod waits {
    use super::{Asks, Duration, Place, Value, in_images, is_running, json, wait};

    in_images! {
        python: c47_timeout_takes_the_whole_tree, c47_timeout_takes_a_loop_of_python,
            c48_state_survives_five_timeouts, c48_nothing_runs_on, c51_old_output;
        busybox: c47_timeout_takes_the_whole_tree, c48_state_survives_five_timeouts, c48_nothing_runs_on,
            c51_old_output;
    }

    fn c47_timeout_takes_the_whole_tree(at: &Place) {
        let session = at.session();
        let own_session = if at.is_bash() { "setsid -w sleep 7773" } else { "setsid sleep 7773" };
        for cmd in [
            "sleep 7771 | sleep 7771",
            "sh -c 'sh -c \"sleep 7772\"; true'",
            "sh -c 'while :; do :; done'",
            own_session,
        ] {
            session.times_out(cmd);
            assert!(!is_running(&session, "sleep\x00777"), "{cmd}");
        }
        wait::prescribed(Duration::from_secs(5));
        let count = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep -c '^sleep 777'";
        session.gives(count, 1, "0\n");
        is_idle(&session);
    }

    fn c47_timeout_takes_a_loop_of_python(at: &Place) {
        let session = at.session();
        session.times_out("python3 -c 'while True: pass'");
        is_idle(&session);
    }

    #[track_caller]
    fn is_idle(session: &sandkasten_e2e::Session<'_>) {
        let used = || session.stats()["cpu_usage_usec"].as_u64().unwrap_or_default();
        let before = used();
        wait::prescribed(Duration::from_secs(1));
        let share = used() - before;
        assert!(share < 100_000, "{share} us of a second");
    }

    fn c48_state_survives_five_timeouts(at: &Place) {
        let session = at.session();
        for _ in 0..5 {
            let functions = if at.is_bash() { "; f(){ echo F; }" } else { "" };
            session.does(&format!(
                "cd /workspace; mkdir -p q; cd q; export K=1; k2=2; umask 077{functions}"
            ));
            let done = session.times_out("K=9; k2=9; umask 0; cd /; sleep 60");
            assert_eq!(done.body["shell_restarted"], true);
            assert_eq!(done.body["cwd"], "/workspace/q");
            session.gives("pwd; echo $K $k2; umask", 0, "/workspace/q\n1 2\n0077\n");
            if at.is_bash() {
                session.gives("f", 0, "F\n");
            }
        }
    }

    fn c48_nothing_runs_on(at: &Place) {
        let session = at.session();
        for cmd in [
            "sleep 2; touch late",
            "(sleep 2; touch late); touch late",
            "trap 'touch late' EXIT TERM INT HUP; sleep 2; touch late",
            "(trap '' TERM INT HUP; sleep 2; touch late) & wait; touch late",
        ] {
            session.times_out(cmd);
        }
        wait::prescribed(Duration::from_secs(2));
        session.gives("ls", 0, "");
    }

    fn c51_old_output(at: &Place) {
        let session = at.session();
        for round in 0..10 {
            let cmd = if round == 9 {
                "yes"
            } else {
                "for i in $(seq 100); do echo OLD$i; sleep 0.1; done"
            };
            session.times_out(cmd);
            for number in 0..5 {
                session.gives(&format!("echo NEW{number}"), 0, &format!("NEW{number}\n"));
            }
        }
        let played = session.stream(&json!({ "cmd": "yes", "timeout_ms": 1000 })).finish();
        let ended: (&Value, &Value) = (&played.done()["exit_code"], &played.done()["timed_out"]);
        assert_eq!(ended, (&json!(124), &json!(true)));
        session.gives_both("echo NEW", 0, "NEW\n");
    }
}

/// What takes minutes.
mod minutes {
    use super::{Asks, Duration, Place, in_images, json, wait};

    in_images! {
        python: c48_nothing_runs_on_after_74_seconds;
    }

    fn c48_nothing_runs_on_after_74_seconds(at: &Place) {
        let session = at.lab.session(&json!({ "image": at.image, "ttl_seconds": 600 }));
        session.times_out("sleep 74; touch late");
        wait::prescribed(Duration::from_secs(75));
        session.gives("ls", 0, "");
    }
}
