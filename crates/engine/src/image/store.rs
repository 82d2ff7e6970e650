//! The images of a data directory.
//!
//! ```text
//!   images/lock          flock, held while records and layers change places
//!   images/NAME.json     the record: layers, lowest first, and configuration
//!   layers/DIGEST/       one layer, never changed once it has its name
//!   layers/.new-RANDOM/  one being made; its maker holds a flock on it
//!   trash/RANDOM/        being removed
//! ```
//!
//! Invariant: a record names only layers that are whole. Layers are made beside and renamed; a record
//! is written beside and renamed; the daemon and any number of CLI commands may do so at once.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sandkasten_jail::path::Beneath;
use sandkasten_types::ids::random_hex;
use sandkasten_types::limits::IMAGE_ACCOUNTS_BYTES_MAX;
use sandkasten_types::{ImageName, Timestamp};
use serde::{Deserialize, Serialize};

use super::archive::{invalid, unreadable};
use super::cancel::Cancel;
use super::kind::{HEAD_BYTES, Kind};
use super::tree::{self, Hashed, Rules};
use super::unpack::{self, Origin};
use super::{Digest, Given, Image, ImageConfig, ImageError, entries};
use crate::trash::Trash;

const RECORD_BYTES_MAX: u64 = 1024 * 1024;
const ONLY_US: Mode = Mode::RWXU;

/// The images of one data directory. All calls block.
#[derive(Debug)]
pub struct Store {
    images: Beneath,
    layers: Beneath,
    trash: Trash,
    cancel: Cancel,
}

/// A layer that we built: the tar, and the digest that it must have.
pub(crate) struct LayerSource<'a> {
    pub(crate) tar: &'a mut dyn Read,
    pub(crate) digest: Digest,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    layers: Vec<LayerRecord>,
    config: ImageConfig,
    created_at: Timestamp,
}

#[derive(Debug, Serialize, Deserialize)]
struct LayerRecord {
    digest: Digest,
    size_bytes: u64,
}

impl Store {
    /// Opens the store, and makes its directories where they are missing.
    ///
    /// # Errors
    /// Where the directories can't be made or opened.
    pub fn open(data_dir: &Path) -> io::Result<Self> {
        let data = Beneath::open(data_dir)?;
        let dir = |name| data.create_dirs(Path::new(name), (0, 0), ONLY_US);
        Ok(Self {
            images: dir("images")?,
            layers: dir("layers")?,
            trash: Trash::open(data_dir)?,
            cancel: Cancel::default(),
        })
    }

    /// The same store, whose imports can be given up.
    #[must_use]
    pub fn cancelled_by(self, cancel: Cancel) -> Self {
        Self { cancel, ..self }
    }

    /// One image.
    ///
    /// # Errors
    /// [`ImageError::NotFound`] where there is none of that name.
    pub fn get(&self, name: &ImageName) -> Result<Image, ImageError> {
        let file =
            self.images.open_file(Path::new(&record_name(name)), OFlags::RDONLY, Mode::empty());
        let file = match file {
            Err(err) if err.kind() == io::ErrorKind::NotFound => {
                return Err(ImageError::NotFound(name.clone()));
            }
            file => std::fs::File::from(file?),
        };
        let mut text = Vec::new();
        file.take(RECORD_BYTES_MAX).read_to_end(&mut text)?;
        let record: Record = serde_json::from_slice(&text).map_err(|err| {
            io::Error::new(io::ErrorKind::InvalidData, format!("record of `{name}`: {err}"))
        })?;
        Ok(record.into_image(name.clone()))
    }

