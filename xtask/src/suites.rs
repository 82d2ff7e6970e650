//! The suites, and what each needs before it can run.
//!
//! Invariant: a suite ends with one line, `NAME: N passed, N failed, N skipped`, and leaves nothing
//! on the host: what it leaves is one more failure. What is missing on the host is said before the
//! first test of the first suite.
//!
//! To add one: a target `tests/e2e/tests/NAME`, a line in [`SUITES`], and its packages in
//! `scripts/packages`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::built::{Binary, Built, Wanted};
use crate::cargo::root;
use crate::fuzz;
use crate::runner::{self, Count};
use crate::surroundings::Run;

/// Hands what was built to the xtask that runs as root.
const BUILT: &str = "SANDKASTEN_XTASK_BUILT";

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

const SUITES: [Suite; 15] = [
    Suite { name: "unit", what: "the crates' own tests", kind: Kind::Unit },
    Suite { name: "fuzz", what: "decoders and cleaners, given anything", kind: Kind::Fuzz },
    Suite { name: "api", what: "published clients, wire traps", kind: Kind::Shared },
    Suite {
        name: "openapi",
        what: "the API document: valid, good for clients, true",
        kind: Kind::Shared,
    },
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
    Suite { name: "faults", what: "steps that fail, a full disk", kind: Kind::Own },
    Suite { name: "doctor", what: "each guarantee, given and taken away", kind: Kind::Own },
    Suite { name: "cli", what: "each command, as a pipe and on a terminal", kind: Kind::Shared },
    Suite { name: "docs", what: "what README and the pages say, run", kind: Kind::Shared },
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

/// A suite, and the tests of it that are to run: all, or those whose name has one of some parts.
struct Chosen {
    suite: &'static Suite,
    filter: Vec<String>,
}

/// Suites by name. A name may be followed by parts of test names after a colon: `jail:i_07`.
fn choose(names: &[&str]) -> anyhow::Result<Vec<Chosen>> {
    let all = self::names();
    let names = if names == ["all"] { &all } else { names };
    let one = |name: &&str| {
        let (name, filter) = name.split_once(':').unwrap_or((name, ""));
        let suite = SUITES.iter().find(|suite| suite.name == name);
        let suite = suite.with_context(|| format!("no suite `{name}`; there are\n{}", list()))?;
        let filter = filter.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        Ok(Chosen { suite, filter })
    };
    names.iter().map(one).collect()
}

/// What suites need, in the words of `scripts/packages`.
pub fn needs(names: &[&str]) -> anyhow::Result<Vec<&'static str>> {
    let mut words: Vec<_> = choose(names)?.iter().flat_map(|one| one.suite.needs()).collect();
    words.sort_unstable();
    words.dedup();
    Ok(words)
}

/// Runs suites one after the other; whether all of them passed.
pub fn run(names: &[&str]) -> anyhow::Result<bool> {
    let chosen = choose(names)?;
    packages_are_there(&chosen)?;
    let built = match std::env::var_os(BUILT) {
        Some(file) => Built::read(&PathBuf::from(file))?,
        None => Built::make(&wanted(&chosen))?,
    };
    if is_root() || chosen.iter().all(|one| one.suite.kind == Kind::Fuzz) {
        run_built(&chosen, &built)
    } else {
        run_as_root(names, &built)
    }
}

/// Suites whose packages are not installed are told before anything is built.
fn packages_are_there(chosen: &[Chosen]) -> anyhow::Result<()> {
    let mut lacks = String::new();
    for suite in chosen.iter().map(|one| one.suite) {
        let mut command = Command::new(root().join("scripts/packages"));
        let output = command.arg("missing").args(suite.needs()).output();
        let output = output.context("run scripts/packages")?;
        if !output.status.success() {
            bail!("scripts/packages: {}", String::from_utf8_lossy(&output.stderr));
        }
        let packages = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
        if !packages.is_empty() {
            writeln!(lacks, "  {}: {packages}", suite.name).expect("write to memory");
        }
    }
    if !lacks.is_empty() {
        bail!(
            "Debian packages that suites need are not installed:\n{lacks}\
             `make test` installs those of every suite, `scripts/test NAME…` those of some"
        );
    }
    Ok(())
}

fn wanted(chosen: &[Chosen]) -> Wanted<'static> {
    let has = |names: &[&str]| chosen.iter().any(|one| names.contains(&one.suite.name));
    let daemons = chosen.iter().filter(|one| one.suite.needs_daemon());
    Wanted {
        unit: has(&["unit"]),
        fuzz: has(&["fuzz"]),
        targets: daemons.map(|one| one.suite.targets()).collect(),
        probe: has(&["jail", "doctor"]),
        faulty: has(&["faults"]),
    }
}

