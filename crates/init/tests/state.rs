//! The shell's state over its own end: whatever ends it, the next one goes on with what the last
//! finished command has left.

mod boxed;

use std::time::{Duration, Instant};

use boxed::{Image, Kind, Sandbox};
use sandkasten_protocol::{How, ShellPreference};

const ALL: [Kind; 3] = [Kind::Bash, Kind::Dash, Kind::Busybox];
/// Each ends the shell and changes nothing else.
const ENDS: [&str; 7] = [
    "exit 3",
    "exec true",
    "set -e; false",
    // A plain shell goes on after that, as `command eval` has it.
    "set -u; case ${BASH_VERSION-} in '') exit 4;; *) : $nope_nope;; esac",
    "kill -9 $$",
    "kill -TERM $$",
    "X_IN_THE_MIDDLE=1; cd /; umask 0; while :; do :; done",
];

fn in_each_shell(test: impl Fn(&mut Sandbox, Kind)) {
    for kind in ALL {
        test(&mut Sandbox::new(kind), kind);
    }
}

/// Ends the shell, and says what that lost.
#[track_caller]
fn end(sandbox: &mut Sandbox, cmd: &str) -> bool {
    let answer = sandbox.run_for(cmd, 3000);
    assert!(answer.end.shell_restarted, "{cmd}: {:?}", answer.end);
    answer.end.state_lost
}

/// Runs `set`, then ends the shell in every way; `show` says the same each time.
#[track_caller]
fn survives(sandbox: &mut Sandbox, set: &str, show: &str, expected: &str) {
    sandbox.run(set).is(0, "");
    sandbox.run(show).is(0, expected);
    for cmd in ENDS {
        assert!(!end(sandbox, cmd), "{cmd}");
        let answer = sandbox.run(show);
        assert_eq!((answer.code(), answer.out.as_str()), (0, expected), "after {cmd}");
        assert!(!answer.end.shell_restarted);
    }
}

#[test]
fn c05_c48_keep_in_each_shell() {
    in_each_shell(|sandbox, _| {
        let set = "mkdir -p k; cd k; export K=1; k2=2; cd /tmp; cd /workspace/k; umask 027";
        let show = "pwd; echo $K $k2 $OLDPWD [${X_IN_THE_MIDDLE-}]; sh -c 'echo $K [$k2]'; umask";
        survives(sandbox, set, show, "/workspace/k\n1 2 /tmp []\n1 []\n0027\n");
    });
}

#[test]
fn c06_options_are_kept() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("set -euo pipefail; echo on").is(0, "on\n");
    for (cmd, code) in [("false; echo no", 1), ("echo a | grep z", 1), ("ls /nonexistent", 2)] {
        for _ in 0..2 {
            let answer = sandbox.run(cmd);
            assert_eq!((answer.code(), answer.end.how), (code, How::ShellExited), "{cmd}");
            assert!(answer.end.shell_restarted && !answer.end.state_lost);
            sandbox.is_alive();
        }
    }
    assert_ne!(sandbox.run("echo $nope").code(), 0);
    let options = sandbox.run("echo $-; set -o | grep -E 'pipefail|nounset' | tr -s '\\t ' ' '");
    options.is(0, "ehuB\nnounset on\npipefail on\n");
    in_each_shell(|sandbox, kind| {
        sandbox.run("set -euC; set -f");
        assert_eq!(sandbox.run("false").code(), 1, "{kind:?}");
        assert_ne!(sandbox.run("echo $nope").code(), 0);
        let shown =
            sandbox.run("case $- in *e*u*) echo eu;; *u*e*) echo eu;; esac; set +e; false; echo *");
        shown.is(0, "eu\n*\n");
    });
}

