//! The bytes that the engine sends, as a reader.

use std::io::{self, BufRead, Read};

use crate::channel::Channel;

/// Gives what comes without copying it once more.
pub(super) struct Source<'a> {
    channel: &'a mut dyn Channel,
    piece: Vec<u8>,
    /// Bytes of `piece` that are taken.
    taken: usize,
    ended: bool,
}

impl<'a> Source<'a> {
    pub(super) fn new(channel: &'a mut dyn Channel) -> Self {
        Self { channel, piece: Vec::new(), taken: 0, ended: false }
    }
}

impl BufRead for Source<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.taken >= self.piece.len() && !self.ended {
            self.piece = self.channel.data()?.unwrap_or_default();
            self.taken = 0;
            self.ended = self.piece.is_empty();
        }
        Ok(self.piece.get(self.taken..).unwrap_or_default())
    }

    fn consume(&mut self, bytes: usize) {
        self.taken += bytes;
    }
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, buffer)
    }
}

/// [`Read::read`] of something that is buffered.
pub(super) fn read_buffered(from: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
    let available = from.fill_buf()?;
    let bytes = available.len().min(buffer.len());
    let (Some(to), Some(from_bytes)) = (buffer.get_mut(..bytes), available.get(..bytes)) else {
        return Ok(0);
    };
    to.copy_from_slice(from_bytes);
    from.consume(bytes);
    Ok(bytes)
}
