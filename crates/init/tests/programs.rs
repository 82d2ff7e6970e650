//! Programs: how they start, what they get and give, how they end, and what they leave.

#![allow(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    clippy::indexing_slicing,
    reason = "tests fail loudly"
)]

mod boxed;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use boxed::{Image, Kind, Sandbox};
use sandkasten_protocol::{
    Begun, DATA_BYTES_MAX, End, FromInit, How, Reader, Record, Run, RunUser, ShellPreference,
    SignalTo, Spool, Stdin, Stream, Task, Then, ToInit, Wait, Window, id,
};

const ALL: [Kind; 2] = [Kind::Bash, Kind::Busybox];
const WINDOW: Window = Window { rows: 33, cols: 101 };

/// All that was said of the programs of a test.
#[derive(Debug, Default)]
struct Seen {
    all: BTreeMap<u64, One>,
}

#[derive(Debug, Default)]
struct One {
    begun: Option<Begun>,
    out: Vec<u8>,
    err: Vec<u8>,
    pty: Vec<u8>,
    taken: u64,
    end: Option<End>,
}

impl One {
    fn how(&self) -> (How, i32) {
        let end = self.end.as_ref().unwrap();
        (end.how, end.exit_code)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    fn screen(&self) -> String {
        String::from_utf8_lossy(&self.pty).replace('\r', "")
    }

    #[track_caller]
    fn is(&self, code: i32, out: &str) {
        assert_eq!((self.how(), self.text().as_str()), ((How::Exited, code), out), "{self:?}");
        assert!(self.begun.unwrap().pid.unwrap() > 1);
    }
}

impl Seen {
    fn one(&self, run: u64) -> &One {
        &self.all[&run]
    }

