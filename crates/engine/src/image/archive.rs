//! Reads a tar stream (ustar, PAX, GNU) that nobody vouches for.
//!
//! Invariant: every header is checked before it is used, nothing is read into memory without a
//! limit, and a point on which readers of tar disagree (two sizes, two names, data behind a link) is
//! an error, so that no archive means one thing here and another elsewhere.

use std::io::{self, Read};

use sandkasten_types::limits;

use super::ImageError;

const BLOCK: usize = 512;
/// Bytes of a PAX header or a GNU long name.
const EXTENSION_BYTES_MAX: u64 = 1024 * 1024;

/// One member of an archive. Its data follow in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// As written in the archive: any bytes but NUL.
    pub(super) path: Vec<u8>,
    pub(super) kind: Kind,
    /// Permission, set-id and sticky bits.
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    /// Seconds since 1970; what is not in 0..=u32::MAX is moved to the nearer end.
    pub(super) mtime: u32,
    /// Carries `trusted.overlay.opaque=y`: means something in layers of ours alone.
    pub(super) opaque: bool,
}

/// What a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    File {
        size: u64,
    },
    /// GNU sparse: pieces of data, the rest of `size` bytes are holes.
    Sparse {
        size: u64,
        pieces: Vec<Piece>,
    },
    Dir,
    Symlink {
        target: Vec<u8>,
    },
    HardLink {
        target: Vec<u8>,
    },
    /// Character device 0:0: in an overlay, a name that is gone.
    Whiteout,
    /// Any other device, or a FIFO.
    Special,
}

/// A piece of data of a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A tar stream, read member by member.
#[derive(Debug)]
pub(super) struct Archive<R> {
    source: R,
    /// Bytes of the current member's data that are still unread.
    left: u64,
    /// Zero bytes behind them up to the next block.
    padding: u64,
    /// Bytes that may still come, headers included.
    budget: u64,
}

