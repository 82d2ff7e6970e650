//! The cache folder: downloads, built layers, and the work of the one build that may be under way.
//!
//! ```text
//!   lock               flock, held by a build
//!   debs/              Debian packages
//!   wheels-HASH/       wheels of one requirements file
//!   KEY-DIGEST.tar     a built layer
//!   work-RECIPE/       a build under way
//! ```

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use sandkasten_jail::path::Beneath;
use tokio::sync::oneshot;

use super::failed;
use crate::image::tree::{self, Rules};
use crate::image::{Cancel, Digest, ImageError};

/// A built layer.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) tar: PathBuf,
    pub(super) digest: Digest,
}

#[derive(Debug)]
pub(super) struct Cache {
    dir: PathBuf,
    cancel: Cancel,
}

impl Cache {
    /// Only root reaches it: a layer has set-id programs.
    pub(super) fn open(dir: &Path, cancel: Cancel) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned(), cancel })
    }

    /// Waits until no other build uses the folder. The wait has a thread of its own, so that it can
    /// be given up.
    pub(super) async fn lock(&self) -> Result<File, ImageError> {
        let file = File::create(self.dir.join("lock"))?;
        let (sender, receiver) = oneshot::channel();
        std::thread::spawn(move || {
            let locked = rustix::fs::flock(&file, FlockOperation::LockExclusive);
            // Nobody waits any more: the file is closed and the lock goes with it.
            drop(sender.send(locked.map(|()| file)));
        });
        let locked = receiver.await.map_err(|_gone| failed("the lock's thread ended"))?;
        Ok(locked?)
    }

    /// A folder for downloads, made where it is missing.
    pub(super) fn downloads(&self, name: &str) -> io::Result<PathBuf> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(super) fn find(&self, key: &str) -> io::Result<Option<Layer>> {
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let digest = name
                .to_str()
                .and_then(|name| name.strip_prefix(key)?.strip_prefix('-')?.strip_suffix(".tar"));
            if let Some(digest) = digest.filter(|digest| digest.len() == 64) {
                return Ok(Some(Layer { tar: entry.path(), digest: Digest(digest.to_owned()) }));
            }
        }
        Ok(None)
    }

    /// Writes a tree as the layer of `key`; an older one of that key goes.
    pub(super) fn put(
        &self,
        key: &str,
        tree: &Beneath,
        rules: &Rules,
    ) -> Result<Layer, ImageError> {
        let beside = self.dir.join(format!("{key}.new"));
        let file = File::create(&beside)?;
        let digest = write(self.cancel.watch(file), tree, rules)
            .inspect_err(|_| drop(fs::remove_file(&beside)))?;
        while let Some(old) = self.find(key)? {
            fs::remove_file(old.tar)?;
        }
        let tar = self.dir.join(format!("{key}-{}.tar", digest.as_str()));
        fs::rename(&beside, &tar)?;
        Ok(Layer { tar, digest })
    }

    /// An empty folder for a build; the lock is held. What a killed build left in it goes first.
    pub(super) fn work(&self, name: &str) -> io::Result<Work> {
        let path = self.dir.join(name);
        let work = Work { cache: Beneath::open(&self.dir)?, name: Some(name.into()), path };
        work.clear()?;
        fs::DirBuilder::new().mode(0o700).create(&work.path)?;
        Ok(work)
    }

    /// The folder of that name if it is there, else an empty one that goes when it is dropped.
    pub(super) fn work_or_kept(&self, name: &str) -> io::Result<Work> {
        let path = self.dir.join(name);
        if path.is_dir() {
            return Ok(Work { cache: Beneath::open(&self.dir)?, name: None, path });
        }
        self.work(name)
    }
}

fn write(to: impl Write, tree: &Beneath, rules: &Rules) -> Result<Digest, ImageError> {
    let mut file = BufWriter::with_capacity(1 << 20, to);
    let digest = tree::write(tree, rules, &mut file)?;
    file.flush()?;
    Ok(digest)
}

/// A folder that goes when it is dropped.
#[derive(Debug)]
pub(super) struct Work {
    cache: Beneath,
    /// `None`: it stays.
    name: Option<String>,
    pub(super) path: PathBuf,
}

impl Work {
    /// A folder in it for the temporary files of programs.
    pub(super) fn temporary(&self) -> io::Result<PathBuf> {
        let dir = self.path.join("tmp");
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    /// Leaves it to somebody else to remove.
    pub(super) fn keep(mut self) {
        self.name = None;
    }

    fn clear(&self) -> io::Result<()> {
        self.name.as_ref().map_or(Ok(()), |name| self.cache.remove_tree(name.as_ref()))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Err(err) = self.clear() {
            // The next build removes it.
            tracing::warn!(folder = self.name.as_deref(), error = %err, "work_folder_not_removed");
        }
    }
}
