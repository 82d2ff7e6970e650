//! More of the kind of C47 to C56: commands that don't want to end, and callers that leave.

use std::time::Duration;

use serde_json::json;

use crate::timeouts::{is_running, runs};
use crate::{Asks, Place, in_images};

in_images! {
    python: waiting_is_not_counted, who_leaves_the_queue_never_runs, a_disconnect_takes_the_whole_tree,
        tiny_timeouts, timeouts_that_are_refused, a_command_as_long_as_its_timeout, a_deleted_session_takes_all,
        order_of_arrival;
    busybox: waiting_is_not_counted, who_leaves_the_queue_never_runs, a_disconnect_takes_the_whole_tree,
        tiny_timeouts, a_command_as_long_as_its_timeout, a_deleted_session_takes_all, order_of_arrival;
}

fn waiting_is_not_counted(at: &Place) {
    let session = at.session();
    std::thread::scope(|scope| {
        let long = scope.spawn(|| session.run("sleep 1.3; echo long"));
        runs(&session, "sleep\x001.3");
        let done = session.exec_with(&json!({ "cmd": "echo short", "timeout_ms": 500 }));
        assert_eq!((done.code(), done.output()), (0, "short\n"), "{}", done.body);
        assert_eq!(long.join().expect("an answer"), "long\n");
    });
}

fn who_leaves_the_queue_never_runs(at: &Place) {
    let session = at.session();
    std::thread::scope(|scope| {
        let long = scope.spawn(|| session.run("sleep 0.8"));
        runs(&session, "sleep\x000.8");
        for route in ["/exec", "/exec/stream"] {
            let request = session.request("POST", route).json(&json!({ "cmd": "touch ran" }));
            assert!(request.patience(Duration::from_millis(100)).try_send().is_err());
        }
        assert_eq!(long.join().expect("an answer"), "");
    });
    session.gives("ls", 0, "");
}

fn a_disconnect_takes_the_whole_tree(at: &Place) {
    let session = at.session();
    session.does("sleep 7790 &");
    let cmd = "setsid sleep 7791 & (trap '' TERM HUP INT; sleep 7791) & (sleep 7791 &) ; echo begun; sleep 7791";
    for route in ["/exec", "/exec/stream"] {
        let request = session.request("POST", route).json(&json!({ "cmd": cmd }));
        assert!(request.patience(Duration::from_millis(300)).try_send().is_err());
        session.gives("echo free", 0, "free\n");
        assert!(!is_running(&session, "sleep\x007791"), "{route}");
    }
    assert!(is_running(&session, "sleep\x007790"), "the earlier job");
}

fn tiny_timeouts(at: &Place) {
    let session = at.session();
    session.keep();
    for milliseconds in [1, 2, 5, 10, 20, 50] {
        let done = session.exec_with(&json!({ "cmd": "sleep 60", "timeout_ms": milliseconds }));
        assert_eq!((done.code(), done.reason()), (124, "timeout"), "{}", done.body);
        assert!(done.took < crate::AT_ONCE, "{milliseconds} ms took {:?}", done.took);
    }
    session.kept();
    session.alive();
}

fn timeouts_that_are_refused(at: &Place) {
    let session = at.session();
    for bad in [json!(0), json!(-1), json!("1000"), json!(1.5), json!(600_001), json!(1e300)] {
        let body = json!({ "cmd": "touch ran", "timeout_ms": bad });
        session.try_exec(&body).error(400, "INVALID_REQUEST");
    }
    session.gives("ls", 0, "");
}

/// Either it has ended or it was ended; never both, never neither.
fn a_command_as_long_as_its_timeout(at: &Place) {
    let session = at.session();
    for extra in [-10i64, -3, 0, 0, 3, 10] {
        let done =
            session.exec_with(&json!({ "cmd": "sleep 0.2; echo over", "timeout_ms": 200 + extra }));
        let (timed_out, output) = (done.body["timed_out"] == true, done.output());
        match done.code() {
            0 => assert!(
                !timed_out && output == "over\n" && done.reason() == "exited",
                "{}",
                done.body
            ),
            124 => assert!(timed_out && done.reason() == "timeout", "{}", done.body),
            _ => panic!("{}", done.body),
        }
        session.gives("echo next", 0, "next\n");
    }
}

fn a_deleted_session_takes_all(at: &Place) {
    let session = at.session();
    let cmd = "(trap '' TERM HUP INT; setsid sleep 7792) & setsid setsid sleep 7792 & echo begun; sleep 7792";
    let mut events = session.stream(&json!({ "cmd": cmd }));
    assert!(events.next().is_some());
    let pids = sandkasten_e2e::host::processes_of(&session.id);
    assert!(pids.len() >= 3, "{pids:?}");
    session.delete().ok(200);
    let played = events.finish();
    assert_eq!(
        (played.end().name.as_str(), &played.end().data["error_code"]),
        ("error", &json!("SESSION_DESTROYED"))
    );
    assert_eq!(at.lab.left_of_sessions(), Vec::<String>::new());
}

