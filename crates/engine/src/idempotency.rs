//! The name of a create, by which a second one is told to be the same.

use crate::error::Error;

/// `Idempotency-Key` of a create, in the name of one API key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    pub(crate) client: String,
    pub(crate) key: String,
}

impl IdempotencyKey {
    /// `client` tells API keys apart and is no secret (a hash of the key, say).
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] where `key` is not 1 to 255 visible ASCII characters.
    pub fn new(client: &str, key: &str) -> Result<Self, Error> {
        let valid = (1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
        if !valid {
            let text = "`Idempotency-Key` must be 1 to 255 visible ASCII characters";
            return Err(Error::InvalidRequest(text.into()));
        }
        Ok(Self { client: client.into(), key: key.into() })
    }
}
