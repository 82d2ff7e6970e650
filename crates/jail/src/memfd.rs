//! Files in memory that nobody can change any more.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

/// `MFD_NOEXEC_SEAL` and `MFD_EXEC` came with Linux 6.3; before, every memfd may be executed.
const MFD_NOEXEC_SEAL: MemfdFlags = MemfdFlags::from_bits_retain(0x8);
const MFD_EXEC: MemfdFlags = MemfdFlags::from_bits_retain(0x10);

/// Refuses later changes of the mode's execute bits. Linux 6.3.
const F_SEAL_EXEC: SealFlags = SealFlags::from_bits_retain(0x20);

/// A memfd of those bytes, sealed against every change, close-on-exec, its offset at 0.
///
/// # Errors
/// What memfd_create(2), write(2) or fcntl(2) say.
pub fn sealed(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(create(name, MFD_NOEXEC_SEAL)?);
    file.write_all(bytes)?;
    file.rewind()?;
    let file = OwnedFd::from(file);
    seal(file.as_fd())?;
    Ok(file)
}

/// A program of mode 0111, owned by the caller: who runs it can't read it, and the kernel ties the
/// memory of a process that runs what it can't read to the user namespace of the file's owner. No
/// capability of a box reaches such a process by ptrace or `/proc/PID/mem`.
///
/// # Errors
/// What memfd_create(2), write(2), fchmod(2), fcntl(2) or open(2) say. Needs `/proc`.
pub(crate) fn program(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(create(name, MFD_EXEC)?);
    file.write_all(bytes)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o111))?;
    seal(file.as_fd())?;
    // Executing a file that is open for writing anywhere is ETXTBSY, sealed or not.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn create(name: &str, kind: MemfdFlags) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | kind) {
        Err(Errno::INVAL) => Ok(rustix::fs::memfd_create(name, flags)?),
        other => Ok(other?),
    }
}

fn seal(file: BorrowedFd<'_>) -> io::Result<()> {
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    match rustix::fs::fcntl_add_seals(file, all | F_SEAL_EXEC) {
        Err(Errno::INVAL) => Ok(rustix::fs::fcntl_add_seals(file, all)?),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod test {
    use std::io::Read;

    use super::*;

    #[test]
    fn sealed_bytes_can_be_read_and_never_changed() {
        let mut file = File::from(sealed("test", b"configuration").unwrap());
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "configuration");
        file.rewind().unwrap();
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
        assert!(file.set_len(100).is_err());
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap();
        assert!(seals.contains(SealFlags::SEAL | SealFlags::WRITE));
    }

    #[test]
    fn a_program_has_mode_0111() {
        let file = program("test", b"\x7fELF").unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_mode & 0o7777, 0o111);
    }
}
