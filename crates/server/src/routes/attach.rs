//! A WebSocket on a process: its output as it comes, stdin, signals, sizes.
//!
//! ```text
//!                ┌── output: events, replies, pings ──> Sender
//! process ──> run┤
//!                └── input: Receiver ──> signal, resize at once; stdin ──queue──> feed ──> engine
//! ```
//!
//! Signals and sizes do not wait behind stdin that nobody reads. Any number of clients may be attached to one
//! process. Invariants: what waits of a client's stdin is at most [`ATTACH_STDIN_BYTES`] and one message;
//! a client that leaves takes nothing with it: what it sent before is still given to the process.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use sandkasten_engine::{EventsFrom, Follow, Form, Last, ProcessEvent, ProcessEvents, Written};
use sandkasten_types::attach::{AttachOrder, AttachReport, STDERR, STDIN, STDOUT};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::exec::Stream;
use sandkasten_types::limits::{ATTACH_RECENT_BYTES, ATTACH_STDIN_BYTES};
use sandkasten_types::process::{ProcessExit, SignalName, SignalProcess, Tty};
use sandkasten_types::{ProcessId, SessionId, Timestamp};
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::app::{App, ProcessPath};
use crate::budget::Share;
use crate::error::ApiError;
use crate::json;
use crate::openapi::AttachText;
use crate::query::Query;
use crate::request_id::RequestId;
use crate::websocket::{End, Handshake, Message, Receiver, Said, Sender, Socket, text};

/// Error reports that may wait for a client that is slow to read.
const REPLIES_MAX: usize = 16;
/// How long stdin of a client that has left may take to reach the process.
const LAST_STDIN: Duration = Duration::from_secs(10);

/// Attaches a WebSocket to a process. Binary messages are a byte (0 stdin, 1 stdout or PTY, 2 stderr) and
/// data; texts are JSON: `resize`, `signal` and `eof` from the client, `exit`, `error` and `gap` to it.
#[utoipa::path(get, path = "/v1/sessions/{id}/processes/{process_id}/attach", tag = "processes", operation_id = "attach_process",
    params(
        ("id" = String, Path),
        ("process_id" = String, Path),
        ("after" = Option<u64>, Query),
    ),
    responses(
        (status = 101, description = "A WebSocket; this is what its texts are", body = AttachText),
        (status = "default", description = "An error", body = ErrorBody),
    ))]
pub(crate) async fn attach(
    State(app): State<App>,
    ProcessPath(session, process): ProcessPath,
    Extension(request_id): Extension<RequestId>,
    query: Query,
    handshake: Handshake,
) -> Result<Response, ApiError> {
    let after = query.after()?;
    let share = app.budget.try_take((ATTACH_RECENT_BYTES + ATTACH_STDIN_BYTES) as u64)?;
    let attached = Attached { app, session, process, request_id };
    let from = EventsFrom { after: after.unwrap_or(0), follow: Follow::No };
    // Also says whether there is such a process.
    let events = attached.events(from).await?;
    Ok(handshake.answer(move |socket| attached.run(socket, events, after, share)))
}

/// One client on one process.
struct Attached {
    app: App,
    session: SessionId,
    process: ProcessId,
    request_id: RequestId,
}

impl Attached {
    async fn events(&self, from: EventsFrom) -> Result<ProcessEvents, ApiError> {
        Ok(self.app.engine.process_events(&self.session, &self.process, from, Form::Bytes).await?)
    }

    async fn run(self, mut socket: Socket, kept: ProcessEvents, after: Option<u64>, _share: Share) {
        let (sender, receiver) = (&mut socket.sender, &mut socket.receiver);
        let (replies, queue) = mpsc::channel(REPLIES_MAX);
        let heartbeat = receiver.silence().heartbeat();
        let output = Output { attached: &self, sender, replies: queue, heartbeat };
        let end = tokio::select! {
            end = output.run(kept, after) => end,
            end = self.input(receiver, &replies) => end,
            () = self.app.draining.cancelled() => End::Draining,
        };
        socket.close(end).await;
    }

    /// Takes what the client says until it leaves, and gives the process what is left of it.
    async fn input(&self, receiver: &mut Receiver, replies: &mpsc::Sender<Message>) -> End {
        let (stdin, queue) = mpsc::unbounded_channel();
        let feed = self.feed(queue, replies);
        tokio::pin!(feed);
        let hear = self.hear(receiver, stdin, replies);
        let end = tokio::select! {
            end = hear => end,
            // It ends when `hear` has.
            () = &mut feed => return End::Left,
        };
        // Out of time: a process that does not read.
        drop(timeout(LAST_STDIN, feed).await);
        end
    }

