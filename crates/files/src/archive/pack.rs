//! A tree as a tar stream, while its owner may change it.
//!
//! Invariant: the stream is well formed whatever happens to the files. What vanishes while it is
//! packed is not in it; what can't be read is a fault, never a gap.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Access, AtFlags, Dir, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat};
use rustix::io::Errno;
use sandkasten_protocol::work::{Item, WORK_DATA_BYTES_MAX};
use sandkasten_protocol::{ArchiveFault, FileFault};

use super::write::{self, Head};
use super::{DEPTH_MAX, Trouble};
use crate::channel::Channel;
use crate::fault::Failure;
use crate::root::Root;
use crate::tar::BLOCK;

/// Bytes of paths that are remembered for hard links. Beyond, a file with several names is several.
const LINK_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What an entry of the map takes beside its path.
const LINK_COST: usize = 96;
/// How often something may become something else while it is looked at.
const TRIES: u32 = 16;
const OPEN: OFlags = OFlags::RDONLY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// Tells a tar stream of the directory or file at `path`.
///
/// Who may not read everything looks at all of it before the first byte, so that a fault is told by
/// its name and not by a stream that breaks.
pub(crate) fn pack(root: &Root, path: &[u8], channel: &mut dyn Channel) -> Result<(), Failure> {
    let whole = |trouble: Trouble| trouble.at(b"");
    let top = root.open(path, OFlags::RDONLY).map_err(|fault| whole(fault.into()))?;
    let stat = rustix::fs::fstat(&top).map_err(|errno| whole(errno.into()))?;
    refuse_proc(top.as_fd()).map_err(whole)?;
    let mut out = Out::new(channel);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            if !rustix::process::geteuid().is_root() {
                Walk::new(&mut out, Pass::Check).run(&top)?;
            }
            Walk::new(&mut out, Pass::Pack).run(&top)?;
        }
        FileType::RegularFile => {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            out.file(name, &top, &stat).map_err(whole)?;
        }
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => return Err(whole(FileFault::NotAFile.into())),
    }
    out.end().map_err(whole)
}

/// What procfs shows depends on who reads, and has no end.
fn refuse_proc(file: BorrowedFd<'_>) -> Result<(), Trouble> {
    match rustix::fs::fstatfs(file)?.f_type == PROC_SUPER_MAGIC {
        true => Err(FileFault::PermissionDenied.into()),
        false => Ok(()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// Only looks whether all can be read.
    Check,
    Pack,
}

/// What became of an entry.
enum Step {
    Done,
    /// A directory: its entries come next.
    Into(OwnedFd, u64),
    /// It is another thing than a moment ago.
    Again,
}

/// One walk through a tree.
struct Walk<'a, 'b> {
    out: &'a mut Out<'b>,
    pass: Pass,
    /// Of the entry at hand, relative to the top.
    path: Vec<u8>,
    open: Vec<Level>,
    links: HashMap<(u64, u64), Link>,
    link_bytes: usize,
}

/// A directory that is being read.
struct Level {
    dir: Dir,
    device: u64,
    /// Bytes of its path, the slash at the end included.
    path_bytes: usize,
}

/// The first name of a file that has several.
struct Link {
    path: Vec<u8>,
    /// Names that may still come.
    left: usize,
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(out: &'a mut Out<'b>, pass: Pass) -> Self {
        let (path, open) = (Vec::new(), Vec::new());
        Self { out, pass, path, open, links: HashMap::new(), link_bytes: 0 }
    }

    fn run(mut self, top: &OwnedFd) -> Result<(), Failure> {
        self.all(top).map_err(|trouble| trouble.at(&self.path))
    }

    fn all(&mut self, top: &OwnedFd) -> Result<(), Trouble> {
        let stat = rustix::fs::fstat(top)?;
        self.dir_head(b"./", &stat)?;
        self.go_into(rustix::fs::openat(top, ".", OPEN, Mode::empty())?, stat.st_dev)?;
        while let Some(level) = self.open.last_mut() {
            self.path.truncate(level.path_bytes);
            let Some(entry) = level.dir.read() else {
                drop(self.open.pop());
                continue;
            };
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            self.path.extend_from_slice(name);
            self.entry(entry.file_name())?;
        }
        Ok(())
    }

    fn go_into(&mut self, dir: OwnedFd, device: u64) -> Result<(), Trouble> {
        if self.open.len() > DEPTH_MAX {
            return Err(ArchiveFault::TooDeep.into());
        }
        let dir = Dir::new(dir)?;
        self.open.push(Level { dir, device, path_bytes: self.path.len() });
        Ok(())
    }

    fn entry(&mut self, name: &std::ffi::CStr) -> Result<(), Trouble> {
        self.out.channel.pulse()?;
        for _ in 0..TRIES {
            match self.step(name) {
                Ok(Step::Done) => return Ok(()),
                Ok(Step::Into(dir, device)) => {
                    self.path.push(b'/');
                    return self.go_into(dir, device);
                }
                Ok(Step::Again) => {}
                // It has gone since the directory was read.
                Err(Trouble(FileFault::NotFound, _)) => return Ok(()),
                Err(trouble) => return Err(trouble),
            }
        }
        Err(FileFault::Busy.into())
    }

    fn step(&mut self, name: &std::ffi::CStr) -> Result<Step, Trouble> {
        let Some(level) = self.open.last() else { return Ok(Step::Done) };
        let (dir, above) = (level.dir.fd()?, level.device);
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let child =
                    match rustix::fs::openat(dir, name, OPEN | OFlags::DIRECTORY, Mode::empty()) {
                        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Step::Again),
                        opened => opened?,
                    };
                if self.pass == Pass::Check {
                    rustix::fs::accessat(&child, ".", Access::EXEC_OK, AtFlags::EACCESS)?;
                }
                self.dir(child, above)
            }
            FileType::Symlink => {
                let target = match rustix::fs::readlinkat(dir, name, Vec::new()) {
                    Err(Errno::INVAL) => return Ok(Step::Again),
                    target => target?,
                };
                self.link(b'2', target.as_bytes(), &stat)
            }
            FileType::RegularFile if self.pass == Pass::Check => {
                rustix::fs::accessat(dir, name, Access::READ_OK, AtFlags::EACCESS)?;
                Ok(Step::Done)
            }
            FileType::RegularFile => {
                let file = match rustix::fs::openat(dir, name, OPEN, Mode::empty()) {
                    Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Ok(Step::Again),
                    opened => opened?,
                };
                self.file(&file)
            }
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => Ok(Step::Done),
        }
    }

    fn dir(&mut self, dir: OwnedFd, above: u64) -> Result<Step, Trouble> {
        let stat = rustix::fs::fstat(&dir)?;
        let path = [self.path.as_slice(), b"/"].concat();
        self.dir_head(&path, &stat)?;
        // A mount of procfs is shown as an empty directory.
        if stat.st_dev != above && refuse_proc(dir.as_fd()).is_err() {
            return Ok(Step::Done);
        }
        Ok(Step::Into(dir, stat.st_dev))
    }

    fn dir_head(&mut self, path: &[u8], stat: &Stat) -> Result<(), Trouble> {
        match self.pass {
            Pass::Check => Ok(()),
            Pass::Pack => self.out.head(&Head { path, kind: b'5', link: b"", size: 0, stat }),
        }
    }

    fn link(&mut self, kind: u8, link: &[u8], stat: &Stat) -> Result<Step, Trouble> {
        if self.pass == Pass::Pack {
            self.out.head(&Head { path: &self.path, kind, link, size: 0, stat })?;
        }
        Ok(Step::Done)
    }

    fn file(&mut self, file: &OwnedFd) -> Result<Step, Trouble> {
        let stat = rustix::fs::fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(Step::Again);
        }
        if stat.st_nlink > 1
            && let Some(first) = self.known_link(&stat)
        {
            return self.link(b'1', &first, &stat);
        }
        self.out.file(&self.path, file, &stat)?;
        Ok(Step::Done)
    }

    /// The name under which the file is in the archive already. This one is noted where there is none.
    fn known_link(&mut self, stat: &Stat) -> Option<Vec<u8>> {
        let id = (stat.st_dev, stat.st_ino);
        if let Some(link) = self.links.get_mut(&id) {
            link.left = link.left.saturating_sub(1);
            if link.left > 0 {
                return Some(link.path.clone());
            }
            let last = self.links.remove(&id)?;
            self.link_bytes -= last.path.len() + LINK_COST;
            return Some(last.path);
        }
        let bytes = self.path.len() + LINK_COST;
        if self.link_bytes + bytes <= LINK_BYTES_MAX {
            self.link_bytes += bytes;
            let left = usize::try_from(stat.st_nlink).unwrap_or(usize::MAX) - 1;
            self.links.insert(id, Link { path: self.path.clone(), left });
        }
        None
    }
}

