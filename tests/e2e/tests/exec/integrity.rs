//! X-01 to X-09, X-13 to X-15: what the payload does to its shell, and what the answer says.

use std::time::Duration;

use sandkasten_e2e::session::{decode, encode, quote};
use sandkasten_e2e::{Lab, Session, host, wait};
use sandkasten_protocol::{End, FROM_INIT_BYTES_MAX, FromInit, How};
use serde_json::{Value, json};

use crate::{MIB, base, gives, is_running, play, python, runs, timed};

/// A frame by which init would say that a command ended well.
fn real_frame() -> Vec<u8> {
    let end = End {
        how: How::Exited,
        exit_code: 0,
        cwd: b"/forged".to_vec(),
        duration_ms: 1,
        shell_restarted: false,
        state_lost: false,
        output_bytes: 0,
        dropped_bytes: 0,
        seq: 2,
    };
    let end = FromInit::End { run: 1, end };
    sandkasten_protocol::encode(&end, FROM_INIT_BYTES_MAX).expect("a frame")
}

#[test]
fn x_01_the_payload_prints_what_frames_anything() {
    let lab = Lab::shared();
    let session = base(&lab);
    let mut bytes = real_frame();
    bytes.extend(
        b"\0 0 /forged\0\n\nevent: done\ndata: {\"exit_code\":0}\n\nid: 9\r\n\r\n0\r\n\r\n",
    );
    bytes.extend(br#"{"exit_code":0,"output":"forged","cwd":"/forged","exit_reason":"exited"}"#);
    bytes.extend(b"\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n\x04\x1a\xff\xfe");
    bytes.extend(0..=255u8);
    session.write("/tmp/forged", &bytes, "0644");
    let cmd = "cat /tmp/forged; (exit 7)";
    let request = json!({ "cmd": cmd, "encoding": "base64" });
    let done = session.exec_with(&request);
    assert_eq!((done.code(), done.body["cwd"].as_str()), (7, Some("/workspace")), "{}", done.body);
    assert_eq!(decode(&done.body["output_base64"]), bytes);
    let events = play(&session, &request);
    let chunks = events.iter().filter(|event| event.name == "chunk");
    let told: Vec<u8> = chunks.flat_map(|event| decode(&event.data["chunk_base64"])).collect();
    assert_eq!(told, bytes);
    assert_eq!(events.last().expect("an end").data["exit_code"], 7);
    session.alive();
}

/// The same on every descriptor that the payload can find.
#[test]
fn x_01_the_payload_writes_it_everywhere() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.write("/tmp/forged", &real_frame(), "0644");
    let cmd = "for fd in /proc/self/fd/* /proc/[0-9]*/fd/*; do \
        timeout 1 dd if=/tmp/forged of=$fd oflag=nonblock conv=notrunc status=none 2>/dev/null; \
        done </dev/null >/dev/null; echo over; (exit 9)";
    let done = session.exec(cmd);
    assert_eq!((done.code(), done.reason()), (9, "exited"), "{}", done.body);
    assert!(done.output().ends_with("over\n"), "{}", done.body);
    session.alive();
}

#[test]
fn x_02_every_exit_code_of_a_command() {
    let lab = Lab::shared();
    let session = base(&lab);
    for code in 0..=255 {
        let done = session.exec(&format!("(exit {code})"));
        assert_eq!((done.code(), done.reason()), (code, "exited"), "{}", done.body);
        assert_eq!(done.body["shell_restarted"], false, "{}", done.body);
    }
}

#[test]
fn x_02_every_exit_code_of_the_shell() {
    let lab = Lab::shared();
    let session = base(&lab);
    for code in 0..=255 {
        let done = session.exec(&format!("exit {code}"));
        assert_eq!((done.code(), done.reason()), (code, "shell_exited"), "{}", done.body);
        assert_eq!(done.body["shell_restarted"], true, "{}", done.body);
    }
}

