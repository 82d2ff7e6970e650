//! Files as they are: raw bytes of any length, facts, names, and exact edits; in a session or in a workspace.
//!
//! Bytes flow through two buffers a transfer, however long the file is. A read that finds less than the
//! length that was promised breaks the connection; a write that breaks off leaves nothing.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::join;
use futures_util::stream::unfold;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue,
};
use hyper::{Method, StatusCode};
use sandkasten_engine::work::Job;
use sandkasten_engine::{
    CreateFile, Error, Etag, Expect, FileFault, FileUser, LastLink, OpenFile, Parents, Place,
    SMALL_BYTES_MAX, Target,
};
use sandkasten_types::ErrorCode;
use sandkasten_types::error::ErrorBody;
use sandkasten_types::files::{
    ChangeMode, DirEntry, EditFile, Edited, MakeDirectory, MoveFile, Written,
};
use sandkasten_types::limits::BODY_BYTES_MAX;
use sandkasten_types::session::Ok as Done;
use tokio::task::JoinHandle;

use super::tree::finish;

use super::files::octal;
use crate::app::{Answer, App, SessionPath, WorkspacePath, ok};
use crate::body::Reader;
use crate::budget::Share;
use crate::conditions::{self, Part, Verdict};
use crate::edits;
use crate::error::{ApiError, Special};
use crate::json::{Json, refuse_coding};
use crate::query::{Query, field_path};

/// Bytes that are read or written at once. A transfer has two of them in memory.
const BUFFER_BYTES: usize = 1024 * 1024;
/// Pieces of a body that are written at once: each may hold more memory than its bytes.
const PIECES_MAX: usize = 256;
/// How often an edit is tried again where the file changes meanwhile.
const EDIT_TRIES: usize = 8;
const DIR_MODE: u32 = 0o755;

/// The bytes of a file. `Range` (one), `If-Range`, `If-Match` (412) and
/// `If-None-Match` (304) are understood; `HEAD` works too.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/file", tag = "files", operation_id = "get_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "The file", content_type = "application/octet-stream", body = String),
        (status = 206, description = "The part asked for", content_type = "application/octet-stream", body = String),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    method: Method,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    get_in(&app, Place::Session(id), &method, &query, &headers).await
}

/// Writes a file of any size: the body, whole or not at all.
#[utoipa::path(put, path = "/v1/sessions/{id}/fs/file", tag = "files", operation_id = "put_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("mode" = Option<String>, Query),
        ("create_parents" = Option<bool>, Query),
        ("user" = Option<String>, Query),
    ),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "Done", body = Written),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn put(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Written>, ApiError> {
    put_in(&app, Place::Session(id), &query, &headers, body).await
}

/// Removes a file, a link (not what it leads to) or a directory.
#[utoipa::path(delete, path = "/v1/sessions/{id}/fs/file", tag = "files", operation_id = "delete_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("recursive" = Option<bool>, Query, description = "Whether a directory goes with all that is in it; `false` where absent. Not together with `If-Match`."),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    headers: HeaderMap,
) -> Result<Answer<Done>, ApiError> {
    delete_in(&app, Place::Session(id), &query, &headers).await
}

/// Facts about what is at a path.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/stat", tag = "files", operation_id = "stat_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("follow" = Option<bool>, Query),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = DirEntry),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn stat(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
) -> Result<Answer<DirEntry>, ApiError> {
    stat_in(&app, Place::Session(id), &query).await
}

/// Makes a directory.
#[utoipa::path(post, path = "/v1/sessions/{id}/fs/mkdir", tag = "files", operation_id = "make_directory",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = MakeDirectory,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn mkdir(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    body: Json<MakeDirectory, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    mkdir_in(&app, Place::Session(id), &query, body.value).await
}

/// Gives a file or directory another name.
#[utoipa::path(post, path = "/v1/sessions/{id}/fs/move", tag = "files", operation_id = "move_file",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = MoveFile,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn r#move(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    body: Json<MoveFile, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    move_in(&app, Place::Session(id), &query, body.value).await
}

/// Sets the mode of a file or directory.
#[utoipa::path(post, path = "/v1/sessions/{id}/fs/chmod", tag = "files", operation_id = "chmod_file",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = ChangeMode,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn chmod(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    body: Json<ChangeMode, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    chmod_in(&app, Place::Session(id), &query, body.value).await
}