#[test]
fn c20_of_bash() {
    let set = "cd /tmp; export V=1; u=2; f(){ echo F$1; }; set -o pipefail; umask 027; \
               shopt -s expand_aliases extglob nullglob; shopt -u sourcepath; alias hi='echo H' ll=\"it's\"";
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run(set).is(0, "");
    sandbox.run("g() { case $1 in @(a|b)) hi ab;; *) cat <<E\nnone $1\nE\n esac; }").is(0, "");
    let show = "pwd; echo $V $u; f 2; umask; false | true; echo $?; hi; g a; g z; alias ll; \
                shopt -q nullglob && echo null; shopt -q sourcepath || echo source; shopt | md5sum; \
                set -o | md5sum";
    let before = sandbox.run(show);
    assert!(before.out.starts_with("/tmp\n1 2\nF2\n0027\n1\nH\nH ab\nnone z\n"), "{}", before.out);
    let before = before.out;
    survives(sandbox, "", show, &before);
}

#[test]
fn variables_of_bash() {
    let set = r#"
        a=(x "y z" $'n\nl'); a[10]=ten; declare -A h=([a b]=1 [']"$x`']=2 [$'\n']=3); export b=$'\xff\n\x01é'
        declare -i n=5; declare -r ro='read only'; declare -x e=; declare -l low=ABC; declare -n ref=a
        declare -ai ints=(1 2); declare undefined; q="it's \"q\" \$x \`y\` \\ "; long=$(head -c 200000 /dev/zero | tr '\0' q)
        q2=1/0; declare -i q2; unset HOME TERM; declare -rA roa=([k]=v); IFS=:; PS4='x '
    "#;
    let show = r#"
        declare -p a h b n ro e low ref ints undefined q q2 roa IFS PS4; echo ${#long} [${HOME-gone}] [${TERM-gone}] ${ref[1]}
        n+=1; echo $n; n=5; low=XYZ; echo $low; low=ABC; env | grep -c '^e=$'; (ro=2) 2>/dev/null || echo ro
        compgen -v | grep -vE '^(BASH_|LINENO|PIPESTATUS|_$)'
    "#;
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run(set).is(0, "");
    let before = sandbox.run(show).out;
    assert!(before.contains("200000 [gone] [gone] y z\n6\nxyz\n1\nro\n"), "{before}");
    survives(sandbox, "", show, &before);
}

#[test]
fn functions_of_bash() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    let set = "f() { echo F; }; export -f f; r() { :; }; declare -fr r; a-b() { echo ab; }; \
               declare() { echo no; }; set() { echo no; }; shopt() { echo no; }; alias() { echo no; }; \
               unset() { echo no; }; source() { echo no; }; exit_() { \\builtin exit; }";
    let show = "bash -c f; a-b; r; builtin declare -F; declare";
    let expected = "F\nab\ndeclare -f a-b\ndeclare -f alias\ndeclare -f declare\ndeclare -f exit_\n\
                    declare -fx f\ndeclare -fr r\ndeclare -f set\ndeclare -f shopt\ndeclare -f source\n\
                    declare -f unset\nno\n";
    sandbox.run(set).is(0, "");
    sandbox.run(show).is(0, expected);
    for cmd in ["exit 3", "kill -9 $$", "while :; do :; done"] {
        assert!(!end(sandbox, cmd));
        sandbox.run(show).is(0, expected);
    }
}

#[test]
fn functions_that_would_break_a_shell_are_left_out() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("v=1; f() { echo F; }; unset() { :; }; shopt -s expand_aliases");
    sandbox.run("alias declare=false if=false");
    sandbox
        .run("eval() { :; }; printf() { :; }; exec() { :; }; command() { :; }; builtin() { :; }");
    assert!(!end(sandbox, "kill -9 $$"));
    sandbox.run("f; echo $v").is(0, "F\n1\n");
    sandbox.run("\\builtin unset -f unset; \\builtin declare -F").is(0, "declare -f f\n");
    sandbox.run("printf x; type -t eval printf exec command builtin | sort -u").is(0, "xbuiltin\n");
    sandbox.run("echo ${POSIXLY_CORRECT-none}; \\builtin set -o | grep posix | tr -s '\\t ' ' '");
}

