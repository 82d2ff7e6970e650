//! Who acts in a workspace without a session, and with what rights.
//!
//! Invariant: the kernel judges each step towards a file, the directories above it included, as it does for a
//! process of that user in a box. No mode is read to decide anything.

use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySets, capabilities, set_capabilities};
use sandkasten_protocol::id;

/// Who a call without a session acts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The user `sandbox`.
    Sandbox,
    /// The box's root: it may do anything in the workspace.
    Root,
}

impl Who {
    /// uid and gid by the box's own ids.
    pub(super) fn ids(self) -> (u32, u32) {
        match self {
            Self::Sandbox => (id::SANDBOX, id::SANDBOX),
            Self::Root => (id::ROOT, id::ROOT),
        }
    }

    /// Runs `act` with the file rights of that user. They are this thread's alone.
    ///
    /// # Errors
    /// The thread can't have them; then nothing was done.
    pub(crate) fn act<T>(self, act: impl FnOnce() -> T) -> rustix::io::Result<T> {
        // The daemon is root, as the box's root is in a workspace.
        let _back = match self {
            Self::Sandbox => Some(Switched::to(self.ids())?),
            Self::Root => None,
        };
        Ok(act())
    }
}

/// A thread with the ids of another user, until this is dropped.
struct Switched {
    before: CapabilitySets,
}

impl Switched {
    /// Real and saved ids stay root's, so that no process of a user with this number on the host may signal
    /// or trace the daemon. With the effective id the kernel takes the capabilities.
    fn to((uid, gid): (u32, u32)) -> rustix::io::Result<Self> {
        let switched = Self { before: capabilities(None)? };
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::from_raw(gid), Gid::ROOT)?;
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::from_raw(uid), Uid::ROOT)?;
        Ok(switched)
    }

    fn back(&self) -> rustix::io::Result<()> {
        rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
        rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        // The kernel gives all that are permitted; the daemon goes without some of them.
        set_capabilities(None, self.before)
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        // Other work of the daemon's would go on with a user's ids, or with rights that it has given up.
        if self.back().is_err() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_gets_its_rights_back() {
        let ids = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let before = (ids(), capabilities(None).unwrap());
        let acting = Who::Sandbox.act(|| (ids(), capabilities(None).unwrap().effective)).unwrap();
        assert_eq!((acting.0, acting.1.is_empty()), ((1000, 1000), true));
        assert_eq!((ids(), capabilities(None).unwrap()), before);
        let panicked = std::panic::catch_unwind(|| Who::Sandbox.act(|| panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!((ids(), capabilities(None).unwrap()), before);
    }
}
