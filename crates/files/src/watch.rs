//! Tells what changes in a directory, and below it where that is asked for.
//!
//! ```text
//!   inotify ──> queue (the kernel's; full: overflow) ──> pairs of a move ──> paths ──> events
//! ```
//!
//! Invariant: nothing is lost without a word. A directory that appears is watched first and looked
//! through then; what was made in it meanwhile is told once. What can't be followed is an overflow.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{AtFlags, OFlags, Stat};
use rustix::io::Errno;
use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::{Change, Event, Item, Kind, WATCH_DIRS_MAX};

use crate::channel::Channel;
use crate::done::Done;
use crate::fault::Failure;
use crate::list::passable;
use crate::meta::kind;
use crate::root::Root;
use crate::walk::{Step, Walk};
use crate::walk::{join, open_dir};

/// How long the second half of a move may take to come.
const PAIR: Duration = Duration::from_millis(20);
/// How often it is looked whether what is watched is still there.
const LOOK: Duration = Duration::from_secs(1);
const BUFFER_BYTES: usize = 64 * 1024;

/// How far down a watch goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// What is in the directory itself.
    Top,
    /// All below it.
    Tree,
}

pub(crate) fn watch(
    root: &Root,
    path: &[u8],
    reach: Reach,
    channel: &mut dyn Channel,
) -> Result<Done, Failure> {
    let top = root.open(path, OFlags::RDONLY)?;
    let mut watch = Watch::new(top, reach)?;
    let is_dir = kind(rustix::fs::fstat(&watch.top)?.st_mode) == Kind::Dir;
    if is_dir {
        watch.add_tree(Vec::new(), None)?;
    } else {
        watch.add(&watch.top.try_clone()?, Vec::new())?;
    }
    let ready = Event { change: Change::Ready, path: Vec::new(), from: None, kind: Kind::Dir };
    channel.tell(Item::Event(ready))?;
    loop {
        let time = if watch.halves.is_empty() { LOOK } else { PAIR };
        // Ends with an error where nobody listens any more.
        let has_come = channel.wait(watch.inotify.as_fd(), time)?;
        let goes_on = if has_come { watch.read(channel)? } else { watch.on_quiet(channel)? };
        if !goes_on {
            return Ok(Done::WHOLE);
        }
    }
}

#[derive(Debug)]
struct Watch {
    inotify: OwnedFd,
    top: OwnedFd,
    reach: Reach,
    /// Paths of what is watched, by watch descriptor.
    paths: HashMap<i32, Vec<u8>>,
    /// What has left its place, and may have come to another: by cookie.
    halves: HashMap<u32, Half>,
    /// Told already, from a look into a new directory; the kernel's event for it may still come.
    told: HashSet<Vec<u8>>,
}

#[derive(Debug)]
struct Half {
    path: Vec<u8>,
    rough: Rough,
}

/// As much of a kind as the kernel says with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rough {
    Dir,
    Other,
}

impl Rough {
    fn of(flags: ReadFlags) -> Self {
        if flags.contains(ReadFlags::ISDIR) { Self::Dir } else { Self::Other }
    }

    /// The kind where nothing more can be known.
    fn kind(self) -> Kind {
        match self {
            Self::Dir => Kind::Dir,
            Self::Other => Kind::File,
        }
    }
}

/// What the kernel says, out of its buffer.
#[derive(Debug)]
struct Raw {
    wd: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Vec<u8>,
}

