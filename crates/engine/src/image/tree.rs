//! Writes a directory tree as a tar stream that depends on nothing but the tree: the form in which
//! a layer has its digest and lies in the build cache.
//!
//! Invariant: equal trees give equal bytes. Entries are sorted, parents first; owners are numbers;
//! a time has whole seconds and no entry has an access time; what is linked twice is written once.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use sandkasten_files::tar::{BLOCK, Header, NUMBER_MAX, padding, record};
use sandkasten_jail::path::Beneath;
use sandkasten_types::limits;
use sha2::{Digest as _, Sha256};

use super::Digest;
use super::ImageError;
use super::archive::invalid;

/// How a tree on disk becomes a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Taken off every owner: the first host uid of the session that wrote the tree.
    pub(crate) owner_base: u32,
    /// Later times become this one (seconds since 1970).
    pub(crate) mtime_max: u32,
    /// Paths that are left out, with all below them.
    pub(crate) without: &'static [&'static str],
}

impl Rules {
    /// The tree as it is.
    pub(crate) const EXACT: Self = Self { owner_base: 0, mtime_max: u32::MAX, without: &[] };
}

/// Writes the whole of `tree` and says its digest, which is that of the bytes written.
pub(crate) fn write(
    tree: &Beneath,
    rules: &Rules,
    out: &mut impl Write,
) -> Result<Digest, ImageError> {
    let mut tar = Tar { out: Hashed::new(out), rules, links: HashMap::new() };
    tar.directory(tree, Vec::new(), 0)?;
    tar.out.write_all(&[0; 2 * BLOCK])?;
    tar.out.flush()?;
    Ok(tar.out.digest())
}

/// The digest alone.
pub(crate) fn digest(tree: &Beneath) -> Result<Digest, ImageError> {
    write(tree, &Rules::EXACT, &mut io::sink())
}

/// Hashes what passes through, in either direction.
#[derive(Debug)]
pub(super) struct Hashed<T> {
    inner: T,
    hash: Sha256,
}

impl<T> Hashed<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, hash: Sha256::new() }
    }

    pub(super) fn digest(self) -> Digest {
        let hex: String = self.hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        Digest(hex)
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..n).unwrap_or_default());
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: io::Read> io::Read for Hashed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(bytes)?;
        self.hash.update(bytes.get(..n).unwrap_or_default());
        Ok(n)
    }
}

struct Tar<'a, W> {
    out: Hashed<W>,
    rules: &'a Rules,
    /// First path of each file with several.
    links: HashMap<(u64, u64), Vec<u8>>,
}

/// What a header says.
struct Head<'a> {
    path: &'a [u8],
    kind: u8,
    link: &'a [u8],
    size: u64,
    opaque: bool,
    stat: &'a Stat,
}

