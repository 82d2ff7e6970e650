//! Points in time as the API writes them: RFC 3339 in UTC with `Z`.

use std::fmt;

use jiff::SignedDuration;
use serde::{Deserialize, Serialize};

/// A point in time (UTC). Serialised as RFC 3339 with `Z` and microseconds at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(jiff::Timestamp);

impl Timestamp {
    #[must_use]
    pub fn now() -> Self {
        Self(jiff::Timestamp::now())
    }

    /// Milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn unix_ms(self) -> i64 {
        self.0.as_millisecond()
    }

    /// The time that is `ms` milliseconds after 1970-01-01 UTC, the nearest that can be held.
    #[must_use]
    pub fn from_unix_ms(ms: i64) -> Self {
        Self(jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::MAX))
    }

    /// The time `seconds` later, the last that can be held where there is none.
    #[must_use]
    pub fn plus_seconds(self, seconds: u64) -> Self {
        let step = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
        Self(self.0.checked_add(step).unwrap_or(jiff::Timestamp::MAX))
    }
}

/// A file's time in RFC 3339 with nanoseconds, the nearest that can be written.
#[must_use]
pub fn rfc3339_nanos(seconds: i64, nanos: u32) -> String {
    let end = if seconds < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
    let nanos = i32::try_from(nanos).unwrap_or(0);
    format!("{:.9}", jiff::Timestamp::new(seconds, nanos).unwrap_or(end))
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.0)
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> Self {
        time.to_string()
    }
}

impl TryFrom<String> for Timestamp {
    type Error = jiff::Error;

    fn try_from(text: String) -> Result<Self, jiff::Error> {
        text.parse().map(Self)
    }
}

impl utoipa::PartialSchema for Timestamp {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("RFC 3339 in UTC with `Z` and microseconds."))
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .into()
    }
}

impl utoipa::ToSchema for Timestamp {}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn is_written_in_utc_and_read_back() {
        let time = Timestamp::from_unix_ms(1_707_390_000_123);
        assert_eq!(time.to_string(), "2024-02-08T11:00:00.123000Z");
        assert_eq!(Timestamp::try_from(time.to_string()).unwrap(), time);
    }
}