#[test]
fn posix_mode_is_kept() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("f() { echo F; }; eval() { :; }; export v=1");
    sandbox.run("set -o posix; set -e");
    for _ in 0..2 {
        assert!(!end(sandbox, "exit 1"));
        sandbox.run("f; echo $v $-; shopt -qo posix && echo posix").is(0, "F\n1 ehB\nposix\n");
    }
}

#[test]
fn aliases_and_bytes_of_a_plain_shell() {
    for kind in [Kind::Dash, Kind::Busybox] {
        let sandbox = &mut Sandbox::new(kind);
        let set = "alias hi='echo H' q=\"it's\ntwo\" umask=false export=false; b=$(printf 'a\\377\\n\\001\\201é.'); export e=; \
                   readonly ro='r o'; unset HOME; export only_name; PS4=x";
        sandbox.run(set).is(0, "");
        let show = "hi; alias q; printf %s \"$b\" | od -An -tx1; echo [${HOME-gone}] ${PS4}; env | grep -c '^e=$'; \
                    (ro=1) 2>/dev/null || echo ro; test $PPID = $(cut -d' ' -f4 /proc/$$/stat) && echo ppid; true";
        let before = sandbox.run(show).out;
        assert!(
            before.contains("[gone] x\n1\nro\nppid\n") && before.starts_with("H\n"),
            "{before}"
        );
        survives(sandbox, "", show, &before);
    }
}

#[test]
fn what_is_not_carried_over() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run(
        "trap 'echo trap' EXIT USR1; exec 5</dev/null; sleep 100 & RANDOM=1; echo $RANDOM > r",
    );
    sandbox.run("echo $$ > p");
    assert!(!end(sandbox, "kill -9 $$"));
    sandbox.run("trap; echo [$!]; (: <&5) 2>/dev/null || echo closed").is(0, "[]\nclosed\n");
    sandbox.run("test $$ = $(cat p)").is(1, "");
    sandbox.run("echo $PPID; cut -d' ' -f4 /proc/$$/stat | grep -x $PPID > /dev/null || echo no");
    sandbox
        .run("test $BASHPID = $$ && test $RANDOM != $RANDOM; echo $? $SHLVL $UID")
        .is(0, "0 1 1000\n");
}

#[test]
fn a_hostile_state_neither_stops_nor_shows_the_dump() {
    in_each_shell(|sandbox, kind| {
        let common = [
            "set -x",
            "set -C; set -f",
            "IFS=0123456789",
            "exec 1>&- 2>&-",
            "export LC_ALL=C LC_ALL=POSIX",
            "trap 'echo chld >&2; echo chld' CHLD",
            "exec 9</dev/null",
            "set -u; set -e",
        ];
        let of_bash = [
            "trap 'echo debug; echo debug >&2' DEBUG",
            "trap 'echo err; exit 9' ERR",
            "set -T; set -E",
            "declare -n a=b; declare -n b=c; declare -n BASHOPTS_=SHELLOPTS",
            "command(){ false; }; declare(){ exit 1; }",
            "readonly PATH IFS",
            "set -o posix; set -k",
            "PS4='$(echo x >> /tmp/ps4)'",
            "shopt -s extdebug",
        ];
        let of_bash: &[&str] = if kind == Kind::Bash { &of_bash } else { &[] };
        for (n, cmd) in common.iter().chain(of_bash).enumerate() {
            sandbox.run(&format!("{cmd}; v={n}; cd /tmp; cd /workspace"));
            let next = sandbox.run("\\echo next; \\echo \"$OLDPWD\" >| o; (\\exit 3) || \\: ");
            assert!(next.out.contains("next\n"), "{kind:?} {cmd}: {}", next.out);
            assert!(!next.end.shell_restarted, "{kind:?} {cmd} {next:?}");
            assert!(!end(sandbox, "\\kill -9 \"$$\""), "{kind:?} {cmd}");
            let v = sandbox.run("\\echo \"=$v=\"; \\cat o; \\pwd");
            assert!(v.out.contains(&format!("={n}=\n")), "{kind:?} {cmd}: {}", v.out);
            assert!(v.out.contains("/tmp\n"), "{kind:?} {cmd}: {}", v.out);
            assert!(v.out.contains("/workspace\n"), "{kind:?} {cmd}: {}", v.out);
        }
    });
}