/// Commands that wait run in the order in which they came.
fn order_of_arrival(at: &Place) {
    let session = at.session();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| session.run("sleep 1"));
        runs(&session, "sleep\x001");
        let later: Vec<_> = (0..6)
            .map(|number| {
                // Each is at the daemon before the next is sent: a connection of its own, that was answered before.
                let session = &session;
                let client = &at.lab.client;
                let mut connection = client.connect().expect("connect");
                let body = json!({ "cmd": format!("echo {number} >> order") });
                let path = session.path("/exec");
                let bytes = client.request("POST", &path).json(&body).bytes();
                connection.write(&bytes).expect("send");
                drop(session.stats());
                scope.spawn(move || connection.read_answer("POST", std::time::Instant::now()))
            })
            .collect();
        first.join().expect("an answer");
        for answer in later {
            assert_eq!(answer.join().expect("a thread").expect("an answer").status(), 200);
        }
    });
    session.gives("cat order", 0, "0\n1\n2\n3\n4\n5\n");
}

/// A second each, for the timeout.
mod waits {
    use sandkasten_e2e::{host, wait};

    use super::{Asks, Duration, Place, in_images, is_running, json};

    in_images! {
        python: output_so_far, timeout_while_writing, signals_that_are_ignored, a_stopped_shell, a_stopped_child,
            double_forks, disowned_children, a_crowd, loops_of_the_shell, waits_for_a_pipe, an_earlier_writer_goes_on,
            exec_that_does_not_end, timeout_on_a_pty, functions_survive, handlers_never_run, a_daemon_of_python,
            a_shell_started_in_the_shell, a_tree_that_forks_and_dies, timeout_of_a_stream;
        busybox: output_so_far, timeout_while_writing, signals_that_are_ignored, a_stopped_shell, a_stopped_child,
            double_forks, a_crowd, loops_of_the_shell, waits_for_a_pipe, an_earlier_writer_goes_on,
            exec_that_does_not_end, timeout_on_a_pty, handlers_never_run, a_shell_started_in_the_shell,
            a_tree_that_forks_and_dies, timeout_of_a_stream;
    }

    fn output_so_far(at: &Place) {
        let session = at.session();
        let done = session.times_out("echo so far; printf 'no end'; sleep 60; echo no");
        assert_eq!(done.output(), "so far\nno end");
        let done = session.times_out("seq 5000; sleep 60");
        assert!(done.output().ends_with("4999\n5000\n"), "{}", done.body);
    }

    fn timeout_while_writing(at: &Place) {
        let session = at.session();
        for cmd in ["yes", "yes & yes >&2 & wait", "while :; do echo x; done"] {
            let done = session.times_out(cmd);
            assert!(!done.output().is_empty());
            session.gives("echo clean", 0, "clean\n");
        }
    }

    fn signals_that_are_ignored(at: &Place) {
        let session = at.session();
        session.keep();
        session.times_out("trap '' TERM INT HUP QUIT; sh -c 'sleep 7773; sleep 7773' & sleep 7773");
        assert!(!is_running(&session, "sleep\x007773"));
        session.times_out("trap 'echo no' TERM INT HUP CHLD; while :; do sleep 7774; done");
        assert!(!is_running(&session, "sleep\x007774"));
        session.kept();
    }

    fn a_stopped_shell(at: &Place) {
        let session = at.session();
        session.keep();
        session.times_out("kill -STOP $$; touch /workspace/late");
        session.kept();
        session.gives("ls", 0, "");
        session.gives("ls /workspace", 0, "k\n");
    }

    fn a_stopped_child(at: &Place) {
        let session = at.session();
        session.times_out("sleep 7775 & kill -STOP $!; wait");
        session.times_out("sh -c 'kill -STOP $$'");
        assert!(!is_running(&session, "sleep\x007775"));
        session.alive();
    }

    fn double_forks(at: &Place) {
        let session = at.session();
        let cmd = "(setsid sh -c 'sleep 7776 & setsid sh -c \"sleep 7776 & setsid sleep 7776\"' &) ; \
            (cd /; (exec setsid sleep 7776) &) & sleep 7776";
        session.times_out(cmd);
        assert!(!is_running(&session, "sleep\x007776"));
        session.alive();
    }

    /// What was disowned in a command that was ended was started by it all the same.
    fn disowned_children(at: &Place) {
        let session = at.session();
        session.times_out("nohup sleep 7777 >/dev/null 2>&1 & disown -a; nohup setsid sleep 7777 >/dev/null 2>&1 & sleep 7777");
        assert!(!is_running(&session, "sleep\x007777"));
        session.alive();
    }