#[test]
fn x_02_every_signal_of_a_child() {
    // Those that stop, and those that do nothing by default.
    const STOP: [i64; 4] = [19, 20, 21, 22];
    const NOTHING: [i64; 4] = [17, 18, 23, 28];
    let lab = Lab::shared();
    let session = base(&lab);
    for signal in (1..=64).filter(|signal| !STOP.contains(signal)) {
        let done = session.exec(&format!("env sh -c 'kill -{signal} $$; exit 0'"));
        let want = if NOTHING.contains(&signal) { 0 } else { 128 + signal };
        assert_eq!((done.code(), done.reason()), (want, "exited"), "{signal}: {}", done.body);
    }
}

#[test]
fn x_02_signals_of_the_shell() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("cd /tmp; K=kept");
    // bash ignores 3, SIGQUIT, in itself.
    for signal in [1, 2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 31, 34, 64] {
        let done =
            session.exec(&format!("trap - {signal} 2>/dev/null; kill -{signal} $$; sleep 5"));
        let ended = (done.code(), done.reason(), done.body["signal"].as_i64());
        assert_eq!(ended, (128 + signal, "signaled", Some(signal)), "{signal}: {}", done.body);
        assert_eq!(done.body["shell_restarted"], true, "{}", done.body);
        gives(&session, "pwd; echo $K", 0, "/tmp\nkept\n");
    }
}

#[test]
fn x_02_memory_and_time_have_their_own_reasons() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base", "limits": { "memory_mb": 64 } }));
    let done = session.exec("tail /dev/zero");
    assert_eq!((done.code(), done.reason()), (137, "oom"), "{}", done.body);
    let done = session.exec_with(&json!({ "cmd": "echo so far; sleep 60", "timeout_ms": 300 }));
    assert_eq!((done.code(), done.reason(), done.output()), (124, "timeout", "so far\n"));
    assert_eq!(done.body["timed_out"], true, "{}", done.body);
    assert!(done.took < Duration::from_millis(1800), "took {:?}", done.took);
    session.alive();
}

/// Where the shell can't say how a command ended, nobody says that it ended well.
#[test]
fn x_02_what_is_not_known_is_no_success() {
    let lab = Lab::shared();
    for cmd in ["enable -n printf; (exit 5)", "enable -n eval builtin printf; (exit 5)"] {
        let session = base(&lab);
        let answer = session.try_exec(&json!({ "cmd": cmd }));
        if answer.status() == 200 {
            assert_eq!(answer.json()["exit_code"], 5, "{cmd}: {answer}");
        } else {
            answer.error(500, "INTERNAL_ERROR");
        }
        let next = session.try_exec(&json!({ "cmd": "(exit 6)" }));
        if next.status() == 200 {
            assert_eq!(next.json()["exit_code"], 6, "{cmd}: {next}");
        } else {
            next.error(500, "INTERNAL_ERROR");
        }
    }
}

mod x_03_reading_stdin {
    use super::*;

    macro_rules! readers {
        ($($name:ident: $cmd:expr, $code:expr, $output:expr;)+) => {
            $(#[test]
            fn $name() {
                let lab = Lab::shared();
                let session = python(&lab);
                gives(&session, $cmd, $code, $output);
                session.alive();
            })+
        };
    }

    readers! {
        cat: "cat; echo rc=$?", 0, "rc=0\n";
        cat_and_a_line_behind: "cat\necho two", 0, "two\n";
        head: "head -1 | wc -c", 0, "0\n";
        read: "read x; echo rc=$? x=[$x]", 0, "rc=1 x=[]\n";
        read_prompt: "read -p 'Password: ' -s x; echo rc=$?", 0, "rc=1\n";
        select: "select x in a b; do :; done 2>/dev/null; echo over", 0, "\nover\n";
        terminal: "cat 2>/dev/null </dev/tty; echo rc=$?", 0, "rc=1\n";
        terminal_prompt: "(echo -n 'passphrase: ' >/dev/tty) 2>/dev/null; echo rc=$?", 0, "rc=1\n";
        python_input: "python3 -c 'input()' 2>/dev/null; echo rc=$?", 0, "rc=1\n";
        python_getpass: "python3 -c 'import getpass; getpass.getpass()' >/dev/null 2>&1; echo rc=$?", 0, "rc=1\n";
        shell: "bash; sh; echo over", 0, "over\n";
    }

