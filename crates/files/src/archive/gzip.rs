//! Gzip, unpacked as it comes and up to a ratio.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::source::read_buffered;

/// What gzip data may grow to, as a multiple of their size. Deflate can do 1,032.
const RATIO_MAX: u64 = 200;
/// So many bytes may come whatever they came from: short runs of zeros are no attack.
const FREE_BYTES: u64 = 64 * 1024 * 1024;
const BUFFER_BYTES: usize = 128 * 1024;

/// A reader of what is in `source`. Damaged data are `InvalidData`, too large a ratio `QuotaExceeded`.
pub(super) fn unpacked<S: BufRead>(source: S) -> impl BufRead {
    let decoder = MultiGzDecoder::new(Counted { inner: source, bytes: 0 });
    BufReader::with_capacity(BUFFER_BYTES, Bounded { decoder, bytes: 0 })
}

/// Counts what is taken.
struct Counted<S> {
    inner: S,
    bytes: u64,
}

impl<S: BufRead> BufRead for Counted<S> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf().map_err(gone)
    }

    fn consume(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.inner.consume(bytes);
    }
}

impl<S: BufRead> Read for Counted<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        read_buffered(self, buffer)
    }
}

/// A broken connection must not look like broken gzip data.
fn gone(error: io::Error) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, error)
}

struct Bounded<S> {
    decoder: MultiGzDecoder<Counted<S>>,
    bytes: u64,
}

impl<S: BufRead> Read for Bounded<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.decoder.read(buffer).map_err(damaged)?;
        self.bytes += n as u64;
        let allowed = self.decoder.get_ref().bytes.saturating_mul(RATIO_MAX).max(FREE_BYTES);
        if self.bytes > allowed { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(n) }
    }
}

fn damaged(error: io::Error) -> io::Error {
    if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof) {
        return error;
    }
    io::Error::new(io::ErrorKind::InvalidData, error)
}
