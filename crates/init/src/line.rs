//! The lines that a shell is given. Pure text; nothing here touches the system.
//!
//! The backslash before each word of ours keeps aliases away, `builtin` and `command` keep functions
//! of the payload away. Only operators stand outside of such words: a reserved word like `if` can be
//! an alias in bash. A first line that does nothing makes bash report ended jobs to `/dev/null` instead of
//! into the command's output, and empties `$?` and `$_`.

use sandkasten_protocol::Shell;

/// Where a command's output goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outputs<'a> {
    /// stdout and stderr to one path.
    One(&'a str),
    Two {
        stdout: &'a str,
        stderr: &'a str,
    },
}

/// What a command has as its stdin and where its output goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streams<'a> {
    pub(crate) input: &'a str,
    pub(crate) outputs: Outputs<'a>,
}

/// The input of a command that has none.
pub(crate) const NO_INPUT: &str = "/dev/null";

/// What is known of a bash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Bash,
    MayBePosix,
}

/// Names and values of one command's environment.
pub(crate) type Env = [(Vec<u8>, Vec<u8>)];

/// First line of a new shell: enters `cwd` (else `/`), does what `load` says, and answers with the version of bash (empty in
/// another shell) and the working directory.
pub(crate) fn start(shell: Shell, cwd: &[u8], load: &[u8], status: &str) -> Vec<u8> {
    let call = caller(shell);
    let mut line = Vec::new();
    push(&mut line, &[call, b"cd -- ", &quote(cwd), b" || ", call, b"cd /; "]);
    // The directory the shell was started in is no business of the session.
    push(&mut line, &[call, b"unset -v OLDPWD; "]);
    if shell == Shell::Bash {
        push(&mut line, &[call, b"declare -x OLDPWD; "]);
    }
    line.extend_from_slice(load);
    push(&mut line, &[call, b"printf '%s %s\\0' \"${BASH_VERSION-}\" \"${PWD-}\" >"]);
    push(&mut line, &[status.as_bytes(), b"\n"]);
    line
}

/// Answers 0 where every name can be assigned to.
pub(crate) fn probe_env(shell: Shell, env: &Env, status: &str) -> Vec<u8> {
    let mut line = fresh(shell);
    for (name, _value) in env {
        push(&mut line, &[b"( ", name, b"= ) 2>/dev/null && "]);
    }
    push(&mut line, &[caller(shell), b":; "]);
    push_status(&mut line, shell, status);
    line.push(b'\n');
    line
}

/// Answers 0 where `dir` was entered.
pub(crate) fn change_dir(shell: Shell, dir: &[u8], status: &str) -> Vec<u8> {
    let call = caller(shell);
    let mut line = fresh(shell);
    push(&mut line, &[call, b"cd -- ", &quote(dir), b" </dev/null >/dev/null 2>&1 && "]);
    push(&mut line, &[call, b":; "]);
    push_status(&mut line, shell, status);
    line.push(b'\n');
    line
}

/// Starts a helper that says its pid and has its environment read, and answers with its status.
///
/// In POSIX mode, which bash has as `sh`, special builtins are found before functions.
pub(crate) fn show_environment(shell: Shell, (said, gate): (&str, &str), status: &str) -> Vec<u8> {
    let helper = format!(
        "\\unset -f command printf read; \\command printf '%s x\\0' \"$$\" >{said}; \
         \\command read x <{gate}; :"
    );
    let (call, command): (_, &[u8]) = match shell {
        Shell::Bash => (caller(shell), b"\\builtin command "),
        Shell::Sh => (caller(shell), b"\\command "),
    };
    let mut line = fresh(shell);
    push(&mut line, &[command, b"/bin/sh -c ", &quote(helper.as_bytes())]);
    // Under `set -e` its failure is nothing.
    push(&mut line, &[b" </dev/null >/dev/null 2>&1 && ", call, b":; "]);
    push_status(&mut line, shell, status);
    line.push(b'\n');
    line
}

/// Evaluates a command and answers with its status.
pub(crate) fn command(
    (shell, mode): (Shell, Mode),
    text: &[u8],
    env: &Env,
    streams: Streams<'_>,
    status: &str,
) -> Vec<u8> {
    let mut line = quickly_fresh(shell, mode);
    match shell {
        Shell::Bash => {
            push_env(&mut line, env);
            // Before a bare `builtin eval` an assignment holds for the first command only.
            let eval: &[u8] =
                if env.is_empty() { b"\\builtin eval " } else { b"\\builtin command eval " };
            push(&mut line, &[eval, &quote(text), b" "]);
            push_streams(&mut line, streams);
            line.extend(b"; ");
            push_status(&mut line, shell, status);
        }
        Shell::Sh => {
            line.extend(b"\\command exec ");
            push_streams(&mut line, streams);
            line.extend(b"; ");
            push_env(&mut line, env);
            push(&mut line, &[b"\\command eval ", &quote(text), b"; "]);
            push_guarded_status(&mut line, status);
            let back: &[u8] = if streams.input == NO_INPUT { b"" } else { b"</dev/null " };
            push(&mut line, &[b"; \\command exec ", back, b">/dev/null 2>&1"]);
        }
    }
    line.push(b'\n');
    line
}

