//! Copies a file or a tree: mode and time of change are kept, links are copied as links.
//!
//! Invariant: what is new is made under another name beside its place and then renamed, so that it is
//! there whole or not at all. Only where a directory is copied over one that is there are its files
//! replaced one by one.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, UTIME_OMIT,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::Kind;

use crate::channel::Channel;
use crate::chmod::below;
use crate::done::Done;
use crate::fault::{Failure, fault};
use crate::meta::{MODE_BITS, kind};
use crate::remove::remove_at;
use crate::root::Root;
use crate::root::refuse_procfs;
use crate::walk::open_dir;
use crate::walk::{Step, Walk};

/// Directories below each other in a tree that is copied.
const DEPTH_MAX: usize = 512;
/// Bytes that are copied between two signs of life.
const PIECE_BYTES: u64 = 4 * 1024 * 1024;
/// Directories from one up to the root.
const PARENTS_MAX: usize = 8192;
/// What is kept of a mode where the owner is another: a set-id bit was for that one.
const OTHERS_MODE_BITS: u32 = 0o1777;

/// Whether a directory may be copied, and whether what is there may be replaced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) recursive: bool,
    pub(crate) existing: Existing,
}

/// What becomes of something that is already where a copy is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It stays, and the copy fails.
    Keep,
    Replace,
}

pub(crate) fn copy(
    root: &Root,
    (from, to): (&[u8], &[u8]),
    how: How,
    channel: &mut dyn Channel,
) -> Result<Done, Failure> {
    let source = source(root, from)?;
    let (dir, name) = root.parent(to).map_err(|fault| Failure::at(fault, to))?;
    let existing = match rustix::fs::statat(&dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) if how.existing == Existing::Keep => {
            return Err(Failure::at(FileFault::AlreadyExists, to));
        }
        Ok(stat) => Some(kind(stat.st_mode)),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(Failure::at(fault(errno), to)),
    };
    let mut copying = Copying { channel, made: HashSet::new(), is_root: is_root() };
    let place = Place { dir: &dir, name: &name };
    match (source, existing) {
        (Source::Dir(_), _) if !how.recursive => {
            return Err(Failure::at(FileFault::IsADirectory, from));
        }
        (Source::Dir(top), _) if is_inside(&dir, &top)? => {
            return Err(Failure::at(FileFault::IntoItself, to));
        }
        (Source::Dir(top), Some(Kind::Dir)) => {
            let target = open_dir(dir.as_fd(), &name).map_err(|fault| Failure::at(fault, to))?;
            if is_same(&rustix::fs::fstat(&top)?, &rustix::fs::fstat(&target)?) {
                return Err(Failure::at(FileFault::IntoItself, to));
            }
            copying.tree(top, target)?;
        }
        (Source::Dir(_), Some(_)) => return Err(Failure::at(FileFault::NotADirectory, to)),
        (Source::Dir(top), None) => copying.new_tree(top, place)?,
        (Source::Other(..), Some(Kind::Dir)) => {
            return Err(Failure::at(FileFault::IsADirectory, to));
        }
        (Source::Other(above, name, stat), _) => {
            let source = Entry { dir: above.as_fd(), name: &name, stat: &stat };
            copying.entry(source, place, how.existing)?;
        }
    }
    Ok(Done::WHOLE)
}

#[derive(Debug)]
enum Source {
    Dir(OwnedFd),
    /// A file, a link or something special: where it is, and what.
    Other(OwnedFd, Vec<u8>, Stat),
}

/// Something that is copied, and no directory.
#[derive(Debug, Clone, Copy)]
struct Entry<'a> {
    dir: BorrowedFd<'a>,
    name: &'a [u8],
    stat: &'a Stat,
}

/// Where a copy is to be.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    dir: &'a OwnedFd,
    name: &'a [u8],
}

fn source(root: &Root, from: &[u8]) -> Result<Source, Failure> {
    match root.parent(from) {
        Ok((dir, name)) => {
            let stat = rustix::fs::statat(&dir, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
            match (kind(stat.st_mode), from.ends_with(b"/")) {
                (Kind::Dir, _) => Ok(Source::Dir(open_dir(dir.as_fd(), &name)?)),
                // With a slash it is what the link leads to.
                (_, true) => Ok(Source::Dir(root.open_dir(from)?)),
                (_, false) => Ok(Source::Other(dir, name, stat)),
            }
        }
        // `.`, `..` and `/` have no name.
        Err(FileFault::IsADirectory) => Ok(Source::Dir(root.open_dir(from)?)),
        Err(fault) => Err(fault.into()),
    }
}

struct Copying<'a> {
    channel: &'a mut dyn Channel,
    /// Directories that were made, which are never gone into.
    made: HashSet<(u64, u64)>,
    is_root: bool,
}

