//! Ctrl-C, SIGTERM and SIGHUP while an image is made: it is given up, and what was begun is removed.
//!
//! Watched by a thread of its own, since the making blocks for seconds here and there: it sets the
//! [`Cancel`] that such work looks at, and makes readable what a read of the archive waits on.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use sandkasten_engine::image::{Cancel, ImageError};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::failure::{Failure, Result, Tried};

/// The signals that ask to end, and the exit code after each: 128 and its number.
const SIGNALS: [(SignalKind, u8); 3] =
    [(SignalKind::interrupt(), 130), (SignalKind::terminate(), 143), (SignalKind::hangup(), 129)];

/// The end that somebody may ask for.
#[derive(Debug)]
pub(super) struct Ending {
    runtime: Runtime,
    cancel: Cancel,
    /// The exit code, once it was asked for.
    asked: watch::Receiver<Option<u8>>,
    /// Readable from then on.
    wake: Arc<OwnedFd>,
}

impl Ending {
    /// Watches from here on.
    pub(super) fn watch() -> Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build();
        let runtime = runtime.tried(|| "runtime".to_owned())?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC).tried(|| "eventfd".to_owned())?;
        let ending = Self {
            runtime,
            cancel: Cancel::default(),
            asked: watch::channel(None).1,
            wake: Arc::new(wake),
        };
        ending.follow()
    }

    fn follow(mut self) -> Result<Self> {
        let (tell, asked) = watch::channel(None);
        self.asked = asked;
        let tell = Arc::new(tell);
        for (kind, code) in SIGNALS {
            let _inside = self.runtime.enter();
            let mut signal = signal(kind).tried(|| "signals".to_owned())?;
            let (tell, cancel, wake) =
                (Arc::clone(&tell), self.cancel.clone(), Arc::clone(&self.wake));
            self.runtime.spawn(async move {
                // Once is enough: nothing of the clean-up is cut short.
                if signal.recv().await.is_some() {
                    cancel.cancel();
                    tell.send_if_modified(|asked| asked.replace(code).is_none());
                    rustix::io::write(&*wake, &1_u64.to_ne_bytes()).ok();
                }
            });
        }
        Ok(self)
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Waits until it is asked for.
    pub(super) async fn asked(&self) {
        let mut asked = self.asked.clone();
        if asked.wait_for(Option::is_some).await.is_err() {
            // Nobody watches any more, so nobody will ask.
            std::future::pending::<()>().await;
        }
    }

    /// What came of the work, whose `None` means that it was dropped. An image that is whole counts,
    /// whenever it was asked to end.
    pub(super) fn judge<T>(&self, made: Option<Result<T, ImageError>>) -> Result<T> {
        let code = *self.asked.borrow();
        match (made, code) {
            (Some(Ok(made)), _) => Ok(made),
            (_, Some(code)) => Err(Failure::new("interrupted").exit_code(code)),
            (Some(Err(why)), None) => Err(super::failure(why)),
            (None, None) => Err(Failure::new("interrupted")),
        }
    }

    /// The archive, whose reads fail once it is asked to end, also those that wait for bytes.
    pub(super) fn reader(&self, archive: File) -> impl Read + use<> {
        Archive { file: archive, wake: Arc::clone(&self.wake) }
    }
}

struct Archive {
    file: File,
    wake: Arc<OwnedFd>,
}

impl Read for Archive {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let [file, wake] = [self.file.as_fd(), self.wake.as_fd()];
        let mut fds = [file, wake].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        let [_, wake] = fds;
        if !wake.revents().is_empty() {
            return Err(io::Error::other("given up"));
        }
        self.file.read(bytes)
    }
}
