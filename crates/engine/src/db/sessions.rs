//! Rows of sessions, and the idempotency keys that name them.

use rusqlite::{OptionalExtension as _, Transaction, params};
use sandkasten_types::session::{Shell, Status};
use sandkasten_types::{SessionId, Timestamp};

use super::{Db, DbError, Synchronous};
use crate::clock::BootTime;
use crate::lists::{Limit, SessionKey};
use crate::session::{About, Cause, Change, Spec};

/// A session as it was written down.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: SessionId,
    pub(crate) status: Status,
    /// What ends or ended it, from the moment that it began to end.
    pub(crate) cause: Option<Cause>,
    pub(crate) spec: Spec,
    pub(crate) boot_id: String,
    pub(crate) nonce: [u8; 16],
    pub(crate) uid_base: Option<u32>,
    /// The process that was its init, of the boot that `boot_id` names.
    pub(crate) init: Option<Identity>,
    pub(crate) shell: Option<Shell>,
    pub(crate) cwd: String,
    pub(crate) created_at: Timestamp,
    pub(crate) lease: Lease,
}

/// A process: a pid alone could be anyone's by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    pub(crate) start_time: u64,
}

/// How long a session lives if nothing more happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) last_activity: Timestamp,
    /// For people.
    pub(crate) expires_at: Timestamp,
    /// What counts. `None`: something runs, and it lives as long as that and its ttl.
    pub(crate) deadline: Option<BootTime>,
}

/// What a session's init said of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) shell: Option<Shell>,
    pub(crate) cwd: String,
}

/// What is known before anything is made.
#[derive(Debug, Clone)]
pub(crate) struct NewRow {
    pub(crate) id: SessionId,
    pub(crate) spec: Spec,
    pub(crate) boot_id: String,
    pub(crate) nonce: [u8; 16],
    pub(crate) created_at: Timestamp,
    pub(crate) lease: Lease,
    pub(crate) key: Option<KeyUse>,
}

/// A client's key and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyUse {
    pub(crate) client: String,
    pub(crate) key: String,
    pub(crate) fingerprint: Vec<u8>,
}

/// Which of the sessions that have ended are wanted, in the order of their making.
#[derive(Debug, Clone)]
pub(crate) struct EndedWanted {
    /// They ended at this time or later.
    pub(crate) since: Timestamp,
    /// How they ended; `None`: in any way.
    pub(crate) status: Option<Status>,
    /// Labels that they have, all of them.
    pub(crate) labels: Vec<(String, String)>,
    /// The last one that is known already.
    pub(crate) after: Option<SessionKey>,
    pub(crate) limit: Limit,
}

/// What became of an intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// It is written down; the caller makes the session.
    New,
    /// The key made this session before.
    Before(SessionId),
    /// The key was used for another request.
    Mismatch,
}

impl Db {
    /// Writes down that a session is to be made, unless its key made one before.
    pub(crate) async fn insert_session(&self, row: NewRow) -> Result<Claimed, DbError> {
        let sync = if row.key.is_some() { Synchronous::Full } else { Synchronous::Normal };
        self.run(sync, move |tx| {
            if let Some(key) = &row.key
                && let Some(known) = key_use(tx, key)?
            {
                return Ok(known);
            }
            insert(tx, &row)?;
            Ok(Claimed::New)
        })
        .await
    }

    /// What a key made before; [`Claimed::New`] for nothing.
    pub(crate) async fn key(&self, key: KeyUse) -> Result<Claimed, DbError> {
        self.run(Synchronous::Normal, move |tx| Ok(key_use(tx, &key)?.unwrap_or(Claimed::New)))
            .await
    }

    /// Removes a session that could not be made, and its key, so that a retry makes another.
    pub(crate) async fn forget_session(&self, id: SessionId) -> Result<(), DbError> {
        self.run(Synchronous::Normal, move |tx| {
            tx.execute("DELETE FROM idempotency WHERE session_id = ?", [id.as_str()])?;
            tx.execute("DELETE FROM sessions WHERE id = ?", [id.as_str()])?;
            Ok(())
        })
        .await
    }

