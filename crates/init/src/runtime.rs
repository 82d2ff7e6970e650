//! init's own directory `/.sandkasten`: FIFOs and long commands.
//!
//! The payload can pass through the directory but neither list it nor make anything in it; names are
//! random. Nothing here trusts a name that it did not make itself, and no open waits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use sandkasten_protocol::RUN_DIR;

use crate::state::write_at;

/// Payload writes, init reads.
const FIFO_MODE: u32 = 0o622;
/// Payload reads, init writes.
const SCRIPT_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o711;
/// FIFOs that a command takes beside that of its status.
const SPARES: usize = 2;

#[derive(Debug)]
pub(crate) struct RunDir {
    dir: Rc<OwnedFd>,
    /// FIFOs that nobody has been told of: for a command's output and the shell's state behind it, and for
    /// its status.
    spares: Vec<Fifo>,
    spare_status: Option<Fifo>,
}

/// A FIFO that the payload opens by its name.
#[derive(Debug)]
pub(crate) struct Fifo {
    /// Removes the name.
    pub(crate) name: Entry,
    /// init's end. It may be open for writing too.
    pub(crate) read: OwnedFd,
}

/// Something in the run directory that is removed with its value.
#[derive(Debug)]
pub(crate) struct Entry {
    dir: Rc<OwnedFd>,
    name: String,
    flags: AtFlags,
}

impl Entry {
    /// Whether its name still leads somewhere: the box's root may remove names.
    pub(crate) fn is_there(&self) -> bool {
        rustix::fs::accessat(&*self.dir, &self.name, Access::EXISTS, AtFlags::empty()).is_ok()
    }

    /// Where the payload finds it.
    pub(crate) fn path(&self) -> String {
        format!("{RUN_DIR}/{}", self.name)
    }

    /// Opens a FIFO that has a reader.
    ///
    /// # Errors
    /// It has none (ENXIO), or there is no descriptor.
    pub(crate) fn open_for_writing(&self) -> io::Result<OwnedFd> {
        open_fifo(&*self.dir, &self.name, OFlags::WRONLY)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Nobody but init removes names here, so this works or the tmpfs is gone with the box.
        let _ = rustix::fs::unlinkat(&*self.dir, &self.name, self.flags);
    }
}

impl Fifo {
    pub(crate) fn path(&self) -> String {
        self.name.path()
    }
}

/// A directory for a script and its name there, removed with this value.
#[derive(Debug)]
pub(crate) struct ScriptPlace {
    /// What the shell starts in. Declared before `entry`, whose removal needs it empty.
    pub(crate) dir: OwnedFd,
    name: &'static str,
    _entry: Entry,
}

impl ScriptPlace {
    /// A FIFO there, non-blocking.
    pub(crate) fn fifo(&self) -> io::Result<OwnedFd> {
        rustix::fs::mkfifoat(&self.dir, self.name, Mode::from_raw_mode(SCRIPT_MODE))?;
        // Open for both: that needs no reader yet, and a write never fails for want of one.
        open_fifo(&self.dir, self.name, OFlags::RDWR)
    }

    /// An empty file there, open for writing.
    pub(crate) fn file(&self) -> io::Result<OwnedFd> {
        new_file(&self.dir, self.name)
    }
}

impl Drop for ScriptPlace {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.dir, self.name, AtFlags::empty());
    }
}