    async fn hear(
        &self,
        receiver: &mut Receiver,
        stdin: mpsc::UnboundedSender<Fed>,
        replies: &mpsc::Sender<Message>,
    ) -> End {
        let room = Arc::new(Semaphore::new(ATTACH_STDIN_BYTES));
        loop {
            let said = match receiver.next().await {
                Ok(said) => said,
                Err(end) => return end,
            };
            let result = match said {
                Said::Text(text) => self.order(&text, &stdin).await,
                Said::Binary(mut bytes) if bytes.first() == Some(&STDIN) => {
                    let data = bytes.split_off(1);
                    let room = room_for(&room, data.len()).await;
                    // `feed` takes until this sender is dropped.
                    drop(stdin.send(Fed::Data(data, room)));
                    Ok(())
                }
                Said::Binary(_) => {
                    let text = "a binary message must begin with the byte 0, and is stdin";
                    Err(ApiError::invalid(text))
                }
            };
            if let Err(error) = result {
                self.report(&error, replies).await;
            }
        }
    }

    async fn order(&self, text: &str, stdin: &mpsc::UnboundedSender<Fed>) -> Result<(), ApiError> {
        let (engine, session, process) = (&self.app.engine, &self.session, &self.process);
        match asked(text)? {
            AttachOrder::Resize(window) => {
                engine.resize_process(session, process, window).await?;
            }
            AttachOrder::Signal(order) => {
                engine.signal_process(session, process, &order).await?;
            }
            AttachOrder::Eof => drop(stdin.send(Fed::Eof)),
        }
        Ok(())
    }

    /// Gives the process its stdin at the pace at which it reads.
    async fn feed(&self, mut queue: mpsc::UnboundedReceiver<Fed>, replies: &mpsc::Sender<Message>) {
        while let Some(fed) = queue.recv().await {
            let (data, last, _room) = match fed {
                Fed::Data(data, room) => (data, Last::No, room),
                Fed::Eof => (Bytes::new(), Last::Yes, None),
            };
            let engine = &self.app.engine;
            let given = engine.process_stdin(&self.session, &self.process, data, last).await;
            if let Err(error) = given {
                self.report(&error.into(), replies).await;
            }
        }
    }

    async fn report(&self, error: &ApiError, replies: &mpsc::Sender<Message>) {
        // Where the client has left nobody needs it.
        drop(replies.send(self.error(error)).await);
    }

    fn error(&self, error: &ApiError) -> Message {
        if let Some(chain) = &error.internal {
            let chain = chain.escape_debug();
            tracing::error!(request_id = %self.request_id, cause = %chain, "internal error in a socket");
        }
        text(&AttachReport::Error(error.datum(&self.request_id)))
    }
}

/// Every field that a client's text may have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    r#type: Option<String>,
    rows: Option<i64>,
    cols: Option<i64>,
    signal: Option<SignalName>,
    group: Option<bool>,
}

/// What a client's text asks for. A field that another type has is none of this one.
fn asked(text: &str) -> Result<AttachOrder, ApiError> {
    let Fields { r#type, rows, cols, signal, group } = json::parse(text.as_bytes())?;
    let missing = |name: &str| ApiError::invalid(format!("missing field `{name}`"));
    let kind = r#type.ok_or_else(|| missing("type"))?;
    let given = [
        ("rows", rows.is_some()),
        ("cols", cols.is_some()),
        ("signal", signal.is_some()),
        ("group", group.is_some()),
    ];
    let only = |own: &[&str]| match given.iter().find(|(name, is)| *is && !own.contains(name)) {
        Some((name, _)) => {
            Err(ApiError::invalid(format!("unknown field `{name}` where `type` is `{kind}`")))
        }
        None => Ok(()),
    };
    match kind.as_str() {
        "resize" => {
            only(&["rows", "cols"])?;
            Ok(AttachOrder::Resize(Tty {
                rows: rows.ok_or_else(|| missing("rows"))?,
                cols: cols.ok_or_else(|| missing("cols"))?,
            }))
        }
        "signal" => {
            only(&["signal", "group"])?;
            let signal = signal.ok_or_else(|| missing("signal"))?;
            Ok(AttachOrder::Signal(SignalProcess { signal, group }))
        }
        "eof" => only(&[]).map(|()| AttachOrder::Eof),
        other => {
            let other: String = other.chars().take(80).collect();
            Err(ApiError::invalid(format!(
                "`type` is `{}`; it must be `resize`, `signal` or `eof`",
                other.escape_debug()
            )))
        }
    }
}

/// What waits for the process.
enum Fed {
    Data(Bytes, Option<OwnedSemaphorePermit>),
    Eof,
}

async fn room_for(room: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    let count = u32::try_from(bytes.min(ATTACH_STDIN_BYTES)).unwrap_or(0);
    Arc::clone(room).acquire_many_owned(count).await.ok()
}

/// Everything that goes to the client, in one place: one message after the other.
struct Output<'a> {
    attached: &'a Attached,
    sender: &'a mut Sender,
    replies: mpsc::Receiver<Message>,
    heartbeat: crate::websocket::Heartbeat,
}

