//! The leak list: what must be the same on the host before and after.
//!
//! Invariant: an entry is a text that names the thing, so that two lists can be compared as sets;
//! what may differ for reasons that are not ours (a kernel worker, a page cache) is not on it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::host;
use crate::wait;

/// How long what is removed in the background may take.
pub const SETTLE: Duration = Duration::from_secs(5);

/// Everything on the host that a session or a daemon could leave behind.
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
    pub fn take() -> Self {
        let mut found = BTreeSet::new();
        found.extend(host::mounts().into_iter().map(|line| format!("mount {line}")));
        found.extend(host::cgroups().iter().map(|dir| format!("cgroup {}", dir.display())));
        found.extend(listing("link", "/sys/class/net"));
        found.extend(listing("claim", "/run/sandkasten/uids"));
        found.extend(listing("file", "/tmp"));
        found.extend(listing("file", "/var/tmp"));
        found.extend(loop_devices());
        for pid in host::pids() {
            found.extend(process(pid));
        }
        Self(found)
    }

    /// What is here and was not there before.
    #[must_use]
    pub fn beyond(&self, before: &Self) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }

    /// What has come since, once it has settled: what `relevant` picks out of it.
    #[must_use]
    pub fn left_since(&self, relevant: impl Fn(&str) -> bool) -> Vec<String> {
        let left = || {
            let mut left = Self::take().beyond(self);
            left.retain(|entry| relevant(entry));
            left
        };
        wait::until_empty(SETTLE, left)
    }
}

/// What is left of a daemon that has been stopped: anything that names its data directory, one of
/// its sessions or its parent group.
#[must_use]
pub fn of_daemon(data_dir: &Path, marks: &[String]) -> Vec<String> {
    let dir = data_dir.to_string_lossy().into_owned();
    let names_it = |entry: &str| {
        entry.contains(&dir) || marks.iter().any(|mark| !mark.is_empty() && entry.contains(mark))
    };
    let left = || {
        let mut left: Vec<String> =
            Snapshot::take().0.into_iter().filter(|e| names_it(e)).collect();
        left.extend(claims_of(&dir));
        for folder in ["sessions", "trash"] {
            let folder = data_dir.join(folder);
            left.extend(host::names(&folder).iter().map(|n| format!("{}/{n}", folder.display())));
        }
        left
    };
    wait::until_empty(SETTLE, left)
}

/// Uid ranges that are still claimed in the name of a data directory.
#[must_use]
pub fn claims_of(data_dir: &str) -> Vec<String> {
    let dir = Path::new("/run/sandkasten/uids");
    let mut found = Vec::new();
    for claim in host::names(dir) {
        for file in host::names(&dir.join(&claim)) {
            let text = fs::read_to_string(dir.join(&claim).join(&file)).unwrap_or_default();
            if text.contains(data_dir) || file.contains(data_dir) {
                found.push(format!("claim {claim} {text}"));
            }
        }
    }
    found
}

fn listing(kind: &str, dir: &str) -> Vec<String> {
    host::names(Path::new(dir)).iter().map(|name| format!("{kind} {dir}/{name}")).collect()
}

fn loop_devices() -> Vec<String> {
    let mut found = Vec::new();
    for name in host::names(Path::new("/sys/block")) {
        let file = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        found.extend(file.map(|file| format!("loop {name} {}", file.trim())));
    }
    found
}

/// A process, its namespaces, and the deleted files that it holds open.
fn process(pid: u32) -> Vec<String> {
    let command = host::proc_file(pid, "cmdline").replace('\0', " ");
    if command.is_empty() {
        return zombie(pid).into_iter().collect();
    }
    let mut found = vec![format!(
        "process {pid} {command}{}",
        host::proc_file(pid, "cgroup").replace('\n', " ")
    )];
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        found.push(format!("namespace {}", host::namespace(pid, kind)));
    }
    let deleted = host::descriptors(pid).into_iter().map(|(_, target)| target);
    let deleted = deleted.filter(|target| target.starts_with('/') && target.ends_with("(deleted)"));
    found.extend(deleted.map(|target| format!("deleted but open {target}")));
    found
}

/// A zombie; kernel threads have no command line either and are none.
fn zombie(pid: u32) -> Option<String> {
    let name = host::status(pid, "Name");
    host::status(pid, "State").starts_with('Z').then(|| format!("zombie {pid} {name}"))
}
