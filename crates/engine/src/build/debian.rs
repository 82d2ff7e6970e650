//! Debian's packages: from the mirrors that the host's own apt is set up with.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::host::Program;
use super::{Progress, failed};
use crate::image::ImageError;

/// The release that our images are made from.
pub(super) const SUITE: &str = "trixie";

/// Lines for sources.list: the host's mirrors with our suite. None where the host has no mirror of
/// Debian; mmdebstrap then knows its own.
pub(super) async fn sources() -> Result<Vec<String>, ImageError> {
    let mut apt = Program::new("apt-get", "apt");
    apt.args(["indextargets", "--format", "$(SITE) $(RELEASE) $(ORIGIN)"]);
    Ok(sources_of(&apt.output().await?))
}

fn sources_of(targets: &str) -> Vec<String> {
    let mut sources = BTreeSet::new();
    for line in targets.lines() {
        let mut words = line.split(' ');
        let (Some(site), Some(release), Some("Debian")) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        if release.contains("-security") {
            sources.insert(format!("deb {site} {SUITE}-security main"));
        } else if !release.contains('-') {
            sources.insert(format!("deb {site} {SUITE} main"));
            sources.insert(format!("deb {site} {SUITE}-updates main"));
        }
    }
    sources.into_iter().collect()
}

/// How the host's apt reaches its mirrors: proxies, certificates, retries.
pub(super) async fn transport_options() -> Result<Vec<String>, ImageError> {
    let mut apt = Program::new("apt-config", "apt");
    apt.args(["dump", "--no-empty", "--format", "%F \"%v\";%n", "Acquire"]);
    let options = apt.output().await?;
    let reaches = ["Acquire::http::", "Acquire::https::", "Acquire::Retries"];
    let ours = options.lines().filter(|line| reaches.iter().any(|start| line.starts_with(start)));
    Ok(ours.map(str::to_owned).collect())
}

/// The packages `names` and all that they need beyond what `status` (of dpkg) has: downloaded into
/// `work`, with `kept` asked first and given what is new. Nothing is installed.
pub(super) async fn fetch(
    fetch: Fetch<'_>,
    progress: Progress<'_>,
) -> Result<Vec<PathBuf>, ImageError> {
    let apt = fetch.work.join("apt");
    let archives = apt.join("archives");
    for dir in ["lists/partial", "archives/partial", "tmp"] {
        fs::create_dir_all(apt.join(dir))?;
    }
    copy_debs(fetch.kept, &archives)?;
    fs::write(apt.join("sources.list"), fetch.sources.join("\n") + "\n")?;
    fs::write(apt.join("apt.conf"), configuration(&apt, fetch.status)?)?;
    let run = |args: &[&str]| {
        let mut program = Program::new("apt-get", "apt");
        program.env("APT_CONFIG", apt.join("apt.conf")).env("TMPDIR", apt.join("tmp"));
        program.arg("-q").args(args);
        program
    };
    let install = |args: &[&str]| {
        let mut program = run(args);
        program.args(fetch.names);
        program
    };
    run(&["update"]).run(progress).await?;
    install(&["-y", "--download-only", "install"]).run(progress).await?;
    let plan = install(&["-s", "install"]).output().await?;
    copy_debs(&archives, fetch.kept)?;
    let files = plan.lines().filter_map(file_name);
    files.map(|name| in_archives(&archives, &name)).collect()
}

/// What to fetch and with what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetch<'a> {
    pub(super) names: &'a [&'a str],
    pub(super) status: &'a Path,
    pub(super) sources: &'a [String],
    pub(super) work: &'a Path,
    pub(super) kept: &'a Path,
}

/// Everything of apt's that would be the host's is ours; how it reaches mirrors stays.
fn configuration(apt: &Path, status: &Path) -> Result<String, ImageError> {
    let quoted = |path: &Path| match path.to_str().filter(|text| !text.contains('"')) {
        Some(text) => Ok(format!("\"{text}\";\n")),
        None => Err(failed("the cache folder's path can't be told to apt")),
    };
    let mut text = String::new();
    for (key, path) in [
        ("Dir::Etc::SourceList", apt.join("sources.list")),
        ("Dir::State::Status", status.to_owned()),
        ("Dir::State::Lists", apt.join("lists")),
        ("Dir::State::extended_states", apt.join("extended_states")),
        ("Dir::Cache", apt.to_owned()),
        ("Dir::Cache::Archives", apt.join("archives")),
        ("Dir::Log", apt.to_owned()),
    ] {
        text.push_str(&format!("{key} {}", quoted(&path)?));
    }
    text.push_str(
        "Dir::Etc::SourceParts \"-\";\nAPT::Install-Recommends \"false\";\n\
         Acquire::Languages \"none\";\nAPT::Sandbox::User \"root\";\n",
    );
    Ok(text)
}

/// `Inst NAME (VERSION ORIGIN [ARCH])` → the name that apt gives the file.
fn file_name(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
    let name = name.split([':', ' ']).next()?;
    let version = rest.split(' ').next()?.replace(':', "%3a");
    let arch = rest.split(')').next()?.rsplit_once('[')?.1.split(']').next()?;
    Some(format!("{name}_{version}_{arch}.deb"))
}

fn in_archives(archives: &Path, name: &str) -> Result<PathBuf, ImageError> {
    let path = archives.join(name);
    if path.is_file() { Ok(path) } else { Err(failed(format!("apt did not fetch {name}"))) }
}

/// Copies the packages that `to` does not have. Never links: whoever writes to one copy changes only it.
pub(super) fn copy_debs(from: &Path, to: &Path) -> Result<(), ImageError> {
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        let is_new = !to.join(&name).exists();
        if is_new && Path::new(&name).extension().is_some_and(|end| end == "deb") {
            let beside = to.join("new");
            fs::copy(from.join(&name), &beside)?;
            fs::rename(beside, to.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_hosts_mirrors_are_taken_for_our_suite() {
        let targets = "http://mirror.test/debian bookworm Debian\n\
                       http://mirror.test/debian bookworm-updates Debian\n\
                       http://mirror.test/sec bookworm-security Debian\n\
                       http://other.test/x nodistro Other\nhttp://none.test/x bookworm \n";
        assert_eq!(
            sources_of(targets),
            [
                "deb http://mirror.test/debian trixie main",
                "deb http://mirror.test/debian trixie-updates main",
                "deb http://mirror.test/sec trixie-security main",
            ]
        );
    }

    #[test]
    fn file_names_are_apts() {
        let line = "Inst login (1:4.16.0-2+really2.41.5-0+deb13u1 Debian:13.8/stable [amd64])";
        let name = "login_1%3a4.16.0-2+really2.41.5-0+deb13u1_amd64.deb";
        assert_eq!(file_name(line).unwrap(), name);
        let line = "Inst libx:amd64 [1.0] (2.0 Debian:13/stable, Debian-Security:13 [amd64]) []";
        assert_eq!(file_name(line).unwrap(), "libx_2.0_amd64.deb");
        assert_eq!(file_name("Conf login (1 x [amd64])"), None);
    }
}
