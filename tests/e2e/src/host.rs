//! What the host shows: programs, processes, mounts, cgroups.
//!
//! Invariant: nothing here changes the host.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What a test asks for and the host lacks.
#[derive(Debug, Clone)]
pub struct Requirement {
    /// As it stands in `requires!`.
    pub name: String,
    pub reason: String,
}

pub type Need = Result<(), Requirement>;

/// The things that `requires!` can name.
pub mod need {
    use super::{Need, Requirement, find_program};

    fn lack(name: &str, reason: &str) -> Need {
        Err(Requirement { name: name.to_owned(), reason: reason.to_owned() })
    }

    /// A program on PATH.
    ///
    /// # Errors
    /// Where there is none.
    pub fn program(name: &str) -> Need {
        match find_program(name) {
            Some(_) => Ok(()),
            None => lack(&format!("program({name:?})"), &format!("no `{name}` on PATH")),
        }
    }

    /// That many CPUs.
    ///
    /// # Errors
    /// Where there are fewer.
    pub fn cpus(count: usize) -> Need {
        let have = std::thread::available_parallelism().map_or(1, usize::from);
        if have >= count {
            return Ok(());
        }
        lack(&format!("cpus({count})"), &format!("{have} CPUs, {count} are needed"))
    }
}

/// A program on PATH.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// All processes of this pid namespace.
#[must_use]
pub fn pids() -> Vec<u32> {
    names(Path::new("/proc")).iter().filter_map(|name| name.parse().ok()).collect()
}

/// Names in a directory; none where it can't be read.
#[must_use]
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A file of a process; empty where it is gone.
#[must_use]
pub fn proc_file(pid: u32, name: &str) -> String {
    let bytes = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A field of `/proc/PID/status`.
#[must_use]
pub fn status(pid: u32, field: &str) -> String {
    let status = proc_file(pid, "status");
    let found = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_default().trim().to_owned()
}

/// Bytes of memory that a process has to itself.
#[must_use]
pub fn anonymous_bytes(pid: u32) -> u64 {
    let text = status(pid, "RssAnon");
    text.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024
}

/// Bytes that the kernel holds for the TCP connections of this network namespace.
#[must_use]
pub fn tcp_buffer_bytes() -> u64 {
    let text = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let tcp = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or_default();
    let pages = tcp.rsplit(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// A namespace of a process, such as `pid:[4026531836]`; empty where the process is gone.
#[must_use]
pub fn namespace(pid: u32, kind: &str) -> String {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap_or_default();
    link.to_string_lossy().into_owned()
}

/// Pid in the innermost pid namespace; 0 where the process is gone.
#[must_use]
pub fn inner_pid(pid: u32) -> u32 {
    let all = status(pid, "NSpid");
    all.split_whitespace().last().and_then(|last| last.parse().ok()).unwrap_or(0)
}

/// A process and all that descend from it.
#[must_use]
pub fn family(root: u32) -> Vec<u32> {
    let parents: BTreeMap<u32, u32> =
        pids().into_iter().map(|pid| (pid, status(pid, "PPid").parse().unwrap_or(0))).collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(parents.iter().filter(|&(_, &of)| of == parent).map(|(&pid, _)| pid));
        next += 1;
    }
    found
}

/// The processes that a session's cgroup holds, as host pids.
#[must_use]
pub fn processes_of(session: &str) -> Vec<u32> {
    pids().into_iter().filter(|&pid| proc_file(pid, "cgroup").contains(session)).collect()
}

/// The init of a session, as a host pid.
#[must_use]
pub fn init_of(session: &str) -> Option<u32> {
    processes_of(session).into_iter().find(|&pid| inner_pid(pid) == 1)
}

/// Lines of the mount tables of all mount namespaces, each namespace once, with its name.
#[must_use]
pub fn mounts() -> Vec<String> {
    let mut seen = BTreeMap::new();
    for pid in pids() {
        let space = namespace(pid, "mnt");
        if !space.is_empty() {
            seen.entry(space).or_insert(pid);
        }
    }
    let mut lines = Vec::new();
    for (space, pid) in seen {
        let table = proc_file(pid, "mountinfo");
        // The mount id differs from run to run.
        let rest = |line: &str| line.split_once(' ').map_or("", |(_, rest)| rest).to_owned();
        lines.extend(table.lines().map(|line| format!("{space} {}", rest(line))));
    }
    lines
}

/// Directories below a cgroup hierarchy, in all hierarchies.
#[must_use]
pub fn cgroups() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found = Vec::new();
    for line in table.lines() {
        let (before, after) = line.split_once(" - ").unwrap_or((line, ""));
        if after.starts_with("cgroup")
            && let Some(point) = before.split(' ').nth(4)
        {
            directories(Path::new(point), &mut found);
        }
    }
    found.sort();
    found.dedup();
    found
}

fn directories(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            directories(&entry.path(), found);
            found.push(entry.path());
        }
    }
}

/// Descriptors of a process: number and what it leads to.
#[must_use]
pub fn descriptors(pid: u32) -> Vec<(String, String)> {
    let dir = PathBuf::from(format!("/proc/{pid}/fd"));
    let target = |name: &String| fs::read_link(dir.join(name)).unwrap_or_default();
    let all = names(&dir);
    all.into_iter().map(|name| (name.clone(), target(&name).to_string_lossy().into())).collect()
}

/// `MemAvailable` in bytes.
///
/// # Panics
/// Where `/proc/meminfo` has none.
#[must_use]
pub fn memory_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.expect("MemAvailable") * 1024
}

/// Sends a signal to a process that the test has started, or to the init of one of its sessions.
///
/// # Panics
/// Where there is no such process.
pub fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("a living process");
}
