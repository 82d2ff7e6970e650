//! Lists: which entries are wanted, and page by page.
//!
//! Invariant: a page begins right behind the last entry of the page before, in an order that no entry
//! changes its place in. So whatever comes or goes meanwhile, what is there all the time is told once.

use std::fmt;
use std::str::FromStr;

use sandkasten_types::SessionId;
use sandkasten_types::session::{Session, Status};

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
