//! Lists: which entries are wanted, and page by page.
//!
//! Invariant: a page begins right behind the last entry of the page before, in an order that no entry
//! changes its place in. So whatever comes or goes meanwhile, what is there all the time is told once.

use std::fmt;
use std::str::FromStr;

use sandkasten_types::limits::TOMBSTONE_HOURS;
use sandkasten_types::session::{Session, Status, UpdateSession};
use sandkasten_types::{SessionId, Timestamp};

use crate::db::EndedWanted;
use crate::engine::Engine;
use crate::error::Error;
use crate::session::{self, Command, check_update};

/// Which sessions are wanted.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    pub status: SessionStatus,
    /// Labels that they have, all of them.
    pub labels: Vec<(String, String)>,
}

/// How the wanted sessions stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionStatus {
    /// They have not ended.
    #[default]
    Living,
    /// They have, in the last 24 hours.
    Ended,
    Only(Status),
}

/// The place of a session in a list.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionKey {
    pub(crate) created_ms: i64,
    pub(crate) id: SessionId,
}

impl SessionKey {
    #[must_use]
    pub fn of(session: &Session) -> Self {
        Self { created_ms: session.created_at.unix_ms(), id: session.id.clone() }
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.created_ms, self.id)
    }
}

impl FromStr for SessionKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ms, id) = text.split_once('/').ok_or(())?;
        let created_ms = ms.parse().map_err(|_bad| ())?;
        Ok(Self { created_ms, id: id.parse().map_err(|_bad| ())? })
    }
}

/// How many entries are wanted at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    None,
    To(usize),
}

impl Limit {
    /// As SQLite takes it.
    pub(crate) fn sql(self) -> i64 {
        match self {
            Self::None => -1,
            Self::To(count) => i64::try_from(count).unwrap_or(i64::MAX),
        }
    }
}

impl Engine {
    /// The sessions that have not ended, oldest first.
    ///
    /// # Errors
    /// None today; listing may one day ask the database.
    #[expect(clippy::unused_async, reason = "the caller must not care where the list is from")]
    pub async fn sessions(&self) -> Result<Vec<Session>, Error> {
        Ok(self.living_sessions(&SessionFilter::default(), None))
    }

    /// The sessions that are wanted, oldest first: those behind `after`, `limit` at most of those that
    /// have ended (the others are few).
    ///
    /// # Errors
    /// Where the database fails.
    pub async fn list_sessions(
        &self,
        filter: SessionFilter,
        after: Option<SessionKey>,
        limit: Limit,
    ) -> Result<Vec<Session>, Error> {
        let status = match filter.status {
            SessionStatus::Ended => None,
            SessionStatus::Only(status) if status.is_over() => Some(status),
            SessionStatus::Living | SessionStatus::Only(_) => {
                return Ok(self.living_sessions(&filter, after.as_ref()));
            }
        };
        let hours = i64::try_from(TOMBSTONE_HOURS).unwrap_or(i64::MAX);
        let since = Timestamp::now().unix_ms().saturating_sub(hours.saturating_mul(3_600_000));
        let since = Timestamp::from_unix_ms(since);
        let wanted = EndedWanted { since, status, labels: filter.labels, after, limit };
        let (rows, node) = (self.host().db.ended_sessions(wanted).await?, &self.host().config.node);
        Ok(rows.into_iter().map(|row| session::show_row(row, node)).collect())
    }

    fn living_sessions(&self, filter: &SessionFilter, after: Option<&SessionKey>) -> Vec<Session> {
        let host = self.host();
        let shown = host.live.all().into_iter().map(|session| session.show(&host.config.node));
        let is_wanted = |session: &Session| {
            let status = match filter.status {
                SessionStatus::Only(status) => session.status == status,
                SessionStatus::Living | SessionStatus::Ended => !session.status.is_over(),
            };
            let has = |(key, value): &(String, String)| session.labels.get(key) == Some(value);
            status
                && filter.labels.iter().all(has)
                && after.is_none_or(|after| SessionKey::of(session) > *after)
        };
        shown.filter(is_wanted).collect()
    }

    /// Changes a session that lives. Where it is given a lease, that begins now.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::SessionNotFound`], [`Error::Ended`].
    pub async fn update_session(
        &self,
        id: &SessionId,
        request: UpdateSession,
    ) -> Result<Session, Error> {
        self.check_stopping()?;
        let session = self.living(id).await?;
        let host = self.host();
        let change = check_update(request)?;
        let renews = change.ttl_seconds.is_some();
        // What two changes write and what they tell the session's task has one order.
        let gate = host.update_gate.lock().await;
        let about = host.db.change_session(id.clone(), change).await?;
        let about = about.ok_or_else(|| session.gone())?;
        session.tell(Command::Update { about: about.into() })?;
        drop(gate);
        if renews {
            session.tell(Command::Renew)?;
        }
        // A question behind the two: its answer says that they are done.
        session.list().await?;
        Ok(session.show(&host.config.node))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written() {
        let key = SessionKey { created_ms: 17, id: "ab-1".parse().unwrap() };
        assert_eq!(key.to_string().parse(), Ok(key));
        for bad in ["", "17", "/", "x/ab", "17/", "17/A B"] {
            assert!(bad.parse::<SessionKey>().is_err(), "{bad}");
        }
    }
}
