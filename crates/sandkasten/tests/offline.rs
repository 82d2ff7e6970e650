//! What commands do where no daemon runs.

#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "a test runs the binary")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A directory of its own with an empty data directory in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn configuration(self, text: &str) -> Self {
        fs::write(self.path().join("sandkasten.yaml"), text).unwrap();
        self
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandkasten"));
        command.args(words).current_dir(self.path()).env_clear();
        command.env("SANDKASTEN_DATA_DIR", self.path().join("data"));
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn clients_say_that_no_daemon_runs() {
    let place = Place::new();
    for (words, code) in
        [(&["ps"][..], 1), (&["run", "base", "--", "true"], 125), (&["exec", "0", "true"], 125)]
    {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(err(&output).contains("error: no daemon runs on "), "{}", err(&output));
        // Which hint it is depends on what else runs on this host.
        assert!(err(&output).contains("\nhint: "), "{}", err(&output));
    }
    assert!(!place.path().join("data").exists());
}

#[test]
fn a_stop_without_a_daemon_is_done() {
    let place = Place::new();
    let output = place.run(&["stop", "--json"]);
    assert!(output.status.success());
    assert_eq!(json(&output)["stopped"], false);
    assert!(place.run(&["stop", "--delete-sessions"]).status.success());
}

#[test]
fn errors_are_json_for_programs() {
    let output = Place::new().run(&["ps", "--json"]);
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(error["error"].as_str().unwrap().contains("no daemon runs"));
    assert!(error["hint"].is_string());
}

#[test]
fn a_bad_configuration_is_told_by_every_command_and_nothing_starts() {
    let place = Place::new().configuration("max_sessions: 5\nlisten_adress: x\n");
    for words in [&["daemon"][..], &["daemon", "-d"], &["ps"], &["doctor"], &["image", "list"]] {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        let told = err(&output);
        assert!(told.contains("sandkasten.yaml:2: unknown key `listen_adress`"), "{told}");
    }
    assert!(!place.path().join("data").exists());
}

#[test]
fn refusals_of_the_daemon_have_a_place() {
    let variable = |name: &str, text: &str| {
        let place = Place::new();
        let output = place.command(&["daemon"]).env(name, text).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}={text}");
        err(&output)
    };
    assert!(variable("SANDKASTEN_LISTEN", "0.0.0.0:0").contains("`api_key` is empty"));
    assert!(variable("SANDKASTEN_SECCOMP", "off").contains("needs --insecure"));
    assert!(
        variable("SANDKASTEN_NETWORK_MODE", "bridge").contains("not available in this version")
    );
    assert!(
        variable("SANDKASTEN_MAX_EXEC_TIMEOUT_MS", "29999")
            .contains("SANDKASTEN_MAX_EXEC_TIMEOUT_MS: ")
    );
}

#[test]
fn a_wrong_command_line_is_exit_two() {
    let place = Place::new();
    for words in
        [&["nothing"][..], &["ps", "--nothing"], &["run", "base"], &["image", "import", "x"], &[]]
    {
        assert_eq!(place.run(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn the_version_is_a_word_or_a_document() {
    let place = Place::new();
    let output = place.run(&["version"]);
    assert_eq!(output.stdout, format!("sandkasten {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    assert_eq!(json(&place.run(&["version", "--json"]))["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn doctor_reports_an_empty_key_and_its_fix() {
    let place = Place::new();
    let report = json(&place.run(&["doctor", "--json"]));
    let all = report["guarantees"].as_array().unwrap().clone();
    let key = all.iter().find(|one| one["name"] == "api-key").unwrap();
    assert_eq!((&key["given"], &key["required"]), (&Value::Bool(false), &Value::Bool(false)));
    assert!(key["fix"].as_str().unwrap().contains("SANDKASTEN_API_KEY"));
    let text = place.run(&["doctor"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("missing  api-key (optional): "));
}

#[test]
fn a_missing_archive_is_told() {
    let output = Place::new().run(&["image", "import", "missing.tar", "--name", "x"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("missing.tar"), "{}", err(&output));
}
