//! Images: what sessions are made of.

use axum::extract::State;
use sandkasten_types::error::ErrorBody;
use sandkasten_types::image::{Image, Images};
use sandkasten_types::session::Ok as Done;

use crate::app::{Answer, App, ImagePath, ok};
use crate::error::ApiError;
use crate::page::Page;
use crate::query::{Query, has_all};

/// The images of this daemon, by name.
#[utoipa::path(get, path = "/v1/images", tag = "images", operation_id = "list_images",
    params(
        ("label" = Option<Vec<String>>, Query),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Images),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn list(State(app): State<App>, query: Query) -> Result<Answer<Images>, ApiError> {
    let (labels, page) = (query.labels()?, Page::of(&query)?);
    let mut all = app.engine.list_images().await?;
    all.retain(|one| has_all(&one.labels, &labels));
    let (images, next_cursor) = page.cut(all, |one| one.name.clone())?;
    Ok(ok(Images { images, next_cursor }))
}

/// One image.
#[utoipa::path(get, path = "/v1/images/{name}", tag = "images", operation_id = "get_image",
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Image),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(app): State<App>,
    ImagePath(name): ImagePath,
) -> Result<Answer<Image>, ApiError> {
    Ok(ok(app.engine.image(&name).await?))
}

/// Removes an image that no session has.
#[utoipa::path(delete, path = "/v1/images/{name}", tag = "images", operation_id = "delete_image",
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(app): State<App>,
    ImagePath(name): ImagePath,
) -> Result<Answer<Done>, ApiError> {
    app.engine.remove_image(&name).await?;
    Ok(ok(Done::TRUE))
}
