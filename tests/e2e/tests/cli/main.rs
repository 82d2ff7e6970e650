//! The command line: each command, for people and with `--json`.

mod errors;
mod flags;
mod pipes;
mod terminal;

use std::process::{Output, Stdio};

use sandkasten_e2e::lab::Signal;
use sandkasten_e2e::{Lab, host, image};
use serde_json::{Value, json};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn ends(output: &Output, code: i32) -> String {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "stdout: {out}\nstderr: {err}");
    out
}

/// A session that its test does not hold: it lives until its lab goes.
#[track_caller]
fn lasting(lab: &Lab, request: &Value) -> String {
    let session = lab.session(request);
    let id = session.id.clone();
    std::mem::forget(session);
    id
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    let out = ends(output, 0);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("not JSON ({error}): {out}"))
}

#[test]
fn version() {
    let lab = Lab::builder().prepare();
    let plain = ends(&lab.cli(&["version"]), 0);
    let value = json_of(&lab.cli(&["version", "--json"]));
    let version = value["version"].as_str().expect("a version");
    assert!(plain.contains(version), "{plain}");
    assert!(ends(&lab.cli(&["--version"]), 0).contains(version));
}

#[test]
fn help_names_every_command() {
    let lab = Lab::builder().prepare();
    let help = ends(&lab.cli(&["--help"]), 0);
    for command in ["daemon", "stop", "ps", "run", "exec", "doctor", "image", "version", "bench"] {
        assert!(help.contains(command), "{command}: {help}");
        let own = ends(&lab.cli(&[command, "--help"]), 0);
        assert!(own.contains("Usage:"), "{own}");
    }
}

