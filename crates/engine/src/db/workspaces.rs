//! Rows of workspaces.

use std::collections::BTreeMap;

use rusqlite::{OptionalExtension as _, Transaction, params};
use sandkasten_types::{SessionId, Timestamp, WorkspaceId};

use super::{Db, DbError, Synchronous};

/// One workspace, with how often it is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkspaceRow {
    pub(crate) id: WorkspaceId,
    pub(crate) created_at: Timestamp,
    pub(crate) labels: BTreeMap<String, String>,
    /// MiB.
    pub(crate) quota_mb: Option<u64>,
    /// Sessions that have it or had it, as far as they are remembered.
    pub(crate) sessions: u64,
    pub(crate) active_sessions: u64,
}

/// What of a workspace is to change; what is absent stays.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkspaceChange {
    pub(crate) labels: Option<BTreeMap<String, String>>,
    pub(crate) quota_mb: Option<u64>,
}

/// Whether a workspace may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removable {
    Yes,
    InUse,
    NotFound,
}

const SELECT: &str = "SELECT w.id, w.created_ms, w.labels, w.quota_mb, count(s.id),
        count(s.id) - count(s.ended_ms)
    FROM workspaces w LEFT JOIN sessions s ON s.workspace_id = w.id";

impl Db {
    /// Writes down that a workspace is to exist. False: it did already. `made_for` is the session whose
    /// create asks for it, where nobody else does.
    pub(crate) async fn add_workspace(
        &self,
        id: WorkspaceId,
        made_for: Option<SessionId>,
    ) -> Result<bool, DbError> {
        self.run(Synchronous::Full, move |tx| add(tx, &id, made_for.as_ref())).await
    }

    /// Changes a workspace that exists.
    pub(crate) async fn change_workspace(
        &self,
        id: WorkspaceId,
        change: WorkspaceChange,
    ) -> Result<(), DbError> {
        self.run(Synchronous::Full, move |tx| {
            if let Some(labels) = &change.labels {
                tx.execute(
                    "UPDATE workspaces SET labels = ? WHERE id = ?",
                    params![text_of(&id, labels)?, id.as_str()],
                )?;
            }
            if let Some(quota) = change.quota_mb {
                tx.execute(
                    "UPDATE workspaces SET quota_mb = ? WHERE id = ?",
                    params![i64::try_from(quota).unwrap_or(i64::MAX), id.as_str()],
                )?;
            }
            Ok(())
        })
        .await
    }

    /// All of them, by id.
    pub(crate) async fn workspaces(&self) -> Result<Vec<WorkspaceRow>, DbError> {
        self.run(Synchronous::Normal, |tx| {
            let mut statement =
                tx.prepare_cached(&format!("{SELECT} GROUP BY w.id ORDER BY w.id"))?;
            let mut rows = statement.query([])?;
            let mut all = Vec::new();
            while let Some(row) = rows.next()? {
                match workspace(row) {
                    Ok(row) => all.push(row),
                    // The others are not to blame, and its directory stays whatever the row says.
                    Err(error) => tracing::error!(%error, "workspace_row_unreadable"),
                }
            }
            Ok(all)
        })
        .await
    }

    pub(crate) async fn workspace(&self, id: WorkspaceId) -> Result<Option<WorkspaceRow>, DbError> {
        self.run(Synchronous::Normal, move |tx| {
            let mut statement =
                tx.prepare_cached(&format!("{SELECT} WHERE w.id = ? GROUP BY w.id"))?;
            let mut rows = statement.query([id.as_str()])?;
            rows.next()?.map(workspace).transpose()
        })
        .await
    }

    /// Whether it is there and no session has it.
    pub(crate) async fn removable(&self, id: WorkspaceId) -> Result<Removable, DbError> {
        self.run(Synchronous::Normal, move |tx| removable(tx, &id)).await
    }

    /// Forgets a workspace unless a session has it.
    pub(crate) async fn remove_workspace(&self, id: WorkspaceId) -> Result<Removable, DbError> {
        self.run(Synchronous::Full, move |tx| {
            let answer = removable(tx, &id)?;
            if answer == Removable::Yes {
                tx.execute("DELETE FROM workspaces WHERE id = ?", [id.as_str()])?;
            }
            Ok(answer)
        })
        .await
    }