impl Watch {
    fn new(top: OwnedFd, reach: Reach) -> Result<Self, Failure> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self {
            inotify,
            top,
            reach,
            paths: HashMap::new(),
            halves: HashMap::new(),
            told: HashSet::new(),
        })
    }

    fn add(&mut self, dir: &OwnedFd, path: Vec<u8>) -> Result<(), FileFault> {
        if self.paths.len() >= WATCH_DIRS_MAX {
            return Err(FileFault::TooManyDirs);
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        let name = format!("/proc/self/fd/{}", dir.as_raw_fd());
        match inotify::add_watch(&self.inotify, name, flags) {
            Ok(wd) => {
                self.paths.insert(wd, path);
                Ok(())
            }
            // The kernel's own limit on watches of a user.
            Err(Errno::NOSPC) => Err(FileFault::TooManyDirs),
            Err(errno) => Err(crate::fault(errno)),
        }
    }

    /// Watches a directory that is at `path`, and all below it where that is wanted. What is found there
    /// is told to `channel` as new.
    fn add_tree(
        &mut self,
        path: Vec<u8>,
        mut channel: Option<&mut dyn Channel>,
    ) -> Result<(), Failure> {
        let dir = self.open(&path)?;
        self.add(&dir, path.clone())?;
        if self.reach == Reach::Top {
            return Ok(());
        }
        let mut walk = Walk::new(dir, usize::MAX)?;
        while let Some(step) = walk.next_step()? {
            let Step::Entry(found) = step else { continue };
            let below = join(&path, &found.path);
            if let Some(channel) = channel.as_mut() {
                self.told.insert(below.clone());
                tell(&mut **channel, (Change::Created, below.clone(), None), found.kind())?;
            }
            if !found.is_dir() {
                continue;
            }
            let dir = walk.dir().map(|dir| open_dir(dir, &found.name));
            if let Some(Ok(dir)) = dir {
                // First the watch, then the look: what is made in between is in both.
                match self.add(&dir, below) {
                    Err(FileFault::PermissionDenied) => continue,
                    added => added?,
                }
                passable(walk.enter(&found))?;
            }
        }
        if walk.is_cut() { Err(FileFault::TooLarge.into()) } else { Ok(()) }
    }

    /// Opens a directory below the top, no link followed.
    fn open(&self, path: &[u8]) -> Result<OwnedFd, FileFault> {
        let mut dir = open_dir(self.top.as_fd(), b".")?;
        for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
            dir = open_dir(dir.as_fd(), name)?;
        }
        Ok(dir)
    }

    /// Tells what the kernel has. False: what was watched is gone.
    fn read(&mut self, channel: &mut dyn Channel) -> Result<bool, Failure> {
        let mut last = None;
        loop {
            let batch = self.batch()?;
            if batch.is_empty() {
                // All that was queued when a new directory was looked through is dealt with.
                self.told.clear();
                channel.flush()?;
                return Ok(true);
            }
            for raw in batch {
                if !self.on_event(&raw, &mut last, channel)? {
                    return Ok(false);
                }
            }
            channel.pulse()?;
        }
    }

    fn batch(&self) -> Result<Vec<Raw>, Failure> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut batch = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => batch.push(Raw {
                    wd: event.wd(),
                    flags: event.events(),
                    cookie: event.cookie(),
                    name: event.file_name().map(CStr::to_bytes).unwrap_or_default().to_vec(),
                }),
                Err(Errno::AGAIN) => return Ok(batch),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if reader.is_buffer_empty() {
                return Ok(batch);
            }
        }
    }

    /// `last` is what was told last of this batch: the same thing that is modified again is not told
    /// again.
    fn on_event(
        &mut self,
        raw: &Raw,
        last: &mut Option<Vec<u8>>,
        channel: &mut dyn Channel,
    ) -> Result<bool, Failure> {
        let flags = raw.flags;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            self.on_overflow(channel)?;
            return Ok(true);
        }
        if flags.contains(ReadFlags::IGNORED) {
            let path = self.paths.remove(&raw.wd);
            // The top itself, which is removed or on a file system that is.
            return Ok(path.is_none_or(|path| !path.is_empty()));
        }
        let Some(above) = self.paths.get(&raw.wd) else { return Ok(true) };
        let rough = Rough::of(flags);
        if raw.name.is_empty() {
            return self.on_own(above.clone(), flags, (last, channel));
        }
        let path = join(above, &raw.name);
        if is_number(&raw.name) && self.stat(&path).is_none() {
            return Ok(true);
        }
        let same = last.take();
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.halves.insert(raw.cookie, Half { path, rough });
        } else if flags.contains(ReadFlags::MOVED_TO) {
            self.on_moved_to(raw.cookie, path, rough, channel)?;
        } else if flags.contains(ReadFlags::CREATE) {
            self.on_created(path, rough, channel)?;
        } else if flags.contains(ReadFlags::DELETE) {
            self.told.remove(&path);
            tell(channel, (Change::Removed, path, None), rough.kind())?;
        } else if flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) {
            if same.as_ref() != Some(&path) {
                let kind = self.kind(&path, rough);
                tell(channel, (Change::Modified, path.clone(), None), kind)?;
            }
            *last = Some(path);
        }
        Ok(true)
    }

    /// Something has happened to what is watched itself. Of a directory further down the one above it
    /// tells.
    fn on_own(
        &mut self,
        path: Vec<u8>,
        flags: ReadFlags,
        (last, channel): (&mut Option<Vec<u8>>, &mut dyn Channel),
    ) -> Result<bool, Failure> {
        if !path.is_empty() {
            return Ok(true);
        }
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            let kind = kind(rustix::fs::fstat(&self.top)?.st_mode);
            tell(channel, (Change::Removed, path, None), kind)?;
            return Ok(false);
        }
        let stat = rustix::fs::fstat(&self.top)?;
        if stat.st_nlink == 0 {
            // The last link of a file: the watch's own descriptor is all that is left of it.
            tell(channel, (Change::Removed, path, None), kind(stat.st_mode))?;
            return Ok(false);
        }
        if last.take().as_ref() != Some(&path) {
            tell(channel, (Change::Modified, path.clone(), None), kind(stat.st_mode))?;
        }
        *last = Some(path);
        Ok(true)
    }

    fn on_created(
        &mut self,
        path: Vec<u8>,
        rough: Rough,
        channel: &mut dyn Channel,
    ) -> Result<(), Failure> {
        if !self.told.remove(&path) {
            let kind = self.kind(&path, rough);
            tell(channel, (Change::Created, path.clone(), None), kind)?;
        } else if rough == Rough::Dir {
            // It was looked through and is watched.
            return Ok(());
        }
        if rough == Rough::Dir && self.reach == Reach::Tree {
            self.follow(path, channel)
        } else {
            Ok(())
        }
    }

    /// Watches a new directory. What can't be, because it is gone again, has told so.
    fn follow(&mut self, path: Vec<u8>, channel: &mut dyn Channel) -> Result<(), Failure> {
        match self.add_tree(path, Some(channel)) {
            Err(Failure { fault: FileFault::TooManyDirs, path }) => {
                Err(Failure::at(FileFault::TooManyDirs, &path))
            }
            Err(Failure { fault, path }) => {
                passable(Err(fault)).map(|_no| ()).map_err(|fault| Failure::at(fault, &path))
            }
            Ok(()) => Ok(()),
        }
    }

    fn on_moved_to(
        &mut self,
        cookie: u32,
        path: Vec<u8>,
        rough: Rough,
        channel: &mut dyn Channel,
    ) -> Result<(), Failure> {
        let Some(half) = self.halves.remove(&cookie) else {
            return self.on_created(path, rough, channel);
        };
        if rough == Rough::Dir {
            self.rename(&half.path, Some(&path));
        }
        let kind = self.kind(&path, rough);
        tell(channel, (Change::Moved, path, Some(half.path)), kind)
    }

    /// Tells what has left its place and come to no other that is watched. False: the top has gone, of
    /// which the kernel says nothing while it is open here.
    fn on_quiet(&mut self, channel: &mut dyn Channel) -> Result<bool, Failure> {
        for half in std::mem::take(&mut self.halves).into_values() {
            if half.rough == Rough::Dir {
                self.rename(&half.path, None);
            }
            tell(channel, (Change::Removed, half.path, None), half.rough.kind())?;
        }
        let stat = rustix::fs::fstat(&self.top)?;
        if stat.st_nlink == 0 {
            tell(channel, (Change::Removed, Vec::new(), None), kind(stat.st_mode))?;
            return Ok(false);
        }
        channel.flush()?;
        Ok(true)
    }

    /// A directory and what is watched below it have another path, or none any more.
    fn rename(&mut self, from: &[u8], to: Option<&[u8]>) {
        let is_below = |path: &[u8]| {
            path.strip_prefix(from).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
        };
        let moved: Vec<i32> =
            self.paths.iter().filter(|(_, path)| is_below(path)).map(|(wd, _)| *wd).collect();
        for wd in moved {
            match (to, self.paths.get_mut(&wd)) {
                (Some(to), Some(path)) => {
                    let rest = path.get(from.len()..).unwrap_or_default();
                    *path = [to, rest].concat();
                }
                (None, _) => {
                    self.paths.remove(&wd);
                    // It may have gone with its directory.
                    let _ = inotify::remove_watch(&self.inotify, wd);
                }
                (Some(_), None) => {}
            }
        }
    }

    /// The kernel has dropped events: directories may have appeared that nobody follows.
    fn on_overflow(&mut self, channel: &mut dyn Channel) -> Result<(), Failure> {
        self.halves.clear();
        tell(channel, (Change::Overflow, Vec::new(), None), Kind::Dir)?;
        if self.reach == Reach::Tree {
            for wd in std::mem::take(&mut self.paths).into_keys() {
                let _ = inotify::remove_watch(&self.inotify, wd);
            }
            self.add_tree(Vec::new(), None)?;
        }
        Ok(())
    }

    /// What is at a path now; where that is nothing any more, as much as the kernel has said.
    fn kind(&self, path: &[u8], rough: Rough) -> Kind {
        if rough == Rough::Dir {
            return Kind::Dir;
        }
        self.stat(path).map_or(rough.kind(), |stat| kind(stat.st_mode))
    }

    fn stat(&self, path: &[u8]) -> Option<Stat> {
        let (above, name) = match path.iter().rposition(|b| *b == b'/') {
            Some(slash) => (path.get(..slash), path.get(slash + 1..)),
            None => (Some(&b""[..]), Some(path)),
        };
        let dir = self.open(above.unwrap_or_default()).ok()?;
        rustix::fs::statat(&dir, name.unwrap_or_default(), AtFlags::SYMLINK_NOFOLLOW).ok()
    }
}

/// The kernel tells of files that have no name yet (`O_TMPFILE`) too: by `#` and the inode's number.
fn is_number(name: &[u8]) -> bool {
    let number = name.strip_prefix(b"#").unwrap_or_default();
    !number.is_empty() && number.iter().all(u8::is_ascii_digit)
}

fn tell(
    channel: &mut dyn Channel,
    (change, path, from): (Change, Vec<u8>, Option<Vec<u8>>),
    kind: Kind,
) -> Result<(), Failure> {
    Ok(channel.tell(Item::Event(Event { change, path, from, kind }))?)
}
