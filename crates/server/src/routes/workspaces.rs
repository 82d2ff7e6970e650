//! Workspaces, and their files without a session.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use hyper::{HeaderMap, StatusCode};
use sandkasten_engine::Place;
use sandkasten_types::error::ErrorBody;
use sandkasten_types::files::{Entries, FileContent, Uploaded, WriteFile};
use sandkasten_types::limits::BODY_BYTES_MAX;
use sandkasten_types::session::Ok as Done;
use sandkasten_types::workspace::{PutWorkspace, Workspace, Workspaces};

use super::files::{Upload, read_file, write_file};
use crate::app::{Answer, App, WorkspacePath, ok};
use crate::error::ApiError;
use crate::json::{Json, refuse_coding};
use crate::openapi::UploadForm;
use crate::page::Page;
use crate::query::{Query, has_all};

/// All workspaces, by id.
#[utoipa::path(get, path = "/v1/workspaces", tag = "workspaces", operation_id = "list_workspaces",
    params(
        ("label" = Option<Vec<String>>, Query),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Workspaces),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(app): State<App>,
    query: Query,
) -> Result<Answer<Workspaces>, ApiError> {
    let (labels, page) = (query.labels()?, Page::of(&query)?);
    let mut all = app.engine.workspaces().await?;
    all.retain(|one| has_all(&one.labels, &labels));
    let (workspaces, next_cursor) = page.cut(all, |one| one.id.clone())?;
    Ok(ok(Workspaces { workspaces, next_cursor }))
}

/// One workspace.
#[utoipa::path(get, path = "/v1/workspaces/{id}", tag = "workspaces", operation_id = "get_workspace",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Workspace),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
) -> Result<Answer<Workspace>, ApiError> {
    Ok(ok(app.engine.workspace(&id).await?))
}

/// Makes a workspace, or changes the one there is. What the request does not name stays.
#[utoipa::path(put, path = "/v1/workspaces/{id}", tag = "workspaces", operation_id = "put_workspace",
    params(("id" = String, Path)), request_body = PutWorkspace,
    responses(
        (status = 201, description = "Made", body = Workspace),
        (status = 200, description = "Changed", body = Workspace),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn put(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    body: Json<PutWorkspace, BODY_BYTES_MAX>,
) -> Result<Answer<Workspace>, ApiError> {
    let (workspace, is_new) = app.engine.put_workspace(&id, body.value).await?;
    Ok(Answer(if is_new { StatusCode::CREATED } else { StatusCode::OK }, workspace))
}

/// Removes a workspace and all its files.
#[utoipa::path(delete, path = "/v1/workspaces/{id}", tag = "workspaces", operation_id = "delete_workspace",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
) -> Result<Answer<Done>, ApiError> {
    app.engine.delete_workspace(&id).await?;
    Ok(ok(Done::TRUE))
}

/// The entries of a directory.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs", tag = "workspaces", operation_id = "list_workspace_directory",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Entries),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn entries(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
) -> Result<Answer<Entries>, ApiError> {
    let path = query.optional_path()?.filter(|path| !path.is_empty());
    let path = path.unwrap_or_else(|| b".".to_vec());
    let user = app.file_user(&Place::Workspace(id.clone()), &query).await?;
    Ok(ok(Entries { entries: app.engine.list_workspace_dir(&id, &path, user).await? }))
}

/// Writes a file, whole or not at all. The workspace is made on its first write.
#[utoipa::path(post, path = "/v1/workspaces/{id}/fs/write", tag = "workspaces", operation_id = "write_workspace_file",
    params(("id" = String, Path), ("user" = Option<String>, Query)), request_body = WriteFile,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn write(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Done>, ApiError> {
    refuse_coding(&headers)?;
    write_file(&app, Place::Workspace(id), &query, body).await
}

/// Reads a file.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs/read", tag = "workspaces", operation_id = "read_workspace_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("max_bytes" = Option<u64>, Query, maximum = 67_108_864),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = FileContent),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn read(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
) -> Result<Response, ApiError> {
    read_file(&app, Place::Workspace(id), &query).await
}

/// Writes the files of a form into a directory. The workspace is made on its first write.
#[utoipa::path(post, path = "/v1/workspaces/{id}/fs/upload", tag = "workspaces", operation_id = "upload_workspace_files",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body(content = UploadForm, content_type = "multipart/form-data"),
    responses(
        (status = 200, description = "Done", body = Uploaded),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn upload(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Uploaded>, ApiError> {
    let place = Place::Workspace(id);
    let user = app.file_user(&place, &query).await?;
    Upload::new(&app, place, user).run(&headers, body).await
}