#[test]
fn unknown_words_are_wrong_usage() {
    let lab = Lab::builder().prepare();
    for words in [
        &["nothing"][..],
        &["ps", "--nothing"],
        &["run"],
        &["exec", "id"],
        &["image", "build", "nothing"],
    ] {
        let output = lab.cli(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn ps_lists_sessions() {
    let lab = Lab::start();
    assert_eq!(json_of(&lab.cli(&["ps", "--json"])), json!([]));
    let session = lab.session(&json!({ "workspace_id": "mine" }));
    let list = json_of(&lab.cli(&["ps", "--json"]));
    assert_eq!((&list[0]["id"], &list[0]["workspace_id"]), (&session.info["id"], &json!("mine")));
    let plain = ends(&lab.cli(&["ps"]), 0);
    assert!(plain.contains(&session.id[..12]), "{plain}");
}

#[test]
fn run_passes_on_output_and_exit_code() {
    let lab = Lab::start();
    let output = lab.cli(&[
        "run",
        "tiny",
        "--",
        "sh",
        "-c",
        "echo out; echo \"$0 $1\" >&2; exit 7",
        "a b",
        "c'd",
    ]);
    assert_eq!(ends(&output, 7), "out\n");
    assert_eq!(text(&output.stderr), "a b c'd\n");
    assert_eq!(ends(&lab.cli(&["run", "tiny", "--", "cd /tmp && pwd"]), 0), "/tmp\n");
    assert_eq!(ends(&lab.cli(&["run", "tiny", "--", "false"]), 1), "");
    assert_eq!(
        lab.cli(&["run", "--timeout", "1", "tiny", "--", "sleep 60"]).status.code(),
        Some(124)
    );
}

#[test]
fn run_leaves_no_session() {
    let lab = Lab::start();
    ends(&lab.cli(&["run", "tiny", "--", "true"]), 0);
    ends(&lab.cli(&["run", "--workspace", "kept", "tiny", "--", "echo data > file"]), 0);
    assert_eq!(lab.client.get("/v1/sessions").ok(200), json!([]));
    let out = ends(&lab.cli(&["run", "--workspace", "kept", "tiny", "--", "cat file"]), 0);
    assert_eq!(out, "data\n");
}

#[test]
fn run_of_an_unknown_image_says_so() {
    let lab = Lab::start();
    let output = lab.cli(&["run", "nothing", "--", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("nothing"), "{}", text(&output.stderr));
}

#[test]
fn run_with_json_prints_events() {
    let lab = Lab::start();
    let output = lab.cli(&["--json", "run", "tiny", "--", "echo x; exit 3"]);
    let out = ends(&output, 3);
    let lines: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0]["chunk"], "x\n");
    assert_eq!(lines.last().expect("a line")["exit_code"], 3);
}

/// Ctrl-C at `run` cancels the command and deletes the session.
#[test]
fn run_that_is_interrupted_cleans_up() {
    let lab = Lab::start();
    let mut command = lab.command(&["run", "tiny", "--", "echo started; sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("run sandkasten");
    let mut line = String::new();
    let mut reader = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut reader, &mut line).expect("read");
    assert_eq!(line, "started\n");
    host::signal(child.id(), Signal::INT);
    assert_eq!(child.wait().expect("its end").code(), Some(130));
    assert_eq!(lab.client.get("/v1/sessions").ok(200), json!([]));
}

#[test]
fn exec_uses_the_sessions_own_shell() {
    let lab = Lab::start();
    let session = lab.session(&json!({}));
    ends(&lab.cli(&["exec", &session.id, "cd /tmp; A=1"]), 0);
    assert_eq!(
        ends(
            &lab.cli(&["exec", &session.id, "pwd; echo $A; exit_with() { return 5; }; exit_with"]),
            5
        ),
        "/tmp\n1\n"
    );
    let output = lab.cli(&["exec", "nobody", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("nobody"), "{}", text(&output.stderr));
}

#[test]
fn images_are_imported_listed_and_removed() {
    let lab = Lab::start();
    let names = || {
        let value = json_of(&lab.cli(&["image", "list", "--json"]));
        let images = value["images"].as_array().cloned().unwrap_or_default();
        images
            .into_iter()
            .map(|image| image["name"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(), ["tiny"]);
    let file = lab.dir().join("other.tar");
    let mut rootfs = image::Rootfs::tiny();
    rootfs.file("etc/other", b"not the layer of tiny", 0o644);
    std::fs::write(&file, rootfs.finish()).expect("write the tar");
    let file = file.to_string_lossy().into_owned();
    let words = [
        "image",
        "import",
        &file,
        "--name",
        "other",
        "--env",
        "GREETING=hello",
        "--workdir",
        "/tmp",
        "--json",
    ];
    assert_eq!(json_of(&lab.cli(&words))["name"], "other");
    assert_eq!(names(), ["other", "tiny"]);
    assert!(ends(&lab.cli(&["image", "list"]), 0).contains("other"));
    {
        let session = lab.session(&json!({ "image": "other" }));
        assert_eq!(session.run("echo $GREETING"), "hello\n");
        let output = lab.cli(&["image", "rm", "other"]);
        assert_eq!(output.status.code(), Some(1), "an image in use: {}", text(&output.stderr));
        session.alive();
    }
    ends(&lab.cli(&["image", "rm", "other"]), 0);
    assert_eq!(names(), ["tiny"]);
    let output = lab.cli(&["image", "rm", "other"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("other"), "{}", text(&output.stderr));
}

#[test]
fn import_of_what_is_no_archive_says_so() {
    let lab = Lab::start();
    let file = lab.dir().join("broken.tar");
    std::fs::write(&file, "this is no tar, and it is long enough to be looked at ".repeat(40))
        .expect("write");
    let output = lab.cli(&["image", "import", &file.to_string_lossy(), "--name", "broken"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(!text(&output.stderr).is_empty());
    let list = json_of(&lab.cli(&["image", "list", "--json"]));
    assert_eq!(list["images"].as_array().map(Vec::len), Some(1), "{list}");
}

#[test]
fn daemon_goes_to_the_background_and_stops() {
    let lab = Lab::builder().prepare();
    let words = ["daemon", "-d", "--listen", "127.0.0.1:0", "--json"];
    let started = json_of(&lab.cli(&words));
    let url = started["url"].as_str().expect("a URL").to_owned();
    let addr = url.strip_prefix("http://").expect("http").parse().expect("an address");
    let client = sandkasten_e2e::http::Client { addr, ..lab.client.clone() };
    assert_eq!(client.get("/healthz").ok(200), json!({ "status": "ok" }));
    let pid = lab.pid();
    assert_eq!(started["pid"], pid);
    // A second daemon on the same data directory refuses to start.
    let second = lab.cli(&words);
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains(&pid.to_string()), "{}", text(&second.stderr));
    assert_eq!(ends(&lab.cli(&["run", "tiny", "--", "echo hello"]), 0), "hello\n");
    let stopped = json_of(&lab.cli(&["stop", "--json"]));
    assert_eq!((&stopped["stopped"], &stopped["pid"]), (&json!(true), &json!(pid)));
    // Whoever adopts orphans on this host may leave it as a zombie for a while.
    let state = host::status(pid, "State");
    assert!(
        state.is_empty() || state.starts_with('Z'),
        "it runs on when stop says that it is gone"
    );
    assert_eq!(json_of(&lab.cli(&["stop", "--json"]))["stopped"], false);
    assert!(lab.data_dir.join("daemon.log").is_file());
}

#[test]
fn commands_without_a_daemon_say_so() {
    let lab = Lab::builder().prepare();
    for (words, code) in
        [(&["ps"][..], 1), (&["run", "tiny", "--", "true"], 125), (&["exec", "id", "true"], 125)]
    {
        let output = lab.cli(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(text(&output.stderr).contains("daemon"), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn bench_prints_figures() {
    let lab = Lab::start();
    let value = json_of(&lab.cli(&["bench", "--json", "--image", "tiny", "--runs", "3"]));
    let all = value.to_string();
    for figure in ["p50", "p95", "p99"] {
        assert!(all.contains(figure) || all.contains("median"), "{figure}: {all}");
    }
    let tiers = value["tiers"].as_array().into_iter().flatten();
    let names: Vec<&str> = tiers.filter_map(|tier| tier["tier"].as_str()).collect();
    for name in ["exec", "stream", "process", "healthz", "above_healthz"] {
        assert!(names.contains(&name), "{name}: {all}");
    }
    assert_eq!(lab.client.get("/v1/sessions").ok(200), json!([]));
}

#[test]
fn bench_looks_at_memory() {
    let lab = Lab::start();
    let value = json_of(&lab.cli(&["bench", "--json", "--runs", "1", "--flat", "2000"]));
    let flat = &value["flat"];
    assert_eq!(flat["execs"], 2000, "{value}");
    for process in ["daemon", "init"] {
        let [first, last] = ["first", "last"].map(|when| flat[process][when].as_u64().unwrap_or(0));
        assert!(first > 100 && last > 100, "{flat}");
        assert!(last < first + 8 * 1024, "{process} grew: {flat}");
    }
}

#[test]
fn bench_measures_files() {
    let lab = Lab::start();
    let value = json_of(&lab.cli(&["bench", "--json", "--files", "--runs", "2", "--size", "8"]));
    let tiers = value["tiers"].as_array().into_iter().flatten();
    let names: Vec<&str> = tiers.filter_map(|tier| tier["tier"].as_str()).collect();
    for name in ["write_64", "read_64", "write_1k", "read_1k", "json_write_64"] {
        assert!(names.contains(&name), "{name}: {value}");
    }
    let transfers = value["transfers"].as_array().cloned().unwrap_or_default();
    let names: Vec<&str> = transfers.iter().filter_map(|one| one["transfer"].as_str()).collect();
    assert_eq!(names, ["upload", "download", "archive_in", "archive_out"]);
    for transfer in transfers {
        let positive = |field: &str| transfer[field].as_f64().is_some_and(|value| value > 0.0);
        assert!(
            positive("seconds") && positive("beside_seconds") && positive("ratio"),
            "{transfer}"
        );
    }
    for process in ["daemon", "init"] {
        let of = &value["memory"][process];
        assert!(of["peak"].as_u64() >= of["before"].as_u64(), "{value}");
    }
    let left = sandkasten_e2e::host::names(&lab.data_dir);
    assert!(!left.iter().any(|name| name.starts_with("bench-")), "{left:?}");
    assert_eq!(lab.client.get("/v1/sessions").ok(200), json!([]));
}