impl Output<'_> {
    async fn run(mut self, kept: ProcessEvents, after: Option<u64>) -> End {
        match self.tell(kept, after).await {
            Ok(end) | Err(end) => end,
        }
    }

    async fn tell(&mut self, kept: ProcessEvents, after: Option<u64>) -> Result<End, End> {
        let known = match after {
            Some(after) => after,
            None => match self.recent(kept).await? {
                Told::UpTo(known) => known,
                Told::All => return Ok(End::Done),
            },
        };
        let from = EventsFrom { after: known, follow: Follow::Yes };
        let mut events = match self.attached.events(from).await {
            Ok(events) => events,
            Err(error) => return self.fail(&error).await,
        };
        while let Some(event) = self.next(&mut events).await? {
            if let Told::All = self.event(event).await? {
                break;
            }
        }
        Ok(End::Done)
    }

    /// The next event; what else there is to say is said meanwhile.
    async fn next(&mut self, events: &mut ProcessEvents) -> Result<Option<ProcessEvent>, End> {
        loop {
            let message = tokio::select! {
                biased;
                Some(reply) = self.replies.recv() => reply,
                event = events.next() => return Ok(event),
                beat = self.heartbeat.beat() => beat?,
            };
            self.sender.send(message).await?;
        }
    }

    /// The last screenful of what is kept.
    async fn recent(&mut self, mut kept: ProcessEvents) -> Result<Told, End> {
        let mut recent = Recent::until(Timestamp::now().unix_ms());
        while let Some(event) = self.next(&mut kept).await? {
            if recent.push(event) {
                break;
            }
        }
        let known = recent.known;
        for event in recent.events {
            if let Told::All = self.event(event).await? {
                return Ok(Told::All);
            }
        }
        Ok(Told::UpTo(known))
    }

    async fn event(&mut self, event: ProcessEvent) -> Result<Told, End> {
        match event {
            ProcessEvent::Output(written) => {
                let seq = written.seq;
                self.sender.send(frame(&written)).await?;
                Ok(Told::UpTo(seq))
            }
            ProcessEvent::Gap(gap) => {
                self.sender.send(text(&AttachReport::Gap(gap))).await?;
                Ok(Told::UpTo(gap.seq))
            }
            ProcessEvent::Exit { seq, end } => {
                let exit = ProcessExit { end, seq };
                self.sender.send(text(&AttachReport::Exit(exit))).await?;
                Ok(Told::All)
            }
            ProcessEvent::Failed { error, .. } => {
                self.fail(&error.into()).await?;
                Ok(Told::All)
            }
        }
    }

    async fn fail(&mut self, error: &ApiError) -> Result<End, End> {
        self.sender.send(self.attached.error(error)).await?;
        Ok(End::Done)
    }
}

/// How far a client knows the process.
enum Told {
    UpTo(u64),
    /// To its end.
    All,
}

/// The last events, up to a screenful of output.
#[derive(Debug, Default)]
struct Recent {
    events: VecDeque<ProcessEvent>,
    bytes: usize,
    known: u64,
    /// Milliseconds since 1970-01-01 UTC: output from then on is not recent but new.
    until_ms: i64,
}

impl Recent {
    fn until(until_ms: i64) -> Self {
        Self { until_ms, ..Self::default() }
    }

    /// Whether that was the last that counts. A process that writes faster than it is read would have no
    /// last one.
    fn push(&mut self, event: ProcessEvent) -> bool {
        let mut is_last = false;
        match &event {
            ProcessEvent::Output(written) => {
                self.bytes += written.data.as_bytes().len();
                self.known = written.seq;
                is_last = written.timestamp > self.until_ms;
            }
            ProcessEvent::Gap(gap) => self.known = gap.seq,
            ProcessEvent::Exit { .. } | ProcessEvent::Failed { .. } => {
                self.events.push_back(event);
                return true;
            }
        }
        self.events.push_back(event);
        while self.bytes > ATTACH_RECENT_BYTES {
            if let Some(ProcessEvent::Output(written)) = self.events.pop_front() {
                self.bytes -= written.data.as_bytes().len();
            }
        }
        is_last
    }
}

