//! The one place where init waits.
//!
//! Everything that can happen has a [`Token`]. Ids in tokens are never used twice, so an event of
//! something that is gone finds nobody. Descriptors are taken out before they are closed: a fork
//! holds copies for a moment, and epoll forgets a descriptor only with its last copy.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// Who an event is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    /// A connection waits to be accepted.
    Listener,
    /// Children have ended.
    Children,
    Connection(u32),
    /// A supervisor says something.
    Report(u32),
    /// A shell or program has ended.
    ProcessEnd(u32),
    /// A process runs its program, or can't.
    Birth(u32),
    /// A shell takes more of its script.
    Script(u32),
    Status(u32),
    Output(u32),
    /// A shell says something of its state.
    Dump(u32),
    /// A run takes more of its stdin, or has opened it.
    Input(u32),
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Read,
    Write,
    Both,
    /// The other end is closed: that is told of whatever else is wanted.
    End,
}

const EVENTS: usize = 64;

#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
    next_id: u32,
}

impl Poller {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { epoll: epoll::create(CreateFlags::CLOEXEC)?, next_id: 0 })
    }

    /// A number that no earlier token had.
    pub(crate) fn fresh_id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    pub(crate) fn add(&self, fd: impl AsFd, token: Token, want: Want) -> std::io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, token.into_data(), want.flags())?)
    }

    pub(crate) fn change(&self, fd: impl AsFd, token: Token, want: Want) -> std::io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, token.into_data(), want.flags())?)
    }

    /// Before `fd` is closed. Nothing where it isn't watched.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // ENOENT is the only failure a live descriptor can give, and it is what is wanted.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something happens, or for `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> std::io::Result<Vec<Token>> {
        let timeout = timeout.map(|t| Timespec {
            tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(t.subsec_nanos()),
        });
        let mut events = Vec::<Event>::with_capacity(EVENTS);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            timeout.as_ref(),
        ) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(events.iter().filter_map(|event| Token::from_data(event.data)).collect())
    }
}

impl Want {
    fn flags(self) -> EventFlags {
        match self {
            Self::Read => EventFlags::IN,
            Self::Write => EventFlags::OUT,
            Self::Both => EventFlags::IN | EventFlags::OUT,
            Self::End => EventFlags::empty(),
        }
    }
}

impl Token {
    fn into_data(self) -> EventData {
        let (kind, id): (u8, u32) = match self {
            Self::Listener => (0, 0),
            Self::Children => (1, 0),
            Self::Connection(id) => (2, id),
            Self::Report(id) => (3, id),
            Self::ProcessEnd(id) => (4, id),
            Self::Script(id) => (5, id),
            Self::Status(id) => (6, id),
            Self::Output(id) => (7, id),
            Self::Dump(id) => (8, id),
            Self::Input(id) => (9, id),
            Self::Birth(id) => (10, id),
        };
        EventData::new_u64(u64::from(kind) << 32 | u64::from(id))
    }

    fn from_data(data: EventData) -> Option<Self> {
        let kind = data.u64() >> 32;
        let id = u32::try_from(data.u64() & u64::from(u32::MAX)).ok()?;
        Some(match kind {
            0 => Self::Listener,
            1 => Self::Children,
            2 => Self::Connection(id),
            3 => Self::Report(id),
            4 => Self::ProcessEnd(id),
            5 => Self::Script(id),
            6 => Self::Status(id),
            7 => Self::Output(id),
            8 => Self::Dump(id),
            9 => Self::Input(id),
            10 => Self::Birth(id),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [Token::Listener, Token::Report(1), Token::Output(u32::MAX)] {
            assert_eq!(Token::from_data(token.into_data()), Some(token));
        }
    }
}