    fn take(&mut self, sandbox: &mut Sandbox) {
        match sandbox.next() {
            FromInit::Begun { run, begun } => self.of(run).begun = Some(begun),
            FromInit::Output { run, records } => {
                let cost = records.iter().map(Record::cost).sum();
                sandbox.link.send(&ToInit::Credit { run, cost });
                let one = self.of(run);
                assert!(one.begun.is_some() && one.end.is_none());
                for record in records {
                    match record.stream {
                        Stream::Stdout => one.out.extend(record.data),
                        Stream::Stderr => one.err.extend(record.data),
                        Stream::Pty => one.pty.extend(record.data),
                        Stream::Output => panic!("{record:?}"),
                    }
                }
            }
            FromInit::Taken { run, bytes } => self.of(run).taken += bytes,
            FromInit::End { run, end } => {
                assert!(self.of(run).end.is_none());
                self.of(run).end = Some(end);
            }
            FromInit::Forgotten { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn of(&mut self, run: u64) -> &mut One {
        self.all.entry(run).or_default()
    }

    #[track_caller]
    fn until(&mut self, sandbox: &mut Sandbox, run: u64, done: impl Fn(&One) -> bool) -> &One {
        while !self.all.get(&run).is_some_and(&done) {
            self.take(sandbox);
        }
        self.one(run)
    }

    #[track_caller]
    fn end(&mut self, sandbox: &mut Sandbox, run: u64) -> &One {
        self.until(sandbox, run, |one| one.end.is_some())
    }
}

struct Program {
    run: Run,
    argv: Vec<Vec<u8>>,
    user: RunUser,
    tty: Option<Window>,
}

fn start(sandbox: &mut Sandbox, argv: &[&str], change: impl FnOnce(&mut Program)) -> u64 {
    let id = sandbox.fresh_run();
    let argv = argv.iter().map(|word| word.as_bytes().to_vec()).collect();
    let spool = Spool::EachStream { bytes: 64 << 20 };
    let run = Run { reader: Reader::Paced, spool, ..Run::new(id) };
    let mut program = Program { run, argv, user: RunUser::Session, tty: None };
    change(&mut program);
    let Program { run, argv, user, tty } = program;
    sandbox.link.send(&ToInit::Begin { run, task: Task::Program { argv, user, tty } });
    id
}

fn run(sandbox: &mut Sandbox, argv: &[&str], change: impl FnOnce(&mut Program)) -> One {
    let id = start(sandbox, argv, change);
    let mut seen = Seen::default();
    seen.end(sandbox, id);
    seen.all.remove(&id).unwrap()
}

fn sh(sandbox: &mut Sandbox, cmd: &str, change: impl FnOnce(&mut Program)) -> One {
    run(sandbox, &["/bin/sh", "-c", cmd], change)
}

fn start_sh(sandbox: &mut Sandbox, cmd: &str, change: impl FnOnce(&mut Program)) -> u64 {
    start(sandbox, &["/bin/sh", "-c", cmd], change)
}

fn send(sandbox: &mut Sandbox, run: u64, data: &[u8]) {
    for part in data.chunks(DATA_BYTES_MAX) {
        sandbox.link.send(&ToInit::Stdin { run, data: part.to_vec(), is_last: false });
    }
}

fn send_end(sandbox: &mut Sandbox, run: u64) {
    sandbox.link.send(&ToInit::Stdin { run, data: Vec::new(), is_last: true });
}

/// Counts processes of the box whose command line holds a word.
fn count(sandbox: &mut Sandbox, word: &str) -> String {
    let (first, rest) = word.split_at(1);
    let cmd = format!(
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null \
         | grep -c '[{first}]{rest}'"
    );
    sh(sandbox, &cmd, |_| {}).text()
}

#[track_caller]
fn none_left(sandbox: &mut Sandbox, word: &str) {
    assert_eq!(count(sandbox, word), "0\n");
}

// ---- the start ----

#[test]
fn argv_arrives_byte_for_byte() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        let words: [&[u8]; 6] = [b"", b"a b", b"\n", b"'\"$x`\\", b"\xff\xfe", "ä".as_bytes()];
        let one = run(sandbox, &["/bin/sh", "-c", "printf '<%s>' \"$@\"", "x"], |program| {
            program.argv.extend(words.map(<[u8]>::to_vec));
        });
        let expected: Vec<u8> = words.iter().flat_map(|w| [b"<", *w, b">"].concat()).collect();
        assert_eq!((one.how(), one.out), ((How::Exited, 0), expected));
    }
}

#[test]
fn environment() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let set = |name: &[u8], value: &[u8]| (name.to_vec(), value.to_vec());
    let one = run(sandbox, &["env", "-0"], |program| {
        program.run.env = vec![set(b"A", b"1"), set(b"B", b"x\n\xff="), set(b"HOME", b"/h")];
    });
    let mut all: Vec<&[u8]> = one.out.split(|b| *b == 0).filter(|v| !v.is_empty()).collect();
    all.sort_unstable();
    let expected: [&[u8]; 7] = [
        b"A=1",
        b"B=x\n\xff=",
        b"HOME=/h",
        b"LC_CTYPE=C.UTF-8",
        b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        b"PWD=/workspace",
        b"TERM=dumb",
    ];
    assert_eq!(all, expected);
    let bad = run(sandbox, &["env"], |program| program.run.env = vec![set(b"A=B", b"1")]);
    assert_eq!(bad.how().0, How::NotStarted(errno::EINVAL));
}

mod errno {
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const E2BIG: i32 = 7;
}

#[test]
fn working_directory() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let at = |dir: &'static str| {
        move |program: &mut Program| program.run.cwd = Some(dir.as_bytes().to_vec())
    };
    run(sandbox, &["pwd"], |_| {}).is(0, "/workspace\n");
    run(sandbox, &["mkdir", "a", "closed"], |_| {}).is(0, "");
    run(sandbox, &["chmod", "0", "closed"], |_| {}).is(0, "");
    run(sandbox, &["pwd"], at("a")).is(0, "/workspace/a\n");
    run(sandbox, &["pwd"], at("/tmp")).is(0, "/tmp\n");
    for bad in ["nowhere", "closed", "/etc/passwd", ""] {
        let one = run(sandbox, &["pwd"], at(bad));
        assert_eq!((one.how().0, one.begun), (How::BadCwd, None), "{bad}");
    }
    let one = run(sandbox, &["pwd"], |program| {
        program.user = RunUser::Root;
        program.run.cwd = Some(b"closed".to_vec());
    });
    one.is(0, "/workspace/closed\n");
    // A program that is looked for where it starts.
    sh(sandbox, "printf '#!/bin/sh\\necho here' >a/p; chmod +x a/p", |_| {}).is(0, "");
    run(sandbox, &["./p"], at("a")).is(0, "here\n");
    run(sandbox, &["./p"], |_| {}).is(127, "");
}

