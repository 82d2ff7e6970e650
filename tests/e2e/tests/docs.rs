//! What README says is run as it stands, one block after the other, as a reader would.
//!
//! It runs in namespaces of its own, so that the daemon with its default port and data directory
//! (`/var/lib/sandkasten`) meets no other, and leaves nothing on the host.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use sandkasten_e2e::lab::{self, Binary};
use sandkasten_e2e::session::quote;
use sandkasten_e2e::{Lab, leaks};

/// Blocks that are suites of their own or what runs this one.
const ELSEWHERE: [&str; 2] = ["make demo", "make test"];

/// A fenced block of Markdown: its language and text.
fn blocks(markdown: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in markdown.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => found.push(block),
            (Some(language), None) => open = Some((language.to_owned(), String::new())),
            (None, Some((language, text))) => open = Some((language, format!("{text}{line}\n"))),
            (None, None) => {}
        }
    }
    found
}

/// The blocks as one shell script.
fn script(blocks: &[(String, String)], dir: &Path) -> String {
    let mut script = String::from("set -euo pipefail\n");
    for (number, (language, text)) in blocks.iter().enumerate() {
        if ELSEWHERE.contains(&text.trim()) {
            continue;
        }
        match language.as_str() {
            "sh" => script.push_str(text),
            "python" => {
                let file = dir.join(format!("block-{number}.py"));
                fs::write(&file, text).expect("write a block");
                writeln!(script, "python {}", quote(&file.to_string_lossy())).expect("to memory");
            }
            other => panic!("a block that nobody runs: {other:?}\n{text}"),
        }
    }
    script
}

/// Brings `lo` up, puts an own `/var/lib` in place, and runs the script.
const SURROUNDINGS: &str = "mount --bind \"$1\" /var/lib && python3 -c '
import fcntl, socket, struct
SIOCSIFFLAGS, UP_AND_LOOPBACK = 0x8914, 0x9
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack(\"16sh\", b\"lo\", UP_AND_LOOPBACK))
' && exec bash \"$2\"";

#[test]
fn readme_does_what_it_says() {
    // It has built the images, so that the cache has them: there is no network inside.
    let _shared = Lab::shared();
    let venv = lab::venv("client-0.3.0", &["sandkasten[agents]==0.3.0"]);
    let dir = lab::scratch_dir(&leaks::tag());
    let readme = fs::read_to_string(lab::checkout().join("README.md")).expect("README.md");
    let library = dir.path().join("lib");
    fs::create_dir(&library).expect("make a folder");
    let file = dir.path().join("script");
    fs::write(&file, script(&blocks(&readme), dir.path())).expect("write the script");
    let binary = Binary::Release.path();
    let mut path =
        vec![venv.parent().expect("bin").to_owned(), binary.parent().expect("a folder").to_owned()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut command = Command::new("unshare");
    lab::clear_settings(&mut command);
    command.args(["-m", "-n", "sh", "-c", SURROUNDINGS, "sh"]).arg(&library).arg(&file);
    command.env("PATH", std::env::join_paths(path).expect("PATH")).current_dir(lab::checkout());
    let output = command.output().expect("run unshare");
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    for want in [
        "hello /workspace/app\n 0\n",
        "1\n2\n3\n",
        r#""output":"42\n""#,
        r#"{"ok":true}"#,
        "hello from a box\n",
    ] {
        assert!(out.contains(want), "no {want:?} in\n{out}\n{err}");
    }
    let name = dir.path().to_string_lossy().into_owned();
    drop(dir);
    let left = leaks::Snapshot::empty().left_since(&leaks::Marks::new([name]));
    assert!(left.is_empty(), "{left:#?}");
}

/// Files that README and the other pages lead to are there.
#[test]
fn links_lead_somewhere() {
    let root = lab::checkout();
    for page in
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/configuration.md"]
    {
        let text =
            fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        let folder = root.join(page).parent().expect("a folder").to_owned();
        for part in text.split("](").skip(1) {
            let target = part.split([')', '#']).next().unwrap_or_default();
            if !target.is_empty() && !target.contains("://") {
                assert!(
                    folder.join(target).exists(),
                    "{page} leads to {target}, which is not there"
                );
            }
        }
    }
}