/// What headers before the member's own said about it.
#[derive(Debug, Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<u32>,
    opaque: bool,
    pax_seen: bool,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, left: 0, padding: 0, budget: limits::IMAGE_BYTES_MAX }
    }

    /// The next member; `None` at the end mark. An archive without one is cut short.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, ImageError> {
        self.skip_data()?;
        let mut extension = Extension::default();
        loop {
            let Some(header) = self.header()? else {
                return self.end(&extension);
            };
            match header.kind() {
                b'x' => self.pax(&header, &mut extension)?,
                b'g' => self.pax_global(&header)?,
                b'L' => set_once(&mut extension.path, self.long_name(&header)?)?,
                b'K' => set_once(&mut extension.link, self.long_name(&header)?)?,
                _ => return self.entry(&header, extension).map(Some),
            }
        }
    }

    /// Reads data of the current member; 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ImageError> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let Some(buffer) = buffer.get_mut(..want).filter(|b| !b.is_empty()) else { return Ok(0) };
        let n = self.source.read(buffer).map_err(unreadable)?;
        if n == 0 {
            return Err(truncated());
        }
        self.left -= n as u64;
        self.spend(n as u64)?;
        Ok(n)
    }

    /// Reads what stands behind the end mark, so that a checksum of the compression is seen.
    pub(super) fn drain(&mut self) -> Result<(), ImageError> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.source.read(&mut buffer).map_err(unreadable)? {
                0 => return Ok(()),
                n => self.spend(n as u64)?,
            }
        }
    }

    /// The next header; `None` for the zero block that ends an archive.
    fn header(&mut self) -> Result<Option<Header>, ImageError> {
        let mut header = Header([0; BLOCK]);
        self.fill(&mut header.0)?;
        if header.0.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        header.check()?;
        Ok(Some(header))
    }

    fn end(&mut self, extension: &Extension) -> Result<Option<Entry>, ImageError> {
        if extension.pax_seen || extension.path.is_some() || extension.link.is_some() {
            return Err(truncated());
        }
        // The mark is two blocks; the second tells it from a file that was overwritten with zeros.
        match self.header()? {
            None => Ok(None),
            Some(_) => Err(invalid("a header follows a zero block")),
        }
    }

    fn entry(&mut self, header: &Header, extension: Extension) -> Result<Entry, ImageError> {
        let path = extension.path.map_or_else(|| header.path(), Ok)?;
        let size = header.size(extension.size)?;
        let link = extension.link.unwrap_or_else(|| header.link());
        let mut entry = Entry {
            kind: Kind::Special,
            mode: u32::try_from(header.number(100, 8)? & 0o7777).unwrap_or(0),
            uid: extension.uid.map_or_else(|| header.number(108, 8), Ok)?,
            gid: extension.gid.map_or_else(|| header.number(116, 8), Ok)?,
            // A time that no clock shows is no reason to refuse the file.
            mtime: extension.mtime.unwrap_or_else(|| {
                header.number(136, 12).map_or(0, |t| u32::try_from(t).unwrap_or(u32::MAX))
            }),
            opaque: extension.opaque,
            path,
        };
        entry.kind = match header.kind() {
            b'0' | 0 | b'7' if entry.path.ends_with(b"/") => self.without_data(size, Kind::Dir)?,
            b'0' | 0 | b'7' => self.with_data(size, size, Kind::File { size })?,
            b'1' => self.without_data(size, Kind::HardLink { target: link })?,
            b'2' => self.without_data(size, Kind::Symlink { target: link })?,
            b'3' if header.device()? == (0, 0) => self.without_data(size, Kind::Whiteout)?,
            b'3' | b'4' | b'6' => self.without_data(size, Kind::Special)?,
            b'5' => self.without_data(size, Kind::Dir)?,
            b'S' => self.sparse(header, size)?,
            other => {
                let text = format!("entry type `{}` is not supported", other.escape_ascii());
                return Err(invalid(text));
            }
        };
        Ok(entry)
    }

    /// `stored` bytes follow in the stream, for a member that is `real` bytes long.
    fn with_data(&mut self, stored: u64, real: u64, kind: Kind) -> Result<Kind, ImageError> {
        if stored > self.budget || real > limits::IMAGE_BYTES_MAX {
            return Err(too_big());
        }
        self.left = stored;
        self.padding = stored.next_multiple_of(BLOCK as u64) - stored;
        Ok(kind)
    }

    /// Some readers skip the data of such a member and some don't: one of both reads another archive.
    fn without_data(&mut self, size: u64, kind: Kind) -> Result<Kind, ImageError> {
        if size != 0 {
            return Err(invalid("data behind an entry that is no file"));
        }
        self.with_data(0, 0, kind)
    }

    fn sparse(&mut self, header: &Header, stored: u64) -> Result<Kind, ImageError> {
        let size = header.number(483, 12)?;
        let mut pieces = Vec::new();
        header.pieces(386, 4, &mut pieces)?;
        let mut extended = header.byte(482) != 0;
        while extended {
            let mut more = Header([0; BLOCK]);
            self.fill(&mut more.0)?;
            more.pieces(0, 21, &mut pieces)?;
            extended = more.byte(504) != 0;
            if pieces.len() > limits::IMAGE_ENTRIES_MAX {
                return Err(too_big());
            }
        }
        check_pieces(&pieces, stored, size)?;
        self.with_data(stored, size, Kind::Sparse { size, pieces })
    }

    fn pax(&mut self, header: &Header, extension: &mut Extension) -> Result<(), ImageError> {
        if extension.pax_seen {
            return Err(invalid("two PAX headers in a row"));
        }
        extension.pax_seen = true;
        let text = self.extension_data(header)?;
        for record in pax_records(&text) {
            let (key, value) = record?;
            extension.set(key, value)?;
        }
        Ok(())
    }

    /// A header for all that follow: comments alone are taken.
    fn pax_global(&mut self, header: &Header) -> Result<(), ImageError> {
        let text = self.extension_data(header)?;
        for record in pax_records(&text) {
            let (key, _) = record?;
            if matches!(key, b"path" | b"linkpath" | b"size") {
                return Err(invalid("a global PAX header names a file"));
            }
        }
        Ok(())
    }

    fn long_name(&mut self, header: &Header) -> Result<Vec<u8>, ImageError> {
        let mut name = self.extension_data(header)?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn extension_data(&mut self, header: &Header) -> Result<Vec<u8>, ImageError> {
        let size = header.number(124, 12)?;
        if size > EXTENSION_BYTES_MAX {
            return Err(invalid("an extended header is too long"));
        }
        let len = usize::try_from(size).unwrap_or(0);
        let mut data = vec![0; len.next_multiple_of(BLOCK)];
        self.fill(&mut data)?;
        data.truncate(len);
        Ok(data)
    }

    fn skip_data(&mut self) -> Result<(), ImageError> {
        let mut rest = self.left + self.padding;
        (self.left, self.padding) = (0, 0);
        let mut buffer = [0; 16 * 1024];
        while rest > 0 {
            let want = usize::try_from(rest).unwrap_or(usize::MAX).min(buffer.len());
            self.fill(buffer.get_mut(..want).unwrap_or_default())?;
            rest -= want as u64;
        }
        Ok(())
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), ImageError> {
        self.source.read_exact(buffer).map_err(unreadable)?;
        self.spend(buffer.len() as u64)
    }

    fn spend(&mut self, bytes: u64) -> Result<(), ImageError> {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(too_big)?;
        Ok(())
    }
}

