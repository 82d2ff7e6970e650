//! Things tried in a process of their own, since they change the process that tries them.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;

use crate::fork::never_return;
use crate::step::StepError;
use crate::sys::{self, Forked};
use crate::wire::{self, Told};

use rustix::process::{WaitId, WaitIdOptions};

/// Runs `attempt` in a child and gives back how it went. The child keeps nothing and leaves nothing.
pub(crate) fn in_child(attempt: impl FnOnce() -> Result<(), StepError>) -> Result<(), StepError> {
    let failed = |step: &str, error: io::Error| StepError {
        step: step.to_owned(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    };
    let (ours, theirs) = wire::pair().map_err(|error| failed("make a socket", error))?;
    let pidfd = match sys::fork().map_err(|error| failed("fork", error))? {
        Forked::Parent { pidfd, .. } => pidfd,
        Forked::Child => never_return(theirs.as_fd(), || succeed(attempt, &theirs)),
    };
    drop(theirs);
    let said = wire::hear(ours.as_fd()).map_err(|error| failed("hear of the attempt", error))?;
    let _reaped = rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
    match said {
        Some((Told::Executes, _)) => Ok(()),
        Some((Told::Failed { step, errno }, _)) => Err(StepError { step, errno }),
        Some((Told::Cloned { .. }, _)) | None => {
            Err(StepError { step: "survive the attempt".to_owned(), errno: libc::ESRCH })
        }
    }
}

fn succeed(
    attempt: impl FnOnce() -> Result<(), StepError>,
    daemon: &impl AsFd,
) -> Result<Infallible, StepError> {
    attempt()?;
    let _told = wire::tell(daemon.as_fd(), &Told::Executes);
    sys::exit_now(0)
}
