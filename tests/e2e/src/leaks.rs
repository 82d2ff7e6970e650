//! The leak list: what of a run's own must be gone from the host when it ends.
//!
//! Invariant: only what carries a mark of the run is on it. All that a test makes has one: the run's tag
//! stands in the path of its folders and in the environment of what it starts, and the name of a
//! daemon's cgroup, which has a hash instead of the path, is written down as the lab is made. Another
//! daemon on the host, with its sessions, mounts and claims, is never counted.
//!
//! An entry is a text that names the thing, so that two lists can be compared as sets.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::host;
use crate::wait;

/// How long what is removed in the background may take.
pub const SETTLE: Duration = Duration::from_secs(5);

/// The variable that says the run's tag.
pub const TAG: &str = "SANDKASTEN_TEST_TAG";
/// The variable that names the file for marks that don't contain the tag.
pub const MARKS: &str = "SANDKASTEN_TEST_MARKS";

/// A tag that no other run has.
///
/// # Panics
/// Where the kernel has no random bytes.
#[must_use]
pub fn fresh_tag() -> String {
    let mut bytes = [0; 3];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).expect("random");
    format!("sandkasten-test-{}", bytes.map(|byte| format!("{byte:02x}")).concat())
}

/// The run's tag; the test's own where it was not started by xtask.
#[must_use]
pub fn tag() -> String {
    std::env::var(TAG).unwrap_or_else(|_| format!("sandkasten-test-{}", std::process::id()))
}

/// Writes a mark down for the run's look at what is left.
///
/// # Panics
/// Where the file that xtask gave can't be written.
pub fn note(mark: &str) {
    let Some(file) = std::env::var_os(MARKS) else { return };
    let mut file = fs::File::options().append(true).open(file).expect("the file of marks");
    // In one write: others write there, too.
    file.write_all(format!("{mark}\n").as_bytes()).expect("note a mark");
}

/// The cgroup that a daemon with this data directory makes.
///
/// # Panics
/// Where the directory is not there.
#[must_use]
pub fn group_of(data_dir: &Path) -> String {
    let facts = fs::metadata(data_dir).expect("the data directory");
    let hash = Sha256::digest(format!("{}:{}", facts.dev(), facts.ino()));
    let short: String = hash.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    format!("sandkasten-{short}")
}

/// Texts by which things of ours are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks {
    ours: Vec<String>,
    others: Vec<String>,
}

impl Marks {
    #[must_use]
    pub fn new<T: Into<String>>(ours: impl IntoIterator<Item = T>) -> Self {
        let ours = ours.into_iter().map(Into::into).filter(|mark: &String| !mark.is_empty());
        Self { ours: ours.collect(), others: Vec::new() }
    }

    /// The same, without what carries one of these.
    #[must_use]
    pub fn but_not(mut self, others: impl IntoIterator<Item = String>) -> Self {
        self.others.extend(others);
        self
    }

    fn are_on(&self, text: &str) -> bool {
        let has = |marks: &[String]| marks.iter().any(|mark| text.contains(mark.as_str()));
        has(&self.ours) && !has(&self.others)
    }
}

/// Everything on the host that a session or a daemon could leave behind, and carries a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// A list without entries.
    #[must_use]
    pub fn empty() -> Self {
        Self(BTreeSet::new())
    }

    /// Looks at the host now.
    #[must_use]
    pub fn take(marks: &Marks) -> Self {
        let mut found = BTreeSet::new();
        found.extend(host::mounts().into_iter().map(|line| format!("mount {line}")));
        found.extend(host::cgroups().iter().map(|dir| format!("cgroup {}", dir.display())));
        found.extend(claims());
        found.extend(files());
        found.extend(loop_devices());
        found.retain(|entry| marks.are_on(entry));
        for pid in host::pids().into_iter().filter(|&pid| pid != std::process::id()) {
            if marks.are_on(&traits(pid)) {
                found.extend(process(pid));
            }
        }
        Self(found)
    }

    /// What is here and was not there before.
    #[must_use]
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }

    /// What has come since and carries a mark, once it has settled.
    #[must_use]
    pub fn left_since(&self, marks: &Marks) -> Vec<String> {
        wait::until_empty(SETTLE, || Self::take(marks).beyond(self))
    }
}

/// What is left of a daemon that has been stopped: anything that names its data directory, one of
/// its sessions or its parent group.
#[must_use]
pub fn of_daemon(data_dir: &Path, marks: &[String]) -> Vec<String> {
    let dir = data_dir.to_string_lossy().into_owned();
    let marks = Marks::new(marks.iter().cloned().chain([dir]));
    wait::until_empty(SETTLE, || {
        let mut left = Snapshot::take(&marks).beyond(&Snapshot::empty());
        for folder in ["sessions", "trash"] {
            let folder = data_dir.join(folder);
            left.extend(host::names(&folder).iter().map(|n| format!("{}/{n}", folder.display())));
        }
        left
    })
}

/// Uid ranges that are still claimed in the name of a data directory.
#[must_use]
pub fn claims_of(data_dir: &str) -> Vec<String> {
    claims().into_iter().filter(|claim| claim.contains(data_dir)).collect()
}

