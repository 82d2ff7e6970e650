//! What the suites of one run have around them: a name on all that they make, folders, and the daemon
//! that they share.
//!
//! Invariant: everything that a test of this run makes on the host carries the run's tag or a mark that
//! the test wrote down. So leaks are told from what else is on the host: other daemons, compilers, and
//! other runs.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Context;
use sandkasten_e2e::image::Rootfs;
use sandkasten_e2e::leaks::{Marks, Snapshot};
use sandkasten_e2e::{Lab, debian, leaks};

use crate::built::Built;

/// Name the hosts that are reached past any proxy. Some programs read only one of the two.
const PAST_PROXIES: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// One run of suites.
pub struct Run {
    tag: String,
    /// The tests' temporary directory.
    tmp: PathBuf,
    /// Where tests write marks down.
    marks: PathBuf,
    programs: Vec<(String, OsString)>,
    shared: Option<Lab>,
}

impl Run {
    pub fn new(built: &Built) -> anyhow::Result<Self> {
        let tag = leaks::fresh_tag();
        let tmp = std::env::temp_dir().join(&tag);
        fs::create_dir(&tmp).with_context(|| format!("make {}", tmp.display()))?;
        // As `/tmp` is: programs that tests run give their rights away.
        fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).context("open it to all")?;
        let folder = built.target.join("test-bin");
        fs::create_dir_all(&folder).context("make target/test-bin")?;
        let marks = folder.join(format!("{tag}.marks"));
        fs::write(&marks, "").with_context(|| format!("write {}", marks.display()))?;
        let programs = built.programs.iter().map(|(name, path)| (name.clone(), path.into()));
        Ok(Self { tag, tmp, marks, programs: programs.collect(), shared: None })
    }

    /// What every test is given.
    pub fn variables(&self) -> Vec<(String, OsString)> {
        let mut variables = self.programs.clone();
        variables.push(("TMPDIR".into(), self.tmp.clone().into()));
        variables.push((leaks::TAG.into(), self.tag.clone().into()));
        variables.push((leaks::MARKS.into(), self.marks.clone().into()));
        let set = PAST_PROXIES.map(|name| std::env::var(name).unwrap_or_default());
        let lists = PAST_PROXIES.into_iter().zip(past_proxies(&set));
        variables.extend(lists.map(|(name, list)| (name.to_owned(), list.into())));
        variables
    }

    /// Variables that lead to the daemon that suites share, which is started for the first of them, with the
    /// images `base` and `python`, and those that the suite `cases` has beside.
    pub fn shared(&mut self, suite: &str) -> Vec<(String, OsString)> {
        if self.shared.as_ref().is_some_and(|lab| !lab.serves()) {
            println!("the shared daemon is gone; starting another");
            drop(self.shared.take());
        }
        let lab = match self.shared.take() {
            Some(lab) => lab,
            None => {
                println!("images base and python, from the cache where they are there");
                Lab::builder().tagged(&self.tag).recipe("base").recipe("python").start()
            }
        };
        if suite == "cases" {
            lab.import("busybox", &Rootfs::busybox().finish());
            lab.import("dash", &Rootfs::dash().finish());
            lab.import("bookworm", &debian::bookworm());
        }
        let lab = self.shared.insert(lab);
        lab.variables().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// What the run has on the host, but for the shared daemon.
    pub fn look(&self) -> Snapshot {
        Snapshot::take(&self.marks())
    }

    fn marks(&self) -> Marks {
        let noted = fs::read_to_string(&self.marks).unwrap_or_default();
        let marks = Marks::new(std::iter::once(self.tag.as_str()).chain(noted.lines()));
        match &self.shared {
            Some(lab) => marks.but_not(lab.marks()),
            None => marks,
        }
    }

    /// Says what has come since and stays; how many failures that is.
    pub fn tell_leaks(&self, before: &Snapshot) -> usize {
        let mut left = before.left_since(&self.marks());
        left.extend(self.shared.iter().flat_map(Lab::sessions));
        if left.is_empty() {
            return 0;
        }
        println!("FAILED the suite left behind: {left:#?}");
        1
    }

    /// Ends the shared daemon; how many failures that is.
    pub fn end_shared(&mut self) -> usize {
        let before = self.look();
        let Some(lab) = self.shared.take() else { return 0 };
        let closed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lab)));
        usize::from(closed.is_err()) + self.tell_leaks(&before)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // What lies there has been told of; it may be mounted on, so that it is not for us to remove.
        drop(fs::remove_dir(&self.tmp));
        drop(fs::remove_file(&self.marks));
    }
}

/// The values of [`PAST_PROXIES`] with this host added, where the daemons of tests listen: clients that
/// tests start would ask the proxy for it. What is set stays; of an empty one the other takes the place.
fn past_proxies(set: &[String; 2]) -> [String; 2] {
    let [lower, upper] = set;
    let lower_or_upper = [lower, upper].into_iter().find(|list| !list.is_empty());
    let fallback = lower_or_upper.map(String::as_str).unwrap_or_default();
    set.each_ref().map(|list| {
        let list = if list.is_empty() { fallback } else { list };
        // Alone it stands for all hosts; in a list it means nothing.
        if list == "*" {
            return list.to_owned();
        }
        let mut hosts: Vec<&str> = list.split(',').map(str::trim).collect();
        hosts.retain(|host| !host.is_empty());
        for host in ["127.0.0.1", "localhost"] {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts.join(",")
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn this_host_is_reached_past_any_proxy() {
        let of = |lower: &str, upper: &str| past_proxies(&[lower.to_owned(), upper.to_owned()]);
        let local = "127.0.0.1,localhost".to_owned();
        assert_eq!(of("", ""), [local.clone(), local]);
        assert_eq!(of("", "a.example"), ["a.example,127.0.0.1,localhost"; 2].map(str::to_owned));
        assert_eq!(of("localhost, b", "*"), ["localhost,b,127.0.0.1", "*"].map(str::to_owned));
    }
}
