//! Turns an archive into a directory tree: the layer.
//!
//! Invariant: everything is made through the descriptor of a parent that the kernel resolved with the
//! layer as its root; no link and no `..` of the archive leads anywhere else. What a layer has no use
//! for (devices, FIFOs, extended attributes) is left out and counted.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, BufRead};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use sandkasten_files::tar::{Kind, Member, Piece, Reader};
use sandkasten_jail::path::Beneath;
use sandkasten_types::limits;

use super::ImageError;
use super::archive::{Bounded, drain, invalid};

/// The free part of the disk that an import leaves alone: one twentieth.
const KEEP_FREE: u64 = 20;
/// Bytes written between two looks at the free space.
const LOOK_EVERY: u64 = 64 << 20;

/// Who made an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Anybody. Whiteouts and opaque directories mean nothing in it.
    Stranger,
    /// We did, and its digest is checked.
    Ours,
}

/// What was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Unpacked {
    pub(super) entries: usize,
    /// Devices and FIFOs left out.
    pub(super) skipped: usize,
}

/// Unpacks all of `source` into the empty directory `root`.
pub(super) fn unpack(
    source: impl BufRead,
    root: &Beneath,
    origin: Origin,
) -> Result<Unpacked, ImageError> {
    let mut archive = Reader::new(Bounded::new(source));
    let mut layer = Layer::new(root, origin);
    while let Some(mut entry) = archive.next_member()? {
        entry.opaque &= origin == Origin::Ours;
        layer.place(&entry, &mut archive).map_err(|err| at_entry(err, &entry.path))?;
    }
    drain(archive.into_rest())?;
    if layer.done.entries == 0 {
        return Err(invalid("the archive has no entries"));
    }
    layer.set_dir_times()?;
    Ok(layer.done)
}

struct Layer<'a> {
    root: &'a Beneath,
    origin: Origin,
    done: Unpacked,
    /// Bytes of all files, holes included: the digest has to read them.
    bytes: u64,
    /// Bytes written since the last look at the free space.
    unseen: u64,
    /// Set at the end, since each new entry changes its directory's.
    dir_times: HashMap<PathBuf, u32>,
    /// The last parent: archives are in order, so most entries need no new look-up.
    parent: Option<(PathBuf, Beneath)>,
}

/// Where an entry goes: an open directory and a name in it.
struct Spot<'a> {
    dir: &'a Beneath,
    name: &'a OsStr,
}

impl<'a> Layer<'a> {
    fn new(root: &'a Beneath, origin: Origin) -> Self {
        Self {
            root,
            origin,
            done: Unpacked::default(),
            bytes: 0,
            unseen: 0,
            dir_times: HashMap::new(),
            parent: None,
        }
    }

    fn place(
        &mut self,
        entry: &Member,
        archive: &mut Reader<impl BufRead>,
    ) -> Result<(), ImageError> {
        self.done.entries += 1;
        if self.done.entries > limits::IMAGE_ENTRIES_MAX {
            let max = limits::IMAGE_ENTRIES_MAX;
            return Err(invalid(format!("more entries than the limit of {max}")));
        }
        let path = clean_path(&entry.path)?;
        self.check(entry, &path)?;
        if self.is_left_out(&entry.kind) {
            self.done.skipped += 1;
            return Ok(());
        }
        let Some(name) = path.file_name() else {
            return self.place_root(entry);
        };
        self.account(entry)?;
        self.open_parent(&path)?;
        let Some((_, dir)) = self.parent.take() else {
            return Err(invalid("an entry without a parent"));
        };
        let replaced = make(&Spot { dir: &dir, name }, entry, self.root, archive)?;
        // A directory that is gone must not be the parent of what follows.
        if replaced == Replaced::Nothing {
            self.parent = Some((path.parent().unwrap_or(Path::new("")).to_owned(), dir));
        }
        if entry.kind == Kind::Dir {
            self.dir_times.insert(path, mtime(entry));
        }
        Ok(())
    }

