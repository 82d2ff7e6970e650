//! What figures depend on: processor, kernel, file system, cgroups.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

pub(super) fn stamp(data_dir: &Path) -> Value {
    json!({
        "cpu": cpu(), "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "memory_bytes": u64::from(rustix::system::sysinfo().mem_unit)
            .saturating_mul(rustix::system::sysinfo().totalram),
        "file_system": file_system(data_dir), "cgroups": cgroups(),
    })
}

/// The stamp in one line.
pub(super) fn line(stamp: &Value) -> String {
    let text = |name: &str| stamp.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
    let cores = stamp.get("cores").and_then(Value::as_u64).unwrap_or(0);
    let (cpu, kernel) = (text("cpu"), text("kernel"));
    let (file_system, cgroups) = (text("file_system"), text("cgroups"));
    format!("{cores} cores of {cpu}, Linux {kernel}, {file_system}, cgroups {cgroups}")
}

fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name"));
    name.map_or("?", |rest| rest.trim_start_matches(['\t', ' ', ':'])).to_owned()
}

/// The type of the mount that holds the data directory.
fn file_system(data_dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let of_mount = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?.to_owned(), words.next()?.to_owned());
        data_dir.starts_with(&place).then_some((place.len(), kind))
    };
    // The last of equally long ones lies on top.
    let found = mounts.lines().filter_map(of_mount).max_by_key(|(length, _)| *length);
    found.map_or_else(|| "?".to_owned(), |(_, kind)| kind)
}

/// `v2`, `v1`, or `hybrid`: v1 controllers beside a v2 hierarchy without them.
fn cgroups() -> &'static str {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let has = |kind: &str| mounts.lines().any(|line| line.split(' ').nth(2) == Some(kind));
    match (has("cgroup"), has("cgroup2")) {
        (true, true) => "hybrid",
        (true, false) => "v1",
        (false, true) => "v2",
        (false, false) => "none",
    }
}
