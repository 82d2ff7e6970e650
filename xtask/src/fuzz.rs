//! The suite `fuzz`: each target of the crate `fuzz` for a while, with libFuzzer and the address
//! sanitizer, on the stable toolchain.
//!
//! Invariant: a target that finds something has failed, and what it found lies where the message says.
//! Runs begin from the seeds in `fuzz/corpus` and from what earlier runs on this machine have found;
//! nothing is written to the checkout.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context, bail};

use crate::cargo::{cargo, must, root};
use crate::runner::Count;

const SECONDS: &str = "SANDKASTEN_FUZZ_SECONDS";
const SECONDS_DEFAULT: u32 = 60;
const TARGETS: [&str; 5] = ["from_init", "from_worker", "to_init", "cleaner", "dump"];
/// The sanitizer wants it named, so that build scripts and macros go without.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Below the target directory: builds, and in folders of each target what was found, and what failed.
const FOLDER: &str = "fuzz";
const CORPUS: &str = "corpus";
const FAULTS: &str = "faults";

/// What makes a fuzzer of a program: the counters that libFuzzer reads, and the sanitizer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Cllvm-args=-simplifycfg-branch-fold-threshold=0 -Ccodegen-units=1 -Zsanitizer=address";

/// Runs the targets that `filter` picks, giving way to what runs beside them; what to
/// say of it, and the count.
pub fn run(target: &Path, filter: &[String]) -> anyhow::Result<(String, Count)> {
    let is_chosen = |name: &str| filter.is_empty() || filter.iter().any(|part| name.contains(part));
    let chosen: VecDeque<&str> = TARGETS.into_iter().filter(|name| is_chosen(name)).collect();
    if chosen.is_empty() {
        bail!("no such fuzz target; there are {}", TARGETS.join(", "));
    }
    let seconds = seconds()?;
    let dir = target.join(FOLDER);
    let queue = Mutex::new(chosen);
    let total = Mutex::new((String::new(), Count::default()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            loop {
                let Some(name) = queue.lock().expect("no panic").pop_front() else { return Ok(()) };
                let (told, count) = fuzz(&dir, name, seconds)?;
                let mut total = total.lock().expect("no panic");
                total.0.push_str(&told);
                total.1 += count;
            }
        };
        let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    Ok(total.into_inner().expect("no panic"))
}

fn seconds() -> anyhow::Result<u32> {
    let Some(text) = std::env::var_os(SECONDS) else { return Ok(SECONDS_DEFAULT) };
    let number = text.to_str().and_then(|text| text.parse().ok()).filter(|&number| number > 0);
    number.with_context(|| format!("{SECONDS} is {}, not a number above 0", text.display()))
}

/// Builds the targets, and makes the folders that runs write to.
pub fn build(target: &Path) -> anyhow::Result<()> {
    let dir = target.join(FOLDER);
    for name in TARGETS {
        for folder in [CORPUS, FAULTS] {
            let folder = dir.join(folder).join(name);
            fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        }
    }
    let mut command = cargo(&["build", "--locked", "--release", "--bins", "--target", PLATFORM]);
    command
        .arg("--manifest-path")
        .arg(root().join("fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(&dir);
    // The sanitizer is a feature of nightly compilers; this one has it all the same.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS);
    must(&mut command)
}

fn fuzz(dir: &Path, name: &str, seconds: u32) -> anyhow::Result<(String, Count)> {
    let [found, faults] = [CORPUS, FAULTS].map(|folder| dir.join(folder).join(name));
    let log = dir.join(format!("{name}.log"));
    // An earlier run's may be another user's.
    drop(fs::remove_file(&log));
    let output = fs::File::create(&log).with_context(|| format!("write {}", log.display()))?;
    let mut command = Command::new("nice");
    command.args(["-n", "10"]).arg(dir.join(PLATFORM).join("release").join(name));
    command.arg(format!("-max_total_time={seconds}"));
    command.args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
    command.arg(format!("-artifact_prefix={}/", faults.display()));
    command.arg(found).arg(root().join("fuzz/corpus").join(name));
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let status = command.status().with_context(|| format!("run the fuzz target {name}"))?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if status.success() {
        let stat = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let told = format!(
            "ok     {name}: {} inputs in {seconds} s, {} MiB at most\n",
            stat("stat::number_of_executed_units:"),
            stat("stat::peak_rss_mb:"),
        );
        return Ok((told, Count { passed: 1, ..Count::default() }));
    }
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.get(lines.len().saturating_sub(60)..).unwrap_or_default().join("\n");
    let told = format!("FAILED {name}: {status}; the input lies in {}\n{last}\n", faults.display());
    Ok((told, Count { failed: 1, ..Count::default() }))
}
