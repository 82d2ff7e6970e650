//! Linux isolation: a printable [`Plan`] in, a running init out.
//!
//! ```text
//!   daemon ── Plan + fds ──> launcher ── clone3 ──> child: enter.rs ── exec ──> init (PID 1)
//!      ^                        │                     │
//!      └──── pidfd, pid ────────┘<── failing step ────┘
//! ```
//!
//! Everything here blocks, knows no session, image or HTTP, and asks the kernel directly. Invariants:
//! no payload instruction runs before every step of `enter.rs` has worked; nothing of a session ever
//! stands in the host's mount table; no untrusted tree is opened by a path string. `unsafe` lives in
//! `sys.rs` alone.

pub mod cgroup;
pub mod disk;
pub mod doctor;
pub mod fault;
pub mod launcher;
pub mod memfd;
pub mod path;
pub mod plan;
pub mod seccomp;
pub mod tree;

mod attempt;
mod bpf;
mod enter;
mod fork;
mod init_binary;
mod mountinfo;
mod root;
mod start_time;
mod step;
mod sys;
mod wire;

pub use cgroup::{Cgroup, CgroupError, CgroupFds, CgroupLimits, Cgroups, Events, Usage};
pub use enter::BOX_CAPABILITIES;
pub use launcher::{LaunchError, Launcher, Started};
pub use path::Beneath;
pub use plan::Plan;
pub use root::{MASKED_DIRECTORIES, MASKED_FILES, READ_ONLY_DIRECTORIES};
pub use seccomp::SeccompProfile;
pub use start_time::start_time;
