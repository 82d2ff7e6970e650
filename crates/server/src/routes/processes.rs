//! Processes: programs beside the shell.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};
use sandkasten_engine::{Data, Encoding, Form, Last, ProcessEvent, ProcessEvents, ProcessResult};
use sandkasten_types::Base64;
use sandkasten_types::ProcessId;
use sandkasten_types::error::ErrorBody;
use sandkasten_types::exec::Stream;
use sandkasten_types::limits::BODY_BYTES_MAX;
use sandkasten_types::process::{
    ProcessAnswer, ProcessEnd, ProcessExit, ProcessOutput, ProcessStarted, ProcessStatus,
    Processes, SignalProcess, StartProcess, Tty,
};
use sandkasten_types::session::Ok as Done;
use serde::Serialize;
use tokio::sync::Mutex;

use super::exec::{RUN_STATUSES, events_from};
use crate::answer::{Pull, pulled};
use crate::app::{Answer, App, ProcessPath, SessionPath, ok};
use crate::body::Reader;
use crate::content;
use crate::error::ApiError;
use crate::exchange::Subject;
use crate::json::{Json, refuse_coding};
use crate::openapi::ProcessDatum;
use crate::page::Page;
use crate::query::Query;
use crate::sse::{self, Event, Run, Told, Until};

/// What an answer that is pulled holds at once: a piece, its base64, and what waits to be written.
const PULL_BYTES: u64 = 256 * 1024;

