//! The program that becomes PID 1 of each session, as `build.rs` made it.

/// A static ELF binary of its own; it shares no memory with the daemon.
pub(crate) static INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandkasten-init"));
