//! Running cargo, and what it knows of the workspace.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

/// The root of the checkout that cargo runs this in, which need not be where it was built: worktrees
/// may share a target directory.
pub fn root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(own).join("..")
}

/// cargo in the root of the checkout.
pub fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    // What cargo told xtask about itself is not meant for the cargo below it.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}

/// Runs a command that has to succeed.
pub fn must(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// `cargo metadata`.
pub fn metadata() -> anyhow::Result<Value> {
    let mut command = cargo(&["metadata", "--format-version", "1", "--locked"]);
    let output = command.stderr(Stdio::inherit()).output().context("run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata")
}

/// cargo's target directory.
pub fn target_dir() -> anyhow::Result<PathBuf> {
    let metadata = metadata()?;
    Ok(metadata["target_directory"].as_str().context("no target directory")?.into())
}
