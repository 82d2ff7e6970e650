//! Reads a tar stream (ustar, PAX, GNU) that nobody vouches for.
//!
//! Invariant: every header is checked before it is used, nothing is read into memory without a
//! limit, and a point on which readers of tar disagree (two sizes, two names, data behind a link) is
//! a fault, so that no archive means one thing here and another elsewhere.

use std::io::BufRead;

use super::header::{Block, decimal, pax_records, time};
use super::{BLOCK, TarError, TarFault, padding};

/// Bytes of a PAX header or a GNU long name.
const EXTENSION_BYTES_MAX: u64 = 1024 * 1024;
/// Pieces of one sparse file.
const PIECES_MAX: usize = 1_000_000;
/// An overlay's mark of a directory that hides the one below it.
const OPAQUE: &[u8] = b"SCHILY.xattr.trusted.overlay.opaque";

/// One member of an archive. Its data follow in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// As written in the archive: any bytes but NUL.
    pub path: Vec<u8>,
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u32,
    pub uid: u64,
    pub gid: u64,
    /// Seconds since 1970, and nanoseconds; `None` where the archive's word for it is no time.
    pub mtime: Option<(i64, u32)>,
    /// Has the extended attribute `trusted.overlay.opaque=y`.
    pub opaque: bool,
}

/// What a member is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    File {
        size: u64,
    },
    /// GNU's: pieces of data in order, without overlap; the rest of `size` bytes are holes.
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

/// A piece of data of a sparse file, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub length: u64,
}

/// A tar stream, read member by member.
#[derive(Debug)]
pub struct Reader<S> {
    source: S,
    /// Bytes of the current member's data that are still unread.
    left: u64,
    /// Zero bytes after them up to the next block.
    padding: usize,
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
    mtime: Option<Option<(i64, u32)>>,
    opaque: bool,
    pax_seen: bool,
}

impl<S: BufRead> Reader<S> {
    /// Reads the archive that `source` gives from here on.
    pub fn new(source: S) -> Self {
        Self { source, left: 0, padding: 0, path: Vec::new() }
    }

