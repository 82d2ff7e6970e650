//! Time: one clock for durations, which goes on while the host sleeps, and one for people.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A moment, as the time since the host's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        Self(read(ClockId::Boottime))
    }

    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    /// Time from `earlier` to this; zero where it is later.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Milliseconds since 1970.
pub(crate) fn wall_ms() -> i64 {
    i64::try_from(read(ClockId::Realtime).as_millis()).unwrap_or(i64::MAX)
}

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