    /// What waits for something else waits until its time is over, and no longer.
    #[test]
    fn what_waits_for_ever_is_ended_by_its_time() {
        let lab = Lab::shared();
        let session = base(&lab);
        let cmd = "mkfifo f; cat f";
        let done = session.exec_with(&json!({ "cmd": cmd, "timeout_ms": 500 }));
        assert_eq!((done.code(), done.reason()), (124, "timeout"), "{}", done.body);
        session.alive();
    }
}

mod x_04_unfinished_text {
    use super::*;

    macro_rules! texts {
        ($($name:ident: $cmd:expr;)+) => {
            $(#[test]
            fn $name() {
                let lab = Lab::shared();
                for image in ["base", "tiny"] {
                    let session = lab.session(&json!({ "image": image }));
                    session.run("K=kept; cd /tmp");
                    let (done, took) = timed(|| session.exec($cmd));
                    assert_ne!(done.code(), 0, "{}", done.body);
                    assert!(took < Duration::from_secs(1), "took {took:?}");
                    assert!(!done.output().contains("> "), "a prompt: {}", done.body);
                    gives(&session, "echo $K; pwd", 0, "kept\n/tmp\n");
                }
            })+
        };
    }

    texts! {
        single_quote: "echo 'open";
        double_quote: "echo \"open";
        backquote: "echo `open";
        substitution: "echo $(open";
        parameter: "echo ${open";
        condition: "if true; then echo x";
        body_of_a_loop: "while true; do";
        case: "case x in";
        group: "{ echo x";
        subshell: "(echo x";
        function: "f() {";
        pipe: "echo x |";
    }

    /// The end of the text ends a heredoc; shells warn of it at most.
    #[test]
    fn heredoc() {
        let lab = Lab::shared();
        for image in ["base", "tiny"] {
            let session = lab.session(&json!({ "image": image }));
            let (done, took) = timed(|| session.exec("cat <<END 2>/dev/null\nopen"));
            assert!(took < Duration::from_secs(1), "took {took:?}");
            assert_eq!((done.code(), done.output().lines().last()), (0, Some("open")));
            session.alive();
        }
    }
}

mod x_05_a_shell_that_is_changed {
    use super::*;

    macro_rules! changes {
        ($($name:ident: $($cmd:expr),+;)+) => {
            $(#[test]
            fn $name() {
                let lab = Lab::shared();
                let session = base(&lab);
                session.run("K=kept");
                $(drop(session.try_exec(&json!({ "cmd": $cmd })));)+
                gives(&session, "echo out; echo err >&2; echo $K; (exit 4)", 4, "out\nerr\nkept\n");
                gives(&session, "printf x; true", 0, "x");
            })+
        };
    }