    /// The session runs: its init, and what it said of itself.
    pub(crate) async fn set_running(
        &self,
        id: SessionId,
        init: Identity,
        uid_base: u32,
        hello: Hello,
    ) -> Result<(), DbError> {
        self.run(Synchronous::Normal, move |tx| {
            let start_time = i64::try_from(init.start_time).unwrap_or(i64::MAX);
            tx.execute(
                "UPDATE sessions SET status = 'running', init_pid = ?, init_start_time = ?,
                 uid_base = ?, shell = ?, cwd = ?
                 WHERE id = ? AND status IN ('creating', 'running')",
                params![
                    init.pid,
                    start_time,
                    uid_base,
                    hello.shell.map(shell_word),
                    hello.cwd,
                    id.as_str()
                ],
            )?;
            Ok(())
        })
        .await
    }

    /// The session begins to end. The first cause stays.
    pub(crate) async fn set_stopping(&self, id: SessionId, cause: Cause) -> Result<(), DbError> {
        self.run(Synchronous::Normal, move |tx| {
            tx.execute(
                "UPDATE sessions SET status = 'stopping', ending = ?, exit_reason = ?
                 WHERE id = ? AND status IN ('creating', 'running', 'paused')",
                params![cause.status.as_str(), cause.reason, id.as_str()],
            )?;
            Ok(())
        })
        .await
    }

    /// The session has ended and owns nothing any more.
    pub(crate) async fn set_over(
        &self,
        id: SessionId,
        cause: Cause,
        cwd: String,
    ) -> Result<(), DbError> {
        self.run(Synchronous::Normal, move |tx| {
            tx.execute(
                "UPDATE sessions SET status = ?1, ending = ?1, exit_reason = ?2, cwd = ?3,
                 ended_ms = ?4, deadline_boot_ms = NULL WHERE id = ?5 AND ended_ms IS NULL",
                params![
                    cause.status.as_str(),
                    cause.reason,
                    cwd,
                    Timestamp::now().unix_ms(),
                    id.as_str()
                ],
            )?;
            Ok(())
        })
        .await
    }

    /// Writes a lease and a working directory down, at some time soon.
    pub(crate) fn post_lease(&self, id: &SessionId, lease: Lease, cwd: String) {
        let id = id.clone();
        self.post("lease", move |tx| {
            tx.execute(
                "UPDATE sessions SET last_activity_ms = ?, expires_ms = ?, deadline_boot_ms = ?,
                 cwd = ? WHERE id = ? AND ended_ms IS NULL",
                params![
                    lease.last_activity.unix_ms(),
                    lease.expires_at.unix_ms(),
                    lease.deadline.map(BootTime::as_ms),
                    cwd,
                    id.as_str()
                ],
            )?;
            Ok(())
        });
    }

    pub(crate) async fn session(&self, id: SessionId) -> Result<Option<Row>, DbError> {
        self.run(Synchronous::Normal, move |tx| {
            let mut rows = select(tx, "id = ?", [id.as_str()])?;
            Ok(rows.pop())
        })
        .await
    }

    /// Changes what can be changed of a session that has not ended, and says what it is now. `None`: there
    /// is none.
    pub(crate) async fn change_session(
        &self,
        id: SessionId,
        change: Change,
    ) -> Result<Option<About>, DbError> {
        self.run(Synchronous::Normal, move |tx| {
            let Some(row) = select(tx, "id = ? AND ended_ms IS NULL", [id.as_str()])?.pop() else {
                return Ok(None);
            };
            let about = row.spec.about.clone().changed(change.clone());
            let spec = spec_text(&id, &Spec { about: about.clone(), ..row.spec })?;
            tx.execute("UPDATE sessions SET spec = ? WHERE id = ?", [&spec, id.as_str()])?;
            Ok(Some(about))
        })
        .await
    }

