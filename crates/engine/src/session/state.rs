//! The life of a session, as one pure function.
//!
//! ```text
//!   Creating ──Ready──> Running ──End──> Stopping ──Gone──> Over
//!       └────────────────End───────────────^
//! ```
//!
//! Invariant: the first cause of an end stays, whatever ends it again; what is over stays over.

use sandkasten_types::session::Status;

/// What ended a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cause {
    /// Destroyed, expired, crashed or lost.
    pub(crate) status: Status,
    /// In a word or a few, for clients.
    pub(crate) reason: String,
}

impl Cause {
    fn new(status: Status, reason: &str) -> Self {
        Self { status, reason: reason.into() }
    }

    pub(crate) fn deleted() -> Self {
        Self::new(Status::Destroyed, "deleted")
    }

    pub(crate) fn expired() -> Self {
        Self::new(Status::Expired, "ttl")
    }

    pub(crate) fn crashed(reason: &str) -> Self {
        Self::new(Status::Crashed, reason)
    }

    pub(crate) fn lost(reason: &str) -> Self {
        Self::new(Status::Lost, reason)
    }
}

/// Where a session stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    Creating,
    Running,
    /// Its processes are being ended and its things removed.
    Stopping(Cause),
    /// Nothing of it is left but its row.
    Over(Cause),
}

impl State {
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Creating => Status::Creating,
            Self::Running => Status::Running,
            Self::Stopping(_) => Status::Stopping,
            Self::Over(cause) => cause.status,
        }
    }

    pub(crate) fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Creating | Self::Running => None,
            Self::Stopping(cause) | Self::Over(cause) => Some(cause),
        }
    }
}

/// What happens to a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// init answered; an exec would work.
    Ready,
    /// Somebody or something ends it.
    End(Cause),
    /// Its processes have ended and its things are removed.
    Gone,
}

/// What has to be done because of it, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Write the state down before anything else is done.
    Persist,
    /// Tell everybody who waits for a command or a file.
    RefuseCalls,
    /// Kill its processes and remove its things; then comes [`Event::Gone`].
    Release,
}

impl Event {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::End(_) => "end",
            Self::Gone => "gone",
        }
    }
}

/// An event that can't happen in a state: a fault of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` can't happen to a session that is {}", .event.as_str(), .state.status().as_str())]
pub(crate) struct Refused {
    state: State,
    event: Event,
}

/// The state after an event, and what has to be done.
///
/// # Errors
/// [`Refused`] where the event can't happen.
pub(crate) fn next(state: &State, event: Event) -> Result<(State, &'static [Effect]), Refused> {
    match (state, event) {
        (State::Creating, Event::Ready) => Ok((State::Running, &[Effect::Persist])),
        (State::Creating | State::Running, Event::End(cause)) => {
            Ok((State::Stopping(cause), &[Effect::Persist, Effect::RefuseCalls, Effect::Release]))
        }
        (State::Stopping(_) | State::Over(_), Event::End(_)) => Ok((state.clone(), &[])),
        (State::Stopping(cause), Event::Gone) => {
            Ok((State::Over(cause.clone()), &[Effect::Persist]))
        }
        (State::Running | State::Stopping(_) | State::Over(_), event @ Event::Ready)
        | (State::Creating | State::Running | State::Over(_), event @ Event::Gone) => {
            Err(Refused { state: state.clone(), event })
        }
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let cause = prop_oneof![
            Just(Cause::deleted()),
            Just(Cause::expired()),
            Just(Cause::crashed("oom")),
            Just(Cause::lost("reboot"))
        ];
        let event = prop_oneof![Just(Event::Ready), cause.prop_map(Event::End), Just(Event::Gone)];
        prop::collection::vec(event, 0..20)
    }

    proptest! {
        #[test]
        fn the_first_end_stays_and_things_are_released_once(events in events()) {
            let mut state = State::Creating;
            let (mut first, mut released, mut ready) = (None, 0, 0);
            for event in events {
                let Ok((after, effects)) = next(&state, event.clone()) else {
                    // Refusing changes nothing.
                    continue;
                };
                match event {
                    Event::Ready => ready += 1,
                    Event::End(cause) => first = first.or(Some(cause)),
                    Event::Gone => {}
                }
                released += effects.iter().filter(|effect| **effect == Effect::Release).count();
                // Whatever changes is written down before anything is done about it.
                prop_assert_eq!(effects.first() == Some(&Effect::Persist), after != state);
                // What is over stays over.
                prop_assert!(!state.status().is_over() || after == state);
                state = after;
                prop_assert_eq!(state.cause(), first.as_ref());
            }
            prop_assert!(ready <= 1);
            prop_assert_eq!(released, usize::from(first.is_some()));
        }
    }
}