    changes! {
        output_to_null: "exec >/dev/null; echo lost";
        output_closed: "exec 1>&-", "exec 2>&-";
        all_closed: "exec 0<&- 1>&- 2>&- 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-";
        traps: "trap 'echo T' DEBUG ERR RETURN; trap 'echo E' EXIT; trap '' TERM INT HUP PIPE", "trap - DEBUG ERR RETURN EXIT";
        trap_on_exit: "trap 'echo E >/dev/null; exit 9' EXIT", "exit 3", "trap - EXIT";
        unset_is_an_error: "set -u; echo $NOT_SET", "set +u";
        functions: "eval(){ :; }; builtin(){ :; }; command(){ :; }; printf(){ :; }; exec(){ :; }; exit(){ :; }", "unset -f printf";
        aliases: "shopt -s expand_aliases; alias echo=false printf=false eval=false exec=false builtin=false command=false '{=false' if=false", "unalias -a";
        prompts: "PS1='$(sleep 9)' PS2='> ' PS4='$(echo x)' PROMPT_COMMAND='echo P'";
        terminal: "stty raw 2>/dev/null; reset >/dev/null 2>&1; tput init 2>/dev/null";
        separators: "IFS=abcdefghijklmnopqrstuvwxyz/0123456789", "unset IFS";
        no_path: "PATH=/nowhere", "PATH=/usr/bin:/bin";
        no_globs: "set -f; set -o noclobber; shopt -s failglob";
        posix: "set -o posix";
        directory: "mkdir d; cd d; rmdir ../d";
        builtins_off: "enable -n echo cd exec trap";
        variables: "declare -r PWD_=1; OLDPWD=; BASH_ENV=/nowhere; ENV=/nowhere; LINENO=; RANDOM=x; unset SHLVL HOME TERM";
        jobs: "set -m; sleep 60 & bg; disown -a";
        limits: "ulimit -n 16";
    }

    /// Without `eval` nothing can be run, and every answer says so; another shell has it.
    #[test]
    fn eval_off() {
        let lab = Lab::shared();
        let session = base(&lab);
        session.run("cd /tmp; K=kept; enable -n eval");
        let done = session.exec("echo lost");
        assert!(done.code() != 0 && done.output().contains("eval"), "{}", done.body);
        session.request("POST", "/shell/restart").json(&json!({})).send().ok(200);
        gives(&session, "pwd; echo $K", 0, "/tmp\nkept\n");
    }

    /// As in a script: what fails ends the shell, and the next one has the option too.
    #[test]
    fn errors_end_the_shell() {
        let lab = Lab::shared();
        let session = base(&lab);
        gives(&session, "set -e; echo on", 0, "on\n");
        let done = session.exec("false; echo no");
        assert_eq!((done.code(), done.reason(), done.output()), (1, "shell_exited", ""));
        gives(&session, "set +e; false; echo on", 0, "on\n");
    }
}

mod x_06_state_persists {
    use super::*;

    #[test]
    fn variables_functions_umask_directory() {
        let lab = Lab::shared();
        for image in ["base", "tiny"] {
            let session = lab.session(&json!({ "image": image }));
            if image == "base" {
                session.run("shopt -s expand_aliases");
            }
            session.run("mkdir -p /tmp/x; cd /tmp/x; export A=1; b=2; f(){ echo F$1; }; umask 027; alias hi='echo H'");
            gives(&session, "pwd; echo $A $b; f 3; umask", 0, "/tmp/x\n1 2\nF3\n0027\n");
            gives(&session, "sh -c 'echo $A [$b]'", 0, "1 []\n");
            gives(&session, "hi", 0, "H\n");
        }
    }

    #[test]
    fn directories_of_any_name() {
        let lab = Lab::shared();
        let session = base(&lab);
        for name in [
            "a b",
            "c:d",
            "e\nf",
            " g ",
            "'",
            "\"",
            "$HOME",
            "\\",
            "*",
            "-",
            "é😀",
            "\u{1b}[1m",
            "\t",
        ] {
            let dir = format!("/workspace/{name}");
            let cmd = format!("mkdir -p {0}; cd {0}", quote(&dir));
            let done = session.exec(&cmd);
            assert_eq!((done.code(), done.body["cwd"].as_str()), (0, Some(dir.as_str())));
            assert_eq!(session.exec("true").body["cwd"], dir.as_str());
            assert_eq!(session.info()["cwd"], dir.as_str());
        }
    }

