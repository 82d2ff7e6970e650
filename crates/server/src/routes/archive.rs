//! Trees of files as tar archives, out of a session or a workspace and into one.
//!
//! Both ways are streams: what the client does not take is not packed, and what is not unpacked yet is
//! not read. An archive that breaks off is no whole body: the client sees the connection break.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use hyper::HeaderMap;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use sandkasten_engine::work::{Item, Job};
use sandkasten_engine::{Place, Worker};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::files::Unpacked;
use sandkasten_types::limits::BODY_SILENCE_SECONDS;
use tokio::time::{Instant, sleep_until};

use crate::app::{Answer, App, SessionPath, WorkspacePath, ok};
use crate::body::Reader;
use crate::error::ApiError;
use crate::query::Query;

/// How long a client that sends an archive may be silent.
const SILENCE: Duration = Duration::from_secs(BODY_SILENCE_SECONDS);
const TAR: HeaderValue = HeaderValue::from_static("application/x-tar");

/// Packs a directory, or a file, of a session.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/archive", tag = "files", operation_id = "pack_archive",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "A tar stream", body = String, content_type = "application/x-tar"),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn pack(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
) -> Result<Response, ApiError> {
    pack_in(&app, Place::Session(id), &query).await
}

/// Packs a directory, or a file, of a workspace.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs/archive", tag = "workspaces",
    operation_id = "pack_workspace_archive",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "A tar stream", body = String, content_type = "application/x-tar"),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_pack(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
) -> Result<Response, ApiError> {
    pack_in(&app, Place::Workspace(id), &query).await
}

