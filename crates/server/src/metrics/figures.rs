//! Figures that are read when `/metrics` is asked for: the engine's, and the process's own.

use std::fmt::Error;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};
use sandkasten_engine::{Counts, Distribution, Engine, Resources, Room};
use sandkasten_types::limits;
use sandkasten_types::session::Status;

use crate::budget::Budget;
use crate::error::wire_name;

/// What sessions do and what they may take.
#[derive(Debug)]
pub(crate) struct OfEngine {
    pub(crate) engine: Engine,
    pub(crate) budget: Budget,
}

impl Collector for OfEngine {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut page = Page(encoder);
        write_sessions(&mut page, &self.engine.counts())?;
        write_resources(&mut page, &self.engine.resources())?;
        let held = limits::BODIES_IN_MEMORY_MAX - self.budget.free_bytes();
        page.gauge("http_body_bytes", "Bodies and answers in memory", held as u64)?;
        let most = limits::BODIES_IN_MEMORY_MAX as u64;
        page.gauge("http_body_max_bytes", "The most of them", most)?;
        page.gauge("http_connections_max", "The most connections", limits::CONNECTIONS_MAX as u64)
    }
}

fn write_sessions(page: &mut Page<'_>, counts: &Counts) -> Result<(), Error> {
    let by_status = |all: &[(Status, u64)]| -> Vec<_> {
        all.iter().map(|(status, count)| ([("status", status.as_str())], *count)).collect()
    };
    let (sessions, ends) = (by_status(&counts.sessions), by_status(&counts.session_ends));
    let creates: Vec<_> =
        counts.creates.iter().map(|(end, count)| ([("result", end.as_str())], *count)).collect();
    page.gauges("sessions", "Sessions by status, ended ones for 24 h", &sessions)?;
    page.counter("sessions_created", "Sessions made", counts.sessions_created)?;
    page.counters("session_ends", "How sessions ended", &ends)?;
    page.counters("session_creates", "How creates ended", &creates)?;
    let made = [(NO_LABELS, counts.create_seconds.clone())];
    page.histograms("session_create_duration_seconds", "Of creates that made one", &made)?;
    page.counter("orphans_removed", "Lost host objects removed", counts.orphans_removed)?;
    page.gauge("execs_running", "Commands that run", counts.execs_running)?;
    page.gauge("execs_queued", "Commands that wait", counts.execs_queued)?;
    let finished: Vec<_> = counts
        .run_ends
        .iter()
        .map(|((kind, reason), count)| {
            let labels = [("kind", kind.as_str().to_owned()), ("exit_reason", wire_name(reason))];
            (labels, *count)
        })
        .collect();
    page.counters("execs_finished", "Commands and processes that ended", &finished)?;
    let seconds: Vec<_> = counts
        .run_seconds
        .iter()
        .map(|(kind, all)| ([("kind", kind.as_str())], all.clone()))
        .collect();
    page.histograms("exec_duration_seconds", "How long they ran", &seconds)?;
    let granted = counts.memory_limits_bytes;
    page.gauge("sessions_memory_limit_bytes", "Sum of their limits", granted)
}

fn write_resources(page: &mut Page<'_>, host: &Resources) -> Result<(), Error> {
    if let Some(disk) = &host.disk {
        write_disk(page, disk)?;
    }
    page.gauge("disk_full", "1 while sessions are refused for it", host.disk_is_full.into())?;
    page.gauge("disk_reserve_bytes", "Kept back, 0 when given up", host.disk_reserve_bytes)?;
    page.gauge("host_memory_bytes", "Memory of the host", host.memory_total_bytes)?;
    let available = host.memory_available_bytes;
    page.gauge("host_memory_available_bytes", "What it could give", available)?;
    page.gauge("sessions_memory_bytes", "Used by all sessions", host.sessions_memory_bytes)?;
    let cap = host.sessions_memory_max_bytes;
    page.gauge("sessions_memory_max_bytes", "The cap over all sessions", cap)?;
    page.gauge("sessions_max", "Sessions that may live at once", host.sessions_max)?;
    let ceilings = &host.ceilings;
    page.gauge_f64("session_cpu_max_cores", "Ceiling of one session", ceilings.cpu)?;
    let memory = ceilings.memory_mb.saturating_mul(1 << 20);
    page.gauge("session_memory_max_bytes", "Ceiling of one session", memory)?;
    page.gauge("session_pids_max", "Ceiling of one session", ceilings.pids)?;
    match ceilings.disk_mb {
        Some(mb) => {
            let bytes = mb.saturating_mul(1 << 20);
            page.gauge("session_disk_max_bytes", "Ceiling of one session", bytes)
        }
        None => Ok(()),
    }
}

