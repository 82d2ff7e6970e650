//! The format of tar streams: ustar, with PAX headers, and GNU's names and sparse files.
//!
//! Sessions and workspaces pack and unpack such streams, images are made of them. Invariant: what is
//! read is hostile. Nothing here opens a file, and no member is given to a caller whose headers do
//! not agree.

mod fault;
mod header;
mod read;
mod write;

pub use self::fault::{TarError, TarFault};
pub use self::header::is_header;
pub use self::read::{Kind, Member, Piece, Reader};
pub use self::write::{Header, NUMBER_MAX, padding, record};

/// Bytes of a tar block.
pub const BLOCK: usize = 512;
