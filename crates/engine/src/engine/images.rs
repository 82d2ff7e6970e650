//! Images as the engine's callers see them: what is in the store, and which sessions have it.

use std::sync::Arc;

use sandkasten_types::ImageName;
use sandkasten_types::image::Image as Shown;

use crate::engine::Engine;
use crate::error::Error;
use crate::host::Host;
use crate::image::{Digest, Image, ImageError};

impl Engine {
    /// The images of this daemon, by name.
    ///
    /// # Errors
    /// Where they can't be read.
    pub async fn list_images(&self) -> Result<Vec<Shown>, Error> {
        let images = on_disk(self.host(), |host| host.images.list()).await?;
        Ok(images.into_iter().map(|image| self.shown(image)).collect())
    }

    /// One image.
    ///
    /// # Errors
    /// [`Error::ImageNotFound`].
    pub async fn image(&self, name: &ImageName) -> Result<Shown, Error> {
        let which = name.clone();
        let image = on_disk(self.host(), move |host| host.images.get(&which)).await?;
        Ok(self.shown(image))
    }

    /// Removes an image that no session has. Its layers go with it, unless another image has them.
    ///
    /// # Errors
    /// [`Error::ImageNotFound`], [`Error::Conflict`] while a session has it.
    pub async fn remove_image(&self, name: &ImageName) -> Result<(), Error> {
        self.check_stopping()?;
        let count = self.image(name).await?.active_session_count;
        if count > 0 {
            let has = if count == 1 {
                "1 session has it".into()
            } else {
                format!("{count} sessions have it")
            };
            return Err(Error::Conflict(format!("image in use: {name}: {has}")));
        }
        let sessions = self.host().live.all();
        let layers: Vec<Digest> =
            sessions.iter().flat_map(|session| session.spec.layers.clone()).collect();
        let which = name.clone();
        on_disk(self.host(), move |host| host.images.remove(&which, &layers)).await
    }

    fn shown(&self, image: Image) -> Shown {
        let host = self.host();
        let of_it = host.live.all().into_iter().filter(|session| session.spec.image == image.name);
        let is_default = image.name.as_str() == host.config.default_image;
        Shown {
            active_session_count: of_it.count() as u64,
            layers: image.layers.iter().map(|layer| layer.as_str().to_owned()).collect(),
            size_bytes: image.size_bytes,
            created_at: image.created_at,
            env_keys: image.config.env.into_iter().map(|(name, _)| name).collect(),
            labels: image.config.labels,
            is_default,
            name: image.name,
        }
    }
}

async fn on_disk<T: Send + 'static>(
    host: &Arc<Host>,
    work: impl FnOnce(&Host) -> Result<T, ImageError> + Send + 'static,
) -> Result<T, Error> {
    let host = Arc::clone(host);
    let done = tokio::task::spawn_blocking(move || work(&host)).await;
    done.map_err(|error| Error::internal("a blocking task", error))?.map_err(Error::from)
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Self {
        match error {
            ImageError::NotFound(name) => Self::ImageNotFound(name),
            ImageError::InUse(name) => {
                Self::Conflict(format!("image in use: {name}: a session has a layer of it"))
            }
            ImageError::NoSpace => Self::NoSpace("no space left for images".into()),
            ImageError::Invalid(_)
            | ImageError::NotRootfs(_)
            | ImageError::Build(_)
            | ImageError::Io(_) => Self::internal("images", error),
        }
    }
}
