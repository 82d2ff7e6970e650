//! A length, then a postcard value.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

const LENGTH_BYTES: usize = 4;

/// Why bytes are not frames. The connection can't go on after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A frame of that many bytes; the limit is the decoder's.
    TooLong { bytes: usize, limit: usize },
    /// A frame that is no value of the expected type, or has bytes behind it.
    Malformed,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes, limit } => {
                write!(f, "a frame is {bytes} bytes; the limit is {limit}")
            }
            Self::Malformed => f.write_str("a frame is malformed"),
        }
    }
}

impl std::error::Error for Fault {}

/// A value as one frame.
///
/// # Errors
/// [`Fault::TooLong`] where the value takes more than `limit` bytes.
pub fn encode<T: Serialize>(value: &T, limit: usize) -> Result<Vec<u8>, Fault> {
    // Serialising into a vector fails only if the value itself refuses, which no type here does.
    let mut frame = postcard::to_extend(value, vec![0; LENGTH_BYTES])
        .map_err(|_refused_by_the_value| Fault::Malformed)?;
    let bytes = frame.len() - LENGTH_BYTES;
    match u32::try_from(bytes) {
        Ok(length) if bytes <= limit => {
            frame.splice(..LENGTH_BYTES, length.to_le_bytes());
            Ok(frame)
        }
        _ => Err(Fault::TooLong { bytes, limit }),
    }
}

/// Takes bytes as they arrive and gives whole frames. It holds no more than one frame's limit beyond
/// what a caller pushes at once.
#[derive(Debug)]
pub struct Decoder<T> {
    pending: Vec<u8>,
    /// Bytes of `pending` that are decoded already.
    taken: usize,
    limit: usize,
    value: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Decoder<T> {
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { pending: Vec::new(), taken: 0, limit, value: PhantomData }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.pending.drain(..self.taken);
            self.taken = 0;
        }
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole frame, `None` where more bytes are needed.
    ///
    /// # Errors
    /// Once it fails it fails for ever: the stream has lost its frame boundaries.
    pub fn next_frame(&mut self) -> Result<Option<T>, Fault> {
        let rest = self.pending.get(self.taken..).unwrap_or_default();
        let Some((head, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let bytes = usize::try_from(u32::from_le_bytes(*head)).unwrap_or(usize::MAX);
        if bytes > self.limit {
            return Err(Fault::TooLong { bytes, limit: self.limit });
        }
        let Some(body) = rest.get(..bytes) else {
            return Ok(None);
        };
        match postcard::take_from_bytes(body) {
            Ok((value, [])) => {
                self.taken += LENGTH_BYTES + bytes;
                Ok(Some(value))
            }
            Ok(_) | Err(_) => Err(Fault::Malformed),
        }
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;
    use crate::{FROM_INIT_BYTES_MAX, FromInit, Record, Stream};

    fn output(data: Vec<u8>) -> FromInit {
        let record = Record { seq: 1, stream: Stream::Output, at_ms: -1, data };
        FromInit::Output { run: 7, records: vec![record] }
    }

    #[test]
    fn frames_survive_a_split_at_every_byte() {
        let (a, b) = (output(b"one".to_vec()), output(b"two\0\xff".to_vec()));
        let mut bytes = encode(&a, FROM_INIT_BYTES_MAX).unwrap();
        bytes.extend(encode(&b, FROM_INIT_BYTES_MAX).unwrap());
        for split in 0..=bytes.len() {
            let mut decoder = Decoder::<FromInit>::new(FROM_INIT_BYTES_MAX);
            let mut got = Vec::new();
            for part in [&bytes[..split], &bytes[split..]] {
                decoder.push(part);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            assert_eq!(got, [a.clone(), b.clone()], "split at {split}");
        }
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_bytes_arrive() {
        let mut decoder = Decoder::<FromInit>::new(100);
        decoder.push(&u32::MAX.to_le_bytes());
        let fault = Fault::TooLong { bytes: u32::MAX as usize, limit: 100 };
        assert_eq!(decoder.next_frame(), Err(fault));
    }

    #[test]
    fn bytes_behind_a_value_are_refused() {
        let mut frame = encode(&output(vec![1]), FROM_INIT_BYTES_MAX).unwrap();
        frame[0] += 1;
        frame.push(0);
        let mut decoder = Decoder::<FromInit>::new(FROM_INIT_BYTES_MAX);
        decoder.push(&frame);
        assert_eq!(decoder.next_frame(), Err(Fault::Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = Decoder::<FromInit>::new(200);
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }
    }
}
