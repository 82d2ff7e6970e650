//! `GET /docs`: the API document for people. A page of three files in the binary; it asks for
//! `/openapi.json` and nothing else, and its policy holds it to that.

use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY};

const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// This document as a page for people. Needs no key.
#[utoipa::path(get, path = "/docs", tag = "daemon", operation_id = "docs", security(()), responses(
    (status = 200, description = "The page", content_type = "text/html", body = String),
))]
pub(crate) async fn page() -> Response {
    file("text/html; charset=utf-8", include_str!("../docs/index.html"))
}

/// The script of the page. Needs no key.
#[utoipa::path(get, path = "/docs/script.js", tag = "daemon", operation_id = "docs_script", security(()), responses(
    (status = 200, description = "The script", content_type = "text/javascript", body = String),
))]
pub(crate) async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("../docs/script.js"))
}

/// The style sheet of the page. Needs no key.
#[utoipa::path(get, path = "/docs/style.css", tag = "daemon", operation_id = "docs_style", security(()), responses(
    (status = 200, description = "The style sheet", content_type = "text/css", body = String),
))]
pub(crate) async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("../docs/style.css"))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, text).into_response()
}