#[test]
fn users() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let who = "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; grep CapEff /proc/self/status";
    let as_user = |user: RunUser| move |program: &mut Program| program.user = user;
    let none = "CapEff:\t0000000000000000\n";
    let session = sh(sandbox, who, as_user(RunUser::Session));
    session.is(0, &format!("1000\n1000\n1000\n/home/sandbox\n{none}"));
    let root = sh(sandbox, who, as_user(RunUser::Root));
    root.is(0, "0\n0\n0\n/root root root\nCapEff:\t00000000800405fb\n");
    let named = |name: &str| as_user(RunUser::Named(name.into()));
    sh(sandbox, who, named("sandbox"))
        .is(0, &format!("1000\n1000\n1000\n/home/sandbox sandbox sandbox\n{none}"));
    sh(sandbox, who, named("root")).is(0, &root.text());
    let add = "printf 'w:x:33:34::/var/w:\\ninit:x:65000:65000::/:\\nbig:x:70000:1::/:\\n\
               half:x:7:' >>/etc/passwd";
    sh(sandbox, add, as_user(RunUser::Root)).is(0, "");
    for name in ["w", "33"] {
        sh(sandbox, who, named(name)).is(0, &format!("33\n34\n34\n/var/w w w\n{none}"));
    }
    for name in ["nobody", "init", "big", "half", "", "w:x", "34", "65000", "\n"] {
        let one = sh(sandbox, who, named(name));
        assert_eq!((one.how().0, one.begun), (How::UnknownUser, None), "{name}");
    }
    // What is no file is not read.
    for place in ["mkfifo /etc/passwd", "ln -s /dev/zero /etc/passwd", "mkdir /etc/passwd"] {
        sh(sandbox, &format!("rm -rf /etc/passwd; {place}"), as_user(RunUser::Root)).is(0, "");
        assert_eq!(sh(sandbox, who, named("root")).how().0, How::UnknownUser, "{place}");
        sh(sandbox, "id -u; echo $HOME", as_user(RunUser::Root)).is(0, "0\n/root\n");
    }
    // It is read with the session user's rights.
    let hide = "rm -rf /etc/passwd; echo root:x:0:0::/r: >/etc/passwd; chmod 600 /etc/passwd";
    sh(sandbox, hide, as_user(RunUser::Root)).is(0, "");
    assert_eq!(sh(sandbox, who, named("root")).how().0, How::UnknownUser);
}

#[test]
fn programs_that_are_not_there() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        let prepare = "mkdir d e; echo x >d/plain; echo x >bad; printf '#!/nowhere\\n' >script; \
                       printf '#!/bin/sh\\necho $0 found' >e/tool; chmod +x bad script e/tool";
        sh(sandbox, prepare, |_| {}).is(0, "");
        for missing in ["no-such-program", "./nothing", "bad/x", "", "./script", "/"] {
            let code = if missing == "/" { 126 } else { 127 };
            run(sandbox, &[missing], |_| {}).is(code, "");
        }
        for not in ["d/plain", "./bad", "./d"] {
            run(sandbox, &[not], |_| {}).is(126, "");
        }
        let path = |value: &'static str| {
            move |program: &mut Program| {
                program.run.env = vec![(b"PATH".to_vec(), value.as_bytes().to_vec())];
            }
        };
        run(sandbox, &["tool"], path("/nowhere:d:/workspace/e")).is(0, "/workspace/e/tool found\n");
        run(sandbox, &["tool"], path("d")).is(127, "");
        run(sandbox, &["plain"], path("d:/nowhere")).is(126, "");
        run(sandbox, &["bad"], path("")).is(126, "");
        assert_eq!(run(sandbox, &[], |_| {}).how().0, How::NotStarted(errno::EINVAL));
    }
}