    /// Sessions that have ended, oldest first.
    pub(crate) async fn ended_sessions(&self, wanted: EndedWanted) -> Result<Vec<Row>, DbError> {
        self.run(Synchronous::Normal, move |tx| ended_sessions(tx, &wanted)).await
    }

    /// The sessions that have not ended, oldest first.
    pub(crate) async fn living_sessions(&self) -> Result<Vec<Row>, DbError> {
        self.run(Synchronous::Normal, |tx| select(tx, "ended_ms IS NULL", [])).await
    }

    /// How many of the remembered sessions ended in which way.
    pub(crate) async fn ended_counts(&self) -> Result<Vec<(Status, u64)>, DbError> {
        self.run(Synchronous::Normal, |tx| {
            let mut statement = tx.prepare_cached(
                "SELECT status, count(*) FROM sessions WHERE ended_ms IS NOT NULL GROUP BY status",
            )?;
            let rows = statement
                .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
            let mut counts = Vec::new();
            for row in rows {
                let (word, count) = row?;
                if let Ok(status) = word.parse() {
                    counts.push((status, u64::try_from(count).unwrap_or(0)));
                }
            }
            Ok(counts)
        })
        .await
    }

    /// Forgets sessions and keys of before `then`.
    pub(crate) async fn prune(&self, then: Timestamp) -> Result<(), DbError> {
        self.run(Synchronous::Normal, move |tx| {
            tx.execute("DELETE FROM sessions WHERE ended_ms < ?", [then.unix_ms()])?;
            tx.execute("DELETE FROM idempotency WHERE created_ms < ?", [then.unix_ms()])?;
            Ok(())
        })
        .await
    }
}

fn key_use(tx: &Transaction<'_>, key: &KeyUse) -> Result<Option<Claimed>, DbError> {
    let known = tx
        .query_row(
            "SELECT fingerprint, session_id FROM idempotency WHERE client = ? AND key = ?",
            params![key.client, key.key],
            |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?)),
        )
        .optional()?;
    let Some((fingerprint, id)) = known else { return Ok(None) };
    if fingerprint != key.fingerprint {
        return Ok(Some(Claimed::Mismatch));
    }
    Ok(Some(Claimed::Before(parse_id(&id)?)))
}

fn insert(tx: &Transaction<'_>, row: &NewRow) -> Result<(), DbError> {
    let spec = spec_text(&row.id, &row.spec)?;
    tx.execute(
        "INSERT INTO sessions (id, status, spec, workspace_id, boot_id, nonce, cwd, created_ms,
            last_activity_ms, expires_ms, deadline_boot_ms)
         VALUES (?, 'creating', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            row.id.as_str(),
            spec,
            row.spec.workspace.as_ref().map(|id| id.as_str()),
            row.boot_id,
            row.nonce,
            row.spec.cwd,
            row.created_at.unix_ms(),
            row.lease.last_activity.unix_ms(),
            row.lease.expires_at.unix_ms(),
            row.lease.deadline.map(BootTime::as_ms),
        ],
    )?;
    if let Some(key) = &row.key {
        tx.execute(
            "INSERT INTO idempotency (client, key, fingerprint, session_id, created_ms)
             VALUES (?, ?, ?, ?, ?)",
            params![
                key.client,
                key.key,
                key.fingerprint,
                row.id.as_str(),
                row.created_at.unix_ms()
            ],
        )?;
    }
    Ok(())
}

fn spec_text(id: &SessionId, spec: &Spec) -> Result<String, DbError> {
    serde_json::to_string(spec)
        .map_err(|error| DbError::BadRow { id: id.to_string(), reason: error.to_string() })
}

