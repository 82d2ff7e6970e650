//! The text of a blocking answer: each line as a terminal would show it at the end, capped.

use super::Cleaning;
use super::cap::HeadTail;
use super::escape::Escape;
use super::utf8::Utf8;

/// Collects a command's output. Holds the cap, and of the line that is being written up to as much
/// again: a carriage return may still take that line back, whatever it pushed out.
#[derive(Debug)]
pub(super) struct Blocking {
    cleaning: Cleaning,
    utf8: Utf8,
    escape: Escape,
    lines: Lines,
}

impl Blocking {
    /// `cap` is in bytes of cleaned text.
    pub(super) fn new(cleaning: Cleaning, cap: u64) -> Self {
        let cap = usize::try_from(cap).unwrap_or(usize::MAX);
        Self {
            cleaning,
            utf8: Utf8::default(),
            escape: Escape::default(),
            lines: Lines { kept: HeadTail::new(cap), line: HeadTail::new(cap), returns: 0 },
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        let Self { cleaning, utf8, escape, lines } = self;
        utf8.push(bytes, |text| match cleaning {
            Cleaning::Full => escape.push(text, |text| lines.push(text)),
            Cleaning::Utf8Only => lines.kept.push(text.as_bytes()),
        });
    }

    /// So many bytes are missing here.
    pub(super) fn gap(&mut self, bytes: u64) {
        self.flush();
        self.escape = Escape::default();
        let lines = &mut self.lines;
        lines.keep_returns(0);
        lines.kept.take(&mut lines.line);
        lines.kept.gap(bytes);
    }

    /// The text, and whether something was left out of it.
    pub(super) fn finish(mut self) -> (String, bool) {
        self.flush();
        self.lines.finish()
    }

    fn flush(&mut self) {
        let Self { cleaning, utf8, escape, lines } = self;
        utf8.finish(|text| match cleaning {
            Cleaning::Full => escape.push(text, |text| lines.push(text)),
            Cleaning::Utf8Only => lines.kept.push(text.as_bytes()),
        });
    }
}

#[derive(Debug)]
struct Lines {
    /// Whole lines.
    kept: HeadTail,
    /// The line that is being written.
    line: HeadTail,
    /// Carriage returns at its end, not yet in it: what follows decides what they are.
    returns: usize,
}

impl Lines {
    fn push(&mut self, text: &str) {
        let mut rest = text.as_bytes();
        while let Some(first) = rest.first() {
            match first {
                b'\r' => {
                    self.returns += 1;
                    rest = rest.get(1..).unwrap_or_default();
                }
                b'\n' => {
                    self.end_line();
                    rest = rest.get(1..).unwrap_or_default();
                }
                _ => rest = self.plain(rest),
            }
        }
    }

    /// Takes text up to the next carriage return, whole lines in one go.
    fn plain<'a>(&mut self, text: &'a [u8]) -> &'a [u8] {
        if self.returns > 0 {
            // Text behind a lone carriage return: the line is written anew.
            self.line.clear();
            self.returns = 0;
        }
        let end = text.iter().position(|b| *b == b'\r').unwrap_or(text.len());
        let (plain, rest) = text.split_at(end);
        // The line feed before a carriage return closes its line: what follows it is a new one.
        let whole = plain.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let (lines, last) = plain.split_at(whole);
        if !lines.is_empty() {
            self.kept.take(&mut self.line);
            self.kept.push(lines);
        }
        self.line.push(last);
        rest
    }

    /// A line feed, perhaps behind carriage returns: the last of them is a part of it.
    fn end_line(&mut self) {
        self.keep_returns(1);
        self.line.push(b"\n");
        self.kept.take(&mut self.line);
    }

    /// Puts the carriage returns that have no text behind them into the line, but for `less` of them.
    fn keep_returns(&mut self, less: usize) {
        for _ in less..self.returns {
            self.line.push(b"\r");
        }
        self.returns = 0;
    }

    fn finish(mut self) -> (String, bool) {
        self.keep_returns(0);
        self.kept.take(&mut self.line);
        self.kept.into_text()
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn cleaned(parts: &[&[u8]], cap: u64) -> (String, bool) {
        let mut output = Blocking::new(Cleaning::Full, cap);
        for part in parts {
            output.push(part);
        }
        output.finish()
    }

    #[test]
    fn lines_are_as_a_terminal_shows_them() {
        for (bytes, want) in [
            (&b"a\r\nb\r\n"[..], "a\nb\n"),
            (b"10%\r20%\r30%\ndone\n", "30%\ndone\n"),
            (b"10%\r20%\r\nx", "20%\nx"),
            (b"kept\r", "kept\r"),
            (b"kept\r\r\n", "kept\r\n"),
            (b"one\nxx\r\rtwo", "one\ntwo"),
            (b"a\r\x1b[K\nb", "a\nb"),
            (b"a\rb\0c\xff\n", "b\0c\u{FFFD}\n"),
            (b"", ""),
        ] {
            assert_eq!(cleaned(&[bytes], 1000).0, want, "{bytes:?}");
        }
    }

    #[test]
    fn a_line_that_is_taken_back_pushes_nothing_out() {
        let mut bytes = b"first\nsecond\n".to_vec();
        bytes.extend([b'x'; 500]);
        bytes.extend(b"\rlast\n");
        assert_eq!(cleaned(&[&bytes], 100), ("first\nsecond\nlast\n".into(), false));
    }

    #[test]
    fn raw_output_keeps_all_but_invalid_bytes() {
        let mut output = Blocking::new(Cleaning::Utf8Only, 100);
        output.push(b"\x1b[1ma\r\nb\rc\xff");
        assert_eq!(output.finish().0, "\x1b[1ma\r\nb\rc\u{FFFD}");
    }

    pub(in crate::output) fn terminal_bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just(b"\r".to_vec()),
            Just(b"\n".to_vec()),
            Just(b"\r\n".to_vec()),
            Just(b"\x1b".to_vec()),
            Just(b"\x1b[1".to_vec()),
            Just(b"\x1b]0;t\x07".to_vec()),
            Just(b"\x1b]x\x1b".to_vec()),
            Just("é😀".as_bytes().to_vec()),
            Just(b"m\\".to_vec()),
            Just(b"text".to_vec()),
            prop::collection::vec(any::<u8>(), 0..4),
        ];
        prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_text(bytes in terminal_bytes(), cuts in prop::collection::vec(0usize..120, 0..6), cap in 1u64..200) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            let whole = cleaned(&[&bytes], cap);
            prop_assert_eq!(&cleaned(&parts, cap), &whole);
            prop_assert!(whole.0.len() as u64 <= cap);
        }
    }
}
