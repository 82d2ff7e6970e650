//! The suites, and what each needs before it can run.
//!
//! Invariant: a suite ends with one line, `NAME: N passed, N failed, N skipped`, and leaves nothing
//! on the host: what it leaves is one more failure.

use std::ffi::OsString;
use std::fmt::Write as _;

use anyhow::{Context, bail};
use sandkasten_e2e::image::Rootfs;
use sandkasten_e2e::leaks::Snapshot;
use sandkasten_e2e::{Lab, debian};

use crate::build;
use crate::fuzz;
use crate::runner::{self, Count};

struct Suite {
    name: &'static str,
    what: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The crates' own tests.
    Unit,
    /// Programs that are given what nobody would write.
    Fuzz,
    /// End-to-end tests, each with a daemon of its own.
    Own,
    /// The same, with the suite's daemon and its images `base` and `python` beside.
    Shared,
}

const SUITES: [Suite; 14] = [
    Suite { name: "unit", what: "the crates' own tests", kind: Kind::Unit },
    Suite { name: "fuzz", what: "decoders and cleaners, given anything", kind: Kind::Fuzz },
    Suite { name: "api", what: "published clients, wire traps", kind: Kind::Shared },
    Suite { name: "cases", what: "cases from the field, in each shell", kind: Kind::Shared },
    Suite { name: "exec", what: "what exec promises, whatever happens", kind: Kind::Shared },
    Suite {
        name: "process",
        what: "programs beside the shell, sockets on them",
        kind: Kind::Shared,
    },
    Suite { name: "files", what: "files and workspaces, whoever is at them", kind: Kind::Shared },
    Suite { name: "input", what: "what bad input gets", kind: Kind::Own },
    Suite { name: "http", what: "keys, limits, hostile peers, logs", kind: Kind::Own },
    Suite { name: "jail", what: "isolation and limits, by a probe inside", kind: Kind::Shared },
    Suite { name: "faults", what: "a create that fails at every step", kind: Kind::Own },
    Suite { name: "doctor", what: "each guarantee, given and taken away", kind: Kind::Own },
    Suite { name: "cli", what: "each command", kind: Kind::Own },
    Suite { name: "docs", what: "what README says, run", kind: Kind::Shared },
];

pub fn names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

pub fn list() -> String {
    let mut text = String::new();
    for suite in &SUITES {
        writeln!(text, "{:8} {}", suite.name, suite.what).expect("write to memory");
    }
    text + "all      every one of them\n"
}

/// Runs suites one after the other; whether all of them passed. A name may be followed by parts of
/// test names after a colon: `jail:i_07`.
pub fn run(names: &[&str]) -> anyhow::Result<bool> {
    let mut chosen = Vec::new();
    for name in names {
        let (name, filter) = name.split_once(':').unwrap_or((name, ""));
        let suite = SUITES.iter().find(|suite| suite.name == name);
        let suite = suite.with_context(|| format!("no suite `{name}`; there are\n{}", list()))?;
        let filter = filter.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        chosen.push((suite, filter));
    }
    let mut lines = Vec::new();
    let mut green = true;
    for (suite, filter) in chosen {
        println!("== {}: {}", suite.name, suite.what);
        let count = suite.run(filter)?;
        let line = format!("{}: {count}", suite.name);
        println!("{line}");
        green &= count.failed == 0;
        lines.push(line);
    }
    if lines.len() > 1 {
        println!("== all suites\n{}", lines.join("\n"));
    }
    Ok(green)
}

impl Suite {
    fn run(&self, filter: Vec<String>) -> anyhow::Result<Count> {
        if self.kind == Kind::Unit {
            return unit(&filter);
        }
        if self.kind == Kind::Fuzz {
            return fuzz::run(&filter);
        }
        if !is_root() {
            bail!("the suite `{}` starts daemons: run it as root", self.name);
        }
        let mut variables = binaries(self.name)?;
        let before = Snapshot::take();
        let mut count = {
            let shared = (self.kind == Kind::Shared).then(|| shared_lab(self.name));
            let of_lab = shared.iter().flat_map(Lab::variables);
            variables.extend(of_lab.map(|(name, value)| (name.to_owned(), value)));
            let targets = self.targets();
            runner::run(&["-p", "sandkasten-e2e", "--test", &targets], &variables, &filter)?
        };
        let left = before.left_since(is_ours);
        if !left.is_empty() {
            println!("FAILED the suite left behind: {left:#?}");
            count.failed += 1;
        }
        Ok(count)
    }

    /// The suite's target below `tests/e2e/tests`, or all whose name begins so: a suite `files` is made of
    /// `files` and every `files_…`. The pattern is cargo's.
    fn targets(&self) -> String {
        match self.name {
            "files" => "files*".to_owned(),
            name => name.to_owned(),
        }
    }
}

/// The crates' tests, and those of the harness.
fn unit(filter: &[String]) -> anyhow::Result<Count> {
    let mut count = runner::run(&["--workspace", "--exclude", "sandkasten-e2e"], &[], filter)?;
    count += runner::run(&["-p", "sandkasten-e2e", "--lib"], &[], filter)?;
    Ok(count)
}

/// Builds what a suite runs and says where it is.
fn binaries(suite: &str) -> anyhow::Result<Vec<(String, OsString)>> {
    let mut variables = vec![("SANDKASTEN_TEST_BIN", build::release()?)];
    if ["jail", "doctor"].contains(&suite) {
        variables.push(("SANDKASTEN_TEST_PROBE", build::probe()?));
    }
    if suite == "faults" {
        variables.push(("SANDKASTEN_TEST_FAULTY_BIN", build::faulty()?));
    }
    Ok(variables.into_iter().map(|(name, path)| (name.to_owned(), path.into())).collect())
}

/// A daemon with the built images, which all tests of a suite use.
fn shared_lab(suite: &str) -> Lab {
    println!("images base and python, from the cache where they are there");
    let mut lab = Lab::builder().recipe("base").recipe("python");
    if suite == "cases" {
        lab = lab.image("busybox", Rootfs::busybox()).image("dash", Rootfs::dash());
        lab = lab.archive("bookworm", debian::bookworm());
    }
    lab.start()
}

/// Whether something on the leak list can be ours. In CI all that is new is, but for processes that
/// carry no name of ours: the daemon's and init's do, and those of a box stand in a group of ours. On a
/// developer's machine, what labs are named after.
fn is_ours(entry: &str) -> bool {
    if std::env::var_os("SANDKASTEN_NO_SKIP").is_some() {
        !entry.starts_with("process ") || entry.contains("sandkasten")
    } else {
        entry.contains("sandkasten-test-")
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}
