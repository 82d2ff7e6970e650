//! Event streams.
//!
//! Each event is one body frame and one write: between two frames the stream is pending once, so that
//! hyper flushes. Clients that forget an event's name between two reads depend on that, and on the
//! events being small (the engine cuts its chunks so). Beyond ASCII everything is escaped: some line
//! readers split at U+2028 and U+0085.
//!
//! Invariant: exactly one `done` or `error`, last, then the body ends.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::Stream;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use sandkasten_engine::{ExecEvent, ExecHandle};
use sandkasten_types::limits::SSE_HEARTBEAT_SECONDS;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use tokio::time::{Instant, Sleep, sleep};

use crate::error::ApiError;
use crate::request_id::RequestId;

const SILENCE: Duration = Duration::from_secs(SSE_HEARTBEAT_SECONDS);
const KEEPALIVE: Bytes = Bytes::from_static(b": keepalive\n\n");

/// The events of an exec, to its end.
pub(crate) fn exec_events(handle: ExecHandle, id: RequestId) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    let source = ExecSource { handle: Some(handle), last_seq: 0, id };
    (headers, Body::from_stream(Events::new(source))).into_response()
}

/// Where events come from, one after the other; `None` after the last.
pub(crate) trait Source: Send + Sized + 'static {
    fn next(self) -> impl Future<Output = Option<(Self, Bytes)>> + Send;
}

struct ExecSource {
    /// `None` after the last event.
    handle: Option<ExecHandle>,
    last_seq: u64,
    id: RequestId,
}

impl Source for ExecSource {
    async fn next(mut self) -> Option<(Self, Bytes)> {
        let event = self.handle.as_mut()?.next().await;
        let bytes = match event {
            Some(ExecEvent::Chunk(chunk)) => {
                self.last_seq = chunk.seq;
                let bytes = event_bytes(chunk.seq, "chunk", &chunk);
                return Some((self, bytes));
            }
            Some(ExecEvent::Gap(gap)) => {
                self.last_seq = gap.seq;
                let bytes = event_bytes(gap.seq, "gap", &gap);
                return Some((self, bytes));
            }
            Some(ExecEvent::Done { seq, end }) => event_bytes(seq, "done", &end),
            Some(ExecEvent::Failed { seq, error }) => self.error(seq, error.into()),
            None => {
                let error = ApiError::internal("the engine's events ended without a result");
                self.error(self.last_seq + 1, error)
            }
        };
        self.handle = None;
        Some((self, bytes))
    }
}

impl ExecSource {
    fn error(&self, seq: u64, error: ApiError) -> Bytes {
        if let Some(chain) = &error.internal {
            let chain = chain.escape_debug();
            tracing::error!(request_id = %self.id, cause = %chain, "internal error in a stream");
        }
        event_bytes(seq, "error", &error.datum(&self.id))
    }
}

type Pending<S> = Pin<Box<dyn Future<Output = Option<(S, Bytes)>> + Send>>;

/// The body: events as they come, comments in the silence between them.
struct Events<S> {
    /// Not dropped for a comment: waiting for an event need not survive that.
    next: Option<Pending<S>>,
    silence: Pin<Box<Sleep>>,
    /// An event was handed out and must leave before the next one is asked for.
    flush: bool,
}

impl<S: Source> Events<S> {
    fn new(source: S) -> Self {
        Self {
            next: Some(Box::pin(source.next())),
            silence: Box::pin(sleep(SILENCE)),
            flush: false,
        }
    }

    fn hand_out(&mut self, bytes: Bytes) -> Poll<Option<io::Result<Bytes>>> {
        self.flush = true;
        self.silence.as_mut().reset(Instant::now() + SILENCE);
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl<S: Source> Stream for Events<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        if std::mem::take(&mut self.flush) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        match next.as_mut().poll(cx) {
            Poll::Ready(None) => {
                self.next = None;
                Poll::Ready(None)
            }
            Poll::Ready(Some((source, bytes))) => {
                self.next = Some(Box::pin(source.next()));
                self.hand_out(bytes)
            }
            Poll::Pending => match self.silence.as_mut().poll(cx) {
                Poll::Ready(()) => self.hand_out(KEEPALIVE),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

/// `id`, `event`, `data` and the empty line, in ASCII.
fn event_bytes(id: u64, name: &str, datum: &impl Serialize) -> Bytes {
    let mut bytes = format!("id: {id}\nevent: {name}\ndata: ").into_bytes();
    let mut serializer = Serializer::with_formatter(&mut bytes, Ascii(CompactFormatter));
    if let Err(error) = datum.serialize(&mut serializer) {
        // Our own types always serialise.
        tracing::error!(%error, "event not serialised");
    }
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

/// JSON in which every character beyond ASCII is `\uXXXX`.
struct Ascii(CompactFormatter);

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(|c: char| !c.is_ascii()) {
            let (ascii, beyond) = rest.split_at(at);
            writer.write_all(ascii.as_bytes())?;
            let mut chars = beyond.chars();
            if let Some(c) = chars.next() {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
            rest = chars.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod test {
    use futures_util::StreamExt;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn parse(bytes: &[u8]) -> (u64, String, Value) {
        let text = std::str::from_utf8(bytes).unwrap();
        assert!(text.is_ascii());
        let lines: Vec<_> = text.split('\n').collect();
        assert_eq!((lines.len(), lines[3], lines[4]), (5, "", ""), "{text}");
        let field = |line: &str, name: &str| line.strip_prefix(name).unwrap().to_owned();
        (
            field(lines[0], "id: ").parse().unwrap(),
            field(lines[1], "event: "),
            serde_json::from_str(&field(lines[2], "data: ")).unwrap(),
        )
    }

    proptest! {
        #[test]
        fn any_text_is_one_event_of_ascii_lines(text in any::<String>(), id in any::<u64>()) {
            let datum = json!({ "chunk": text });
            prop_assert_eq!(parse(&event_bytes(id, "chunk", &datum)), (id, "chunk".into(), datum));
        }
    }

    #[test]
    fn text_that_looks_like_events_stays_data() {
        let text =
            "data: x\n\nevent: done\ndata: {}\n\n:c\r\n\rid: 5\n\u{2028}\u{2029}\u{85}\u{1f600}";
        let datum = json!({ "chunk": text });
        assert_eq!(parse(&event_bytes(7, "chunk", &datum)).2, datum);
    }

    struct Counted(u32);

    impl Source for Counted {
        async fn next(self) -> Option<(Self, Bytes)> {
            match self.0 {
                0 => None,
                n => Some((Self(n - 1), Bytes::from(n.to_string()))),
            }
        }
    }

    struct Silent;

    impl Source for Silent {
        async fn next(self) -> Option<(Self, Bytes)> {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn events_come_in_order_and_then_the_body_ends() {
        let all: Vec<_> = Events::new(Counted(3)).map(|bytes| bytes.unwrap()).collect().await;
        assert_eq!(all, ["3", "2", "1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_with_comments() {
        let mut events = Events::new(Silent);
        for _ in 0..3 {
            let before = Instant::now();
            assert_eq!(events.next().await.unwrap().unwrap(), KEEPALIVE);
            assert_eq!(before.elapsed().as_secs(), SSE_HEARTBEAT_SECONDS);
        }
    }
}