    /// Whether it was made for this session alone and nobody else has named it since.
    pub(crate) async fn is_made_for(
        &self,
        id: WorkspaceId,
        session: SessionId,
    ) -> Result<bool, DbError> {
        self.run(Synchronous::Normal, move |tx| {
            let found: i64 = tx.query_row(
                "SELECT count(*) FROM workspaces WHERE id = ?1 AND made_for = ?2 AND NOT EXISTS
                 (SELECT 1 FROM sessions WHERE workspace_id = ?1 AND id <> ?2)",
                [id.as_str(), session.as_str()],
                |row| row.get(0),
            )?;
            Ok(found > 0)
        })
        .await
    }

    /// Forgets a workspace whose directory is gone or was never made.
    pub(crate) async fn drop_workspace(&self, id: WorkspaceId) -> Result<(), DbError> {
        self.run(Synchronous::Full, move |tx| {
            tx.execute("DELETE FROM workspaces WHERE id = ?", [id.as_str()])?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn has_workspace(&self, id: WorkspaceId) -> Result<bool, DbError> {
        self.run(Synchronous::Normal, move |tx| exists(tx, &id)).await
    }
}

fn exists(tx: &Transaction<'_>, id: &WorkspaceId) -> Result<bool, DbError> {
    let sql = "SELECT count(*) FROM workspaces WHERE id = ?";
    let found: i64 = tx.query_row(sql, [id.as_str()], |row| row.get(0))?;
    Ok(found > 0)
}

fn removable(tx: &Transaction<'_>, id: &WorkspaceId) -> Result<Removable, DbError> {
    if !exists(tx, id)? {
        return Ok(Removable::NotFound);
    }
    let sql = "SELECT count(*) FROM sessions WHERE workspace_id = ? AND ended_ms IS NULL";
    let active: i64 = tx.query_row(sql, [id.as_str()], |row| row.get(0))?;
    Ok(if active > 0 { Removable::InUse } else { Removable::Yes })
}

/// Adds a row where there is none. Nothing is written where nothing changes.
fn add(
    tx: &Transaction<'_>,
    id: &WorkspaceId,
    made_for: Option<&SessionId>,
) -> Result<bool, DbError> {
    let sql = "SELECT made_for FROM workspaces WHERE id = ?";
    let known = tx.query_row(sql, [id.as_str()], |row| row.get::<_, Option<String>>(0));
    match known.optional()? {
        Some(None) => Ok(false),
        Some(Some(_)) => {
            tx.execute("UPDATE workspaces SET made_for = NULL WHERE id = ?", [id.as_str()])?;
            Ok(false)
        }
        None => {
            tx.execute(
                "INSERT INTO workspaces (id, created_ms, labels, made_for) VALUES (?, ?, '{}', ?)",
                params![id.as_str(), Timestamp::now().unix_ms(), made_for.map(SessionId::as_str)],
            )?;
            Ok(true)
        }
    }
}

fn text_of(id: &WorkspaceId, labels: &BTreeMap<String, String>) -> Result<String, DbError> {
    serde_json::to_string(labels)
        .map_err(|error| DbError::BadRow { id: id.to_string(), reason: error.to_string() })
}

fn workspace(row: &rusqlite::Row<'_>) -> Result<WorkspaceRow, DbError> {
    let id: String = row.get(0)?;
    let bad = |reason: String| DbError::BadRow { id: format!("workspace `{id}`"), reason };
    let labels: String = row.get(2)?;
    let count = |column| Ok::<_, DbError>(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0));
    Ok(WorkspaceRow {
        created_at: Timestamp::from_unix_ms(row.get(1)?),
        // Labels that are torn are lost; the workspace is not.
        labels: serde_json::from_str(&labels).unwrap_or_else(|error| {
            tracing::error!(workspace = id, %error, "workspace_labels_unreadable");
            BTreeMap::new()
        }),
        quota_mb: row.get::<_, Option<i64>>(3)?.and_then(|quota| u64::try_from(quota).ok()),
        sessions: count(4)?,
        active_sessions: count(5)?,
        id: id.parse().map_err(|error: sandkasten_types::InvalidId| bad(error.to_string()))?,
    })
}
