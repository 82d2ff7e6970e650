//! The base layer: a small Debian, by mmdebstrap.

use std::fs;
use std::path::Path;

use sandkasten_jail::path::Beneath;

use super::cache::{Cache, Layer};
use super::debian::{self, SUITE};
use super::host::Program;
use super::recipe::{BASE_CUSTOMIZE, BASE_DPKG, BASE_PACKAGES, Recipe, names};
use super::{EPOCH, Progress};
use crate::image::ImageError;
use crate::image::tree::Rules;

/// Packages that an earlier build fetched are not fetched again.
const GIVE_DEBS: &str = r#"mkdir -p "$1/var/cache/apt/archives" && find "$SANDKASTEN_DEBS" -name '*.deb' -exec cp -t "$1/var/cache/apt/archives" {} +"#;
/// Each comes whole or not at all, whenever this is ended.
const TAKE_DEBS: &str = r#"find "$1/var/cache/apt/archives" -name '*.deb' -exec sh -c 'for deb; do [ -e "$SANDKASTEN_DEBS/${deb##*/}" ] || { cp "$deb" "$TMPDIR/new.deb" && mv "$TMPDIR/new.deb" "$SANDKASTEN_DEBS/${deb##*/}"; } || exit; done' sh {} +"#;
const CUSTOMIZE: &str = r#"sh "$SANDKASTEN_CUSTOMIZE" "$1""#;

pub(super) async fn make(cache: &Cache, progress: Progress<'_>) -> Result<Layer, ImageError> {
    let work = cache.work("work-base")?;
    let tree = work.path.join("tree");
    fs::write(work.path.join("customize.sh"), BASE_CUSTOMIZE)?;
    let mut program = mmdebstrap(&work.path, &tree).await?;
    program.env("SANDKASTEN_DEBS", cache.downloads("debs")?);
    program.env("TMPDIR", work.temporary()?);
    program.run(progress).await?;
    progress("packing the base layer");
    cache.put(&Recipe::Base.key(None), &Beneath::open(&tree)?, &RULES)
}

const RULES: Rules = Rules { owner_base: 0, mtime_max: EPOCH, without: &[] };

async fn mmdebstrap(work: &Path, tree: &Path) -> Result<Program, ImageError> {
    let packages: Vec<&str> = names(BASE_PACKAGES).collect();
    let mut program = Program::new("mmdebstrap", "mmdebstrap");
    program.args(["--mode=root", "--variant=apt", "--format=directory"]);
    program.args(["--skip=download/empty", "--skip=essential/unlink"]);
    program.arg(format!("--include={}", packages.join(",")));
    program.arg("--aptopt=APT::Install-Recommends \"false\"");
    program.arg("--aptopt=Acquire::Languages \"none\"");
    for option in debian::transport_options().await? {
        program.arg(format!("--aptopt={option}"));
    }
    for line in BASE_DPKG.lines().filter(|line| line.starts_with("path-")) {
        program.arg(format!("--dpkgopt={line}"));
    }
    program.arg(format!("--setup-hook={GIVE_DEBS}"));
    program.arg(format!("--customize-hook={TAKE_DEBS}"));
    program.arg(format!("--customize-hook={CUSTOMIZE}"));
    program.env("SANDKASTEN_CUSTOMIZE", work.join("customize.sh"));
    program.env("SOURCE_DATE_EPOCH", EPOCH.to_string());
    program.arg(SUITE).arg(tree).args(debian::sources().await?);
    Ok(program)
}
