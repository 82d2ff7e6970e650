//! Bytes that are base64 in JSON: the standard alphabet, with padding.

use std::fmt;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use base64::{DecodeError, DecodeSliceError, Engine as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Some bytes. They become base64 only as they are written, so that both are not held at once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

impl Base64 {
    /// Takes the memory of `text` for the bytes: large ones are not held twice.
    ///
    /// # Errors
    /// Where `text` is no base64; the text says so.
    pub fn decode(text: impl Into<Vec<u8>>) -> Result<Self, String> {
        let mut bytes = text.into();
        let decoded = decode_in_place(&mut bytes).map_err(|error| format!("no base64: {error}"))?;
        bytes.truncate(decoded);
        bytes.shrink_to_fit();
        Ok(Self(bytes))
    }
}

/// Characters that are decoded at once; a multiple of four.
const PIECE_CHARS: usize = 4096;

/// Decodes `text` into its own beginning and says how many bytes that are.
fn decode_in_place(text: &mut [u8]) -> Result<usize, DecodeError> {
    let mut piece = [0; PIECE_CHARS / 4 * 3];
    let mut decoded = 0;
    for start in (0..text.len()).step_by(PIECE_CHARS) {
        let rest = text.get(start..).unwrap_or_default();
        let chars = rest.get(..PIECE_CHARS).unwrap_or(rest);
        let count = match STANDARD.decode_slice(chars, &mut piece) {
            Ok(count) => count,
            Err(DecodeSliceError::DecodeError(error)) => return Err(moved(error, start)),
            Err(DecodeSliceError::OutputSliceTooSmall) => unreachable!("it holds a whole piece"),
        };
        // Padding ends a text.
        if count < piece.len() && rest.len() > PIECE_CHARS {
            let padding = chars.iter().position(|c| *c == b'=').unwrap_or_default();
            return Err(DecodeError::InvalidByte(start + padding, b'='));
        }
        if let (Some(to), Some(from)) = (text.get_mut(decoded..decoded + count), piece.get(..count))
        {
            to.copy_from_slice(from);
        }
        decoded += count;
    }
    Ok(decoded)
}

/// The error of a piece that begins at `start`.
fn moved(error: DecodeError, start: usize) -> DecodeError {
    match error {
        DecodeError::InvalidByte(at, byte) => DecodeError::InvalidByte(start + at, byte),
        DecodeError::InvalidLastSymbol(at, byte) => {
            DecodeError::InvalidLastSymbol(start + at, byte)
        }
        DecodeError::InvalidLength(length) => DecodeError::InvalidLength(start + length),
        DecodeError::InvalidPadding => error,
    }
}

impl fmt::Debug for Base64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Base64({} bytes)", self.0.len())
    }
}

impl fmt::Display for Base64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Base64Display::new(&self.0, &STANDARD).fmt(f)
    }
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::decode(text).map_err(de::Error::custom)
    }
}

impl utoipa::PartialSchema for Base64 {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, Type};
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("Bytes in base64: the standard alphabet, with padding."))
            .content_encoding("base64")
            .into()
    }
}

impl utoipa::ToSchema for Base64 {}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn bytes_are_written_and_read_back() {
        for bytes in [&b""[..], b"a", b"ab", b"abc", &[0, 255, 10, 128]] {
            let json = serde_json::to_string(&Base64(bytes.to_vec())).unwrap();
            assert_eq!(json, format!("\"{}\"", STANDARD.encode(bytes)));
            assert_eq!(serde_json::from_str::<Base64>(&json).unwrap().0, bytes);
        }
        assert!(Base64::decode("YQ").is_err() && Base64::decode("!").is_err());
    }

    #[test]
    fn a_text_of_many_pieces_is_as_one() {
        for length in [3071, 3072, 3073, 9216, 10_000] {
            let bytes: Vec<u8> = (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let mut text = STANDARD.encode(&bytes);
            assert_eq!(Base64::decode(text.as_str()).unwrap().0, bytes, "{length}");
            for (at, char) in [(0, "!"), (4095, "="), (text.len() - 5, "?")] {
                text.replace_range(at..=at, char);
            }
            for bad in [text.clone(), STANDARD.encode(&bytes) + "YQ==", text[5..].into()] {
                let says = STANDARD.decode(&bad).map_err(|error| format!("no base64: {error}"));
                assert_eq!(Base64::decode(bad).map(|bytes| bytes.0), says, "{length}");
            }
        }
    }
}
