//! Files whose bytes flow, and what is done to their names, in a session or in a workspace.

use std::fmt;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::fstat;
use rustix::io::Errno;
use sandkasten_files::identity;
use sandkasten_protocol::Identity;
use sandkasten_protocol::work::{Kind, Meta};
use sandkasten_types::files::{DirEntry, FileType};
use sandkasten_types::time::rfc3339_nanos;
use tokio::sync::mpsc;

use crate::error::Error;
use crate::files::shown;
use crate::session::Command;

/// A transfer renews its session's lease this often.
const RENEW_EVERY: Duration = Duration::from_secs(1);

/// A strong entity tag: which contents a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Etag(pub Identity);

impl fmt::Display for Etag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { ino, size, mtime_ns, ctime_ns } = self.0;
        write!(f, "\"{ino:x}-{size:x}-{mtime_ns:x}-{ctime_ns:x}\"")
    }
}

/// A text that is no tag of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotOurs;

impl FromStr for Etag {
    type Err = NotOurs;

    fn from_str(text: &str) -> Result<Self, NotOurs> {
        let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let mut parts = inner.ok_or(NotOurs)?.split('-').map(|part| u64::from_str_radix(part, 16));
        let mut next = || parts.next().and_then(Result::ok).ok_or(NotOurs);
        let identity =
            Identity { ino: next()?, size: next()?, mtime_ns: next()?, ctime_ns: next()? };
        let tag = Self(identity);
        // There is one spelling of each.
        if tag.to_string() == text { Ok(tag) } else { Err(NotOurs) }
    }
}

/// A regular file that is open for reading. It may change meanwhile; its size is that at the opening.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    path: String,
    identity: Identity,
    renewal: Option<Renewal>,
}

/// Renews the lease of a session while a file of it is on its way.
#[derive(Debug)]
pub(crate) struct Renewal {
    commands: mpsc::UnboundedSender<Command>,
    renewed: std::sync::Mutex<Instant>,
}

impl Renewal {
    pub(crate) fn new(commands: mpsc::UnboundedSender<Command>) -> Self {
        Self { commands, renewed: std::sync::Mutex::new(Instant::now()) }
    }

    /// Some bytes have come or gone.
    pub(crate) fn use_it(&self) {
        let mut renewed = self.renewed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if renewed.elapsed() >= RENEW_EVERY {
            *renewed = Instant::now();
            // A session that has ended needs no lease.
            drop(self.commands.send(Command::Renew));
        }
    }
}

impl OpenFile {
    pub(crate) fn new(
        file: OwnedFd,
        path: String,
        renewal: Option<Renewal>,
    ) -> Result<Self, Error> {
        let stat = fstat(&file).map_err(|error| Error::internal("a file", error))?;
        Ok(Self { file: file.into(), path, identity: identity(&stat), renewal })
    }

    #[must_use]
    pub fn size(&self) -> u64 {
        self.identity.size
    }

    #[must_use]
    pub fn etag(&self) -> Etag {
        Etag(self.identity)
    }

    /// Up to `bytes` bytes from `offset` on; fewer only where the file has no more.
    ///
    /// # Errors
    /// What pread(2) says.
    pub async fn read(self: &Arc<Self>, offset: u64, bytes: usize) -> Result<Bytes, Error> {
        let read = self.read_soon(offset, bytes).await;
        read.map_err(|error| Error::internal("reading a file", error))?
    }

    /// The same, begun now and waited for later.
    #[must_use]
    pub fn read_soon(
        self: &Arc<Self>,
        offset: u64,
        bytes: usize,
    ) -> tokio::task::JoinHandle<Result<Bytes, Error>> {
        let file = Arc::clone(self);
        tokio::task::spawn_blocking(move || file.read_now(offset, bytes))
    }

    fn read_now(&self, offset: u64, bytes: usize) -> Result<Bytes, Error> {
        if let Some(renewal) = &self.renewal {
            renewal.use_it();
        }
        let mut buffer = Vec::with_capacity(bytes);
        while buffer.len() < bytes {
            let at = offset + buffer.len() as u64;
            match rustix::io::pread(&self.file, spare_capacity(&mut buffer), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(Error::internal(format!("reading {}", self.path), errno));
                }
            }
        }
        // An allocator may give more than was asked for.
        buffer.truncate(bytes);
        Ok(buffer.into())
    }
}

/// The absolute path of what was asked for, `..` and links as they are.
pub(crate) fn absolute(path: &[u8]) -> Vec<u8> {
    let base: &[u8] = if path.starts_with(b"/") { b"" } else { b"/workspace/" };
    let joined = [base, path].concat();
    let names = joined.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".");
    let absolute: Vec<u8> = names.flat_map(|name| [b"/", name].concat()).collect();
    if absolute.is_empty() { b"/".to_vec() } else { absolute }
}

/// How answers show what is at a path.
#[must_use]
pub fn described(meta: Meta, path: &[u8]) -> DirEntry {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let name = if name.is_empty() { path } else { name };
    let not_text =
        |bytes: &[u8]| std::str::from_utf8(bytes).is_err().then(|| STANDARD.encode(bytes));
    DirEntry {
        name: shown(name),
        is_dir: meta.kind == Kind::Dir,
        path: shown(path),
        r#type: file_type(meta.kind),
        size: meta.size,
        mode: format!("{:04o}", meta.mode & 0o7777),
        uid: meta.uid,
        gid: meta.gid,
        mtime: rfc3339_nanos(meta.mtime.0, meta.mtime.1),
        target: meta.target.as_deref().map(shown),
        name_base64: not_text(name),
        path_base64: not_text(path),
    }
}

/// How answers call a kind of file.
#[must_use]
pub fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::File,
        Kind::Dir => FileType::Dir,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::Device => FileType::Device,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_tag_is_read_back_and_nothing_else_is_one() {
        let tag = Etag(Identity::new(10, 0, (1_700_000_000, 5), (-1, 0)));
        assert_eq!(tag.to_string(), "\"a-0-17979cfe362a0005-ffffffffc4653600\"");
        assert_eq!(tag.to_string().parse(), Ok(tag));
        for bad in [
            "",
            "*",
            "a-0-1-2",
            "\"a-0-1\"",
            "\"0a-0-1-2\"",
            "\"A-0-1-2\"",
            "\"a-0-1-2-3\"",
            "W/\"a-0-1-2\"",
        ] {
            assert_eq!(bad.parse::<Etag>(), Err(NotOurs), "{bad}");
        }
    }

    #[test]
    fn paths_of_answers() {
        for (asked, path) in
            [("a/./b/", "/workspace/a/b"), ("/", "/"), (".", "/workspace"), ("/x//y", "/x/y")]
        {
            assert_eq!(absolute(asked.as_bytes()), path.as_bytes());
        }
    }

    #[tokio::test]
    async fn a_read_ends_where_the_file_does() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), b"0123456789").unwrap();
        let file = OwnedFd::from(File::open(dir.path().join("f")).unwrap());
        let file = Arc::new(OpenFile::new(file, "f".into(), None).unwrap());
        assert_eq!(file.size(), 10);
        assert_eq!(file.read(2, 4).await.unwrap(), &b"2345"[..]);
        assert_eq!(file.read(8, 4).await.unwrap(), &b"89"[..]);
        assert_eq!(file.read(10, 4).await.unwrap(), &b""[..]);
    }
}
