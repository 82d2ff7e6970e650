//! The cleaner of output: events, and the fields of blocking answers.
//!
//! Holds: how the bytes were cut makes no difference; no escape is left; what is only decoded is what
//! the standard library decodes, what is not decoded is as it was; each line of a blocking answer is the
//! events' without what a lone carriage return took back; the cap holds, and what stands under it is the
//! head and the tail of the whole text, cut between characters, with a true number between them; streams
//! do not mix; what stands behind a gap is cleaned by itself.

use sandkasten_protocol::{OutputMode, RECORD_ESCAPED_MAX, Record, Stream};
use sandkasten_types::exec::{Chunk, Gap};
use sandkasten_types::limits::SSE_EVENT_BYTES_MAX;

use crate::cuts::pieces;
use crate::output::{Cleaning, Collected, Shown};

/// Bytes that make a record whatever they are: six of JSON to one at worst.
const RECORD_BYTES: usize = RECORD_ESCAPED_MAX / 6;

/// # Panics
/// Where a property does not hold.
pub fn clean(input: &[u8]) {
    let (cap, input) = input.split_at(input.len().min(2));
    let cap = cap.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let (parts, whole) = pieces(input);
    let parts: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(RECORD_BYTES)).collect();
    let records: Vec<&[u8]> = whole.chunks(RECORD_BYTES).collect();

    let shown = show(Some(Cleaning::Full), &parts);
    assert_eq!(show(Some(Cleaning::Full), &records), shown);
    assert!(!shown.contains('\x1b'), "an escape is left");
    let decoded = show(Some(Cleaning::Utf8Only), &parts);
    assert_eq!(decoded, String::from_utf8_lossy(whole));
    streams_are_apart(&parts);
    a_gap_begins_anew(&parts);

    for (cleaning, full) in [(Cleaning::Full, lines(&shown)), (Cleaning::Utf8Only, decoded)] {
        assert_eq!(collect(cleaning, u64::MAX >> 8, &parts), (full.clone(), false));
        let capped = collect(cleaning, cap, &parts);
        assert_eq!(capped, collect(cleaning, cap, &records));
        is_head_and_tail(&capped, &full, cap);
    }
    bytes_are_exact(cap, &parts, whole);
}

fn record(seq: usize, stream: Stream, data: &[u8]) -> Record {
    Record { seq: seq as u64 + 1, stream, at_ms: 0, data: data.to_vec() }
}

/// The text of an event, which fits one.
fn text(chunk: Chunk) -> String {
    let text = chunk.chunk.expect("text");
    let escaped = |c: char| match c {
        '\n' | '\r' | '\t' | '"' | '\\' | '\u{8}' | '\u{c}' => 2,
        ' '..='~' => 1,
        _ => 6 * c.len_utf16(),
    };
    let bytes: usize = text.chars().map(escaped).sum();
    assert!(!text.is_empty() && bytes + 512 <= SSE_EVENT_BYTES_MAX, "{bytes} bytes");
    text
}

fn show(cleaning: Option<Cleaning>, parts: &[&[u8]]) -> String {
    let mut shown = Shown::new(cleaning);
    let mut all = String::new();
    for (seq, part) in parts.iter().enumerate() {
        all.extend(shown.record(record(seq, Stream::Output, part)).map(text));
    }
    all.extend(shown.finish(parts.len() as u64 + 2).map(text));
    all
}

/// What is written to stdout does not change what stderr says, and the other way round.
fn streams_are_apart(parts: &[&[u8]]) {
    let mut shown = Shown::new(Some(Cleaning::Full));
    let mut texts = [String::new(), String::new()];
    let sides = [Stream::Stdout, Stream::Stderr];
    let mut put = |chunk: Chunk| {
        let side = usize::from(chunk.stream == sandkasten_types::exec::Stream::Stderr);
        texts[side].push_str(&text(chunk));
    };
    for (seq, part) in parts.iter().enumerate() {
        shown.record(record(seq, sides[seq % 2], part)).map(&mut put);
    }
    shown.finish(parts.len() as u64 + 2).for_each(put);
    for (side, text) in texts.into_iter().enumerate() {
        let own: Vec<&[u8]> = parts.iter().skip(side).step_by(2).copied().collect();
        assert_eq!(text, show(Some(Cleaning::Full), &own));
    }
}

