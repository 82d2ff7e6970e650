//! Lists of sessions, and what is changed in one.

use sandkasten_types::limits::TOMBSTONE_HOURS;
use sandkasten_types::session::{Session, UpdateSession};
use sandkasten_types::{SessionId, Timestamp};

use crate::db::EndedWanted;
use crate::engine::Engine;
use crate::error::Error;
use crate::lists::{Limit, SessionFilter, SessionKey, SessionStatus};
use crate::session::{self, Command, check_update};

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
