//! Images: named stacks of read-only layers. (Signatures only; the bodies land next.)

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use sandkasten_jail::launcher::Launcher;
use sandkasten_types::ImageName;
use serde::{Deserialize, Serialize};

/// The images of one data directory. All calls block.
#[derive(Debug)]
pub struct Store;

/// SHA-256 of a layer, as 64 lower-case hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(String);

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
    #[error("no space left for the image")]
    NoSpace,
    /// A recipe could not be built.
    #[error("image build: {0}")]
    Build(String),
    #[error("image: {0}")]
    Io(#[from] io::Error),
}

/// The images that we build ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipe {
    Base,
    Python,
}

/// Where and with what an image is built.
#[derive(Debug)]
pub struct BuildEnv {
    /// Downloads and built layers are kept here.
    pub cache_dir: PathBuf,
    /// As the daemon's: for claims of uid ranges by the box that installs packages.
    pub run_dir: PathBuf,
    /// Starts that box.
    pub launcher: Launcher,
    /// Make the layers anew, from the kept downloads where there are any.
    pub rebuild: bool,
}

/// Builds a recipe (and what it stands on) into the store, or takes it from the cache.
///
/// # Errors
/// [`ImageError::Build`] with the last lines of what failed.
pub async fn build(
    _store: &Store,
    _recipe: Recipe,
    _env: BuildEnv,
    _progress: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Image, ImageError> {
    Err(ImageError::Build("not there yet".into()))
}

impl Store {
    /// # Errors
    /// Where the directories can't be made.
    pub fn open(_data_dir: &Path) -> io::Result<Self> {
        Ok(Self)
    }

    /// # Errors
    /// [`ImageError::NotFound`] where there is none of that name.
    pub fn get(&self, name: &ImageName) -> Result<Image, ImageError> {
        Err(ImageError::NotFound(name.clone()))
    }

    /// All images, by name.
    ///
    /// # Errors
    /// Where the records can't be read.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        Ok(Vec::new())
    }

    /// Makes an image of a root file system: tar or tar.gz, untrusted. One of that name is replaced.
    ///
    /// # Errors
    /// [`ImageError::Invalid`] where the archive is not taken; nothing is left of it then.
    pub fn import(
        &self,
        _archive: impl Read,
        name: &ImageName,
        _config: ImageConfig,
    ) -> Result<Image, ImageError> {
        Err(ImageError::NotFound(name.clone()))
    }

    /// Removes the name. Its layers go with [`collect_garbage`](Self::collect_garbage).
    ///
    /// # Errors
    /// [`ImageError::NotFound`]; [`ImageError::InUse`] where a layer in use would be left without a name.
    pub fn remove(&self, name: &ImageName, _in_use: &[Digest]) -> Result<(), ImageError> {
        Err(ImageError::NotFound(name.clone()))
    }

    /// Moves layers that no image and no session has to the trash; says how many.
    ///
    /// # Errors
    /// Where the records can't be read.
    pub fn collect_garbage(&self, _in_use: &[Digest]) -> Result<usize, ImageError> {
        Ok(0)
    }

    /// Directories of the image's layers, lowest first.
    ///
    /// # Errors
    /// Where a layer can't be opened.
    pub fn open_layers(&self, _image: &Image) -> io::Result<Vec<OwnedFd>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
