//! What a run of suites needs built: made first and at once, so that tests meet no compiler beside them.
//!
//! Invariant: it is built by the user who started xtask. Where tests need root, a second xtask runs as
//! root and is handed this as a file; that one runs no cargo, so root owns nothing of the build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::cargo::{cargo, target_dir};
use crate::{build, fuzz};

/// A binary with tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    pub path: PathBuf,
    /// The folder of its package, where it runs.
    pub dir: PathBuf,
    /// The suite's target where it is one of `tests/e2e/tests`; `None` for a crate's own tests.
    pub suite: Option<String>,
}

/// What to build.
#[derive(Debug, Default)]
pub struct Wanted<'a> {
    /// The crates' own tests.
    pub unit: bool,
    pub fuzz: bool,
    /// Targets of `tests/e2e`, as cargo takes them (`files*`).
    pub targets: Vec<&'a str>,
    pub probe: bool,
    pub faulty: bool,
}

/// What was built.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Built {
    pub target: PathBuf,
    pub tests: Vec<Binary>,
    /// Variables that name the programs: `SANDKASTEN_TEST_BIN` and others.
    pub programs: Vec<(String, PathBuf)>,
}

impl Built {
    /// Builds what is wanted.
    pub fn make(wanted: &Wanted) -> anyhow::Result<Self> {
        let mut built = Self { target: target_dir()?, ..Self::default() };
        let mut program = |name: &str, path| built.programs.push((name.to_owned(), path));
        if !wanted.targets.is_empty() {
            program("SANDKASTEN_TEST_BIN", build::release()?);
        }
        if wanted.probe {
            program("SANDKASTEN_TEST_PROBE", build::probe()?);
        }
        if wanted.faulty {
            program("SANDKASTEN_TEST_FAULTY_BIN", build::faulty()?);
        }
        for selection in selections(wanted) {
            built.tests.extend(tests(&selection)?);
        }
        if wanted.fuzz {
            fuzz::build(&built.target)?;
        }
        Ok(built)
    }

    /// Writes it to a file, for [`Built::read`].
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        let tests = self.tests.iter().map(|one| json!([one.path, one.dir, one.suite]));
        let value = json!({
            "target": self.target, "tests": tests.collect::<Vec<_>>(), "programs": self.programs,
        });
        fs::write(file, value.to_string()).with_context(|| format!("write {}", file.display()))
    }

    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
        let value: Value = serde_json::from_slice(&text).context("what was built")?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let path = |value: &Value| text(value).map(PathBuf::from).context("a path");
        let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
        let test = |one: Value| {
            Ok(Binary { path: path(&one[0])?, dir: path(&one[1])?, suite: text(&one[2]) })
        };
        let program = |one: Value| Ok((text(&one[0]).context("a name")?, path(&one[1])?));
        Ok(Self {
            target: path(&value["target"])?,
            tests: list("tests").into_iter().map(test).collect::<anyhow::Result<_>>()?,
            programs: list("programs").into_iter().map(program).collect::<anyhow::Result<_>>()?,
        })
    }
}

/// Arguments of `cargo test`, a list for each run of it. With everything in one run each crate is built
/// once: runs with other packages choose other features of what they share.
fn selections<'a>(wanted: &Wanted<'a>) -> Vec<Vec<&'a str>> {
    match (wanted.unit, wanted.targets.is_empty()) {
        (true, false) => vec![vec!["--workspace"]],
        (true, true) => vec![
            vec!["--workspace", "--exclude", "sandkasten-e2e"],
            vec!["-p", "sandkasten-e2e", "--lib"],
        ],
        (false, false) => {
            let targets = wanted.targets.iter().flat_map(|target| ["--test", target]);
            vec![["-p", "sandkasten-e2e"].into_iter().chain(targets).collect()]
        }
        (false, true) => Vec::new(),
    }
}

/// Builds tests.
fn tests(selection: &[&str]) -> anyhow::Result<Vec<Binary>> {
    let mut command = cargo(&["test", "--locked", "--no-run"]);
    command.args(["--message-format", "json-render-diagnostics"]).args(selection);
    let output = command.stderr(Stdio::inherit()).output().context("run cargo test")?;
    if !output.status.success() {
        bail!("cargo test --no-run: {}", output.status);
    }
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        let Some(binary) = message["executable"].as_str() else { continue };
        if message["profile"]["test"] != true {
            continue;
        }
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let dir = manifest.parent().context("a manifest's folder")?.to_owned();
        let is_suite = dir.ends_with("tests/e2e") && message["target"]["kind"][0] == "test";
        let name = message["target"]["name"].as_str().unwrap_or_default();
        let suite = is_suite.then(|| name.to_owned());
        found.push(Binary { path: binary.into(), dir, suite });
    }
    Ok(found)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_was_built_is_handed_on() {
        let binary = |name: &str, suite: Option<&str>| Binary {
            path: name.into(),
            dir: "/p".into(),
            suite: suite.map(str::to_owned),
        };
        let built = Built {
            target: "/t".into(),
            tests: vec![binary("/t/a", None), binary("/t/b", Some("api"))],
            programs: vec![("SANDKASTEN_TEST_BIN".into(), "/t/x".into())],
        };
        let file = std::env::temp_dir().join(format!("xtask-built-{}", std::process::id()));
        built.write(&file).expect("write");
        let read = Built::read(&file);
        fs::remove_file(&file).expect("remove");
        assert_eq!(read.expect("read"), built);
    }
}