    #[test]
    fn links_as_they_were_entered() {
        let lab = Lab::shared();
        let session = base(&lab);
        session.run("mkdir real; ln -s real link; cd link");
        assert_eq!(session.exec("true").body["cwd"], "/workspace/link");
        assert_eq!(session.exec("PWD=/forged").body["cwd"], "/workspace/real");
    }

    #[test]
    fn a_deleted_directory_keeps_its_last_name() {
        let lab = Lab::shared();
        let session = base(&lab);
        let done = session.exec("mkdir gone; cd gone; rmdir ../gone");
        assert_eq!(done.body["cwd"], "/workspace/gone", "{}", done.body);
        let done = session.exec("true");
        assert_eq!(done.body["cwd"], "/workspace/gone", "{}", done.body);
        gives(&session, "cd /workspace && pwd", 0, "/workspace\n");
    }
}

mod x_07_a_timeout_takes_what_was_started {
    use super::*;

    /// The command times out, and nothing of it is left at once; what was there before is.
    #[track_caller]
    fn takes(start: &str) {
        let lab = Lab::shared();
        let session = base(&lab);
        session.run("sleep 7001 & disown; setsid sleep 7002 & true");
        runs(&session, "sleep 7001");
        runs(&session, "sleep 7002");
        let cmd = format!("{start}\nsleep 60");
        let done = session.exec_with(&json!({ "cmd": cmd, "timeout_ms": 700 }));
        assert_eq!((done.code(), done.reason()), (124, "timeout"), "{}", done.body);
        let took = done.body["duration_ms"].as_u64().unwrap_or_default();
        assert!(took <= 1200, "{start}: ended after {took} ms");
        for words in ["sleep 7771", "sleep 60"] {
            assert!(!is_running(&session, words), "{start}: {words} runs on");
        }
        assert!(is_running(&session, "sleep 7001") && is_running(&session, "sleep 7002"));
        session.alive();
    }

    macro_rules! starts {
        ($($name:ident: $start:expr;)+) => {
            $(#[test]
            fn $name() {
                takes($start);
            })+
        };
    }

    starts! {
        in_the_background: "sleep 7771 &";
        setsid: "setsid sleep 7771 &";
        double_fork: "(setsid sh -c 'sleep 7771 &' &)";
        nohup: "nohup sleep 7771 >/dev/null 2>&1 &";
        signals_ignored: "(trap '' TERM INT HUP QUIT; sleep 7771) &";
        stopped: "sleep 7771 & kill -STOP $!";
        deep: "sh -c 'sh -c \"sh -c \\\"sleep 7771 & wait\\\" & wait\" & wait' &";
        pipe: "sleep 7771 | sleep 7771 &";
    }

    /// A loop of the shell's own has no process to kill but the shell.
    #[test]
    fn builtin_loop() {
        takes("sleep 7771 & while :; do :; done");
    }

    /// An exec's timeout takes nothing of a process's, and the other way round.
    #[test]
    fn processes_and_execs_apart() {
        let lab = Lab::shared();
        let session = base(&lab);
        let start = |body: &Value| session.request("POST", "/processes").json(body).send();
        let argv = ["sh", "-c", "setsid sleep 7003 & sleep 7004"];
        let kept = start(&json!({ "argv": argv })).ok(201);
        runs(&session, "sleep 7003");
        let done = session.exec_with(&json!({ "cmd": "sleep 7771", "timeout_ms": 500 }));
        assert_eq!((done.code(), done.reason()), (124, "timeout"), "{}", done.body);
        assert!(is_running(&session, "sleep 7003") && is_running(&session, "sleep 7004"));
        session.run("sleep 7005 &");
        let argv = ["sh", "-c", "setsid sleep 7006 & (nohup sleep 7007 &) ; sleep 7008"];
        let body = json!({ "argv": argv, "timeout_ms": 700, "wait": true });
        let answer = start(&body);
        let ended = answer.ok(200);
        assert_eq!((&ended["exit_code"], &ended["exit_reason"]), (&json!(137), &json!("timeout")));
        assert!(answer.took < Duration::from_millis(2200), "took {:?}", answer.took);
        for words in ["sleep 7006", "sleep 7007", "sleep 7008"] {
            assert!(!is_running(&session, words), "{words} runs on");
        }
        for words in ["sleep 7003", "sleep 7004", "sleep 7005"] {
            assert!(is_running(&session, words), "{words} was taken");
        }
        let id = kept["process_id"].as_str().expect("an id");
        assert_eq!(session.request("DELETE", &format!("/processes/{id}")).send().status(), 200);
        assert!(!is_running(&session, "sleep 7003") && !is_running(&session, "sleep 7004"));
        assert!(is_running(&session, "sleep 7005"));
        session.alive();
    }
}