/// Replaces exact texts in a file, all or none.
#[utoipa::path(post, path = "/v1/sessions/{id}/fs/edit", tag = "files", operation_id = "edit_file",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = EditFile,
    responses(
        (status = 200, description = "Done", body = Edited),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn edit(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
    body: Json<EditFile, BODY_BYTES_MAX>,
) -> Result<Answer<Edited>, ApiError> {
    edit_in(&app, Place::Session(id), &query, body.value).await
}

/// The bytes of a file of a workspace. `Range` (one), `If-Range`, `If-Match` (412) and
/// `If-None-Match` (304) are understood; `HEAD` works too.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs/file", tag = "workspaces", operation_id = "get_workspace_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "The file", content_type = "application/octet-stream", body = String),
        (status = 206, description = "The part asked for", content_type = "application/octet-stream", body = String),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_get(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    method: Method,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    get_in(&app, Place::Workspace(id), &method, &query, &headers).await
}

/// Writes a file of a workspace of any size: the body, whole or not at all.
#[utoipa::path(put, path = "/v1/workspaces/{id}/fs/file", tag = "workspaces", operation_id = "put_workspace_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("mode" = Option<String>, Query),
        ("create_parents" = Option<bool>, Query),
        ("user" = Option<String>, Query),
    ),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "Done", body = Written),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_put(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Written>, ApiError> {
    put_in(&app, Place::Workspace(id), &query, &headers, body).await
}

/// Removes a file, a link (not what it leads to) or a directory of a workspace.
#[utoipa::path(delete, path = "/v1/workspaces/{id}/fs/file", tag = "workspaces", operation_id = "delete_workspace_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("recursive" = Option<bool>, Query, description = "Whether a directory goes with all that is in it; `false` where absent. Not together with `If-Match`."),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_delete(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    headers: HeaderMap,
) -> Result<Answer<Done>, ApiError> {
    delete_in(&app, Place::Workspace(id), &query, &headers).await
}

/// Facts about what is at a path of a workspace.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs/stat", tag = "workspaces", operation_id = "stat_workspace_file",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("follow" = Option<bool>, Query),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = DirEntry),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_stat(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
) -> Result<Answer<DirEntry>, ApiError> {
    stat_in(&app, Place::Workspace(id), &query).await
}

/// Makes a directory of a workspace.
#[utoipa::path(post, path = "/v1/workspaces/{id}/fs/mkdir", tag = "workspaces", operation_id = "make_workspace_directory",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = MakeDirectory,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_mkdir(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    body: Json<MakeDirectory, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    mkdir_in(&app, Place::Workspace(id), &query, body.value).await
}

/// Gives a file or directory of a workspace another name.
#[utoipa::path(post, path = "/v1/workspaces/{id}/fs/move", tag = "workspaces", operation_id = "move_workspace_file",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = MoveFile,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_move(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    body: Json<MoveFile, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    move_in(&app, Place::Workspace(id), &query, body.value).await
}

/// Sets the mode of a file or directory of a workspace.
#[utoipa::path(post, path = "/v1/workspaces/{id}/fs/chmod", tag = "workspaces", operation_id = "chmod_workspace_file",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = ChangeMode,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_chmod(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    body: Json<ChangeMode, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    chmod_in(&app, Place::Workspace(id), &query, body.value).await
}

/// Replaces exact texts in a file of a workspace, all or none.
#[utoipa::path(post, path = "/v1/workspaces/{id}/fs/edit", tag = "workspaces", operation_id = "edit_workspace_file",
    params(("id" = String, Path), ("user" = Option<String>, Query)),
    request_body = EditFile,
    responses(
        (status = 200, description = "Done", body = Edited),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_edit(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    query: Query,
    body: Json<EditFile, BODY_BYTES_MAX>,
) -> Result<Answer<Edited>, ApiError> {
    edit_in(&app, Place::Workspace(id), &query, body.value).await
}

async fn get_in(
    app: &App,
    place: Place,
    method: &Method,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let file = {
        let user = app.file_user(&place, query).await?;
        app.engine.open_file(place, &query.path()?, user).await?
    };
    let (size, etag) = (file.size(), file.etag());
    match conditions::verdict(headers, etag)? {
        Verdict::Failed => return Err(precondition_failed()),
        Verdict::NotModified => return not_modified(etag),
        Verdict::Send => {}
    }
    let (status, start, end) = match conditions::part(headers, etag, size) {
        Part::Outside => return outside(size),
        Part::Whole => (StatusCode::OK, 0, size),
        Part::Bytes(start, end) => (StatusCode::PARTIAL_CONTENT, start, end),
    };
    let body = match method {
        &Method::HEAD => Body::empty(),
        _ => bytes_of(app, file, start, end).await?,
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let binary = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().extend([
        (CONTENT_TYPE, binary),
        (CONTENT_LENGTH, HeaderValue::from(end - start)),
        (ACCEPT_RANGES, HeaderValue::from_static("bytes")),
        (ETAG, tag_value(etag)?),
    ]);
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {start}-{}/{size}", end - 1);
        response.headers_mut().insert(CONTENT_RANGE, header(&range)?);
    }
    Ok(response)
}

fn header(text: &str) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(text).map_err(|error| ApiError::internal(error.to_string()))
}

