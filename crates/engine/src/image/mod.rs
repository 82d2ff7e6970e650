//! Images: named stacks of layers. (Signatures only; the store lands next.)

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use sandkasten_types::ImageName;

/// The images of one data directory.
#[derive(Debug)]
pub struct Store;

/// SHA-256 of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub String);

/// An image's record.
#[derive(Debug, Clone)]
pub struct Image {
    pub name: ImageName,
    /// Lowest first.
    pub layers: Vec<Digest>,
    pub config: ImageConfig,
}

/// What an image says about how it is run.
#[derive(Debug, Clone, Default)]
pub struct ImageConfig {
    pub env: Vec<(String, String)>,
    pub workdir: Option<String>,
    pub user: Option<String>,
    pub labels: BTreeMap<String, String>,
}

/// Why an image operation failed.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("image not found: {0}")]
    NotFound(ImageName),
    #[error("image: {0}")]
    Io(#[from] io::Error),
}

impl Store {
    /// # Errors
    /// Where the directories can't be made.
    pub fn open(_data_dir: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// # Errors
    /// [`ImageError::NotFound`] where there is none of that name.
    pub fn get(&self, name: &ImageName) -> Result<Image, ImageError> {
        Err(ImageError::NotFound(name.clone()))
    }

    /// Directories of the image's layers, lowest first.
    ///
    /// # Errors
    /// Where a layer can't be opened.
    pub fn open_layers(&self, _image: &Image) -> io::Result<Vec<OwnedFd>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
