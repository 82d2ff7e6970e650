//! The text of events. Lone carriage returns stay: a chunk that was sent can't be taken back.

use sandkasten_types::limits::SSE_EVENT_BYTES_MAX;

use super::Cleaning;
use super::escape::Escape;
use super::utf8::Utf8;

/// Bytes of one chunk once it is escaped for JSON in ASCII; the rest of an event is its other fields.
const CHUNK_ESCAPED_MAX: usize = SSE_EVENT_BYTES_MAX - 512;

/// Cleans a command's output as it comes. Holds a few bytes.
#[derive(Debug)]
pub(crate) struct Streaming {
    cleaning: Cleaning,
    utf8: Utf8,
    escape: Escape,
    /// The text ended with a carriage return; what follows decides whether it is a part of a line end.
    carriage_return: bool,
}

impl Streaming {
    pub(crate) fn new(cleaning: Cleaning) -> Self {
        Self { cleaning, utf8: Utf8::default(), escape: Escape::default(), carriage_return: false }
    }

    /// The text of `bytes`, with what was held back before and without what must be held back now.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len());
        let Self { cleaning, utf8, escape, carriage_return } = self;
        utf8.push(bytes, |text| match cleaning {
            Cleaning::Full => escape.push(text, |text| line_ends(carriage_return, text, &mut out)),
            Cleaning::Utf8Only => out.push_str(text),
        });
        out
    }

    /// The text that was held back to the end.
    pub(crate) fn finish(&mut self) -> String {
        let mut out = String::new();
        let Self { cleaning, utf8, escape, carriage_return } = self;
        utf8.finish(|text| match cleaning {
            Cleaning::Full => escape.push(text, |text| line_ends(carriage_return, text, &mut out)),
            Cleaning::Utf8Only => out.push_str(text),
        });
        if std::mem::take(carriage_return) {
            out.push('\r');
        }
        out
    }
}

/// CRLF to LF, over the edges of chunks.
fn line_ends(carriage_return: &mut bool, text: &str, out: &mut String) {
    if text.is_empty() {
        return;
    }
    if std::mem::take(carriage_return) && !text.starts_with('\n') {
        out.push('\r');
    }
    let mut rest = text;
    if let Some(before) = text.strip_suffix('\r') {
        *carriage_return = true;
        rest = before;
    }
    let mut lines = rest.split("\r\n");
    out.push_str(lines.next().unwrap_or_default());
    for line in lines {
        out.push('\n');
        out.push_str(line);
    }
}

/// Cuts a text into chunks that fit an event each, between characters.
pub(crate) fn chunks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut escaped = 0;
        let end = rest.char_indices().find_map(|(at, c)| {
            escaped += escaped_len(c);
            (escaped > CHUNK_ESCAPED_MAX).then_some(at)
        });
        let (chunk, behind) = rest.split_at(end.unwrap_or(rest.len()));
        rest = behind;
        Some(chunk)
    })
}

/// Bytes of a character in ASCII-only JSON.
fn escaped_len(c: char) -> usize {
    match c {
        '\n' | '\r' | '\t' | '"' | '\\' | '\u{8}' | '\u{c}' => 2,
        ' '..='~' => 1,
        _ => 6 * c.len_utf16(),
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn cleaned(parts: &[&[u8]]) -> String {
        let mut output = Streaming::new(Cleaning::Full);
        let mut text: String = parts.iter().map(|part| output.push(part)).collect();
        text.push_str(&output.finish());
        text
    }

    #[test]
    fn lone_returns_stay_and_line_ends_are_line_feeds() {
        assert_eq!(cleaned(&[b"a\r", b"\nb\rc\r\r\n", b"d\r"]), "a\nb\rc\r\nd\r");
    }

    #[test]
    fn chunks_fit_an_event_and_lose_nothing() {
        let text = format!("{}{}{}", "\0".repeat(3000), "😀".repeat(3000), "a".repeat(20_000));
        let parts: Vec<&str> = chunks(&text).collect();
        assert_eq!(parts.concat(), text);
        for part in parts {
            let escaped: usize = part.chars().map(escaped_len).sum();
            assert!(escaped <= CHUNK_ESCAPED_MAX && !part.is_empty());
        }
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_text(bytes in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(0x1B), Just(b'['), Just(b'm'), any::<u8>()], 0..60), at in 0usize..60, then in 0usize..60) {
            let at = at.min(bytes.len());
            let then = then.clamp(at, bytes.len());
            prop_assert_eq!(cleaned(&[&bytes[..at], &bytes[at..then], &bytes[then..]]), cleaned(&[&bytes]));
        }
    }
}
