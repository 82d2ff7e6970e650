//! What is said of a request that has a field which nobody knows, and of numbers that are whole.

use std::fmt;

use serde::de::Expected as Expects;

/// What is said of a field that is none of `known`: the nearest one, where one is near.
#[must_use]
pub fn unknown_field(name: &str, known: &[&str]) -> String {
    unknown("field", name, known)
}

/// The same for anything that has a name; `noun` says what it is.
#[must_use]
pub fn unknown(noun: &str, name: &str, known: &[&str]) -> String {
    // A hostile name must not fill an error message.
    let shown: String = name.chars().take(80).collect();
    let shown = shown.escape_debug();
    match nearest(name, known) {
        Some(near) => format!("unknown {noun} `{shown}`; did you mean `{near}`?"),
        None => format!("unknown {noun} `{shown}`"),
    }
}

/// The one of `known` that was probably meant.
#[must_use]
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    const NEAR: f64 = 0.8;
    if name.len() > 80 {
        return None;
    }
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_");
    let asked = plain(name);
    let scored = known.iter().map(|one| {
        let one = plain(one);
        // A name of which the unit or the noun was left out: `memory` for `memory_mb`.
        let is_part = !asked.is_empty()
            && (one.starts_with(&format!("{asked}_")) || asked.starts_with(&format!("{one}_")));
        // One letter too many, too few, another one, or two that changed places.
        let is_slip = asked.len() > 2 && strsim::osa_distance(&asked, &one) == 1;
        if is_part || is_slip { 1.0 } else { strsim::jaro_winkler(&asked, &one) }
    });
    let best = scored.zip(known).max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= NEAR).then_some(*best.1)
}

/// A number that is whole, whatever it was written as: `30000.0` is 30000.
#[must_use]
pub fn whole(number: f64) -> Option<i64> {
    // Beyond it not every whole number is one of these.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let is_whole = number.fract() == 0.0 && number.abs() <= EXACT;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole, and of 53 bits")]
    is_whole.then_some(number as i64)
}

/// What a visitor expects, in its own words.
pub(crate) struct Expected<'a, T: Expects>(pub(crate) &'a T);

impl<T: Expects> fmt::Display for Expected<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Expects::fmt(self.0, f)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_nearest_name_is_told() {
        let limits = ["cpu", "memory_mb", "pids", "disk_mb"];
        for (asked, near) in [
            ("memory", "memory_mb"),
            ("mem_mb", "memory_mb"),
            ("memoryMb", "memory_mb"),
            ("cpus", "cpu"),
            ("CPU", "cpu"),
            ("pid", "pids"),
            ("disk", "disk_mb"),
            ("cup", "cpu"),
        ] {
            assert_eq!(nearest(asked, &limits), Some(near), "{asked}");
        }
        for asked in ["", "x", "zzz", "colour", &"cpu".repeat(40)] {
            assert_eq!(nearest(asked, &limits), None, "{asked}");
        }
        assert_eq!(
            unknown_field("memory", &limits),
            "unknown field `memory`; did you mean `memory_mb`?"
        );
        assert_eq!(unknown_field("a\nb", &[]), "unknown field `a\\nb`");
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_fraction() {
        assert_eq!((whole(30000.0), whole(-1.0), whole(-0.0)), (Some(30000), Some(-1), Some(0)));
        for other in [1.5, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(whole(other), None, "{other}");
        }
    }
}