impl Extension {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), ImageError> {
        match key {
            b"path" => set_once(&mut self.path, value.to_vec())?,
            b"linkpath" => set_once(&mut self.link, value.to_vec())?,
            b"size" => set_once(&mut self.size, decimal(value)?)?,
            b"uid" => self.uid = Some(decimal(value)?),
            b"gid" => self.gid = Some(decimal(value)?),
            b"mtime" => self.mtime = Some(seconds(value)),
            b"SCHILY.xattr.trusted.overlay.opaque" => self.opaque = value == b"y",
            _ if key.starts_with(b"GNU.sparse.") => {
                return Err(invalid("sparse files in PAX form are not supported"));
            }
            // Everything else (other times, names of owners, other attributes) is not kept.
            _ => {}
        }
        Ok(())
    }
}

/// One block of 512 bytes.
#[derive(Debug)]
struct Header([u8; BLOCK]);

impl Header {
    fn field(&self, at: usize, len: usize) -> &[u8] {
        self.0.get(at..at + len).unwrap_or_default()
    }

    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn kind(&self) -> u8 {
        self.byte(156)
    }

    /// The sum of all bytes, those of its own field taken as blanks.
    fn check(&self) -> Result<(), ImageError> {
        let bytes = self.0.iter().enumerate();
        let sum: u64 =
            bytes.map(|(i, b)| if (148..156).contains(&i) { 32 } else { u64::from(*b) }).sum();
        match self.number(148, 8) {
            Ok(said) if said == sum => Ok(()),
            _ => Err(invalid("not a tar archive, or a damaged one")),
        }
    }

    fn path(&self) -> Result<Vec<u8>, ImageError> {
        let name = text(self.field(0, 100));
        // GNU headers have times where ustar has the prefix.
        let is_ustar = self.field(257, 8) == b"ustar\x0000";
        let prefix = if is_ustar { text(self.field(345, 155)) } else { b"" };
        if name.is_empty() && prefix.is_empty() {
            return Err(invalid("an entry without a name"));
        }
        Ok(if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() })
    }

    fn link(&self) -> Vec<u8> {
        text(self.field(157, 100)).to_vec()
    }

    fn device(&self) -> Result<(u64, u64), ImageError> {
        Ok((self.number(329, 8)?, self.number(337, 8)?))
    }

    /// The size that holds: PAX says it where the field can't. Two that differ are an attack.
    fn size(&self, pax: Option<u64>) -> Result<u64, ImageError> {
        let size = self.number(124, 12)?;
        match pax {
            Some(pax) if size != 0 && size != pax => Err(invalid("an entry with two sizes")),
            Some(pax) => Ok(pax),
            None => Ok(size),
        }
    }

    /// A number: octal digits, or big-endian binary behind a first byte of 0x80. Blank is 0.
    fn number(&self, at: usize, len: usize) -> Result<u64, ImageError> {
        let field = self.field(at, len);
        let bad = || invalid(format!("a header's number `{}`", field.escape_ascii()));
        match field.split_first() {
            Some((0x80, rest)) => {
                let (high, low) = rest.split_at(rest.len().saturating_sub(8));
                let low = low.iter().fold(0, |n, b| n << 8 | u64::from(*b));
                if high.iter().all(|b| *b == 0) { Ok(low) } else { Err(bad()) }
            }
            _ => {
                let digits = text(field).trim_ascii();
                digits
                    .iter()
                    .try_fold(0_u64, |n, b| match b {
                        b'0'..=b'7' => n.checked_mul(8)?.checked_add(u64::from(b - b'0')),
                        _ => None,
                    })
                    .ok_or_else(bad)
            }
        }
    }

    /// `count` pairs of GNU's sparse map; an empty one ends it.
    fn pieces(&self, at: usize, count: usize, out: &mut Vec<Piece>) -> Result<(), ImageError> {
        for i in 0..count {
            let at = at + i * 24;
            if self.byte(at) == 0 {
                break;
            }
            out.push(Piece { offset: self.number(at, 12)?, len: self.number(at + 12, 12)? });
        }
        Ok(())
    }
}

