//! The daemon's log: text for a terminal, else JSON, one line an event.
//!
//! Invariant: a line that can't be written (a full disk) is lost, and nothing else is: no half line, no
//! panic, no wait.

mod file;

use std::io::IsTerminal;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

pub(crate) use file::{Keep, LogFile};

/// What our own targets begin with.
const OURS: &str = "sandkasten";

/// Where the log goes.
#[derive(Debug)]
pub(crate) enum Log {
    Stderr(Colours),
    File(Arc<LogFile>),
}

/// Whether a terminal gets colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colours {
    Yes,
    No,
}

/// The least important events that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Starts the log of this process. A second start changes nothing.
pub(crate) fn start(log: Log, level: Level) {
    let plain = fmt::layer().log_internal_errors(false);
    let layer = match log {
        Log::Stderr(colours) if std::io::stderr().is_terminal() => {
            let ansi = colours == Colours::Yes;
            plain.with_ansi(ansi).with_target(false).with_writer(std::io::stderr).boxed()
        }
        Log::Stderr(_) => plain.json().flatten_event(true).with_writer(std::io::stderr).boxed(),
        Log::File(file) => plain.json().flatten_event(true).with_writer(file).boxed(),
    };
    // What others log is about bytes on the wire; those are nobody's business.
    let others = filter(level).min(LevelFilter::WARN);
    let wanted = Targets::new().with_default(others).with_target(OURS, filter(level));
    // Starting twice happens in tests alone.
    let _started = tracing_subscriber::registry().with(layer.with_filter(wanted)).try_init();
}

fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}
