//! What is said of a run that has ended: pure, from what init says and what the session's group
//! counted.

use sandkasten_protocol::{End, How};
use sandkasten_types::exec::{ExecEnd, ExitReason, OomDetails, OomScope, ShellRestarted};
use sandkasten_types::process::ProcessEnd;

use super::note::{Counted, ExecNote, Note, Verdict};
use super::user::unknown_user;
use crate::error::Error;

/// How a run ended, all that is known of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) end: End,
    pub(crate) verdict: Verdict,
    /// Of the session, in bytes.
    pub(crate) memory_limit: u64,
}

impl Over {
    /// Milliseconds since 1970-01-01 UTC.
    pub(crate) fn finished_ms(&self) -> i64 {
        let duration = i64::try_from(self.end.duration_ms).unwrap_or(i64::MAX);
        self.verdict.started_ms.saturating_add(duration)
    }

    /// For who began a command, or came to it later.
    pub(crate) fn exec(&self, note: &Note, exec: &ExecNote) -> Result<ExecEnd, Error> {
        self.check(note)?;
        let Self { end, verdict, .. } = self;
        Ok(ExecEnd {
            exec_id: exec.id.clone(),
            exit_code: end.exit_code,
            cwd: text(&end.cwd),
            duration_ms: end.duration_ms,
            timed_out: end.how == How::Timeout,
            exit_reason: verdict.reason,
            signal: self.signal(),
            shell_restarted: end.shell_restarted,
            state_lost: end.state_lost,
            // A stream that keeps up has it all; an answer says itself what it left out.
            truncated: false,
            output_bytes: end.output_bytes,
            oom_kills: verdict.rise.oom_kills,
            fork_fails: verdict.rise.fork_fails,
            memory_limit: self.memory_limit(),
            details: self.details(),
        })
    }

    pub(crate) fn process(&self, note: &Note) -> Result<ProcessEnd, Error> {
        self.check(note)?;
        let Self { end, verdict, .. } = self;
        Ok(ProcessEnd {
            exit_code: end.exit_code,
            signal: self.signal(),
            exit_reason: verdict.reason,
            duration_ms: end.duration_ms,
            truncated: end.dropped_bytes > 0,
            output_bytes: end.output_bytes,
            oom_kills: verdict.rise.oom_kills,
            fork_fails: verdict.rise.fork_fails,
            memory_limit: self.memory_limit(),
            details: self.details(),
        })
    }

    pub(crate) fn restart(&self, note: &Note) -> Result<ShellRestarted, Error> {
        self.check(note)?;
        if self.end.how == How::Cancelled {
            return Err(Error::Conflict("the restart was cancelled".into()));
        }
        let End { cwd, duration_ms, state_lost, .. } = &self.end;
        let (duration_ms, state_lost) = (*duration_ms, *state_lost);
        Ok(ShellRestarted { ok: true, cwd: text(cwd), duration_ms, state_lost })
    }

    /// Why there is no result, if there is none.
    fn check(&self, note: &Note) -> Result<(), Error> {
        match self.end.how {
            How::Exited | How::ShellExited | How::Signaled(_) | How::Timeout | How::Cancelled => {
                Ok(())
            }
            How::BadCwd => {
                let text = match note.cwd.as_deref() {
                    Some(cwd) => format!("`cwd` can't be entered: `{}`", cwd.escape_debug()),
                    None => "the working directory can't be entered by `user`".into(),
                };
                Err(Error::InvalidRequest(text))
            }
            How::ReadOnlyEnv => Err(Error::InvalidRequest(
                "`env` names a variable that is read-only in the shell".into(),
            )),
            How::UnknownUser => Err(unknown_user(note.user.as_deref().unwrap_or_default())),
            How::NoShell => Err(Error::Overloaded(
                "no shell could be started in the session; it may be out of memory or processes"
                    .into(),
            )),
            How::NotStarted(errno) => Err(not_started(errno)),
            How::Broken => Err(Error::Internal(
                "the shell gave no status: what the command did is not known".into(),
            )),
        }
    }

    fn signal(&self) -> Option<i32> {
        if let How::Signaled(signal) = self.end.how { Some(signal) } else { None }
    }

    fn memory_limit(&self) -> Option<u64> {
        (self.verdict.reason == ExitReason::Oom).then_some(self.memory_limit)
    }

    fn details(&self) -> Option<OomDetails> {
        let by_host = self.verdict.rise.host_oom_kills > 0;
        (self.verdict.reason == ExitReason::Oom && by_host)
            .then_some(OomDetails { scope: OomScope::Host })
    }
}

fn not_started(errno: i32) -> Error {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(errno) {
        Errno::TOOBIG => {
            Error::InvalidRequest("the arguments and the environment are too long".into())
        }
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => Error::Overloaded(
            "the program could not be started: the session is out of memory or processes".into(),
        ),
        errno => Error::InvalidRequest(format!("the program could not be started: {errno}")),
    }
}

/// What is settled of a run that ended, and stays so.
pub(crate) fn judge(end: &End, rise: Counted, started_ms: i64) -> Verdict {
    Verdict { reason: exit_reason(end, rise), rise, started_ms }
}

/// The rule of the API: what the group counted explains an end only where it fits.
fn exit_reason(end: &End, rise: Counted) -> ExitReason {
    const SIGKILL: i32 = 9;
    let killed = end.exit_code == 128 + SIGKILL || end.how == How::Signaled(SIGKILL);
    match end.how {
        How::Timeout => ExitReason::Timeout,
        How::Cancelled => ExitReason::Cancelled,
        How::Broken => ExitReason::Lost,
        _ if rise.oom_kills > 0 && killed => ExitReason::Oom,
        How::Signaled(_) => ExitReason::Signaled,
        _ if rise.fork_fails > 0 && end.exit_code != 0 => ExitReason::Pids,
        How::ShellExited => ExitReason::ShellExited,
        How::Exited
        | How::BadCwd
        | How::ReadOnlyEnv
        | How::NoShell
        | How::UnknownUser
        | How::NotStarted(_) => ExitReason::Exited,
    }
}

/// For a session whose image has none.
pub(super) fn no_shell() -> Error {
    let text = "the image has no shell; programs run in it as processes alone, beside the shell";
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
            let rise = Counted { oom_kills, fork_fails, ..Counted::default() };
            let found = exit_reason(&end(how, code), rise);
            assert_eq!(found, want, "{how:?} {code} {oom_kills} {fork_fails}");
        }
    }
}
