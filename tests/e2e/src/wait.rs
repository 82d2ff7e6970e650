//! Waiting, in one place.
//!
//! Invariant: where the kernel has an event (a pidfd, inotify, a socket) it is waited for. Two
//! things have none: state of `/proc` and `/sys`, which is looked at until a deadline, and the
//! pauses that a case prescribes.

use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(20);

/// A pause that the text of a case prescribes.
pub fn prescribed(pause: Duration) {
    std::thread::sleep(pause);
}

/// Looks until nothing is left; what still is after `limit`.
pub fn until_empty<T>(limit: Duration, mut look: impl FnMut() -> Vec<T>) -> Vec<T> {
    let deadline = Instant::now() + limit;
    loop {
        let left = look();
        if left.is_empty() || Instant::now() >= deadline {
            return left;
        }
        std::thread::sleep(STEP);
    }
}

/// Looks until it holds.
///
/// # Panics
/// Where it does not within `limit`.
#[track_caller]
pub fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        std::thread::sleep(STEP);
    }
}
