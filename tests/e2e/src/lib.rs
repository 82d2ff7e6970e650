//! The harness of the end-to-end tests: a real daemon, real sessions, and a close look at the host.
//!
//! Invariant: a test states a promise in a few lines and leaves the host as it found it. It needs
//! root, runs in any order and beside others, and never repeats what failed.
//!
//! Suites are the targets below `tests/`; `cargo xtask test NAME` builds what they need, starts the
//! daemon that they share, and counts.

pub mod debian;
pub mod host;
pub mod http;
pub mod image;
pub mod lab;
pub mod leaks;
pub mod openapi;
pub mod recorder;
pub mod session;
pub mod skip;
pub mod sse;
pub mod terminal;
pub mod wait;
pub mod websocket;

pub use lab::{Binary, Lab};
pub use session::Session;