    fn a_crowd(at: &Place) {
        let session = at.session();
        session.times_out("for i in $(seq 150); do sleep 7778 & done; wait");
        assert!(!is_running(&session, "sleep\x007778"));
        session.alive();
    }

    fn loops_of_the_shell(at: &Place) {
        let session = at.session();
        session.keep();
        session.times_out("while :; do :; done");
        session.times_out("f() { while :; do :; done; }; f");
        session.times_out("x=$(sleep 60)");
        session.kept();
    }

    fn waits_for_a_pipe(at: &Place) {
        let session = at.session();
        session.does("mkfifo p");
        session.times_out("read x < p");
        session.times_out("echo x > p");
        session.times_out("cat p | cat");
        session.gives("(echo x > p) & cat p", 0, "x\n");
    }

    fn an_earlier_writer_goes_on(at: &Place) {
        let session = at.session();
        session.does("while :; do echo x >> grows; sleep 0.05; done & echo $! > p");
        session.times_out("sleep 60");
        session.times_out("while :; do :; done");
        let size = || session.read("grows").len();
        let before = size();
        wait::until("it goes on", Duration::from_secs(2), || size() > before);
        session.does("kill $(cat p)");
    }

    fn exec_that_does_not_end(at: &Place) {
        let session = at.session();
        session.keep();
        session.times_out("exec sleep 7779");
        session.times_out("exec sh -c 'sleep 7779 & exec sleep 7779'");
        assert!(!is_running(&session, "sleep\x007779"));
        session.kept();
    }

    fn timeout_on_a_pty(at: &Place) {
        let session = at.session();
        session.keep();
        let body = json!({ "cmd": "echo on; sleep 60", "timeout_ms": 1000, "raw_output": true });
        let done = session.exec_with(&body);
        assert_eq!((done.code(), done.output()), (124, "on\r\n"), "{}", done.body);
        let body = json!({ "cmd": "yes", "timeout_ms": 1000, "raw_output": true });
        assert_eq!(session.exec_with(&body).code(), 124);
        session.kept();
    }

    fn functions_survive(at: &Place) {
        let session = at.session();
        session.does("f() { cat <<EOF\n[$1]\nEOF\n}; shopt -s expand_aliases extglob; alias hi='echo H'; set -o pipefail");
        session.times_out("f() { :; }; unalias hi; set +o pipefail; sleep 60");
        session.gives("f x; hi; false | true", 1, "[x]\nH\n");
    }

    /// Nothing of a command that was ended runs on, its handlers included.
    fn handlers_never_run(at: &Place) {
        let session = at.session();
        session.times_out("trap 'touch late' EXIT TERM HUP INT; (trap 'touch late' EXIT TERM HUP; sleep 60) & sleep 60");
        session.times_out("sh -c 'trap \"touch late\" EXIT TERM; while :; do sleep 1; done'");
        session.gives("ls", 0, "");
    }

    fn a_daemon_of_python(at: &Place) {
        let session = at.session();
        let cmd = "python3 -c \"import os,time,signal\n\
            for s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\n\
            if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    os.execvp('sleep', ['sleep', '7780'])\n  os._exit(0)\n\
            time.sleep(60)\"";
        session.times_out(cmd);
        assert!(!is_running(&session, "sleep\x007780"));
        session.alive();
    }

    fn a_shell_started_in_the_shell(at: &Place) {
        let session = at.session();
        // It reads an empty stdin, so it ends at once.
        session.does("sh");
        session.times_out("sh -c 'sh -c \"sh -c \\\"sleep 7781; :\\\"; :\"; :'");
        assert!(!is_running(&session, "sleep\x007781"));
        session.alive();
    }

    /// Children that never live long enough to be seen twice.
    fn a_tree_that_forks_and_dies(at: &Place) {
        let session = at.session();
        session.times_out("f() { (sleep 0.01; f) & }; f; sleep 60");
        let count = || host::processes_of(&session.id).len();
        let idle = count();
        wait::prescribed(Duration::from_millis(300));
        assert!(idle <= 4 && count() <= 4, "{idle}, then {}", count());
        session.alive();
    }

    fn timeout_of_a_stream(at: &Place) {
        let session = at.session();
        session.keep();
        let body = json!({ "cmd": "echo on; setsid sleep 7782 & sleep 7782", "timeout_ms": 1000 });
        let played = session.stream(&body).finish();
        let done = played.done();
        assert_eq!(
            (&done["exit_code"], &done["exit_reason"]),
            (&json!(124), &json!("timeout")),
            "{done}"
        );
        assert_eq!(done["shell_restarted"], true, "{done}");
        assert_eq!(played.text(), "on\n");
        assert!(played.end().at < Duration::from_millis(1600), "{:?}", played.end().at);
        assert!(!is_running(&session, "sleep\x007782"));
        session.kept();
    }
}
