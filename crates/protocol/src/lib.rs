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
//!     | <------- Known, one a run ------------ |
//!     | -------- Begin, Stdin, Cancel, … ----> |
//!     | <------- Output, Begun, End ---------- |
//!     | -------- Credit, Settle, Replay -----> |
//!     | <------- Replayed -------------------- |
//! ```
//!
//! A *run* is a command of the shell or a program. init keeps what it wrote, as numbered events, and
//! what the engine has noted of it, so that both outlive the engine.
//!
//! A later connection replaces an earlier one: after a restart the engine connects again and finds
//! the session as it was. This crate does no I/O and must not know any other crate of ours.

mod frame;
mod identity;
mod message;
pub mod passwd;
pub mod work;

pub use frame::{Decoder, Fault, encode};
pub use identity::{Expect, Identity};
pub use message::*;

/// Version of everything in this crate. Both sides refuse another one.
pub const VERSION: u32 = 5;

/// Bytes of output, or of stdin, in one frame.
pub const DATA_BYTES_MAX: usize = 64 * 1024;

/// Bytes of a frame that init sends, its length not counted.
pub const FROM_INIT_BYTES_MAX: usize = 2 * DATA_BYTES_MAX;

/// Bytes of a frame that the engine sends: a command of 1 MiB with an environment beside it, or 2 MiB
/// of arguments.
pub const TO_INIT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of one [`Record`], and of the same once escaped for JSON in ASCII, six to a byte at worst.
pub const RECORD_BYTES_MAX: usize = 5376;
pub const RECORD_ESCAPED_MAX: usize = 7000;

/// What holding one [`Record`] costs beside its bytes.
pub const RECORD_COST: u64 = 64;

/// [Cost](Record::cost) of output of one run that init may have sent without a [`ToInit::Credit`].
pub const WINDOW_COST: u64 = 1024 * 1024;

/// Bytes of stdin of one run that may wait in init.
pub const STDIN_WINDOW_BYTES: u64 = 64 * 1024 * 1024;

/// Bytes that are kept of a run's output unless it asks for others.
pub const SPOOL_BYTES: u64 = 16 * 1024 * 1024;

/// Bytes that are kept of all runs of a session.
pub const SPOOL_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Runs that are kept after their end.
pub const KEPT_RUNS_MAX: usize = 1024;

/// Bytes of an engine's note on a run.
pub const NOTE_BYTES_MAX: usize = 4096;

/// Commands that wait for the shell, and their bytes. The engine must not send more.
pub const QUEUE_MAX: usize = 256;
pub const QUEUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Programs that run at once. The engine must not send more.
pub const PROGRAMS_MAX: usize = 1024;

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