impl Copying<'_> {
    /// Makes a tree that was not there.
    fn new_tree(&mut self, top: OwnedFd, place: Place<'_>) -> Result<(), Failure> {
        let stat = rustix::fs::fstat(&top)?;
        let beside = temporary()?;
        rustix::fs::mkdirat(place.dir, &beside, Mode::RWXU)?;
        let made = open_dir(place.dir.as_fd(), beside.as_bytes()).map_err(Failure::from).and_then(
            |target| {
                let own = target.try_clone()?;
                self.tree(top, target)?;
                self.dress(&own, &stat)?;
                let flags = RenameFlags::NOREPLACE;
                Ok(rustix::fs::renameat_with(place.dir, &beside, place.dir, place.name, flags)?)
            },
        );
        if made.is_err() {
            self.undo(place.dir, &beside);
        }
        made
    }

    /// Removes what was made in part. Directories may have a mode by then that keeps their owner out.
    fn undo(&mut self, dir: &OwnedFd, beside: &str) {
        let walk = open_dir(dir.as_fd(), beside.as_bytes())
            .and_then(|made| Walk::new(made, usize::MAX))
            .map_err(Failure::from);
        // Whatever of it is with somebody else by now is theirs.
        drop(walk.and_then(|walk| below(walk, Mode::RWXU, (&mut None, self.channel))));
        drop(remove_at(dir, beside.as_bytes(), self.channel));
    }

    /// Copies what is in one directory into another.
    fn tree(&mut self, top: OwnedFd, target: OwnedFd) -> Result<(), Failure> {
        let id = rustix::fs::fstat(&target)?;
        self.made.insert((id.st_dev, id.st_ino));
        let mut walk = Walk::new(top, usize::MAX)?;
        // Each with the facts that it gets in the end, where it was made here.
        let mut targets: Vec<(OwnedFd, Option<Stat>)> = vec![(target, None)];
        while let Some(step) = walk.next_step()? {
            self.channel.pulse()?;
            match step {
                Step::Entry(found) if found.is_dir() => {
                    let at = |fault| Failure::at(fault, &found.path);
                    if self.made.contains(&(found.stat.st_dev, found.stat.st_ino)) {
                        return Err(at(FileFault::IntoItself));
                    }
                    if targets.len() >= DEPTH_MAX {
                        return Err(at(FileFault::TooLarge));
                    }
                    let Some((above, _)) = targets.last() else { break };
                    walk.enter(&found).map_err(at)?;
                    let (dir, is_new) = self.dir(above, &found.name).map_err(at)?;
                    targets.push((dir, is_new.then_some(found.stat)));
                }
                Step::Entry(found) => {
                    let (Some((above, _)), Some(dir)) = (targets.last(), walk.dir()) else { break };
                    let source = Entry { dir, name: &found.name, stat: &found.stat };
                    let place = Place { dir: above, name: &found.name };
                    match self.entry(source, place, Existing::Replace) {
                        Err(failure) if failure.path.is_empty() => {
                            return Err(Failure::at(failure.fault, &found.path));
                        }
                        done => done?,
                    }
                }
                Step::Left(_) => {
                    if let Some((dir, Some(stat))) = targets.pop() {
                        self.dress(&dir, &stat)?;
                    }
                }
            }
        }
        if walk.is_cut() { Err(FileFault::TooLarge.into()) } else { Ok(()) }
    }

    /// A directory to copy into, and whether it is new.
    fn dir(&mut self, above: &OwnedFd, name: &[u8]) -> Result<(OwnedFd, bool), FileFault> {
        let is_new = match rustix::fs::mkdirat(above, name, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(fault(errno)),
        };
        let dir = open_dir(above.as_fd(), name)?;
        let stat = rustix::fs::fstat(&dir).map_err(fault)?;
        self.made.insert((stat.st_dev, stat.st_ino));
        Ok((dir, is_new))
    }

    /// Copies a file, a link, or for root something special.
    fn entry(
        &mut self,
        source: Entry<'_>,
        place: Place<'_>,
        existing: Existing,
    ) -> Result<(), Failure> {
        let beside = temporary()?;
        let made = self.make(source, (place.dir, &beside)).and_then(|()| {
            let flags = match existing {
                Existing::Keep => RenameFlags::NOREPLACE,
                Existing::Replace => RenameFlags::empty(),
            };
            Ok(rustix::fs::renameat_with(place.dir, &beside, place.dir, place.name, flags)?)
        });
        if made.is_err() {
            // Where it was not made there is none.
            let _ = rustix::fs::unlinkat(place.dir, &beside, AtFlags::empty());
        }
        made
    }

    fn make(&mut self, source: Entry<'_>, to: (&OwnedFd, &str)) -> Result<(), Failure> {
        let (dir, name) = to;
        let mode = source.stat.st_mode;
        match kind(mode) {
            Kind::File => return self.file(source, to),
            Kind::Symlink => {
                let target = rustix::fs::readlinkat(source.dir, source.name, Vec::new())?;
                rustix::fs::symlinkat(target, dir, name)?;
            }
            Kind::Fifo | Kind::Device if self.is_root => {
                let (kind, bits) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(0o600));
                rustix::fs::mknodat(dir, name, kind, bits, source.stat.st_rdev)?;
                let bits = Mode::from_raw_mode(mode & MODE_BITS);
                rustix::fs::chmodat(dir, name, bits, AtFlags::empty())?;
            }
            Kind::Fifo | Kind::Device | Kind::Socket | Kind::Dir => {
                return Err(FileFault::NotAFile.into());
            }
        }
        if self.is_root {
            let (uid, gid) = owner(source.stat);
            rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        rustix::fs::utimensat(dir, name, &times(source.stat), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }

    fn file(&mut self, source: Entry<'_>, (dir, name): (&OwnedFd, &str)) -> Result<(), Failure> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let from = rustix::fs::openat(source.dir, source.name, flags, Mode::empty())?;
        refuse_procfs(&from)?;
        let stat = rustix::fs::fstat(&from)?;
        if kind(stat.st_mode) != Kind::File {
            return Err(FileFault::NotAFile.into());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o600);
        let to = rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC, mode)?;
        self.contents(&from, &to, u64::try_from(stat.st_size).unwrap_or(0))?;
        self.dress(&to, &stat)
    }

    /// As many bytes as the file had when it was opened: it may grow for ever.
    fn contents(&mut self, from: &OwnedFd, to: &OwnedFd, size: u64) -> Result<(), Failure> {
        let mut left = size;
        while left > 0 {
            self.channel.pulse()?;
            let piece = usize::try_from(left.min(PIECE_BYTES)).unwrap_or(usize::MAX);
            match rustix::fs::copy_file_range(from, None, to, None, piece) {
                Ok(0) => break,
                Ok(copied) => left -= copied as u64,
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    return self.by_hand(from, to, left);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn by_hand(&mut self, from: &OwnedFd, to: &OwnedFd, size: u64) -> Result<(), Failure> {
        let mut buffer = vec![0; 256 * 1024];
        let mut left = size;
        while left > 0 {
            self.channel.pulse()?;
            let piece = usize::try_from(left.min(buffer.len() as u64)).unwrap_or(0);
            let read = rustix::io::read(from, buffer.get_mut(..piece).unwrap_or_default())?;
            let mut rest = buffer.get(..read).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            while !rest.is_empty() {
                let written = rustix::io::write(to, rest)?;
                rest = rest.get(written..).unwrap_or_default();
            }
            left -= read as u64;
        }
        Ok(())
    }

    /// Gives a copy the facts of what it is a copy of. The owner is root's to give.
    fn dress(&self, file: &OwnedFd, stat: &Stat) -> Result<(), Failure> {
        let own = rustix::fs::fstat(file)?;
        let is_owners = self.is_root || (own.st_uid, own.st_gid) == (stat.st_uid, stat.st_gid);
        if self.is_root {
            let (uid, gid) = owner(stat);
            rustix::fs::fchown(file, uid, gid)?;
        }
        let bits = if is_owners { MODE_BITS } else { OTHERS_MODE_BITS };
        rustix::fs::fchmod(file, Mode::from_raw_mode(stat.st_mode & bits))?;
        Ok(rustix::fs::futimens(file, &times(stat))?)
    }
}

fn owner(stat: &Stat) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))
}

fn times(stat: &Stat) -> Timestamps {
    let nanos = rustix::fs::Nsecs::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: nanos },
    }
}

/// Whether `dir` is the directory `top`, or lies below it.
fn is_inside(dir: &OwnedFd, top: &OwnedFd) -> Result<bool, Failure> {
    let top = rustix::fs::fstat(top)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::openat(dir, ".", flags, Mode::empty())?;
    for _ in 0..PARENTS_MAX {
        let stat = rustix::fs::fstat(&here)?;
        if is_same(&stat, &top) {
            return Ok(true);
        }
        let above = match rustix::fs::openat(&here, "..", flags, Mode::empty()) {
            Ok(above) => above,
            // Above a workspace there is nothing for its user to see.
            Err(Errno::ACCESS) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        if is_same(&rustix::fs::fstat(&above)?, &stat) {
            return Ok(false);
        }
        here = above;
    }
    Err(FileFault::TooLarge.into())
}

fn is_same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A name that nothing has.
fn temporary() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!(".sandkasten-{:032x}", u128::from_ne_bytes(bytes)))
}
