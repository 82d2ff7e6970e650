//! Where a read of output is cut, so that each piece is one event of the API.

use sandkasten_protocol::{RECORD_BYTES_MAX, RECORD_ESCAPED_MAX};

/// Bytes of `\u0000`, and of the two of a character that takes a pair.
const ESCAPED: usize = 6;

/// The pieces of a read, none of them empty. Cuts are between characters where the bytes are UTF-8.
pub(crate) fn pieces(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (piece, behind) = rest.split_at_checked(first_piece(rest))?;
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    })
}

/// How long the first piece is.
fn first_piece(bytes: &[u8]) -> usize {
    if bytes.len() * ESCAPED <= RECORD_ESCAPED_MAX {
        return bytes.len();
    }
    let (mut length, mut escaped) = (0, 0);
    while let Some(rest) = bytes.get(length..).filter(|rest| !rest.is_empty()) {
        let (of_bytes, of_escaped) = first_character(rest);
        if length + of_bytes > RECORD_BYTES_MAX || escaped + of_escaped > RECORD_ESCAPED_MAX {
            break;
        }
        length += of_bytes;
        escaped += of_escaped;
    }
    length
}

/// Bytes of the first character, as they are and escaped for JSON in ASCII. What is not UTF-8 is
/// shown a replacement a byte at worst.
fn first_character(bytes: &[u8]) -> (usize, usize) {
    match bytes {
        [b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c, ..] => (1, 2),
        [b' '..=b'~', ..] => (1, 1),
        [0..=0x7f, ..] => (1, ESCAPED),
        [0xc2..=0xdf, ..] if is_character(bytes, 2) => (2, ESCAPED),
        [0xe0..=0xef, ..] if is_character(bytes, 3) => (3, ESCAPED),
        [0xf0..=0xf4, ..] if is_character(bytes, 4) => (4, 2 * ESCAPED),
        _ => (1, ESCAPED),
    }
}

fn is_character(bytes: &[u8], length: usize) -> bool {
    bytes.get(..length).is_some_and(|bytes| std::str::from_utf8(bytes).is_ok())
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn lengths(bytes: &[u8]) -> Vec<usize> {
        pieces(bytes).map(<[u8]>::len).collect()
    }

    #[test]
    fn short_reads_are_whole() {
        assert_eq!(lengths(b""), []);
        assert_eq!(lengths(b"a"), [1]);
        assert_eq!(lengths(&[0xff; 1000]), [1000]);
    }

    #[test]
    fn text_is_cut_at_the_bytes_and_the_rest_at_what_it_becomes() {
        assert_eq!(lengths(&[b'a'; 10_000]), [5376, 4624]);
        assert_eq!(lengths("ä".repeat(2000).as_bytes()), [2332, 1668]);
        assert_eq!(lengths("世".repeat(2000).as_bytes()), [3498, 2502]);
        assert_eq!(lengths("😀".repeat(1000).as_bytes()), [2332, 1668]);
        assert_eq!(lengths(&[0; 2000]), [1166, 834]);
    }

    #[test]
    fn cuts_are_between_characters() {
        for lead in 0..3 {
            let text = format!("{}{}", "x".repeat(lead), "世".repeat(3000));
            assert!(pieces(text.as_bytes()).all(|piece| std::str::from_utf8(piece).is_ok()));
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_too_long(
            parts in prop::collection::vec((any::<String>(), any::<[u8; 3]>(), 0..500usize), 0..20)
        ) {
            let bytes: Vec<u8> = parts
                .iter()
                .flat_map(|(text, bytes, times)| [text.as_bytes(), bytes].concat().repeat(*times))
                .take(64 * 1024)
                .collect();
            let all: Vec<&[u8]> = pieces(&bytes).collect();
            prop_assert_eq!(all.concat(), bytes.clone());
            for piece in all {
                let shown = String::from_utf8_lossy(piece);
                let escaped: usize = shown
                    .chars()
                    .map(|c| match c {
                        '"' | '\\' | '\n' | '\r' | '\t' | '\x08' | '\x0c' => 2,
                        ' '..='~' => 1,
                        c => 6 * c.len_utf16(),
                    })
                    .sum();
                prop_assert!(!piece.is_empty() && piece.len() <= RECORD_BYTES_MAX);
                prop_assert!(escaped <= RECORD_ESCAPED_MAX);
            }
        }
    }
}