/// Runs what this user has built as root: sandboxes need it, and the build's files stay the user's.
fn run_as_root(names: &[&str], built: &Built) -> anyhow::Result<bool> {
    let file = built.target.join("test-bin/built.json");
    std::fs::create_dir_all(built.target.join("test-bin")).context("make target/test-bin")?;
    built.write(&file)?;
    let mut command = Command::new("sudo");
    // sudo has a PATH and a HOME of its own.
    command.args(["--preserve-env", "env"]);
    for name in ["PATH", "HOME"] {
        let value = std::env::var(name).with_context(|| format!("no {name}"))?;
        command.arg(format!("{name}={value}"));
    }
    command.arg(format!("{BUILT}={}", file.display()));
    command.arg(std::env::current_exe()?).arg("test").args(names);
    let status = command.status();
    let status = status.context("tests start daemons: run them as root, or install sudo")?;
    Ok(status.success())
}

/// Closing lines, and whether all passed.
struct Report {
    lines: Vec<String>,
    green: bool,
}

impl Report {
    fn close(&mut self, suite: &Suite, count: Count, since: Instant) {
        let line = format!("{}: {count}", suite.name);
        println!("-- {} s\n{line}", since.elapsed().as_secs());
        self.lines.push(line);
        self.green &= count.failed == 0;
    }
}

/// Runs suites one after the other. Fuzz targets run beside the first one, which is `unit` where all are
/// chosen: later ones measure times.
fn run_built(chosen: &[Chosen], built: &Built) -> anyhow::Result<bool> {
    let mut run = Run::new(built)?;
    let mut report = Report { lines: Vec::new(), green: true };
    let (fuzz, others): (Vec<&Chosen>, Vec<&Chosen>) =
        chosen.iter().partition(|one| one.suite.kind == Kind::Fuzz);
    let shared_last = others.iter().rposition(|one| one.suite.kind == Kind::Shared);
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let since = Instant::now();
        let start = |one: &&'_ Chosen| {
            let filter = one.filter.clone();
            (one.suite, scope.spawn(move || fuzz::run(&built.target, &filter)))
        };
        let mut beside: Vec<_> = fuzz.iter().map(start).collect();
        for (index, one) in others.iter().enumerate() {
            let since = Instant::now();
            println!("== {}: {}", one.suite.name, one.suite.what);
            let mut count = one.suite.run(&one.filter, built, &mut run)?;
            if Some(index) == shared_last {
                count.failed += run.end_shared();
            }
            report.close(one.suite, count, since);
            if index == 0 {
                end(&mut beside, since, &mut report)?;
            }
        }
        end(&mut beside, since, &mut report)
    })?;
    if report.lines.len() > 1 {
        println!("== all suites\n{}", report.lines.join("\n"));
    }
    Ok(report.green)
}

type Beside<'scope> =
    (&'static Suite, std::thread::ScopedJoinHandle<'scope, anyhow::Result<(String, Count)>>);

/// Waits for what runs beside.
fn end(beside: &mut Vec<Beside>, since: Instant, report: &mut Report) -> anyhow::Result<()> {
    for (suite, running) in beside.drain(..) {
        println!("== {}: {}", suite.name, suite.what);
        let (told, count) = running.join().expect("no panic")?;
        print!("{told}");
        report.close(suite, count, since);
    }
    Ok(())
}

impl Suite {
    fn run(&self, filter: &[String], built: &Built, run: &mut Run) -> anyhow::Result<Count> {
        let mut variables = run.variables();
        if self.kind == Kind::Shared {
            variables.extend(run.shared(self.name));
        }
        let before = run.look();
        let binaries: Vec<&Binary> = built.tests.iter().filter(|one| self.has(one)).collect();
        let mut count = runner::run(&binaries, &variables, filter)?;
        count.failed += run.tell_leaks(&before);
        Ok(count)
    }

    /// Whether a binary has tests of this suite: a suite `files` is made of the targets `files` and
    /// every `files_…`, as others are; `unit` of all that are not below `tests/e2e/tests`.
    fn has(&self, binary: &Binary) -> bool {
        match (&binary.suite, self.kind) {
            (None, kind) => kind == Kind::Unit,
            (Some(_), Kind::Unit | Kind::Fuzz) => false,
            (Some(name), _) => name
                .strip_prefix(self.name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('_')),
        }
    }

    /// The suite's targets, as cargo's pattern.
    fn targets(&self) -> &'static str {
        match self.name {
            "files" => "files*",
            "cli" => "cli*",
            name => name,
        }
    }

    fn needs_daemon(&self) -> bool {
        matches!(self.kind, Kind::Own | Kind::Shared)
    }

    /// What it needs, in the words of `scripts/packages`.
    fn needs(&self) -> Vec<&'static str> {
        match self.kind {
            Kind::Unit | Kind::Fuzz => vec![self.name],
            Kind::Own => vec![self.name, "daemon"],
            Kind::Shared => vec![self.name, "daemon", "images"],
        }
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}