#[test]
fn two_mib_of_arguments_and_environment() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let words = 2 * 1024 * 1024 / 1024;
    let one = run(sandbox, &["/bin/sh", "-c", "echo $#; env | wc -c", "x"], |program| {
        program.argv.extend((0..words / 2).map(|_| vec![b'a'; 1023]));
        let var = |n: usize| (format!("V{n:04}").into_bytes(), vec![b'e'; 1017]);
        program.run.env = (0..words / 2).map(var).collect();
    });
    let text = one.text();
    let (args, env) = text.split_once('\n').unwrap();
    assert_eq!((one.how(), args), ((How::Exited, 0), "1024"));
    assert!(env.trim().parse::<usize>().unwrap() > 1024 * 1024);
    let one = run(sandbox, &["/bin/true"], |program| program.argv.push(vec![b'a'; 200_000]));
    assert_eq!((one.how().0, one.begun), (How::NotStarted(errno::E2BIG), None));
}

#[test]
fn it_is_neither_session_nor_group_leader() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        let cmd = "exec 9</proc/self/stat; read -r pid c s ppid pgrp sid rest <&9; \
                   test $pid = $$ && test $pgrp = $ppid && test $sid = $ppid && echo as it should";
        // `read` is the shell's own, so `self` is the shell.
        sh(sandbox, cmd, |_| {}).is(0, "as it should\n");
        run(sandbox, &["setsid", "sh", "-c", "echo in place; exit 4"], |_| {}).is(4, "in place\n");
    }
}

#[test]
fn descriptors_and_limits_are_clean() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let cmd = "ls /proc/self/fd; umask; grep -E 'Sig(Blk|Ign)' /proc/self/status";
    let one = run(sandbox, &["/bin/bash", "-c", &format!("exec sh -c \"{cmd}\"")], |_| {});
    let zero = "0000000000000000";
    let signals = format!("SigBlk:\t{zero}\nSigIgn:\t{zero}\n");
    one.is(0, &format!("0\n1\n2\n3\n0022\n{signals}"));
}

// ---- input and output ----

#[test]
fn streams_are_apart_and_belong_to_the_user() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        sh(sandbox, "ls -l /proc/self/fd/ >/dev/null; cat", |_| {}).is(0, "");
        let named = RunUser::Named(b"sandbox".to_vec());
        for user in [RunUser::Session, RunUser::Root, named] {
            let cmd = "echo out >/dev/stdout; echo err >/dev/stderr; cat /dev/stdin; echo x >&2";
            let id = start_sh(sandbox, cmd, |program| {
                program.user = user;
                program.run.stdin = Stdin::Piped;
            });
            send(sandbox, id, b"in\n");
            send_end(sandbox, id);
            let mut seen = Seen::default();
            let one = seen.end(sandbox, id);
            one.is(0, "out\nin\n");
            assert_eq!((one.err.as_slice(), one.taken), (&b"err\nx\n"[..], 3));
        }
    }
}

#[test]
fn fifty_mib_of_stdin() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let all: Vec<u8> = (0..50 * 1024 * 1024 / 4_u32).flat_map(u32::to_le_bytes).collect();
    let id = start_sh(sandbox, "sleep 0.2; cat >got; wc -c", |program| {
        program.run.stdin = Stdin::Piped;
    });
    send(sandbox, id, &all);
    send_end(sandbox, id);
    let mut seen = Seen::default();
    let one = seen.end(sandbox, id);
    one.is(0, "0\n");
    assert!(std::fs::read(sandbox.path("got")).unwrap() == all);
    assert_eq!(one.taken, all.len() as u64);
}

#[test]
fn stdin_that_stays_open() {
    let sandbox = &mut Sandbox::new(Kind::Busybox);
    let id = start(sandbox, &["cat"], |program| program.run.stdin = Stdin::Piped);
    let mut seen = Seen::default();
    for n in 0..20 {
        let line = format!("line {n}\n");
        send(sandbox, id, line.as_bytes());
        seen.until(sandbox, id, |one| one.out.ends_with(line.as_bytes()));
    }
    send_end(sandbox, id);
    assert_eq!(seen.end(sandbox, id).how(), (How::Exited, 0));
}

