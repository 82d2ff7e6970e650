//! `/metrics`: counts alone. No label has an id, a name or a path of a client.

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use sandkasten_engine::Counts;
use tokio::sync::Notify;

/// Upper bounds in seconds: an exec may take ten minutes, a stat a tenth of a millisecond.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: String,
}

type Histograms = Family<RouteLabel, Histogram, fn() -> Histogram>;

/// Every figure of the daemon.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    seconds: Histograms,
    active: AtomicU64,
    active_gauge: Gauge,
    /// The last running request ended.
    idle: Notify,
    connections: Gauge,
    body_bytes: Gauge,
    sessions: Family<StatusLabel, Gauge>,
    sessions_created: Counter,
    execs_running: Gauge,
    execs_queued: Gauge,
    execs_finished: Counter,
    orphans_removed: Counter,
}

/// An open connection, counted.
#[derive(Debug)]
pub(crate) struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let buckets: fn() -> Histogram = || Histogram::new(BUCKETS);
        let mut metrics = Self {
            registry: Mutex::new(Registry::with_prefix("sandkasten")),
            requests: Family::default(),
            seconds: Family::new_with_constructor(buckets),
            active: AtomicU64::new(0),
            active_gauge: Gauge::default(),
            idle: Notify::new(),
            connections: Gauge::default(),
            body_bytes: Gauge::default(),
            sessions: Family::default(),
            sessions_created: Counter::default(),
            execs_running: Gauge::default(),
            execs_queued: Gauge::default(),
            execs_finished: Counter::default(),
            orphans_removed: Counter::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = self.registry.get_mut().unwrap_or_else(PoisonError::into_inner);
        let m = registry;
        m.register("http_requests", "Requests that ended", self.requests.clone());
        m.register("http_request_seconds", "Time to the last byte", self.seconds.clone());
        m.register("http_requests_active", "Requests that run", self.active_gauge.clone());
        m.register("http_connections", "Open connections", self.connections.clone());
        m.register("http_body_bytes", "Bodies and answers in memory", self.body_bytes.clone());
        m.register("sessions", "Sessions by status", self.sessions.clone());
        m.register("sessions_created", "Sessions made", self.sessions_created.clone());
        m.register("execs_running", "Commands that run", self.execs_running.clone());
        m.register("execs_queued", "Commands that wait", self.execs_queued.clone());
        m.register("execs_finished", "Commands that ended", self.execs_finished.clone());
        m.register("orphans_removed", "Lost host objects removed", self.orphans_removed.clone());
    }

    pub(crate) fn request_came(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
        self.active_gauge.inc();
    }

    pub(crate) fn request_left(&self) {
        self.active_gauge.dec();
        if self.active.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Returns once no request runs.
    pub(crate) async fn no_request_runs(&self) {
        loop {
            let idle = self.idle.notified();
            if self.active.load(Ordering::Relaxed) == 0 {
                return;
            }
            idle.await;
        }
    }

    pub(crate) fn request_ended(&self, method: &str, route: &str, status: u16, took: Duration) {
        let labels = RequestLabels { method: method.into(), route: route.into(), status };
        self.requests.get_or_create(&labels).inc();
        let label = RouteLabel { route: route.into() };
        self.seconds.get_or_create(&label).observe(took.as_secs_f64());
    }

    /// Counts a connection until the guard is dropped.
    pub(crate) fn connection_opened(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    /// The text of `/metrics` with the engine's counts of this moment.
    pub(crate) fn text(&self, counts: &Counts, body_bytes: u64) -> String {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.body_bytes.set(gauge(body_bytes));
        self.sessions.clear();
        for (status, count) in &counts.sessions {
            let label = StatusLabel { status: status.as_str().into() };
            self.sessions.get_or_create(&label).set(gauge(*count));
        }
        self.execs_running.set(gauge(counts.execs_running));
        self.execs_queued.set(gauge(counts.execs_queued));
        let store = |counter: &Counter, value| counter.inner().store(value, Ordering::Relaxed);
        store(&self.sessions_created, counts.sessions_created);
        store(&self.execs_finished, counts.execs_finished);
        store(&self.orphans_removed, counts.orphans_removed);
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = encode(&mut text, &registry) {
            tracing::error!(%error, "metrics not written");
        }
        text
    }
}
