//! `bench --files`: what files cost over HTTP, beside what `cp` and GNU `tar` take on the same disk.
//!
//! Invariant: a time counts only where all bytes came, in order; what is compared is done in turn, in one run.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::memory::Peak;
use super::{Args, Bench, figures, host};
use crate::context::Context;
use crate::failure::{Failure, Result, Tried};
use crate::instance;
use crate::output::table;

/// Rounds of the large file and of the tree; the middle one counts.
const ROUNDS: usize = 3;
/// Small files written and read in each way for each of `--runs`.
const SMALL_PER_RUN: u32 = 10;
const FILES: usize = 10_000;
const DIRECTORIES: usize = 100;
const FILE_BYTES: usize = 256;
/// Sent at once of the large file.
const PIECE_BYTES: usize = 1 << 20;

/// Something that was moved, and what a program of the host took for the same.
struct Transfer {
    name: &'static str,
    beside: &'static str,
    ours: Vec<Duration>,
    theirs: Vec<Duration>,
    /// Bytes of the file, or files of the tree.
    amount: u64,
    unit: &'static str,
}

/// A directory of ours on the data directory's disk; removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn below(data_dir: &Path) -> Result<Self> {
        let dir = data_dir.join(format!("bench-{}", std::process::id()));
        fs::create_dir(&dir).tried(|| dir.display().to_string())?;
        Ok(Self(dir))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

pub(super) fn measure(bench: &mut Bench, args: &Args, context: &Context) -> Result<u8> {
    let data_dir = context.load()?.settings.data_dir;
    let running = instance::find(&data_dir)?;
    let running = running.ok_or_else(|| Failure::new("the daemon has gone"))?;
    let daemon = running.pid.as_raw_nonzero().get();
    let scratch = Scratch::below(&data_dir)?;
    let mut transfers = Vec::new();
    let mut peak = None;
    bench.within(|bench, id, _created| {
        let base = format!("/v1/sessions/{id}");
        for _ in 0..super::WARM_UP {
            small(bench, &base)?;
        }
        bench.samples = figures::Samples::default();
        (0..args.runs * SMALL_PER_RUN).try_for_each(|_| small(bench, &base))?;
        let mut seen = Peak::begin(daemon, id)?;
        transfers.extend(large(bench, &base, u64::from(args.size) << 20, &scratch)?);
        seen.end()?;
        peak = Some(seen);
        transfers.extend(tree(bench, &base, &scratch)?);
        Ok(())
    })?;
    let peak = peak.ok_or_else(|| Failure::new("the session was not measured"))?;
    report(bench, &transfers, &peak, &data_dir, context);
    Ok(0)
}

/// Small files, written over and read back, raw and as JSON.
fn small(bench: &mut Bench, base: &str) -> Result<()> {
    for (size, raw, json) in [
        (64, ["write_64", "read_64"], ["json_write_64", "json_read_64"]),
        (1024, ["write_1k", "read_1k"], ["json_write_1k", "json_read_1k"]),
    ] {
        let bytes = pattern(size);
        let path = format!("{base}/fs/file?path=small");
        let begin = Instant::now();
        bench.client.put(&path, size as u64, std::iter::once(bytes.as_slice()))?;
        let written = begin.elapsed();
        let mut found = Vec::with_capacity(size);
        let begin = Instant::now();
        bench.client.get(&path, |piece| found.extend_from_slice(piece))?;
        let read = begin.elapsed();
        same(&found, &bytes)?;
        let body = json!({ "path": "small", "content_base64": STANDARD.encode(&bytes) });
        let begin = Instant::now();
        bench.client.call::<Value>("POST", &format!("{base}/fs/write"), Some(&body))?;
        let json_written = begin.elapsed();
        let begin = Instant::now();
        let answer: Value =
            bench.client.call("GET", &format!("{base}/fs/read?path=small"), None)?;
        let json_read = begin.elapsed();
        let text = answer.get("content_base64").and_then(Value::as_str).unwrap_or_default();
        same(&STANDARD.decode(text).unwrap_or_default(), &bytes)?;
        let times = [written, read, json_written, json_read];
        let names = raw.into_iter().chain(json);
        names.zip(times).for_each(|(name, time)| bench.samples.add(name, time));
    }
    Ok(())
}

/// Bytes that are no block of zeros, which a file system might not store.
fn pattern(count: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(&mut next)
        .take(count.div_ceil(4))
        .flat_map(u32::to_le_bytes)
        .collect();
    bytes.truncate(count);
    bytes
}

fn same(found: &[u8], want: &[u8]) -> Result<()> {
    if found == want {
        return Ok(());
    }
    Err(Failure::new(format!("{} wrong bytes came back for {}", found.len(), want.len())))
}

