//! Signals that end a command, and the end of the terminal: cuts the connection that is waited on.
//!
//! A cut connection is what the daemon takes for "cancel", so an interrupted command ends at once
//! in the box too.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::{Failure, Result, Tried};
use crate::terminal;

/// Signals that end a command in good order.
const SIGNALS: [SignalKind; 4] =
    [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];

/// Watches the signals of this process from here on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The signal that came.
    came: Option<u8>,
    /// The connection that the command waits on.
    waiting_on: Option<TcpStream>,
}

impl Interrupt {
    pub(crate) fn watch() -> Result<Self> {
        let interrupt = Self::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.tried(|| "runtime".to_owned())?;
        let (said, signals) = mpsc::unbounded_channel();
        {
            let _inside = runtime.enter();
            for kind in SIGNALS {
                let mut each = signal(kind).tried(|| "signals".to_owned())?;
                let said = said.clone();
                runtime.spawn(async move {
                    while each.recv().await.is_some() {
                        said.send(kind).ok();
                    }
                });
            }
        }
        let state = interrupt.clone();
        std::thread::spawn(move || runtime.block_on(state.follow(signals)));
        Ok(interrupt)
    }

    /// From now on a signal cuts `connection`. False: one came already.
    pub(crate) fn cuts(&self, connection: TcpStream) -> bool {
        let mut state = self.lock();
        state.waiting_on = Some(connection);
        state.came.is_none()
    }

    /// Lets go of the connection: what follows is clean-up, and is not cut.
    pub(crate) fn release(&self) {
        self.lock().waiting_on = None;
    }

    /// What is to be told where a signal came: its exit code is 128 and the signal's number.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let signal = self.lock().came?;
        let message = "interrupted; the command is cancelled";
        Some(Failure::new(message).exit_code(128_u8.saturating_add(signal)))
    }

    async fn follow(self, mut signals: mpsc::UnboundedReceiver<SignalKind>) {
        while let Some(kind) = signals.recv().await {
            self.cut(u8::try_from(kind.as_raw_value()).unwrap_or(0));
        }
    }

    fn cut(&self, signal: u8) {
        let mut state = self.lock();
        if state.came.is_some() {
            end_now(signal);
        }
        state.came = Some(signal);
        if let Some(connection) = state.waiting_on.take() {
            // It may be closed already; then nobody waits on it.
            connection.shutdown(Shutdown::Both).ok();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asked twice, it ends without cleaning up; the session's short lease does that.
#[expect(clippy::exit, reason = "the main thread may hang in a call that nothing ends")]
fn end_now(signal: u8) -> ! {
    terminal::put_back();
    std::process::exit(128 + i32::from(signal))
}