#[test]
fn c19_a_deleted_directory_over_a_restart() {
    in_each_shell(|sandbox, kind| {
        sandbox.run("mkdir d && cd d && v=1 && rm -rf ../d");
        assert!(!end(sandbox, "exit 1"));
        let answer = sandbox.run("echo $PWD; pwd; echo $v");
        answer.is(0, "/\n/\n1\n");
        assert_eq!(answer.cwd(), "/", "{kind:?}");
        sandbox.run("cd workspace && pwd").is(0, "/workspace\n");
    });
}

#[test]
fn five_hundred_functions_and_a_large_state() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox
        .run("for i in {1..500}; do eval \"f$i() { if true; then echo f$i; fi; }\"; done")
        .is(0, "");
    sandbox.run("v=$(head -c 3000000 /dev/zero | tr '\\0' v); w=${v/v/\"'\"}").is(0, "");
    assert!(!end(sandbox, "exit 1"));
    sandbox
        .run("f1; f500; echo ${#v} ${w:0:2}; declare -F | wc -l")
        .is(0, "f1\nf500\n3000000 'v\n500\n");
}

#[test]
fn a_state_that_is_too_big_is_said_to_be_lost() {
    for kind in [Kind::Bash, Kind::Dash] {
        let sandbox = &mut Sandbox::new(kind);
        sandbox.run("a=1").is(0, "");
        let big = "b=2; v=$(head -c 9000000 /dev/zero | tr '\\0' v); w=$v";
        assert_eq!(sandbox.run(big).code(), 0);
        assert_eq!(sandbox.run("echo $b").out, "2\n");
        assert!(end(sandbox, "exit 1"), "{kind:?}");
        sandbox.run("echo $a [$b] ${#v}").is(0, "1 [] 0\n");
        assert!(!end(sandbox, "exit 1"), "said once");
        sandbox.run("unset v w; c=3").is(0, "");
        assert!(!end(sandbox, "exit 1"));
        sandbox.run("echo $a $c").is(0, "1 3\n");
    }
}

#[test]
fn a_torn_dump_is_never_loaded() {
    for kind in [Kind::Bash, Kind::Dash] {
        let sandbox = &mut Sandbox::new(kind);
        let huge = "v=$(head -c 6000000 /dev/zero | tr '\\0' v); z=1";
        assert_eq!(sandbox.run(huge).code(), 0);
        let mut torn = 0;
        for n in 2..7 {
            // Both variables are of one dump, whichever was whole.
            let cmd = format!("a={n}; z={n}; p=$$; (sleep 0.0{n}; kill -9 $p) &");
            assert_eq!(sandbox.run(&cmd).code(), 0);
            let next = sandbox.run("sleep 0.2; :");
            torn += usize::from(next.end.state_lost);
            let shown = sandbox.run("echo ${#v} ${a-1} $z");
            let words: Vec<_> = shown.out.split_whitespace().collect();
            assert_eq!((words[0], words[1]), ("6000000", words[2]), "{kind:?}: {}", shown.out);
        }
        eprintln!("{kind:?}: {torn} of 5 torn");
    }
}

#[test]
fn a_shell_that_can_not_dump_leaves_the_last_dump() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    sandbox.run("a=1").is(0, "");
    sandbox.run("b=2; enable -n declare").is(0, "");
    sandbox.run("echo $b").is(0, "2\n").at_once();
    assert!(end(sandbox, "exit 1"));
    sandbox.run("echo $a [$b]").is(0, "1 []\n");
    // A dump that never comes to its end holds nobody up for longer than the next command's time.
    sandbox.run(
        "set -T; trap 'case $BASH_COMMAND in *declare*) while :; do :; done; esac' DEBUG; c=1",
    );
    let answer = sandbox.run_for("echo", 500);
    assert_eq!((answer.end.how, answer.end.shell_restarted), (How::Timeout, true));
    sandbox.run("echo $a").is(0, "1\n");
}