/// One file up and down, and a copy of it by `cp`.
fn large(bench: &mut Bench, base: &str, size: u64, scratch: &Scratch) -> Result<[Transfer; 2]> {
    let piece = pattern(PIECE_BYTES);
    let source = scratch.path("large");
    {
        let mut file = fs::File::create(&source).tried(|| source.display().to_string())?;
        for _ in 0..size / PIECE_BYTES as u64 {
            std::io::Write::write_all(&mut file, &piece).tried(|| source.display().to_string())?;
        }
    }
    let transfer = |name| Transfer {
        name,
        beside: "cp",
        ours: Vec::new(),
        theirs: Vec::new(),
        amount: size,
        unit: "bytes",
    };
    let (mut up, mut down) = (transfer("upload"), transfer("download"));
    let path = format!("{base}/fs/file?path=large");
    for _ in 0..ROUNDS {
        let copy = scratch.path("copy");
        let copied = timed("cp", &[OsStr::new("--reflink=never"), source.as_ref(), copy.as_ref()])?;
        fs::remove_file(&copy).tried(|| copy.display().to_string())?;
        up.theirs.push(copied);
        down.theirs.push(copied);
        let pieces = size / PIECE_BYTES as u64;
        let begin = Instant::now();
        bench.client.put(&path, size, (0..pieces).map(|_| piece.as_slice()))?;
        up.ours.push(begin.elapsed());
        let (mut seen, mut wrong) = (0_u64, false);
        let begin = Instant::now();
        bench.client.get(&path, |found| wrong |= !continues(&piece, &mut seen, found))?;
        down.ours.push(begin.elapsed());
        if wrong || seen != size {
            return Err(Failure::new(format!("{seen} bytes of {size} came back, or wrong ones")));
        }
        bench.exec(base, "rm large", "")?;
    }
    fs::remove_file(&source).tried(|| source.display().to_string())?;
    Ok([up, down])
}

/// Whether bytes are those that follow `seen` of a piece that is repeated.
fn continues(piece: &[u8], seen: &mut u64, mut found: &[u8]) -> bool {
    while !found.is_empty() {
        let at = usize::try_from(*seen % piece.len() as u64).unwrap_or_default();
        let rest = piece.get(at..).unwrap_or_default();
        let length = rest.len().min(found.len());
        if rest.get(..length) != found.get(..length) {
            return false;
        }
        found = found.get(length..).unwrap_or_default();
        *seen += length as u64;
    }
    true
}

/// A tree of small files in and out as an archive, and the same by GNU tar.
fn tree(bench: &mut Bench, base: &str, scratch: &Scratch) -> Result<[Transfer; 2]> {
    let source = scratch.path("tree");
    let bytes = pattern(FILE_BYTES);
    for directory in 0..DIRECTORIES {
        let dir = source.join(format!("d{directory}"));
        fs::create_dir_all(&dir).tried(|| dir.display().to_string())?;
        for file in 0..FILES / DIRECTORIES {
            let path = dir.join(format!("f{file}"));
            fs::write(&path, &bytes).tried(|| path.display().to_string())?;
        }
    }
    let transfer = |name, beside| Transfer {
        name,
        beside,
        ours: Vec::new(),
        theirs: Vec::new(),
        amount: FILES as u64,
        unit: "files",
    };
    let (mut into, mut out) = (transfer("archive_in", "tar -x"), transfer("archive_out", "tar -c"));
    let (tar, copy) = (scratch.path("tree.tar"), scratch.path("copy"));
    let (c, x, f) = (OsStr::new("-cf"), OsStr::new("-xf"), OsStr::new("-C"));
    let path = format!("{base}/fs/archive?path=tree");
    for _ in 0..ROUNDS {
        out.theirs.push(timed("tar", &[c, tar.as_ref(), f, source.as_ref(), OsStr::new(".")])?);
        fs::create_dir(&copy).tried(|| copy.display().to_string())?;
        into.theirs.push(timed("tar", &[x, tar.as_ref(), f, copy.as_ref()])?);
        fs::remove_dir_all(&copy).tried(|| copy.display().to_string())?;
        let archive = fs::read(&tar).tried(|| tar.display().to_string())?;
        bench.exec(base, "mkdir tree", "")?;
        let begin = Instant::now();
        bench.client.put(&path, archive.len() as u64, archive.chunks(PIECE_BYTES))?;
        into.ours.push(begin.elapsed());
        bench.exec(base, "cat tree/*/* | wc -c", &format!("{}\n", FILES * FILE_BYTES))?;
        let mut back = Vec::with_capacity(archive.len());
        let begin = Instant::now();
        bench.client.get(&path, |found| back.extend_from_slice(found))?;
        out.ours.push(begin.elapsed());
        let files = files_in(&back);
        if files != FILES {
            return Err(Failure::new(format!("the archive has {files} files; {FILES} went in")));
        }
        bench.exec(base, "rm -r tree", "")?;
    }
    Ok([into, out])
}