/// Both sides of a gap are as if the other were not there, but for the rest of a character that began
/// in the gap.
fn a_gap_begins_anew(parts: &[&[u8]]) {
    let Some((last, before)) = parts.get(..parts.len() / 2).and_then(<[_]>::split_last) else {
        return;
    };
    let behind = &parts[parts.len() / 2..];
    let mut shown = Shown::new(Some(Cleaning::Full));
    let mut all = String::new();
    for (seq, part) in before.iter().enumerate() {
        all.extend(shown.record(record(seq, Stream::Output, part)).map(text));
    }
    let at = before.len();
    all.extend(shown.record_before_gap(record(at, Stream::Output, last)).map(text));
    assert_eq!(all, show(Some(Cleaning::Full), &parts[..parts.len() / 2]));
    shown.gap();
    all.clear();
    for (seq, part) in behind.iter().enumerate() {
        all.extend(shown.record(record(at + 10 + seq, Stream::Output, part)).map(text));
    }
    all.extend(shown.finish(at as u64 + 1000).map(text));
    let mut behind = behind.to_vec();
    if let Some(first) = behind.first_mut() {
        let skip = first.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        *first = &first[skip..];
    }
    assert_eq!(all, show(Some(Cleaning::Full), &behind));
}

fn collect(cleaning: Cleaning, cap: u64, parts: &[&[u8]]) -> (String, bool) {
    let mut fields = Collected::new(OutputMode::Merged, Some(cleaning), cap);
    parts.iter().for_each(|part| fields.push(Stream::Output, part));
    let (output, truncated) = fields.finish();
    (output.output.expect("text"), truncated)
}

fn bytes_are_exact(cap: u64, parts: &[&[u8]], whole: &[u8]) {
    let collect = |cap| {
        let mut fields = Collected::new(OutputMode::Split, None, cap);
        parts.iter().for_each(|part| fields.push(Stream::Stderr, part));
        let (output, truncated) = fields.finish();
        assert!(output.stdout_base64.is_some_and(|bytes| bytes.0.is_empty()));
        let (all, own) =
            (output.output_base64.expect("bytes"), output.stderr_base64.expect("bytes"));
        assert_eq!(all, own);
        (own.0, truncated)
    };
    assert_eq!(collect(u64::MAX >> 8), (whole.to_vec(), false));
    let (bytes, truncated) = collect(cap);
    assert!(bytes.len() as u64 <= cap && truncated == (whole.len() as u64 > cap));
    let mut fields = Collected::new(OutputMode::Merged, Some(Cleaning::Full), cap);
    for part in parts {
        fields.push(Stream::Output, part);
        fields.gap(&Gap { bytes: 7, from_seq: 1, to_seq: 1, seq: 1 });
    }
    let (output, truncated) = fields.finish();
    let bytes = output.output.expect("text").len() as u64;
    assert!(bytes <= cap && truncated != parts.is_empty(), "{bytes} bytes, the cap is {cap}");
}

/// Each line without everything up to its last carriage return that has text behind it.
fn lines(streamed: &str) -> String {
    let line = |line: &str| {
        let text = line.trim_end_matches('\r');
        let start = text.rfind('\r').map_or(0, |at| at + 1);
        line[start..].to_owned()
    };
    streamed.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

fn is_head_and_tail((text, truncated): &(String, bool), full: &str, cap: u64) {
    assert!(text.len() as u64 <= cap, "{} bytes, the cap is {cap}", text.len());
    assert_eq!(*truncated, full.len() as u64 > cap);
    if !truncated {
        assert_eq!(text, full);
        return;
    }
    // The output may have such a line of its own: one of them has to be ours.
    let ours = text.match_indices("[… ").any(|(at, _)| is_marker(text, at, full));
    assert!(ours || full.starts_with(text.as_str()), "{text:?} of {full:?}");
}

fn is_marker(text: &str, at: usize, full: &str) -> bool {
    let (head, rest) = text.split_at(at);
    let number = rest["[… ".len()..].split_once(" bytes left out …]\n");
    let Some((Ok(left_out), tail)) = number.map(|(number, tail)| (number.parse::<usize>(), tail))
    else {
        return false;
    };
    let heads = [Some(head), head.strip_suffix('\n')];
    heads.into_iter().flatten().any(|head| {
        full.starts_with(head)
            && full.ends_with(tail)
            && head.len().checked_add(left_out).and_then(|sum| sum.checked_add(tail.len()))
                == Some(full.len())
    })
}
