//! The recipes, embedded in the binary: an image can be built from any folder.

use sandkasten_types::ImageName;
use sha2::{Digest as _, Sha256};

use super::{EPOCH, failed};
use crate::image::{Digest, ImageConfig, ImageError};

/// Changes whenever the same recipe comes to give another layer.
const FORMAT: u32 = 1;

macro_rules! recipe_file {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../images/", $name))
    };
}

pub(super) const BASE_PACKAGES: &str = recipe_file!("base/packages.txt");
pub(super) const BASE_CUSTOMIZE: &str = recipe_file!("base/customize.sh");
pub(super) const BASE_DPKG: &str = recipe_file!("base/dpkg.cfg");
const BASE_CONFIG: &str = recipe_file!("base/image.json");
pub(super) const PYTHON_PACKAGES: &str = recipe_file!("python/packages.txt");
pub(super) const PYTHON_REQUIREMENTS: &str = recipe_file!("python/requirements.txt");
pub(super) const PYTHON_INSTALL: &str = recipe_file!("python/install.sh");
const PYTHON_CONFIG: &str = recipe_file!("python/image.json");

/// The images that we build ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipe {
    /// Debian 13 with a shell, git and curl.
    Base,
    /// Base with Python, pip, uv and packages for data.
    Python,
}

impl Recipe {
    #[cfg(test)]
    const ALL: [Self; 2] = [Self::Base, Self::Python];

    /// The name of its image.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Python => "python",
        }
    }

    pub(super) fn image_name(self) -> Result<ImageName, ImageError> {
        self.name().parse().map_err(|err| failed(format!("{err}")))
    }

    pub(super) fn config(self) -> Result<ImageConfig, ImageError> {
        let text = match self {
            Self::Base => BASE_CONFIG,
            Self::Python => PYTHON_CONFIG,
        };
        serde_json::from_str(text).map_err(|err| failed(format!("image.json: {err}")))
    }

    /// Names the layer in the cache: all that it is made from, the layer below included.
    pub(super) fn key(self, below: Option<&Digest>) -> String {
        let files: &[&str] = match self {
            Self::Base => &[BASE_PACKAGES, BASE_CUSTOMIZE, BASE_DPKG],
            Self::Python => &[PYTHON_PACKAGES, PYTHON_REQUIREMENTS, PYTHON_INSTALL],
        };
        let mut hash = Sha256::new();
        let below = below.map_or("", Digest::as_str);
        hash.update(format!("{FORMAT} {EPOCH} {} {below}", std::env::consts::ARCH));
        for file in files {
            hash.update(format!("\n{}\n{file}", file.len()));
        }
        let hex: String = hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect();
        format!("{}-{hex}", self.name())
    }
}

/// Lines of a list, without blank ones.
pub(super) fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().map(str::trim).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn errors_know_all_recipes() {
        assert_eq!(Recipe::ALL.map(|recipe| recipe.name()), crate::image::RECIPES);
    }

    #[test]
    fn recipes_are_whole() {
        for recipe in [Recipe::Base, Recipe::Python] {
            recipe.config().unwrap();
            recipe.image_name().unwrap();
        }
        assert!(names(BASE_PACKAGES).count() > 8);
        for line in names(PYTHON_REQUIREMENTS).filter(|line| !line.starts_with('#')) {
            assert!(line.contains("==") && line.contains(" --hash=sha256:"), "{line}");
        }
    }

    #[test]
    fn a_layer_depends_on_the_one_below() {
        let below = Digest("0".repeat(64));
        assert_ne!(Recipe::Python.key(None), Recipe::Python.key(Some(&below)));
        assert_ne!(Recipe::Base.key(None), Recipe::Python.key(None));
    }
}
