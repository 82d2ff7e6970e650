//! What a session *is* over time: lifecycle, execs, files, leases, recovery, images, workspaces.
//!
//! ```text
//!   Engine ──> session::create ──> actor (one task a session) <──frames──> init
//!     │            │                 │
//!     │            └──> jail         └──> View: what everybody else may know
//!     ├──> db: what is meant to be        recovery: makes host and db agree, again and again
//!     └──> image, workspace: what lies on disk
//! ```
//!
//! Invariants: a row is written before the first thing that it stands for is made; a living session
//! is changed by its own task alone; everything on the host has a name computed from the session's id,
//! so that whoever finds it knows whose it is.
//!
//! Must not know HTTP, argv, the environment or a terminal.

pub mod build;
mod clock;
mod config;
mod db;
mod descriptor;
mod dirs;
mod disk;
mod engine;
mod error;
mod events;
mod exec;
mod figures;
mod filecall;
mod files;
mod folders;
mod host;
mod idempotency;
pub mod image;
mod lists;
mod output;
mod process;
mod raw;
mod reader;
mod recovery;
mod reserve;
mod session;
mod sizes;
mod trash;
mod uids;
mod worker;
pub mod workspace;
mod workspaces;

#[cfg(test)]
mod testing;

pub use config::{Ceilings, Config, Defaults, Durability, ShellPreference, WorkspacePolicy};
pub use engine::{Engine, empty_trash_of};
pub use error::{Ended, Error, FileFault, StartError};
pub use events::{EventsFrom, ExecEvents};
pub use exec::{ExecEvent, ExecHandle};
pub use figures::{Counts, CreateEnd, Distribution, Resources, RunKind};
pub use filecall::{FileRead, LastLink, Target};
pub use files::{CreateFile, FileWriter, Place, SMALL_BYTES_MAX};
pub use idempotency::IdempotencyKey;
pub use lists::{Limit, SessionFilter, SessionKey, SessionStatus};
pub use process::{
    Data, Form, Kept, Last, ProcessEvent, ProcessEvents, ProcessHandle, ProcessResult, Written,
};
pub use raw::{Etag, OpenFile, described, file_type};
pub use reader::Follow;
pub use reserve::make_room;
pub use sandkasten_jail::disk::Mechanism as DiskMechanism;
pub use sandkasten_jail::disk::room::Room;
pub use sandkasten_jail::seccomp::SeccompProfile;
pub use sandkasten_protocol::work;
pub use sandkasten_protocol::{Expect, FileUser, Parents};
pub use session::Encoding;
pub use worker::Worker;
