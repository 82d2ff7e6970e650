//! Builds `sandkasten-init` as a static binary, for `init_binary.rs` to embed.
//!
//! The inner cargo has a target folder of its own below `OUT_DIR`: it never waits for the lock of the
//! outer one, and its flags reach no other crate. `crt-static` goes to the final crate alone, since as
//! a global flag it breaks proc-macros.

#![expect(
    clippy::disallowed_methods,
    reason = "a build script reads cargo's variables and runs cargo"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The crates of this workspace that the binary is made of. `cargo xtask tidy` and a test of xtask hold this
/// against what init depends on.
const CRATES: [&str; 3] = ["crates/init", "crates/protocol", "crates/files"];
/// What of a crate goes into the binary. Its tests do not.
const PARTS: [&str; 2] = ["src", "Cargo.toml"];
const WORKSPACE: [&str; 2] = ["Cargo.toml", "Cargo.lock"];

fn main() {
    if let Err(message) = build() {
        println!("cargo::error={message}");
    }
}

fn build() -> Result<(), String> {
    // Asked for when it runs: a build folder may have come from another checkout.
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../..");
    let parts = CRATES.iter().flat_map(|one| PARTS.map(|part| format!("{one}/{part}")));
    for source in parts.chain(WORKSPACE.map(str::to_owned)) {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR")?);
    let target = variable("TARGET")?;
    let folder = out.join("init-target");
    let status = cargo(&root, &folder, &target)?.status().map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(format!("building sandkasten-init failed: {status}"));
    }
    let built = folder.join(&target).join("release/sandkasten-init");
    let embedded = out.join("sandkasten-init");
    fs::copy(&built, &embedded).map_err(|e| format!("{}: {e}", built.display()))?;
    Ok(())
}

fn cargo(root: &Path, folder: &Path, target: &str) -> Result<Command, String> {
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .current_dir(root)
        .args(["rustc", "--locked", "--quiet", "--release", "--package", "sandkasten-init"])
        .args(["--target", target, "--target-dir"])
        .arg(folder)
        .args(["--", "-C", "target-feature=+crt-static", "-C", "strip=symbols"]);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_outer_builds) {
            cargo.env_remove(name);
        }
    }
    // A build folder from a configuration file would be shared with the outer cargo, and locked by it.
    cargo.env("CARGO_BUILD_BUILD_DIR", folder);
    Ok(cargo)
}

/// Variables that say how the outer crate is built: flags, wrappers (clippy's is one), profiles.
fn is_outer_builds(name: &str) -> bool {
    const KEPT: [&str; 2] = ["CARGO_HOME", "CARGO_MAKEFLAGS"];
    const KEPT_PREFIXES: [&str; 5] =
        ["CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_CREDENTIAL_"];
    const OTHERS: [&str; 5] =
        ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTDOCFLAGS", "CLIPPY_ARGS"];
    let of_cargo = name.starts_with("CARGO_")
        && !KEPT.contains(&name)
        && !KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    of_cargo || OTHERS.contains(&name)
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}