    /// All images, by name.
    ///
    /// # Errors
    /// Where the records can't be read.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let mut images = Vec::new();
        for name in self.names()? {
            match self.get(&name) {
                Err(ImageError::NotFound(_)) => {}
                image => images.push(image?),
            }
        }
        Ok(images)
    }

    /// Makes an image of a root file system: tar or tar.gz, untrusted. One of that name is replaced.
    ///
    /// Devices, FIFOs and extended attributes are left out; owners beyond 65535, `..` in a path and
    /// everything that readers of tar disagree about are refused.
    ///
    /// # Errors
    /// [`ImageError::NotRootfs`] or [`ImageError::Invalid`] where the archive is not taken; nothing is
    /// left of it then.
    pub fn import(
        &self,
        archive: impl Read,
        name: &ImageName,
        config: ImageConfig,
    ) -> Result<Image, ImageError> {
        let Opened { tar, given } = opened(self.cancel.watch(archive))?;
        let layer = self.new_layer()?;
        unpack::unpack(tar, &layer.dir, Origin::Stranger)?;
        given.unpacked(&layer.dir)?.taken()?;
        let digest = self.digest(&layer.dir)?;
        let _lock = self.lock()?;
        layer.adopt(&digest)?;
        self.finish(name, vec![digest], config)
    }

    /// Makes an image of layers that we built, lowest first. One of that name is replaced.
    pub(crate) fn install(
        &self,
        name: &ImageName,
        sources: Vec<LayerSource<'_>>,
        config: ImageConfig,
    ) -> Result<Image, ImageError> {
        let mut made = Vec::new();
        for source in sources {
            made.push(self.make_layer(source)?);
        }
        self.cancel.check()?;
        let _lock = self.lock()?;
        let mut digests = Vec::new();
        for (digest, layer) in made {
            match layer {
                Some(layer) => layer.adopt(&digest)?,
                None => drop(self.open_layer(&digest)?),
            }
            digests.push(digest);
        }
        self.finish(name, digests, config)
    }

    /// Whether the store has a layer.
    fn has_layer(&self, digest: &Digest) -> bool {
        self.open_layer(digest).is_ok()
    }

    /// Removes the name. Its layers go with [`collect_garbage`](Self::collect_garbage).
    ///
    /// # Errors
    /// [`ImageError::NotFound`]; [`ImageError::InUse`] where a layer in use would be left without a name.
    pub fn remove(&self, name: &ImageName, in_use: &[Digest]) -> Result<(), ImageError> {
        let _lock = self.lock()?;
        let image = self.get(name)?;
        let mut others = HashSet::new();
        for other in self.list()?.into_iter().filter(|other| other.name != *name) {
            others.extend(other.layers);
        }
        if image.layers.iter().any(|layer| in_use.contains(layer) && !others.contains(layer)) {
            return Err(ImageError::InUse(name.clone()));
        }
        Ok(rustix::fs::unlinkat(&self.images, record_name(name), AtFlags::empty())?)
    }

    /// Moves layers that no image and no session has to the trash, with those that a killed import
    /// left behind; says how many.
    ///
    /// # Errors
    /// Where the records can't be read.
    pub fn collect_garbage(&self, in_use: &[Digest]) -> Result<usize, ImageError> {
        let _lock = self.lock()?;
        let mut kept: HashSet<Digest> = in_use.iter().cloned().collect();
        for image in self.list()? {
            kept.extend(image.layers);
        }
        let mut removed = 0;
        for name in file_names(&self.layers)? {
            let is_garbage = match name.strip_prefix(".new-") {
                Some(_) => self.is_abandoned(&name),
                // One that was opened just now is not in use by what the caller knows of yet.
                None => !kept.contains(&Digest(name.clone())) && self.is_abandoned(&name),
            };
            if is_garbage {
                self.trash.take(&self.layers, OsStr::new(&name))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Directories of the image's layers, lowest first. As long as a descriptor is open, its layer is
    /// not collected.
    ///
    /// # Errors
    /// Where a layer can't be opened.
    pub fn open_layers(&self, image: &Image) -> io::Result<Vec<OwnedFd>> {
        let held = image.layers.iter().map(|digest| {
            let layer = self.open_layer(digest)?;
            rustix::fs::flock(&layer, FlockOperation::LockShared)?;
            // It may have been collected between the two steps; then its name is gone.
            drop(self.open_layer(digest)?);
            Ok(layer.into_fd())
        });
        held.collect()
    }

    /// The passwd of an image, up to its cap; empty where it has none.
    ///
    /// # Errors
    /// Where a layer can't be read.
    pub(crate) fn passwd(&self, image: &Image) -> Result<Vec<u8>, ImageError> {
        // The highest one counts; our own layer is on top.
        for digest in image.layers.iter().rev() {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let layer = self.open_layer(digest)?;
            match layer.open_file_in_root(Path::new("etc/passwd"), flags, Mode::empty()) {
                Ok(file) => {
                    let mut text = Vec::new();
                    let most = IMAGE_ACCOUNTS_BYTES_MAX as u64;
                    std::fs::File::from(file).take(most).read_to_end(&mut text)?;
                    return Ok(text);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Vec::new())
    }

    fn open_layer(&self, digest: &Digest) -> io::Result<Beneath> {
        self.layers.open_dir(Path::new(digest.as_str()))
    }

    fn make_layer(
        &self,
        source: LayerSource<'_>,
    ) -> Result<(Digest, Option<NewLayer<'_>>), ImageError> {
        let LayerSource { tar, digest } = source;
        if self.has_layer(&digest) {
            return Ok((digest, None));
        }
        let layer = self.new_layer()?;
        let tar = self.cancel.watch(tar);
        let mut hashed = Hashed::new(tar);
        let buffered = BufReader::with_capacity(1 << 20, &mut hashed);
        unpack::unpack(buffered, &layer.dir, Origin::Ours)?;
        if hashed.digest() != digest {
            return Err(invalid("a built layer does not have its digest"));
        }
        Ok((digest, Some(layer)))
    }

    /// The digest of a tree. Nothing that others see is made before it is there, so this is where an
    /// import can be given up last.
    fn digest(&self, tree: &Beneath) -> Result<Digest, ImageError> {
        tree::write(tree, &Rules::EXACT, &mut self.cancel.watch(io::sink()))
    }

    /// Adds our top layer and writes the record. The lock is held.
    fn finish(
        &self,
        name: &ImageName,
        mut layers: Vec<Digest>,
        config: ImageConfig,
    ) -> Result<Image, ImageError> {
        let fds = layers.iter().map(|digest| Ok(self.open_layer(digest)?.into_fd()));
        let fds: Vec<OwnedFd> = fds.collect::<io::Result<_>>()?;
        let top = self.new_layer()?;
        entries::make(&fds, &top.dir)?;
        let digest = tree::digest(&top.dir)?;
        top.adopt(&digest)?;
        layers.push(digest);
        let record = self.record(layers, config)?;
        self.write_record(name, &record)?;
        Ok(record.into_image(name.clone()))
    }

    fn record(&self, layers: Vec<Digest>, config: ImageConfig) -> Result<Record, ImageError> {
        let mut records = Vec::new();
        for digest in layers {
            let size_bytes = self.open_layer(&digest)?.size_bytes()?;
            records.push(LayerRecord { digest, size_bytes });
        }
        // As it is written: what is read back is equal.
        let created_at = Timestamp::from_unix_ms(Timestamp::now().unix_ms());
        Ok(Record { layers: records, config, created_at })
    }

    fn write_record(&self, name: &ImageName, record: &Record) -> Result<(), ImageError> {
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::other)?;
        let beside = format!(".new-{}", random()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = self.images.open_file(Path::new(&beside), flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = std::fs::File::from(file);
        let written = file.write_all(&text).and_then(|()| file.sync_all()).and_then(|()| {
            Ok(rustix::fs::renameat(&self.images, &beside, &self.images, record_name(name))?)
        });
        if written.is_err() {
            self.images.remove_tree(OsStr::new(&beside))?;
        }
        Ok(written?)
    }

    fn names(&self) -> Result<BTreeSet<ImageName>, ImageError> {
        let names = file_names(&self.images)?;
        Ok(names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).collect())
    }

    fn lock(&self) -> Result<OwnedFd, ImageError> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = self.images.open_file(Path::new("lock"), flags, Mode::RUSR | Mode::WUSR)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                answer => return Ok(answer.map(|()| file)?),
            }
        }
    }

    fn new_layer(&self) -> Result<NewLayer<'_>, ImageError> {
        let name = format!(".new-{}", random()?);
        let dir = self.layers.create_dirs(Path::new(&name), (0, 0), Mode::from(0o755))?;
        rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
        Ok(NewLayer { layers: &self.layers, name: Some(name), dir })
    }

    /// Whoever makes or opens a layer holds its lock.
    fn is_abandoned(&self, name: &str) -> bool {
        self.layers.open_dir(Path::new(name)).is_ok_and(|dir| {
            rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok()
        })
    }
}

