//! Removes terminal escape sequences: CSI, OSC, and ESC with what it introduces.

const ESC: u8 = 0x1B;
const BEL: u8 = 0x07;

/// Bytes after `ESC ]` that are removed at most: a stray one must not swallow the rest of an output.
const OSC_BYTES_MAX: usize = 4096;

/// Where the text stands in a sequence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Text,
    /// Behind ESC.
    Escape,
    /// Behind ESC and intermediate bytes, as in `ESC ( B`.
    Intermediate,
    /// Behind `ESC [`.
    Csi,
    /// Behind `ESC ]`, with the bytes since then.
    Osc { bytes: usize },
    /// Behind ESC in an OSC: `\` ends it, anything else begins another sequence.
    OscEscape,
}

/// Strips a stream of text. Holds no text.
#[derive(Debug, Default)]
pub(super) struct Escape {
    state: State,
}

impl Escape {
    pub(super) fn push(&mut self, text: &str, mut give: impl FnMut(&str)) {
        let mut rest = text;
        while !rest.is_empty() {
            if self.state == State::Text {
                let plain = rest.bytes().position(|b| b == ESC).unwrap_or(rest.len());
                let (before, from) = rest.split_at(plain);
                if !before.is_empty() {
                    give(before);
                }
                // The escape itself, where there is one.
                rest = from.get(1..).unwrap_or_default();
                if !from.is_empty() {
                    self.state = State::Escape;
                }
            } else {
                let Some(first) = rest.chars().next() else { return };
                if self.takes(first) {
                    rest = rest.get(first.len_utf8()..).unwrap_or_default();
                }
            }
        }
    }

    /// Goes one character on. False: the sequence ended before it, and it is looked at afresh.
    fn takes(&mut self, c: char) -> bool {
        // Every byte that means something in a sequence is ASCII.
        let byte = u8::try_from(c).ok().filter(u8::is_ascii);
        let (next, taken) = match (self.state, byte) {
            (State::Text, _) => (State::Text, false),
            (State::Osc { .. }, Some(BEL)) => (State::Text, true),
            (State::Osc { .. }, Some(ESC)) => (State::OscEscape, true),
            (State::Osc { bytes }, _) if bytes + c.len_utf8() > OSC_BYTES_MAX => {
                (State::Text, false)
            }
            (State::Osc { bytes }, _) => (State::Osc { bytes: bytes + c.len_utf8() }, true),
            (State::OscEscape, Some(b'\\')) => (State::Text, true),
            (State::OscEscape, _) => (State::Escape, false),
            (State::Escape, Some(b'[')) => (State::Csi, true),
            (State::Escape, Some(b']')) => (State::Osc { bytes: 0 }, true),
            (State::Escape | State::Intermediate, Some(0x20..=0x2F)) => (State::Intermediate, true),
            (State::Escape | State::Intermediate, Some(0x30..=0x7E)) => (State::Text, true),
            (State::Csi, Some(0x20..=0x3F)) => (State::Csi, true),
            (State::Csi, Some(0x40..=0x7E)) => (State::Text, true),
            (State::Escape | State::Intermediate | State::Csi, _) => (State::Text, false),
        };
        self.state = next;
        taken
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn stripped(text: &str) -> String {
        let (mut escape, mut out) = (Escape::default(), String::new());
        escape.push(text, |piece| out.push_str(piece));
        out
    }

    #[test]
    fn sequences_go_and_text_stays() {
        for (text, want) in [
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x1b[38;5;196;1mx\x1b[?25l\x1b[2Ky", "xy"),
            ("\x1b]0;title\x07a", "a"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            ("\x1b7\x1b8\x1bcA\x1b(BB", "AB"),
            // Not a sequence any more: the line end is text.
            ("\x1b[12\nx", "\nx"),
            ("\x1b\nx", "\nx"),
            ("\x1b[3ä", "ä"),
            ("\x1b\x1b[1mx", "x"),
            ("\x1b]0;a\x1b[1mx", "x"),
            ("end\x1b", "end"),
            ("a\0b", "a\0b"),
        ] {
            assert_eq!(stripped(text), want, "{text:?}");
        }
    }

    #[test]
    fn an_endless_osc_swallows_4096_bytes() {
        let text = format!("\x1b]{}tail", "x".repeat(OSC_BYTES_MAX));
        assert_eq!(stripped(&text), "tail");
    }
}
