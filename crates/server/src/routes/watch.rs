//! What changes in a directory, as events.
//!
//! Invariant: the answer begins once the watch is set, so that nothing which the client does then is missed;
//! whatever keeps it from being set is an error of HTTP. The events of a watch can't be read again.

use axum::extract::{Extension, State};
use axum::response::Response;
use sandkasten_engine::work::{Change, Item, Job};
use sandkasten_engine::{Place, Worker};
use sandkasten_types::Base64;
use sandkasten_types::error::ErrorBody;
use sandkasten_types::files::{FileType, WatchDatum};

use sandkasten_engine::file_type;

use super::tree::{below, said, shown, top};
use crate::app::{App, SessionPath, WorkspacePath};
use crate::error::ApiError;
use crate::exchange::Subject;
use crate::query::Query;
use crate::sse::{self, Event, Run, Told, Until};

/// Bytes of an event's paths: a whole event is 8 KiB at most.
const PATHS_BYTES_MAX: usize = 7 * 1024;

/// Tells what changes in a directory, or to a file: `created`, `modified`, `removed`, `moved`, and
/// `overflow` where some changes are lost. Ends with the session, or with what is watched.
#[utoipa::path(get, path = "/v1/sessions/{id}/fs/watch", tag = "files", operation_id = "watch",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("recursive" = Option<bool>, Query, description = "Whether directories below it are watched too, new ones included; `false` where absent."),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", content_type = "text/event-stream", body = WatchDatum),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn watch(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    Extension(subject): Extension<Subject>,
    query: Query,
) -> Result<Response, ApiError> {
    watch_in(&app, Place::Session(id), &query, subject).await
}

/// Tells what changes in a directory of a workspace, whoever changes it.
#[utoipa::path(get, path = "/v1/workspaces/{id}/fs/watch", tag = "workspaces",
    operation_id = "watch_workspace",
    params(
        ("id" = String, Path),
        ("path" = Option<String>, Query),
        ("path_base64" = Option<String>, Query),
        ("recursive" = Option<bool>, Query, description = "Whether directories below it are watched too, new ones included; `false` where absent."),
        ("user" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", content_type = "text/event-stream", body = WatchDatum),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn workspace_watch(
    State(app): State<App>,
    WorkspacePath(id): WorkspacePath,
    Extension(subject): Extension<Subject>,
    query: Query,
) -> Result<Response, ApiError> {
    watch_in(&app, Place::Workspace(id), &query, subject).await
}

async fn watch_in(
    app: &App,
    place: Place,
    query: &Query,
    subject: Subject,
) -> Result<Response, ApiError> {
    let (path, recursive) = (top(query)?, query.flag("recursive")?);
    let user = app.file_user(&place, query).await?;
    let above = shown(&place, &path);
    let mut worker = app.engine.work(place, Job::Watch { path, recursive }, user).await?;
    match worker.next().await? {
        Some(Item::Event(event)) if event.change == Change::Ready => {}
        _ => return Err(ApiError::internal("a watch did not say that it is ready")),
    }
    let until = Until::Whenever { draining: app.draining.clone() };
    Ok(sse::stream(Told::new(Watch { worker, above, id: 0 }, until, subject)))
}

struct Watch {
    worker: Worker,
    above: Vec<u8>,
    /// Of the last event.
    id: u64,
}

impl Run for Watch {
    async fn next(&mut self) -> Option<Event> {
        let item = self.worker.next().await;
        let id = self.id + 1;
        let event = match item {
            Ok(None) => return None,
            Ok(Some(Item::Event(event))) => event,
            Ok(Some(_)) => {
                return Some(Event::Failed { id, error: ApiError::internal("not an event") });
            }
            Err(error) => return Some(Event::Failed { id, error: error.into() }),
        };
        let name = match event.change {
            Change::Created => "created",
            Change::Modified => "modified",
            Change::Removed => "removed",
            Change::Moved => "moved",
            Change::Overflow => "overflow",
            Change::Ready => {
                return Some(Event::Failed { id, error: ApiError::internal("ready twice") });
            }
        };
        self.id = id;
        let (path, path_base64) = said(below(&self.above, &event.path));
        let from = event.from.map(|from| said(below(&self.above, &from)));
        let (from, from_base64) = from.map_or((None, None), |(text, bytes)| (Some(text), bytes));
        let r#type = file_type(event.kind);
        let datum = WatchDatum { path, path_base64, from, from_base64, r#type, seq: id };
        if bytes(&datum) > PATHS_BYTES_MAX {
            return Some(sse::some(id, "overflow", &nowhere(id)));
        }
        Some(sse::some(id, name, &datum))
    }
}

/// What an event takes of its paths, once they are escaped.
fn bytes(datum: &WatchDatum) -> usize {
    let escaped = |text: &str| -> usize {
        text.chars()
            .map(|c| match c {
                '"' | '\\' => 2,
                ' '..='~' => 1,
                _ => 6 * c.len_utf16(),
            })
            .sum()
    };
    let base64 = |path: &Option<Base64>| path.as_ref().map_or(0, |path| path.0.len() * 4 / 3 + 4);
    let from = datum.from.as_deref().map_or(0, escaped);
    escaped(&datum.path) + from + base64(&datum.path_base64) + base64(&datum.from_base64)
}

/// An overflow because of an event that does not fit: where it was can't be said.
fn nowhere(seq: u64) -> WatchDatum {
    let (path, r#type) = (String::new(), FileType::Dir);
    WatchDatum { path, path_base64: None, from: None, from_base64: None, r#type, seq }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_event_is_as_long_as_its_paths_once_escaped() {
        let datum = |path: &str| WatchDatum { path: path.into(), ..nowhere(1) };
        assert_eq!(bytes(&datum("a\"b")), 4);
        assert_eq!(bytes(&datum("\u{e9}\n")), 12);
        assert_eq!(bytes(&datum("\u{1f600}")), 12);
    }
}
