//! Ctrl-C, and the end of the terminal or of the caller: cuts the connection that is waited on.
//!
//! A cut connection is what the daemon takes for "cancel", so an interrupted command ends at once
//! in the box too.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{INTERRUPTED, Result, Tried};

/// Watches the signals of this process from here on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    came: bool,
    /// The connection that the command waits on.
    waiting_on: Option<TcpStream>,
}

impl Interrupt {
    pub(crate) fn watch() -> Result<Self> {
        let interrupt = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.tried(|| "runtime".to_owned())?;
        let signals = {
            let _inside = runtime.enter();
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal)
        };
        let [Ok(int), Ok(term), Ok(hup)] = signals else { return Ok(interrupt) };
        let state = interrupt.clone();
        std::thread::spawn(move || runtime.block_on(state.follow([int, term, hup])));
        Ok(interrupt)
    }

    /// From now on a signal cuts `connection`. False: one came already.
    pub(crate) fn cuts(&self, connection: TcpStream) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting_on = Some(connection);
        !state.came
    }

    /// Lets go of the connection: what follows is clean-up, and is not cut.
    pub(crate) fn release(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).waiting_on = None;
    }

    pub(crate) fn came(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).came
    }

    async fn follow(self, signals: [Signal; 3]) {
        let [mut int, mut term, mut hup] = signals;
        loop {
            tokio::select! {
                _ = int.recv() => {}
                _ = term.recv() => {}
                _ = hup.recv() => {}
            }
            self.cut();
        }
    }

    fn cut(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.came {
            end_now();
        }
        state.came = true;
        if let Some(connection) = state.waiting_on.take() {
            // It may be closed already; then nobody waits on it.
            connection.shutdown(Shutdown::Both).ok();
        }
    }
}

/// Asked twice, it ends without cleaning up; the session's short lease does that.
#[expect(clippy::exit, reason = "the main thread may hang in a call that nothing ends")]
fn end_now() -> ! {
    std::process::exit(i32::from(INTERRUPTED))
}
