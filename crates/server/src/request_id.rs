//! The id that an answer, its error body and its log line share.

use std::fmt;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use sandkasten_types::ids::random_hex;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LEN_MAX: usize = 64;

/// 1 to 64 of `[A-Za-z0-9._-]`: safe in a header, a log line and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    /// A new one, unguessable where the kernel gives random bytes.
    pub(crate) fn new() -> Self {
        Self(random_hex().unwrap_or_else(|_| "unknown".into()).into())
    }

    /// The client's own where it is valid, else a new one.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
        match given {
            Some(text) if is_valid(text) => Self(text.into()),
            _ => Self::new(),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).unwrap_or(HeaderValue::from_static("unknown"))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_valid(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=LEN_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_a_valid_id_of_the_client_is_kept() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(text.as_bytes()).unwrap());
            RequestId::of(&headers)
        };
        assert_eq!(of("Job-7.a_b").as_str(), "Job-7.a_b");
        for bad in ["", "a b", "{\"a\":1}", "ä", "a\tb"] {
            assert_ne!(of(bad).as_str(), bad);
        }
        let long: &'static str = Box::leak("a".repeat(65).into_boxed_str());
        assert_ne!(of(long).as_str(), long);
    }
}
