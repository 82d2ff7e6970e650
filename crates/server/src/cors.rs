//! Which web pages may call. None, unless the operator names some.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID, Range, X-Request-Id",
);
const EXPOSED: HeaderValue =
    HeaderValue::from_static("ETag, Retry-After, X-Next-Cursor, X-Request-Id");
const MAX_AGE_SECONDS: HeaderValue = HeaderValue::from_static("600");

/// The origins that may call; empty is off.
#[derive(Debug)]
pub(crate) struct Cors {
    origins: Vec<String>,
}

impl Cors {
    pub(crate) fn new(origins: &[String]) -> Self {
        Self { origins: origins.to_vec() }
    }

    pub(crate) fn allows(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|known| known == "*" || known.as_bytes() == origin.as_bytes())
    }

    /// Whether a request asks what it may do, as browsers do before the real one and without a key.
    pub(crate) fn is_preflight(&self, request: &Parts) -> bool {
        !self.origins.is_empty()
            && request.method == Method::OPTIONS
            && request.headers.contains_key(ORIGIN)
            && request.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }

    pub(crate) fn preflight_headers(headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_SECONDS);
    }

    /// Marks an answer for the page that asked, where it is a known one.
    pub(crate) fn mark(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        headers.append(VARY, HeaderValue::from_static("Origin"));
        if let Some(origin) = origin.filter(|origin| self.allows(origin)) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }
}