#[test]
fn stdin_that_nobody_reads() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let data = vec![7; 3 << 20];
    // Closed at once; never read; the program ends.
    for cmd in ["exec <&-; sleep 0.3", "sleep 0.3", "head -c 10 >/dev/null", "exit 3"] {
        let id = start_sh(sandbox, cmd, |program| program.run.stdin = Stdin::Piped);
        send(sandbox, id, &data);
        let mut seen = Seen::default();
        let one = seen.end(sandbox, id);
        assert_eq!(one.how().0, How::Exited, "{cmd}");
        assert!(one.taken <= data.len() as u64);
        // What comes too late is nothing to anybody.
        send(sandbox, id, b"late");
        send_end(sandbox, id);
        sandbox.is_alive();
    }
}

#[test]
fn a_million_small_writes() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let cmd = "i=0; while [ $i -lt 1000000 ]; do echo x; i=$((i+1)); done";
    let one = sh(sandbox, cmd, |program| program.run.timeout_ms = None);
    assert_eq!((one.how(), one.out.len()), ((How::Exited, 0), 2_000_000));
    assert_eq!(one.end.unwrap().output_bytes, 2_000_000);
}

#[test]
fn a_child_that_holds_the_output_delays_the_end_by_little() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let began = Instant::now();
    let id = start_sh(sandbox, "echo now; (sleep 0.3; echo late; echo e >&2) &", |_| {});
    let mut seen = Seen::default();
    let one = seen.end(sandbox, id);
    one.is(0, "now\n");
    assert!(began.elapsed() < Duration::from_millis(280), "{:?}", began.elapsed());
    let mut after = one.end.as_ref().unwrap().seq;
    let mut late = String::new();
    loop {
        let part = sandbox.part(id, after, Wait::Yes).unwrap();
        late += &boxed::text_of(&part.items);
        after = part.items.last().map_or(after, boxed::event);
        if part.then == Then::Over {
            break;
        }
    }
    assert_eq!(late, "late\ne\n");
}

// ---- signals ----

#[test]
fn it_ends_by_every_signal() {
    let sandbox = &mut Sandbox::new(Kind::Busybox);
    for signal in 1..=64 {
        let is_ignored = [17, 18, 23, 28].contains(&signal);
        let is_stop = [19, 20, 21, 22].contains(&signal);
        let id = start(sandbox, &["sleep", "1000"], |_| {});
        let mut seen = Seen::default();
        seen.until(sandbox, id, |one| one.begun.is_some());
        sandbox.link.send(&ToInit::Signal { run: id, signal, to: SignalTo::Process });
        if is_ignored || is_stop {
            sandbox.link.send(&ToInit::Signal { run: id, signal: 9, to: SignalTo::Process });
            assert_eq!(seen.end(sandbox, id).how(), (How::Signaled(9), 137));
        } else {
            let one = seen.end(sandbox, id);
            assert_eq!(one.how(), (How::Signaled(signal), 128 + signal), "{signal}");
        }
    }
    // None of these is one.
    let id = start(sandbox, &["sleep", "0.1"], |_| {});
    for signal in [0, -1, 65, i32::MAX, i32::MIN] {
        sandbox.link.send(&ToInit::Signal { run: id, signal, to: SignalTo::Process });
    }
    assert_eq!(Seen::default().end(sandbox, id).how(), (How::Exited, 0));
}

#[test]
fn a_signal_is_for_the_program_alone_and_can_be_caught() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let cmd = "trap 'echo caught; exit 7' TERM; sleep 7771 & echo ready; wait";
    let id = start_sh(sandbox, cmd, |_| {});
    let mut seen = Seen::default();
    seen.until(sandbox, id, |one| one.out == b"ready\n");
    sandbox.link.send(&ToInit::Signal { run: id, signal: 15, to: SignalTo::Process });
    seen.end(sandbox, id).is(7, "ready\ncaught\n");
    assert_eq!(count(sandbox, "sleep 7771"), "1\n");
    sandbox.link.send(&ToInit::Cancel { run: id });
    while count(sandbox, "sleep 7771") != "0\n" {}
    // One that comes at once is not lost.
    let id = start(sandbox, &["sleep", "1000"], |_| {});
    sandbox.link.send(&ToInit::Signal { run: id, signal: 15, to: SignalTo::Process });
    assert_eq!(Seen::default().end(sandbox, id).how(), (How::Signaled(15), 143));
}

