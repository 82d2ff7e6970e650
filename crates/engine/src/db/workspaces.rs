//! Rows of workspaces.

use std::collections::BTreeMap;

use rusqlite::params;
use sandkasten_types::{Timestamp, WorkspaceId};

use super::{Db, DbError, Synchronous};

/// One workspace, with how often it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkspaceRow {
    pub(crate) id: WorkspaceId,
    pub(crate) created_at: Timestamp,
    pub(crate) labels: BTreeMap<String, String>,
    /// Sessions that have it or had it, as far as they are remembered.
    pub(crate) sessions: u64,
    pub(crate) active_sessions: u64,
}

impl Db {
    /// Writes down that a workspace is to exist. False: it did already.
    pub(crate) async fn add_workspace(&self, id: WorkspaceId) -> Result<bool, DbError> {
        self.run(Synchronous::Full, move |tx| {
            let added = tx.execute(
                "INSERT OR IGNORE INTO workspaces (id, created_ms, labels) VALUES (?, ?, '{}')",
                params![id.as_str(), Timestamp::now().unix_ms()],
            )?;
            Ok(added > 0)
        })
        .await
    }

    /// All of them, by id.
    pub(crate) async fn workspaces(&self) -> Result<Vec<WorkspaceRow>, DbError> {
        self.run(Synchronous::Normal, |tx| {
            let mut statement = tx.prepare_cached(
                "SELECT w.id, w.created_ms, w.labels, count(s.id), count(s.id) - count(s.ended_ms)
                 FROM workspaces w LEFT JOIN sessions s ON s.workspace_id = w.id
                 GROUP BY w.id ORDER BY w.id",
            )?;
            let mut rows = statement.query([])?;
            let mut all = Vec::new();
            while let Some(row) = rows.next()? {
                all.push(workspace(row)?);
            }
            Ok(all)
        })
        .await
    }

    /// Forgets a workspace unless a session has it. False: a session does.
    pub(crate) async fn remove_workspace(&self, id: WorkspaceId) -> Result<bool, DbError> {
        self.run(Synchronous::Full, move |tx| {
            let active: i64 = tx.query_row(
                "SELECT count(*) FROM sessions WHERE workspace_id = ? AND ended_ms IS NULL",
                [id.as_str()],
                |row| row.get(0),
            )?;
            if active > 0 {
                return Ok(false);
            }
            tx.execute("DELETE FROM workspaces WHERE id = ?", [id.as_str()])?;
            Ok(true)
        })
        .await
    }

    /// Forgets a workspace that only a session has that could not be made.
    pub(crate) async fn drop_workspace(&self, id: WorkspaceId) -> Result<(), DbError> {
        self.run(Synchronous::Full, move |tx| {
            tx.execute("DELETE FROM workspaces WHERE id = ?", [id.as_str()])?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn has_workspace(&self, id: WorkspaceId) -> Result<bool, DbError> {
        self.run(Synchronous::Normal, move |tx| {
            let found: i64 = tx.query_row(
                "SELECT count(*) FROM workspaces WHERE id = ?",
                [id.as_str()],
                |row| row.get(0),
            )?;
            Ok(found > 0)
        })
        .await
    }
}

fn workspace(row: &rusqlite::Row<'_>) -> Result<WorkspaceRow, DbError> {
    let id: String = row.get(0)?;
    let bad = |reason: String| DbError::BadRow { id: format!("workspace `{id}`"), reason };
    let labels: String = row.get(2)?;
    let (sessions, active): (i64, i64) = (row.get(3)?, row.get(4)?);
    Ok(WorkspaceRow {
        created_at: Timestamp::from_unix_ms(row.get(1)?),
        labels: serde_json::from_str(&labels).map_err(|error| bad(error.to_string()))?,
        sessions: u64::try_from(sessions).unwrap_or(0),
        active_sessions: u64::try_from(active).unwrap_or(0),
        id: id.parse().map_err(|error: sandkasten_types::InvalidId| bad(error.to_string()))?,
    })
}
