//! Makes what a tar stream has, below one directory.
//!
//! Invariant: every name is made in a directory that was entered from the top, one name at a time,
//! without following a link. A reader of a file sees the old one or the new one. What was made before
//! a fault stays.

use std::collections::HashMap;
use std::io::BufRead;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid,
};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use sandkasten_protocol::{ArchiveFault, FileFault};

use super::source::Source;
use super::{DEPTH_MAX, Trouble, gzip};
use crate::channel::Channel;
use crate::fault::Failure;
use crate::root::Root;
use crate::tar::{Kind, Member, Reader, TarError};

const PATH_BYTES_MAX: usize = 4096;
const NAME_BYTES_MAX: usize = 255;
/// Of a directory that no entry names.
const DIR_MODE: u32 = 0o755;
/// What its owner needs to fill a directory.
const FILL_MODE: u32 = 0o700;
/// What anybody may set: set-id bits are root's to give.
const MODE_BITS: u32 = 0o1777;
const ROOT_MODE_BITS: u32 = 0o7777;
/// Ids that a box has.
const ID_MAX: u64 = 65_535;
/// Directories whose attributes are given again when something is put in them later.
const FINISHED_MAX: usize = 100_000;
const OPEN_DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// How an archive comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
}

impl From<bool> for Packing {
    fn from(is_gzip: bool) -> Self {
        if is_gzip { Self::Gzip } else { Self::Plain }
    }
}

/// Makes all entries of the archive that `channel` brings in the directory at `path`, which is made
/// where it is missing. Gives their number.
pub(crate) fn unpack(
    root: &Root,
    (path, packing): (&[u8], Packing),
    channel: &mut dyn Channel,
) -> Result<u64, Failure> {
    let tree = make_dirs(root, path).and_then(Tree::new);
    let mut tree = tree.map_err(|trouble| trouble.at(b""))?;
    let source = Source::new(channel);
    match packing {
        Packing::Gzip => tree.fill(gzip::unpacked(source)),
        Packing::Plain => tree.fill(source),
    }
}

/// Opens a directory and makes what is missing on the way.
fn make_dirs(root: &Root, path: &[u8]) -> Result<OwnedFd, Trouble> {
    let mut missing = match root.open_dir(path) {
        Err(FileFault::NotFound) => Vec::new(),
        opened => return Ok(opened?),
    };
    let mut above = path;
    loop {
        let (dir, name) = match root.parent(above) {
            Err(FileFault::NotFound) => {
                // Also the directory that it is to be in.
                missing.push(above);
                above = without_last(above).ok_or(FileFault::NotFound)?;
                continue;
            }
            found => found?,
        };
        match rustix::fs::mkdirat(&dir, name.as_slice(), Mode::from_raw_mode(DIR_MODE)) {
            Ok(()) => {
                set_mode(rustix::fs::openat(&dir, name.as_slice(), OPEN_DIR, Mode::empty())?)?;
            }
            // Somebody else's, or a link that leads nowhere: that is no place, however often one looks.
            Err(Errno::EXIST) => drop(root.open_dir(above)?),
            Err(errno) => return Err(errno.into()),
        }
        match missing.pop() {
            Some(next) => above = next,
            None => return Ok(root.open_dir(path)?),
        }
    }
}

/// Whatever the process masks off.
fn set_mode(dir: OwnedFd) -> Result<(), Trouble> {
    Ok(rustix::fs::fchmod(dir, Mode::from_raw_mode(DIR_MODE))?)
}

fn without_last(path: &[u8]) -> Option<&[u8]> {
    let path = path.trim_suffix_slashes();
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    path.get(..slash).filter(|above| !above.is_empty())
}

trait Slashes {
    fn trim_suffix_slashes(&self) -> &Self;
}

impl Slashes for [u8] {
    fn trim_suffix_slashes(&self) -> &Self {
        let end = self.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        self.get(..end).unwrap_or_default()
    }
}

/// The directory that is filled.
struct Tree {
    /// Gives owners and set-id bits.
    is_root: bool,
    /// From the top down to where the last entry was made.
    levels: Vec<Level>,
    /// Attributes of directories that were left.
    finished: HashMap<(u64, u64), Attributes>,
    /// Part of the names of temporary files.
    random: u64,
    temporaries: u64,
    entries: u64,
}

/// A directory that is open.
struct Level {
    name: Vec<u8>,
    dir: OwnedFd,
    id: (u64, u64),
    /// What it gets when it is left.
    attributes: Option<Attributes>,
}

/// What an entry says about itself.
#[derive(Debug, Clone, Copy)]
struct Attributes {
    mode: u32,
    owner: Option<(u32, u32)>,
    mtime: (i64, u32),
}

