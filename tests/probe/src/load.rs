//! Load: threads, processes, CPU.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::sys::{self, Side};

fn seconds(count: i64) -> Duration {
    Duration::from_secs(count.unsigned_abs())
}

pub fn threads(count: i64) -> io::Result<String> {
    let all: Vec<_> = (0..count).map(|_| thread::Builder::new().spawn(|| ())).collect();
    for one in all {
        one?.join().map_err(|_| io::Error::other("a thread panicked"))?;
    }
    Ok(String::new())
}

/// Orphans that end at once: init has to reap them.
pub fn zombies(count: i64) -> io::Result<String> {
    for _ in 0..count {
        match sys::fork()? {
            Side::Child => {
                // The grandchild's parent is gone by the time it ends, or ends with it.
                let _ = sys::fork();
                sys::exit(0);
            }
            Side::Parent(pid) => drop(sys::wait(pid)?),
        }
    }
    Ok(String::new())
}

/// Forks in every process as fast as it goes; the first process says how many it made itself.
pub fn bomb(time: i64) -> io::Result<String> {
    let end = Instant::now() + seconds(time);
    let mut made = 0u64;
    let mut first = true;
    while Instant::now() < end {
        match sys::fork() {
            Ok(Side::Child) => first = false,
            Ok(Side::Parent(_)) => made += 1,
            Err(_) => thread::yield_now(),
        }
    }
    if !first {
        sys::exit(0);
    }
    Ok(made.to_string())
}

/// Busy processes.
pub fn burn(time: i64, count: i64) -> io::Result<String> {
    let end = Instant::now() + seconds(time);
    let mut children = Vec::new();
    for _ in 0..count {
        match sys::fork()? {
            Side::Child => {
                while Instant::now() < end {}
                sys::exit(0);
            }
            Side::Parent(pid) => children.push(pid),
        }
    }
    for pid in children {
        sys::wait(pid)?;
    }
    Ok(String::new())
}
