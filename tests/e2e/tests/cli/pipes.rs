//! `run` and `exec` as pipes: bytes in, bytes out, and their ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use sandkasten_e2e::lab::Signal;
use sandkasten_e2e::{Lab, host, wait};
use serde_json::{Value, json};

use super::{ends, lasting, text};

/// A program that waits for nothing ends within this, on a busy host too.
const PATIENCE: Duration = Duration::from_secs(60);

/// A CLI command with three pipes.
fn piped(lab: &Lab, words: &[&str]) -> Child {
    let mut command = lab.command(words);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    pipes.spawn().expect("run sandkasten")
}

#[track_caller]
fn ended(child: &mut Child) -> ExitStatus {
    assert!(wait::ends_within(child, PATIENCE), "it does not end");
    child.wait().expect("its end")
}

/// Gives it bytes, and has both of its outputs.
fn through(lab: &Lab, words: &[&str], input: &[u8]) -> (Option<i32>, Vec<u8>, Vec<u8>) {
    let mut child = piped(lab, words);
    let mut stdin = child.stdin.take().expect("a pipe");
    let (mut out, mut err) =
        (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        // A command that does not read breaks the pipe when it ends.
        scope.spawn(move || drop(stdin.write_all(input)));
        scope.spawn(|| err.read_to_end(&mut stderr).expect("read stderr"));
        out.read_to_end(&mut stdout).expect("read stdout");
    });
    (ended(&mut child).code(), stdout, stderr)
}

fn every_byte() -> Vec<u8> {
    // In both orders, so that no byte stands where a text would allow it.
    (0..=255).chain((0..=255).rev()).chain(*b"\r\r\n\n\x1b[2J\x80\0").collect()
}

/// Bytes that no part of repeats soon.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[test]
fn every_byte_goes_through_run_unchanged() {
    let lab = Lab::shared();
    let bytes = every_byte();
    let (code, out, err) = through(&lab, &["run", "tiny", "cat"], &bytes);
    assert_eq!((code, text(&err)), (Some(0), String::new()));
    assert_eq!(out, bytes);
    let (code, out, err) = through(&lab, &["run", "tiny", "cat >&2; echo x"], &bytes);
    assert_eq!((code, text(&out)), (Some(0), "x\n".into()));
    assert_eq!(err, bytes);
}

#[test]
fn every_byte_goes_through_exec_unchanged() {
    let lab = Lab::shared();
    for image in ["tiny", "base"] {
        let session = lab.session(&json!({ "image": image }));
        let bytes = every_byte();
        let (code, out, err) = through(&lab, &["exec", &session.id, "tee /dev/stderr"], &bytes);
        // tiny has no tee.
        if image == "base" {
            assert_eq!((code, err), (Some(0), bytes.clone()));
            assert_eq!(out, bytes);
        }
        let (code, out, _) = through(&lab, &["exec", &session.id, "cat"], &bytes);
        assert_eq!((code, out), (Some(0), bytes));
    }
}

#[test]
fn a_long_input_comes_back_whole() {
    let lab = Lab::shared();
    let bytes = noise(64 << 20);
    let (code, out, err) = through(&lab, &["run", "--timeout", "4m", "base", "cat"], &bytes);
    assert_eq!((code, text(&err)), (Some(0), String::new()));
    assert!(out == bytes, "{} of {} bytes, or others", out.len(), bytes.len());
}

#[test]
fn an_archive_is_whole() {
    let lab = Lab::shared();
    let (code, out, err) =
        through(&lab, &["run", "base", "tar", "c", "-C", "/usr/bin", "tar", "env"], b"");
    assert_eq!((code, text(&err)), (Some(0), String::new()));
    let mut names = Vec::new();
    for entry in tar::Archive::new(&out[..]).entries().expect("a tar") {
        let entry = entry.expect("an entry");
        names.push(entry.path().expect("a path").to_string_lossy().into_owned());
    }
    assert_eq!(names, ["tar", "env"]);
}

#[test]
fn input_and_output_are_live() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base" }));
    let script = "printf 'name? '; read a; echo \"hello $a\"; read b || echo end";
    for words in [&["run", "base", script][..], &["exec", &session.id, script]] {
        let mut child = piped(&lab, words);
        let mut stdin = child.stdin.take().expect("a pipe");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut question = [0; 6];
        out.read_exact(&mut question).expect("a part of a line");
        assert_eq!(&question, b"name? ");
        stdin.write_all(b"world\n").expect("answer");
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert_eq!(line, "hello world\n");
        drop(stdin);
        line.clear();
        out.read_line(&mut line).expect("a line");
        assert_eq!(line, "end\n");
        assert_eq!(ended(&mut child).code(), Some(0));
    }
}

#[test]
fn the_shell_reads_what_is_piped_in() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base" }));
    let (code, ..) = through(&lab, &["exec", &session.id, "read -r KEPT"], b"a b\\c\n");
    assert_eq!(code, Some(0));
    assert_eq!(session.run("echo \"$KEPT\""), "a b\\c\n");
}

/// As under cron, CI and ssh: stdin is a pipe that nobody writes to and nobody closes.
#[test]
fn an_open_stdin_holds_nothing_up() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "tiny" }));
    for words in [
        &["exec", &session.id, "true"][..],
        &["exec", "-i", &session.id, "true"],
        &["run", "tiny", "true"],
        &["exec", "-d", &session.id, "true"],
    ] {
        let mut child = piped(&lab, words);
        let stdin = child.stdin.take().expect("a pipe");
        assert_eq!(ended(&mut child).code(), Some(0), "{words:?}");
        drop(stdin);
    }
}

