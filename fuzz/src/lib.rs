//! What the fuzz targets hold the code to. `cargo xtask test fuzz` runs them.
//!
//! Invariant: each function here takes any bytes and returns; a property that does not hold is a
//! panic. The code under test is the product's own: the protocol as a crate, and parts of the engine
//! and of init, which are private there, by their files.

pub mod cleaner;
pub mod cuts;
pub mod dump;
pub mod frames;

/// Parts of init.
#[path = "../../crates/init/src/line.rs"]
#[allow(dead_code, reason = "only a part of it is under test")]
mod line;
#[path = "../../crates/init/src/state.rs"]
#[allow(dead_code, reason = "only a part of it is under test")]
mod state;

/// A part of the engine.
#[path = "../../crates/engine/src/output/mod.rs"]
#[allow(dead_code, reason = "only a part of it is under test")]
mod output;
