//! A Debian 12 root file system, for the bash (5.2.15) that stands there.
//!
//! Made once by mmdebstrap and kept in the cache folder under a name that says what it is made of.
//! Packages are laid out only: no script of theirs runs.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::lab::cache_dir;

const RELEASE: &str = "bookworm";
const PACKAGES: &str = "bash,coreutils,dash,findutils,grep,procps,sed";
/// What no test reads.
const WITHOUT: [&str; 4] = ["usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man"];

/// Its tar.
///
/// # Panics
/// Where it can't be made.
#[must_use]
pub fn bookworm() -> Vec<u8> {
    let dir = cache_dir().join("roots");
    fs::create_dir_all(&dir).expect("make the cache folder");
    let file = dir.join(format!("{RELEASE}-{}.tar", PACKAGES.replace(',', "-")));
    let lock = File::create(dir.join("lock")).expect("the lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("flock");
    if !file.exists() {
        let part = dir.join("part.tar");
        make(&part);
        fs::rename(&part, &file).expect("put the tar in its place");
    }
    fs::read(&file).expect("read the tar")
}

fn make(file: &Path) {
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--mode=root", "--variant=extract", "--skip=output/dev"]);
    command.arg("--format=tar").arg(format!("--include={PACKAGES}"));
    command.arg("--aptopt=APT::Install-Recommends \"false\"");
    command.arg("--aptopt=Acquire::Languages \"none\"");
    command.args(transport().into_iter().map(|option| format!("--aptopt={option}")));
    for dir in WITHOUT {
        command.arg(format!("--customize-hook=rm -rf \"$1/{dir}\""));
    }
    command.arg(RELEASE).arg(file).args(sources()).stdin(Stdio::null());
    let output = command.output().expect("run mmdebstrap");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "mmdebstrap: {}: {errors}", output.status);
}

/// The mirrors of the host's own apt with our release; none where it has no mirror of Debian.
fn sources() -> Vec<String> {
    let text = said_by("apt-get", &["indextargets", "--format", "$(SITE) $(RELEASE) $(ORIGIN)"]);
    let mut sites: Vec<&str> = text
        .lines()
        .filter_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [site, release, "Debian"] if !release.contains('-') => Some(site),
            _ => None,
        })
        .collect();
    sites.sort_unstable();
    sites.dedup();
    sites.into_iter().map(|site| format!("deb {site} {RELEASE} main")).collect()
}

/// How the host's apt reaches its mirrors: proxies, certificates, retries.
fn transport() -> Vec<String> {
    let text =
        said_by("apt-config", &["dump", "--no-empty", "--format", "%F \"%v\";%n", "Acquire"]);
    let reaches = ["Acquire::http::", "Acquire::https::", "Acquire::Retries"];
    let ours = text.lines().filter(|line| reaches.iter().any(|start| line.starts_with(start)));
    ours.map(str::to_owned).collect()
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