/// The late output of a job goes to its own exec.
#[test]
fn x_08_late_output_is_nobody_elses() {
    let lab = Lab::shared();
    let session = base(&lab);
    session.run("mkfifo go");
    let done =
        session.exec("(read x <go; echo LATE; echo LATE >&2; echo over >/tmp/over) & echo first");
    assert_eq!(done.output(), "first\n");
    for number in 0..20 {
        gives(&session, &format!("echo {number}"), 0, &format!("{number}\n"));
    }
    gives(&session, "echo >go; echo told", 0, "told\n");
    wait::until("the job has written", Duration::from_secs(5), || {
        session.exec("cat /tmp/over 2>/dev/null").output() == "over\n"
    });
    gives(&session, "echo behind", 0, "behind\n");
}

#[test]
fn x_09_the_control_socket_is_out_of_reach() {
    const SEARCH: &str = r#"
import glob, os, socket
found = set()
for line in open('/proc/net/unix').read().splitlines()[1:]:
    words = line.split(None, 7)
    if len(words) > 7:
        found.add(words[7])
for top in ('/', '/run', '/tmp', '/dev', '/.sandkasten', '/var', '/proc/1', '/proc/1/root', '/proc/1/cwd'):
    for dir, _, names in os.walk(top):
        if dir.startswith('/proc/') and top == '/':
            continue
        for name in names:
            path = os.path.join(dir, name)
            try:
                if (os.lstat(path).st_mode & 0o170000) == 0o140000:
                    found.add(path)
            except OSError:
                pass
for name in ('control.sock', '/control.sock', '/.sandkasten/control.sock', '/run/control.sock'):
    found.add(name)
    found.add('@' + name)
reached = []
for name in found:
    name = '\0' + name[1:] if name.startswith('@') else name
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        try:
            socket.socket(socket.AF_UNIX, kind).connect(name)
            reached.append(name)
        except OSError:
            pass
for path in glob.glob('/proc/[0-9]*/fd/*'):
    try:
        if os.readlink(path).startswith('socket:'):
            os.open(path, os.O_RDWR)
            reached.append(path)
    except OSError:
        pass
print('reached', reached)
"#;
    let lab = Lab::shared();
    for user in ["sandbox", "root"] {
        let session = lab.session(&json!({ "image": "python", "user": user }));
        session.write("/tmp/search.py", SEARCH.as_bytes(), "0644");
        let output = session.run("python3 /tmp/search.py 2>/dev/null");
        assert_eq!(output, "reached []\n", "{user}");
        session.alive();
    }
}

mod x_13_sizes_of_commands {
    use super::*;

    /// A command of just that many bytes comes through whole: it says how long it is.
    #[track_caller]
    fn comes_through(bytes: usize) {
        let lab = Lab::shared();
        for image in ["base", "tiny"] {
            let session = lab.session(&json!({ "image": image }));
            let (before, behind) = ("x='", "'; echo ${#x}");
            let filling = bytes - before.len() - behind.len();
            let cmd = format!("{before}{}{behind}", "y".repeat(filling));
            assert_eq!(cmd.len(), bytes);
            gives(&session, &cmd, 0, &format!("{filling}\n"));
        }
    }

