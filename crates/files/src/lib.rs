//! What is done to trees of files: listed, searched, watched, copied, removed, packed.
//!
//! ```text
//!   session:    init's worker, a process with the user's ids ─┐             ┌─> root: opens
//!                                                             ├─> run(job) ─┼─> walk: goes down
//!   workspace:  a thread of the daemon with such ids ─────────┘             └─> list, copy, …
//!                                                                   │
//!                                                   channel <───────┘ items as frames
//! ```
//!
//! Everything here blocks, and everything that it looks at may be changed by hostile code meanwhile.
//! Invariants: a path is resolved by the kernel with a limit on where it may lead ([`Root`]); below a
//! directory names are opened relative to its descriptor, one level at a time, and no link is
//! followed; nothing is opened that can block; nothing is opened on procfs, which shows each reader
//! something else. Rights are the kernel's to judge: who runs a job has the user's ids.
//!
//! Must not know: sessions, HTTP, tokio.

mod archive;
mod channel;
mod chmod;
mod copy;
mod done;
mod fault;
mod glob;
mod grep;
mod job;
mod list;
mod meta;
mod pattern;
mod remove;
mod root;
pub mod tar;
mod walk;
mod watch;

pub use channel::{Channel, Socket};
pub use done::Done;
pub use fault::{Failure, fault};
pub use job::run;
pub use meta::{identity, kind, meta};
pub use pattern::check;
pub use root::Root;
pub use walk::{Found, Step, Walk};

#[cfg(test)]
mod test;
