//! The binaries that users and tests run.
//!
//! Invariant: what the tests run is what users get, built by the same command; only the suite
//! `faults` has a binary of its own, with fault injection and debug assertions.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cargo::{cargo, must, target_dir};

/// Given to the final crate alone: as a global flag it breaks procedural macros.
const STATIC: [&str; 3] = ["--", "-C", "target-feature=+crt-static"];

/// The release binary at `target/release/sandkasten`.
pub fn release() -> anyhow::Result<PathBuf> {
    rustc(&["-p", "sandkasten", "--bin", "sandkasten", "--release"])?;
    Ok(target_dir()?.join("release/sandkasten"))
}

/// The program that tests run inside sessions.
pub fn probe() -> anyhow::Result<PathBuf> {
    rustc(&["-p", "sandkasten-probe", "--bin", "probe", "--release"])?;
    keep("release/probe", "probe")
}

/// The binary with fault injection.
pub fn faulty() -> anyhow::Result<PathBuf> {
    rustc(&["-p", "sandkasten", "--bin", "sandkasten", "--features", "fault-injection"])?;
    keep("debug/sandkasten", "sandkasten-faulty")
}

fn rustc(arguments: &[&str]) -> anyhow::Result<()> {
    must(cargo(&["rustc", "--locked"]).args(arguments).args(STATIC))
}

/// Copies a binary to `target/test-bin`, where no other build replaces it.
fn keep(built: &str, name: &str) -> anyhow::Result<PathBuf> {
    let target = target_dir()?;
    let (from, dir) = (target.join(built), target.join("test-bin"));
    fs::create_dir_all(&dir).context("make target/test-bin")?;
    let (fresh, to) = (dir.join(format!("{name}.new")), dir.join(name));
    fs::copy(&from, &fresh).with_context(|| format!("copy {}", from.display()))?;
    fs::rename(&fresh, &to).context("put it in its place")?;
    Ok(to)
}

/// Whether a program needs no loader and no shared library.
pub fn is_static(program: &Path) -> anyhow::Result<bool> {
    let bytes = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    let field = |at: usize, length: usize| {
        let part = bytes.get(at..at + length).context("a short ELF file")?;
        Ok::<_, anyhow::Error>(
            part.iter().rev().fold(0, |value, &byte| value << 8 | usize::from(byte)),
        )
    };
    // ELF64: e_phoff, e_phentsize, e_phnum; PT_INTERP is 3.
    let (start, size, count) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
    for index in 0..count {
        if field(start + index * size, 4)? == 3 {
            return Ok(false);
        }
    }
    Ok(true)
}