fn ended_sessions(tx: &Transaction<'_>, wanted: &EndedWanted) -> Result<Vec<Row>, DbError> {
    let labels = serde_json::to_string(&wanted.labels)
        .map_err(|error| DbError::BadRow { id: "a question".into(), reason: error.to_string() })?;
    let (after_ms, after_id) = match &wanted.after {
        Some(key) => (key.created_ms, key.id.as_str()),
        None => (i64::MIN, ""),
    };
    select_some(
        tx,
        "ended_ms IS NOT NULL AND ended_ms >= ?1 AND (?2 IS NULL OR status = ?2)
         AND (created_ms, id) > (?3, ?4)
         AND NOT EXISTS (SELECT 1 FROM json_each(?5) AS want WHERE NOT EXISTS (
            SELECT 1 FROM json_each(spec, '$.labels') AS has
            WHERE has.key = json_extract(want.value, '$[0]')
                AND has.value = json_extract(want.value, '$[1]')))",
        params![
            wanted.since.unix_ms(),
            wanted.status.map(Status::as_str),
            after_ms,
            after_id,
            labels,
        ],
        wanted.limit,
    )
}

fn select(
    tx: &Transaction<'_>,
    condition: &'static str,
    params: impl rusqlite::Params,
) -> Result<Vec<Row>, DbError> {
    select_some(tx, condition, params, Limit::None)
}

fn select_some(
    tx: &Transaction<'_>,
    condition: &'static str,
    params: impl rusqlite::Params,
    limit: Limit,
) -> Result<Vec<Row>, DbError> {
    let limit = limit.sql();
    let mut statement = tx.prepare_cached(&format!(
        "SELECT id, status, ending, exit_reason, spec, boot_id, nonce, uid_base, init_pid, init_start_time,
            shell, cwd, created_ms, last_activity_ms, expires_ms, deadline_boot_ms
         FROM sessions WHERE {condition} ORDER BY created_ms, id LIMIT {limit}"
    ))?;
    let mut rows = statement.query(params)?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(session(row)?);
    }
    Ok(all)
}

fn session(row: &rusqlite::Row<'_>) -> Result<Row, DbError> {
    let id: String = row.get(0)?;
    let bad = |reason: String| DbError::BadRow { id: id.clone(), reason };
    let spec: String = row.get(4)?;
    let init = match (row.get::<_, Option<u32>>(8)?, row.get::<_, Option<i64>>(9)?) {
        (Some(pid), Some(start)) => {
            Some(Identity { pid, start_time: u64::try_from(start).unwrap_or(0) })
        }
        _ => None,
    };
    Ok(Row {
        status: row.get::<_, String>(1)?.parse().map_err(bad)?,
        cause: cause(row.get(2)?, row.get(3)?),
        spec: serde_json::from_str(&spec).map_err(|error| bad(error.to_string()))?,
        boot_id: row.get(5)?,
        nonce: row.get(6)?,
        uid_base: row.get(7)?,
        init,
        shell: row.get::<_, Option<String>>(10)?.as_deref().and_then(shell_of),
        cwd: row.get(11)?,
        created_at: Timestamp::from_unix_ms(row.get(12)?),
        lease: Lease {
            last_activity: Timestamp::from_unix_ms(row.get(13)?),
            expires_at: Timestamp::from_unix_ms(row.get(14)?),
            deadline: row.get::<_, Option<i64>>(15)?.map(BootTime::from_ms),
        },
        id: parse_id(&id)?,
    })
}

fn cause(ending: Option<String>, reason: Option<String>) -> Option<Cause> {
    let status = ending?.parse().ok()?;
    Some(Cause { status, reason: reason.unwrap_or_default() })
}

fn parse_id(id: &str) -> Result<SessionId, DbError> {
    id.parse().map_err(|error: sandkasten_types::InvalidId| DbError::BadRow {
        id: id.into(),
        reason: error.to_string(),
    })
}

fn shell_word(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => "bash",
        Shell::Sh => "sh",
    }
}

fn shell_of(word: &str) -> Option<Shell> {
    match word {
        "bash" => Some(Shell::Bash),
        "sh" => Some(Shell::Sh),
        _ => None,
    }
}