/// Starts a program. It answers when the program runs, or with `wait` when it has ended.
#[utoipa::path(post, path = "/v1/sessions/{id}/processes", tag = "processes", operation_id = "start_process",
    params(("id" = String, Path)), request_body = StartProcess,
    responses(
        (status = 200, description = "It has ended (`wait`)", body = ProcessAnswer),
        (status = 201, description = "It runs", body = ProcessStarted),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn start(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    Extension(subject): Extension<Subject>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    refuse_coding(&headers)?;
    let (request, share) = content::process(body, &app.budget).await?;
    let waits = request.wait == Some(true);
    // Dropped with this future when the client goes away; that kills what is waited for, unless it is kept.
    let handle = app.engine.start_process(&id, request).await?;
    subject.set_process(&handle.started().process_id);
    drop(share);
    if !waits {
        let started = handle.started().clone();
        return Ok(Answer(StatusCode::CREATED, started).into_response());
    }
    let result = handle.wait().await?;
    let share = app.budget.take_patiently(PULL_BYTES).await;
    let ended = Ended { process_id: result.process_id.clone(), end: result.end.clone() };
    let encoding = result.encoding;
    // What holds the session is in the result, so both streams hold it whole.
    let result = Arc::new(Mutex::new(result));
    let names = match encoding {
        Encoding::Text => ["stdout", "stderr"],
        Encoding::Base64 => ["stdout_base64", "stderr_base64"],
    };
    let [out, err] = names;
    let streams = vec![
        (out, Output { stream: Stream::Stdout, result: Arc::clone(&result) }),
        (err, Output { stream: Stream::Stderr, result }),
    ];
    pulled(&ended, (streams, encoding), share)
}

/// A [`ProcessAnswer`] without its output.
#[derive(Debug, Serialize)]
struct Ended {
    process_id: ProcessId,
    #[serde(flatten)]
    end: ProcessEnd,
}

/// One stream of a result.
struct Output {
    stream: Stream,
    result: Arc<Mutex<ProcessResult>>,
}

impl Pull for Output {
    async fn pull(&mut self) -> Result<Option<Bytes>, ApiError> {
        let mut result = self.result.lock().await;
        let kept = match self.stream {
            Stream::Stderr => &mut result.stderr,
            Stream::Output | Stream::Stdout | Stream::Pty => &mut result.stdout,
        };
        Ok(kept.next().await?)
    }
}

/// The processes of a session that are kept, oldest first.
#[utoipa::path(get, path = "/v1/sessions/{id}/processes", tag = "processes", operation_id = "list_processes",
    params(
        ("id" = String, Path),
        ("status" = Option<String>, Query),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000),
        ("cursor" = Option<String>, Query),
    ),
    responses(
        (status = 200, description = "Done", body = Processes),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn list(
    State(app): State<App>,
    SessionPath(id): SessionPath,
    query: Query,
) -> Result<Answer<Processes>, ApiError> {
    let (status, page) = (query.word("status", &RUN_STATUSES)?, Page::of(&query)?);
    let mut all = app.engine.list_processes(&id).await?;
    all.retain(|(_, one)| status.is_none_or(|status| one.status == status));
    let (page, next_cursor) = page.cut(all, |(number, _)| *number)?;
    Ok(ok(Processes { processes: page.into_iter().map(|(_, one)| one).collect(), next_cursor }))
}

/// One process.
#[utoipa::path(get, path = "/v1/sessions/{id}/processes/{process_id}", tag = "processes", operation_id = "get_process",
    params(("id" = String, Path), ("process_id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = ProcessStatus),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn get(
    State(app): State<App>,
    ProcessPath(id, process): ProcessPath,
) -> Result<Answer<ProcessStatus>, ApiError> {
    Ok(ok(app.engine.process(&id, &process).await?))
}

/// Kills a process with all that it started. One that has ended stays as it is.
#[utoipa::path(delete, path = "/v1/sessions/{id}/processes/{process_id}", tag = "processes", operation_id = "kill_process",
    params(("id" = String, Path), ("process_id" = String, Path)),
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn kill(
    State(app): State<App>,
    ProcessPath(id, process): ProcessPath,
) -> Result<Answer<Done>, ApiError> {
    app.engine.kill_process(&id, &process).await?;
    Ok(ok(Done::TRUE))
}

/// Gives a process more stdin. The body is taken at the pace at which the process reads.
#[utoipa::path(post, path = "/v1/sessions/{id}/processes/{process_id}/stdin", tag = "processes", operation_id = "process_stdin",
    params(
        ("id" = String, Path),
        ("process_id" = String, Path),
        ("eof" = Option<bool>, Query),
    ),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "All of it is taken", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn stdin(
    State(app): State<App>,
    ProcessPath(id, process): ProcessPath,
    query: Query,
    headers: HeaderMap,
    body: Body,
) -> Result<Answer<Done>, ApiError> {
    refuse_coding(&headers)?;
    let eof = query.flag("eof")?;
    // An unknown process is an error also without a byte.
    app.engine.process(&id, &process).await?;
    let mut reader = Reader::at_any_pace(body);
    while let Some(bytes) = reader.next().await? {
        app.engine.process_stdin(&id, &process, bytes, Last::No).await?;
    }
    if eof {
        app.engine.process_stdin(&id, &process, Bytes::new(), Last::Yes).await?;
    }
    Ok(ok(Done::TRUE))
}

/// Sends a signal to the process itself, or with `group` to its group.
#[utoipa::path(post, path = "/v1/sessions/{id}/processes/{process_id}/signal", tag = "processes", operation_id = "signal_process",
    params(("id" = String, Path), ("process_id" = String, Path)), request_body = SignalProcess,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn signal(
    State(app): State<App>,
    ProcessPath(id, process): ProcessPath,
    body: Json<SignalProcess, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    app.engine.signal_process(&id, &process, &body.value).await?;
    Ok(ok(Done::TRUE))
}

/// Gives the PTY of a process another size.
#[utoipa::path(post, path = "/v1/sessions/{id}/processes/{process_id}/resize", tag = "processes", operation_id = "resize_process",
    params(("id" = String, Path), ("process_id" = String, Path)), request_body = Tty,
    responses(
        (status = 200, description = "Done", body = Done),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn resize(
    State(app): State<App>,
    ProcessPath(id, process): ProcessPath,
    body: Json<Tty, BODY_BYTES_MAX>,
) -> Result<Answer<Done>, ApiError> {
    app.engine.resize_process(&id, &process, body.value).await?;
    Ok(ok(Done::TRUE))
}

/// The events of a process from any of them on, the same each time: `output` and `gap`, `exit` or `error`,
/// then output of children that went on.
#[utoipa::path(get, path = "/v1/sessions/{id}/processes/{process_id}/events", tag = "processes", operation_id = "process_events",
    params(
        ("id" = String, Path),
        ("process_id" = String, Path),
        ("after" = Option<u64>, Query),
        ("follow" = Option<bool>, Query),
        ("Last-Event-ID" = Option<u64>, Header),
    ),
    responses(
        (status = 200, description = "Done", content_type = "text/event-stream", body = ProcessDatum),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn events(
    State(app): State<App>,
    ProcessPath(id, process): ProcessPath,
    Extension(subject): Extension<Subject>,
    query: Query,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let from = events_from(&query, &headers)?;
    let events = app.engine.process_events(&id, &process, from, Form::AsAsked).await?;
    let until = Until::Whenever { draining: app.draining.clone() };
    Ok(sse::stream(Told::new(Replay(events), until, subject).behind(from.after)))
}

struct Replay(ProcessEvents);

impl Run for Replay {
    async fn next(&mut self) -> Option<Event> {
        Some(match self.0.next().await? {
            ProcessEvent::Output(written) => {
                let (stream, seq, timestamp) = (written.stream, written.seq, written.timestamp);
                let (data, data_base64) = match written.data {
                    Data::Text(text) => (Some(text), None),
                    Data::Bytes(bytes) => (None, Some(Base64(bytes.to_vec()))),
                };
                let output = ProcessOutput { stream, data_base64, data, seq, timestamp };
                sse::some(seq, "output", &output)
            }
            ProcessEvent::Gap(gap) => sse::some(gap.seq, "gap", &gap),
            ProcessEvent::Exit { seq, end } => sse::some(seq, "exit", &ProcessExit { end, seq }),
            ProcessEvent::Failed { seq, error } => Event::Failed { id: seq, error: error.into() },
        })
    }
}
