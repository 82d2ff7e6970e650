//! Commands: run, streamed, and by their ids.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use sandkasten_engine::{EventsFrom, ExecEvent, ExecEvents, ExecHandle, Follow, Last};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::exec::{
    ExecAnswer, ExecDone, ExecRequest, ExecStarted, ExecStatus, Execs, RestartShell, RunStatus,
    ShellRestarted,
};
use sandkasten_types::limits::BODY_BYTES_MAX;
use sandkasten_types::session::Ok as Done;

use crate::answer::{long, output_fields};
use crate::app::{Answer, App, ExecPath, SessionPath, ok};
use crate::body::Reader;
use crate::content;
use crate::error::ApiError;
use crate::exchange::Subject;
use crate::json::{Json, refuse_coding};
use crate::openapi::{ReplayDatum, StreamDatum};
use crate::page::Page;
use crate::query::{Query, known_event};
use crate::sse::{self, Event, Run, Told, Until};

/// Runs a command in the session's shell and answers when it has ended, or with `detach` at once.
#[utoipa::path(post, path = "/v1/sessions/{id}/exec", tag = "exec", operation_id = "exec", params(("id" = String, Path)),
    request_body = ExecRequest,
    responses(
        (status = 200, description = "Done", body = ExecAnswer),
        (status = 202, description = "It waits its turn or runs (`detach`)", body = ExecStarted),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn exec(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    Extension(subject): Extension<Subject>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    refuse_coding(&headers)?;
    let (request, share) = content::exec(body, &app.budget).await?;
    let detached = request.detach == Some(true);
    // Dropped with this future when the client goes away; that cancels the command, unless it is kept.
    let handle = app.engine.exec(&id, request).await?;
    subject.set_exec(handle.id());
    drop(share);
    if detached {
        let exec_id = handle.id().clone();
        handle.detach();
        return Ok(Answer(StatusCode::ACCEPTED, ExecStarted { exec_id }).into_response());
    }
    let answer = handle.finish().await?;
    let share = app.budget.take_patiently(answer.output.bytes() as u64).await;
    long(&answer.end, output_fields(answer.output), share)
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
    Extension(subject): Extension<Subject>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    refuse_coding(&headers)?;
    let (request, share) = content::exec(body, &app.budget).await?;
    if request.detach == Some(true) {
        let text = "`detach` has no stream; follow its `events`, or leave it out";
        return Err(ApiError::invalid(text));
    }
    let handle = app.engine.exec(&id, request).await?;
    subject.set_exec(handle.id());
    drop(share);
    Ok(sse::stream(Told::new(Live(handle), Until::End, subject)))
}

/// The commands of a session that are kept, oldest first, without their output.
#[utoipa::path(get, path = "/v1/sessions/{id}/execs", tag = "exec", operation_id = "list_execs",
    params(
        ("id" = String, Path),
        ("status" = Option<String>, Query),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Execs),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
) -> Result<Answer<Execs>, ApiError> {
    let (status, page) = (query.word("status", &RUN_STATUSES)?, Page::of(&query)?);
    let mut all = app.engine.list_execs(&id).await?;
    all.retain(|(_, one)| status.is_none_or(|status| one.status == status));
    let (page, next_cursor) = page.cut(all, |(number, _)| *number)?;
    Ok(ok(Execs { execs: page.into_iter().map(|(_, one)| one).collect(), next_cursor }))
}

