//! Commands.

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::exec::{ExecAnswer, ExecRequest};
use sandkasten_types::limits::BODY_BYTES_MAX_EXEC;

use crate::app::held::Held;
use crate::app::{App, SessionPath};
use crate::edge::JSON;
use crate::error::ApiError;
use crate::json::Json;
use crate::openapi::StreamDatum;
use crate::request_id::RequestId;
use crate::sse::exec_events;

/// Bytes of an answer sent at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Runs a command in the session's shell and answers when it has ended.
#[utoipa::path(post, path = "/v1/sessions/{id}/exec", tag = "exec", operation_id = "exec", params(("id" = String, Path)),
    request_body = ExecRequest,
    responses(
        (status = 200, description = "Done", body = ExecAnswer),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn exec(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    body: Json<ExecRequest, BODY_BYTES_MAX_EXEC>,
) -> Result<Response, ApiError> {
    // Dropped with this future when the client goes away; that cancels the command.
    let handle = app.engine.exec(&id, body.value).await?;
    drop(body.share);
    let answer = handle.finish().await?;
    // The text and its JSON live side by side until the text is dropped.
    let share = app.budget.take_patiently(2 * answer.output.bytes() as u64).await;
    let json =
        serde_json::to_vec(&answer).map_err(|error| ApiError::internal(error.to_string()))?;
    drop(answer);
    let json = Bytes::from(json);
    let length = HeaderValue::from(json.len());
    let mut at = 0;
    let pieces = std::iter::from_fn(move || {
        let piece = json.slice(at..(at + PIECE_BYTES).min(json.len()));
        at += piece.len();
        (!piece.is_empty()).then_some(piece)
    });
    let mut response = Response::new(Held::body(pieces, share));
    response.headers_mut().extend([JSON, (CONTENT_LENGTH, length)]);
    Ok(response)
}

/// Runs a command and streams what it writes, as server-sent events: `chunk` any number of times, then
/// `done` or `error` once.
#[utoipa::path(post, path = "/v1/sessions/{id}/exec/stream", tag = "exec", operation_id = "exec_stream",
    params(("id" = String, Path)), request_body = ExecRequest,
    responses(
        (status = 200, description = "Done", content_type = "text/event-stream", body = StreamDatum),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn stream(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    Extension(request): Extension<RequestId>,
    body: Json<ExecRequest, BODY_BYTES_MAX_EXEC>,
) -> Result<Response, ApiError> {
    let handle = app.engine.exec(&id, body.value).await?;
    Ok(exec_events(handle, request))
}