/// Whether the shells can take this as the name of a variable.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let letter = |b: &u8| b.is_ascii_alphabetic() || *b == b'_';
    name.first().is_some_and(letter) && name.iter().all(|b| letter(b) || b.is_ascii_digit())
}

fn fresh(shell: Shell) -> Vec<u8> {
    [caller(shell), b": ''\n"].concat()
}

/// The same in less bytes. In POSIX mode it would end a bash in which `_` is read-only.
fn quickly_fresh(shell: Shell, mode: Mode) -> Vec<u8> {
    match (shell, mode) {
        (Shell::Bash, Mode::Bash) => b"_=\n".to_vec(),
        (Shell::Bash, Mode::MayBePosix) | (Shell::Sh, _) => fresh(shell),
    }
}

fn caller(shell: Shell) -> &'static [u8] {
    match shell {
        Shell::Bash => b"\\builtin ",
        Shell::Sh => b"\\command ",
    }
}

fn push_env(line: &mut Vec<u8>, env: &Env) {
    for (name, value) in env {
        push(line, &[name, b"=", &quote(value), b" "]);
    }
}

fn push_streams(line: &mut Vec<u8>, streams: Streams<'_>) {
    push(line, &[b"<", streams.input.as_bytes()]);
    match streams.outputs {
        Outputs::One(path) => push(line, &[b" >", path.as_bytes(), b" 2>&1"]),
        Outputs::Two { stdout, stderr } => {
            push(line, &[b" >", stdout.as_bytes(), b" 2>", stderr.as_bytes()]);
        }
    }
}

fn push_status(line: &mut Vec<u8>, shell: Shell, status: &str) {
    push(line, &[caller(shell), b"printf '%s\\0' \"$? ${PWD-}\" >", status.as_bytes()]);
}

/// The status of a plain shell's command, written by the shell itself alone.
///
/// In busybox an error inside of a subshell (`(: </nowhere)`, `(echo ${x?})`) comes out of the `eval`
/// around it, still in the subshell's process, which would then go on as a second shell. `$$` is the
/// shell's pid in both; `/proc/self` tells them apart. `$?` is put into the text before the test can
/// change it.
fn push_guarded_status(line: &mut Vec<u8>, status: &str) {
    line.extend(
        b"\\command eval \"\\command test ! /proc/self -ef /proc/$$ && \\command exit $?; ",
    );
    line.extend(b"\\command printf '%s %s\\0' $? \\\"\\${PWD-}\\\" >");
    push(line, &[status.as_bytes(), b"\""]);
}

pub(crate) fn quote(text: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(text.len() + 2);
    quoted.push(b'\'');
    for part in text.split_inclusive(|b| *b == b'\'') {
        match part.split_last() {
            Some((b'\'', rest)) => push(&mut quoted, &[rest, b"'\\''"]),
            _ => quoted.extend(part),
        }
    }
    quoted.push(b'\'');
    quoted
}

pub(crate) fn push(line: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        line.extend_from_slice(part);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn text(line: Vec<u8>) -> String {
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn quotes_survive() {
        assert_eq!(quote(b"it's"), b"'it'\\''s'");
        assert_eq!(quote(b"''"), b"''\\'''\\'''");
        assert_eq!(quote(b"a\n$x`\\"), b"'a\n$x`\\'");
        assert_eq!(quote(b""), b"''");
    }

    #[test]
    fn bash_line() {
        let streams = Streams { input: NO_INPUT, outputs: Outputs::One("/o") };
        let of = |mode| text(command((Shell::Bash, mode), b"ls", &[], streams, "/s"));
        let line = "\\builtin eval 'ls' </dev/null >/o 2>&1; \\builtin printf '%s\\0' \"$? ${PWD-}\" >/s\n";
        assert_eq!(of(Mode::Bash), format!("_=\n{line}"));
        assert_eq!(of(Mode::MayBePosix), format!("\\builtin : ''\n{line}"));
    }

    #[test]
    fn sh_line() {
        let outputs = Outputs::Two { stdout: "/o", stderr: "/e" };
        let streams = Streams { input: "/i", outputs };
        let env = [(b"A".to_vec(), b"x y".to_vec())];
        let line = command((Shell::Sh, Mode::MayBePosix), b"ls", &env, streams, "/s");
        assert_eq!(
            text(line),
            "\\command : ''\n\\command exec </i >/o 2>/e; A='x y' \\command eval 'ls'; \
             \\command eval \"\\command test ! /proc/self -ef /proc/$$ && \\command exit $?; \
             \\command printf '%s %s\\0' $? \\\"\\${PWD-}\\\" >/s\"; \
             \\command exec </dev/null >/dev/null 2>&1\n"
        );
    }

    #[test]
    fn names() {
        assert!(is_name(b"_A1"));
        for bad in [&b""[..], b"1A", b"A-B", b"A=B", "Ä".as_bytes(), b"A;x"] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
