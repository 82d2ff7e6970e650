//! The cleaner of output: text of streams and of blocking answers.
//!
//! Holds: how the bytes were cut makes no difference; no escape is left; what is only decoded is what
//! the standard library decodes; each line of a blocking answer is the stream's without what a lone
//! carriage return took back; the cap holds, and what stands under it is the head and the tail of the
//! whole text, cut between characters, with a true number between them.

use crate::cuts::pieces;
use crate::output::{Blocking, Cleaning, Streaming, chunks};

/// # Panics
/// Where a property does not hold.
pub fn clean(input: &[u8]) {
    let (cap, input) = input.split_at(input.len().min(2));
    let cap = cap.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let (parts, whole) = pieces(input);

    let streamed = stream(Cleaning::Full, &[whole]);
    assert_eq!(stream(Cleaning::Full, &parts), streamed);
    assert!(!streamed.contains('\x1b'), "an escape is left");
    let decoded = stream(Cleaning::Utf8Only, &parts);
    assert_eq!(decoded, String::from_utf8_lossy(whole));
    fits_events(&streamed);

    for (cleaning, full) in [(Cleaning::Full, lines(&streamed)), (Cleaning::Utf8Only, decoded)] {
        assert_eq!(block(cleaning, u64::MAX >> 8, &parts), (full.clone(), false));
        let capped = block(cleaning, cap, &parts);
        assert_eq!(capped, block(cleaning, cap, &[whole]));
        is_head_and_tail(&capped, &full, cap);
    }
}

fn stream(cleaning: Cleaning, parts: &[&[u8]]) -> String {
    let mut cleaner = Streaming::new(cleaning);
    let mut text: String = parts.iter().map(|part| cleaner.push(part)).collect();
    text.push_str(&cleaner.finish());
    text
}

fn block(cleaning: Cleaning, cap: u64, parts: &[&[u8]]) -> (String, bool) {
    let mut cleaner = Blocking::new(cleaning, cap);
    for part in parts {
        cleaner.push(part);
    }
    cleaner.finish()
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

/// Chunks lose nothing, and each fits an event with room for the other fields.
fn fits_events(text: &str) {
    let all: Vec<&str> = chunks(text).collect();
    assert_eq!(all.concat(), text);
    let escaped = |c: char| match c {
        '\n' | '\r' | '\t' | '"' | '\\' | '\u{8}' | '\u{c}' => 2,
        ' '..='~' => 1,
        _ => 6 * c.len_utf16(),
    };
    for chunk in all {
        let bytes: usize = chunk.chars().map(escaped).sum();
        assert!(!chunk.is_empty() && bytes + 256 <= sandkasten_types::limits::SSE_EVENT_BYTES_MAX);
    }
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
