//! `docs/cli.md` is the help of all commands, and stays it.

#![expect(clippy::unwrap_used, reason = "a test")]
#![expect(clippy::disallowed_methods, reason = "a test runs the binary")]

use std::path::PathBuf;
use std::process::Command;

const COMMANDS: [&str; 16] = [
    "",
    "daemon",
    "daemon stop",
    "stop",
    "ps",
    "run",
    "exec",
    "result",
    "doctor",
    "image",
    "image build",
    "image import",
    "image list",
    "image rm",
    "bench",
    "version",
];

const HEAD: &str = "# Command line\n\nMade from the help texts by `SANDKASTEN_TEST_UPDATE=1 cargo test \
                    -p sandkasten --test manual`.\n";

fn manual() -> String {
    let mut text = HEAD.to_owned();
    for command in COMMANDS {
        let mut words: Vec<&str> = command.split(' ').filter(|word| !word.is_empty()).collect();
        words.push("--help");
        let output = Command::new(env!("CARGO_BIN_EXE_sandkasten")).args(words).output().unwrap();
        assert!(output.status.success(), "{command}");
        let title = format!("sandkasten {command}");
        let help = String::from_utf8(output.stdout).unwrap();
        text.push_str(&format!("\n## {}\n\n```text\n{}\n```\n", title.trim(), help.trim_end()));
    }
    text
}

#[test]
fn the_manual_is_the_help_of_all_commands() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md"));
    let manual = manual();
    if std::env::var_os("SANDKASTEN_TEST_UPDATE").is_some() {
        std::fs::write(&path, &manual).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == manual, "docs/cli.md is not the help any more; its head says how to renew it");
}