    /// The path of the member that is being read; empty while it is not known.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The next member; `None` at the end mark. Data of the one before that are unread are passed
    /// over.
    ///
    /// # Errors
    /// The archive is at fault; one without an end mark is cut short.
    pub fn next_member(&mut self) -> Result<Option<Member>, TarError> {
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
                _ => return self.member(&header, extension).map(Some),
            }
        }
    }

    /// The next bytes of the current member's data, to be [consumed](Self::consume); none at their end.
    ///
    /// # Errors
    /// The archive ends before them.
    pub fn data(&mut self) -> Result<&[u8], TarError> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let available = self.source.fill_buf()?;
        if available.is_empty() {
            return Err(TarFault::CutShort.into());
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(available.len());
        Ok(available.get(..most).unwrap_or_default())
    }

    /// Takes so many of the bytes that [`data`](Self::data) gave.
    pub fn consume(&mut self, bytes: usize) {
        self.source.consume(bytes);
        self.left = self.left.saturating_sub(bytes as u64);
    }

    /// What follows the end mark, once [`next_member`](Self::next_member) has given `None`.
    pub fn into_rest(self) -> S {
        self.source
    }

    /// The next header; `None` for a zero block.
    fn header(&mut self) -> Result<Option<Block>, TarError> {
        let header = self.block()?;
        if header.is_zeros() {
            return Ok(None);
        }
        header.check()?;
        Ok(Some(header))
    }

    fn block(&mut self) -> Result<Block, TarError> {
        let mut block = Block::ZEROS;
        self.source.read_exact(&mut block.0)?;
        Ok(block)
    }

    fn end(&mut self, extension: &Extension) -> Result<(), TarError> {
        if extension.pax_seen || extension.path.is_some() || extension.link.is_some() {
            return Err(TarFault::CutShort.into());
        }
        // The mark is two blocks; the second tells it from a file that was overwritten with zeros.
        match self.header()? {
            None => Ok(()),
            Some(_) => Err(TarFault::BehindTheEnd.into()),
        }
    }

    fn member(&mut self, header: &Block, extension: Extension) -> Result<Member, TarError> {
        let path = extension.path.map_or_else(|| header.path(), Ok)?;
        self.path.clone_from(&path);
        let stored = header.size(extension.size)?;
        let target = extension.link.unwrap_or_else(|| header.link());
        let kind = match header.kind() {
            b'0' | 0 | b'7' if path.ends_with(b"/") => Kind::Dir,
            b'0' | 0 | b'7' => Kind::File { size: stored },
            b'1' => Kind::HardLink { target },
            b'2' => Kind::Symlink { target },
            b'3' if header.device()? == (0, 0) => Kind::Whiteout,
            b'3' | b'4' | b'6' => Kind::Special,
            b'5' => Kind::Dir,
            b'S' => self.sparse(header, stored)?,
            other => return Err(TarFault::UnknownKind(other).into()),
        };
        self.expect_data(&kind, stored)?;
        Ok(Member {
            kind,
            mode: u32::try_from(header.number(100, 8)? & 0o7777).unwrap_or(0),
            uid: extension.uid.map_or_else(|| header.number(108, 8), Ok)?,
            gid: extension.gid.map_or_else(|| header.number(116, 8), Ok)?,
            mtime: extension.mtime.unwrap_or_else(|| header.mtime().map(|seconds| (seconds, 0))),
            opaque: extension.opaque,
            path,
        })
    }

    fn expect_data(&mut self, kind: &Kind, stored: u64) -> Result<(), TarFault> {
        match kind {
            Kind::File { .. } | Kind::Sparse { .. } => {
                // No size of a file: it can't be padded.
                let is_size = stored.checked_next_multiple_of(BLOCK as u64).is_some();
                is_size.then_some(()).ok_or_else(|| TarFault::Number(stored.to_string().into()))?;
                (self.left, self.padding) = (stored, padding(stored));
                Ok(())
            }
            Kind::Dir
            | Kind::Symlink { .. }
            | Kind::HardLink { .. }
            | Kind::Whiteout
            | Kind::Special => match stored {
                0 => Ok(()),
                _ => Err(TarFault::DataBehindLink),
            },
        }
    }

    /// The map of a sparse file must be in order, without overlap, within the file, and cover the
    /// stored data exactly.
    fn sparse(&mut self, header: &Block, stored: u64) -> Result<Kind, TarError> {
        let size = header.number(483, 12)?;
        let pieces = self.pieces(header)?;
        let (mut end, mut data) = (0_u64, 0_u64);
        for piece in &pieces {
            match piece.offset.checked_add(piece.length) {
                Some(next) if piece.offset >= end && next <= size => end = next,
                _ => return Err(TarFault::SparseOrder.into()),
            }
            data += piece.length;
        }
        match data == stored {
            true => Ok(Kind::Sparse { size, pieces }),
            false => Err(TarFault::SparseSize.into()),
        }
    }

    fn pieces(&mut self, header: &Block) -> Result<Vec<Piece>, TarError> {
        let mut pieces = Vec::new();
        header.pieces(386, 4, &mut pieces)?;
        let mut is_continued = header.byte(482) != 0;
        while is_continued {
            let more = self.block()?;
            more.pieces(0, 21, &mut pieces)?;
            is_continued = more.byte(504) != 0;
            if pieces.len() > PIECES_MAX {
                return Err(TarFault::LongHeader.into());
            }
        }
        Ok(pieces)
    }

    fn pax(&mut self, header: &Block, extension: &mut Extension) -> Result<(), TarError> {
        if extension.pax_seen {
            return Err(TarFault::TwoPaxHeaders.into());
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
    fn pax_global(&mut self, header: &Block) -> Result<(), TarError> {
        let text = self.extension_data(header)?;
        for record in pax_records(&text) {
            let (key, _) = record?;
            if matches!(key, b"path" | b"linkpath" | b"size") || key.starts_with(b"GNU.sparse.") {
                return Err(TarFault::GlobalName.into());
            }
        }
        Ok(())
    }

    fn long_name(&mut self, header: &Block) -> Result<Vec<u8>, TarError> {
        let mut name = self.extension_data(header)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn extension_data(&mut self, header: &Block) -> Result<Vec<u8>, TarError> {
        let size = header.number(124, 12)?;
        if size > EXTENSION_BYTES_MAX {
            return Err(TarFault::LongHeader.into());
        }
        let length = usize::try_from(size).unwrap_or(0);
        let mut data = vec![0; length.next_multiple_of(BLOCK)];
        self.source.read_exact(&mut data)?;
        data.truncate(length);
        Ok(data)
    }

    fn skip_data(&mut self) -> Result<(), TarError> {
        self.left = self.left.saturating_add(self.padding as u64);
        self.padding = 0;
        while self.left > 0 {
            let bytes = self.data()?.len();
            self.consume(bytes);
        }
        Ok(())
    }
}

impl Extension {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), TarFault> {
        match key {
            // An empty value takes a record of a global header back.
            _ if value.is_empty() => {}
            b"path" => set_once(&mut self.path, name(value)?)?,
            b"linkpath" => set_once(&mut self.link, name(value)?)?,
            b"size" => set_once(&mut self.size, decimal(value)?)?,
            b"uid" => self.uid = Some(decimal(value)?),
            b"gid" => self.gid = Some(decimal(value)?),
            b"mtime" => self.mtime = Some(time(value)),
            OPAQUE => self.opaque = value == b"y",
            _ if key.starts_with(b"GNU.sparse.") => return Err(TarFault::PaxSparse),
            // Everything else (other times, names of owners, other attributes) is not kept.
            _ => {}
        }
        Ok(())
    }
}

fn set_once<T>(place: &mut Option<T>, value: T) -> Result<(), TarFault> {
    match place.replace(value) {
        Some(_) => Err(TarFault::TwoNames),
        None => Ok(()),
    }
}

/// Some readers end a name at a NUL and some don't.
fn name(text: &[u8]) -> Result<Vec<u8>, TarFault> {
    if text.contains(&0) { Err(TarFault::NulInName) } else { Ok(text.to_vec()) }
}