    fn check(&self, entry: &Member, path: &Path) -> Result<(), ImageError> {
        for id in [entry.uid, entry.gid] {
            if id >= u64::from(limits::UID_RANGE) {
                return Err(invalid(format!("owner {id} is not in 0 to 65535")));
            }
        }
        let name = path.file_name().unwrap_or_default().as_bytes();
        if self.origin == Origin::Stranger && name.starts_with(b".wh.") {
            return Err(invalid(
                "a whiteout: this is one layer of an image, not a whole root file system",
            ));
        }
        Ok(())
    }

    fn is_left_out(&self, kind: &Kind) -> bool {
        match kind {
            Kind::Special => true,
            Kind::Whiteout => self.origin == Origin::Stranger,
            Kind::File { .. }
            | Kind::Sparse { .. }
            | Kind::Dir
            | Kind::Symlink { .. }
            | Kind::HardLink { .. } => false,
        }
    }

    /// The archive's own top: only its owner and mode are taken, and overlay shows others anyway.
    fn place_root(&mut self, entry: &Member) -> Result<(), ImageError> {
        if entry.kind != Kind::Dir {
            return Err(invalid("the top of the archive is no directory"));
        }
        self.dir_times.insert(PathBuf::new(), mtime(entry));
        Ok(())
    }

    fn account(&mut self, entry: &Member) -> Result<(), ImageError> {
        // An entry without data takes an inode at least.
        let size = match entry.kind {
            Kind::File { size } | Kind::Sparse { size, .. } => size,
            Kind::Dir
            | Kind::Symlink { .. }
            | Kind::HardLink { .. }
            | Kind::Whiteout
            | Kind::Special => 0,
        } + 4096;
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > limits::IMAGE_BYTES_MAX {
            let gib = limits::IMAGE_BYTES_MAX >> 30;
            return Err(invalid(format!("the files are larger than the limit of {gib} GiB")));
        }
        self.unseen = self.unseen.saturating_add(size);
        if self.unseen >= LOOK_EVERY {
            self.unseen = 0;
            check_space(self.root)?;
        }
        Ok(())
    }

    /// Opens the directory of `path` into `self.parent`; what is missing of it is made.
    fn open_parent(&mut self, path: &Path) -> Result<(), ImageError> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if self.parent.as_ref().is_some_and(|(open, _)| open == parent) {
            return Ok(());
        }
        let dir = match parent.as_os_str().is_empty() {
            true => self.root.open_dir(Path::new("."))?,
            false => self.root.create_dirs_in_root(parent, (0, 0), Mode::from(0o755))?,
        };
        self.parent = Some((parent.to_owned(), dir));
        Ok(())
    }

    fn set_dir_times(&self) -> Result<(), ImageError> {
        for (path, mtime) in &self.dir_times {
            // It may have been replaced since.
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            if let Ok(dir) = self.root.open_dir_in_root(path) {
                rustix::fs::futimens(&dir, &times(*mtime))?;
            }
        }
        Ok(())
    }
}

/// What had to go for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replaced {
    Nothing,
    Something,
}

fn make(
    spot: &Spot<'_>,
    entry: &Member,
    root: &Beneath,
    archive: &mut Reader<impl BufRead>,
) -> Result<Replaced, ImageError> {
    if entry.kind == Kind::Dir {
        return make_dir(spot, entry);
    }
    if let Kind::HardLink { target } = &entry.kind {
        return make_hard_link(spot, target, root);
    }
    let replaced = clear(spot)?;
    match &entry.kind {
        Kind::File { .. } => {
            let file = create(spot)?;
            copy(archive, &file)?;
            dress(&file, entry)?;
        }
        Kind::Sparse { size, pieces } => {
            let file = create(spot)?;
            copy_pieces(archive, &file, pieces)?;
            rustix::fs::ftruncate(&file, *size)?;
            dress(&file, entry)?;
        }
        Kind::Symlink { target } => make_symlink(spot, target, entry)?,
        Kind::Whiteout => {
            let kind = FileType::CharacterDevice;
            rustix::fs::mknodat(spot.dir, spot.name, kind, Mode::empty(), 0)?;
        }
        Kind::Dir | Kind::HardLink { .. } | Kind::Special => {}
    }
    Ok(replaced)
}

