//! A strict reader of event streams.
//!
//! Invariant: what the contract forbids is a panic at the place where it stands; nothing is
//! repaired. Each event lies in one HTTP chunk of at most 8 KiB, all bytes are ASCII, ids rise. A live
//! stream has exactly one `done` or `error`, and it is last; a replay may end anywhere, and has output
//! of children behind `done` or `exit`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::http::{Chunk, Stream, shorten};
use crate::openapi::Document;

/// The TypeScript client forgets an event's name between two reads.
pub const EVENT_BYTES_MAX: usize = 8 * 1024;

/// One event.
#[derive(Debug, Clone)]
pub struct Event {
    pub name: String,
    pub id: u64,
    pub data: Value,
    /// As it was sent.
    pub text: String,
    /// Since the request was sent.
    pub at: Duration,
}

/// What a stream may look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// `…/exec/stream`.
    Live,
    /// `…/events`.
    Replay,
}

/// The events of one stream, in order.
#[derive(Debug)]
pub struct Events {
    stream: Stream,
    document: Option<Arc<Document>>,
    ready: std::collections::VecDeque<Event>,
    rule: Rule,
    last_id: u64,
    over: bool,
    ends: usize,
    /// When comment lines came.
    pub comments: Vec<Duration>,
}

impl Events {
    pub(crate) fn new(stream: Stream, rule: Rule) -> Self {
        let document = stream.document();
        let ready = std::collections::VecDeque::new();
        let comments = Vec::new();
        Self { stream, document, ready, rule, last_id: 0, over: false, ends: 0, comments }
    }

    /// Reads a replay to the end of its body, wherever that is.
    ///
    /// # Panics
    /// Where it breaks a rule.
    #[must_use]
    pub fn all(mut self) -> Vec<Event> {
        self.by_ref().collect()
    }

    /// Reads to the end of the body.
    ///
    /// # Panics
    /// Where the stream breaks a rule, or ends without `done` or `error`.
    #[must_use]
    pub fn finish(mut self) -> Played {
        let events: Vec<Event> = self.by_ref().collect();
        let end = events.last().map(|event| event.name.clone()).unwrap_or_default();
        assert!(matches!(end.as_str(), "done" | "error"), "stream without its end: {events:?}");
        Played { events, comments: self.comments }
    }

    fn read(&mut self, chunk: &Chunk) {
        let data = &chunk.data;
        assert!(data.is_ascii(), "bytes beyond ASCII: {}", shorten(&String::from_utf8_lossy(data)));
        let text = String::from_utf8_lossy(data);
        assert!(text.ends_with("\n\n"), "an event in two pieces: {}", shorten(&text));
        for block in text.split_terminator("\n\n") {
            assert!(!self.over, "text after the end event: {block}");
            assert!(block.len() + 2 <= EVENT_BYTES_MAX, "an event of {} bytes", block.len() + 2);
            if block.lines().all(|line| line.starts_with(':')) {
                self.comments.push(chunk.at);
            } else {
                let event = self.parse(block, chunk.at);
                self.ready.push_back(event);
            }
        }
    }

    fn parse(&mut self, block: &str, at: Duration) -> Event {
        let field = |name: &str| {
            let mut found = block.split('\n').filter_map(|line| line.strip_prefix(name));
            let value = found.next().unwrap_or_else(|| panic!("no `{name}` in {block:?}"));
            assert!(found.next().is_none(), "two `{name}` in {block:?}");
            value.to_owned()
        };
        assert_eq!(block.split('\n').count(), 3, "three lines: {block:?}");
        assert!(!block.contains('\r'), "a carriage return: {block:?}");
        let (name, id) = (field("event: "), field("id: "));
        let id: u64 = id.parse().unwrap_or_else(|_| panic!("id {id:?}"));
        let data: Value = serde_json::from_str(&field("data: ")).expect("data is JSON");
        // A stream that the daemon cuts off has no event more.
        let rises = id > self.last_id || (name == "error" && id == self.last_id);
        assert!(rises, "id {id} after {}", self.last_id);
        self.last_id = id;
        let is_end = matches!(name.as_str(), "done" | "exit");
        self.ends += usize::from(is_end);
        assert!(self.ends <= 1, "a second end: {name}");
        self.over = name == "error" || (is_end && self.rule == Rule::Live);
        let is_known = match self.rule {
            Rule::Live => matches!(name.as_str(), "chunk" | "done" | "error"),
            Rule::Replay => {
                matches!(name.as_str(), "chunk" | "output" | "gap" | "done" | "exit" | "error")
            }
        };
        assert!(is_known, "event {name:?}");
        if let Some(document) = &self.document {
            document.check_event(&name, &data);
        }
        Event { name, id, data, text: block.to_owned(), at }
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            let chunk = self.stream.next_chunk()?;
            self.read(&chunk);
        }
        self.ready.pop_front()
    }
}

/// A stream that was read to its end.
#[derive(Debug)]
pub struct Played {
    pub events: Vec<Event>,
    pub comments: Vec<Duration>,
}

impl Played {
    /// Name and data of the last event.
    ///
    /// # Panics
    /// Never: a stream without an end event is not [`Played`].
    #[must_use]
    pub fn end(&self) -> &Event {
        self.events.last().expect("an end event")
    }

    /// The data of `done`.
    ///
    /// # Panics
    /// Where the stream ended otherwise.
    #[must_use]
    #[track_caller]
    pub fn done(&self) -> &Value {
        assert_eq!(self.end().name, "done", "{:?}", self.end());
        &self.end().data
    }

    /// The text of all chunks.
    #[must_use]
    pub fn text(&self) -> String {
        self.events.iter().filter_map(|event| event.data["chunk"].as_str()).collect()
    }
}
