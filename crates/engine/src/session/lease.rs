//! How long a session lives: its own ttl after its last use, and as long as a command runs.

use crate::clock::{self, BootTime};
use crate::db::Lease;

/// From now on, for `ttl_seconds`.
pub(crate) fn renewed(ttl_seconds: u64) -> Lease {
    let now = clock::now();
    Lease {
        last_activity: now,
        expires_at: now.plus_seconds(ttl_seconds),
        deadline: Some(BootTime::now().plus_seconds(ttl_seconds)),
    }
}

/// Held by a command: no deadline until it ends.
pub(crate) fn held(ttl_seconds: u64) -> Lease {
    Lease { deadline: None, ..renewed(ttl_seconds) }
}