    macro_rules! sizes {
        ($($name:ident: $bytes:expr;)+) => {
            $(#[test]
            fn $name() {
                comes_through($bytes);
            })+
        };
    }

    sizes! {
        a_pipe_less_1: 4095;
        a_pipe: 4096;
        a_pipe_and_1: 4097;
        kib_16: 16 << 10;
        kib_64: 64 << 10;
        kib_128_less_1: (128 << 10) - 1;
        mib: MIB;
    }

    #[test]
    fn none_and_one() {
        let lab = Lab::shared();
        let session = base(&lab);
        for cmd in ["", ":", "\n", "# nothing", "   "] {
            gives(&session, cmd, 0, "");
        }
    }

    #[test]
    fn one_byte_too_many() {
        let lab = Lab::shared();
        let session = base(&lab);
        let answer = session.try_exec(&json!({ "cmd": "x".repeat(MIB + 1) }));
        let error = answer.error(413, "TOO_LARGE");
        let message = error["message"].as_str().unwrap_or_default();
        assert!(message.contains("1048577") && message.contains("1048576"), "{error}");
        session.alive();
    }

    #[test]
    fn nul_inside() {
        let lab = Lab::shared();
        let session = base(&lab);
        session.try_exec(&json!({ "cmd": "echo a\0b" })).error(400, "INVALID_REQUEST");
        session.alive();
    }

    /// Every byte that JSON can carry, in a command long enough for a file of its own.
    #[test]
    fn any_character() {
        let lab = Lab::shared();
        let session = base(&lab);
        let all: String =
            (1..=0x2FFu32).chain([0x2028, 0xFFFD, 0x1_F600]).filter_map(char::from_u32).collect();
        for text in [all.clone(), all.repeat(10)] {
            let cmd = format!("printf %s {}", quote(&text));
            let done = session.exec_with(&json!({ "cmd": cmd, "encoding": "base64" }));
            assert_eq!(decode(&done.body["output_base64"]), text.as_bytes());
        }
    }
}

/// Bytes that cleaning would change: CR, escapes, NUL, invalid UTF-8.
const DIRTY: &[u8] = b"a\rb\r\nc\x1b[31mred\x1b[0m\0\xff\xfe\xc3(\xe2\x82\n\r\n\xf0\x9f";

fn dirty(session: &Session<'_>) {
    session.write("/tmp/out", DIRTY, "0644");
    session.write("/tmp/err", b"E\r\n\xff\x1b]0;t\x07", "0644");
}

#[test]
fn x_14_streams_are_apart_and_exact() {
    let lab = Lab::shared();
    let session = base(&lab);
    dirty(&session);
    let cmd = "cat /tmp/out; cat /tmp/err >&2";
    let done = session.exec_with(&json!({ "cmd": cmd, "split": true, "encoding": "base64" }));
    assert_eq!(decode(&done.body["stdout_base64"]), DIRTY);
    assert_eq!(decode(&done.body["stderr_base64"]), b"E\r\n\xff\x1b]0;t\x07");
    assert_eq!(done.body["output"], Value::Null, "{}", done.body);
    let done = session.exec_with(&json!({ "cmd": cmd, "split": true }));
    let want = "b\ncred\0\u{FFFD}\u{FFFD}\u{FFFD}(\u{FFFD}\n\n\u{FFFD}";
    assert_eq!((&done.body["stdout"], &done.body["stderr"]), (&json!(want), &json!("E\n\u{FFFD}")));
    let mut all = Vec::new();
    let events = play(&session, &json!({ "cmd": cmd, "split": true, "encoding": "base64" }));
    for event in events.iter().filter(|event| event.name == "chunk") {
        all.push((event.data["stream"].clone(), decode(&event.data["chunk_base64"])));
    }
    let of = |stream: &str| -> Vec<u8> {
        all.iter().filter(|(of, _)| of == stream).flat_map(|(_, data)| data.clone()).collect()
    };
    assert_eq!((of("stdout"), of("stderr")), (DIRTY.to_vec(), b"E\r\n\xff\x1b]0;t\x07".to_vec()));
}

