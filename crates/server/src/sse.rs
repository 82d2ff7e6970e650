//! Event streams.
//!
//! Each event is one body frame and one write: between two frames the stream is pending once, so that
//! hyper flushes. Clients that forget an event's name between two reads depend on that, and on the
//! events being small (the engine cuts its chunks so). Beyond ASCII everything is escaped: some line
//! readers split at U+2028 and U+0085.
//!
//! ```text
//! engine's events ──> Run (routes/NOUN) ──> Told: ids, errors, drain ──> Events: silence, flushes ──> body
//! ```
//!
//! Invariants: a stream that tells of a run to its end has exactly one `done` or `error`, last, then the body
//! ends. A replay has the same events with the same bytes each time, and may end anywhere.

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
use sandkasten_types::exec::StreamError;
use sandkasten_types::limits::SSE_HEARTBEAT_SECONDS;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::exchange::Subject;

const SILENCE: Duration = Duration::from_secs(SSE_HEARTBEAT_SECONDS);
const KEEPALIVE: Bytes = Bytes::from_static(b": keepalive\n\n");

/// An event stream as an answer.
pub(crate) fn stream<S: Source>(source: S) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
    ];
    (headers, Body::from_stream(Events::new(source))).into_response()
}

/// Where events come from, one after the other; `None` after the last.
pub(crate) trait Source: Send + Sized + 'static {
    fn next(self) -> impl Future<Output = Option<(Self, Bytes)>> + Send;
}

/// Of whom a stream tells.
pub(crate) trait Run: Send + 'static {
    /// The next event; `None` where there are no more.
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send;
}

/// One event, not yet written.
pub(crate) enum Event {
    /// Output, a gap in it, or the end with output of children behind it.
    Some { id: u64, bytes: Bytes },
    /// The end, with nothing behind it.
    Last(Bytes),
    /// Last, too.
    Failed { id: u64, error: ApiError },
}

/// Some event with its datum.
pub(crate) fn some(id: u64, name: &str, datum: &impl Serialize) -> Event {
    Event::Some { id, bytes: event_bytes(id, name, datum) }
}

/// The last one.
pub(crate) fn last(id: u64, name: &str, datum: &impl Serialize) -> Event {
    Event::Last(event_bytes(id, name, datum))
}

/// How a stream may end.
#[derive(Debug, Clone)]
pub(crate) enum Until {
    /// By its run's end alone. A daemon that stops lets it go on for as long as requests may.
    End,
    /// Anywhere: the client asked for what there is, and comes again for more. A daemon that stops says so.
    Whenever { draining: CancellationToken },
}

/// The events of a run, and what is said where they break off.
pub(crate) struct Told<R> {
    /// `None` after the last event.
    run: Option<R>,
    until: Until,
    last_id: u64,
    subject: Subject,
}

impl<R: Run> Told<R> {
    pub(crate) fn new(run: R, until: Until, subject: Subject) -> Self {
        Self { run: Some(run), until, last_id: 0, subject }
    }

    /// Where the client has the events up to `after` already.
    pub(crate) fn behind(self, after: u64) -> Self {
        Self { last_id: after, ..self }
    }

    async fn event(&mut self) -> Option<Event> {
        let run = self.run.as_mut()?;
        match &self.until {
            Until::End => Some(run.next().await.unwrap_or_else(|| {
                let error = ApiError::internal("the engine's events ended without a result");
                Event::Failed { id: self.last_id + 1, error }
            })),
            Until::Whenever { draining } => tokio::select! {
                biased;
                event = run.next() => event,
                // No event of the run's, so its number is none of theirs: a client goes on behind the last.
                () = draining.cancelled() => {
                    Some(Event::Failed { id: self.last_id, error: ApiError::draining() })
                }
            },
        }
    }

    fn error(&self, id: u64, error: &ApiError) -> Bytes {
        self.subject.set_code(error.code);
        let request_id = self.subject.request_id();
        if let Some(chain) = &error.internal {
            let chain = chain.escape_debug();
            tracing::error!(%request_id, cause = %chain, "internal error in a stream");
        }
        let datum = StreamError { seq: Some(id), ..error.datum(request_id) };
        event_bytes(id, "error", &datum)
    }
}

impl<R: Run> Source for Told<R> {
    async fn next(mut self) -> Option<(Self, Bytes)> {
        let bytes = match self.event().await? {
            Event::Some { id, bytes } => {
                self.last_id = id;
                return Some((self, bytes));
            }
            Event::Last(bytes) => bytes,
            Event::Failed { id, error } => self.error(id, &error),
        };
        self.run = None;
        Some((self, bytes))
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
    use crate::request_id::RequestId;

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

    /// Counts down; with `ends` the last event is its end.
    struct Countdown {
        left: u64,
        ends: bool,
    }

    impl Run for Countdown {
        async fn next(&mut self) -> Option<Event> {
            self.left = self.left.checked_sub(1)?;
            let id = 10 - self.left;
            let is_end = self.ends && self.left == 0;
            Some(if is_end { last(id, "done", &id) } else { some(id, "chunk", &id) })
        }
    }

    async fn told(run: impl Run, until: Until) -> Vec<(u64, String)> {
        let told = Told::new(run, until, Subject::new(RequestId::new()));
        let events = Events::new(told).map(|bytes| bytes.unwrap());
        events.map(|bytes| parse(&bytes)).map(|(id, name, _)| (id, name)).collect().await
    }

    #[tokio::test]
    async fn a_run_is_told_to_its_end() {
        let names = |events: Vec<(u64, String)>| {
            events.iter().map(|(id, name)| format!("{id} {name}")).collect::<Vec<_>>()
        };
        let whole = Countdown { left: 3, ends: true };
        assert_eq!(names(told(whole, Until::End).await), ["8 chunk", "9 chunk", "10 done"]);
        let broken = Countdown { left: 2, ends: false };
        assert_eq!(names(told(broken, Until::End).await), ["9 chunk", "10 chunk", "11 error"]);
        let draining = CancellationToken::new();
        let until = Until::Whenever { draining: draining.clone() };
        let part = Countdown { left: 2, ends: false };
        assert_eq!(names(told(part, until.clone()).await), ["9 chunk", "10 chunk"]);
        draining.cancel();
        struct Waits;
        impl Run for Waits {
            async fn next(&mut self) -> Option<Event> {
                std::future::pending().await
            }
        }
        let told = Told::new(Waits, until, Subject::new(RequestId::new())).behind(7);
        let event = Events::new(told).next().await.unwrap().unwrap();
        let (id, name, datum) = parse(&event);
        assert_eq!(
            (id, name.as_str(), datum["error_code"].as_str()),
            (7, "error", Some("DRAINING"))
        );
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
