//! `/metrics`: figures alone. No label has an id, a name or a path of a client, and no label has more
//! values than a page: requests are told apart by the tag of their route in the API's document.

mod figures;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::header::{ACCEPT, HeaderMap, HeaderValue};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{EncodeLabelSet, prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use sandkasten_types::ErrorCode;
use tokio::sync::Notify;
use utoipa::openapi::OpenApi;

use crate::error::code_name;
pub(crate) use figures::{OfEngine, OfProcess};

/// Upper bounds in seconds: a stat takes a tenth of a millisecond, a stream may take hours.
const BUCKETS: [f64; 5] = [0.005, 0.05, 0.5, 5.0, 60.0];
/// The label of requests that no route took.
const NO_ROUTE: &str = "none";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    tag: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TagLabel {
    tag: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: String,
}

type Histograms = Family<TagLabel, Histogram, fn() -> Histogram>;

/// The tag of each route, as the API's document has it.
#[derive(Debug, Default)]
pub(crate) struct Tags(HashMap<String, String>);

impl Tags {
    pub(crate) fn of(document: &OpenApi) -> Self {
        let mut tags = HashMap::new();
        for (path, item) in &document.paths.paths {
            let operations = [&item.get, &item.post, &item.put, &item.delete, &item.patch];
            let mut found = operations.into_iter().flatten().filter_map(|one| one.tags.as_ref());
            if let Some(tag) = found.find_map(|tags| tags.first()) {
                tags.insert(path.clone(), tag.clone());
            }
        }
        Self(tags)
    }

    fn tag(&self, route: &str) -> &str {
        self.0.get(route).map_or(NO_ROUTE, String::as_str)
    }
}

/// A request that is over.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) route: &'a str,
    pub(crate) status: u16,
    pub(crate) code: Option<ErrorCode>,
    pub(crate) client_left: bool,
    pub(crate) took: Duration,
}

/// How the figures are written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format, 0.0.4.
    Text,
}

impl Format {
    /// What a client takes. Who does not ask for OpenMetrics gets the text that everybody reads.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut open, mut plain) = (0, 0);
        for range in accepts.flat_map(|accept| accept.split(',')) {
            let (kind, weight) = media_range(range);
            match kind.as_str() {
                "application/openmetrics-text" => open = open.max(weight),
                "text/plain" | "text/*" | "*/*" => plain = plain.max(weight),
                _ => {}
            }
        }
        if open > 0 && open >= plain { Self::OpenMetrics } else { Self::Text }
    }

    pub(crate) fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        })
    }
}

/// The kind of a part of `Accept`, and its weight in thousandths.
fn media_range(range: &str) -> (String, u32) {
    let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
    let kind = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| part.strip_prefix("q=").map(thousandths));
    (kind, weight.unwrap_or(1000))
}

/// `0.5` is 500. What is no weight counts as one.
fn thousandths(text: &str) -> u32 {
    let Some((whole, rest)) = text.split_once('.') else {
        return if text == "0" { 0 } else { 1000 };
    };
    let digits = format!("{rest:0<3}");
    let part = digits.get(..3).and_then(|digits| digits.parse().ok()).unwrap_or(1000);
    if whole == "0" { part } else { 1000 }
}

/// Every figure of the daemon.
pub(crate) struct Metrics {
    registry: Mutex<Registry>,
    tags: Tags,
    requests: Family<RequestLabels, Counter>,
    seconds: Histograms,
    errors: Family<CodeLabel, Counter>,
    clients_left: Counter,
    active: AtomicU64,
    active_gauge: Gauge,
    /// The last running request ended.
    idle: Notify,
    connections: Gauge,
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
    pub(crate) fn new(tags: Tags) -> Self {
        let buckets: fn() -> Histogram = || Histogram::new(BUCKETS);
        let mut metrics = Self {
            registry: Mutex::default(),
            tags,
            requests: Family::default(),
            seconds: Family::new_with_constructor(buckets),
            errors: Family::default(),
            clients_left: Counter::default(),
            active: AtomicU64::new(0),
            active_gauge: Gauge::default(),
            idle: Notify::new(),
            connections: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = self.registry.get_mut().unwrap_or_else(PoisonError::into_inner);
        registry.register_collector(Box::new(OfProcess));
        let m = registry.sub_registry_with_prefix("sandkasten");
        let version = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        m.register("build", "The daemon's version", version);
        m.register("http_requests", "Requests that ended", self.requests.clone());
        m.register("http_request_duration_seconds", "Time to the last byte", self.seconds.clone());
        m.register("http_requests_active", "Requests that run", self.active_gauge.clone());
        m.register("http_connections", "Open connections", self.connections.clone());
        m.register(
            "http_clients_left",
            "Requests whose client left first",
            self.clients_left.clone(),
        );
        m.register("errors", "Errors by code, those in streams too", self.errors.clone());
    }

    /// Adds figures that are read when they are asked for.
    pub(crate) fn collect(&self, figures: impl Collector) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.sub_registry_with_prefix("sandkasten").register_collector(Box::new(figures));
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

    /// Requests that run.
    pub(crate) fn running(&self) -> u64 {
        self.active.load(Ordering::Relaxed)
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

    pub(crate) fn request_ended(&self, ended: &Ended<'_>) {
        let tag = self.tags.tag(ended.route).to_owned();
        let labels = RequestLabels { tag: tag.clone(), status: ended.status };
        self.requests.get_or_create(&labels).inc();
        self.seconds.get_or_create(&TagLabel { tag }).observe(ended.took.as_secs_f64());
        if let Some(code) = ended.code {
            self.errors.get_or_create(&CodeLabel { code: code_name(code) }).inc();
        }
        if ended.client_left {
            self.clients_left.inc();
        }
    }

    /// Counts a connection until the guard is dropped.
    pub(crate) fn connection_opened(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    /// The figures of this moment.
    pub(crate) fn text(&self, format: Format) -> String {
        let mut page = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let written = match format {
            Format::OpenMetrics => text::encode(&mut page, &registry),
            Format::Text => prometheus_text::encode(&mut page, &registry),
        };
        if let Err(error) = written {
            tracing::error!(%error, "metrics not written");
        }
        page
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn format(accept: &str) -> Format {
        let value = HeaderValue::from_str(accept).unwrap();
        Format::of(&HeaderMap::from_iter([(ACCEPT, value)]))
    }

    #[test]
    fn who_asks_for_open_metrics_gets_it() {
        assert_eq!(Format::of(&HeaderMap::new()), Format::Text);
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(format(prometheus), Format::OpenMetrics);
        assert_eq!(format("application/openmetrics-text"), Format::OpenMetrics);
        assert_eq!(format("Application/OpenMetrics-Text; Q=0.9, */*; q=0.1"), Format::OpenMetrics);
        for plain in [
            "*/*",
            "text/plain",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.2, text/plain;q=0.3",
            "application/json",
            "",
        ] {
            assert_eq!(format(plain), Format::Text, "{plain}");
        }
    }
}
