//! The archive that an image is made from: how much of it is read, and what is said of its faults.

use std::io::{self, BufRead, Read};

use sandkasten_files::tar::TarError;
use sandkasten_types::limits;

use super::ImageError;

/// Gives what `inner` has, up to the limit on an image's archive.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    inner: S,
    left: u64,
}

impl<S> Bounded<S> {
    pub(super) fn new(inner: S) -> Self {
        Self { inner, left: limits::IMAGE_BYTES_MAX }
    }
}

impl<S: BufRead> BufRead for Bounded<S> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let bytes = self.inner.fill_buf()?;
        if self.left == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        Ok(bytes.get(..most).unwrap_or_default())
    }

    fn consume(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as u64);
        self.inner.consume(bytes);
    }
}

impl<S: BufRead> Read for Bounded<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?.read(buffer)?;
        self.consume(bytes);
        Ok(bytes)
    }
}

/// Reads what follows the end mark, so that a checksum of the compression is seen.
pub(super) fn drain(mut rest: impl BufRead) -> Result<(), ImageError> {
    loop {
        let bytes = rest.fill_buf().map_err(unreadable)?.len();
        if bytes == 0 {
            return Ok(());
        }
        rest.consume(bytes);
    }
}

impl From<TarError> for ImageError {
    fn from(error: TarError) -> Self {
        match error {
            TarError::Fault(fault) => invalid(fault.to_string()),
            TarError::Io(error) => unreadable(error),
        }
    }
}

pub(super) fn invalid(text: impl Into<String>) -> ImageError {
    ImageError::Invalid(text.into())
}

/// A fault of the compressed stream is the archive's; a fault of the disk is ours.
pub(super) fn unreadable(err: io::Error) -> ImageError {
    use io::ErrorKind::{FileTooLarge, InvalidData, InvalidInput, UnexpectedEof};
    let kind = err.kind();
    if kind == UnexpectedEof {
        return invalid("the archive is cut short");
    }
    if matches!(kind, InvalidData | InvalidInput) {
        return invalid("the compressed data are damaged");
    }
    if kind == FileTooLarge {
        let gib = limits::IMAGE_BYTES_MAX >> 30;
        return invalid(format!("the archive is larger than the limit of {gib} GiB"));
    }
    ImageError::Io(err)
}
