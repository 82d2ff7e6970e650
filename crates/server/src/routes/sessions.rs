//! Sessions.

use axum::Extension;
use axum::extract::State;
use hyper::{HeaderMap, StatusCode};
use sandkasten_engine::IdempotencyKey;
use sandkasten_types::error::ErrorBody;
use sandkasten_types::limits::BODY_BYTES_MAX;
use sandkasten_types::session::{CreateSession, Ok as Done, Session, Stats};

use crate::app::{Answer, App, SessionPath, ok};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::exchange::Subject;
use crate::json::Json;
use crate::query::Query;

/// Makes a session. It answers when a command sent at once would work.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", operation_id = "create_session", request_body = CreateSession,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters")),
    responses(
        (status = 201, description = "Made", body = Session),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Extension(subject): Extension<Subject>,
    headers: HeaderMap,
    body: Json<CreateSession, BODY_BYTES_MAX>,
) -> Result<Answer<Session>, ApiError> {
    let key = idempotency_key(&caller, &headers)?;
    let session = app.engine.create_session(body.value, key).await?;
    subject.set_session(&session.id);
    Ok(Answer(StatusCode::CREATED, session))
}

/// The sessions that have not ended.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", operation_id = "list_sessions", responses(
    (status = 200, description = "Done", body = Vec<Session>),
    (status = "default", description = "An error", body = ErrorBody),
))]
pub(crate) async fn list(
    State(app): State<App>,
    query: Query,
) -> Result<Answer<Vec<Session>>, ApiError> {
    query.refuse(&["status", "label", "limit", "cursor"])?;
    Ok(ok(app.engine.sessions().await?))
}

/// One session, also for 24 hours after its end.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "get_session", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Session),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(app): State<App>,
    SessionPath(id): SessionPath,
) -> Result<Answer<Session>, ApiError> {
    Ok(ok(app.engine.session(&id).await?))
}

/// Ends a session. Deleting it again answers the same.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "delete_session", params(("id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn delete(
    State(app): State<App>,
    SessionPath(id): SessionPath,
) -> Result<Answer<Done>, ApiError> {
    app.engine.delete_session(&id).await?;
    Ok(ok(Done::TRUE))
}

/// What a session uses now.
#[utoipa::path(get, path = "/v1/sessions/{id}/stats", tag = "sessions", operation_id = "session_stats",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Stats),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn stats(
    State(app): State<App>,
    SessionPath(id): SessionPath,
) -> Result<Answer<Stats>, ApiError> {
    Ok(ok(app.engine.stats(&id).await?))
}

fn idempotency_key(
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Option<IdempotencyKey>, ApiError> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::invalid("more than one `Idempotency-Key`"));
    }
    // What is no ASCII is refused with the rest of what can't be a key.
    let text = value.to_str().unwrap_or_default();
    Ok(Some(IdempotencyKey::new(&caller.0, text)?))
}