/// The map must be in order, without overlap, within the file, and cover the stored data exactly.
fn check_pieces(pieces: &[Piece], stored: u64, size: u64) -> Result<(), ImageError> {
    let (mut end, mut data) = (0_u64, 0_u64);
    for piece in pieces {
        let next = piece.offset.checked_add(piece.len);
        match next {
            Some(next) if piece.offset >= end && next <= size => end = next,
            _ => return Err(invalid("a sparse file's map is out of order")),
        }
        data += piece.len;
    }
    if data == stored { Ok(()) } else { Err(invalid("a sparse file's map and size differ")) }
}

/// `LENGTH KEY=VALUE\n`, repeated.
fn pax_records(text: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), ImageError>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = pax_record(rest);
        rest = record.map_or(&[][..], |(_, _, tail)| tail);
        Some(record.map(|(key, value, _)| (key, value)).ok_or_else(|| invalid("a PAX header")))
    })
}

fn pax_record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = text.iter().take(20).position(|b| *b == b' ')?;
    let len: usize = std::str::from_utf8(text.get(..blank)?).ok()?.parse().ok()?;
    let record = text.get(blank + 1..len)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|b| *b == b'=')?;
    Some((record.get(..equals)?, record.get(equals + 1..)?, text.get(len..)?))
}

fn set_once<T>(place: &mut Option<T>, value: T) -> Result<(), ImageError> {
    if place.replace(value).is_some() {
        return Err(invalid("an entry with two names or sizes"));
    }
    Ok(())
}

fn decimal(text: &[u8]) -> Result<u64, ImageError> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| invalid(format!("a PAX number `{}`", text.escape_ascii())))
}

/// Whole seconds of a PAX time, the nearest that can be held.
fn seconds(text: &[u8]) -> u32 {
    let whole = text.split(|b| *b == b'.').next().unwrap_or_default();
    let whole = std::str::from_utf8(whole).unwrap_or_default();
    let seconds: i128 = whole.parse().unwrap_or(0);
    u32::try_from(seconds.clamp(0, i128::from(u32::MAX))).unwrap_or(0)
}

/// A field up to its NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|b| *b == 0).next().unwrap_or_default()
}

pub(super) fn invalid(text: impl Into<String>) -> ImageError {
    ImageError::Invalid(text.into())
}

fn truncated() -> ImageError {
    invalid("the archive is cut short")
}

fn too_big() -> ImageError {
    let gib = limits::IMAGE_BYTES_MAX >> 30;
    invalid(format!("the archive is larger than the limit of {gib} GiB"))
}

/// A fault of the compressed stream is the archive's; a fault of the disk is ours.
pub(super) fn unreadable(err: io::Error) -> ImageError {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    let kind = err.kind();
    if kind == UnexpectedEof {
        return truncated();
    }
    if matches!(kind, InvalidData | InvalidInput) {
        return invalid("the compressed data are damaged");
    }
    ImageError::Io(err)
}
