//! Images: named stacks of read-only layers, from archives that nobody vouches for and from recipes
//! of our own.
//!
//! Invariant: whatever an archive says, nothing outside of its layer's directory is touched
//! (`unpack`), a layer's name is the digest of what is in it (`tree`), and every image ends in a top
//! layer of ours that the jail can rely on (`entries`).

mod accounts;
mod archive;
mod cancel;
mod entries;
mod kind;
pub(crate) mod store;
pub(crate) mod tree;
mod unpack;

#[cfg(test)]
mod test;

use std::collections::BTreeMap;
use std::io;

pub use cancel::Cancel;
pub use kind::Kind;
use rustix::io::Errno;
use sandkasten_types::{ImageName, Timestamp};
use serde::{Deserialize, Serialize};
pub use store::Store;

/// Images that `sandkasten image build` can make: the names of all recipes.
pub(crate) const RECIPES: [&str; 2] = ["base", "python"];

/// The command that makes a missing image.
#[must_use]
pub fn way_to_make(name: &str) -> String {
    match RECIPES.contains(&name) {
        true => format!("sandkasten image build {name}"),
        false => format!("sandkasten image import FILE --name {name}"),
    }
}

/// SHA-256 of a layer, as 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(pub(crate) String);

impl Digest {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An image's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub name: ImageName,
    /// Lowest first; the last is our own top layer.
    pub layers: Vec<Digest>,
    pub config: ImageConfig,
    /// Bytes of all layers on disk.
    pub size_bytes: u64,
    pub created_at: Timestamp,
}

/// What an image says about how it is run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// In order; a later entry of a name wins.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    #[serde(default)]
    pub workdir: Option<String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// What was given in place of a root file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    pub kind: Kind,
    /// It was in gzip.
    pub zipped: bool,
}

impl std::fmt::Display for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.kind, if self.zipped { ", in gzip" } else { "" })
    }
}

/// Why an image operation failed. The texts name entries of the archive, never a host path.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("image not found: {0}")]
    NotFound(ImageName),
    /// A session has one of its layers.
    #[error("image in use: {0}")]
    InUse(ImageName),
    /// What was given is no root file system that we take.
    #[error("invalid image: {0}")]
    Invalid(String),
    /// It is no tar of a root file system at all, but this.
    #[error("invalid image: it is no root file system as tar or tar.gz: it is {0}")]
    NotRootfs(Given),
    #[error("no space left for the image")]
    NoSpace,
    /// A recipe could not be built.
    #[error("image build: {0}")]
    Build(String),
    #[error("image: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for ImageError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}