/// All claims of uid ranges, each with what it says of its owner.
fn claims() -> Vec<String> {
    let dir = Path::new("/run/sandkasten/uids");
    let mut found = Vec::new();
    for claim in host::names(dir) {
        for file in host::names(&dir.join(&claim)) {
            let text = fs::read_to_string(dir.join(&claim).join(&file)).unwrap_or_default();
            found.push(format!("claim {claim} {file} {}", text.replace('\n', " ")));
        }
    }
    found
}

/// What lies in the folders for temporary files, and in those of runs there.
fn files() -> Vec<String> {
    let tops = ["/tmp", "/var/tmp"].map(PathBuf::from).into_iter();
    let mut found = Vec::new();
    for top in tops.chain([std::env::temp_dir()]) {
        for name in host::names(&top) {
            let path = top.join(&name);
            found.push(format!("file {}", path.display()));
            // A run's folder is named by its tag alone; that of a lab looks after itself.
            if name.strip_prefix("sandkasten-test-").is_some_and(|tag| !tag.contains('-')) {
                let below = host::names(&path).into_iter();
                found.extend(below.map(|name| format!("file {}/{name}", path.display())));
            }
        }
    }
    found
}

fn loop_devices() -> Vec<String> {
    let mut found = Vec::new();
    for name in host::names(Path::new("/sys/block")) {
        let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        found.extend(file.map(|file| format!("loop {name} {}", file.trim())));
    }
    found
}

/// What a process is known by: its words, environment, cgroups, directory and open files.
fn traits(pid: u32) -> String {
    let files = ["cmdline", "environ", "cgroup"].map(|name| host::proc_file(pid, name));
    let cwd = fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
    let open = host::descriptors(pid).into_iter().map(|(_, target)| target);
    let rest = open.chain([cwd.to_string_lossy().into_owned()]);
    files.into_iter().chain(rest).collect::<Vec<_>>().join(" ")
}

/// A process, its namespaces, and the deleted files that it holds open.
fn process(pid: u32) -> Vec<String> {
    let command = host::proc_file(pid, "cmdline").replace('\0', " ");
    if command.is_empty() {
        return vec![format!("zombie {pid} {}", host::status(pid, "Name"))];
    }
    let mut found = vec![format!(
        "process {pid} {command}{}",
        host::proc_file(pid, "cgroup").replace('\n', " ")
    )];
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let space = host::namespace(pid, kind);
        if space != host::namespace(std::process::id(), kind) {
            found.push(format!("namespace {space}"));
        }
    }
    let deleted = host::descriptors(pid).into_iter().map(|(_, target)| target);
    let deleted = deleted.filter(|target| target.starts_with('/') && target.ends_with("(deleted)"));
    found.extend(deleted.map(|target| format!("deleted but open {target}")));
    found
}

#[cfg(test)]
mod test {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn marks_are_looked_for_and_others_left_out() {
        let marks =
            Marks::new(["sandkasten-test-1", "", "sandkasten-99"]).but_not(["-shared".to_owned()]);
        assert!(
            marks.are_on("mount /var/tmp/sandkasten-test-1-x/data")
                && marks.are_on("cgroup sandkasten-99")
        );
        assert!(!marks.are_on("cgroup sandkasten-0123") && !marks.are_on(""));
        assert!(!marks.are_on("mount /var/tmp/sandkasten-test-1-shared/data"));
    }

    /// What a run may leave is found, each kind, and nothing that another program has.
    #[test]
    fn planted_leaks_are_found_and_strangers_are_not() {
        let tag = fresh_tag();
        let marks = Marks::new([tag.clone()]);
        let dir = crate::lab::scratch_dir(&tag);
        let stranger = crate::lab::scratch_dir("stranger");
        let start = |dir: &Path, variable: &str| {
            let mount = "mount -t tmpfs none \"$1\" && echo && exec sleep 1000";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", mount, "sh"]).arg(dir).env("TMPDIR", variable);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("run unshare");
            let stdout = child.stdout.as_mut().expect("a pipe");
            std::io::Read::read_exact(stdout, &mut [0]).expect("it is mounted");
            child
        };
        let ours = start(dir.path(), &format!("/tmp/{tag}"));
        let theirs = start(stranger.path(), "/tmp");
        let found = Snapshot::take(&marks).beyond(&Snapshot::empty());
        let has = |kind: &str, part: &str| {
            let is = |entry: &&String| entry.starts_with(kind) && entry.contains(part);
            assert!(found.iter().any(|entry| is(&entry)), "{kind} {part}: {found:#?}");
        };
        has("file ", &tag);
        has("mount ", &tag);
        has(&format!("process {} ", ours.id()), "sleep 1000");
        has("namespace mnt:", "");
        let strange = stranger.path().to_string_lossy().into_owned();
        let of_stranger = format!("process {} ", theirs.id());
        for entry in &found {
            assert!(!entry.contains(&strange) && !entry.starts_with(&of_stranger), "{entry}");
        }
        for mut child in [ours, theirs] {
            child.kill().expect("end it");
            child.wait().expect("reap it");
        }
        drop(dir);
        assert_eq!(Snapshot::empty().left_since(&marks), Vec::<String>::new());
    }
}
