//! Why a job fails.

use std::io;

use rustix::io::Errno;
use sandkasten_protocol::{Bytes, FileFault};

/// A fault, and the path that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub fault: FileFault,
    /// Empty: what was asked for.
    pub path: Bytes,
}

impl Failure {
    /// About another path than what was asked for.
    #[must_use]
    pub fn at(fault: FileFault, path: &[u8]) -> Self {
        Self { fault, path: path.to_vec() }
    }
}

impl From<FileFault> for Failure {
    fn from(fault: FileFault) -> Self {
        Self { fault, path: Bytes::new() }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        fault(errno).into()
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Errno::from_io_error(&error).unwrap_or(Errno::IO).into()
    }
}

/// The name of an errno.
#[must_use]
pub fn fault(errno: Errno) -> FileFault {
    match errno {
        Errno::NOENT => FileFault::NotFound,
        Errno::ISDIR => FileFault::IsADirectory,
        Errno::NOTDIR => FileFault::NotADirectory,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => FileFault::PermissionDenied,
        Errno::EXIST => FileFault::AlreadyExists,
        Errno::NAMETOOLONG | Errno::LOOP | Errno::INVAL => FileFault::InvalidPath,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => FileFault::NoSpace,
        Errno::NOTEMPTY => FileFault::NotEmpty,
        Errno::BUSY => FileFault::PermissionDenied,
        Errno::XDEV => FileFault::NotAllowed,
        Errno::NXIO => FileFault::NotAFile,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => FileFault::Busy,
        other => FileFault::Other(other.raw_os_error()),
    }
}
