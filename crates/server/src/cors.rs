//! Which web pages may call. None, unless the operator names some.

use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderValue, ORIGIN, VARY,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, If-Range, \
     Last-Event-ID, Range, X-Request-Id",
);
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Accept-Ranges, Content-Range, ETag, Retry-After, WWW-Authenticate, X-Next-Cursor, X-Request-Id",
);
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

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn words(list: &HeaderValue) -> BTreeSet<&str> {
        list.to_str().unwrap().split(", ").collect()
    }

    /// All operations, by their methods.
    fn operations(document: &Value) -> impl Iterator<Item = (&String, &Value)> {
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap())
    }

    #[test]
    fn pages_may_use_all_that_the_document_has() {
        let document = crate::openapi::openapi();
        let methods: BTreeSet<String> =
            operations(&document).map(|(method, _)| method.to_uppercase()).collect();
        assert_eq!(methods, words(&METHODS).into_iter().map(str::to_owned).collect());

        let resolved = |value: &Value| match value["$ref"].as_str() {
            Some(reference) => document.pointer(&reference[1..]).unwrap().clone(),
            None => value.clone(),
        };
        for (method, operation) in operations(&document) {
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let parameter = resolved(parameter);
                let name = parameter["name"].as_str().unwrap();
                let is_header = parameter["in"] == "header";
                assert!(!is_header || words(&HEADERS).contains(name), "{method}: {name}");
            }
            for response in operation["responses"].as_object().unwrap().values() {
                let response = resolved(response);
                for name in response["headers"].as_object().into_iter().flat_map(|map| map.keys()) {
                    assert!(words(&EXPOSED).contains(name.as_str()), "{method}: {name}");
                }
            }
        }
    }
}
