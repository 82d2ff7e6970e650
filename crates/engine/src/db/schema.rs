//! Opening the file: checks, settings, migrations.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::reserve;
use crate::error::StartError;

/// Each takes the schema one version up; `user_version` says how many have run.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        status TEXT NOT NULL,
        ending TEXT,
        exit_reason TEXT,
        spec TEXT NOT NULL,
        workspace_id TEXT,
        boot_id TEXT NOT NULL,
        nonce BLOB NOT NULL,
        uid_base INTEGER,
        init_pid INTEGER,
        init_start_time INTEGER,
        shell TEXT,
        cwd TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        last_activity_ms INTEGER NOT NULL,
        expires_ms INTEGER NOT NULL,
        deadline_boot_ms INTEGER,
        ended_ms INTEGER
    ) STRICT;
    CREATE INDEX sessions_by_workspace ON sessions (workspace_id) WHERE workspace_id IS NOT NULL;
    CREATE INDEX sessions_by_end ON sessions (ended_ms) WHERE ended_ms IS NOT NULL;
    CREATE TABLE workspaces (
        id TEXT PRIMARY KEY,
        created_ms INTEGER NOT NULL,
        labels TEXT NOT NULL
    ) STRICT;
    CREATE TABLE idempotency (
        client TEXT NOT NULL,
        key TEXT NOT NULL,
        fingerprint BLOB NOT NULL,
        session_id TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        PRIMARY KEY (client, key)
    ) STRICT;
",
    "
    ALTER TABLE workspaces ADD COLUMN quota_mb INTEGER;
    -- The session whose create made it, until anything else names it.
    ALTER TABLE workspaces ADD COLUMN made_for TEXT;
",
    // Pages of the sessions that have ended go in this order.
    "
    CREATE INDEX sessions_ended_in_order ON sessions (created_ms, id) WHERE ended_ms IS NOT NULL;
",
];

pub(super) fn open(path: &Path) -> Result<Connection, StartError> {
    open_checked(path)
        .map_err(|reason| StartError::Database { path: path.display().to_string(), reason })
}

fn open_checked(path: &Path) -> Result<Connection, String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(text)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(text)?;
    check_integrity(&connection)?;
    let version = version(&connection)?;
    // The reserve is made once the schema stands. With it, but without a schema, the file was emptied
    // or lost, and going on would forget sessions and workspaces without a word.
    if version == 0 && reserve::path_of(path).exists() {
        return Err("it is empty, although there was a database here (its reserve file exists); \
             restore it, or remove the reserve file to begin anew"
            .into());
    }
    connection.pragma_update(None, "journal_mode", "WAL").map_err(text)?;
    connection.pragma_update(None, "foreign_keys", "ON").map_err(text)?;
    migrate(&mut connection, version)?;
    if let Err(error) = reserve::fill(path) {
        tracing::warn!(%error, "database_reserve_not_made");
    }
    Ok(connection)
}

fn check_integrity(connection: &Connection) -> Result<(), String> {
    let found: String =
        connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(text)?;
    if found == "ok" { Ok(()) } else { Err(format!("it is damaged: {found}")) }
}

fn version(connection: &Connection) -> Result<usize, String> {
    let version: i64 =
        connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(text)?;
    usize::try_from(version).map_err(|_negative| format!("its version is {version}"))
}

fn migrate(connection: &mut Connection, version: usize) -> Result<(), String> {
    let newest = MIGRATIONS.len();
    let Some(missing) = MIGRATIONS.get(version..) else {
        return Err(format!("it is of version {version}; this program knows {newest}"));
    };
    if missing.is_empty() {
        return Ok(());
    }
    let transaction = connection.transaction().map_err(text)?;
    for migration in missing {
        transaction.execute_batch(migration).map_err(text)?;
    }
    transaction
        .pragma_update(None, "user_version", i64::try_from(newest).unwrap_or(i64::MAX))
        .map_err(text)?;
    transaction.commit().map_err(text)
}

fn text(error: rusqlite::Error) -> String {
    error.to_string()
}
