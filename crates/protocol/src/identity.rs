//! Which file, and which contents of it.

use serde::{Deserialize, Serialize};

/// Which contents a file has: any change of them, or of the file at a path, makes another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    pub ino: u64,
    pub size: u64,
    /// Nanoseconds since 1970-01-01 UTC; they wrap around.
    pub mtime_ns: u64,
    pub ctime_ns: u64,
}

impl Identity {
    /// `mtime` and `ctime` are seconds and nanoseconds.
    #[must_use]
    pub fn new(ino: u64, size: u64, mtime: (i64, u64), ctime: (i64, u64)) -> Self {
        let nanos = |(seconds, nanos): (i64, u64)| {
            seconds.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(nanos)
        };
        Self { ino, size, mtime_ns: nanos(mtime), ctime_ns: nanos(ctime) }
    }
}

/// What must be at a path for an operation to be done there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    #[default]
    Anything,
    Nothing,
    Something,
    OneOf(Vec<Identity>),
}

impl Expect {
    /// Whether `found` is what must be there.
    #[must_use]
    pub fn allows(&self, found: Option<Identity>) -> bool {
        match self {
            Self::Anything => true,
            Self::Nothing => found.is_none(),
            Self::Something => found.is_some(),
            Self::OneOf(identities) => found.is_some_and(|found| identities.contains(&found)),
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_identity_differs_where_anything_does() {
        let one = Identity::new(1, 2, (3, 4), (5, 6));
        assert_eq!(one.mtime_ns, 3_000_000_004);
        let others = [
            Identity::new(9, 2, (3, 4), (5, 6)),
            Identity::new(1, 9, (3, 4), (5, 6)),
            Identity::new(1, 2, (3, 9), (5, 6)),
            Identity::new(1, 2, (3, 4), (9, 6)),
        ];
        assert!(!others.contains(&one));
        // Times that can't be are no panic.
        let _far = Identity::new(1, 2, (i64::MIN, 0), (i64::MAX, 999_999_999));
    }

    #[test]
    fn what_is_expected() {
        let (one, other) =
            (Identity::new(1, 2, (3, 4), (5, 6)), Identity::new(2, 2, (3, 4), (5, 6)));
        assert!(Expect::Anything.allows(None) && Expect::Anything.allows(Some(one)));
        assert!(Expect::Nothing.allows(None) && !Expect::Nothing.allows(Some(one)));
        assert!(!Expect::Something.allows(None) && Expect::Something.allows(Some(one)));
        let listed = Expect::OneOf(vec![one]);
        assert!(listed.allows(Some(one)) && !listed.allows(Some(other)) && !listed.allows(None));
        assert!(!Expect::OneOf(Vec::new()).allows(Some(one)));
    }
}