fn tag_value(etag: Etag) -> Result<HeaderValue, ApiError> {
    header(&etag.to_string())
}

fn not_modified(etag: Etag) -> Result<Response, ApiError> {
    Ok((StatusCode::NOT_MODIFIED, [(ETAG, tag_value(etag)?)]).into_response())
}

fn outside(size: u64) -> Result<Response, ApiError> {
    let message = format!("the range lies outside of the file, which is {size} bytes");
    let error = Special::Range.error(message);
    let range = header(&format!("bytes */{size}"))?;
    let mut response = error.into_response();
    response.headers_mut().insert(CONTENT_RANGE, range);
    Ok(response)
}

/// A body of the bytes from `start` to `end`. What fits into one buffer is read before the answer
/// begins, so that a failure is an error of its own.
async fn bytes_of(app: &App, file: OpenFile, start: u64, end: u64) -> Result<Body, ApiError> {
    let bytes = end - start;
    let share = app.budget.take(bytes.min(2 * BUFFER_BYTES as u64)).await?;
    let file = Arc::new(file);
    if bytes <= BUFFER_BYTES as u64 {
        let read = file.read(start, usize::try_from(bytes).unwrap_or(BUFFER_BYTES)).await?;
        let missing = bytes - read.len() as u64;
        let pieces = [Ok(read), Err(shrunk())].into_iter().take(if missing == 0 { 1 } else { 2 });
        let held = pieces.inspect(move |_| _ = &share);
        return Ok(Body::from_stream(futures_util::stream::iter(held)));
    }
    let mut flow = Flow { file, next: start, end, ahead: None, _share: share };
    flow.read_ahead();
    Ok(Body::from_stream(unfold(flow, async |mut flow| {
        let piece = flow.piece().await?;
        Some((piece, flow))
    })))
}

fn shrunk() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter while it was sent")
}

/// A file on its way to a client: one piece is sent while the next is read.
struct Flow {
    file: Arc<OpenFile>,
    /// Where the piece that is read begins.
    next: u64,
    end: u64,
    ahead: Option<JoinHandle<Result<Bytes, Error>>>,
    _share: Share,
}

impl Flow {
    fn read_ahead(&mut self) {
        let bytes = (self.end - self.next).min(BUFFER_BYTES as u64);
        let bytes = usize::try_from(bytes).unwrap_or(BUFFER_BYTES);
        self.ahead = (bytes > 0).then(|| self.file.read_soon(self.next, bytes));
    }

    /// The next piece; `None` at the end. Behind an error nothing comes.
    async fn piece(&mut self) -> Option<io::Result<Bytes>> {
        let read = self.ahead.take()?.await;
        let read = read.map_err(io::Error::other).and_then(|read| read.map_err(io::Error::other));
        let wanted = (self.end - self.next).min(BUFFER_BYTES as u64);
        match read {
            Ok(bytes) if bytes.len() as u64 == wanted => {
                self.next += wanted;
                self.read_ahead();
                Some(Ok(bytes))
            }
            Ok(_) => Some(Err(shrunk())),
            Err(error) => Some(Err(error)),
        }
    }
}

