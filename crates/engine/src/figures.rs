//! Figures for an operator: what happened since the daemon started, and what there is now. No ids.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandkasten_jail::disk::room::Room;
use sandkasten_types::exec::ExitReason;
use sandkasten_types::session::{Session, Status};

use crate::config::Ceilings;
use crate::error::Error;
use crate::host::Host;

/// Upper bounds of durations, in seconds: a session is made in hundredths, a command may take minutes.
const BOUNDS: [f64; 9] = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0, 600.0];

/// What happened since the daemon started, and what is under way.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Sessions by status, those of the last 24 h that have ended included.
    pub sessions: Vec<(Status, u64)>,
    /// Sessions made.
    pub sessions_created: u64,
    /// How sessions ended.
    pub session_ends: Vec<(Status, u64)>,
    /// How creates ended.
    pub creates: Vec<(CreateEnd, u64)>,
    /// Of creates that made a session.
    pub create_seconds: Distribution,
    /// Memory limits of the sessions that live, in bytes.
    pub memory_limits_bytes: u64,
    pub execs_running: u64,
    pub execs_queued: u64,
    /// How commands and processes ended.
    pub run_ends: Vec<((RunKind, ExitReason), u64)>,
    pub run_seconds: Vec<(RunKind, Distribution)>,
    /// Things of ours on the host that no session owned, found and removed.
    pub orphans_removed: u64,
}

/// How a create ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CreateEnd {
    Made,
    /// The request was wrong.
    Refused,
    /// As many sessions live as may.
    Quota,
    NoSpace,
    /// The daemon is stopping, or has too much to do.
    Unavailable,
    /// A fault of ours or of the host.
    Failed,
}

impl CreateEnd {
    /// In a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Made => "made",
            Self::Refused => "refused",
            Self::Quota => "quota",
            Self::NoSpace => "no_space",
            Self::Unavailable => "unavailable",
            Self::Failed => "failed",
        }
    }

    fn of(made: &Result<Session, Error>) -> Self {
        match made {
            Ok(_) => Self::Made,
            Err(Error::QuotaExceeded { .. }) => Self::Quota,
            Err(Error::NoSpace(_)) => Self::NoSpace,
            Err(Error::Overloaded(_) | Error::Draining) => Self::Unavailable,
            Err(Error::Internal(_)) => Self::Failed,
            Err(_) => Self::Refused,
        }
    }
}

/// What ran in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunKind {
    /// A command of the shell.
    Exec,
    Process,
}

impl RunKind {
    /// In a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Process => "process",
        }
    }
}

/// How often something took how long.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Upper bounds in seconds, the last one infinite, and how many lie between each and the one before.
    pub buckets: Vec<(f64, u64)>,
    pub sum_seconds: f64,
}

impl Default for Distribution {
    fn default() -> Self {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        Self { buckets: bounds.map(|bound| (bound, 0)).collect(), sum_seconds: 0.0 }
    }
}

impl Distribution {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    fn add(&mut self, took: Duration) {
        let seconds = took.as_secs_f64();
        self.sum_seconds += seconds;
        if let Some((_, count)) = self.buckets.iter_mut().find(|(bound, _)| seconds <= *bound) {
            *count += 1;
        }
    }
}

/// Counts while the daemon runs.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    created: AtomicU64,
    orphans_removed: AtomicU64,
    /// Of the last 24 h.
    ended: Mutex<HashMap<Status, u64>>,
    session_ends: Mutex<HashMap<Status, u64>>,
    creates: Mutex<(HashMap<CreateEnd, u64>, Distribution)>,
    runs: Mutex<Runs>,
}

#[derive(Debug, Default)]
struct Runs {
    ends: HashMap<(RunKind, ExitReason), u64>,
    seconds: HashMap<RunKind, Distribution>,
}