impl<W: Write> Tar<'_, W> {
    fn directory(&mut self, dir: &Beneath, path: Vec<u8>, depth: usize) -> Result<(), ImageError> {
        if depth > limits::IMAGE_DEPTH_MAX + 8 {
            return Err(invalid("a tree that is too deep"));
        }
        for name in sorted_names(dir)? {
            let mut path = path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            if !self.rules.without.iter().any(|without| without.as_bytes() == path) {
                self.entry(dir, &name, path, depth)?;
            }
        }
        Ok(())
    }

    fn entry(
        &mut self,
        dir: &Beneath,
        name: &CString,
        path: Vec<u8>,
        depth: usize,
    ) -> Result<(), ImageError> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let head = Head { path: &path, kind: b'0', link: b"", size: 0, opaque: false, stat: &stat };
        match kind {
            FileType::Directory => {
                let child = dir.open_dir(as_path(name))?;
                let opaque = is_opaque(&child)?;
                self.head(&Head { kind: b'5', opaque, ..head })?;
                self.directory(&child, path, depth + 1)?;
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, name, Vec::new())?;
                self.head(&Head { kind: b'2', link: target.as_bytes(), ..head })?;
            }
            FileType::RegularFile => self.file(dir, name, &head)?,
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                self.head(&Head { kind: b'3', ..head })?;
            }
            // A socket or FIFO that something left behind, or a device of a package's script.
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Fifo
            | FileType::Socket
            | FileType::Unknown => {}
        }
        Ok(())
    }

    fn file(&mut self, dir: &Beneath, name: &CString, head: &Head<'_>) -> Result<(), ImageError> {
        let inode = (head.stat.st_dev, head.stat.st_ino);
        if head.stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&inode).cloned() {
                return self.head(&Head { kind: b'1', link: &first, ..*head });
            }
            self.links.insert(inode, head.path.to_vec());
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
        let file = dir.open_file(as_path(name), flags, Mode::empty())?;
        let size = u64::try_from(head.stat.st_size).unwrap_or(0);
        self.head(&Head { size, ..*head })?;
        self.data(&file, size)
    }

    fn data(&mut self, file: &OwnedFd, size: u64) -> Result<(), ImageError> {
        let mut buffer = vec![0; 128 * 1024];
        let mut left = size;
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let n = rustix::io::read(file, buffer.get_mut(..want).unwrap_or_default())?;
            if n == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            self.out.write_all(buffer.get(..n).unwrap_or_default())?;
            left -= n as u64;
        }
        self.pad(size)
    }

    fn head(&mut self, head: &Head<'_>) -> Result<(), ImageError> {
        let mut records = Vec::new();
        for (key, value) in [("linkpath", head.link), ("path", head.path)] {
            if value.len() > Header::NAME_BYTES {
                record(&mut records, key, value);
            }
        }
        if head.opaque {
            record(&mut records, "SCHILY.xattr.trusted.overlay.opaque", b"y");
        }
        if head.size > NUMBER_MAX {
            record(&mut records, "size", head.size.to_string().as_bytes());
        }
        if !records.is_empty() {
            let size = records.len() as u64;
            self.out.write_all(&Header::new(b"pax", b'x', size).finish())?;
            self.out.write_all(&records)?;
            self.pad(size)?;
        }
        let block = self.block(head)?;
        Ok(self.out.write_all(&block)?)
    }

    fn block(&self, head: &Head<'_>) -> Result<[u8; BLOCK], ImageError> {
        let header = Header::new(head.path, head.kind, head.size).link(head.link);
        if head.kind == b'3' {
            // The kernel makes whiteouts in the host's name; they belong to nobody.
            return Ok(header.finish());
        }
        // The mode of a link means nothing.
        let mode = if head.kind == b'2' { 0o777 } else { head.stat.st_mode & 0o7777 };
        let owner = |id| self.owner(id);
        let mtime = u32::try_from(head.stat.st_mtime.max(0)).unwrap_or(u32::MAX);
        let header = header
            .mode(mode)
            .owner(owner(head.stat.st_uid)?, owner(head.stat.st_gid)?)
            .mtime(u64::from(mtime.min(self.rules.mtime_max)));
        Ok(header.finish())
    }

    fn owner(&self, id: u32) -> Result<u32, ImageError> {
        let own = id.checked_sub(self.rules.owner_base).filter(|own| *own < limits::UID_RANGE);
        own.ok_or_else(|| invalid(format!("owner {id} is not of the session")))
    }

    fn pad(&mut self, size: u64) -> Result<(), ImageError> {
        Ok(self.out.write_all([0; BLOCK].get(..padding(size)).unwrap_or_default())?)
    }
}

fn is_opaque(dir: &Beneath) -> Result<bool, ImageError> {
    let mut value = [0; 8];
    match rustix::fs::fgetxattr(dir, c"trusted.overlay.opaque", &mut value) {
        Ok(n) => Ok(value.get(..n) == Some(b"y")),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(false),
        Err(err) => Err(err.into()),
    }
}

fn sorted_names(dir: &Beneath) -> Result<Vec<CString>, ImageError> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn as_path(name: &CString) -> &Path {
    Path::new(OsStr::from_bytes(name.as_bytes()))
}
