//! The text of events. Lone carriage returns stay: a chunk that was sent can't be taken back.

use super::Cleaning;
use super::escape::Escape;
use super::utf8::Utf8;

/// Cleans a command's output as it comes. Holds a few bytes.
#[derive(Debug)]
pub(super) struct Streaming {
    cleaning: Cleaning,
    utf8: Utf8,
    escape: Escape,
    /// The text ended with a carriage return; what follows decides whether it is a part of a line end.
    carriage_return: bool,
}

impl Streaming {
    pub(super) fn new(cleaning: Cleaning) -> Self {
        Self { cleaning, utf8: Utf8::default(), escape: Escape::default(), carriage_return: false }
    }

    /// The text of `bytes`, with what was held back before and without what must be held back now.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        let mut out = String::with_capacity(bytes.len());
        let Self { cleaning, utf8, escape, carriage_return } = self;
        utf8.push(bytes, |text| match cleaning {
            Cleaning::Full => escape.push(text, |text| line_ends(carriage_return, text, &mut out)),
            Cleaning::Utf8Only => out.push_str(text),
        });
        out
    }

    /// The text that was held back to the end.
    pub(super) fn finish(&mut self) -> String {
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

    proptest! {
        #[test]
        fn any_split_gives_the_same_text(bytes in prop::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(0x1B), Just(b'['), Just(b'm'), any::<u8>()], 0..60), at in 0usize..60, then in 0usize..60) {
            let at = at.min(bytes.len());
            let then = then.clamp(at, bytes.len());
            prop_assert_eq!(cleaned(&[&bytes[..at], &bytes[at..then], &bytes[then..]]), cleaned(&[&bytes]));
        }
    }
}