impl Tree {
    fn new(top: OwnedFd) -> Result<Self, Trouble> {
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let top = Level::new(Vec::new(), top)?;
        Ok(Self {
            is_root: rustix::process::geteuid().is_root(),
            levels: vec![top],
            finished: HashMap::new(),
            random: u64::from_ne_bytes(random),
            temporaries: 0,
            entries: 0,
        })
    }

    fn fill(&mut self, source: impl BufRead) -> Result<u64, Failure> {
        let mut reader = Reader::new(source);
        let made = self.make_all(&mut reader).map_err(|trouble| trouble.at(reader.path()));
        // Also after a fault: what was made stays, and is to look as it should.
        let left = self.leave_to(0);
        let finished = self.finish_top();
        made?;
        left?;
        finished?;
        finish(reader.into_rest()).map_err(|trouble| trouble.at(b""))?;
        Ok(self.entries)
    }

    fn make_all(&mut self, reader: &mut Reader<impl BufRead>) -> Result<(), Trouble> {
        while let Some(entry) = reader.next_member()? {
            self.make(&entry, reader)?;
            self.entries += 1;
        }
        Ok(())
    }

    fn make(&mut self, entry: &Member, reader: &mut Reader<impl BufRead>) -> Result<(), Trouble> {
        let names = names(&entry.path)?;
        let Some((name, above)) = names.split_last() else {
            return self.top(entry);
        };
        let depth = above.len() + usize::from(entry.kind == Kind::Dir);
        if depth > DEPTH_MAX {
            return Err(ArchiveFault::TooDeep.into());
        }
        self.enter(above)?;
        match &entry.kind {
            Kind::File { .. } => self.file(name, entry, reader),
            Kind::Dir => self.dir(name, entry),
            Kind::Symlink { target } => self.symlink(name, target, entry),
            Kind::HardLink { target } => self.hard_link(name, target),
            Kind::Sparse { .. } => Err(ArchiveFault::Sparse.into()),
            Kind::Whiteout | Kind::Special => Err(ArchiveFault::Special.into()),
        }
    }

    /// The entry of the top itself.
    fn top(&mut self, entry: &Member) -> Result<(), Trouble> {
        if entry.kind != Kind::Dir {
            return Err(FileFault::IsADirectory.into());
        }
        let attributes = self.attributes(entry)?;
        if let Some(top) = self.levels.first_mut() {
            top.attributes = Some(attributes);
        }
        Ok(())
    }

    fn attributes(&self, entry: &Member) -> Result<Attributes, Trouble> {
        let bits = if self.is_root { ROOT_MODE_BITS } else { MODE_BITS };
        let id = |id: u64| u32::try_from(id).unwrap_or(0);
        let is_owned = self.is_root && entry.uid <= ID_MAX && entry.gid <= ID_MAX;
        Ok(Attributes {
            mode: entry.mode & bits,
            owner: is_owned.then(|| (id(entry.uid), id(entry.gid))),
            mtime: entry.mtime.ok_or(ArchiveFault::Malformed)?,
        })
    }

    /// Goes to a directory; leaves those that are not above it, and makes those that are missing.
    fn enter(&mut self, names: &[&[u8]]) -> Result<(), Trouble> {
        let open = self.levels.iter().skip(1).zip(names);
        let common = open.take_while(|(level, name)| level.name == **name).count();
        self.leave_to(common)?;
        for name in names.iter().skip(common) {
            let child = match open_dir(self.here()?, name) {
                Err(Trouble(FileFault::NotFound, _)) => self.make_parent(name)?,
                opened => opened?,
            };
            self.go_into(name, child, None)?;
        }
        Ok(())
    }

    fn make_parent(&self, name: &[u8]) -> Result<OwnedFd, Trouble> {
        let here = self.here()?;
        match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(DIR_MODE)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let child = open_dir(here, name)?;
        set_mode(rustix::io::fcntl_dupfd_cloexec(&child, 0)?)?;
        Ok(child)
    }

    fn go_into(
        &mut self,
        name: &[u8],
        dir: OwnedFd,
        attributes: Option<Attributes>,
    ) -> Result<(), Trouble> {
        let mut level = Level::new(name.to_vec(), dir)?;
        level.attributes = attributes.or_else(|| self.finished.get(&level.id).copied());
        if level.attributes.is_some() {
            level.make_fillable()?;
        }
        self.levels.push(level);
        Ok(())
    }