/// Unpacks a tar archive into a directory of a session, which is made where it is missing.
#[utoipa::path(put, path = "/v1/sessions/{id}/fs/archive", tag = "files",
    operation_id = "unpack_archive",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("user" = Option<String>, Query),
    ),
    request_body(content = String, content_type = "application/x-tar",
        description = "A tar stream, packed with gzip where `Content-Type` is `application/gzip`"),
    responses(
        (status = 200, description = "All of it was unpacked", body = Unpacked),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn unpack(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Unpacked>, ApiError> {
    unpack_in(&app, Place::Session(id), &query, (&headers, body)).await
}

/// Unpacks a tar archive into a directory of a workspace; both are made where they are missing.
#[utoipa::path(put, path = "/v1/workspaces/{id}/fs/archive", tag = "workspaces",
    operation_id = "unpack_workspace_archive",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("user" = Option<String>, Query),
    ),
    request_body(content = String, content_type = "application/x-tar",
        description = "A tar stream, packed with gzip where `Content-Type` is `application/gzip`"),
    responses(
        (status = 200, description = "All of it was unpacked", body = Unpacked),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_unpack(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Unpacked>, ApiError> {
    unpack_in(&app, Place::Workspace(id), &query, (&headers, body)).await
}

async fn pack_in(app: &App, place: Place, query: &Query) -> Result<Response, ApiError> {
    let (path, user) = (query.path()?, app.file_user(&place, query).await?);
    let mut worker = app.engine.work(place, Job::Pack { path }, user).await?;
    // What can't be packed is told before the first byte, so that the answer can still be an error.
    let first = next_data(&mut worker).await?;
    let mut response = Response::new(Body::from_stream(stream(worker, first)));
    response.headers_mut().insert(CONTENT_TYPE, TAR);
    Ok(response)
}

/// `next` and all that follows.
fn stream(worker: Worker, next: Option<Bytes>) -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures_util::stream::unfold((Some(worker), next), async |(worker, next)| {
        let mut worker = worker?;
        let data = match next {
            Some(first) => Ok(Some(first)),
            None => next_data(&mut worker).await,
        };
        match data {
            Ok(Some(data)) => Some((Ok(data), (Some(worker), None))),
            Ok(None) => None,
            Err(error) => {
                let cause = error.internal.unwrap_or(error.message);
                let cause = cause.escape_debug();
                tracing::warn!(%cause, "an archive breaks off");
                Some((Err(io::Error::other("broken off")), (None, None)))
            }
        }
    })
}

async fn next_data(worker: &mut Worker) -> Result<Option<Bytes>, ApiError> {
    match worker.next().await? {
        None => Ok(None),
        Some(Item::Data(data)) => Ok(Some(data.into())),
        Some(_) => Err(ApiError::internal("an item that is no data")),
    }
}

async fn unpack_in(
    app: &App,
    place: Place,
    query: &Query,
    (headers, body): (&HeaderMap, Body),
) -> Result<Answer<Unpacked>, ApiError> {
    let (path, gzip) = (query.path()?, is_gzip(headers)?);
    let user = app.file_user(&place, query).await?;
    let job = Job::Unpack { path, gzip };
    let mut worker = app.engine.work(place, job, user).await?;
    let mut reader = Reader::at_any_pace(body);
    let (mut entries, mut is_whole, mut heard) = (0, false, Instant::now());
    loop {
        tokio::select! {
            // First what the worker says: signs of life, or why it takes no more.
            biased;
            item = worker.next() => match item? {
                Some(Item::Unpacked { entries: made }) => entries = made,
                Some(_) => return Err(ApiError::internal("an item that is no count")),
                None => return Ok(ok(Unpacked { ok: true, entries })),
            },
            data = reader.next(), if !is_whole => {
                let data = data?.unwrap_or_default();
                is_whole = data.is_empty();
                // Nothing is the end.
                worker.send(&data).await?;
                heard = Instant::now();
            }
            () = sleep_until(heard + SILENCE), if !is_whole => {
                return Err(ApiError::invalid("the body came too slowly"));
            }
        }
    }
}

/// Whether the archive is packed with gzip, and with nothing else.
fn is_gzip(headers: &HeaderMap) -> Result<bool, ApiError> {
    let kind = one(headers, CONTENT_TYPE)?.split(';').next().unwrap_or_default().trim();
    let by_type =
        ["application/gzip", "application/x-gzip"].iter().any(|g| kind.eq_ignore_ascii_case(g));
    let by_coding = match one(headers, CONTENT_ENCODING)?.trim() {
        "" | "identity" => false,
        coding if ["gzip", "x-gzip"].iter().any(|g| coding.eq_ignore_ascii_case(g)) => true,
        _ => {
            let text = "`Content-Encoding` may be gzip or identity; send the archive as it is";
            return Err(ApiError::invalid(text));
        }
    };
    if by_type && by_coding {
        let text =
            "gzip in `Content-Type` and in `Content-Encoding`; the archive may be packed once";
        return Err(ApiError::invalid(text));
    }
    Ok(by_type || by_coding)
}

fn one(headers: &HeaderMap, name: HeaderName) -> Result<&str, ApiError> {
    let mut values = headers.get_all(&name).iter();
    let first = values.next().map_or(Some(""), |value| value.to_str().ok());
    match (first, values.next()) {
        (Some(text), None) => Ok(text),
        _ => Err(ApiError::invalid(format!("`{name}` is malformed or there twice"))),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn gzip_is_told_by_type_or_coding() {
        let gzip = |kind: &'static str, coding: &'static str| {
            let mut headers = HeaderMap::new();
            for (name, text) in [(CONTENT_TYPE, kind), (CONTENT_ENCODING, coding)] {
                if !text.is_empty() {
                    headers.insert(name, HeaderValue::from_static(text));
                }
            }
            is_gzip(&headers).ok()
        };
        assert_eq!(gzip("", ""), Some(false));
        assert_eq!(gzip("application/x-tar", "identity"), Some(false));
        assert_eq!(gzip("application/gzip", ""), Some(true));
        assert_eq!(gzip("Application/X-Gzip; a=b", "identity"), Some(true));
        assert_eq!(gzip("application/x-tar", "GZIP"), Some(true));
        assert_eq!(gzip("application/gzip", "gzip"), None);
        for coding in ["br", "zstd", "gzip, gzip", "deflate"] {
            assert_eq!(gzip("", coding), None, "{coding}");
        }
    }
}