fn make_dir(spot: &Spot<'_>, entry: &Member) -> Result<Replaced, ImageError> {
    let replaced = match file_type(spot)? {
        Some(FileType::Directory) => Replaced::Nothing,
        _ => {
            let replaced = clear(spot)?;
            rustix::fs::mkdirat(spot.dir, spot.name, Mode::RWXU)?;
            replaced
        }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let dir = spot.dir.open_file(Path::new(spot.name), flags, Mode::empty())?;
    dress(&dir, entry)?;
    if entry.opaque {
        rustix::fs::fsetxattr(&dir, c"trusted.overlay.opaque", b"y", XattrFlags::empty())?;
    }
    Ok(replaced)
}

/// The target is one of the layer's own files or symlinks, found before anything is replaced.
fn make_hard_link(spot: &Spot<'_>, target: &[u8], root: &Beneath) -> Result<Replaced, ImageError> {
    let target = clean_path(target)?;
    let missing = || invalid("a hard link to what is not in the archive");
    let (parent, name) = match (target.parent(), target.file_name()) {
        (Some(parent), Some(name)) if !parent.as_os_str().is_empty() => (parent, name),
        (_, Some(name)) => (Path::new("."), name),
        _ => return Err(missing()),
    };
    let parent = root.open_dir_in_root(parent).map_err(|_err| missing())?;
    let from = Spot { dir: &parent, name };
    let stat = stat(&from)?.ok_or_else(missing)?;
    if !matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::Symlink) {
        return Err(invalid("a hard link to a directory"));
    }
    if let Some(old) = self::stat(spot)?
        && (old.st_dev, old.st_ino) == (stat.st_dev, stat.st_ino)
    {
        return Ok(Replaced::Nothing);
    }
    let replaced = clear(spot)?;
    match rustix::fs::linkat(&parent, name, spot.dir, spot.name, AtFlags::empty()) {
        // It stood in the directory that the link replaced.
        Err(Errno::NOENT) => Err(missing()),
        Err(Errno::MLINK) => Err(invalid("too many hard links to one file")),
        answer => Ok(answer.map(|()| replaced)?),
    }
}

fn make_symlink(spot: &Spot<'_>, target: &[u8], entry: &Member) -> Result<(), ImageError> {
    if target.is_empty() || target.contains(&0) || target.len() >= limits::PATH_BYTES_MAX {
        return Err(invalid("a symbolic link with a bad target"));
    }
    rustix::fs::symlinkat(OsStr::from_bytes(target), spot.dir, spot.name)?;
    let (uid, gid) = owner(entry);
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::chownat(spot.dir, spot.name, Some(uid), Some(gid), flags)?;
    Ok(rustix::fs::utimensat(spot.dir, spot.name, &times(mtime(entry)), flags)?)
}

fn create(spot: &Spot<'_>) -> Result<OwnedFd, ImageError> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    Ok(spot.dir.open_file(Path::new(spot.name), flags, Mode::RUSR | Mode::WUSR)?)
}

/// Removes what stands in the entry's place.
fn clear(spot: &Spot<'_>) -> Result<Replaced, ImageError> {
    if file_type(spot)?.is_none() {
        return Ok(Replaced::Nothing);
    }
    spot.dir.remove_tree(spot.name)?;
    Ok(Replaced::Something)
}

/// Owner, mode and time. The owner first: chown(2) clears the set-id bits.
fn dress(file: impl AsFd, entry: &Member) -> Result<(), ImageError> {
    let (uid, gid) = owner(entry);
    rustix::fs::fchown(&file, Some(uid), Some(gid))?;
    rustix::fs::fchmod(&file, Mode::from(entry.mode))?;
    Ok(rustix::fs::futimens(&file, &times(mtime(entry)))?)
}

fn copy(archive: &mut Reader<impl BufRead>, file: &OwnedFd) -> Result<(), ImageError> {
    while let 1.. = copy_some(archive, file, u64::MAX)? {}
    Ok(())
}

fn copy_pieces(
    archive: &mut Reader<impl BufRead>,
    file: &OwnedFd,
    pieces: &[Piece],
) -> Result<(), ImageError> {
    for piece in pieces {
        rustix::fs::seek(file, rustix::fs::SeekFrom::Start(piece.offset))?;
        let mut left = piece.length;
        while left > 0 {
            left -= copy_some(archive, file, left)?;
        }
    }
    Ok(())
}

