//! `GET /docs`: the API document for people. A page of three files in the binary; it asks for
//! `/openapi.json` and nothing else, and its policy holds it to that. Its links are relative to `/docs`, so
//! that they hold behind a proxy that adds a prefix.

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY};

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

pub(crate) const PAGE: &str = include_str!("../docs/index.html");
pub(crate) const SCRIPT: &str = include_str!("../docs/script.js");
pub(crate) const STYLE: &str = include_str!("../docs/style.css");

/// This document as a page for people. Needs no key.
#[utoipa::path(get, path = "/docs", tag = "daemon", operation_id = "docs", security(()), responses(
    (status = 200, description = "The page", content_type = "text/html", body = String),
))]
pub(crate) async fn page() -> Response {
    file("text/html; charset=utf-8", PAGE)
}

/// The script of the page. Needs no key.
#[utoipa::path(get, path = "/docs/script.js", tag = "daemon", operation_id = "docs_script", security(()), responses(
    (status = 200, description = "The script", content_type = "text/javascript", body = String),
))]
pub(crate) async fn script() -> Response {
    file("text/javascript; charset=utf-8", SCRIPT)
}

/// The style sheet of the page. Needs no key.
#[utoipa::path(get, path = "/docs/style.css", tag = "daemon", operation_id = "docs_style", security(()), responses(
    (status = 200, description = "The style sheet", content_type = "text/css", body = String),
))]
pub(crate) async fn style() -> Response {
    file("text/css; charset=utf-8", STYLE)
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, text).into_response()
}
