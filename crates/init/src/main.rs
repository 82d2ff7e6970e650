//! PID 1 of a session: reaps, runs the persistent shell, executes commands, opens files.
//!
//! ```text
//!   engine <── control socket ──> link ──> session ──┬──> exec, kill, output, status, line
//!                                                    ├──> shell ──> supervisor ──> spawn
//!                                                    └──> files ──> worker
//! ```
//!
//! init shares the box with hostile code. What protects it: ids that nobody else has, an undumpable
//! process from a sealed memfd, a control socket without a name, an effective capability set that is
//! empty but for the moment something is needed, and one loop that never waits for the payload: every
//! descriptor is non-blocking, every path of the payload's is opened with a user's rights.
//!
//! It must not know: HTTP, sessions other than its own, the host. It trusts the engine's frames only
//! so far as they decode. `unsafe` stands in `spawn` alone.

mod accounts;
mod clock;
mod cwd;
mod dump;
mod environment;
mod exec;
mod files;
mod flow;
mod input;
mod kill;
mod line;
mod link;
mod log;
mod lookup;
mod names;
mod outcome;
mod output;
mod poll;
mod processes;
mod program;
mod queue;
mod records;
mod rights;
mod root;
mod runs;
mod runtime;
mod script;
mod session;
mod shell;
mod spawn;
mod spool;
mod start;
mod state;
mod status;
mod supervised;
mod supervisor;
mod worker;
mod world;

use std::process::ExitCode;

/// What the engine learns from a start that failed: the exit code names the step.
fn main() -> ExitCode {
    match start::session() {
        Ok(session) => match session.run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_poller_failed) => ExitCode::from(90),
        },
        Err(step) => ExitCode::from(step.exit_code()),
    }
}
