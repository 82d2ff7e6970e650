//! Sessions.

use axum::Extension;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use sandkasten_engine::{IdempotencyKey, Limit, SessionFilter, SessionKey, SessionStatus};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::limits::BODY_BYTES_MAX;
use sandkasten_types::session::{CreateSession, Ok as Done, Session, Stats, Status, UpdateSession};

use crate::app::{Answer, App, SessionPath, ok};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::exchange::Subject;
use crate::json::Json;
use crate::page::{PAGE_MAX, Page};
use crate::query::Query;

const NEXT_CURSOR: HeaderName = HeaderName::from_static("x-next-cursor");

/// What `status` of the list may be.
pub(crate) const STATUSES: [(&str, SessionStatus); 9] = [
    ("creating", SessionStatus::Only(Status::Creating)),
    ("running", SessionStatus::Only(Status::Running)),
    ("paused", SessionStatus::Only(Status::Paused)),
    ("stopping", SessionStatus::Only(Status::Stopping)),
    ("destroyed", SessionStatus::Only(Status::Destroyed)),
    ("expired", SessionStatus::Only(Status::Expired)),
    ("crashed", SessionStatus::Only(Status::Crashed)),
    ("lost", SessionStatus::Only(Status::Lost)),
    ("ended", SessionStatus::Ended),
];

/// Makes a session. It answers when a command sent at once would work.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", operation_id = "create_session", request_body = CreateSession,
    params(("Idempotency-Key" = Option<String>, Header)),
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

/// Sessions, oldest first: those that have not ended, unless `status` says otherwise.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", operation_id = "list_sessions",
    params(
        ("status" = Option<String>, Query, description = "Only sessions with this status; `ended`: those that ended in the last 24 hours, in whatever way. Those that have not ended where absent."),
        ("label" = Option<Vec<String>>, Query),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The most entries of a page, 1 to 1000. Where absent: all, but of ended sessions 1000."),
        ("cursor" = Option<String>, Query, description = "Where the page begins: `X-Next-Cursor` of the page before."),
    ),
    responses(
        (status = 200, description = "Done", body = Vec<Session>),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn list(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let status = query.word("status", &STATUSES)?.unwrap_or_default();
    let filter = SessionFilter { status, labels: query.labels()? };
    let page = page(status, &query)?;
    let limit = page.wanted().map_or(Limit::None, Limit::To);
    let sessions = app.engine.list_sessions(filter, page.after()?, limit).await?;
    let (sessions, next) = page.cut(sessions, SessionKey::of)?;
    let mut response = ok(sessions).into_response();
    if let Some(next) = next {
        let value = HeaderValue::from_str(&next);
        let value = value.map_err(|error| ApiError::internal(error.to_string()))?;
        response.headers_mut().insert(NEXT_CURSOR, value);
    }
    Ok(response)
}

/// Those that have not ended are as few as the daemon allows; of the others there may be any number.
fn page(status: SessionStatus, query: &Query) -> Result<Page, ApiError> {
    let page = Page::of(query)?;
    Ok(match status {
        SessionStatus::Living => page,
        SessionStatus::Only(status) if !status.is_over() => page,
        SessionStatus::Ended | SessionStatus::Only(_) => page.or_limit(PAGE_MAX),
    })
}

/// Changes the lease, the labels or the name of a session. What the request does not name stays.
#[utoipa::path(patch, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "update_session",
    params(("id" = String, Path)), request_body = UpdateSession,
    responses(
        (status = 200, description = "Done", body = Session),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn update(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    body: Json<UpdateSession, BODY_BYTES_MAX>,
) -> Result<Answer<Session>, ApiError> {
    Ok(ok(app.engine.update_session(&id, body.value).await?))
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn all_that_have_not_ended_are_one_page() {
        let query = Query::of(&"/".parse().unwrap()).unwrap();
        for (word, status) in STATUSES {
            let wanted = page(status, &query).unwrap().wanted();
            let is_ended = ["destroyed", "expired", "crashed", "lost", "ended"].contains(&word);
            assert_eq!(wanted, is_ended.then_some(1001), "{word}");
        }
        assert_eq!(page(SessionStatus::Living, &query).unwrap().wanted(), None);
    }
}
