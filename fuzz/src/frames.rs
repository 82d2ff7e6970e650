//! The decoder of frames, in both directions.
//!
//! Holds: any bytes give frames and then perhaps a fault, which is for ever; how the bytes were cut
//! makes no difference; a frame that was decoded encodes, within the limit, to the same frame again.

use std::fmt::Debug;

use sandkasten_protocol::{Decoder, Fault, encode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cuts::pieces;

/// # Panics
/// Where a property does not hold.
pub fn decode<T: Serialize + DeserializeOwned + PartialEq + Debug>(input: &[u8], limit: usize) {
    let (parts, whole) = pieces(input);
    let (frames, fault) = read::<T>(&[whole], limit);
    assert_eq!(read::<T>(&parts, limit), (frames_again(&frames, limit), fault));
}

/// Every frame, encoded and decoded once more.
fn frames_again<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    frames: &[T],
    limit: usize,
) -> Vec<T> {
    let again = |frame: &T| {
        // No longer than it came: numbers may come in more bytes than they need.
        let bytes = encode(frame, limit).expect("a frame that was one");
        let (mut frames, fault) = read::<T>(&[&bytes], limit);
        assert_eq!((frames.len(), fault), (1, None));
        frames.remove(0)
    };
    frames.iter().map(again).collect()
}

fn read<T: DeserializeOwned + PartialEq + Debug>(
    parts: &[&[u8]],
    limit: usize,
) -> (Vec<T>, Option<Fault>) {
    let mut decoder = Decoder::<T>::new(limit);
    let mut frames = Vec::new();
    for part in parts {
        decoder.push(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(fault) => {
                    decoder.push(&[0; 64]);
                    assert_eq!(decoder.next_frame(), Err(fault), "once it fails it fails for ever");
                    return (frames, Some(fault));
                }
            }
        }
    }
    (frames, None)
}
