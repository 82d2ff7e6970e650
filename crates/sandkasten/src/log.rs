//! The daemon's log: text for a terminal, else JSON, one line an event.

use std::fs::File;
use std::io::IsTerminal;
use std::sync::Arc;

use tracing::level_filters::LevelFilter;

/// Where the log goes.
#[derive(Debug)]
pub(crate) enum Log {
    Stderr,
    File(File),
}

/// Starts the log of this process. A second start changes nothing.
pub(crate) fn start(log: Log) {
    let plain = tracing_subscriber::fmt().with_max_level(LevelFilter::INFO);
    // Starting twice happens in tests alone.
    let _started = match log {
        Log::Stderr if std::io::stderr().is_terminal() => {
            plain.with_target(false).with_writer(std::io::stderr).try_init()
        }
        Log::Stderr => plain.json().flatten_event(true).with_writer(std::io::stderr).try_init(),
        Log::File(file) => plain.json().flatten_event(true).with_writer(Arc::new(file)).try_init(),
    };
}
