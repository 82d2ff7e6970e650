//! Flags of sessions and commands, names of sessions, the list of them.

use sandkasten_e2e::Lab;
use serde_json::{Value, json};

use super::{ends, json_of, text};

#[test]
fn a_session_is_made_as_the_flags_say() {
    let lab = Lab::shared();
    let words = [
        "--json",
        "run",
        "-d",
        "--memory",
        "64m",
        "--cpus",
        "0.5",
        "--pids",
        "50",
        "--disk",
        "32m",
        "--ttl",
        "2m",
        "--name",
        "flagged",
        "--label",
        "a=b",
        "--label",
        "bare",
        "-v",
        "flag-space",
        "-w",
        "/tmp",
        "-e",
        "GIVEN=a b",
        "-e",
        "CALLERS",
        "-e",
        "ABSENT",
        "tiny",
        "pwd; echo $GIVEN,$CALLERS,${ABSENT-none}",
    ];
    let output = lab.command(&words).env("CALLERS", "mine").output().expect("run sandkasten");
    let value: Value = serde_json::from_str(&ends(&output, 0)).expect("JSON");
    let [id, command] = ["session_id", "id"].map(|field| value[field].as_str().expect("an id"));
    let session = lab.known(id);
    let made = lab.client.get(&session.path("")).ok(200);
    let limits = &made["limits"];
    assert_eq!(limits["memory_mb"], 64, "{made}");
    assert_eq!((&limits["pids"], &limits["disk_mb"]), (&json!(50), &json!(32)));
    assert_eq!(limits["cpu"], 0.5);
    assert_eq!((&made["name"], &made["workspace_id"]), (&json!("flagged"), &json!("flag-space")));
    assert_eq!((&made["labels"]["a"], &made["labels"]["bare"]), (&json!("b"), &json!("")));
    assert_eq!(made["labels"]["sandkasten.run"], "true");
    let out = ends(&lab.cli(&["result", "flagged", command]), 0);
    assert_eq!(out, "/tmp\na b,mine,none\n");
    lab.client.request("DELETE", &session.path("")).send().ok(200);
}

#[test]
fn a_command_is_run_as_the_flags_say() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "base" }));
    let run = |words: &[&str]| {
        let all: Vec<&str> = ["exec"].iter().chain(words).copied().collect();
        lab.cli(&all)
    };
    let id = session.id.as_str();
    assert_eq!(ends(&run(&["-w", "/usr", "-e", "A=1", id, "pwd; echo $A"]), 0), "/usr\n1\n");
    assert_eq!(ends(&run(&[id, "pwd; echo ${A-none}"]), 0), "/usr\nnone\n");
    assert_eq!(ends(&run(&["-u", "root", id, "id -u"]), 0), "0\n");
    for time in ["500ms", "1", "1s"] {
        let output = run(&["--timeout", time, id, "sleep 60"]);
        ends(&output, 124);
        assert!(text(&output.stderr).contains("--timeout"), "{}", text(&output.stderr));
    }
    assert_eq!(ends(&run(&["--timeout", "1m", id, "echo", "$A", "it's"]), 0), "$A it's\n");
}

#[test]
fn an_image_may_be_a_flag() {
    let lab = Lab::shared();
    assert_eq!(ends(&lab.cli(&["run", "--image", "tiny", "echo", "a  b"]), 0), "a  b\n");
    assert_eq!(ends(&lab.cli(&["run", "--image", "tiny", "echo one"]), 0), "one\n");
}

#[test]
fn options_behind_the_image_are_wrong_usage() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "tiny" }));
    let id = session.id.as_str();
    for words in [
        &["run", "tiny", "--memory", "1g", "echo", "x"][..],
        &["run", "tiny", "-e", "A=1", "echo"],
        &["run", "tiny", "--memroy", "1g", "echo"],
        &["run", "tiny", "-d", "echo"],
        &["exec", id, "--timeout", "1s", "echo"],
        &["exec", id, "-t", "sh"],
    ] {
        let output = lab.cli(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output.stderr));
        let told = text(&output.stderr);
        assert!(told.contains("put it before the ") && told.contains("`--`"), "{words:?}: {told}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    // What stands behind the command's first word is the command's own.
    assert_eq!(ends(&lab.cli(&["run", "tiny", "echo", "--memory", "-d"]), 0), "--memory -d\n");
    assert_eq!(lab.cli(&["run", "tiny", "--", "--memory"]).status.code(), Some(127));
    assert_eq!(ends(&lab.cli(&["exec", id, "--", "echo", "--", "-t"]), 0), "-- -t\n");
}

#[test]
fn a_session_has_an_id_a_beginning_and_a_name() {
    let lab = Lab::shared();
    let first = lab.session(&json!({ "image": "tiny", "name": "named one" }));
    let second = lab.session(&json!({ "image": "tiny", "name": "twice" }));
    let third = lab.session(&json!({ "image": "tiny", "name": "twice" }));
    for word in [first.id.as_str(), &first.id[..12], "named one"] {
        assert_eq!(
            ends(&lab.cli(&["exec", word, "echo $SANDKASTEN_SESSION_ID"]), 0),
            format!("{}\n", first.id)
        );
    }
    let output = lab.cli(&["exec", "twice", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let told = text(&output.stderr);
    assert!(told.contains(&second.id) && told.contains(&third.id), "{told}");
    let output = lab.cli(&["exec", "nobody", "true"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("`sandkasten ps`"), "{}", text(&output.stderr));
}

#[test]
fn ps_tells_name_age_expiry_and_what_runs() {
    let lab = Lab::shared();
    let labels = json!({ "listed": "yes" });
    let session = lab.session(
        &json!({ "image": "tiny", "name": "shown", "labels": labels, "ttl_seconds": 1800 }),
    );
    let words = ["run", "-d", "--ttl", "10m", "--label", "listed=yes", "tiny", "sleep", "1000"];
    ends(&lab.cli(&words), 0);
    let list = |more: &[&str]| {
        let all: Vec<&str> = ["ps", "-f", "label=listed=yes"].iter().chain(more).copied().collect();
        ends(&lab.cli(&all), 0)
    };
    let table = list(&[]);
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        words(lines[0]),
        ["SESSION", "NAME", "IMAGE", "STATUS", "AGE", "EXPIRES", "COMMAND"]
    );
    let shown = lines.iter().find(|line| line.contains("shown")).expect("a line");
    let cells = words(shown);
    assert_eq!(cells[..4], [&session.id[..12], "shown", "tiny", "running"], "{table}");
    assert!(cells[4].ends_with('s') && cells[5] == "in", "{table}");
    assert!(["29m", "30m"].contains(&cells[6].as_str()), "{table}");
    assert!(table.contains("run: sleep 1000\n"), "{table}");
    let ids = list(&["-q"]);
    assert!(ids.lines().count() == 2 && ids.contains(&format!("{}\n", session.id)), "{ids}");
    assert_eq!(list(&["-q", "-f", "name=shown"]), format!("{}\n", session.id));
    assert_eq!(list(&["-q", "-f", "status=paused"]), "");
    let of_run =
        ends(&lab.cli(&["ps", "-q", "-f", "label=listed", "-f", "label=sandkasten.run=true"]), 0);
    let run = lab.known(of_run.trim());
    lab.client.request("DELETE", &run.path("")).send().ok(200);
    assert_eq!(
        json_of(&lab.cli(&["ps", "--json", "-f", "name=shown"]))[0]["id"],
        session.info["id"]
    );
}
