//! What a worker does and says: one [`Job`], then [`Item`]s until the last.
//!
//! A worker is a process of init's making, with the ids of a user for good. Its frames are as those of
//! init, [`WORK_BYTES_MAX`] bytes at most, on a socket of its own; what it says is hostile input.

use serde::{Deserialize, Serialize};

use crate::message::{Bytes, FileFault, whole};

/// Bytes of a frame of a worker, or to one, its length not counted.
pub const WORK_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of one [`Item::Data`].
pub const WORK_DATA_BYTES_MAX: usize = 256 * 1024;

/// A worker that has nothing to tell says so at least this often, in milliseconds.
pub const WORK_PULSE_MS: u64 = 2000;

/// Workers that a session has at once, and those of them that may watch.
pub const WORKERS_MAX: usize = 16;
pub const WATCHES_MAX: usize = 8;

/// Directories that one watch follows.
pub const WATCH_DIRS_MAX: usize = 8192;

/// What is done to a tree of files. Paths are absolute or relative to `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Job {
    /// The entries of a directory, `depth` levels deep, and no more than `limit`: [`Item::Entry`].
    List {
        path: Bytes,
        depth: u32,
        limit: u64,
    },
    /// What lies below `path` and matches: [`Item::Path`].
    Glob {
        pattern: Bytes,
        path: Bytes,
        limit: u64,
    },
    /// Lines that match in the files below `path`, or in that file: [`Item::Match`].
    Grep {
        path: Bytes,
        search: Search,
    },
    /// What changes in a directory, until the socket closes: [`Item::Event`].
    Watch {
        path: Bytes,
        recursive: bool,
    },
    Copy {
        from: Bytes,
        to: Bytes,
        recursive: bool,
        overwrite: bool,
    },
    RemoveTree {
        path: Bytes,
    },
    ChmodTree {
        path: Bytes,
        mode: u32,
    },
    /// A tar stream of what is there: [`Item::Data`].
    Pack {
        path: Bytes,
    },
    /// Makes what a tar stream has, in a directory that is made where it is missing. The engine sends
    /// [`Item::Data`]; an empty one is the end. [`Item::Unpacked`] tells how much was made.
    Unpack {
        path: Bytes,
        /// The stream is packed with gzip.
        gzip: bool,
    },
}

impl Job {
    /// What the job is about: of a copy, what is copied.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        match self {
            Self::List { path, .. }
            | Self::Glob { path, .. }
            | Self::Grep { path, .. }
            | Self::Watch { path, .. }
            | Self::Copy { from: path, .. }
            | Self::RemoveTree { path }
            | Self::ChmodTree { path, .. }
            | Self::Pack { path }
            | Self::Unpack { path, .. } => path,
        }
    }
}

/// What is searched for in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    /// A regular expression.
    pub pattern: String,
    /// Globs of the files that are searched, all where there is none.
    pub include: Vec<String>,
    pub ignore_case: bool,
    /// Lines that are told before and after each match.
    pub context: u32,
    pub limit: u64,
}

/// What a worker says. [`Done`](Item::Done) or [`Failed`](Item::Failed) is the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    Entry(Entry),
    /// Relative to the directory that was asked for.
    Path(#[serde(with = "whole")] Bytes),
    Match(Match),
    Event(Event),
    Data(#[serde(with = "whole")] Bytes),
    /// So many entries of an archive were made.
    Unpacked {
        entries: u64,
    },
    /// It is at work and has nothing to tell yet.
    Alive,
    Done {
        /// There is more than was told.
        truncated: bool,
    },
    Failed {
        fault: FileFault,
        /// What it is about; empty: what was asked for.
        path: Bytes,
    },
}

/// What kind of file something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Device,
}

/// Facts about a file, as the box has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub kind: Kind,
    pub size: u64,
    /// Permission bits alone.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds and nanoseconds since 1970-01-01 UTC.
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    pub ino: u64,
    pub dev: u64,
    /// Of a link.
    pub target: Option<Bytes>,
}

/// An entry of a directory, or of one below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Relative to the listed directory.
    pub path: Bytes,
    pub meta: Meta,
}

/// A line that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Match {
    /// Relative to the directory that is searched; empty where a file is.
    pub path: Bytes,
    /// From 1.
    pub line: u64,
    /// Without its end; cut where it is very long.
    pub text: Bytes,
    pub before: Vec<Bytes>,
    pub after: Vec<Bytes>,
}

/// Something has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub change: Change,
    /// Relative to the watched directory.
    pub path: Bytes,
    /// What was moved was here.
    pub from: Option<Bytes>,
    pub kind: Kind,
}

/// How something has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// The watch is set: what happens from now on is told.
    Ready,
    Created,
    Modified,
    Removed,
    Moved,
    /// Some changes are lost: look at everything again.
    Overflow,
}
