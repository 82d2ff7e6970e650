//! More of the kind of C01 to C24: what people type into a shell that has to last.

use serde_json::json;

use crate::{Asks, Place, in_images};

in_images! {
    python: heredocs_in_functions, nested_quotes, every_sign_is_exact, carriage_returns_in_the_text,
        names_beyond_ascii, open_files_of_exec, exec_of_a_missing_program, exec_of_another_program,
        traps, traps_of_bash, names_of_builtins_taken, aliases_of_our_words, a_shell_that_is_killed, a_shell_that_kills_all,
        substitutions_of_bash, coprocess, arrays_with_newlines, arrays_survive_a_killed_shell,
        jobs_and_wait, jobs_survive_an_exit, disowned_jobs, background_flood, tracing_shows_only_the_text,
        odd_variables, a_mebibyte_of_text, return_and_break_at_the_top, positional_parameters,
        exclamation_marks, directory_stack, restricted_shell, hostile_prompt, background_reads_nothing, stdin_that_is_given,
        one_command_of_root;
    busybox: heredocs_in_functions, nested_quotes, every_sign_is_exact, carriage_returns_in_the_text,
        open_files_of_exec, exec_of_a_missing_program, exec_of_another_program, traps, names_of_builtins_taken,
        a_shell_that_is_killed, a_shell_that_kills_all, jobs_and_wait, jobs_survive_an_exit, background_flood,
        tracing_shows_only_the_text, odd_variables, a_mebibyte_of_text, return_and_break_at_the_top,
        positional_parameters, hostile_prompt, background_reads_nothing,
        stdin_that_is_given, one_command_of_root;
    dash: heredocs_in_functions, nested_quotes, every_sign_is_exact, open_files_of_exec, traps, names_of_builtins_taken,
        a_shell_that_is_killed, tracing_shows_only_the_text, odd_variables, return_and_break_at_the_top;
    bookworm: substitutions_of_bash, coprocess, arrays_survive_a_killed_shell, traps_of_bash, aliases_of_our_words;
}

fn heredocs_in_functions(at: &Place) {
    let session = at.session();
    session.does("f() {\ncat <<EOF\n$1 `echo b` $(echo c)\nEOF\ncat <<'E2'\n$1 `b`\nE2\n}");
    session.gives_both("f a", 0, "a b c\n$1 `b`\n");
    session.gives("cat <<A; cat <<B\nin a\nA\nin b\nB", 0, "in a\nin b\n");
    session.gives("cat <<EOF | tr a-z A-Z\n$(cat <<IN\ninner\nIN\n)\nEOF", 0, "INNER\n");
    session.gives("if cat <<E >/dev/null\nx\nE\nthen echo yes; fi", 0, "yes\n");
    // A terminator that never comes ends at the end of the text.
    let done = session.exec("cat <<EOF\nopen");
    assert!(done.code() == 0 && done.output().contains("open"), "{}", done.body);
    session.gives("f z", 0, "z b c\n$1 `b`\n");
    session.alive();
}

