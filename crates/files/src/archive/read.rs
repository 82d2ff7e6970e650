//! Reads a tar stream (ustar, PAX, GNU) that nobody vouches for.
//!
//! Invariant: every header is checked before it is used, nothing is read into memory without a
//! limit, and a point on which readers of tar disagree (two sizes, two names, data behind a link) is
//! a fault, so that no archive means one thing here and another elsewhere.

use std::io::{self, BufRead};

use sandkasten_protocol::ArchiveFault;

use super::{BLOCK, Trouble};

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
    /// Seconds since 1970, and nanoseconds.
    pub(super) mtime: (i64, u32),
}

/// What a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    File { size: u64 },
    Dir,
    Symlink { target: Vec<u8> },
    HardLink { target: Vec<u8> },
}

/// A tar stream, read member by member.
pub(super) struct Reader<S> {
    source: S,
    /// Bytes of the current member's data that are still unread.
    left: u64,
    /// Zero bytes behind them up to the next block.
    padding: u64,
    /// The member that is being read, for messages.
    path: Vec<u8>,
}

/// What headers before the member's own said about it.
#[derive(Debug, Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    pax_seen: bool,
}

impl<S: BufRead> Reader<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, left: 0, padding: 0, path: Vec::new() }
    }

    /// The path of the member that is being read; empty while it is not known.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// The next member; `None` at the end mark. An archive without one is cut short.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, Trouble> {
        self.skip_data()?;
        self.path.clear();
        let mut extension = Extension::default();
        loop {
            let Some(header) = self.header()? else {
                return self.end(&extension).map(|()| None);
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

    /// The next bytes of the current member's data, to be [consumed](Self::consume); none at their end.
    pub(super) fn data(&mut self) -> Result<&[u8], Trouble> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let available = self.source.fill_buf().map_err(unreadable)?;
        if available.is_empty() {
            return Err(ArchiveFault::CutShort.into());
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(available.len());
        Ok(available.get(..most).unwrap_or_default())
    }

    pub(super) fn consume(&mut self, bytes: usize) {
        self.source.consume(bytes);
        self.left = self.left.saturating_sub(bytes as u64);
    }

    /// Reads what stands behind the end mark: zeros alone.
    pub(super) fn finish(mut self) -> Result<(), Trouble> {
        loop {
            let rest = self.source.fill_buf().map_err(unreadable)?;
            if rest.is_empty() {
                return Ok(());
            }
            if rest.iter().any(|byte| *byte != 0) {
                return Err(ArchiveFault::BehindTheEnd.into());
            }
            let bytes = rest.len();
            self.source.consume(bytes);
        }
    }

    /// The next header; `None` for a zero block.
    fn header(&mut self) -> Result<Option<Header>, Trouble> {
        let mut header = Header([0; BLOCK]);
        self.source.read_exact(&mut header.0).map_err(unreadable)?;
        if header.0 == [0; BLOCK] {
            return Ok(None);
        }
        header.check()?;
        Ok(Some(header))
    }

    fn end(&mut self, extension: &Extension) -> Result<(), Trouble> {
        if extension.pax_seen || extension.path.is_some() || extension.link.is_some() {
            return Err(ArchiveFault::CutShort.into());
        }
        // The mark is two blocks; the second tells it from a file that was overwritten with zeros.
        match self.header()? {
            None => Ok(()),
            Some(_) => Err(ArchiveFault::BehindTheEnd.into()),
        }
    }

    fn entry(&mut self, header: &Header, extension: Extension) -> Result<Entry, Trouble> {
        let path = extension.path.map_or_else(|| header.path(), Ok)?;
        self.path.clone_from(&path);
        let size = header.size(extension.size)?;
        let target = extension.link.unwrap_or_else(|| header.link());
        let kind = match header.kind() {
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Dir,
            b'0' | 0 | b'7' => Kind::File { size },
            b'1' => Kind::HardLink { target },
            b'2' => Kind::Symlink { target },
            b'5' => Kind::Dir,
            b'S' => return Err(ArchiveFault::Sparse.into()),
            b'3' | b'4' | b'6' => return Err(ArchiveFault::Special.into()),
            _ => return Err(ArchiveFault::UnknownKind.into()),
        };
        match kind {
            Kind::File { size } => {
                self.left = size;
                // No size of a file: it can't be padded.
                let padded = size.checked_next_multiple_of(BLOCK as u64);
                self.padding = padded.ok_or(ArchiveFault::Malformed)? - size;
            }
            // Some readers skip such data and some don't.
            Kind::Dir | Kind::Symlink { .. } | Kind::HardLink { .. } if size != 0 => {
                return Err(ArchiveFault::DataBehindLink.into());
            }
            Kind::Dir | Kind::Symlink { .. } | Kind::HardLink { .. } => {}
        }
        Ok(Entry {
            kind,
            mode: u32::try_from(header.number(100, 8)? & 0o7777).unwrap_or(0),
            uid: extension.uid.map_or_else(|| header.number(108, 8), Ok)?,
            gid: extension.gid.map_or_else(|| header.number(116, 8), Ok)?,
            mtime: extension.mtime.map_or_else(|| header.mtime(), Ok)?,
            path,
        })
    }

    fn pax(&mut self, header: &Header, extension: &mut Extension) -> Result<(), Trouble> {
        if extension.pax_seen {
            return Err(ArchiveFault::Contradiction.into());
        }
        extension.pax_seen = true;
        let text = self.extension_data(header)?;
        for record in pax_records(&text) {
            let (key, value) = record?;
            extension.set(key, value)?;
        }
        Ok(())
    }

    /// A header for all that follow: what says nothing of names and sizes is passed over.
    fn pax_global(&mut self, header: &Header) -> Result<(), Trouble> {
        let text = self.extension_data(header)?;
        for record in pax_records(&text) {
            let (key, _) = record?;
            if matches!(key, b"path" | b"linkpath" | b"size") || key.starts_with(b"GNU.sparse.") {
                return Err(ArchiveFault::Contradiction.into());
            }
        }
        Ok(())
    }

    fn long_name(&mut self, header: &Header) -> Result<Vec<u8>, Trouble> {
        let mut name = self.extension_data(header)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn extension_data(&mut self, header: &Header) -> Result<Vec<u8>, Trouble> {
        let size = header.number(124, 12)?;
        if size > EXTENSION_BYTES_MAX {
            return Err(ArchiveFault::LongHeader.into());
        }
        let length = usize::try_from(size).unwrap_or(0);
        let mut data = vec![0; length.next_multiple_of(BLOCK)];
        self.source.read_exact(&mut data).map_err(unreadable)?;
        data.truncate(length);
        Ok(data)
    }

    fn skip_data(&mut self) -> Result<(), Trouble> {
        self.left = self.left.saturating_add(self.padding);
        self.padding = 0;
        while self.left > 0 {
            let bytes = self.data()?.len();
            self.consume(bytes);
        }
        Ok(())
    }
}

impl Extension {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Trouble> {
        match key {
            // An empty value takes a record of a global header back.
            _ if value.is_empty() => {}
            b"path" => set_once(&mut self.path, name(value)?)?,
            b"linkpath" => set_once(&mut self.link, name(value)?)?,
            b"size" => set_once(&mut self.size, decimal(value)?)?,
            b"uid" => self.uid = Some(decimal(value)?),
            b"gid" => self.gid = Some(decimal(value)?),
            b"mtime" => self.mtime = Some(time(value).ok_or(ArchiveFault::Malformed)?),
            _ if key.starts_with(b"GNU.sparse.") => return Err(ArchiveFault::Sparse.into()),
            // Everything else (other times, names of owners, attributes) is not kept.
            _ => {}
        }
        Ok(())
    }
}

/// One block of 512 bytes.
#[derive(Debug)]
struct Header([u8; BLOCK]);

impl Header {
    fn field(&self, at: usize, length: usize) -> &[u8] {
        self.0.get(at..at + length).unwrap_or_default()
    }

    fn kind(&self) -> u8 {
        self.field(156, 1).first().copied().unwrap_or(0)
    }

    /// The sum of all bytes, those of its own field taken as blanks.
    fn check(&self) -> Result<(), Trouble> {
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let (own, all) = (sum(self.field(148, 8)), sum(&self.0));
        match self.number(148, 8) {
            Ok(said) if said == all - own + 8 * u64::from(b' ') => Ok(()),
            _ => Err(ArchiveFault::NotAnArchive.into()),
        }
    }

    fn path(&self) -> Result<Vec<u8>, Trouble> {
        let name = text(self.field(0, 100));
        // GNU headers have times where ustar has the prefix.
        let is_ustar = self.field(257, 6) == b"ustar\0";
        let prefix = if is_ustar { text(self.field(345, 155)) } else { b"" };
        match (prefix, name) {
            (b"", b"") => Err(ArchiveFault::Malformed.into()),
            (b"", name) => Ok(name.to_vec()),
            (prefix, name) => Ok([prefix, b"/", name].concat()),
        }
    }

    fn link(&self) -> Vec<u8> {
        text(self.field(157, 100)).to_vec()
    }

    /// The size that holds: PAX says it where the field can't. Two that differ are an attack.
    fn size(&self, pax: Option<u64>) -> Result<u64, Trouble> {
        let size = self.number(124, 12)?;
        match pax {
            Some(pax) if size != 0 && size != pax => Err(ArchiveFault::Contradiction.into()),
            Some(pax) => Ok(pax),
            None => Ok(size),
        }
    }

    fn mtime(&self) -> Result<(i64, u32), Trouble> {
        let field = self.field(136, 12);
        // Before 1970: all bits above the number are set.
        if let Some((0xff, rest)) = field.split_first() {
            let (high, low) = rest.split_at(rest.len().saturating_sub(8));
            let low = low.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            let is_one = high.iter().all(|byte| *byte == 0xff);
            let seconds = low.cast_signed();
            return match is_one && seconds < 0 {
                true => Ok((seconds, 0)),
                false => Err(ArchiveFault::Malformed.into()),
            };
        }
        let seconds = self.number(136, 12)?;
        Ok((i64::try_from(seconds).unwrap_or(i64::MAX), 0))
    }

    /// A number: octal digits, or big-endian binary behind a first byte of 0x80. Blank is 0.
    fn number(&self, at: usize, length: usize) -> Result<u64, Trouble> {
        let field = self.field(at, length);
        let number = match field.split_first() {
            Some((0x80, rest)) => {
                let (high, low) = rest.split_at(rest.len().saturating_sub(8));
                let is_small = high.iter().all(|byte| *byte == 0);
                let number = low.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
                is_small.then_some(number)
            }
            _ => text(field).trim_ascii().iter().try_fold(0_u64, |number, byte| match byte {
                b'0'..=b'7' => number.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
                _ => None,
            }),
        };
        number.ok_or_else(|| ArchiveFault::Malformed.into())
    }
}

/// `LENGTH KEY=VALUE\n`, repeated.
fn pax_records(text: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), Trouble>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = pax_record(rest);
        rest = record.map_or(&[][..], |(_, _, tail)| tail);
        let record = record.map(|(key, value, _)| (key, value));
        Some(record.ok_or_else(|| ArchiveFault::Malformed.into()))
    })
}