    /// Leaves all directories deeper than `depth`. Tells the first fault.
    fn leave_to(&mut self, depth: usize) -> Result<(), Failure> {
        let mut left = Ok(());
        while self.levels.len() > depth + 1
            && let Some(level) = self.levels.pop()
        {
            let Some(attributes) = level.attributes else { continue };
            if self.finished.len() < FINISHED_MAX {
                self.finished.insert(level.id, attributes);
            }
            let finished = attributes.set(&level.dir).map_err(Trouble::from);
            left = left.and(finished.map_err(|trouble| trouble.at(&self.path_of(&level))));
        }
        left
    }

    /// The directory that all is put in may be another's, who then keeps its mode and time.
    fn finish_top(&mut self) -> Result<(), Failure> {
        let Some(top) = self.levels.first() else { return Ok(()) };
        match top.attributes.map(|attributes| attributes.set(&top.dir)) {
            None | Some(Ok(()) | Err(Errno::PERM)) => Ok(()),
            Some(Err(errno)) => Err(Trouble::from(errno).at(b".")),
        }
    }

    fn path_of(&self, level: &Level) -> Vec<u8> {
        let above = self.levels.iter().skip(1).chain([level]);
        let names: Vec<&[u8]> = above.map(|level| level.name.as_slice()).collect();
        names.join(&b'/')
    }

    fn here(&self) -> Result<BorrowedFd<'_>, Trouble> {
        let last = self.levels.last().ok_or(FileFault::NotFound)?;
        Ok(last.dir.as_fd())
    }

    fn temporary(&mut self) -> String {
        self.temporaries += 1;
        format!(".sandkasten-{:016x}-{}", self.random, self.temporaries)
    }

    fn file(
        &mut self,
        name: &[u8],
        entry: &Member,
        reader: &mut Reader<impl BufRead>,
    ) -> Result<(), Trouble> {
        let temporary = self.temporary();
        let attributes = self.attributes(entry)?;
        let here = self.here()?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(here, temporary.as_str(), flags, mode)?;
        let made = write(&file, reader)
            .and_then(|()| Ok(attributes.set(&file)?))
            .and_then(|()| put(here, &temporary, name));
        if made.is_err() {
            remove(here, &temporary);
        }
        made
    }

    fn dir(&mut self, name: &[u8], entry: &Member) -> Result<(), Trouble> {
        let attributes = self.attributes(entry)?;
        let here = self.here()?;
        let make = || rustix::fs::mkdirat(here, name, Mode::from_raw_mode(FILL_MODE));
        let dir = match make() {
            Ok(()) => open_dir(here, name)?,
            Err(Errno::EXIST) => match rustix::fs::openat(here, name, OPEN_DIR, Mode::empty()) {
                Err(Errno::NOTDIR | Errno::LOOP) => {
                    // A link or file of that name is replaced; what a link leads to is not.
                    rustix::fs::unlinkat(here, name, AtFlags::empty())?;
                    make()?;
                    open_dir(here, name)?
                }
                opened => opened?,
            },
            Err(errno) => return Err(errno.into()),
        };
        self.go_into(name, dir, Some(attributes))
    }

    fn symlink(&mut self, name: &[u8], target: &[u8], entry: &Member) -> Result<(), Trouble> {
        if target.is_empty() {
            return Err(ArchiveFault::Malformed.into());
        }
        let attributes = self.attributes(entry)?;
        let temporary = self.temporary();
        let here = self.here()?;
        rustix::fs::symlinkat(target, here, temporary.as_str())?;
        let made =
            dress_link(here, &temporary, &attributes).and_then(|()| put(here, &temporary, name));
        if made.is_err() {
            remove(here, &temporary);
        }
        made
    }

    fn hard_link(&mut self, name: &[u8], target: &[u8]) -> Result<(), Trouble> {
        let temporary = self.temporary();
        let names = names(target).map_err(|_outside| ArchiveFault::LinkTarget)?;
        let (file, above) = names.split_last().ok_or(ArchiveFault::LinkTarget)?;
        let dir = self.find(above)?;
        let stat = match rustix::fs::statat(&dir, *file, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Err(ArchiveFault::LinkTarget.into()),
            stat => stat?,
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::Symlink) {
            return Err(ArchiveFault::LinkTarget.into());
        }
        let here = self.here()?;
        rustix::fs::linkat(&dir, *file, here, temporary.as_str(), AtFlags::empty())?;
        let put = put(here, &temporary, name);
        // Renaming one name of a file to another of it does nothing.
        remove(here, &temporary);
        put
    }

    /// The directory that a hard link's target is in.
    fn find(&self, names: &[&[u8]]) -> Result<OwnedFd, Trouble> {
        let top = self.levels.first().ok_or(FileFault::NotFound)?;
        let mut dir = rustix::io::fcntl_dupfd_cloexec(&top.dir, 0)?;
        for name in names {
            dir = match open_dir(dir.as_fd(), name) {
                Err(Trouble(FileFault::NotFound, _)) => {
                    return Err(ArchiveFault::LinkTarget.into());
                }
                opened => opened?,
            };
        }
        Ok(dir)
    }
}

