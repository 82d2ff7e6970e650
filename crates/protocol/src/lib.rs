//! The frames between the engine and the init of a session, and their limits.
//!
//! A frame is a little-endian `u32`, the length of what follows, and a postcard value: [`ToInit`] in
//! one direction, [`FromInit`] in the other. Each side treats what it receives as hostile: lengths
//! are checked before memory is taken, and a value that doesn't decode ends the connection.
//!
//! ```text
//!   engine                                   init
//!     | connects to the listening socket       |
//!     | -------- Attach { nonce } -----------> |
//!     | <------- Hello { nonce, … } ---------- |
//!     | -------- Exec, Cancel, Credit, File -> |
//!     | <------- Output, End, File ----------- |
//! ```
//!
//! A later connection replaces an earlier one: after a restart the engine connects again and finds
//! the session as it was. This crate does no I/O and must not know any other crate of ours.

mod frame;
mod message;

pub use frame::{Decoder, Fault, encode};
pub use message::*;

/// Version of everything in this crate. Both sides refuse another one.
pub const VERSION: u32 = 1;

/// Bytes of output in one [`FromInit::Output`].
pub const DATA_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a frame that init sends, its length not counted.
pub const FROM_INIT_BYTES_MAX: usize = DATA_BYTES_MAX + 16 * 1024;

/// Bytes of a frame that the engine sends: a command of 1 MiB with an environment beside it.
pub const TO_INIT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of output of one exec that init may have sent without a [`ToInit::Credit`] for them.
pub const WINDOW_BYTES: u64 = 1024 * 1024;

/// Descriptors that init is started with, beside 0, 1 and 2 (`/dev/null`).
pub mod fd {
    /// The listening control socket, `SOCK_STREAM`.
    pub const LISTENER: i32 = 3;
    /// A sealed memfd with a [`Config`](crate::Config) in postcard form.
    pub const CONFIG: i32 = 4;
    /// The directory that output is spooled to. It lies in no path of the box.
    pub const SPOOL: i32 = 5;
}

/// Ids inside a session, fixed for every image.
pub mod id {
    /// init's real uid and gid. Another than [`INIT`], so that neither box root nor the payload ever
    /// matches all of init's ids: prlimit(2), setpriority(2) and sched_setaffinity(2) ask for that.
    pub const INIT_REAL: u32 = 65_001;
    /// init's effective and saved uid and gid.
    pub const INIT: u32 = 65_000;
    /// The session user `sandbox`.
    pub const SANDBOX: u32 = 1000;
    pub const ROOT: u32 = 0;
}

/// Where init keeps FIFOs and long commands: a tmpfs of its own, mode 0711, owned by init.
pub const RUN_DIR: &str = "/.sandkasten";
