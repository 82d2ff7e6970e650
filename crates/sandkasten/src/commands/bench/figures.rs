//! Samples and their percentiles.

use std::time::Duration;

use serde_json::{Value, json};

/// The order of the tiers in reports. New ones are added here.
const TIERS: [&str; 18] = [
    "cold",
    "create",
    "first_exec",
    "exec",
    "stream",
    "program",
    "process",
    "destroy",
    "healthz",
    "above_healthz",
    "write_64",
    "read_64",
    "write_1k",
    "read_1k",
    "json_write_64",
    "json_read_64",
    "json_write_1k",
    "json_read_1k",
];

/// Times by tier.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples(Vec<(&'static str, Duration)>);

/// One tier's figures, in milliseconds.
#[derive(Debug, PartialEq)]
pub(super) struct Tier {
    name: &'static str,
    sorted: Vec<f64>,
}

impl Samples {
    pub(super) fn add(&mut self, tier: &'static str, time: Duration) {
        self.0.push((tier, time));
    }

    pub(super) fn tiers(&self) -> Vec<Tier> {
        TIERS.iter().map(|name| self.tier(name)).filter(|tier| !tier.sorted.is_empty()).collect()
    }

    fn tier(&self, name: &'static str) -> Tier {
        let of_tier = self.0.iter().filter(|(tier, _)| *tier == name);
        let mut sorted: Vec<f64> = of_tier.map(|(_, time)| time.as_secs_f64() * 1000.0).collect();
        sorted.sort_by(f64::total_cmp);
        Tier { name, sorted }
    }
}

impl Tier {
    /// The sample that `percent` of all are not above (nearest rank).
    fn percentile(&self, percent: usize) -> f64 {
        let rank = (self.sorted.len() * percent).div_ceil(100).max(1);
        self.sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    pub(super) fn value(&self) -> Value {
        json!({
            "tier": self.name, "n": self.sorted.len(),
            "p50": rounded(self.percentile(50)), "p95": rounded(self.percentile(95)),
            "p99": rounded(self.percentile(99)), "min": rounded(self.percentile(0)),
            "max": rounded(self.percentile(100)),
        })
    }

    pub(super) fn row(&self) -> Vec<String> {
        let ms = |percent| format!("{:.3}", self.percentile(percent));
        let n = self.sorted.len().to_string();
        vec![self.name.to_owned(), n, ms(50), ms(95), ms(99), ms(0), ms(100)]
    }
}

/// Microseconds are as fine as a client's clock means anything.
pub(super) fn rounded(ms: f64) -> f64 {
    (ms * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut samples = Samples::default();
        for ms in (1..=100).rev() {
            samples.add("exec", Duration::from_millis(ms));
        }
        let tiers = samples.tiers();
        let found = tiers[0].value();
        assert_eq!(tiers.len(), 1);
        assert_eq!(
            (&found["n"], &found["p50"], &found["p95"]),
            (&json!(100), &json!(50.0), &json!(95.0))
        );
        assert_eq!(
            (&found["p99"], &found["min"], &found["max"]),
            (&json!(99.0), &json!(1.0), &json!(100.0))
        );
    }
}
