//! The daemon itself: is it well, what does it count, what does it speak.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use sandkasten_engine::{Config, WorkspacePolicy};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::info::{Feature, Info, InfoLimits, ResourceLimits};
use sandkasten_types::limits::{EXEC_TIMEOUT_MS_DEFAULT, TTL_SECONDS_MAX};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::{Answer, App, ok};
use crate::edge::JSON;
use crate::error::{ApiError, Special};
use crate::metrics::Format;
use crate::openapi::{self, OpenApiDocument};

/// `{"status":"ok"}`: the daemon lives.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    status: Alive,
}

/// What `/healthz` says.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Alive {
    Ok,
}

/// `{"status":"ready"}`: the daemon takes requests.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Readiness {
    /// Always `ready`; what is not ready is an error.
    status: Ready,
}

/// What `/readyz` says.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Ready {
    Ready,
}

/// Says that the daemon lives. Needs no key.
#[utoipa::path(get, path = "/healthz", tag = "daemon", operation_id = "healthz", security(()), responses(
    (status = 200, description = "Done", body = Health),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn healthz() -> Answer<Health> {
    ok(Health { status: Alive::Ok })
}

/// Says that the daemon takes requests; 503 while it stops, and while its disk is full. Needs no key.
#[utoipa::path(get, path = "/readyz", tag = "daemon", operation_id = "readyz", security(()), responses(
    (status = 200, description = "Done", body = Readiness),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Answer<Readiness>, ApiError> {
    // While the daemon stops, the edge answers before this.
    match app.engine.disk_full() {
        None => Ok(ok(Readiness { status: Ready::Ready })),
        Some(room) => {
            let why = format!("disk full: {room}; no session is made, all else is served");
            Err(Special::DiskFull.error(why))
        }
    }
}

/// Figures for Prometheus: OpenMetrics 1.0 for clients that ask for it by `Accept`, else text 0.0.4.
#[utoipa::path(get, path = "/metrics", tag = "daemon", operation_id = "metrics", responses(
    (status = 200, description = "Done", content(
        (String = "text/plain"),
        (String = "application/openmetrics-text"),
    )),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn metrics(State(app): State<App>, headers: HeaderMap) -> Response {
    let format = Format::of(&headers);
    ([(CONTENT_TYPE, format.content_type())], app.metrics.text(format)).into_response()
}

/// This document. Needs no key.
#[utoipa::path(get, path = "/openapi.json", tag = "daemon", operation_id = "openapi", security(()), responses(
    (status = 200, description = "Done", body = OpenApiDocument),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn document() -> Response {
    ([JSON], openapi::text()).into_response()
}

/// What this daemon is, what it offers, and what its host can and can't give.
#[utoipa::path(get, path = "/v1/info", tag = "daemon", operation_id = "info", responses(
    (status = 200, description = "Done", body = Info),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn info(State(app): State<App>) -> Answer<Info> {
    let config = app.engine.config();
    let mut features = vec![Feature::Exec, Feature::Processes, Feature::Files];
    if config.workspaces != WorkspacePolicy::Off {
        features.push(Feature::Workspaces);
    }
    if app.engine.limits_disk() {
        features.push(Feature::DiskLimits);
    }
    ok(Info {
        version: app.config.version.clone(),
        node: config.node.clone(),
        features,
        default_image: config.default_image.clone(),
        limits: limits(config, app.config.max_upload_bytes),
        guarantees: app.config.guarantees.clone(),
    })
}

fn limits(config: &Config, max_upload_bytes: u64) -> InfoLimits {
    let (defaults, ceilings) = (&config.defaults, &config.ceilings);
    let ceilings = ResourceLimits {
        cpu: ceilings.cpu,
        memory_mb: ceilings.memory_mb,
        pids: ceilings.pids,
        disk_mb: ceilings.disk_mb,
    };
    InfoLimits {
        max_sessions: config.max_sessions as u64,
        session_ttl_seconds: config.session_ttl_seconds,
        max_ttl_seconds: TTL_SECONDS_MAX,
        exec_timeout_ms: EXEC_TIMEOUT_MS_DEFAULT.min(config.max_exec_timeout_ms),
        max_exec_timeout_ms: config.max_exec_timeout_ms,
        max_output_bytes: config.max_output_bytes,
        max_read_bytes: config.max_read_bytes,
        max_upload_bytes,
        // As a session gets them that asks for nothing.
        defaults: ResourceLimits {
            cpu: defaults.cpu.min(ceilings.cpu),
            memory_mb: defaults.memory_mb.min(ceilings.memory_mb),
            pids: defaults.pids.min(ceilings.pids),
            disk_mb: ceilings.disk_mb,
        },
        ceilings,
    }
}
