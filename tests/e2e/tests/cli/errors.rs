//! What the command line says where something is wrong: every text, in `errors.txt`.
//!
//! The file is renewed by `SANDKASTEN_TEST_UPDATE=1 cargo xtask test cli:errors`; then read what
//! changed. Hints are what the reader can type, so none of them may name a route.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Output;

use sandkasten_e2e::Lab;
use sandkasten_e2e::lab::ALONE;
use serde_json::json;

use super::text;

const KEPT: &str = "tests/cli/errors.txt";

/// Words that are wrong without a daemon. Words are apart by spaces.
const WITHOUT: [&str; 49] = [
    "nothing",
    "ps --nothing",
    "ps --filter image=base",
    "ps --filter status=asleep",
    "run",
    "run tiny",
    "run -it tiny",
    "run --nothing tiny true",
    "run tiny --memory 1g true",
    "run tiny --memroy 1g true",
    "run --memory 512 tiny true",
    "run --memory 1k tiny true",
    "run --cpus many tiny true",
    "run --timeout soon tiny true",
    "run --timeout 0 tiny true",
    "run --env =x tiny true",
    "run --label =x tiny true",
    "run -d -t tiny true",
    "run tiny true",
    "exec",
    "exec some",
    "exec some --timeout 1s true",
    "exec some true",
    "ps",
    "result some",
    "result some thing",
    "run tiny --json true",
    "run -t tiny --json",
    "run --image tiny sh -u a.sh",
    "--config /not/there ps",
    "--url nonsense ps",
    "--url https://127.0.0.1:1 ps",
    "--url http://127.0.0.1:1 ps",
    "--url http://127.0.0.1:1 --data-dir /not/there ps",
    "--url http://127.0.0.1:1 doctor",
    "--url http://127.0.0.1:1 image list",
    "--url http://127.0.0.1:1 stop",
    "--url http://127.0.0.1:1 daemon",
    "daemon --listen nonsense",
    "daemon --log-level loud",
    "daemon -d stop",
    "stop --timeout soon",
    "doctor --nothing",
    "bench --runs 0",
    "image",
    "image build nothing",
    "image import",
    "image import /not/there --name x",
    "image rm nothing",
];

/// The same with a daemon. `ENDED` is a session that was deleted, `LIVES` one that runs.
const WITH: [&str; 19] = [
    "run nothing true",
    "run not/an/image true",
    "run --pids 100000 tiny true",
    "run --disk 1m tiny true",
    "run --ttl 2d tiny true",
    "run --user nobody-there tiny true",
    "run --workspace Not_A_Workspace tiny true",
    "run --timeout 2h tiny true",
    "run --timeout 1ms tiny sleep 60",
    "run tiny /no/program",
    "exec nobody true",
    "exec twice true",
    "exec ENDED true",
    "exec --cwd /not/there LIVES true",
    "exec --timeout 2h LIVES true",
    "exec --env A-B=1 LIVES true",
    "exec --user nobody-there LIVES true",
    "result LIVES nothing",
    "image rm nothing",
];

#[test]
fn every_text_is_kept() {
    let mut all = String::new();
    let nowhere = Lab::builder().prepare();
    for words in WITHOUT {
        say(&mut all, &nowhere, words, &[], |lab, words| lab.cli_within(&ALONE, words));
    }
    let lab = Lab::start();
    let ended = lab.session(&json!({})).id.clone();
    let lives = lab.session(&json!({}));
    let _twice =
        [lab.session(&json!({ "name": "twice" })), lab.session(&json!({ "name": "twice" }))];
    let names = [("ENDED", ended.as_str()), ("LIVES", lives.id.as_str())];
    for words in WITH {
        say(&mut all, &lab, words, &names, Lab::cli);
    }
    let routes = ["/v1/", "GET ", "POST ", "PUT ", "DELETE "];
    let route = all.lines().find(|line| routes.iter().any(|route| line.contains(route)));
    assert_eq!(route, None, "a route is nothing that a reader can type");
    compare(&all);
}

/// Adds what a command line is answered with.
fn say(
    all: &mut String,
    lab: &Lab,
    words: &str,
    names: &[(&str, &str)],
    run: fn(&Lab, &[&str]) -> Output,
) {
    let mut line = words.to_owned();
    for (name, id) in names {
        line = line.replace(name, id);
    }
    let words_of_line: Vec<&str> = line.split(' ').collect();
    let output = run(lab, &words_of_line);
    let told = general(&text(&output.stderr), lab, names);
    let code = output.status.code().expect("an exit code");
    writeln!(all, "$ sandkasten {words}\n{told}[{code}]\n").expect("write to memory");
}

/// A text without what is another one in each run.
fn general(told: &str, lab: &Lab, names: &[(&str, &str)]) -> String {
    let mut told = told.replace(&lab.data_dir.display().to_string(), "DATA");
    for (name, id) in names {
        told = told.replace(id, name);
    }
    told = told.replace(&lab.client.addr.to_string(), "ADDRESS");
    let mut general = String::new();
    let mut hex = String::new();
    for c in told.chars().chain(['\0']) {
        if c.is_ascii_hexdigit() {
            hex.push(c);
            continue;
        }
        general.push_str(if hex.len() == 32 { "ID" } else { &hex });
        hex.clear();
        if c != '\0' {
            general.push(c);
        }
    }
    general
}

#[track_caller]
fn compare(all: &str) {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(KEPT);
    if std::env::var_os("SANDKASTEN_TEST_UPDATE").is_some() {
        std::fs::write(&file, all).expect("write the texts");
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let other = all.lines().zip(kept.lines()).find(|(now, then)| now != then);
    assert!(
        all == kept,
        "not as in {KEPT}, whose module says how to renew it; the first line: {other:?}"
    );
}