#[test]
fn x_14_merged_bytes_are_exact_and_text_is_clean() {
    let lab = Lab::shared();
    let session = base(&lab);
    dirty(&session);
    let done = session.exec_with(&json!({ "cmd": "cat /tmp/out", "encoding": "base64" }));
    assert_eq!(decode(&done.body["output_base64"]), DIRTY);
    let want = "b\ncred\0\u{FFFD}\u{FFFD}\u{FFFD}(\u{FFFD}\n\n\u{FFFD}";
    gives(&session, "cat /tmp/out", 0, want);
}

/// On a PTY nothing is cleaned; what is no UTF-8 can't be said in JSON.
#[test]
fn x_14_raw_output_is_a_terminals() {
    let lab = Lab::shared();
    let session = base(&lab);
    let cmd = "test -t 1 && test -t 2 && printf '\\033[1mbold\\033[0m\\n\\377\\n'; cd /tmp";
    let done = session.exec_with(&json!({ "cmd": cmd, "raw_output": true }));
    assert_eq!(done.output(), "\u{1b}[1mbold\u{1b}[0m\r\n\u{FFFD}\r\n", "{}", done.body);
    assert_eq!(done.body["cwd"], "/tmp", "{}", done.body);
    let request = json!({ "cmd": "printf 'x\\n\\377'", "raw_output": true, "encoding": "base64" });
    assert_eq!(decode(&session.exec_with(&request).body["output_base64"]), b"x\r\n\xff");
}

/// An image of one static program: no shell, no coreutils.
#[test]
fn x_15_an_image_without_a_shell_runs_programs() {
    let mut image = sandkasten_e2e::image::Rootfs::empty();
    let busybox = std::fs::read(host::find_program("busybox").expect("busybox")).expect("read it");
    image.file("bin/busybox", &busybox, 0o755);
    let lab = Lab::builder().image("bare", image).start();
    let session = lab.session(&json!({ "image": "bare" }));
    assert_eq!(session.info["shell"], Value::Null, "{}", session.info);
    let answer = session.try_exec(&json!({ "cmd": "true" }));
    let error = answer.error(400, "INVALID_REQUEST");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("as processes")), "{error}");
    let start = |argv: Value, stdin: Value| {
        let body = json!({ "argv": argv, "stdin": stdin, "wait": true });
        session.request("POST", "/processes").json(&body).send().ok(200)
    };
    let done = start(json!(["/bin/busybox", "echo", "a b", "c"]), json!("none"));
    assert_eq!(
        (&done["exit_code"], decode(&done["stdout_base64"])),
        (&json!(0), b"a b c\n".to_vec())
    );
    let input: Vec<u8> = (0..=255).collect();
    let done = start(json!(["busybox", "cat"]), json!({ "base64": encode(&input) }));
    // Not on the PATH.
    assert!(matches!(done["exit_code"].as_i64(), Some(0 | 127)), "{done}");
    let done = start(json!(["/bin/busybox", "cat"]), json!({ "base64": encode(&input) }));
    assert_eq!(decode(&done["stdout_base64"]), input);
    assert_eq!(start(json!(["/bin/nothing"]), json!("none"))["exit_code"], 127);
}

/// A shell of busybox without bash and base64.
#[test]
fn x_15_an_image_of_busybox_has_all_of_exec() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "tiny" }));
    assert_eq!(session.info["shell"], "sh", "{}", session.info);
    gives(&session, "echo a; echo b >&2; (exit 3)", 3, "a\nb\n");
    let body = json!({ "argv": ["echo", "x"], "wait": true });
    let done = session.request("POST", "/processes").json(&body).send().ok(200);
    assert_eq!(decode(&done["stdout_base64"]), b"x\n");
}
