//! How long the session lives, told to all and written down now and then.
//!
//! Invariant: while a run or a hold is there the lease has no deadline.

use tokio::time::Instant;

use crate::session::lease;
use crate::session::link::LinkFault;
use crate::session::state::Cause;

use super::{Actor, END_GRACE, PERSIST_EVERY, Turn};

impl Actor {
    pub(super) fn on_hold(&mut self, holds: usize) -> Result<(), LinkFault> {
        self.holds = holds;
        self.publish_runs();
        Ok(())
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let deadline = self.view.borrow().lease.deadline;
        let expiry = deadline.map(|at| Instant::now() + at.remaining());
        let end_by = self.runs.next_end();
        [expiry, end_by, self.persist_due, self.files.next_deadline()].into_iter().flatten().min()
    }

    pub(super) fn on_time(&mut self) -> Turn {
        let now = Instant::now();
        self.files.expire();
        if self.persist_due.is_some_and(|due| due <= now) {
            self.persist_lease();
        }
        for id in self.runs.open() {
            let Some(run) = self.runs.unfinished(id) else { continue };
            if run.end_by.is_none_or(|by| by > now) {
                continue;
            }
            if run.feed.as_ref().is_none_or(|feed| feed.is_empty()) {
                return Turn::End(Cause::crashed("init did not end a command in time"));
            }
            // A slow reader holds the command's output up, and with it its end.
            run.end_by = Some(now + END_GRACE);
        }
        self.check_lease()
    }

    pub(super) fn check_lease(&self) -> Turn {
        match self.view.borrow().end() {
            Some(cause) => Turn::End(cause),
            None => Turn::Go,
        }
    }

    /// Publishes the runs, and the lease that follows from them.
    pub(super) fn publish_runs(&mut self) {
        let (queued, running) = (self.runs.queued(), self.runs.has_running());
        let is_held = self.holds > 0 || !self.runs.is_idle();
        let ttl = self.view.borrow().about.ttl_seconds;
        self.view.send_modify(|view| {
            view.queued = queued;
            view.running = running;
            view.lease = if is_held { lease::held(ttl) } else { lease::renewed(ttl) };
        });
        self.persist_soon();
    }

    pub(super) fn renew(&mut self) {
        let ttl = self.view.borrow().about.ttl_seconds;
        self.view.send_if_modified(|view| {
            // While a command holds the lease there is none to renew.
            let renews = view.lease.deadline.is_some();
            if renews {
                view.lease = lease::renewed(ttl);
            }
            renews
        });
        self.persist_soon();
    }

    fn persist_soon(&mut self) {
        if self.persist_due.is_none() {
            self.persist_due = Some(self.persisted_at + PERSIST_EVERY);
        }
    }

    pub(super) fn persist_lease(&mut self) {
        let view = self.view.borrow().clone();
        self.host.db.post_lease(&self.handle.id, view.lease, view.cwd);
        self.persisted_at = Instant::now();
        self.persist_due = None;
        if self.runs.is_idle() {
            self.counters = None;
        }
    }
}
