//! What init may do at a moment: capabilities and file system ids.
//!
//! Invariant: between two calls of this module the effective set is empty and the file system ids
//! are init's. Where that can't be restored init aborts, since going on with a user's ids or with
//! rights that nobody asked for is worse than the end of the session.

use rustix::fs::Mode;
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};
use sandkasten_protocol::id;

use crate::spawn;

/// The rights that init can raise.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rights {
    permitted: CapabilitySet,
}

/// Ids that something is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Ids {
    pub(crate) const ROOT: Self = Self { uid: id::ROOT, gid: id::ROOT };
}

impl Rights {
    /// Cleans what jail has handed over: nothing ambient, nothing inheritable, nothing effective,
    /// ids that no process of the payload can match, and no core dump.
    pub(crate) fn take() -> std::io::Result<Self> {
        let permitted = rustix::thread::capabilities(None)?.permitted;
        rustix::thread::clear_ambient_capability_set()?;
        let rights = Self { permitted };
        let ids_changed = rights.with(CapabilitySet::SETUID | CapabilitySet::SETGID, || {
            rustix::thread::set_thread_groups(&[])?;
            // On kernels below 6.16 exec under no_new_privs makes both ids equal; here they are
            // set apart again.
            set_ids(id::INIT_REAL, id::INIT)
        });
        ids_changed?;
        rustix::process::umask(Mode::empty());
        undumpable()?;
        Ok(rights)
    }

    pub(crate) fn permitted(self) -> CapabilitySet {
        self.permitted
    }

    /// Runs `act` with these capabilities (those of them that init has).
    pub(crate) fn with<T>(self, capabilities: CapabilitySet, act: impl FnOnce() -> T) -> T {
        self.effective(capabilities);
        let done = act();
        self.effective(CapabilitySet::empty());
        done
    }

    /// Runs `act` with the file rights of a user: its ids, no groups, and capabilities only for
    /// root. Everything in it must be quick: the loop waits.
    pub(crate) fn act_as<T>(self, user: Ids, act: impl FnOnce() -> T) -> T {
        self.switch(user);
        self.effective(self.of(user));
        let done = act();
        self.switch(Ids { uid: id::INIT, gid: id::INIT });
        self.effective(CapabilitySet::empty());
        // The switch made the process as dumpable as fs.suid_dumpable says.
        if undumpable().is_err() {
            std::process::abort();
        }
        done
    }

    /// What a process of this user may have.
    pub(crate) fn of(self, user: Ids) -> CapabilitySet {
        if user.uid == id::ROOT { self.permitted } else { CapabilitySet::empty() }
    }

    fn switch(self, ids: Ids) {
        self.effective(CapabilitySet::SETUID | CapabilitySet::SETGID);
        spawn::set_fs_gid(ids.gid);
        spawn::set_fs_uid(ids.uid);
        // An id that can't be is refused and changes nothing: this reads what holds now.
        let holds = Ids { uid: spawn::set_fs_uid(u32::MAX), gid: spawn::set_fs_gid(u32::MAX) };
        if holds != ids {
            std::process::abort();
        }
    }

    fn effective(self, capabilities: CapabilitySet) {
        let sets = CapabilitySets {
            effective: self.permitted & capabilities,
            permitted: self.permitted,
            inheritable: CapabilitySet::empty(),
        };
        if rustix::thread::set_capabilities(None, sets).is_err() {
            std::process::abort();
        }
    }
}

/// Real, effective and saved ids as jail gives them.
fn set_ids(real: u32, effective: u32) -> rustix::io::Result<()> {
    use rustix::process::{Gid, Uid};
    let (real_gid, gid) = (Gid::from_raw(real), Gid::from_raw(effective));
    rustix::thread::set_thread_res_gid(real_gid, gid, gid)?;
    let (real_uid, uid) = (Uid::from_raw(real), Uid::from_raw(effective));
    rustix::thread::set_thread_res_uid(real_uid, uid, uid)
}

/// Nobody of the box attaches to this process, reads its memory or its descriptors.
pub(crate) fn undumpable() -> rustix::io::Result<()> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
}
