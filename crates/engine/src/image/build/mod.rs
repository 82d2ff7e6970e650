//! Builds the images of our own recipes. (Signatures only; the body lands next.)

use std::path::PathBuf;

use sandkasten_jail::launcher::Launcher;

use super::{Image, ImageError, Store};

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
