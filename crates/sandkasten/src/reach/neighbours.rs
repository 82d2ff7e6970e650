//! The daemons that run on this host, found in `/proc`: nothing is registered, so nothing is stale.
//!
//! Which data directory one has is seen by root alone, through its descriptor of the file `pid` there,
//! whose lock [`instance`] then checks. Who is not root learns that there is one, and its pid.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::instance;

/// How many are named in a message.
const NAMED_MAX: usize = 5;

/// A daemon that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Neighbour {
    pid: i32,
    pub(super) data_dir: Option<PathBuf>,
    address: Option<SocketAddr>,
}

/// All that this process may see, by pid.
pub(super) fn all() -> Vec<Neighbour> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut daemons: Vec<i32> = pids.filter(|pid| is_daemon(*pid)).collect();
    daemons.sort_unstable();
    // The launcher is a fork of its daemon and looks like it.
    let is_fork = |pid: &i32| parent(*pid).is_some_and(|parent| daemons.contains(&parent));
    daemons.iter().filter(|pid| !is_fork(pid)).map(|pid| look_at(*pid)).collect()
}

/// As lines to append to a message; empty where there are none.
pub(super) fn lines(all: &[Neighbour]) -> String {
    let Some(first) = all.get(..NAMED_MAX.min(all.len())).filter(|some| !some.is_empty()) else {
        return String::new();
    };
    let mut text = String::from("\non this host run:");
    for one in first {
        text.push_str(&format!("\n  {one}"));
    }
    if all.len() > NAMED_MAX {
        text.push_str(&format!("\n  and {} more", all.len() - NAMED_MAX));
    }
    text
}

impl std::fmt::Display for Neighbour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the daemon with pid {}", self.pid)?;
        if let Some(address) = self.address {
            write!(f, " at http://{address}")?;
        }
        if let Some(data_dir) = &self.data_dir {
            write!(f, ", data directory {}", data_dir.display())?;
        }
        Ok(())
    }
}

/// A second stage of ours, by its command line.
fn is_daemon(pid: i32) -> bool {
    let Ok(line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    let mut words = line.split(|byte| *byte == 0);
    words.next() == Some(b"sandkasten") && words.any(|word| word == b"--settings-on-stdin")
}

fn parent(pid: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

fn look_at(pid: i32) -> Neighbour {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    let mut dirs = links.filter(|link| link.file_name().is_some_and(|name| name == "pid"));
    let found = dirs.find_map(|link| of_dir(link.parent()?, pid));
    found.unwrap_or(Neighbour { pid, data_dir: None, address: None })
}

/// The daemon of a directory, if it is this process.
fn of_dir(data_dir: &Path, pid: i32) -> Option<Neighbour> {
    let running = instance::find(data_dir).ok()??;
    let data_dir = Some(data_dir.to_owned());
    let is_it = running.pid.as_raw_nonzero().get() == pid;
    is_it.then_some(Neighbour { pid, data_dir, address: running.address })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn some_are_named_and_the_rest_counted() {
        assert_eq!(lines(&[]), "");
        let one = Neighbour {
            pid: 7,
            data_dir: Some("/d".into()),
            address: Some("127.0.0.1:1".parse().unwrap()),
        };
        let hidden = Neighbour { pid: 8, data_dir: None, address: None };
        assert_eq!(
            lines(&[one, hidden.clone()]),
            "\non this host run:\n  the daemon with pid 7 at http://127.0.0.1:1, data directory /d\
             \n  the daemon with pid 8"
        );
        let many = vec![hidden; NAMED_MAX + 2];
        assert!(lines(&many).ends_with("\n  and 2 more"));
    }
}
