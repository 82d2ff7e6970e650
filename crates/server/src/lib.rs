//! HTTP: routes, auth, limits, event streams, OpenAPI, metrics, and the one table error → status.
//!
//! Must not know what a sandbox does: a handler parses a request into a value of `types`, asks the
//! engine, and writes down the answer.
//!
//! ```text
//! accept ──> connection (one task) ──> hyper ──> edge ──> router ──> routes/NOUN ──> engine
//!               wire: bytes, deadlines            auth, ids, errors, log
//! ```
//!
//! Read `edge.rs` first: what every request goes through. Invariants: nothing but `/healthz`, `/readyz`,
//! `/openapi.json` and the page `/docs` with its two files is answered without the key; memory for bodies
//! and answers is taken from one budget; a client that goes away drops its handler, and with it what the
//! handler waits for.

mod accept;
mod answer;
mod app;
mod auth;
mod body;
mod budget;
mod conditions;
mod connection;
mod content;
mod cors;
mod edge;
mod edits;
mod error;
mod exchange;
mod json;
#[cfg(test)]
mod loopback;
mod metrics;
mod multipart;
mod openapi;
mod own_wake;
mod page;
mod query;
mod request_id;
mod routes;
mod sse;
mod strict;
mod traffic;
mod websocket;
mod wire;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sandkasten_engine::Engine;
use sandkasten_types::info::Guarantees;
use sandkasten_types::limits::{BODIES_IN_MEMORY_MAX, LAST_ANSWERS_MS};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Inner};
pub use crate::auth::ApiKey;
use crate::auth::Guard;
use crate::budget::Budget;
use crate::cors::Cors;
use crate::edge::Edge;
use crate::metrics::{Metrics, OfEngine, Tags};
pub use crate::openapi::openapi;

/// What the operator decides about the HTTP side.
#[derive(Debug, Clone)]
pub struct Config {
    /// `None` is allowed on loopback addresses alone; the caller sees to that.
    pub api_key: Option<ApiKey>,
    /// Web pages that may call, as `https://host[:port]`; empty is none.
    pub cors_origins: Vec<String>,
    /// Bytes of all files of one upload.
    pub max_upload_bytes: u64,
    /// Bytes of a file read where the request names none; the engine is told the same.
    pub max_read_bytes: u64,
    /// Of the program.
    pub version: String,
    /// Promises of the isolation, as they were tried at the start.
    pub guarantees: Guarantees,
}

/// What is left of a server that takes no more connections.
#[derive(Debug)]
pub struct Rest(Arc<Metrics>);

impl Rest {
    /// Waits for the answers of requests that the engine's end has ended, for a moment. Says how many
    /// requests still run.
    pub async fn wait(self) -> u64 {
        let limit = Duration::from_millis(LAST_ANSWERS_MS);
        drop(tokio::time::timeout(limit, self.0.no_request_runs()).await);
        self.0.running()
    }
}

/// Serves the API on `listener` until `shutdown` is cancelled and the requests that run have ended,
/// [`DRAIN_MS`](sandkasten_types::limits::DRAIN_MS) at most. New requests get 503 meanwhile.
///
/// Requests that still run then are left to the runtime, not dropped: dropping one is a disconnect and
/// would cancel its command. Stop the engine next, which ends them, and then wait for the [`Rest`].
///
/// # Errors
/// Where the listener fails for good.
pub async fn serve(
    listener: TcpListener,
    engine: Engine,
    config: Config,
    shutdown: CancellationToken,
) -> io::Result<Rest> {
    let (router, document) = routes::router_and_document();
    let metrics = Arc::new(Metrics::new(Tags::of(&document)));
    let budget = Budget::new(BODIES_IN_MEMORY_MAX);
    metrics.collect(OfEngine { engine: engine.clone(), budget: budget.clone() });
    let guard = Guard::new(config.api_key.clone());
    let cors = Cors::new(&config.cors_origins);
    let draining = shutdown.clone();
    let app = App::new(Inner { engine, config, budget, metrics: Arc::clone(&metrics), draining });
    let router = router.with_state(app);
    let rest = Rest(Arc::clone(&metrics));
    let edge = Edge { router, guard, cors, metrics, draining: shutdown };
    accept::run(listener, Arc::new(edge)).await?;
    Ok(rest)
}