impl RunDir {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = Rc::new(rustix::fs::openat(CWD, RUN_DIR, flags, Mode::empty())?);
        Ok(Self { dir, spares: Vec::new(), spare_status: None })
    }

    #[cfg(test)]
    pub(crate) fn at(path: &std::path::Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = Rc::new(rustix::fs::openat(CWD, path, flags, Mode::empty())?);
        Ok(Self { dir, spares: Vec::new(), spare_status: None })
    }

    /// A FIFO for the payload's writing, its read end open and non-blocking.
    pub(crate) fn fifo(&mut self) -> io::Result<Fifo> {
        match self.spares.pop() {
            Some(fifo) if fifo.name.is_there() => Ok(fifo),
            Some(_) | None => self.fifo_with(OFlags::RDONLY, FIFO_MODE),
        }
    }

    /// As [`fifo`](Self::fifo), open for both, so that it never ends: neither who opens nor who closes it
    /// wakes init, only who writes.
    pub(crate) fn status_fifo(&mut self) -> io::Result<Fifo> {
        match self.spare_status.take() {
            Some(fifo) if fifo.name.is_there() => Ok(fifo),
            Some(_) | None => self.fifo_with(OFlags::RDWR, FIFO_MODE),
        }
    }

    /// Makes what the next command will need, while nobody waits. Without room that command tries again.
    pub(crate) fn make_spares(&mut self) {
        while self.spares.len() < SPARES
            && let Ok(fifo) = self.fifo_with(OFlags::RDONLY, FIFO_MODE)
        {
            self.spares.push(fifo);
        }
        if self.spare_status.is_none() {
            self.spare_status = self.fifo_with(OFlags::RDWR, FIFO_MODE).ok();
        }
    }

    /// A FIFO for the payload's reading, open for both: neither side waits for the other.
    pub(crate) fn fifo_for_reading(&self) -> io::Result<Fifo> {
        self.fifo_with(OFlags::RDWR, SCRIPT_MODE)
    }

    fn fifo_with(&self, access: OFlags, mode: u32) -> io::Result<Fifo> {
        let name = random_name()?;
        rustix::fs::mkfifoat(&*self.dir, &name, Mode::from_raw_mode(mode))?;
        let name = self.entry(name, AtFlags::empty());
        let read = open_fifo(&*name.dir, &name.name, access)?;
        Ok(Fifo { name, read })
    }

    /// A file with these bytes, for the payload's reading.
    pub(crate) fn text(&self, bytes: &[u8]) -> io::Result<Entry> {
        self.open_text(&random_name()?, bytes)
    }

    /// Such a file whose name is no secret.
    pub(crate) fn open_text(&self, name: &str, bytes: &[u8]) -> io::Result<Entry> {
        let file = new_file(&*self.dir, name)?;
        let entry = self.entry(name.to_owned(), AtFlags::empty());
        write_at(&file, 0, bytes)?;
        Ok(entry)
    }

    /// A FIFO for the payload's reading that nobody has open, and a descriptor of its place alone.
    pub(crate) fn gate(&self) -> io::Result<(Entry, OwnedFd)> {
        let name = random_name()?;
        rustix::fs::mkfifoat(&*self.dir, &name, Mode::from_raw_mode(SCRIPT_MODE))?;
        let name = self.entry(name, AtFlags::empty());
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fifo = rustix::fs::openat(&*self.dir, &name.name, flags, Mode::empty())?;
        Ok((name, fifo))
    }

    /// Where a script of this name is to be.
    pub(crate) fn script_place(&self, name: &'static str) -> io::Result<ScriptPlace> {
        let random = random_name()?;
        rustix::fs::mkdirat(&*self.dir, &random, Mode::from_raw_mode(DIR_MODE))?;
        let entry = self.entry(random, AtFlags::REMOVEDIR);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&*self.dir, &entry.name, flags, Mode::empty())?;
        Ok(ScriptPlace { dir, name, _entry: entry })
    }

    fn entry(&self, name: String, flags: AtFlags) -> Entry {
        Entry { dir: Rc::clone(&self.dir), name, flags }
    }
}

fn new_file(dir: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(SCRIPT_MODE))?)
}

fn open_fifo(dir: impl AsFd, name: &str, access: OFlags) -> io::Result<OwnedFd> {
    let flags = access | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// 71 random bits in letters and digits. To guess one within the life of a command is hopeless, and would
/// lead to nothing that the shell's own user can't do to it.
pub(crate) fn random_name() -> io::Result<String> {
    const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    const LENGTH: usize = 12;
    let mut bytes = [0u8; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    let mut bits = u128::from_ne_bytes(bytes);
    let mut name = String::with_capacity(LENGTH);
    for _ in 0..LENGTH {
        let digit = usize::try_from(bits % DIGITS.len() as u128).unwrap_or(0);
        bits /= DIGITS.len() as u128;
        name.push(char::from(DIGITS.get(digit).copied().unwrap_or(b'0')));
    }
    Ok(name)
}
