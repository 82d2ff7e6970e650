//! From the records of a run to the chunks of its events.
//!
//! One record is one event: what the cleaner holds back of one comes with the next of the same
//! stream, with the last before a gap, or with the last of all.

use sandkasten_protocol as protocol;
use sandkasten_types::Base64;
use sandkasten_types::exec::{Chunk, Stream};

use super::stream::Streaming;
use super::{Cleaning, api_stream};

/// The most bytes that a character that began in a gap may have behind it.
const CONTINUATIONS_MAX: usize = 3;

/// Makes chunks. Holds a few bytes of each stream.
#[derive(Debug)]
pub(crate) struct Shown {
    /// stdout, or all output, and stderr.
    sides: [Side; 2],
}

#[derive(Debug)]
struct Side {
    /// `None`: bytes as they are.
    cleaner: Option<Streaming>,
    cleaning: Option<Cleaning>,
    /// Of the last record: what is held back belongs to it.
    last: Option<(Stream, i64)>,
    is_behind_gap: bool,
}

impl Shown {
    /// `None`: bytes as they are.
    pub(crate) fn new(cleaning: Option<Cleaning>) -> Self {
        let side = || Side {
            cleaner: cleaning.map(Streaming::new),
            cleaning,
            last: None,
            is_behind_gap: false,
        };
        Self { sides: [side(), side()] }
    }

    /// The event of a record, if there is text for one.
    pub(crate) fn record(&mut self, record: protocol::Record) -> Option<Chunk> {
        let seq = record.seq;
        let side = self.side(record.stream);
        side.last = Some((api_stream(record.stream), record.at_ms));
        side.record(record.data, seq)
    }

    /// The event of the last record before a gap: nothing is held back.
    pub(crate) fn record_before_gap(&mut self, record: protocol::Record) -> Option<Chunk> {
        let (seq, stream) = (record.seq, record.stream);
        let chunk = self.record(record);
        let rest = self.side(stream).finish(seq);
        match (chunk, rest) {
            (Some(mut chunk), Some(rest)) => {
                if let (Some(text), Some(more)) = (&mut chunk.chunk, rest.chunk) {
                    text.push_str(&more);
                }
                Some(chunk)
            }
            (chunk, rest) => chunk.or(rest),
        }
    }

    /// Bytes are missing here: what follows is cleaned by itself.
    pub(crate) fn gap(&mut self) {
        for side in &mut self.sides {
            side.cleaner = side.cleaning.map(Streaming::new);
            side.is_behind_gap = true;
        }
    }

    /// The events of what was held back to the end, numbered from `seq` on: one a stream at most.
    pub(crate) fn finish(&mut self, seq: u64) -> impl Iterator<Item = Chunk> {
        let chunks = self.sides.each_mut().map(|side| {
            let chunk = side.finish(seq);
            side.cleaner = side.cleaning.map(Streaming::new);
            chunk
        });
        (seq..).zip(chunks.into_iter().flatten()).map(|(seq, chunk)| Chunk { seq, ..chunk })
    }

    fn side(&mut self, stream: protocol::Stream) -> &mut Side {
        let [first, second] = &mut self.sides;
        if stream == protocol::Stream::Stderr { second } else { first }
    }
}

impl Side {
    fn record(&mut self, data: Vec<u8>, seq: u64) -> Option<Chunk> {
        let is_behind_gap = std::mem::take(&mut self.is_behind_gap);
        let Some(cleaner) = &mut self.cleaner else {
            return self.chunk(None, Some(Base64(data)), seq);
        };
        let skip = if is_behind_gap { continuations(&data) } else { 0 };
        let text = cleaner.push(data.get(skip..).unwrap_or_default());
        self.text_chunk(text, seq)
    }

    fn finish(&mut self, seq: u64) -> Option<Chunk> {
        let text = self.cleaner.as_mut()?.finish();
        self.text_chunk(text, seq)
    }

    fn text_chunk(&self, text: String, seq: u64) -> Option<Chunk> {
        if text.is_empty() { None } else { self.chunk(Some(text), None, seq) }
    }

    fn chunk(&self, chunk: Option<String>, bytes: Option<Base64>, seq: u64) -> Option<Chunk> {
        let (stream, timestamp) = self.last?;
        Some(Chunk { chunk, chunk_base64: bytes, timestamp, stream, seq })
    }
}

/// Bytes at the beginning that belong to a character that is not there.
fn continuations(data: &[u8]) -> usize {
    data.iter().take(CONTINUATIONS_MAX).take_while(|byte| **byte & 0xC0 == 0x80).count()
}

#[cfg(test)]
mod test {
    use super::*;

    fn record(seq: u64, stream: protocol::Stream, data: &[u8]) -> protocol::Record {
        protocol::Record { seq, stream, at_ms: 100 + seq.cast_signed(), data: data.to_vec() }
    }

    fn text(chunk: &Chunk) -> (u64, &str) {
        (chunk.seq, chunk.chunk.as_deref().unwrap())
    }

    #[test]
    fn what_is_held_back_comes_with_the_next_or_the_last() {
        use protocol::Stream::Output;
        let mut shown = Shown::new(Some(Cleaning::Full));
        assert_eq!(text(&shown.record(record(1, Output, b"a\xC3")).unwrap()), (1, "a"));
        assert_eq!(text(&shown.record(record(2, Output, b"\xA4\r")).unwrap()), (2, "ä"));
        assert_eq!(shown.record(record(3, Output, b"\x1b[1")), None);
        let last: Vec<Chunk> = shown.finish(5).collect();
        assert_eq!(last.len(), 1);
        assert_eq!((text(&last[0]), last[0].timestamp), ((5, "\r"), 103));
        assert_eq!(shown.finish(7).count(), 0);
    }

    #[test]
    fn streams_are_cleaned_apart() {
        use protocol::Stream::{Stderr, Stdout};
        let mut shown = Shown::new(Some(Cleaning::Full));
        assert_eq!(shown.record(record(1, Stdout, b"\xE2\x82")), None);
        let error = shown.record(record(2, Stderr, b"e")).unwrap();
        assert_eq!((text(&error), error.stream), ((2, "e"), Stream::Stderr));
        assert_eq!(text(&shown.record(record(3, Stdout, b"\xAC")).unwrap()), (3, "€"));
    }

    #[test]
    fn what_both_streams_hold_back_has_two_numbers() {
        use protocol::Stream::{Stderr, Stdout};
        let mut shown = Shown::new(Some(Cleaning::Full));
        assert_eq!(shown.record(record(1, Stdout, b"\r")), None);
        assert_eq!(shown.record(record(2, Stderr, b"\xE2")), None);
        let last: Vec<Chunk> = shown.finish(3).collect();
        assert_eq!(last.iter().map(text).collect::<Vec<_>>(), [(3, "\r"), (4, "\u{FFFD}")]);
    }

    #[test]
    fn behind_a_gap_it_begins_anew() {
        use protocol::Stream::Output;
        let mut shown = Shown::new(Some(Cleaning::Full));
        let before = shown.record_before_gap(record(1, Output, b"a\xE2\x82")).unwrap();
        assert_eq!(text(&before), (1, "a\u{FFFD}"));
        shown.gap();
        let behind = shown.record(record(9, Output, b"\x82\xACb\x80")).unwrap();
        assert_eq!(text(&behind), (9, "b\u{FFFD}"));
        let mut bytes = Shown::new(None);
        bytes.gap();
        let chunk = bytes.record(record(1, Output, b"\x82\xAC")).unwrap();
        assert_eq!(chunk.chunk_base64, Some(Base64(b"\x82\xAC".to_vec())));
    }
}