fn nested_quotes(at: &Place) {
    let session = at.session();
    session.gives_both(r#"sh -c 'sh -c "echo '\''a  b'\'' \$0" zero'"#, 0, "a  b zero\n");
    session.gives(
        r#"echo "$(echo "$(echo "it's")")" '"' "\"" \' \\ '\'"#,
        0,
        "it's \" \" ' \\ \\\n",
    );
    session.gives("x='a\nb'\necho \"$x\"", 0, "a\nb\n");
    session.gives("eval \"eval \\\"echo '\\\\\\$HOME'\\\"\"", 0, "$HOME\n");
    session.gives("echo one\\\n two", 0, "one two\n");
    session.gives("echo \"#\" # ' \" ` $(", 0, "#\n");
}

/// All of ASCII but the quote, in quotes.
fn every_sign_is_exact(at: &Place) {
    let session = at.session();
    let signs: String =
        (1..128u8).filter(|byte| *byte != b'\'' && *byte != 27).map(char::from).collect();
    let signs = signs.replace('\r', "") + "é☕👩‍🚀\u{2028}\u{feff}";
    session.gives(&format!("printf '%s' '{signs}'"), 0, &signs);
    session.does(&format!("v='{signs}'"));
    session.gives("printf '%s' \"$v\"", 0, &signs);
    session.gives(&format!("cat <<'EOF'\n{signs}\nEOF"), 0, &format!("{signs}\n"));
}

/// A text with CRLF: the carriage return is a part of each last word, as in every shell.
fn carriage_returns_in_the_text(at: &Place) {
    let session = at.session();
    session.gives_both("echo a\r\necho b\r\n", 0, "a\nb\n");
    let done = session.exec("true\r\n");
    assert_eq!(done.code(), 127, "{}", done.body);
    session.alive();
}

fn names_beyond_ascii(at: &Place) {
    let session = at.session();
    session.does("naïve() { echo \"日本 $1\"; }");
    session.gives_both("naïve 👩‍🚀", 0, "日本 👩‍🚀\n");
    let done = session.gives("mkdir 'é ☕\n'; cd 'é ☕\n'; pwd", 0, "/workspace/é ☕\n\n");
    assert_eq!(done.body["cwd"], "/workspace/é ☕\n");
    session.gives("kill -9 $$", 137, "");
    session.gives("naïve x; pwd", 0, "日本 x\n/workspace/é ☕\n\n");
}

fn open_files_of_exec(at: &Place) {
    let session = at.session();
    session.does("exec 3>three; echo x >&3");
    session.does("echo y >&3; exec 3>&-");
    session.gives("cat three", 0, "x\ny\n");
    for cmd in [
        "exec >log",
        "exec >log 2>&1",
        "exec 2>/dev/null",
        "exec </etc/passwd",
        "exec >&- 2>&- <&-",
    ] {
        session.exec(cmd);
        session.gives("echo shown; echo too >&2; cat", 0, "shown\ntoo\n");
    }
    session.does("exec >log; echo into the file");
    session.gives("cat log", 0, "into the file\n");
}

fn exec_of_a_missing_program(at: &Place) {
    let session = at.session();
    session.keep();
    let done = session.exec("exec no-such-program; echo no");
    assert_eq!(done.code(), 127, "{}", done.body);
    assert!(!done.output().contains("no\n"), "{}", done.body);
    session.kept();
    session.alive();
}

fn exec_of_another_program(at: &Place) {
    let session = at.session();
    session.keep();
    for (cmd, code) in
        [("exec true", 0), ("exec sh -c 'exit 9'", 9), ("exec sh -c 'kill -9 $$'", 137)]
    {
        let done = session.gives(cmd, code, "");
        assert_eq!(done.body["shell_restarted"], true, "{}", done.body);
        session.kept();
    }
    session.gives("exec cat /etc/hostname", 0, &session.run("cat /etc/hostname"));
    session.kept();
}

fn traps(at: &Place) {
    let session = at.session();
    session.does("trap 'echo bye' EXIT");
    session.gives("echo x", 0, "x\n");
    session.gives("(exit 3)", 3, "");
    session.gives("echo y; exit 4", 4, "y\nbye\n");
    session.gives("echo z", 0, "z\n");
    session.does("trap 'echo usr' USR1");
    session.gives("kill -USR1 $$; echo after", 0, "usr\nafter\n");
    session.does("trap '' TERM HUP INT PIPE");
    session.gives("kill -TERM $$; echo alive", 0, "alive\n");
    session.gives("sh -c 'kill -TERM $$; echo deaf'", 0, "deaf\n");
    session.alive();
}

fn traps_of_bash(at: &Place) {
    let session = at.session();
    session.does("trap 'echo failed' ERR");
    session.gives("false; true", 0, "failed\n");
    session.gives("echo x", 0, "x\n");
    session.does(
        "trap - ERR; set -T; trap ': debug' DEBUG; trap ': return' RETURN; f() { echo in f; }",
    );
    session.gives("f; (exit 6)", 6, "in f\n");
    // It ends the shell behind the command, as it would in a script.
    session.exec("trap 'exit 8' DEBUG");
    let done = session.exec("echo lost");
    assert!(done.took < crate::AT_ONCE, "{:?}", done.took);
    session.exec("true");
    session.alive();
}

fn names_of_builtins_taken(at: &Place) {
    let session = at.session();
    for name in
        ["cat", "printf", "eval", "exec", "cd", "test", "read", "unset", "export", "trap", "exit"]
    {
        // In a plain shell some of these can't be functions: that is an error of the text.
        session.exec(&format!("{name}() {{ :; }}"));
        let done = session.exec("sh -c 'exit 5'");
        assert_eq!((done.code(), done.output()), (5, ""), "{name}: {}", done.body);
    }
    session.gives("echo still; false", 1, "still\n");
    if at.is_bash() {
        // Nothing comes past these two: the shell is replaced, and who asked is told so.
        let answer = session.try_exec(&json!({ "cmd": "builtin() { :; }; command() { :; }" }));
        assert!(answer.took < crate::AT_ONCE, "{answer}");
        assert!(answer.json()["exit_code"] != 0, "{answer}");
        session.gives("echo still; false", 1, "still\n");
        session.gives("kill -9 $$", 137, "");
        session.gives("echo still; false", 1, "still\n");
    }
}

fn aliases_of_our_words(at: &Place) {
    let session = at.session();
    session.does("shopt -s expand_aliases; x=1; alias eval=false printf=false exec=exit if=false builtin=false command=false :=exit");
    session.gives("echo still; (exit 4)", 4, "still\n");
    session.gives("kill -9 $$", 137, "");
    session.gives("echo $x; (exit 4)", 4, "1\n");
    session.does("unalias -a");
}

fn a_shell_that_is_killed(at: &Place) {
    let session = at.session();
    session.keep();
    for (cmd, number) in [
        ("echo before; kill -9 $$", 9),
        ("echo before; sh -c 'kill -9 $PPID'; sleep 5", 9),
        ("echo before; kill -TERM $$; sleep 5", 15),
        ("echo before; kill -SEGV $$; sleep 5", 11),
    ] {
        let done = session.gives(cmd, 128 + number, "before\n");
        assert_eq!(done.reason(), "signaled", "{cmd}: {}", done.body);
        assert_eq!(done.body["shell_restarted"], true, "{cmd}: {}", done.body);
        session.kept();
        session.alive();
    }
    // A message about a part of the command may stand in its own output.
    let done = session.exec("(kill -9 $(sh -c 'echo $PPID')); echo $?");
    assert!(done.code() == 0 && done.output().ends_with("137\n"), "{}", done.body);
}

fn a_shell_that_kills_all(at: &Place) {
    let session = at.session();
    session.keep();
    session.does("sleep 500 &");
    // The second one leaves out who sends it.
    for (cmd, code) in [("kill -9 0", 137), ("kill -9 -1", 0)] {
        let done = session.exec(cmd);
        assert_eq!((done.code(), done.output()), (code, ""), "{cmd}: {}", done.body);
        assert!(done.took < crate::AT_ONCE, "{cmd}: {:?}", done.took);
        session.kept();
        session.alive();
    }
}

fn substitutions_of_bash(at: &Place) {
    let session = at.session();
    session.gives_both("cat <(echo a) <(echo b)", 0, "a\nb\n");
    session.gives("while read -r x; do n=$x; done < <(seq 3); echo $n", 0, "3\n");
    session.gives("cat <<< \"here $((1+1))\"", 0, "here 2\n");
    session.gives("printf 'x\\ny\\n\\n' > f; echo \"[$(<f)]\"", 0, "[x\ny]\n");
    session.gives("echo {a..c}{1,2} ${BASH_VERSION:+b}", 0, "a1 a2 b1 b2 c1 c2 b\n");
    session.gives("x=$(echo a; exit 3); echo $? $x", 0, "3 a\n");
    session.gives("printf 'a\\nb\\n' | { mapfile -t l; echo ${#l[@]} ${l[1]}; }", 0, "2 b\n");
    session.gives("false | true | (exit 4); echo ${PIPESTATUS[@]}", 0, "1 0 4\n");
}

fn coprocess(at: &Place) {
    let session = at.session();
    session.does("coproc UP { while read -r l; do echo \"<$l>\"; done; }");
    session.gives("echo hi >&${UP[1]}; read -r l <&${UP[0]}; echo \"$l\"", 0, "<hi>\n");
    session.gives("echo there >&${UP[1]}; read -r l <&${UP[0]}; echo \"$l\"", 0, "<there>\n");
    session.does("kill $UP_PID; wait 2>/dev/null; true");
    session.alive();
}

const ARRAYS: &str = "a=($'x\\ny' '' 'z z' \"it's\"); declare -A m=([$'k\\n1']=$'v\\t' [é]='\"'); a[9]=far; \
    declare -i n=5; declare -r fixed=1; declare -x out=$'o\\n'; declare -n ref=a";
const SHOW: &str = "printf '<%s>' \"${a[@]}\" ${#a[@]} \"${!a[*]}\" \"${m[$'k\\n1']}\" \"${m[é]}\" \"$out\"; n+=1; echo $n ${ref[2]}; (fixed=2) 2>/dev/null || echo fixed";
const SHOWN: &str = "<x\ny><><z z><it's><far><5><0 1 2 3 9><v\t><\"><o\n>6 z z\nfixed\n";

fn arrays_with_newlines(at: &Place) {
    let session = at.session();
    session.does(ARRAYS);
    session.gives(SHOW, 0, SHOWN);
}

fn arrays_survive_a_killed_shell(at: &Place) {
    let session = at.session();
    session.does(ARRAYS);
    session.gives("kill -9 $$", 137, "");
    session.gives(SHOW, 0, SHOWN);
}

fn jobs_and_wait(at: &Place) {
    let session = at.session();
    session.gives("(exit 3) & wait $!; echo $?", 0, "3\n");
    session.gives("sleep 0.1 & sleep 0.1 & wait; echo all", 0, "all\n");
    session.does("(trap '' HUP; exec sleep 60) >/dev/null 2>&1 & q=$!");
    session.does("sleep 600 >/dev/null & p=$!");
    session.gives("kill $p; wait $p 2>/dev/null; echo $?", 0, "143\n");
    session.gives("kill -0 $q && kill $q; wait; echo none", 0, "none\n");
    session.alive();
}

fn jobs_survive_an_exit(at: &Place) {
    let session = at.session();
    session.does("sleep 500 & p=$!");
    session.gives("exit 3", 3, "");
    session.gives("kill -0 $p && echo lives", 0, "lives\n");
    session.gives("kill -9 $$", 137, "");
    session.gives("kill -0 $p && echo lives", 0, "lives\n");
}

fn disowned_jobs(at: &Place) {
    let session = at.session();
    session.does("sleep 500 & p=$!; disown; nohup setsid sleep 501 >/dev/null 2>&1 & disown -a");
    session.gives("jobs; kill -0 $p && echo lives", 0, "lives\n");
    session.gives("exec true", 0, "");
    session.gives("kill -0 $p && echo lives", 0, "lives\n");
}

/// Jobs that write without an end hold nobody up, and nothing of it comes into later commands.
fn background_flood(at: &Place) {
    let session = at.session();
    let done = session.exec("yes & yes >&2 & echo begun; p=$!");
    assert_eq!(done.code(), 0, "{}", done.body["exit_code"]);
    assert!(done.took < crate::AT_ONCE, "took {:?}", done.took);
    for number in 0..20 {
        session.gives(&format!("echo {number}"), 0, &format!("{number}\n"));
    }
    session.does("kill -0 $p; kill $(jobs -p) 2>/dev/null; true");
    session.alive();
}

fn tracing_shows_only_the_text(at: &Place) {
    let session = at.session();
    session.exec("set -x");
    for _ in 0..3 {
        let done = session.exec("echo hi; (exit 3)");
        assert_eq!(done.code(), 3, "{}", done.body);
        assert!(done.output().contains("\nhi\n"), "{}", done.body);
        // A plain shell has no way to keep quiet about the words around the text.
        let ours = if at.is_bash() { &["printf", "sandkasten", "/proc/"][..] } else { &[] };
        for ours in ours {
            assert!(!done.output().contains(ours), "{ours}: {}", done.body);
        }
    }
    session.exec("set +x");
    session.exec("set -v");
    let done = session.exec("echo hi");
    assert!(done.output().ends_with("hi\n") && !done.output().contains("printf"), "{}", done.body);
    session.exec("set +v");
    session.alive();
}

fn odd_variables(at: &Place) {
    let session = at.session();
    for cmd in [
        "IFS=0123456789",
        "PS4='$(exit 9)'",
        "unset PWD OLDPWD HOME PATH",
        "PATH=/nowhere",
        "LC_ALL=xx_YY LANG=C; export LC_ALL LANG",
        "readonly status=1 x=2 K=3",
        "set -f -C -a",
        "set -u",
        "POSIXLY_CORRECT=1",
        "umask 777",
        "BASH_ENV=/workspace/evil ENV=/workspace/evil; export BASH_ENV ENV",
    ] {
        session.exec(cmd);
        for code in [3, 0] {
            let done = session.exec(&format!("echo next; (exit {code})"));
            assert_eq!((done.code(), done.output()), (code, "next\n"), "{cmd}: {}", done.body);
            assert_eq!(done.body["shell_restarted"], false, "{cmd}");
        }
    }
    session.alive();
}

fn a_mebibyte_of_text(at: &Place) {
    let session = at.session();
    let max = 1024 * 1024;
    for length in [max, max - 1, 64 * 1024, 4096, 4095, 4097] {
        let (head, tail) = ("printf %s '", "' | wc -c");
        let body = "é".repeat((length - head.len() - tail.len()) / 2);
        let cmd = format!("{head}{body}{tail}");
        session.gives(&cmd, 0, &format!("{}\n", body.len()));
    }
    let many = "echo x >/dev/null\n".repeat(20_000) + "echo last";
    session.gives(&many, 0, "last\n");
    let body = json!({ "cmd": "x".repeat(max + 1) });
    let error = session.try_exec(&body).error(413, "TOO_LARGE");
    assert!(error["message"].as_str().unwrap_or_default().contains("1048576"), "{error}");
    session.try_exec(&json!({ "cmd": "echo a\0b" })).error(400, "INVALID_REQUEST");
    session.alive();
}

fn return_and_break_at_the_top(at: &Place) {
    let session = at.session();
    session.keep();
    for cmd in [
        "return 5",
        "break",
        "continue",
        "break 9",
        "local x",
        "shift 99",
        ". /nowhere",
        ".",
        "fg",
        "esac",
        "}",
        ")",
        ";;",
    ] {
        let done = session.exec(cmd);
        assert!(done.took < crate::AT_ONCE, "{cmd}: {:?}", done.took);
        session.kept();
        session.alive();
    }
    session.gives("for i in 1 2 3; do test $i = 2 && break; echo $i; done", 0, "1\n");
}

fn positional_parameters(at: &Place) {
    let session = at.session();
    session.gives("echo $# \"$*\"", 0, "0 \n");
    session.does("set -- a 'b  c' ''");
    session.gives("echo $# \"$2\"; shift; echo \"$1\"", 0, "3 b  c\nb  c\n");
    session.gives("echo $#", 0, "2\n");
}

fn exclamation_marks(at: &Place) {
    let session = at.session();
    session.gives("echo \"a!b\" !! !x ^a^b", 0, "a!b !! !x ^a^b\n");
    session.gives("set -H; echo !!", 0, "!!\n");
    session.gives("history | wc -l", 0, "0\n");
}

fn directory_stack(at: &Place) {
    let session = at.session();
    session.does("mkdir -p a/b; pushd a >/dev/null; pushd b >/dev/null");
    session.gives("popd >/dev/null; pwd; cd - >/dev/null; pwd; cd ~; pwd -P; cd /workspace", 0, &{
        let home = session.run("echo $HOME");
        format!("/workspace/a\n/workspace/a/b\n{home}")
    });
}

fn restricted_shell(at: &Place) {
    let session = at.session();
    session.keep();
    // A shell that may not write to files can't answer: it is replaced. Nobody says 0 for what is unknown.
    let answer = session.try_exec(&json!({ "cmd": "set -r" }));
    assert!(answer.took < crate::AT_ONCE, "{answer}");
    assert!(answer.json()["exit_code"] != 0, "{answer}");
    session.alive();
    session.kept();
}

fn hostile_prompt(at: &Place) {
    let session = at.session();
    session.does("PS1='P> ' PS2='Q> ' PS3='R> '; PROMPT_COMMAND='echo PROMPT'; export PS1 PS2 PROMPT_COMMAND");
    session.gives_both("echo x", 0, "x\n");
    session.gives("for i in 1 2\ndo\necho $i\ndone", 0, "1\n2\n");
}

/// A job in the background gets an empty stdin too, and takes nothing from the next command.
fn background_reads_nothing(at: &Place) {
    let session = at.session();
    session.does("cat > got &");
    session.does("(read a; read b; echo \"[$a$b]\" > got2) &");
    session.gives("echo one\necho two", 0, "one\ntwo\n");
    session.gives("wait; cat got got2", 0, "[]\n");
}

/// It is one command's alone, whoever reads it and whoever does not.
fn stdin_that_is_given(at: &Place) {
    let session = at.session();
    let with = |cmd: &str, stdin: &str| {
        let done = session.exec_with(&json!({ "cmd": cmd, "stdin": stdin }));
        assert_eq!(done.code(), 0, "{cmd}: {}", done.body);
        assert!(done.took < crate::AT_ONCE, "{cmd}: {:?}", done.took);
        done.output().to_owned()
    };
    assert_eq!(with("cat", "no end"), "no end");
    assert_eq!(with("read a; read b; echo \"[$a][$b]\"; cat", "1\n2\n3\n"), "[1][2]\n3\n");
    let large = "0123456789\n".repeat(100_000);
    assert_eq!(with("wc -c", &large).trim(), "1100000");
    assert_eq!(with("head -n 1", &large), "0123456789\n");
    assert_eq!(with("true", &large), "");
    session.gives("cat; echo none", 0, "none\n");
}

/// The shell of the session stays whose it was.
fn one_command_of_root(at: &Place) {
    let session = at.session();
    session.does("cd /tmp; export V=1; w=2");
    let done = session
        .exec_with(&json!({ "cmd": "id -u; pwd; echo $V [$w] $HOME; V=9; cd /", "user": "root" }));
    assert_eq!((done.code(), done.output()), (0, "0\n/tmp\n1 [] /root\n"), "{}", done.body);
    session.gives("echo $V $w; pwd", 0, "1 2\n/tmp\n");
    let done = session.exec_with(&json!({ "cmd": "exit 7", "user": "root" }));
    assert_eq!(done.code(), 7, "{}", done.body);
    let ruin = json!({ "cmd": "rm -rf /tmp/* /run/*; (exit 3)", "user": "root" });
    assert_eq!(session.exec_with(&ruin).code(), 3);
    session.gives("echo $V $w; pwd", 0, "1 2\n/tmp\n");
    session.alive();
}
