//! Bytes to text: what is no UTF-8 becomes U+FFFD, one for each maximal subpart.

/// Decodes a stream of bytes. Holds at most the three bytes of an unfinished character.
#[derive(Debug, Default)]
pub(super) struct Utf8 {
    unfinished: Vec<u8>,
}

impl Utf8 {
    pub(super) fn push(&mut self, bytes: &[u8], mut give: impl FnMut(&str)) {
        let mut rest = bytes;
        // A character that began in an earlier chunk is finished byte by byte.
        while !self.unfinished.is_empty() {
            let Some((first, behind)) = rest.split_first() else { return };
            self.unfinished.push(*first);
            rest = behind;
            let joined = std::mem::take(&mut self.unfinished);
            self.decode(&joined, &mut give);
        }
        self.decode(rest, &mut give);
    }

    /// The end of the bytes: an unfinished character is an invalid one.
    pub(super) fn finish(&mut self, mut give: impl FnMut(&str)) {
        if !std::mem::take(&mut self.unfinished).is_empty() {
            give("\u{FFFD}");
        }
    }

    fn decode(&mut self, bytes: &[u8], give: &mut impl FnMut(&str)) {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            if !chunk.valid().is_empty() {
                give(chunk.valid());
            }
            if chunk.invalid().is_empty() {
                continue;
            }
            if chunks.peek().is_none() && is_beginning(chunk.invalid()) {
                self.unfinished = chunk.invalid().to_vec();
            } else {
                give("\u{FFFD}");
            }
        }
    }
}

/// Bytes in, text out: what is no UTF-8 is replaced, and a character that is cut waits for its rest.
#[derive(Debug, Default)]
pub(crate) struct Decoder(Utf8);

impl Decoder {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        self.0.push(bytes, |piece| text.push_str(piece));
        text
    }

    pub(crate) fn finish(&mut self) -> String {
        let mut text = String::new();
        self.0.finish(|piece| text.push_str(piece));
        text
    }
}

/// More bytes could still make a character of these.
fn is_beginning(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(error) if error.error_len().is_none())
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn decoded(parts: &[&[u8]]) -> String {
        let (mut utf8, mut text) = (Utf8::default(), String::new());
        for part in parts {
            utf8.push(part, |piece| text.push_str(piece));
        }
        utf8.finish(|piece| text.push_str(piece));
        text
    }

    /// Bytes that come near to characters: leads and continuations more often than chance has them.
    fn nearly_utf8() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            Just(b'a'),
            0x80u8..=0xBF,
            0xC0u8..=0xFF,
            Just(0xE2),
            Just(0xF0),
            Just(0xED),
            any::<u8>()
        ];
        prop::collection::vec(byte, 0..40)
    }

    proptest! {
        #[test]
        fn any_split_gives_the_text_of_the_whole(bytes in nearly_utf8(), at in 0usize..40, then in 0usize..40) {
            let at = at.min(bytes.len());
            let then = then.clamp(at, bytes.len());
            let parts = [&bytes[..at], &bytes[at..then], &bytes[then..]];
            prop_assert_eq!(decoded(&parts), String::from_utf8_lossy(&bytes));
        }
    }
}
