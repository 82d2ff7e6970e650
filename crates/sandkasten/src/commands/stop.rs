//! `sandkasten daemon stop`, and `sandkasten stop`, which is the same. Invariant: only the process that holds the data directory's lock is signalled, by
//! a pidfd.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use sandkasten_types::session::Session;
use serde_json::{Value, json};

use super::daemon::Private;
use super::flags;
use crate::client::Client;
use crate::context::Context;
use crate::failure::{Failure, Result, Tried};
use crate::instance::{self, Claim, Running};
use crate::reach;

/// Stop the daemon of the data directory and wait until it is gone.
///
/// `sandkasten daemon stop` and `sandkasten stop` are one command. Its sessions live on, and the next daemon finds them, unless --delete-sessions is given. No
/// daemon is no error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long to wait for its end: 500ms, 30s, 5m; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = flags::time, default_value = "60s")]
    timeout: Duration,
    /// Delete all sessions first, also those that live on without a daemon
    #[arg(long)]
    delete_sessions: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    reach::refuse_url("daemon stop", context)?;
    reach::need_root("daemon stop", context)?;
    let loaded = context.load()?;
    if args.delete_sessions {
        return stop_and_delete(args, context);
    }
    let Some(running) = instance::find(&loaded.settings.data_dir)? else {
        let value = json!({"stopped": false, "pid": null});
        context.output.result(&value, || reach::none_runs(&loaded));
        return Ok(0);
    };
    let pid = running.pid.as_raw_nonzero();
    stop(&running, args.timeout)?;
    let value = json!({"stopped": true, "pid": pid});
    context.output.result(&value, || format!("stopped the daemon (pid {pid})"));
    Ok(0)
}

/// Only a daemon can end sessions, so one is started where none runs and there may be sessions.
fn stop_and_delete(args: &Args, context: &Context) -> Result<u8> {
    let settings = context.load()?.settings;
    let find = || instance::find(&settings.data_dir);
    let mut deleted = 0;
    let has_state = settings.data_dir.join("sessions").exists();
    if find()?.is_none() && has_state {
        Private::start(context)?;
    }
    let running = find()?;
    if let Some(running) = &running {
        deleted = delete_sessions(context)?;
        stop(running, args.timeout)?;
        empty_trash(&settings.data_dir)?;
    }
    let value = json!({"stopped": running.is_some(), "deleted_sessions": deleted});
    context
        .output
        .result(&value, || format!("no daemon runs any more; {deleted} sessions deleted"));
    Ok(0)
}

/// Deletes all sessions, and says how many there were.
fn delete_sessions(context: &Context) -> Result<usize> {
    let mut client = Client::of_data_dir(context)?;
    let sessions: Vec<Session> = client.list("/v1/sessions")?;
    for session in &sessions {
        client.call::<Value>("DELETE", &format!("/v1/sessions/{}", session.id), None)?;
    }
    Ok(sessions.len())
}

/// A daemon that stops does not wait for its trash, and leaves it to the next one; here there may be none.
fn empty_trash(data_dir: &Path) -> Result<()> {
    let _claim = Claim::take(data_dir)?;
    sandkasten_engine::empty_trash_of(data_dir)
        .tried(|| data_dir.join("trash").display().to_string())
}

/// Asks the daemon to stop and waits for its end.
pub(super) fn stop(running: &Running, patience: Duration) -> Result<()> {
    let pid = running.pid.as_raw_nonzero();
    let sent = rustix::process::pidfd_send_signal(&running.pidfd, Signal::TERM);
    sent.tried(|| format!("daemon with pid {pid}"))?;
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).tried(|| "timeout".to_owned())?;
        // A pidfd is readable once its process has ended.
        match poll(&mut [PollFd::new(&running.pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(Failure::new(format!("the daemon with pid {pid} does not stop"))),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(why) => return Err(Failure::because(format!("daemon with pid {pid}"), &why)),
        }
    }
}