/// How many regular files a tar has.
fn files_in(tar: &[u8]) -> usize {
    const BLOCK: usize = 512;
    let (mut at, mut files) = (0, 0);
    while let Some(head) = tar.get(at..at + BLOCK).filter(|head| head.first() != Some(&0)) {
        // The size stands in octal at 124, the type at 156; see tar(5).
        let digits = head.get(124..135).and_then(|text| std::str::from_utf8(text).ok());
        let size =
            digits.and_then(|text| usize::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok());
        files += usize::from(matches!(head.get(156), Some(b'0' | 0)));
        at += BLOCK + size.unwrap_or_default().next_multiple_of(BLOCK);
    }
    files
}

/// How long a program of the host takes.
#[expect(clippy::disallowed_methods, reason = "what is measured against; never the daemon")]
fn timed(program: &str, arguments: &[&OsStr]) -> Result<Duration> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    let begin = Instant::now();
    let status = command.status().tried(|| format!("run {program}"))?;
    if status.success() {
        Ok(begin.elapsed())
    } else {
        Err(Failure::new(format!("{program}: {status}")))
    }
}

impl Transfer {
    fn value(&self) -> Value {
        let (ours, theirs) = (middle(&self.ours), middle(&self.theirs));
        json!({
            "transfer": self.name, "amount": self.amount, "unit": self.unit, "n": self.ours.len(),
            "seconds": figures::rounded(ours), "per_second": (self.amount as f64 / ours).round(),
            "beside": self.beside, "beside_seconds": figures::rounded(theirs),
            "ratio": figures::rounded(ours / theirs),
        })
    }

    fn row(&self) -> Vec<String> {
        let (ours, theirs) = (middle(&self.ours), middle(&self.theirs));
        let rate = match self.unit {
            "bytes" => format!("{:.2} GiB/s", self.amount as f64 / ours / f64::from(1 << 30)),
            unit => format!("{:.0} {unit}/s", self.amount as f64 / ours),
        };
        let (ours_text, theirs_text) = (format!("{ours:.3}"), format!("{theirs:.3}"));
        let ratio = format!("{:.2}", ours / theirs);
        vec![self.name.to_owned(), ours_text, rate, self.beside.to_owned(), theirs_text, ratio]
    }
}

/// Seconds of the middle one.
fn middle(times: &[Duration]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted.get(sorted.len() / 2).map_or(f64::NAN, Duration::as_secs_f64)
}

fn report(bench: &Bench, transfers: &[Transfer], peak: &Peak, data_dir: &Path, context: &Context) {
    let host = host::stamp(data_dir);
    let tiers = bench.samples.tiers();
    let value = json!({
        "version": env!("CARGO_PKG_VERSION"), "host": host, "unit": "ms",
        "tiers": tiers.iter().map(figures::Tier::value).collect::<Vec<_>>(),
        "transfers": transfers.iter().map(Transfer::value).collect::<Vec<_>>(),
        "memory": peak.value(),
    });
    context.output.result(&value, || {
        let rows: Vec<_> = tiers.iter().map(figures::Tier::row).collect();
        let small = table(&["TIER", "N", "P50", "P95", "P99", "MIN", "MAX"], &rows);
        let rows: Vec<_> = transfers.iter().map(Transfer::row).collect();
        let large = table(&["TRANSFER", "SECONDS", "RATE", "BESIDE", "SECONDS", "RATIO"], &rows);
        let (host, peak) = (host::line(&host), peak.line());
        format!("{host}\n\n{small}\n\nmilliseconds, over HTTP keep-alive\n\n{large}\n\n{peak}")
    });
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn bytes_that_come_are_compared_wherever_they_are_cut() {
        let piece = pattern(1000);
        let whole = piece.repeat(3);
        for cut in [1, 7, 999, 1000, 1001] {
            let mut seen = 0;
            assert!(whole.chunks(cut).all(|part| continues(&piece, &mut seen, part)));
            assert_eq!(seen, 3000);
        }
        let mut wrong = whole;
        wrong[2500] ^= 1;
        assert!(!continues(&piece, &mut 0, &wrong));
    }

    #[test]
    fn files_of_a_tar_are_counted() {
        let block = |kind: u8, size: &str| {
            let mut head = vec![0; 512];
            head[0] = b'n';
            head[124..124 + size.len()].copy_from_slice(size.as_bytes());
            head[156] = kind;
            head
        };
        let data = vec![b'x'; 1024];
        let file = [block(b'0', "00000001001"), data].concat();
        let tar = [block(b'5', "00000000000"), file.clone(), file, vec![0; 1024]].concat();
        assert_eq!(files_in(&tar), 2);
    }
}
