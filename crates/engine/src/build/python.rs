//! The python layer: Debian's Python and wheels, installed in a box of the base image.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::cache::{Cache, Layer};
use super::debian::{self, Fetch};
use super::host::Program;
use super::recipe::{PYTHON_INSTALL, PYTHON_PACKAGES, PYTHON_REQUIREMENTS, Recipe, names};
use super::sandbox::{self, Install};
use super::{BuildEnv, EPOCH, Progress, failed, install};
use crate::image::{ImageError, Store};
use crate::workspace::Workspaces;

/// Wheels for the image's interpreter and C library, whatever those of the host are.
const WHEELS: [&str; 20] = [
    "--only-binary",
    ":all:",
    "--implementation",
    "cp",
    "--python-version",
    "3.13",
    "--abi",
    "cp313",
    "--abi",
    "abi3",
    "--abi",
    "none",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux_2_17_x86_64",
    "--platform",
    "manylinux2014_x86_64",
    "--platform",
    "any",
];

pub(super) async fn make(
    cache: &Cache,
    base: &Layer,
    env: BuildEnv,
    progress: Progress<'_>,
) -> Result<Layer, ImageError> {
    let wheels = wheels(cache, progress).await?;
    let work = cache.work("work-fetch")?;
    // The box's data directory stays after a kill: its sessions are found by it and ended.
    let folder = cache.work_or_kept("box")?;
    let data = folder.path.clone();
    let store = Store::open(&data)?.cancelled_by(env.cancel.clone());
    let image = install(&store, Recipe::Base, std::slice::from_ref(base))?;
    let status = data.join("layers").join(base.digest.as_str()).join("var/lib/dpkg/status");
    let packages: Vec<&str> = names(PYTHON_PACKAGES).collect();
    let mut sources = debian::sources().await?;
    if sources.is_empty() {
        let list = data.join("layers").join(base.digest.as_str()).join("etc/apt/sources.list");
        sources = names(&fs::read_to_string(list)?).map(str::to_owned).collect();
    }
    let debs = debian::fetch(
        Fetch {
            names: &packages,
            status: &status,
            sources: &sources,
            work: &work.path,
            kept: &cache.downloads("debs")?,
        },
        progress,
    )
    .await?;
    let install = Install {
        data_dir: data.clone(),
        image: image.name.to_string(),
        workspace: fill_workspace(&data, &debs, &wheels)?,
        command: format!("sh /workspace/install.sh {EPOCH}"),
        key: Recipe::Python.key(Some(&base.digest)),
        cache_dir: env.cache_dir,
        run_dir: env.run_dir,
        cancel: env.cancel,
    };
    // From here on it may hold a session, and only an engine ends those.
    folder.keep();
    sandbox::run(install, env.launcher, progress).await
}

/// The wheels of the requirements, fetched once; pip checks each against its hash.
async fn wheels(cache: &Cache, progress: Progress<'_>) -> Result<PathBuf, ImageError> {
    let hash = Sha256::digest(PYTHON_REQUIREMENTS);
    let hex: String = hash.iter().take(8).map(|b| format!("{b:02x}")).collect();
    let wheels = cache.path(&format!("wheels-{hex}"));
    if wheels.is_dir() {
        return Ok(wheels);
    }
    let work = cache.work("work-wheels")?;
    let requirements = work.path.join("requirements.txt");
    fs::write(&requirements, PYTHON_REQUIREMENTS)?;
    let mut pip = pip(&work.path, progress).await?;
    pip.env("TMPDIR", work.temporary()?);
    pip.args(["download", "--no-deps", "--require-hashes", "--progress-bar", "off"]).args(WHEELS);
    pip.arg("--requirement").arg(&requirements).arg("--dest").arg(work.path.join("wheels"));
    pip.run(progress).await?;
    fs::rename(work.path.join("wheels"), &wheels)?;
    Ok(wheels)
}

/// The host's pip, or one in a venv where the host's Python has none.
async fn pip(work: &Path, progress: Progress<'_>) -> Result<Program, ImageError> {
    let mut probe = Program::new("python3", "python3");
    probe.args(["-m", "pip", "--version"]);
    if probe.output().await.is_ok() {
        let mut pip = Program::new("python3", "python3-pip");
        pip.args(["-m", "pip"]);
        return Ok(pip);
    }
    let mut venv = Program::new("python3", "python3-venv");
    venv.args(["-m", "venv"]).arg(work.join("venv"));
    let made = venv.run(progress).await;
    made.map_err(|err| failed(format!("{err}\nhint: `apt-get install python3-venv`")))?;
    let mut pip = Program::at(work.join("venv/bin/python3"), "python3", "python3-venv");
    pip.args(["-m", "pip"]);
    Ok(pip)
}

/// What the box needs, copied: it may change its copies, never the cache.
fn fill_workspace(data: &Path, debs: &[PathBuf], wheels: &Path) -> Result<String, ImageError> {
    let id = "build".parse().map_err(|err| failed(format!("{err}")))?;
    let workspaces = Workspaces::open(data)?;
    workspaces.remove(&id)?;
    workspaces.create(&id, crate::config::Durability::Rename)?;
    let top = data.join("workspaces/build");
    for dir in ["debs", "wheels"] {
        fs::create_dir(top.join(dir))?;
    }
    for deb in debs {
        fs::copy(deb, top.join("debs").join(deb.file_name().unwrap_or_default()))?;
    }
    for wheel in fs::read_dir(wheels)? {
        let wheel = wheel?;
        fs::copy(wheel.path(), top.join("wheels").join(wheel.file_name()))?;
    }
    for (name, text) in [
        ("install.sh", PYTHON_INSTALL),
        ("packages.txt", PYTHON_PACKAGES),
        ("requirements.txt", PYTHON_REQUIREMENTS),
    ] {
        fs::write(top.join(name), text)?;
    }
    Ok("build".into())
}
