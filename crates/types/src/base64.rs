//! Bytes that are base64 in JSON: the standard alphabet, with padding.

use std::fmt;

use base64::Engine as _;
use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Some bytes. They become base64 only as they are written, so that both are not held at once.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

impl Base64 {
    /// # Errors
    /// Where `text` is no base64; the text says so.
    pub fn decode(text: &str) -> Result<Self, String> {
        let bytes = STANDARD.decode(text).map_err(|error| format!("no base64: {error}"))?;
        Ok(Self(bytes))
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
        Self::decode(&text).map_err(de::Error::custom)
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
}