#[test]
fn a_dump_that_ends_each_new_shell_is_given_up() {
    in_each_shell(|sandbox, kind| {
        // A state that says `exit` when it is loaded, by way of the dump's own FIFO.
        sandbox.run(
            "a=1; p=$$; (while :; do for f in /proc/$p/fd/*; do case $(readlink $f) in \
             /.sandkasten/*) printf 'kill -9 $$\\n' > $f;; esac; done; done) 2>/dev/null & echo $! > q",
        );
        for _ in 0..20 {
            let answer = sandbox.run_for("sleep 0.01", 5000);
            assert_ne!(answer.end.how, How::NoShell, "{kind:?}");
            sandbox.run_for("exit 1", 5000);
        }
        sandbox.run_for("kill $(cat q)", 5000);
        sandbox.run_for("true", 5000);
        sandbox.is_alive();
    });
}

#[test]
fn c49_jobs_live_on_over_restarts() {
    in_each_shell(|sandbox, kind| {
        sandbox.run("sleep 500 & echo $! > p");
        for cmd in ENDS {
            end(sandbox, cmd);
            let alive = sandbox.run("kill -0 $(cat p); echo rc=$?");
            assert_eq!(alive.out, "rc=0\n", "{kind:?} {cmd}");
        }
    });
}

/// The dump is the shell's own, in any order with what comes next.
#[test]
fn back_to_back() {
    in_each_shell(|sandbox, kind| {
        let began = Instant::now();
        for _ in 0..300 {
            sandbox.run("true").is(0, "");
        }
        let each = began.elapsed() / 300;
        eprintln!("{kind:?}: {each:?} an exec");
        assert!(each < Duration::from_millis(50));
        sandbox.run("echo \"$?\" [$_]; jobs").at_once();
    });
}

#[test]
fn a_plain_sh_image_of_root() {
    let sandbox = &mut Sandbox::with(Image::Busybox, ShellPreference::Bash, 0);
    survives(sandbox, "export A=1; cd /tmp", "echo $A; pwd", "1\n/tmp\n");
}

#[test]
fn what_traps_print_is_no_state() {
    let sandbox = &mut Sandbox::new(Kind::Bash);
    for set in [
        "trap 'echo trapped' DEBUG",
        "set -T; trap 'echo traced' DEBUG",
        "set -E; trap 'echo erred' ERR",
        "trap 'echo K=returned' RETURN",
        "set -T; trap 'echo K=traced; printf \"declare -- K=traced\\0\"' DEBUG",
        "set -T; trap 'printf \"\\0\\0\\0\\0\\0\\0\\0\"' DEBUG RETURN",
        "BASH_XTRACEFD=1; PS4='K=4 '; set -x",
    ] {
        sandbox.run(&format!("K='{}'; {set}", set.len()));
        let answer = sandbox.run("exit 3");
        assert_eq!((answer.code(), answer.end.state_lost), (3, false), "{set}");
        let told = sandbox.run("echo $K").out;
        // A trace is output of the command's own.
        assert!(told.ends_with(&format!("{}\n", set.len())), "{set}: {told}");
        sandbox.run("set +TEx; BASH_XTRACEFD=");
    }
}

#[test]
fn state_is_kept_when_root_has_removed_what_writes_it() {
    let sandbox = &mut Sandbox::with(Image::Debian, ShellPreference::Bash, 0);
    sandbox.run("a=1").is(0, "");
    // Root's own command loses its FIFOs with it.
    sandbox.run("rm -rf /.sandkasten/*");
    sandbox.run("a=2").is(0, "");
    sandbox.run("exit 3");
    sandbox.run("echo $a").is(0, "2\n");
}