fn pax_record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = text.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(text.get(..blank)?).ok()?.parse().ok()?;
    let record = text.get(blank + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((record.get(..equals)?, record.get(equals + 1..)?, text.get(length..)?))
}

fn set_once<T>(place: &mut Option<T>, value: T) -> Result<(), Trouble> {
    match place.replace(value) {
        Some(_) => Err(ArchiveFault::Contradiction.into()),
        None => Ok(()),
    }
}

/// Some readers end a name at a NUL and some don't.
fn name(text: &[u8]) -> Result<Vec<u8>, Trouble> {
    if text.contains(&0) { Err(ArchiveFault::Malformed.into()) } else { Ok(text.to_vec()) }
}

fn decimal(text: &[u8]) -> Result<u64, Trouble> {
    let is_plain = text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| is_plain);
    number.and_then(|text| text.parse().ok()).ok_or_else(|| ArchiveFault::Malformed.into())
}

/// Seconds and nanoseconds of a decimal fraction, finer digits cut off.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !(whole.bytes().chain(fraction.bytes())).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole: i64 = whole.parse().ok()?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
    Some(match (is_negative, nanos) {
        (false, _) => (whole, nanos),
        (true, 0) => (-whole, 0),
        (true, _) => (-whole - 1, 1_000_000_000 - nanos),
    })
}

/// A field up to its NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// A fault of the compressed stream is the archive's; everything else is the connection's.
fn unreadable(error: io::Error) -> Trouble {
    let faults = [
        (io::ErrorKind::UnexpectedEof, ArchiveFault::CutShort),
        (io::ErrorKind::InvalidData, ArchiveFault::Gzip),
        (io::ErrorKind::QuotaExceeded, ArchiveFault::Ratio),
    ];
    match faults.into_iter().find(|(kind, _)| *kind == error.kind()) {
        Some((_, fault)) => fault.into(),
        None => error.into(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_before_and_after_1970() {
        assert_eq!(time(b"5"), Some((5, 0)));
        assert_eq!(time(b"5.000000001"), Some((5, 1)));
        assert_eq!(time(b"5.0000000019"), Some((5, 1)));
        assert_eq!(time(b"-4.75"), Some((-5, 250_000_000)));
        assert_eq!(time(b"-0.000000001"), Some((-1, 999_999_999)));
        for bad in [&b""[..], b".", b"x", b"1e3", b"+1", b"99999999999999999999"] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }
}