async fn put_in(
    app: &App,
    place: Place,
    query: &Query,
    headers: &HeaderMap,
    body: Body,
) -> Result<Answer<Written>, ApiError> {
    refuse_coding(headers)?;
    if headers.contains_key(CONTENT_RANGE) {
        return Err(ApiError::invalid("`Content-Range`: a file is written whole"));
    }
    let expect = conditions::expect(headers)?;
    let request = CreateFile {
        path: query.path()?,
        user: app.file_user(&place, query).await?,
        mode: query.get("mode")?.map(octal).transpose()?,
        parents: parents(query, &expect)?,
        expect: expect.clone(),
    };
    let mut reader = Reader::new(body);
    let held = reader.length().map_or(u64::MAX, |length| length).min(2 * BUFFER_BYTES as u64);
    let _share = app.budget.try_take(held)?;
    let failed = |error| refused(error, &expect);
    if reader.length().is_some_and(|length| length <= SMALL_BYTES_MAX as u64) {
        let mut whole = Vec::new();
        while let Some(piece) = reader.next().await? {
            whole.extend_from_slice(&piece);
        }
        let put = app.engine.put_file(place, request, vec![whole.into()]).await;
        return Ok(ok(Written { ok: true, etag: put.map_err(failed)?.to_string() }));
    }
    let mut file = app.engine.create_file(place, request).await.map_err(failed)?;
    let mut pieces = gather(&mut reader).await?;
    while !pieces.is_empty() {
        // One buffer is written while the next one comes.
        let (written, next) = join(file.write_all(pieces), gather(&mut reader)).await;
        written?;
        pieces = next?;
    }
    let etag = file.commit().await.map_err(failed)?;
    Ok(ok(Written { ok: true, etag: etag.to_string() }))
}

fn parents(query: &Query, expect: &Expect) -> Result<Parents, ApiError> {
    let asked = query.get("create_parents")?;
    let make = asked.is_none() || query.flag("create_parents")?;
    // What must be there needs no parents that are not.
    let is_there = matches!(expect, Expect::Something | Expect::OneOf(_));
    Ok(if make && !is_there { Parents::Make } else { Parents::MustExist })
}

/// The next bytes of a body, about a buffer full; none at its end.
async fn gather(reader: &mut Reader) -> Result<Vec<Bytes>, ApiError> {
    let (mut pieces, mut bytes) = (Vec::new(), 0);
    while bytes < BUFFER_BYTES && pieces.len() < PIECES_MAX {
        let Some(piece) = reader.next().await? else { break };
        bytes += piece.len();
        pieces.push(piece);
    }
    Ok(pieces)
}

/// A precondition of the headers that does not hold is 412.
fn refused(error: Error, expect: &Expect) -> ApiError {
    let is_condition = match (&error, expect) {
        (_, Expect::Anything) => false,
        (Error::File { fault: FileFault::Changed, .. }, _) => true,
        (Error::File { fault: FileFault::AlreadyExists, .. }, Expect::Nothing) => true,
        (Error::File { fault: FileFault::NotFound, .. }, expect) => *expect != Expect::Nothing,
        _ => false,
    };
    let mut error = ApiError::from(error);
    if is_condition {
        error.code = ErrorCode::PreconditionFailed;
    }
    error
}

fn precondition_failed() -> ApiError {
    let message = "`If-Match`: the file is another one by now";
    ApiError::new(ErrorCode::PreconditionFailed, message)
}

async fn delete_in(
    app: &App,
    place: Place,
    query: &Query,
    headers: &HeaderMap,
) -> Result<Answer<Done>, ApiError> {
    let (path, user) = (query.path()?, app.file_user(&place, query).await?);
    let expect = conditions::expect(headers)?;
    if query.flag("recursive")? {
        if expect != Expect::Anything {
            return Err(ApiError::invalid("`If-Match` is for one file, not with `recursive`"));
        }
        return finish(app, place, Job::RemoveTree { path }, user).await;
    }
    let removed = app.engine.remove_file(place, &path, user, expect.clone()).await;
    removed.map_err(|error| refused(error, &expect))?;
    Ok(ok(Done::TRUE))
}

async fn stat_in(app: &App, place: Place, query: &Query) -> Result<Answer<DirEntry>, ApiError> {
    let follow = query.get("follow")?.is_none() || query.flag("follow")?;
    let last = if follow { LastLink::Followed } else { LastLink::Meant };
    let (path, user) = (query.path()?, app.file_user(&place, query).await?);
    Ok(ok(app.engine.stat_file(place, &path, user, last).await?))
}

async fn mkdir_in(
    app: &App,
    place: Place,
    query: &Query,
    request: MakeDirectory,
) -> Result<Answer<Done>, ApiError> {
    let user = app.file_user(&place, query).await?;
    let path = field_path("path", request.path, request.path_base64)?;
    let mode = request.mode.as_deref().map(octal).transpose()?.unwrap_or(DIR_MODE);
    let parents = match request.parents {
        None | Some(true) => Parents::Make,
        Some(false) => Parents::MustExist,
    };
    app.engine.make_dir(place, &path, user, (mode, parents)).await?;
    Ok(ok(Done::TRUE))
}