/// A layer being made. Dropped, it is removed.
struct NewLayer<'a> {
    layers: &'a Beneath,
    /// `None` once it has its own name.
    name: Option<String>,
    dir: Beneath,
}

impl NewLayer<'_> {
    /// Gives the layer its name; one that is there already is the same.
    fn adopt(mut self, digest: &Digest) -> Result<(), ImageError> {
        let Some(name) = self.name.take() else { return Ok(()) };
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(self.layers, &name, self.layers, digest.as_str(), flags) {
            Ok(()) => Ok(()),
            Err(err) => {
                self.name = Some(name);
                if err == Errno::EXIST { Ok(()) } else { Err(err.into()) }
            }
        }
    }
}

impl Drop for NewLayer<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && let Err(err) = self.layers.remove_tree(OsStr::new(name))
        {
            // The next collection of garbage takes it.
            tracing::warn!(layer = name, error = %err, "layer_not_removed");
        }
    }
}

impl Record {
    fn into_image(self, name: ImageName) -> Image {
        let size_bytes = self.layers.iter().map(|layer| layer.size_bytes).sum();
        let layers = self.layers.into_iter().map(|layer| layer.digest).collect();
        Image { name, layers, config: self.config, size_bytes, created_at: self.created_at }
    }
}

/// The tar in an archive.
struct Opened<'a> {
    tar: Box<dyn BufRead + 'a>,
    given: Given,
}