// ---- PTY ----

fn on_tty(program: &mut Program) {
    program.tty = Some(WINDOW);
    program.run.stdin = Stdin::Piped;
}

#[test]
fn a_terminal() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        let cmd = "test -t 0 && test -t 1 && test -t 2 && echo tty; stty size; echo $TERM; \
                   : </dev/tty && echo controls; echo x >/dev/stderr";
        let one = sh(sandbox, cmd, on_tty);
        assert_eq!(one.how(), (How::Exited, 0));
        assert_eq!(one.screen(), "tty\n33 101\nxterm-256color\ncontrols\nx\n");
        assert!(one.pty.windows(2).any(|two| two == b"\r\n"));
        let root = |program: &mut Program| {
            on_tty(program);
            program.user = RunUser::Root;
        };
        assert_eq!(sh(sandbox, "echo x >/dev/stderr; tty >/dev/tty; id -u", root).how().1, 0);
    }
}

#[test]
fn a_terminal_is_resized() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let cmd = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done";
    let id = start(sandbox, &["bash", "-c", cmd], on_tty);
    let mut seen = Seen::default();
    seen.until(sandbox, id, |one| one.screen() == "ready\n");
    sandbox.link.send(&ToInit::Resize { run: id, window: Window { rows: 7, cols: 8 } });
    seen.until(sandbox, id, |one| one.screen() == "ready\n7 8\n");
    sandbox.link.send(&ToInit::Cancel { run: id });
    assert_eq!(seen.end(sandbox, id).how(), (How::Cancelled, 137));
    sandbox.link.send(&ToInit::Resize { run: id, window: WINDOW });
    sandbox.is_alive();
}

#[test]
fn keys_of_a_terminal() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    // ^C ends what is in the foreground.
    let id = start(sandbox, &["cat"], on_tty);
    let mut seen = Seen::default();
    send(sandbox, id, b"hello\n");
    seen.until(sandbox, id, |one| one.screen() == "hello\nhello\n");
    send(sandbox, id, b"\x03");
    assert_eq!(seen.end(sandbox, id).how(), (How::Signaled(2), 130));
    // The end of stdin is ^D, also behind an unfinished line.
    for text in [&b"a line\n"[..], b"half"] {
        let id = start(sandbox, &["cat"], on_tty);
        send(sandbox, id, text);
        send_end(sandbox, id);
        assert_eq!(Seen::default().end(sandbox, id).how(), (How::Exited, 0));
    }
    // An interactive shell has job control.
    let id = start(sandbox, &["bash", "--norc", "-i"], on_tty);
    let mut seen = Seen::default();
    send(sandbox, id, b"PS1=; stty -echo; echo 're''ady'\n");
    seen.until(sandbox, id, |one| one.screen().contains("ready\n"));
    send(sandbox, id, b"sleep 7772\n\x03");
    send(sandbox, id, b"echo back: $?\nsleep 7773 &\njobs -l | wc -l\nexit 5\n");
    let one = seen.end(sandbox, id);
    assert_eq!(one.how(), (How::Exited, 5));
    assert!(!one.screen().contains("no job control"), "{}", one.screen());
}

#[test]
fn a_terminal_loses_nothing_at_the_end() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    for _ in 0..20 {
        let one = run(sandbox, &["seq", "3000"], on_tty);
        assert_eq!((one.how(), one.screen().len()), ((How::Exited, 0), 13_893));
        // A child that keeps the terminal makes no difference.
        let one = sh(sandbox, "sleep 1 & seq 3000", on_tty);
        assert_eq!((one.how(), one.screen().len()), ((How::Exited, 0), 13_893));
    }
}

#[test]
fn a_terminal_without_stdin_waits() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let one = sh(sandbox, "read -t 0.1 x; echo $?", |program| {
        program.argv[0] = b"/bin/bash".to_vec();
        program.tty = Some(WINDOW);
    });
    assert_eq!(one.screen(), "142\n");
}

// ---- many, and their ends ----

