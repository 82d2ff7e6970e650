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
    // What cargo told xtask about its package is not meant for the cargo below it.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(name);
    }
    // `RUSTUP_TOOLCHAIN` stays: without it rustup, asked for `rustc` in the folder of a dependency, would
    // install what that dependency's `rust-toolchain.toml` names. A toolchain is the user's to change.
    command.env("RUSTUP_AUTO_INSTALL", "0");
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

#[cfg(test)]
mod test {
    use std::fs;

    use super::*;

    /// cargo runs the compiler in a dependency's folder. Where rustup is asked there which one, and the
    /// folder names another toolchain, it installs that. (As a dependency from a registry, this one is no
    /// member of the workspace.)
    #[test]
    fn a_dependency_chooses_no_toolchain() {
        let dir = std::env::temp_dir().join(format!("xtask-toolchain-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let file = dir.join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("make a folder");
            fs::write(file, text).expect("write");
        };
        let package = |name: &str| format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n");
        write("dependency/Cargo.toml", &package("dependency"));
        write("dependency/src/lib.rs", "");
        write("dependency/rust-toolchain.toml", "[toolchain]\nchannel = \"1.2.0\"\n");
        let own = package("own") + "[dependencies]\ndependency.path = \"../dependency\"\n";
        write("own/Cargo.toml", &(own + "[workspace]\n"));
        write("own/src/lib.rs", "");
        let mut command = cargo(&["build", "--offline", "--quiet", "--manifest-path"]);
        command.arg(dir.join("own/Cargo.toml")).arg("--target-dir").arg(dir.join("target"));
        let output = command.output().expect("run cargo");
        fs::remove_dir_all(&dir).expect("remove the folder");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
