//! The limits of a group, as the files of both versions.

use std::os::fd::BorrowedFd;

use super::files::{write, write_held, write_held_if_there};
use super::{CgroupError, CgroupLimits, Controller};

/// The scheduler's period. Shorter ones cost more, longer ones stall a box for longer.
const CPU_PERIOD_US: u64 = 100_000;

/// The least quota that the kernel takes.
const CPU_QUOTA_US_MIN: u64 = 1_000;

/// Buffers of TCP may take this part of a v1 memory limit, which doesn't count them.
const TCP_PART: u64 = 8;

/// Which kind of group limits are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// The group over all sessions.
    Parent,
    Session,
}

impl CgroupLimits {
    /// The memory limit in whole pages, as the kernel keeps it.
    fn memory(&self) -> u64 {
        whole_pages(self.memory_bytes)
    }

    fn cpu_quota_us(&self) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a float cast saturates, and any quota in range is exact"
        )]
        let quota = (self.cpu_cores * CPU_PERIOD_US as f64) as u64;
        quota.max(CPU_QUOTA_US_MIN)
    }
}

fn whole_pages(bytes: u64) -> u64 {
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    bytes / page * page
}

/// Writes what one controller limits to a v2 group.
pub(super) fn write_v2(
    dir: BorrowedFd<'_>,
    controller: Controller,
    limits: &CgroupLimits,
) -> Result<(), CgroupError> {
    match controller {
        Controller::Memory => {
            write_held(dir, "memory.max", &limits.memory().to_string())?;
            write_held_if_there(dir, "memory.swap.max", "0")?;
            // The victim is one process, never the whole box.
            write_held_if_there(dir, "memory.oom.group", "0")
        }
        Controller::Cpu => {
            let text = format!("{} {CPU_PERIOD_US}", limits.cpu_quota_us());
            write_held(dir, "cpu.max", &text)
        }
        Controller::Pids => write_held(dir, "pids.max", &limits.pids.to_string()),
    }
}

/// Writes what one controller limits to a v1 group that no process is in yet.
pub(super) fn write_v1(
    dir: BorrowedFd<'_>,
    controller: Controller,
    limits: &CgroupLimits,
    level: Level,
) -> Result<(), CgroupError> {
    match controller {
        Controller::Memory => write_v1_memory(dir, limits, level),
        Controller::Cpu => {
            write_held(dir, "cpu.cfs_period_us", &CPU_PERIOD_US.to_string())?;
            write_held(dir, "cpu.cfs_quota_us", &limits.cpu_quota_us().to_string())
        }
        Controller::Pids => write_held(dir, "pids.max", &limits.pids.to_string()),
    }
}

fn write_v1_memory(
    dir: BorrowedFd<'_>,
    limits: &CgroupLimits,
    level: Level,
) -> Result<(), CgroupError> {
    let bytes = limits.memory().to_string();
    // Memory and swap together can't be limited below memory alone, so a limit that rises needs this
    // one to rise first; for a fresh group there is none to rise.
    if level == Level::Parent {
        drop(write(dir, "memory.memsw.limit_in_bytes", "-1"));
    }
    write_held(dir, "memory.limit_in_bytes", &bytes)?;
    write_held_if_there(dir, "memory.memsw.limit_in_bytes", &bytes)?;
    let tcp = match level {
        Level::Session => whole_pages(limits.memory_bytes / TCP_PART),
        Level::Parent => return Ok(()), // each session's own is what counts
    };
    write_held_if_there(dir, "memory.kmem.tcp.limit_in_bytes", &tcp.to_string())
}

/// Makes a v1 memory group count the buffers of TCP, which it does from its first limit on.
pub(super) fn count_tcp(dir: BorrowedFd<'_>) -> Result<(), CgroupError> {
    let some = whole_pages(64 << 20).to_string();
    write_held_if_there(dir, "memory.kmem.tcp.limit_in_bytes", &some)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn limits_are_what_the_kernel_reads_back() {
        let limits = CgroupLimits { memory_bytes: (512 << 20) + 5, cpu_cores: 0.5, pids: 1 };
        assert_eq!(limits.memory(), 512 << 20);
        assert_eq!(limits.cpu_quota_us(), 50_000);
        assert_eq!(CgroupLimits { cpu_cores: 0.0, ..limits }.cpu_quota_us(), 1_000);
    }
}
