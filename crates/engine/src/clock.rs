//! The two clocks: one for deadlines that no clock change can move, one for people.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sandkasten_types::Timestamp;

/// A point on CLOCK_BOOTTIME, in milliseconds: it never jumps, and counts while the host sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(i64);

impl BootTime {
    pub(crate) fn now() -> Self {
        let now = clock_gettime(ClockId::Boottime);
        Self(now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000))
    }

    pub(crate) fn from_ms(ms: i64) -> Self {
        Self(ms)
    }

    pub(crate) fn as_ms(self) -> i64 {
        self.0
    }

    pub(crate) fn plus_seconds(self, seconds: u64) -> Self {
        let ms = i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(1000);
        Self(self.0.saturating_add(ms))
    }

    /// How long it is until then; nothing where it is over.
    pub(crate) fn remaining(self) -> Duration {
        let ms = self.0.saturating_sub(Self::now().0);
        Duration::from_millis(u64::try_from(ms).unwrap_or(0))
    }
}

/// The time for people, as exact as it is written down: a session's times are the same before and
/// after a restart of the daemon.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix_ms(Timestamp::now().unix_ms())
}

/// The name of this boot: pids and start times of another one mean nothing.
pub(crate) fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
