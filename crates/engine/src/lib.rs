//! What a session *is* over time: lifecycle, execs, files, leases, recovery, images, workspaces.
//!
//! Must not know HTTP, argv, the environment or a terminal.

mod config;
mod error;
mod exec;
mod files;
pub mod image;
pub mod workspace;

use std::sync::Arc;

pub use config::{Ceilings, Config, Defaults, Durability, ShellPreference, WorkspacePolicy};
pub use error::{Ended, Error, FileFault, StartError};
pub use exec::{ExecEvent, ExecHandle};
pub use files::{CreateFile, FileRead, FileWriter, Place};
use sandkasten_jail::launcher::Launcher;
pub use sandkasten_jail::seccomp::SeccompProfile;
pub use sandkasten_protocol::{FileUser, Parents};
use sandkasten_types::exec::ExecRequest;
use sandkasten_types::files::DirEntry;
use sandkasten_types::session::{CreateSession, Session, Stats, Status};
use sandkasten_types::workspace::Workspace;
use sandkasten_types::{SessionId, WorkspaceId};

/// The engine. Cheap to clone; all clones are one engine.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    images: image::Store,
}

/// `Idempotency-Key` of a create, in the name of one API key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    client: String,
    key: String,
}

impl IdempotencyKey {
    /// `client` tells API keys apart and is no secret (a hash of the key, say).
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] where `key` is not 1 to 255 visible ASCII characters.
    pub fn new(client: &str, key: &str) -> Result<Self, Error> {
        let valid = (1..=255).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
        if !valid {
            let text = "`Idempotency-Key` must be 1 to 255 visible ASCII characters";
            return Err(Error::InvalidRequest(text.into()));
        }
        Ok(Self { client: client.into(), key: key.into() })
    }
}

/// Figures for `/metrics`. No ids.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Sessions by status, those of the last 24 h that have ended included.
    pub sessions: Vec<(Status, u64)>,
    /// Sessions made since the daemon started.
    pub sessions_created: u64,
    pub execs_running: u64,
    pub execs_queued: u64,
    /// Execs that ended since the daemon started.
    pub execs_finished: u64,
    /// Things of ours on the host that no session owned, found and removed since the start.
    pub orphans_removed: u64,
}

fn not_yet<T>() -> Result<T, Error> {
    Err(Error::Internal("not there yet".into()))
}

impl Engine {
    /// Opens the database, recovers the sessions that live, and starts the reaper.
    ///
    /// # Errors
    /// Where the data directory, the database or the host's cgroups can't be used.
    pub async fn start(config: Config, _launcher: Launcher) -> Result<Self, StartError> {
        let images = image::Store::open(&config.data_dir).map_err(StartError::Images)?;
        Ok(Self(Arc::new(Inner { images })))
    }

    /// Writes what is to be kept and lets go of the sessions, which live on.
    pub async fn stop(&self) {}

    /// Makes a session. It answers when an exec sent at once would work.
    ///
    /// # Errors
    /// As `api.md` has them; nothing is left of a session that could not be made.
    pub async fn create_session(
        &self,
        _request: CreateSession,
        _key: Option<IdempotencyKey>,
    ) -> Result<Session, Error> {
        not_yet()
    }

    /// The sessions that have not ended, oldest first.
    ///
    /// # Errors
    /// Where the database fails.
    pub async fn sessions(&self) -> Result<Vec<Session>, Error> {
        not_yet()
    }

    /// One session, also for 24 h after its end.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`].
    pub async fn session(&self, _id: &SessionId) -> Result<Session, Error> {
        not_yet()
    }

    /// Ends a session. Deleting one that has ended changes nothing and is no error.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`].
    pub async fn delete_session(&self, _id: &SessionId) -> Result<(), Error> {
        not_yet()
    }

    /// What a session uses now. Does not renew its lease and waits for no exec.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`], [`Error::Ended`].
    pub async fn stats(&self, _id: &SessionId) -> Result<Stats, Error> {
        not_yet()
    }

    /// Checks a command and queues it. Dropping the handle before its end cancels the command.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::TooLarge`], [`Error::SessionNotFound`], [`Error::Ended`],
    /// [`Error::Overloaded`] where the queue is full.
    pub async fn exec(&self, _id: &SessionId, _request: ExecRequest) -> Result<ExecHandle, Error> {
        not_yet()
    }

    /// Opens a file to be written; nothing is seen of it before [`FileWriter::commit`].
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn create_file(
        &self,
        _place: Place,
        _request: CreateFile,
    ) -> Result<FileWriter, Error> {
        not_yet()
    }

    /// Reads a regular file: its first `max_bytes`, the configured cap where absent.
    ///
    /// # Errors
    /// [`Error::File`], and those of the place.
    pub async fn read_file(
        &self,
        _place: Place,
        _path: &str,
        _user: FileUser,
        _max_bytes: Option<u64>,
    ) -> Result<FileRead, Error> {
        not_yet()
    }

    /// All workspaces, by id.
    ///
    /// # Errors
    /// Where the database fails.
    pub async fn workspaces(&self) -> Result<Vec<Workspace>, Error> {
        not_yet()
    }

    /// Removes a workspace and all its files.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotFound`], [`Error::WorkspaceInUse`].
    pub async fn delete_workspace(&self, _id: &WorkspaceId) -> Result<(), Error> {
        not_yet()
    }

    /// The entries of one directory of a workspace, by name.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotFound`], [`Error::File`].
    pub async fn list_workspace_dir(
        &self,
        _id: &WorkspaceId,
        _path: &str,
    ) -> Result<Vec<DirEntry>, Error> {
        not_yet()
    }

    /// Figures for `/metrics`.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts::default()
    }

    /// The images of the data directory.
    #[must_use]
    pub fn images(&self) -> &image::Store {
        &self.0.images
    }
}
