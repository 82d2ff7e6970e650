//! The memory of the daemon and of a session's init while the session works.

use std::fs;

use serde_json::{Value, json};

use crate::failure::{Failure, Result, Tried as _};

/// Commands before the first look: what is made once is there then.
pub(super) const FIRST_LOOK: u32 = 1000;

/// Resident memory at the first look and at the end, in KiB.
#[derive(Debug)]
pub(super) struct Growth {
    execs: u32,
    daemon: Process,
    init: Process,
}

#[derive(Debug)]
struct Process {
    pid: i32,
    first: u64,
    last: u64,
}

impl Growth {
    /// # Errors
    /// Where the session has no init on this host, or one of the two can't be looked at.
    pub(super) fn begin(execs: u32, daemon: i32, session: &str) -> Result<Self> {
        let Some(init) = init_of(session) else {
            return Err(Failure::new(format!("no init of session {session} on this host")));
        };
        Ok(Self { execs, daemon: Process::seen(daemon)?, init: Process::seen(init)? })
    }

    pub(super) fn end(&mut self) -> Result<()> {
        self.daemon.last = resident(self.daemon.pid)?;
        self.init.last = resident(self.init.pid)?;
        Ok(())
    }

    pub(super) fn value(&self) -> Value {
        let of = |process: &Process| json!({ "first": process.first, "last": process.last });
        json!({
            "execs": self.execs, "first_look": FIRST_LOOK, "unit": "KiB",
            "daemon": of(&self.daemon), "init": of(&self.init),
        })
    }

    pub(super) fn line(&self) -> String {
        let of = |process: &Process| format!("{} to {} KiB", process.first, process.last);
        format!(
            "resident memory from the {FIRST_LOOK}th to the {}th exec of a session: daemon {}, init {}",
            self.execs,
            of(&self.daemon),
            of(&self.init)
        )
    }
}

/// The most memory that daemon and init have had at one time while something was done, in KiB.
#[derive(Debug)]
pub(super) struct Peak {
    daemon: Process,
    init: Process,
}

impl Peak {
    /// # Errors
    /// Where the session has no init on this host, or the kernel does not let the peak begin anew.
    pub(super) fn begin(daemon: i32, session: &str) -> Result<Self> {
        let Growth { daemon, init, .. } = Growth::begin(0, daemon, session)?;
        for pid in [daemon.pid, init.pid] {
            // 5 begins the peak of resident memory (VmHWM) anew; see proc(5).
            fs::write(format!("/proc/{pid}/clear_refs"), "5")
                .tried(|| format!("the peak of process {pid}'s memory"))?;
        }
        Ok(Self { daemon, init })
    }

    pub(super) fn end(&mut self) -> Result<()> {
        for process in [&mut self.daemon, &mut self.init] {
            process.last = kib(process.pid, "VmHWM")?;
        }
        Ok(())
    }

    pub(super) fn value(&self) -> Value {
        let of = |process: &Process| json!({ "before": process.first, "peak": process.last });
        json!({ "unit": "KiB", "daemon": of(&self.daemon), "init": of(&self.init) })
    }

    pub(super) fn line(&self) -> String {
        let of = |process: &Process| format!("{} KiB, at most {}", process.first, process.last);
        format!(
            "resident memory before and during the transfers: daemon {}, init {}",
            of(&self.daemon),
            of(&self.init)
        )
    }
}

impl Process {
    fn seen(pid: i32) -> Result<Self> {
        let first = resident(pid)?;
        Ok(Self { pid, first, last: first })
    }
}

/// KiB of resident memory.
fn resident(pid: i32) -> Result<u64> {
    kib(pid, "VmRSS")
}

fn kib(pid: i32, name: &str) -> Result<u64> {
    let found = field(pid, name).and_then(|text| text.strip_suffix(" kB")?.parse().ok());
    found.ok_or_else(|| Failure::new(format!("the memory of process {pid} can't be read")))
}

/// The process 1 of a session, as the host counts.
fn init_of(session: &str) -> Option<i32> {
    let entries = fs::read_dir("/proc").ok()?.flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let of_session = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| text.contains(session))
            && field(*pid, "NSpid").is_some_and(|all| all.split_whitespace().last() == Some("1"))
    };
    pids.into_iter().find(of_session)
}

/// A field of `/proc/PID/status`.
fn field(pid: i32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}