/// Copies at most `most` bytes of the member's data; 0 at their end.
fn copy_some(
    archive: &mut Reader<impl BufRead>,
    file: &OwnedFd,
    most: u64,
) -> Result<u64, ImageError> {
    let bytes = archive.data()?;
    let bytes = bytes.get(..usize::try_from(most).unwrap_or(usize::MAX)).unwrap_or(bytes);
    write_all(file, bytes)?;
    let copied = bytes.len();
    archive.consume(copied);
    Ok(copied as u64)
}

fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> Result<(), ImageError> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(err) => return Err(err.into()),
        }
    }
    Ok(())
}

fn check_space(dir: &Beneath) -> Result<(), ImageError> {
    let disk = rustix::fs::fstatvfs(dir)?;
    if disk.f_bavail < disk.f_blocks / KEEP_FREE {
        return Err(ImageError::NoSpace);
    }
    Ok(())
}

/// The nearest second that overlay and digest can hold; 0 where there is none.
fn mtime(entry: &Member) -> u32 {
    let seconds = entry.mtime.map_or(0, |(seconds, _)| seconds);
    u32::try_from(seconds.clamp(0, i64::from(u32::MAX))).unwrap_or(0)
}

fn owner(entry: &Member) -> (Uid, Gid) {
    // Checked to be in range when the entry was placed.
    let narrow = |id| u32::try_from(id).unwrap_or(0);
    (Uid::from_raw(narrow(entry.uid)), Gid::from_raw(narrow(entry.gid)))
}

pub(super) fn times(mtime: u32) -> Timestamps {
    let time = Timespec { tv_sec: i64::from(mtime), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn stat(spot: &Spot<'_>) -> Result<Option<rustix::fs::Stat>, ImageError> {
    match rustix::fs::statat(spot.dir, spot.name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(err) => Err(err.into()),
    }
}

fn file_type(spot: &Spot<'_>) -> Result<Option<FileType>, ImageError> {
    Ok(stat(spot)?.map(|stat| FileType::from_raw_mode(stat.st_mode)))
}

/// A path of the archive without leading, double and trailing slashes and without `.`; empty for the
/// top. `..` is refused even where it would stay inside.
fn clean_path(path: &[u8]) -> Result<PathBuf, ImageError> {
    let mut clean = PathBuf::new();
    for (depth, name) in path.split(|b| *b == b'/').enumerate() {
        match name {
            b"" | b"." => continue,
            b".." => return Err(invalid("`..` in a path")),
            _ if name.contains(&0) => return Err(invalid("a NUL in a path")),
            _ if name.len() > limits::NAME_BYTES_MAX || depth > limits::IMAGE_DEPTH_MAX => {
                return Err(invalid("a path that is too long or too deep"));
            }
            _ => clean.push(OsStr::from_bytes(name)),
        }
    }
    if clean.as_os_str().len() >= limits::PATH_BYTES_MAX {
        return Err(invalid("a path that is too long or too deep"));
    }
    Ok(clean)
}

/// What the kernel says of entries that contradict each other.
const BY_THE_ARCHIVE: [Errno; 5] =
    [Errno::NOTDIR, Errno::LOOP, Errno::NAMETOOLONG, Errno::XDEV, Errno::EXIST];

/// Names the entry; a fault that the archive caused is told apart from one of the host.
fn at_entry(err: ImageError, path: &[u8]) -> ImageError {
    let shown: String = path.escape_ascii().to_string().chars().take(200).collect();
    let text = match err {
        ImageError::Invalid(text) => text,
        ImageError::Io(io) => match Errno::from_io_error(&io) {
            Some(Errno::NOSPC | Errno::DQUOT) => return ImageError::NoSpace,
            Some(errno) if BY_THE_ARCHIVE.contains(&errno) => io::Error::from(errno).to_string(),
            Some(_) | None => return ImageError::Io(io),
        },
        ImageError::NotRootfs(_)
        | ImageError::NotFound(_)
        | ImageError::InUse(_)
        | ImageError::NoSpace
        | ImageError::Build(_) => return err,
    };
    invalid(format!("entry `{shown}`: {text}"))
}