#[test]
fn a_command_that_never_reads_breaks_nothing() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "tiny" }));
    let bytes = vec![b'x'; 20 << 20];
    for words in [&["exec", &session.id, "echo done"][..], &["run", "tiny", "echo done"]] {
        let (code, out, err) = through(&lab, words, &bytes);
        assert_eq!(
            (code, text(&out), text(&err)),
            (Some(0), "done\n".into(), String::new()),
            "{words:?}"
        );
    }
    let (code, out, _) = through(&lab, &["exec", &session.id, "head -c 3"], &bytes);
    assert_eq!((code, text(&out)), (Some(0), "xxx".into()));
}

/// `sandkasten … yes | head -c 1`.
#[test]
fn a_reader_that_leaves_ends_the_command() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "tiny" }));
    for words in [&["exec", &session.id, "yes"][..], &["run", "--ttl", "61s", "tiny", "yes"]] {
        let mut child = piped(&lab, words);
        let mut out = child.stdout.take().expect("a pipe");
        out.read_exact(&mut [0]).expect("a byte");
        drop(out);
        assert_eq!(ended(&mut child).code(), Some(141), "{words:?}");
    }
    assert_eq!(session.run("echo free"), "free\n");
}

#[test]
fn sigterm_ends_run_and_its_session() {
    let lab = Lab::shared();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let label = format!("end={code}");
        let script = "echo started; sleep 1000";
        let mut child = piped(&lab, &["run", "--label", &label, "tiny", script]);
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        out.read_line(&mut line).expect("a line");
        assert_eq!(line, "started\n");
        host::signal(child.id(), signal);
        assert_eq!(ended(&mut child).code(), Some(code));
        let filter = format!("label={label}");
        assert_eq!(ends(&lab.cli(&["ps", "-q", "--filter", &filter]), 0), "");
    }
}

#[test]
fn sigterm_ends_the_command_of_exec() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "tiny" }));
    let mut child = piped(&lab, &["exec", &session.id, "echo started; sleep 1000"]);
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut line).expect("a line");
    host::signal(child.id(), Signal::TERM);
    assert_eq!(ended(&mut child).code(), Some(143));
    assert_eq!(session.run("echo free"), "free\n");
}

/// The command goes on without the daemon, and its result is where the message says.
#[test]
fn a_lost_daemon_is_told_with_the_way_to_the_result() {
    let mut lab = Lab::start();
    let id = lasting(&lab, &json!({}));
    let mut child = piped(&lab, &["exec", &id, "echo started; sleep 0.5; echo done; exit 3"]);
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    lab.kill();
    assert_eq!(ended(&mut child).code(), Some(125));
    let mut told = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut told).expect("read");
    assert!(told.contains(&format!("of session {id}\n")), "{told}");
    let command = told.split('`').nth(1).unwrap_or_default();
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    assert_eq!(words[..2], ["result", id.as_str()], "{told}");
    lab.restart();
    for _again in 0..2 {
        assert_eq!(ends(&lab.cli(&words), 3), "started\ndone\n");
    }
}

#[test]
fn a_detached_command_is_known_by_its_id() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "tiny" }));
    let id = ends(&lab.cli(&["exec", "-d", &session.id, "echo out; echo err >&2; exit 4"]), 0);
    let output = lab.cli(&["result", &session.id, id.trim()]);
    assert_eq!(ends(&output, 4), "out\n");
    assert_eq!(text(&output.stderr), "err\n");
    let value = lab.cli(&["--json", "run", "-d", "tiny", "echo hello"]);
    let value: Value = serde_json::from_slice(&value.stdout).expect("JSON");
    let [run, id] = ["session_id", "id"].map(|field| value[field].as_str().expect("an id"));
    assert_eq!(ends(&lab.cli(&["result", run, id]), 0), "hello\n");
    lab.client.request("DELETE", &format!("/v1/sessions/{run}")).send().ok(200);
    let output = lab.cli(&["result", &session.id, "nothing"]);
    assert_eq!(output.status.code(), Some(125), "{}", text(&output.stderr));
}

#[test]
fn an_image_without_a_shell_runs_programs() {
    let mut root = sandkasten_e2e::image::Rootfs::empty();
    let busybox = host::find_program("busybox").expect("busybox");
    root.file("bin/cat", &std::fs::read(busybox).expect("read busybox"), 0o755);
    let lab = Lab::builder().image("bare", root).start();
    let bytes = every_byte();
    let (code, out, err) = through(&lab, &["run", "bare", "cat"], &bytes);
    assert_eq!((code, text(&err)), (Some(0), String::new()));
    assert_eq!(out, bytes);
}

#[test]
fn json_has_every_chunk_and_the_end() {
    let lab = Lab::shared();
    let output = lab.cli(&["--json", "run", "tiny", "echo out; echo err >&2; exit 3"]);
    let out = ends(&output, 3);
    let lines: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let chunk = |stream: &str| lines.iter().find(|line| line["stream"] == stream).expect("a chunk");
    assert_eq!(chunk("stdout")["chunk"], "out\n");
    assert_eq!(chunk("stderr")["chunk"], "err\n");
    assert_eq!(lines.last().expect("a line")["exit_code"], 3);
}

/// A shell's own pipe, from the file of one box to another.
#[test]
fn boxes_are_piped_into_one_another() {
    let lab = Lab::shared();
    let bin = lab.command(&[]);
    let script =
        "\"$0\" run base seq 1 100000 | \"$0\" run base sort -n | \"$0\" run base tail -n 1";
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(bin.get_program());
    shell.envs(bin.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = shell.stdin(Stdio::null()).output().expect("run sh");
    assert_eq!(ends(&output, 0), "100000\n");
}