#[test]
fn fifty_at_once() {
    let sandbox = &mut Sandbox::new(Kind::Busybox);
    let mut seen = Seen::default();
    let began = Instant::now();
    let runs: Vec<u64> = (0..50)
        .map(|n| start_sh(sandbox, &format!("echo a{n}; sleep 0.5; echo b{n}; exit {n}"), |_| {}))
        .collect();
    // The shell has nothing to do with them.
    for (n, run) in runs.iter().enumerate() {
        let code = i32::try_from(n).unwrap();
        seen.end(sandbox, *run).is(code, &format!("a{n}\nb{n}\n"));
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    sandbox.is_alive();
}

/// What a program starts to get away.
const ESCAPES: [&str; 7] = [
    "sleep 7781",
    "sleep 7781 | sleep 7781",
    "setsid sleep 7782 & sleep 7782",
    "(setsid sh -c 'sleep 7783 & sleep 7783' &); sleep 7783",
    "nohup sleep 7784 >/dev/null 2>&1 & sleep 7784",
    "trap '' TERM INT HUP; sh -c 'trap \"\" TERM; sleep 7785'; sleep 7785",
    "sleep 7786 & kill -STOP $!; kill -STOP $$; sleep 7786",
];

#[test]
fn a_timeout_takes_the_whole_tree() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        for cmd in ESCAPES {
            let began = Instant::now();
            let one = sh(sandbox, cmd, |program| program.run.timeout_ms = Some(300));
            assert_eq!(one.how(), (How::Timeout, 137), "{cmd}");
            // 500 ms is promised on a quiet host; tests share theirs.
            assert!(began.elapsed() < Duration::from_secs(3), "{cmd} {:?}", began.elapsed());
            none_left(sandbox, "sleep 778");
        }
        let loops = "while :; do setsid sleep 7787 & sleep 0.01; done";
        let one = sh(sandbox, loops, |program| program.run.timeout_ms = Some(300));
        assert_eq!(one.how(), (How::Timeout, 137));
        none_left(sandbox, "sleep 778");
    }
}

#[test]
fn fifty_time_out_at_once() {
    let sandbox = &mut Sandbox::new(Kind::Busybox);
    let mut seen = Seen::default();
    let began = Instant::now();
    let cmd = "trap '' TERM; setsid sleep 7788 & sleep 7788";
    let timeout = |program: &mut Program| program.run.timeout_ms = Some(1500);
    let runs: Vec<u64> = (0..50).map(|_| start_sh(sandbox, cmd, timeout)).collect();
    for run in runs {
        assert_eq!(seen.end(sandbox, run).how(), (How::Timeout, 137));
    }
    // 500 ms is promised on a quiet host; tests share theirs.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    none_left(sandbox, "sleep 778");
}

#[test]
fn a_cancel_takes_the_whole_tree() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    for cmd in ESCAPES {
        let id = start_sh(sandbox, &format!("echo up; {cmd}"), |_| {});
        let mut seen = Seen::default();
        seen.until(sandbox, id, |one| one.out == b"up\n");
        sandbox.link.send(&ToInit::Cancel { run: id });
        sandbox.link.send(&ToInit::Cancel { run: id });
        assert_eq!(seen.end(sandbox, id).how(), (How::Cancelled, 137), "{cmd}");
        none_left(sandbox, "sleep 778");
    }
    // Before it has begun.
    let id = start(sandbox, &["sleep", "7781"], |_| {});
    sandbox.link.send(&ToInit::Cancel { run: id });
    assert_eq!(Seen::default().end(sandbox, id).how().0, How::Cancelled);
    none_left(sandbox, "sleep 778");
}

#[test]
fn a_child_that_goes_on_outlives_its_program_but_no_cancel() {
    for kind in ALL {
        let sandbox = &mut Sandbox::new(kind);
        for cmd in ["sleep 7791 &", "setsid sleep 7791 & sleep 0.1", "(sleep 7791 &)"] {
            let id = start_sh(sandbox, cmd, |_| {});
            Seen::default().end(sandbox, id).is(0, "");
            assert_eq!(count(sandbox, "sleep 7791"), "1\n", "{cmd}");
            let other = start(sandbox, &["sleep", "7792"], |_| {});
            sandbox.link.send(&ToInit::Cancel { run: id });
            while count(sandbox, "sleep 7791") != "0\n" {}
            assert_eq!(count(sandbox, "sleep 7792"), "1\n");
            sandbox.link.send(&ToInit::Cancel { run: other });
            while count(sandbox, "sleep 7792") != "0\n" {}
        }
        // The timeout is theirs too.
        let id = start_sh(sandbox, "setsid sleep 7793 &", |program| {
            program.run.timeout_ms = Some(400);
        });
        Seen::default().end(sandbox, id).is(0, "");
        while count(sandbox, "sleep 7793") != "0\n" {}
    }
}