async fn move_in(
    app: &App,
    place: Place,
    query: &Query,
    request: MoveFile,
) -> Result<Answer<Done>, ApiError> {
    let user = app.file_user(&place, query).await?;
    let from = field_path("from", request.from, request.from_base64)?;
    let to = field_path("to", request.to, request.to_base64)?;
    let overwrite = request.overwrite.unwrap_or(false);
    let target = if overwrite { Target::MayBeReplaced } else { Target::MustBeFree };
    match app.engine.move_file(place.clone(), (&from, &to), user, target).await {
        Err(Error::File { fault: FileFault::OtherDevice, .. }) => {}
        moved => return Ok(ok(moved.map(|()| Done::TRUE)?)),
    }
    let copy = Job::Copy { from: from.clone(), to, recursive: true, overwrite };
    finish(app, place.clone(), copy, user).await?;
    finish(app, place, Job::RemoveTree { path: from }, user).await
}

async fn chmod_in(
    app: &App,
    place: Place,
    query: &Query,
    request: ChangeMode,
) -> Result<Answer<Done>, ApiError> {
    let user = app.file_user(&place, query).await?;
    let path = field_path("path", request.path, request.path_base64)?;
    let mode = octal(&request.mode)?;
    if request.recursive == Some(true) {
        return finish(app, place, Job::ChmodTree { path, mode }, user).await;
    }
    app.engine.chmod_file(place, &path, user, mode).await?;
    Ok(ok(Done::TRUE))
}

async fn edit_in(
    app: &App,
    place: Place,
    query: &Query,
    request: EditFile,
) -> Result<Answer<Edited>, ApiError> {
    let user = app.file_user(&place, query).await?;
    let path = field_path("path", request.path.clone(), request.path_base64.clone())?;
    for _ in 0..EDIT_TRIES {
        let edited = edit_once(app, place.clone(), &path, user, &request).await?;
        match edited {
            Some(edited) => return Ok(ok(edited)),
            None if request.if_match.is_some() => return Err(not_that_one()),
            None => {}
        }
    }
    let message = "the file was changed again and again meanwhile; nothing was written";
    Err(ApiError::new(ErrorCode::Conflict, message))
}

fn not_that_one() -> ApiError {
    let message = "`if_match`: the file is another one by now; nothing was written";
    ApiError::new(ErrorCode::PreconditionFailed, message)
}

/// `None`: the file was changed between the read and the write.
async fn edit_once(
    app: &App,
    place: Place,
    path: &[u8],
    user: FileUser,
    request: &EditFile,
) -> Result<Option<Edited>, ApiError> {
    let file = app.engine.open_file(place.clone(), path, user).await?;
    let (size, etag, limit) = (file.size(), file.etag(), app.config.max_read_bytes);
    if request.if_match.as_ref().is_some_and(|tag| !is_tag(tag, etag)) {
        return Err(not_that_one());
    }
    if size > limit {
        return Err(ApiError::too_large("the file to edit", Some(size), limit));
    }
    // The file, and what becomes of it.
    let _share = app.budget.take(2 * size + BODY_BYTES_MAX as u64).await?;
    let whole = Arc::new(file).read(0, usize::try_from(size).unwrap_or(usize::MAX)).await?;
    let edits = request.edits.clone();
    let edited = tokio::task::spawn_blocking(move || edits::apply(whole.into(), &edits, limit));
    let edited = edited.await.map_err(|error| ApiError::internal(error.to_string()))?;
    let (bytes, replaced) = edited?;
    let expect = Expect::OneOf(vec![etag.0]);
    let (path, parents) = (path.to_vec(), Parents::MustExist);
    let create = CreateFile { path, user, mode: None, parents, expect };
    match app.engine.put_file(place, create, vec![bytes.into()]).await {
        Ok(etag) => Ok(Some(Edited { ok: true, replaced, etag: etag.to_string() })),
        Err(Error::File { fault: FileFault::Changed, .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a text names these contents; the quotes may be left out.
fn is_tag(text: &str, etag: Etag) -> bool {
    let shown = etag.to_string();
    text == shown || shown.trim_matches('"') == text
}