impl Level {
    fn new(name: Vec<u8>, dir: OwnedFd) -> Result<Self, Trouble> {
        let stat = rustix::fs::fstat(&dir)?;
        Ok(Self { name, dir, id: (stat.st_dev, stat.st_ino), attributes: None })
    }

    /// Lets the owner fill what an archive has closed.
    fn make_fillable(&self) -> Result<(), Trouble> {
        let mode = rustix::fs::fstat(&self.dir)?.st_mode & ROOT_MODE_BITS;
        if mode & FILL_MODE == FILL_MODE {
            return Ok(());
        }
        Ok(rustix::fs::fchmod(&self.dir, Mode::from_raw_mode(mode | FILL_MODE))?)
    }
}

impl Attributes {
    fn set(&self, file: &OwnedFd) -> Result<(), Errno> {
        if let Some((uid, gid)) = self.owner {
            rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        // After the owner: chown(2) clears the set-id bits.
        rustix::fs::fchmod(file, Mode::from_raw_mode(self.mode))?;
        rustix::fs::futimens(file, &self.times())
    }

    fn times(&self) -> Timestamps {
        let (tv_sec, nanos) = self.mtime;
        Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec, tv_nsec: nanos.into() },
        }
    }
}

/// Owner and time of a link, and of nothing that somebody puts in its place.
fn dress_link(dir: BorrowedFd<'_>, name: &str, attributes: &Attributes) -> Result<(), Trouble> {
    if let Some((uid, gid)) = attributes.owner {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = rustix::fs::openat(dir, name, flags, Mode::empty())?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&link)?.st_mode);
        if kind != FileType::Symlink {
            return Err(FileFault::Busy.into());
        }
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(&link, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    let times = attributes.times();
    Ok(rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Opens a directory that is no link.
fn open_dir(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Trouble> {
    match rustix::fs::openat(dir, name, OPEN_DIR, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => {
            let stat: Stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                return Err(ArchiveFault::LinkInTheWay.into());
            }
            Err(FileFault::NotADirectory.into())
        }
        opened => Ok(opened?),
    }
}

/// Gives a temporary file its name. An empty directory makes room for it.
fn put(dir: BorrowedFd<'_>, temporary: &str, name: &[u8]) -> Result<(), Trouble> {
    match rustix::fs::renameat(dir, temporary, dir, name) {
        Err(Errno::ISDIR) => {
            match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => return Err(FileFault::IsADirectory.into()),
                removed => removed?,
            }
            Ok(rustix::fs::renameat(dir, temporary, dir, name)?)
        }
        renamed => Ok(renamed?),
    }
}

fn remove(dir: BorrowedFd<'_>, temporary: &str) {
    // The payload may have been quicker; then it is gone, as wanted.
    let _ = rustix::fs::unlinkat(dir, temporary, AtFlags::empty());
}

fn write(file: &OwnedFd, reader: &mut Reader<impl BufRead>) -> Result<(), Trouble> {
    loop {
        let bytes = reader.data()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let written = match rustix::io::write(file, bytes) {
            Err(Errno::INTR) => continue,
            // A limit on file sizes is a want of space as well.
            Err(Errno::FBIG) => return Err(FileFault::NoSpace.into()),
            written => written?,
        };
        reader.consume(written);
    }
}

/// Reads what follows the end mark: zeros alone.
fn finish(mut rest: impl BufRead) -> Result<(), Trouble> {
    loop {
        let bytes = rest.fill_buf().map_err(TarError::from)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if bytes.iter().any(|byte| *byte != 0) {
            return Err(ArchiveFault::BehindTheEnd.into());
        }
        let taken = bytes.len();
        rest.consume(taken);
    }
}

/// The names of a path, none for the top. What leads out is refused even where it would come back.
fn names(path: &[u8]) -> Result<Vec<&[u8]>, Trouble> {
    if path.starts_with(b"/") {
        return Err(ArchiveFault::AbsoluteName.into());
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(FileFault::InvalidPath.into());
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(ArchiveFault::ParentName.into()),
            name if name.len() > NAME_BYTES_MAX || name.contains(&0) => {
                return Err(FileFault::InvalidPath.into());
            }
            name => names.push(name),
        }
    }
    Ok(names)
}
