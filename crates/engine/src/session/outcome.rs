//! What is said of a command that has ended: pure, from what init says and what the session's group
//! counted.

use sandkasten_jail::cgroup::Events;
use sandkasten_protocol::{End, How};
use sandkasten_types::exec::{ExecEnd, ExitReason, OomDetails, OomScope};

use super::job::Job;
use super::pipe::Outcome;
use crate::error::Error;

/// What the group counted while a command ran.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rise {
    oom_kills: u64,
    fork_fails: u64,
    host_oom_kills: u64,
}

impl Rise {
    pub(super) fn between(before: Events, after: Events) -> Self {
        Self {
            oom_kills: after.oom_kills.saturating_sub(before.oom_kills),
            fork_fails: after.fork_fails.saturating_sub(before.fork_fails),
            host_oom_kills: after.host_oom_kills.saturating_sub(before.host_oom_kills),
        }
    }
}

/// What its caller is told.
pub(super) fn of(job: &Job, end: &End, rise: Rise, memory_limit: u64) -> Outcome {
    match end.how {
        How::BadCwd => {
            let cwd = job.cwd.as_deref().unwrap_or_default().escape_debug();
            Outcome::Failed(Error::InvalidRequest(format!("`cwd` can't be entered: `{cwd}`")))
        }
        How::ReadOnlyEnv => Outcome::Failed(Error::InvalidRequest(
            "`env` names a variable that is read-only in the shell".into(),
        )),
        How::NoShell => Outcome::Failed(Error::Overloaded(
            "no shell could be started in the session; it may be out of memory or processes".into(),
        )),
        How::UnknownUser | How::NotStarted(_) => {
            Outcome::Failed(Error::Internal("a command that could not be started".into()))
        }
        How::Broken => Outcome::Failed(Error::Internal(
            "the shell gave no status: what the command did is not known".into(),
        )),
        How::Exited | How::ShellExited | How::Signaled(_) | How::Timeout | How::Cancelled => {
            Outcome::Done(ended(job, end, rise, memory_limit))
        }
    }
}

fn ended(job: &Job, end: &End, rise: Rise, memory_limit: u64) -> ExecEnd {
    let exit_reason = exit_reason(end, rise);
    let oom = exit_reason == ExitReason::Oom;
    ExecEnd {
        exec_id: job.id.clone(),
        exit_code: end.exit_code,
        cwd: text(&end.cwd),
        duration_ms: end.duration_ms,
        timed_out: end.how == How::Timeout,
        exit_reason,
        signal: if let How::Signaled(signal) = end.how { Some(signal) } else { None },
        shell_restarted: end.shell_restarted,
        state_lost: end.state_lost,
        truncated: end.dropped_bytes > 0,
        output_bytes: end.output_bytes,
        oom_kills: rise.oom_kills,
        fork_fails: rise.fork_fails,
        memory_limit: oom.then_some(memory_limit),
        details: (oom && rise.host_oom_kills > 0).then_some(OomDetails { scope: OomScope::Host }),
    }
}

/// The rule of the API: what the group counted explains an end only where it fits.
fn exit_reason(end: &End, rise: Rise) -> ExitReason {
    const SIGKILL: i32 = 9;
    let killed = end.exit_code == 128 + SIGKILL || end.how == How::Signaled(SIGKILL);
    match end.how {
        How::Timeout => ExitReason::Timeout,
        How::Cancelled => ExitReason::Cancelled,
        _ if rise.oom_kills > 0 && killed => ExitReason::Oom,
        How::Signaled(_) => ExitReason::Signaled,
        _ if rise.fork_fails > 0 && end.exit_code != 0 => ExitReason::Pids,
        How::ShellExited => ExitReason::ShellExited,
        How::Exited
        | How::BadCwd
        | How::ReadOnlyEnv
        | How::Broken
        | How::NoShell
        | How::UnknownUser
        | How::NotStarted(_) => ExitReason::Exited,
    }
}

/// For a session whose image has none.
pub(super) fn no_shell() -> Error {
    let text = "the image has no shell; start programs with POST …/processes";
    Error::InvalidRequest(text.into())
}

/// A path of a session, for people: it need not be UTF-8.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod test {
    use super::*;

    fn end(how: How, exit_code: i32) -> End {
        End {
            how,
            exit_code,
            cwd: b"/".to_vec(),
            duration_ms: 1,
            shell_restarted: false,
            state_lost: false,
            output_bytes: 0,
            dropped_bytes: 0,
            seq: 2,
        }
    }

    #[test]
    fn counters_explain_only_ends_that_fit() {
        for (how, code, oom_kills, fork_fails, want) in [
            (How::Exited, 0, 0, 0, ExitReason::Exited),
            (How::Exited, 137, 1, 0, ExitReason::Oom),
            // A child was killed and the command went on.
            (How::Exited, 0, 1, 0, ExitReason::Exited),
            (How::Exited, 137, 0, 0, ExitReason::Exited),
            (How::Signaled(9), 137, 1, 0, ExitReason::Oom),
            (How::Signaled(15), 143, 0, 0, ExitReason::Signaled),
            (How::Exited, 254, 0, 3, ExitReason::Pids),
            (How::Exited, 0, 0, 3, ExitReason::Exited),
            (How::ShellExited, 3, 0, 0, ExitReason::ShellExited),
            (How::Timeout, 124, 1, 1, ExitReason::Timeout),
            (How::Cancelled, 130, 0, 1, ExitReason::Cancelled),
        ] {
            let found =
                exit_reason(&end(how, code), Rise { oom_kills, fork_fails, ..Rise::default() });
            assert_eq!(found, want, "{how:?} {code} {oom_kills} {fork_fails}");
        }
    }
}
