//! The nouns: ids, requests, answers, error codes and limits that every other crate shares.
//!
//! Invariant: a value from outside is parsed once, here, into a type that can't hold a bad value
//! ([`SessionId`], [`WorkspaceId`], [`ImageName`], [`ExecId`],
//! [`ProcessId`]); inner code takes the type and never
//! checks again. This crate does no I/O and must not know any other crate of ours.

pub mod attach;
pub mod base64;
pub mod error;
pub mod exec;
pub mod files;
pub mod ids;
pub mod image;
pub mod info;
pub mod limits;
pub mod process;
pub mod session;
pub mod strict;
pub mod time;
pub mod workspace;

pub use base64::Base64;
pub use error::ErrorCode;
pub use ids::{ExecId, ImageName, InvalidId, ProcessId, SessionId, WorkspaceId};
pub use time::Timestamp;