/// One command, with its output once it is over.
#[utoipa::path(get, path = "/v1/sessions/{id}/execs/{exec_id}", tag = "exec", operation_id = "get_exec",
    params(("id" = String, Path), ("exec_id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = ExecStatus),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(app): State<App>,
    ExecPath(id, exec): ExecPath,
) -> Result<Response, ApiError> {
    let mut status = app.engine.exec_status(&id, &exec).await?;
    let output = std::mem::take(&mut status.output);
    let share = app.budget.take_patiently(output.bytes() as u64).await;
    long(&status, output_fields(output), share)
}

/// Takes a command out of the queue, or ends it with all that it started. One that is over stays as it is.
#[utoipa::path(delete, path = "/v1/sessions/{id}/execs/{exec_id}", tag = "exec", operation_id = "cancel_exec",
    params(("id" = String, Path), ("exec_id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn cancel(
    State(app): State<App>,
    ExecPath(id, exec): ExecPath,
) -> Result<Answer<Done>, ApiError> {
    app.engine.cancel_exec(&id, &exec).await?;
    Ok(ok(Done::TRUE))
}

/// Gives a command whose stdin is open (`stdin_open`) more of it. The body is taken at the pace at which the
/// command reads; one that waits its turn reads nothing yet.
#[utoipa::path(post, path = "/v1/sessions/{id}/execs/{exec_id}/stdin", tag = "exec", operation_id = "exec_stdin",
    params(
        ("id" = String, Path),
        ("exec_id" = String, Path),
        ("eof" = Option<bool>, Query),
    ),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "All of it is taken", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn stdin(
    State(app): State<App>,
    ExecPath(id, exec): ExecPath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Done>, ApiError> {
    refuse_coding(&headers)?;
    let eof = query.flag("eof")?;
    // An unknown command is an error also without a byte.
    app.engine.exec_stdin(&id, &exec, Bytes::new(), Last::No).await?;
    let mut reader = Reader::at_any_pace(body);
    while let Some(bytes) = reader.next().await? {
        app.engine.exec_stdin(&id, &exec, bytes, Last::No).await?;
    }
    if eof {
        app.engine.exec_stdin(&id, &exec, Bytes::new(), Last::Yes).await?;
    }
    Ok(ok(Done::TRUE))
}

/// The events of a command from any of them on, the same each time: `chunk` and `gap`, `done` or `error`,
/// then output of children that went on.
#[utoipa::path(get, path = "/v1/sessions/{id}/execs/{exec_id}/events", tag = "exec", operation_id = "exec_events",
    params(
        ("id" = String, Path),
        ("exec_id" = String, Path),
        ("after" = Option<u64>, Query),
        ("follow" = Option<bool>, Query),
        ("Last-Event-ID" = Option<u64>, Header),
    ),
    responses(
        (status = 200, description = "Done", content_type = "text/event-stream", body = ReplayDatum),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn events(
    State(app): State<App>,
    ExecPath(id, exec): ExecPath,
    Extension(subject): Extension<Subject>,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let from = events_from(&query, &headers)?;
    let events = app.engine.exec_events(&id, &exec, from).await?;
    let until = Until::Whenever { draining: app.draining.clone() };
    Ok(sse::stream(Told::new(Replay(events), until, subject).behind(from.after)))
}

/// Puts another shell in the place of the one that is there. Waits its turn as a command does.
#[utoipa::path(post, path = "/v1/sessions/{id}/shell/restart", tag = "exec", operation_id = "restart_shell",
    params(("id" = String, Path)), request_body = RestartShell,
    responses(
        (status = 200, description = "Done", body = ShellRestarted),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn restart_shell(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    body: Json<RestartShell, BODY_BYTES_MAX>,
) -> Result<Answer<ShellRestarted>, ApiError> {
    Ok(ok(app.engine.restart_shell(&id, body.value).await?))
}

/// What `status` of a list of commands or processes may be.
pub(crate) const RUN_STATUSES: [(&str, RunStatus); 3] = [
    ("queued", RunStatus::Queued),
    ("running", RunStatus::Running),
    ("finished", RunStatus::Finished),
];

/// Where a request wants events to begin, and whether it waits for more.
pub(super) fn events_from(query: &Query, headers: &HeaderMap) -> Result<EventsFrom, ApiError> {
    let follow = if query.flag("follow")? { Follow::Yes } else { Follow::No };
    Ok(EventsFrom { after: known_event(query, headers)?, follow })
}

/// A command that the request itself began or joined.
struct Live(ExecHandle);

impl Run for Live {
    async fn next(&mut self) -> Option<Event> {
        Some(match self.0.next().await? {
            ExecEvent::Done { seq, end } => sse::last(seq, "done", &ExecDone { end, seq }),
            other @ (ExecEvent::Chunk(_) | ExecEvent::Gap(_) | ExecEvent::Failed { .. }) => {
                event(other)
            }
        })
    }
}

/// What is kept of a command.
struct Replay(ExecEvents);

impl Run for Replay {
    async fn next(&mut self) -> Option<Event> {
        self.0.next().await.map(event)
    }
}

fn event(event: ExecEvent) -> Event {
    match event {
        ExecEvent::Chunk(chunk) => sse::some(chunk.seq, "chunk", &chunk),
        ExecEvent::Gap(gap) => sse::some(gap.seq, "gap", &gap),
        ExecEvent::Done { seq, end } => sse::some(seq, "done", &ExecDone { end, seq }),
        ExecEvent::Failed { seq, error } => Event::Failed { id: seq, error: error.into() },
    }
}