#[test]
fn commands_and_programs_leave_each_other_alone() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let mut seen = Seen::default();
    let id = start_sh(sandbox, "setsid sleep 7801 & echo up; sleep 7801", |_| {});
    seen.until(sandbox, id, |one| one.out == b"up\n");
    sandbox.run("sleep 7802 & :").is(0, "");
    let answer = sandbox.run_for("sleep 7803", 200);
    assert_eq!((answer.end.how, answer.code()), (How::Timeout, 124));
    // The two, and the shell whose text they are.
    assert_eq!(count(sandbox, "sleep 7801"), "3\n");
    sandbox.link.send(&ToInit::Cancel { run: id });
    assert_eq!(seen.end(sandbox, id).how().0, How::Cancelled);
    assert_eq!(count(sandbox, "sleep 7801"), "0\n");
    assert_eq!(count(sandbox, "sleep 7802"), "1\n");
}

// ---- hostile root ----

fn as_root(program: &mut Program) {
    program.user = RunUser::Root;
}

#[test]
fn a_supervisor_that_is_killed_or_stopped_hides_no_end() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    for signal in ["KILL", "STOP"] {
        for (cmd, how) in [("exit 3", (How::Exited, 3)), ("kill -9 $$", (How::Signaled(9), 137))] {
            let cmd = format!("kill -{signal} $PPID; sleep 0.1; {cmd}");
            let one = sh(sandbox, &cmd, as_root);
            assert_eq!(one.how(), how, "{cmd}");
        }
        let cmd = format!("kill -{signal} $PPID; sleep 7811 & setsid sleep 7811 & sleep 7811");
        let one = sh(sandbox, &cmd, |program| {
            as_root(program);
            program.run.timeout_ms = Some(500);
        });
        assert_eq!(one.how(), (How::Timeout, 137), "{signal}");
        none_left(sandbox, "sleep 7811");
        // It goes on without its supervisor, and is found still.
        let cmd = format!("kill -{signal} $PPID; sleep 7812 & exit 2");
        let id = start_sh(sandbox, &cmd, as_root);
        Seen::default().end(sandbox, id).is(2, "");
        assert_eq!(count(sandbox, "sleep 7812"), "1\n");
        sandbox.link.send(&ToInit::Cancel { run: id });
        while count(sandbox, "sleep 7812") != "0\n" {}
    }
    sandbox.is_alive();
}

#[test]
fn it_outlives_the_engine() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let id = start_sh(sandbox, "echo one; sleep 0.3; echo two; exit 6", |program| {
        program.run.note = b"mine".to_vec();
    });
    let mut seen = Seen::default();
    seen.until(sandbox, id, |one| one.out == b"one\n");
    sandbox.detach();
    sandbox.reattach();
    let known = sandbox.known.iter().find(|known| known.run == id).unwrap();
    assert_eq!((known.note.as_slice(), known.end.is_none()), (&b"mine"[..], true));
    assert_eq!(known.begun, seen.one(id).begun);
    let mut seen = Seen::default();
    assert_eq!(seen.end(sandbox, id).how(), (How::Exited, 6));
    assert_eq!(boxed::text_of(&sandbox.replay(id, 0).0), "one\ntwo\n");
}

#[test]
fn a_box_without_a_shell_runs_programs() {
    let sandbox = &mut Sandbox::with(Image::Bare, ShellPreference::Bash, id::SANDBOX);
    assert_eq!(sandbox.hello.shell, None);
    run(sandbox, &["/bin/sh"], |_| {}).is(127, "");
    // init itself is there, and says that its descriptors are not.
    run(sandbox, &["/init"], |_| {}).is(82, "");
}