fn frame(written: &Written) -> Message {
    let mut frame = BytesMut::with_capacity(1 + written.data.as_bytes().len());
    frame.put_u8(match written.stream {
        Stream::Stderr => STDERR,
        Stream::Output | Stream::Stdout | Stream::Pty => STDOUT,
    });
    frame.put_slice(written.data.as_bytes());
    Message::Binary(frame.freeze())
}

#[cfg(test)]
mod test {
    use sandkasten_engine::Data;
    use sandkasten_types::exec::Gap;

    use super::*;

    fn output(seq: u64, bytes: usize) -> ProcessEvent {
        let data = Data::Bytes(Bytes::from(vec![b'x'; bytes]));
        ProcessEvent::Output(Written { stream: Stream::Pty, data, seq, timestamp: 0 })
    }

    #[test]
    fn a_screenful_is_the_last_of_what_is_kept() {
        let mut recent = Recent::default();
        let seqs = |recent: &Recent| {
            let seq = |event: &ProcessEvent| match event {
                ProcessEvent::Output(written) => written.seq,
                ProcessEvent::Gap(gap) => gap.seq,
                ProcessEvent::Exit { .. } | ProcessEvent::Failed { .. } => 0,
            };
            recent.events.iter().map(seq).collect::<Vec<_>>()
        };
        for seq in 1..=4 {
            assert!(!recent.push(output(seq, ATTACH_RECENT_BYTES / 3)));
        }
        assert_eq!(seqs(&recent), [2, 3, 4]);
        assert!(!recent.push(ProcessEvent::Gap(Gap { bytes: 9, from_seq: 5, to_seq: 7, seq: 7 })));
        assert!(!recent.push(output(8, ATTACH_RECENT_BYTES / 2)));
        assert_eq!((seqs(&recent), recent.known), (vec![4, 7, 8], 8));
        assert!(!recent.push(output(9, ATTACH_RECENT_BYTES)));
        assert_eq!((seqs(&recent), recent.bytes), (vec![9], ATTACH_RECENT_BYTES));
        // What came after the client did is told as it comes.
        assert!(Recent::until(-1).push(output(1, 1)));
    }

    #[test]
    fn output_has_the_byte_of_its_stream() {
        for (stream, byte) in [(Stream::Stdout, 1), (Stream::Pty, 1), (Stream::Stderr, 2)] {
            let data = Bytes::from_static(b"\0ab");
            let data = Data::Bytes(data);
            let message = frame(&Written { stream, data, seq: 1, timestamp: 0 });
            assert_eq!(message, Message::binary(vec![byte, 0, b'a', b'b']));
        }
    }

    #[test]
    fn orders_are_read_by_their_type() {
        let order = |text: &str| asked(text).map_err(|error| error.message);
        assert_eq!(order(r#"{"type":"eof"}"#), Ok(AttachOrder::Eof));
        assert!(matches!(order(r#"{"type":"signal","signal":"INT"}"#), Ok(AttachOrder::Signal(_))));
        assert!(matches!(
            order(r#"{"rows":2,"cols":3,"type":"resize"}"#),
            Ok(AttachOrder::Resize(_))
        ));
        for (bad, told) in [
            (r#"{}"#, "missing field `type`"),
            (r#"{"type":"exit"}"#, "`type` is `exit`; it must be `resize`, `signal` or `eof`"),
            (r#"{"type":"resize","rows":1}"#, "missing field `cols`"),
            (
                r#"{"type":"resize","rows":1,"cols":1,"group":true}"#,
                "unknown field `group` where `type` is `resize`",
            ),
            (
                r#"{"type":"signal","signal":1,"cols":1}"#,
                "unknown field `cols` where `type` is `signal`",
            ),
            (r#"{"type":"eof","signal":1}"#, "unknown field `signal` where `type` is `eof`"),
            (r#"{"type":"eof","row":1}"#, "unknown field `row`; did you mean `rows`?"),
        ] {
            assert_eq!(order(bad), Err(told.into()), "{bad}");
        }
        for bad in ["", "eof", r#"{"type":"eof","type":"eof"}"#] {
            assert!(order(bad).is_err(), "{bad}");
        }
    }
}
