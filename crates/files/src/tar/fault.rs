//! Why a tar stream can't be read.

use std::{fmt, io};

use sandkasten_protocol::ArchiveFault;

/// The stream is at fault, or reading it failed.
#[derive(Debug)]
pub enum TarError {
    Fault(TarFault),
    /// What the source said. Data of a compression that are damaged come as it names them.
    Io(io::Error),
}

impl From<TarFault> for TarError {
    fn from(fault: TarFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<io::Error> for TarError {
    fn from(error: io::Error) -> Self {
        let is_over = error.kind() == io::ErrorKind::UnexpectedEof;
        if is_over { Self::Fault(TarFault::CutShort) } else { Self::Io(error) }
    }
}

/// What is wrong with a tar stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TarFault {
    NotAnArchive,
    CutShort,
    /// A header follows the first block of the end mark.
    BehindTheEnd,
    /// A header's number is none, or too large.
    Number(Vec<u8>),
    PaxRecord,
    PaxNumber(Vec<u8>),
    /// A PAX header or a GNU name is longer than its limit.
    LongHeader,
    NoName,
    NulInName,
    TwoSizes,
    /// Two headers give one member a name or a size each.
    TwoNames,
    TwoPaxHeaders,
    /// A header for all that follow says what only one member can have.
    GlobalName,
    /// Data of a member that has none. Some readers skip them and some don't.
    DataBehindLink,
    PaxSparse,
    /// The pieces of a sparse file overlap, or one is beyond the file's end.
    SparseOrder,
    SparseSize,
    UnknownKind(u8),
}

impl fmt::Display for TarFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAnArchive => f.write_str("not a tar archive, or a damaged one"),
            Self::CutShort => f.write_str("the archive is cut short"),
            Self::BehindTheEnd => f.write_str("a header follows a zero block"),
            Self::Number(field) => write!(f, "a header's number `{}`", field.escape_ascii()),
            Self::PaxRecord => f.write_str("a PAX header"),
            Self::PaxNumber(text) => write!(f, "a PAX number `{}`", text.escape_ascii()),
            Self::LongHeader => f.write_str("an extended header is too long"),
            Self::NoName => f.write_str("an entry without a name"),
            Self::NulInName => f.write_str("a NUL in a path"),
            Self::TwoSizes => f.write_str("an entry with two sizes"),
            Self::TwoNames => f.write_str("an entry with two names or sizes"),
            Self::TwoPaxHeaders => f.write_str("two PAX headers in a row"),
            Self::GlobalName => f.write_str("a global PAX header names a file"),
            Self::DataBehindLink => f.write_str("data behind an entry that is no file"),
            Self::PaxSparse => f.write_str("sparse files in PAX form are not supported"),
            Self::SparseOrder => f.write_str("a sparse file's map is out of order"),
            Self::SparseSize => f.write_str("a sparse file's map and size differ"),
            Self::UnknownKind(kind) => {
                write!(f, "entry type `{}` is not supported", kind.escape_ascii())
            }
        }
    }
}

impl From<TarFault> for ArchiveFault {
    fn from(fault: TarFault) -> Self {
        match fault {
            TarFault::NotAnArchive => Self::NotAnArchive,
            TarFault::CutShort => Self::CutShort,
            TarFault::BehindTheEnd => Self::BehindTheEnd,
            TarFault::LongHeader => Self::LongHeader,
            TarFault::DataBehindLink => Self::DataBehindLink,
            TarFault::PaxSparse | TarFault::SparseOrder | TarFault::SparseSize => Self::Sparse,
            TarFault::UnknownKind(_) => Self::UnknownKind,
            TarFault::Number(_)
            | TarFault::PaxRecord
            | TarFault::PaxNumber(_)
            | TarFault::NoName
            | TarFault::NulInName => Self::Malformed,
            TarFault::TwoSizes
            | TarFault::TwoNames
            | TarFault::TwoPaxHeaders
            | TarFault::GlobalName => Self::Contradiction,
        }
    }
}