fn write_disk(page: &mut Page<'_>, disk: &Room) -> Result<(), Error> {
    page.gauge("disk_bytes", "File system of the data directory", disk.total_bytes)?;
    page.gauge("disk_free_bytes", "Free on it", disk.free_bytes)?;
    page.gauge("disk_inodes", "Inodes on it", disk.inodes)?;
    page.gauge("disk_inodes_free", "Free inodes on it", disk.inodes_free)
}

/// The standard figures of a process, under their standard names.
#[derive(Debug)]
pub(crate) struct OfProcess;

impl Collector for OfProcess {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut page = Page(encoder);
        if let Some(usage) = Process::read() {
            let cpu = usage.cpu_seconds;
            page.counter_f64("process_cpu_seconds", "User and system CPU time", cpu)?;
            let start = usage.start_seconds;
            page.gauge_f64("process_start_time_seconds", "Start since the epoch", start)?;
            page.gauge("process_resident_memory_bytes", "Resident memory", usage.resident_bytes)?;
            page.gauge("process_virtual_memory_bytes", "Virtual memory", usage.virtual_bytes)?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is that of the directory itself.
            let count = (open.count() as u64).saturating_sub(1);
            page.gauge("process_open_fds", "Open descriptors", count)?;
        }
        match getrlimit(Resource::Nofile).current {
            Some(most) => page.gauge("process_max_fds", "The most descriptors", most),
            None => Ok(()),
        }
    }
}

/// What `/proc/self/stat` says.
#[derive(Debug)]
struct Process {
    cpu_seconds: f64,
    /// Since 1970-01-01 UTC.
    start_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
}

impl Process {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let host = fs::read_to_string("/proc/stat").ok()?;
        let boot = host.lines().find_map(|line| line.strip_prefix("btime "))?;
        Self::of(&stat, boot.trim().parse().ok()?)
    }

    /// `boot`: when the host started, in seconds since the epoch.
    fn of(stat: &str, boot: u32) -> Option<Self> {
        // The second field, the name, may have spaces and parentheses: count from its end.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        let seconds = |ticks: u64| float(ticks) / float(clock_ticks_per_second());
        Some(Self {
            cpu_seconds: seconds(number(14)? + number(15)?),
            start_seconds: f64::from(boot) + seconds(number(22)?),
            virtual_bytes: number(23)?,
            resident_bytes: number(24)?.saturating_mul(page_size() as u64),
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people: 2^53 is far beyond them")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Writes one family after the other.
struct Page<'a>(DescriptorEncoder<'a>);

/// Of a family with one member.
const NO_LABELS: [(&str, &str); 0] = [];

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn gauge_f64(&mut self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> Result<(), Error> {
        let mut one = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        one.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn counter_f64(&mut self, name: &str, help: &str, value: f64) -> Result<(), Error> {
        let mut one = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        one.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        all: &[(L, u64)],
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in all {
            let value = i64::try_from(*value).unwrap_or(i64::MAX);
            family.encode_family(labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        all: &[(L, u64)],
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in all {
            family.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
        }
        Ok(())
    }

    fn histograms<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        all: &[(L, Distribution)],
    ) -> Result<(), Error> {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, one) in all {
            let (sum, count) = (one.sum_seconds, one.count());
            let mut histogram = family.encode_family(labels)?;
            histogram.encode_histogram::<NoLabelSet>(sum, count, &one.buckets, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_process_is_read_behind_its_name() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194304 1 0 0 0 100 50 0 0 20 0 5 0 1000 8192 3 0";
        let found = Process::of(stat, 1_000_000).unwrap();
        let ticks = float(clock_ticks_per_second());
        assert!((found.cpu_seconds - 150.0 / ticks).abs() < 1e-9);
        assert!((found.start_seconds - (1_000_000.0 + 1000.0 / ticks)).abs() < 1e-9);
        assert_eq!((found.virtual_bytes, found.resident_bytes), (8192, 3 * page_size() as u64));
    }
}
