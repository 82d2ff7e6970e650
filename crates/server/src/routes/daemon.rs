//! The daemon itself: is it well, what does it count, what does it speak.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::limits::BODIES_IN_MEMORY_MAX;
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::{Answer, App, ok};
use crate::edge::JSON;
use crate::openapi::{self, OpenApiDocument};

/// `{"status":"ok"}`, or `ready`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// `ok`, or `ready`.
    status: String,
}

/// Says that the daemon lives. Needs no key.
#[utoipa::path(get, path = "/healthz", tag = "daemon", operation_id = "healthz", security(()), responses(
    (status = 200, description = "Done", body = Health),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn healthz() -> Answer<Health> {
    ok(Health { status: "ok".into() })
}

/// Says that the daemon takes requests; 503 while it stops. Needs no key.
#[utoipa::path(get, path = "/readyz", tag = "daemon", operation_id = "readyz", security(()), responses(
    (status = 200, description = "Done", body = Health),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn readyz() -> Answer<Health> {
    // While the daemon stops, the edge answers before this.
    ok(Health { status: "ready".into() })
}

/// Counts for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "daemon", operation_id = "metrics", responses(
    (status = 200, description = "Done", content_type = "application/openmetrics-text", body = String),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let held = BODIES_IN_MEMORY_MAX - app.budget.free_bytes();
    let text = app.metrics.text(&app.engine.counts(), held as u64);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response()
}

/// This document. Needs no key.
#[utoipa::path(get, path = "/openapi.json", tag = "daemon", operation_id = "openapi", security(()), responses(
    (status = 200, description = "Done", body = OpenApiDocument),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn document() -> Response {
    ([JSON], openapi::text()).into_response()
}