/// The stream.
struct Out<'a> {
    channel: &'a mut dyn Channel,
    buffer: Vec<u8>,
}

impl<'a> Out<'a> {
    fn new(channel: &'a mut dyn Channel) -> Self {
        let buffer = Vec::with_capacity(WORK_DATA_BYTES_MAX);
        Self { channel, buffer }
    }

    fn head(&mut self, head: &Head<'_>) -> Result<(), Trouble> {
        write::head(&mut self.buffer, head);
        self.flush_full()
    }

    /// A file, as long as its header says: cut where it grows, filled with zeros where it shrinks.
    fn file(&mut self, path: &[u8], file: &OwnedFd, stat: &Stat) -> Result<(), Trouble> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        self.head(&Head { path, kind: b'0', link: b"", size, stat })?;
        let mut left = size;
        let mut is_over = false;
        while left > 0 {
            if self.buffer.len() >= WORK_DATA_BYTES_MAX {
                self.flush()?;
            }
            let start = self.buffer.len();
            let room = WORK_DATA_BYTES_MAX.saturating_sub(start);
            let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(room);
            self.buffer.resize(start + bytes, 0);
            let taken = if is_over {
                bytes
            } else {
                let read = read(file, self.buffer.get_mut(start..).unwrap_or_default())?;
                is_over = read == 0;
                read
            };
            self.buffer.truncate(start + taken);
            left -= taken as u64;
        }
        write::pad(&mut self.buffer, size);
        self.flush_full()
    }

    fn end(&mut self) -> Result<(), Trouble> {
        self.buffer.resize(self.buffer.len() + 2 * BLOCK, 0);
        self.flush()
    }

    fn flush_full(&mut self) -> Result<(), Trouble> {
        if self.buffer.len() >= WORK_DATA_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Trouble> {
        let next = Vec::with_capacity(WORK_DATA_BYTES_MAX);
        let mut bytes = std::mem::replace(&mut self.buffer, next);
        // Headers of long names may have gone over the end.
        let over = bytes.split_off(bytes.len().min(WORK_DATA_BYTES_MAX));
        self.buffer.extend_from_slice(&over);
        Ok(self.channel.tell(Item::Data(bytes))?)
    }
}

fn read(file: &OwnedFd, buffer: &mut [u8]) -> Result<usize, Trouble> {
    loop {
        match rustix::io::read(file, &mut *buffer) {
            Err(Errno::INTR) => {}
            read => return Ok(read?),
        }
    }
}