/// Looks what `archive` is; only a tar, in gzip or not, is taken.
fn opened<'a>(archive: impl Read + 'a) -> Result<Opened<'a>, ImageError> {
    let (kind, whole) = recognised(archive)?;
    if kind != Kind::Gzip {
        let given = Given { kind, zipped: false };
        return given.taken().map(|()| Opened { tar: Box::new(whole), given });
    }
    let inside = MultiGzDecoder::new(whole);
    let (kind, whole) = recognised(inside)?;
    let given = Given { kind, zipped: true };
    given.taken().map(|()| Opened { tar: Box::new(whole), given })
}

/// The kind of what is read, and all of it again.
fn recognised<R: Read>(from: R) -> Result<(Kind, impl BufRead), ImageError> {
    let mut from = BufReader::with_capacity(256 * 1024, from);
    let mut head = Vec::new();
    (&mut from).take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(unreadable)?;
    Ok((Kind::of(&head), io::Cursor::new(head).chain(from)))
}

impl Given {
    fn taken(self) -> Result<(), ImageError> {
        if self.kind == Kind::Tar { Ok(()) } else { Err(ImageError::NotRootfs(self)) }
    }

    /// The same tar, once it is unpacked: one of layers is a tar too.
    fn unpacked(self, root: &Beneath) -> Result<Self, ImageError> {
        let names = file_names(root)?;
        Ok(Self { kind: Kind::of_top(names.iter().map(String::as_str)), ..self })
    }
}

fn record_name(name: &ImageName) -> String {
    format!("{name}.json")
}

fn random() -> io::Result<String> {
    random_hex().map_err(io::Error::other)
}

/// Names that are text; there are no others of ours.
fn file_names(dir: &Beneath) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
    }
    Ok(names)
}
