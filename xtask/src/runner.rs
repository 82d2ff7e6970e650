//! Runs tests, each in a process of its own.
//!
//! Namespaces, cgroups and the launcher belong to a process, so tests must not share one; and a
//! fresh machine has no nextest. Invariant: every test that the binaries list runs exactly once;
//! one that is killed at its time limit has failed.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::built::Binary;

/// Tests in a module of this name run with nothing beside them.
const ALONE: &str = "alone::";
/// Tests in a module of this name wait most of their time, so that many of them run at once, beside the others.
const WAITS: &str = "waits::";
const WAITING: usize = 8;
/// Tests in a module of this name take minutes: they run where `SANDKASTEN_LONG` is set.
const LONG: &str = "minutes::";
const TIME_LIMIT: Duration = Duration::from_secs(300);
/// The same for those that take minutes.
const LONG_LIMIT: Duration = Duration::from_secs(600);
/// What takes longer is shown with its time.
const SLOW: Duration = Duration::from_secs(10);

/// What came of some tests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// One test of one binary.
#[derive(Debug, Clone)]
struct Test {
    binary: PathBuf,
    dir: PathBuf,
    name: String,
}

enum Outcome {
    Passed,
    Skipped,
    Failed(String),
}

/// What tests are given beside the runner's own environment.
pub type Variables = [(String, std::ffi::OsString)];

/// Runs the tests of some binaries; `filter` picks tests by a part of their name.
pub fn run(
    binaries: &[&Binary],
    variables: &Variables,
    filter: &[String],
) -> anyhow::Result<Count> {
    let mut tests = list(binaries)?;
    tests.retain(|test| filter.is_empty() || filter.iter().any(|part| test.name.contains(part)));
    if tests.is_empty() {
        bail!("no such tests: {filter:?}");
    }
    if std::env::var_os("SANDKASTEN_LONG").is_none() {
        let is_long = |test: &Test| test.name.contains(LONG);
        for test in tests.iter().filter(|test| is_long(test)) {
            println!("not run: {} takes minutes (SANDKASTEN_LONG=1 runs it)", test.name);
        }
        tests.retain(|test| !is_long(test));
    }
    let (alone, together): (VecDeque<Test>, VecDeque<Test>) =
        tests.into_iter().partition(|test| test.name.contains(ALONE));
    let mut count = side_by_side(together, variables)?;
    for test in alone {
        count += tell(&test, variables)?;
    }
    Ok(count)
}

fn list(binaries: &[&Binary]) -> anyhow::Result<Vec<Test>> {
    let mut tests = Vec::new();
    for binary in binaries {
        let output = Command::new(&binary.path).args(["--list", "--format", "terse"]).output();
        let output = output.with_context(|| format!("list {}", binary.path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        tests.extend(names.map(|name| Test {
            binary: binary.path.clone(),
            dir: binary.dir.clone(),
            name: name.to_owned(),
        }));
    }
    Ok(tests)
}

fn side_by_side(tests: VecDeque<Test>, variables: &Variables) -> anyhow::Result<Count> {
    let (waiting, working): (VecDeque<Test>, VecDeque<Test>) =
        tests.into_iter().partition(|test| test.name.contains(WAITS));
    let queues = [Mutex::new(working), Mutex::new(waiting)];
    let [working, waiting] = &queues;
    let total = Mutex::new(Count::default());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        let work = |queue: &Mutex<VecDeque<Test>>| -> anyhow::Result<()> {
            loop {
                let Some(test) = queue.lock().expect("no panic").pop_front() else { return Ok(()) };
                let count = tell(&test, variables)?;
                *total.lock().expect("no panic") += count;
            }
        };
        let queues =
            std::iter::repeat_n(working, workers).chain(std::iter::repeat_n(waiting, WAITING));
        let running: Vec<_> = queues.map(|queue| scope.spawn(move || work(queue))).collect();
        running.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    Ok(total.into_inner().expect("no panic"))
}

/// Runs a test and says what came of it.
fn tell(test: &Test, variables: &[(String, std::ffi::OsString)]) -> anyhow::Result<Count> {
    let start = Instant::now();
    let (outcome, output) = perform(test, variables)?;
    let took = start.elapsed();
    let time = if took > SLOW { format!(" ({:.0} s)", took.as_secs_f64()) } else { String::new() };
    let mut count = Count::default();
    match outcome {
        Outcome::Passed => {
            count.passed = 1;
            println!("ok     {}{time}", test.name);
        }
        Outcome::Skipped => {
            count.skipped = 1;
            let line = output.lines().find(|line| line.starts_with("SKIP ")).unwrap_or_default();
            println!("{line}");
        }
        Outcome::Failed(how) => {
            count.failed = 1;
            println!("FAILED {}{time}: {how}\n{output}", test.name);
        }
    }
    Ok(count)
}

fn perform(test: &Test, variables: &Variables) -> anyhow::Result<(Outcome, String)> {
    // A file, not a pipe: a daemon that the test started may outlive it and hold it open.
    let mut output = tempfile()?;
    let mut command = Command::new(&test.binary);
    command.args([&test.name, "--exact", "--nocapture"]).current_dir(&test.dir);
    command.env("CARGO_MANIFEST_DIR", &test.dir);
    command.envs(variables.iter().cloned()).stdin(Stdio::null());
    command.stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut child = command.spawn().with_context(|| format!("run {}", test.binary.display()))?;
    let limit = if test.name.contains(LONG) { LONG_LIMIT } else { TIME_LIMIT };
    let how = ends(&mut child, limit)?;
    let mut text = Vec::new();
    output.seek(SeekFrom::Start(0))?;
    output.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let outcome = match how {
        Some(how) => Outcome::Failed(how),
        None if text.lines().any(|line| line.starts_with("SKIP ")) => Outcome::Skipped,
        None => Outcome::Passed,
    };
    Ok((outcome, text))
}

/// Waits for a test's end; how it failed, if it did.
fn ends(child: &mut Child, limit: Duration) -> anyhow::Result<Option<String>> {
    if !sandkasten_e2e::wait::ends_within(child, limit) {
        child.kill()?;
        child.wait()?;
        return Ok(Some(format!("not over after {limit:?}")));
    }
    let status = child.wait()?;
    Ok((!status.success()).then(|| status.to_string()))
}

fn tempfile() -> anyhow::Result<File> {
    sandkasten_e2e::wait::scratch_file().context("a temporary file")
}
