//! What a box keeps in, tried from inside by the probe and looked at from the host.
//!
//! Each check is a test named after it; each row of its table is a test of its own. "payload" is
//! the session user without capabilities, "root" the box's own root.

mod alone;
mod isolation;
mod surroundings;

use sandkasten_e2e::{Lab, Session};
use serde_json::json;

/// Who tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Payload,
    Root,
    /// The box's root under the ids that init has: real 65001, effective and saved 65000.
    AsInit,
}

impl Who {
    fn session(self, lab: &Lab) -> Session<'_> {
        let user = if self == Self::Payload { "sandbox" } else { "root" };
        lab.session(&json!({ "image": "base", "user": user }))
    }

    /// Steps that go before the others, and how many they are.
    fn first(self) -> &'static [&'static str] {
        match self {
            Self::Payload | Self::Root => &[],
            Self::AsInit => &["sys setresgid 65001 65000 65000", "sys setresuid 65001 65000 65000"],
        }
    }
}

/// The result of one step.
#[track_caller]
fn try_step(who: Who, step: &str) -> String {
    try_steps(who, &[step]).pop().unwrap_or_default()
}

/// The results of some steps in a fresh session, which has to live on.
#[track_caller]
fn try_steps(who: Who, steps: &[&str]) -> Vec<String> {
    let lab = Lab::shared();
    let session = who.session(&lab);
    let all: Vec<&str> = who.first().iter().chain(steps).copied().collect();
    let results = session.probe(&all);
    let (first, results) = results.split_at(who.first().len());
    assert!(first.iter().all(|line| line.starts_with("ok")), "{who:?} could not be: {first:?}");
    session.alive();
    results.to_vec()
}

/// Tries a step as somebody; its result is one of `want`.
#[track_caller]
fn gives(who: Who, step: &str, want: &[&str]) {
    let result = try_step(who, step);
    assert!(want.contains(&result.as_str()), "{who:?}: {step}: {result}, wanted one of {want:?}");
}

/// A table of steps with the results that they may have: each row is a test, for each of those who
/// try.
macro_rules! rows {
    ($check:ident, $who:tt, { $($name:ident: $step:expr => $want:tt;)+ }) => {
        mod $check {
            use crate::{Who, gives};

            $(mod $name {
                use super::*;
                crate::row!($who, $step, $want);
            })+
        }
    };
}

/// One row, for each of those who try.
macro_rules! row {
    ([$($who:ident),+], $step:expr, $want:tt) => {
        $(crate::row_for!($who, $step, $want);)+
    };
}

macro_rules! row_for {
    (Payload, $step:expr, $want:expr) => {
        #[test]
        fn payload() {
            gives(Who::Payload, $step, &$want);
        }
    };
    (Root, $step:expr, $want:expr) => {
        #[test]
        fn root() {
            gives(Who::Root, $step, &$want);
        }
    };
    (AsInit, $step:expr, $want:expr) => {
        #[test]
        fn as_init() {
            gives(Who::AsInit, $step, &$want);
        }
    };
}

use {row, row_for, rows};