impl Counters {
    pub(crate) fn session_created(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn create_ended(&self, made: &Result<Session, Error>, took: Duration) {
        let end = CreateEnd::of(made);
        let mut creates = lock(&self.creates);
        *creates.0.entry(end).or_default() += 1;
        if end == CreateEnd::Made {
            creates.1.add(took);
        }
    }

    pub(crate) fn run_ended(&self, kind: RunKind, reason: ExitReason, took: Duration) {
        let mut runs = lock(&self.runs);
        *runs.ends.entry((kind, reason)).or_default() += 1;
        runs.seconds.entry(kind).or_default().add(took);
    }

    pub(crate) fn orphan_removed(&self) {
        self.orphans_removed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, status: Status) {
        *lock(&self.ended).entry(status).or_default() += 1;
        *lock(&self.session_ends).entry(status).or_default() += 1;
    }

    /// What the database remembers, once it has forgotten the old ones.
    pub(crate) fn set_ended(&self, counts: Vec<(Status, u64)>) {
        *lock(&self.ended) = counts.into_iter().collect();
    }

    fn read(&self) -> Counts {
        let (creates, create_seconds) = lock(&self.creates).clone();
        let runs = lock(&self.runs);
        Counts {
            sessions: listed(&lock(&self.ended)),
            sessions_created: self.created.load(Ordering::Relaxed),
            session_ends: listed(&lock(&self.session_ends)),
            creates: listed(&creates),
            create_seconds,
            run_ends: listed(&runs.ends),
            run_seconds: runs.seconds.iter().map(|(kind, all)| (*kind, all.clone())).collect(),
            orphans_removed: self.orphans_removed.load(Ordering::Relaxed),
            ..Counts::default()
        }
    }
}

fn listed<K: Copy + Eq + Hash>(map: &HashMap<K, u64>) -> Vec<(K, u64)> {
    map.iter().map(|(key, count)| (*key, *count)).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one step, so a panic elsewhere leaves no half figure.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What happened, and what is under way.
pub(crate) fn counts(host: &Host) -> Counts {
    let mut counts = host.counters.read();
    for session in host.live.all() {
        let view = session.view.borrow();
        counts.execs_running += u64::from(view.running);
        counts.execs_queued += view.queued as u64;
        counts.memory_limits_bytes += session.spec.memory_bytes();
        let status = view.state.status();
        match counts.sessions.iter_mut().find(|(known, _)| *known == status) {
            Some((_, count)) => *count += 1,
            None => counts.sessions.push((status, 1)),
        }
    }
    counts
}

/// What the host has, and what may be taken of it.
#[derive(Debug, Clone)]
pub struct Resources {
    /// The data directory's file system; `None` where it can't be asked.
    pub disk: Option<Room>,
    /// It is full, and sessions are not made.
    pub disk_is_full: bool,
    /// Bytes that are kept back on it now.
    pub disk_reserve_bytes: u64,
    /// Of the host, in bytes.
    pub memory_total_bytes: u64,
    /// That the host could give, in bytes.
    pub memory_available_bytes: u64,
    /// Memory of all sessions together, in bytes.
    pub sessions_memory_bytes: u64,
    /// Their cap.
    pub sessions_memory_max_bytes: u64,
    pub sessions_max: u64,
    /// Of one session.
    pub ceilings: Ceilings,
}

/// Reads them. Blocks, but for a moment only.
pub(crate) fn resources(host: &Host) -> Resources {
    let config = &host.config;
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    Resources {
        disk: Room::of(&config.data_dir).ok(),
        disk_is_full: host.reserve.full().is_some(),
        disk_reserve_bytes: host.reserve.bytes(),
        memory_total_bytes: of_meminfo(&memory, "MemTotal:"),
        memory_available_bytes: of_meminfo(&memory, "MemAvailable:"),
        sessions_memory_bytes: host.cgroups.usage_of_all().memory_bytes,
        sessions_memory_max_bytes: host.memory_max_bytes,
        sessions_max: config.max_sessions as u64,
        ceilings: config.ceilings.clone(),
    }
}

fn of_meminfo(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_that_holds_it() {
        let mut all = Distribution::default();
        for ms in [1, 10, 11, 700_000] {
            all.add(Duration::from_millis(ms));
        }
        let counts: Vec<u64> = all.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(all.count(), 4);
    }

    #[test]
    fn meminfo_is_in_kib() {
        assert_eq!(of_meminfo("MemTotal:  2 kB\nMemAvailable:    1 kB\n", "MemAvailable:"), 1024);
    }
}
