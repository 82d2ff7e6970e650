//! Trees of files as tar streams, out and in.
//!
//! Invariant: below the directory that is packed or unpacked into, everything is named by one name
//! relative to a descriptor of ours, and no link is followed. What an archive says, and what a tree
//! shows while its owner changes it, is hostile.

mod gzip;
mod pack;
mod source;
mod unpack;
mod write;

#[cfg(test)]
mod test;

use std::io;

use rustix::io::Errno;
use sandkasten_protocol::{ArchiveFault, FileFault};

use crate::fault::{Failure, fault};
use crate::tar::TarError;

pub(crate) use self::pack::pack;
pub(crate) use self::unpack::unpack;

/// Directories between the top and an entry: each holds a descriptor meanwhile.
const DEPTH_MAX: usize = 512;

/// Why it can't go on, and at which path where that is known already.
#[derive(Debug)]
struct Trouble(FileFault, Option<Vec<u8>>);

impl Trouble {
    /// What it is about, as the archive or the tree has it; empty: the whole.
    fn at(self, path: &[u8]) -> Failure {
        Failure::at(self.0, self.1.as_deref().unwrap_or(path))
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self(failure.fault, Some(failure.path))
    }
}

impl From<FileFault> for Trouble {
    fn from(fault: FileFault) -> Self {
        Self(fault, None)
    }
}

impl From<ArchiveFault> for Trouble {
    fn from(fault: ArchiveFault) -> Self {
        Self(FileFault::Archive(fault), None)
    }
}

/// A fault of the compressed data is the archive's; everything else is the connection's.
impl From<TarError> for Trouble {
    fn from(error: TarError) -> Self {
        let error = match error {
            TarError::Fault(fault) => return ArchiveFault::from(fault).into(),
            TarError::Io(error) => error,
        };
        let faults = [
            (io::ErrorKind::InvalidData, ArchiveFault::Gzip),
            (io::ErrorKind::QuotaExceeded, ArchiveFault::Ratio),
        ];
        let fault = faults.into_iter().find(|(kind, _)| *kind == error.kind());
        fault.map_or_else(|| error.into(), |(_, fault)| fault.into())
    }
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Self(fault(errno), None)
    }
}

/// Of the channel: nobody is left to be told.
impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Errno::from_io_error(&error).unwrap_or(Errno::IO).into()
    }
}
