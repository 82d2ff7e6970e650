//! Waiting, in one place.
//!
//! Invariant: where the kernel has an event (a pidfd, inotify, a socket) it is waited for. Two
//! things have none: state of `/proc` and `/sys`, which is looked at until a deadline, and the
//! pauses that a case prescribes.

use std::fs::File;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

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

/// Whether a process ends within `limit`. It is not reaped.
///
/// # Panics
/// Where the kernel has no pidfds.
#[must_use]
pub fn ends_within(child: &Child, limit: Duration) -> bool {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd_open");
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let limit = Timespec::try_from(limit).expect("a short time");
    poll(&mut fds, Some(&limit)).expect("poll") > 0
}

/// A file without a name.
///
/// # Errors
/// Where there is no room for it.
pub fn scratch_file() -> std::io::Result<File> {
    tempfile::tempfile()
}

/// Does something, and something else again and again until it is done, also where it panics.
pub fn meanwhile<T>(again: impl FnMut() + Send, act: impl FnOnce() -> T) -> T {
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        let mut again = again;
        scope.spawn({
            let over = &over;
            move || {
                while !over.load(Ordering::Relaxed) {
                    again();
                }
            }
        });
        act()
    })
}
