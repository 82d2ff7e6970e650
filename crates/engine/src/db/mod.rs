//! SQLite: what is meant to be. The kernel says what is.
//!
//! ```text
//!   any task ── closure ──> queue ──> one thread, one connection ──> sandkasten.db (WAL)
//! ```
//!
//! Invariants: one thread writes; a row is written before the first thing that it stands for is made,
//! and it is over only once all of them are gone. Session rows are written with `synchronous` NORMAL
//! (a power cut ends every session anyway, and the end of a process loses nothing), workspaces and
//! idempotency keys with FULL.

mod reserve;
mod schema;
mod sessions;
mod workspaces;

use std::path::Path;
use std::sync::Mutex;
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::oneshot;

pub(crate) use sessions::{Claimed, EndedWanted, Hello, Identity, KeyUse, Lease, NewRow, Row};
pub(crate) use workspaces::{Removable, WorkspaceChange, WorkspaceRow};

pub(crate) use reserve::{RESERVE_BYTES, fill as fill_reserve, path_of as reserve_of};

use crate::error::StartError;

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DbError {
    #[error("database: {0}")]
    Sqlite(#[from] rusqlite::Error),
    #[error("database row of {id}: {reason}")]
    BadRow { id: String, reason: String },
    #[error("the database is closed")]
    Closed,
}

impl From<DbError> for crate::error::Error {
    fn from(error: DbError) -> Self {
        match &error {
            DbError::Sqlite(cause) if is_full(cause) => {
                Self::NoSpace("no space left for the database".into())
            }
            DbError::Sqlite(_) | DbError::BadRow { .. } | DbError::Closed => {
                Self::internal("database", error)
            }
        }
    }
}

/// How sure a write is on disk when its call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Synchronous {
    Normal,
    Full,
}

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The handle of the database's thread.
#[derive(Debug)]
pub(crate) struct Db {
    jobs: Mutex<Option<std::sync::mpsc::Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Db {
    /// Opens, checks and migrates the database. Blocks.
    pub(crate) fn open(path: &Path) -> Result<Self, StartError> {
        let mut connection = schema::open(path)?;
        let (jobs, queue) = std::sync::mpsc::channel::<Job>();
        let thread = std::thread::Builder::new().name("database".into()).spawn(move || {
            while let Ok(job) = queue.recv() {
                job(&mut connection);
            }
            // Closing it leaves one whole file, without a log beside it.
            drop(connection);
        });
        let thread = thread.map_err(|error| StartError::Database {
            path: "its thread".into(),
            reason: error.to_string(),
        })?;
        Ok(Self { jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)) })
    }

    /// Finishes what is queued and closes the file. Blocks.
    pub(crate) fn close(&self) {
        let jobs = lock(&self.jobs).take();
        drop(jobs);
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("database_thread_panicked");
        }
    }

    /// Runs a transaction on the database's thread and waits for it. Dropping the future does not
    /// stop the transaction.
    async fn run<T, F>(&self, synchronous: Synchronous, work: F) -> Result<T, DbError>
    where
        T: Send + 'static,
        F: Fn(&rusqlite::Transaction<'_>) -> Result<T, DbError> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        self.queue(Box::new(move |connection| {
            // A caller that has gone needs no answer.
            drop(answer.send(transaction(connection, synchronous, &work)));
        }))?;
        answered.await.unwrap_or(Err(DbError::Closed))
    }

    /// Runs a transaction at some time, in order; a failure is logged.
    fn post<F>(&self, what: &'static str, work: F)
    where
        F: Fn(&rusqlite::Transaction<'_>) -> Result<(), DbError> + Send + 'static,
    {
        let queued = self.queue(Box::new(move |connection| {
            if let Err(error) = transaction(connection, Synchronous::Normal, &work) {
                tracing::error!(%error, what, "database_write_failed");
            }
        }));
        if queued.is_err() {
            tracing::warn!(what, "database_is_closed");
        }
    }

    fn queue(&self, job: Job) -> Result<(), DbError> {
        let jobs = lock(&self.jobs);
        let jobs = jobs.as_ref().ok_or(DbError::Closed)?;
        jobs.send(job).map_err(|_thread_is_gone| DbError::Closed)
    }
}

/// Frees the room that is kept back for the database at `path`.
pub(crate) fn give_reserve_up(path: &Path) {
    if reserve_of(path).exists() {
        reserve::give_up(path.to_str());
    }
}

/// One transaction. Where the disk is full the reserve is given up and it is tried once more, so that
/// ends can be written down even then.
fn transaction<T>(
    connection: &mut Connection,
    synchronous: Synchronous,
    work: &impl Fn(&rusqlite::Transaction<'_>) -> Result<T, DbError>,
) -> Result<T, DbError> {
    match try_transaction(connection, synchronous, work) {
        Err(DbError::Sqlite(error)) if is_full(&error) && reserve::give_up(connection.path()) => {
            try_transaction(connection, synchronous, work)
        }
        other => other,
    }
}

fn try_transaction<T>(
    connection: &mut Connection,
    synchronous: Synchronous,
    work: &impl Fn(&rusqlite::Transaction<'_>) -> Result<T, DbError>,
) -> Result<T, DbError> {
    let level = match synchronous {
        Synchronous::Normal => "NORMAL",
        Synchronous::Full => "FULL",
    };
    connection.pragma_update(None, "synchronous", level)?;
    let transaction = connection.transaction()?;
    let done = work(&transaction)?;
    transaction.commit()?;
    Ok(done)
}

fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // What is behind these locks is whole at every point where a thread could panic.
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod test;
