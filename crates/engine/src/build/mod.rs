//! Builds the images of our own recipes.
//!
//! ```text
//!   base:    mmdebstrap (Debian's own scripts run on the host) ─> layer
//!   python:  packages and wheels, fetched ─> a box of base, without a network ─> its upper ─> layer
//! ```
//!
//! Invariant: no code of a package but Debian's own runs outside of a box; a layer depends on its
//! recipe and its downloads alone, not on the host or the clock, so two builds have one digest.
//!
//! Built layers lie in the cache folder under the hash of the recipe, so that a second data directory
//! gets them within seconds and without a network.

mod base;
mod cache;
mod debian;
mod host;
mod python;
mod recipe;
mod sandbox;

use std::path::PathBuf;

use sandkasten_jail::launcher::Launcher;

use self::cache::{Cache, Layer};
pub use self::recipe::Recipe;
use crate::image::store::LayerSource;
use crate::image::{Cancel, Image, ImageError, Store};

/// Every time in a built layer that is later becomes this one: 2026-01-01 in seconds since 1970.
const EPOCH: u32 = 1_767_225_600;

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
    /// Ends the work that does not await anything; the store has to have the same.
    pub cancel: Cancel,
}

/// Is told what happens, a line at a time.
type Progress<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// Builds a recipe (and what it stands on) into the store, or takes it from the cache.
///
/// Dropping the future ends what was begun and removes it; it returns when all of that is gone.
/// What does not await (packing a layer, putting it into the store) ends by [`BuildEnv::cancel`].
///
/// # Errors
/// [`ImageError::Build`] with the last lines of what failed.
pub async fn build(
    store: &Store,
    recipe: Recipe,
    env: BuildEnv,
    progress: impl Fn(&str) + Send + Sync + 'static,
) -> Result<Image, ImageError> {
    let progress = |line: &str| {
        if let Some(text) = worth_saying(line) {
            progress(text);
        }
    };
    let cache = Cache::open(&env.cache_dir, env.cancel.clone())?;
    let mut layers = Vec::new();
    if !env.rebuild {
        layers = cached(&cache, recipe)?;
    }
    if layers.is_empty() {
        let _lock = cache.lock().await?;
        // Another build may have made them while we waited.
        layers = if env.rebuild { Vec::new() } else { cached(&cache, recipe)? };
        if layers.is_empty() {
            layers = make(&cache, recipe, env, &progress).await?;
        }
    }
    progress(&format!("installing {}", recipe.name()));
    install(store, recipe, &layers)
}

/// The layers of a recipe, lowest first; none where one is missing.
fn cached(cache: &Cache, recipe: Recipe) -> Result<Vec<Layer>, ImageError> {
    let Some(base) = cache.find(&Recipe::Base.key(None))? else { return Ok(Vec::new()) };
    match recipe {
        Recipe::Base => Ok(vec![base]),
        Recipe::Python => {
            let python = cache.find(&recipe.key(Some(&base.digest)))?;
            Ok(python.map_or_else(Vec::new, |python| vec![base, python]))
        }
    }
}

async fn make(
    cache: &Cache,
    recipe: Recipe,
    env: BuildEnv,
    progress: Progress<'_>,
) -> Result<Vec<Layer>, ImageError> {
    let base = match cache.find(&Recipe::Base.key(None))? {
        // What is built anew is the recipe that was named, not what it stands on.
        Some(base) if recipe != Recipe::Base || !env.rebuild => base,
        _ => base::make(cache, progress).await?,
    };
    match recipe {
        Recipe::Base => Ok(vec![base]),
        Recipe::Python => {
            let python = python::make(cache, &base, env, progress).await?;
            Ok(vec![base, python])
        }
    }
}

/// Puts the layers into a store. Blocks for a second or two: nobody else uses the caller's thread.
fn install(store: &Store, recipe: Recipe, layers: &[Layer]) -> Result<Image, ImageError> {
    let mut files = Vec::new();
    for layer in layers {
        files.push(std::fs::File::open(&layer.tar)?);
    }
    let sources = layers
        .iter()
        .zip(&mut files)
        .map(|(layer, tar)| LayerSource { tar, digest: layer.digest.clone() });
    store.install(&recipe.image_name()?, sources.collect(), recipe.config()?)
}

/// What a person wants to see of the programs' lines; an error shows them all.
fn worth_saying(line: &str) -> Option<&str> {
    const NOISE: [&str; 9] = [
        "I: running --",
        "I: skipping ",
        "W: Download is performed unsandboxed",
        "Looking in links",
        "Processing ./wheels/",
        "Selecting previously unselected",
        "Preparing to unpack",
        "(Reading database",
        "Reading ",
    ];
    let line = line.trim();
    let is_noise = line.is_empty() || NOISE.iter().any(|start| line.starts_with(start));
    (!is_noise).then(|| line.strip_prefix("I: ").unwrap_or(line))
}

fn failed(text: impl Into<String>) -> ImageError {
    ImageError::Build(text.into())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn noise_is_not_said() {
        assert_eq!(worth_saying("I: installing packages..."), Some("installing packages..."));
        assert_eq!(worth_saying("I: running --setup-hook in shell: x"), None);
        assert_eq!(worth_saying("  "), None);
        assert_eq!(worth_saying("compiling"), Some("compiling"));
    }
}
