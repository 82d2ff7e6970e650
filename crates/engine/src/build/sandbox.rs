//! Runs an install script as root in a box without a network, and takes what it changed as a layer.
//!
//! The box is an ordinary session of an engine of our own, on a data directory in the cache folder.
//! It has a thread and a runtime of its own, so that dropping the build waits until it is gone.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::fs::Stat;
use sandkasten_jail::launcher::Launcher;
use sandkasten_jail::path::Beneath;
use sandkasten_types::exec::ExecRequest;
use sandkasten_types::session::{CreateSession, Session};
use tokio::sync::{mpsc, oneshot};

use super::cache::{Cache, Layer};
use super::{EPOCH, Progress, failed};
use crate::config::{Ceilings, Config, Defaults, Durability, ShellPreference, WorkspacePolicy};
use crate::engine::Engine;
use crate::exec::ExecEvent;
use crate::image::tree::Rules;
use crate::image::{Cancel, ImageError};
use sandkasten_jail::seccomp::SeccompProfile;

/// Milliseconds that the script may take.
const TIMEOUT_MS: i64 = 20 * 60 * 1000;
const MEMORY_MB: u64 = 2048;
const PIDS: u64 = 512;

/// What to run and where.
#[derive(Debug)]
pub(super) struct Install {
    pub(super) data_dir: PathBuf,
    pub(super) image: String,
    pub(super) workspace: String,
    pub(super) command: String,
    /// The layer's name in the cache.
    pub(super) key: String,
    pub(super) cache_dir: PathBuf,
    pub(super) run_dir: PathBuf,
    pub(super) cancel: Cancel,
}

/// The thread of a box. Dropped, it asks the box to end and waits for it.
struct Running {
    cancel: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<Layer, ImageError>>>,
}

pub(super) async fn run(
    install: Install,
    launcher: Launcher,
    progress: Progress<'_>,
) -> Result<Layer, ImageError> {
    let (cancel, cancelled) = oneshot::channel();
    let (lines, mut said) = mpsc::unbounded_channel::<String>();
    let thread = std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build()?;
        let layer = runtime.block_on(in_engine(&install, launcher, lines, cancelled));
        // Waits for a trash that is still being emptied: nothing lives in the directory any more.
        drop(runtime);
        remove(&install.data_dir)?;
        layer
    });
    let mut running = Running { cancel: Some(cancel), thread: Some(thread) };
    // Ends when the thread has dropped its sender, which is when it is done.
    while let Some(line) = said.recv().await {
        progress(&line);
    }
    running.join()
}

impl Running {
    fn join(&mut self) -> Result<Layer, ImageError> {
        let Some(thread) = self.thread.take() else { return Err(failed("cancelled")) };
        thread.join().unwrap_or_else(|_panic| Err(failed("the box's thread panicked")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.cancel.take());
        if self.thread.is_some()
            && let Err(err) = self.join()
        {
            tracing::debug!(error = %err, "build_given_up");
        }
    }
}

async fn in_engine(
    install: &Install,
    launcher: Launcher,
    lines: mpsc::UnboundedSender<String>,
    cancelled: oneshot::Receiver<()>,
) -> Result<Layer, ImageError> {
    let engine = Engine::start(config(install), launcher).await.map_err(of_engine)?;
    // Of a build that was killed.
    end_sessions(&engine).await?;
    let layer = tokio::select! {
        layer = in_session(&engine, install, &lines) => layer,
        _ = cancelled => Err(failed("cancelled")),
    };
    let ended = end_sessions(&engine).await;
    engine.stop().await;
    ended?;
    layer
}

async fn in_session(
    engine: &Engine,
    install: &Install,
    lines: &mpsc::UnboundedSender<String>,
) -> Result<Layer, ImageError> {
    let request = CreateSession {
        image: Some(install.image.clone()),
        workspace_id: Some(install.workspace.clone()),
        user: Some("root".into()),
        ..CreateSession::default()
    };
    let session = engine.create_session(request, None).await.map_err(of_engine)?;
    execute(engine, &session, &install.command, lines).await?;
    drop(lines.send("packing the layer".into()));
    let upper = install.data_dir.join("sessions").join(session.id.as_str()).join("upper");
    let upper = Beneath::open(&upper)?;
    let stat: Stat = rustix::fs::fstat(&upper)?;
    // The box's root owns the top.
    let rules = Rules { owner_base: stat.st_uid, mtime_max: EPOCH, without: &[] };
    let cache = Cache::open(&install.cache_dir, install.cancel.clone())?;
    cache.put(&install.key, &upper, &rules)
}

async fn execute(
    engine: &Engine,
    session: &Session,
    command: &str,
    lines: &mpsc::UnboundedSender<String>,
) -> Result<(), ImageError> {
    let request =
        ExecRequest { cmd: command.into(), timeout_ms: Some(TIMEOUT_MS), ..ExecRequest::default() };
    let mut exec = engine.exec(&session.id, request).await.map_err(of_engine)?;
    let mut text = String::new();
    let mut last = String::new();
    while let Some(event) = exec.next().await {
        match event {
            ExecEvent::Chunk(chunk) => text.push_str(&chunk.chunk.unwrap_or_default()),
            // Who keeps up has it all.
            ExecEvent::Gap(_) => {}
            ExecEvent::Done { end, .. } if end.exit_code == 0 => return Ok(()),
            ExecEvent::Done { end, .. } => {
                let code = end.exit_code;
                return Err(failed(format!("the install script ended with {code}:\n{last}{text}")));
            }
            ExecEvent::Failed { error, .. } => return Err(of_engine(error)),
        }
        while let Some((line, rest)) = text.split_once('\n') {
            last = format!("{}{line}\n", tail(&last));
            drop(lines.send(line.to_owned()));
            text = rest.to_owned();
        }
    }
    Err(failed("the install script's end was not told"))
}

/// Enough of what was said last for an error to show.
fn tail(text: &str) -> &str {
    let from = text.len().saturating_sub(2000);
    text.get(from..).or_else(|| text.get(from + 1..)).unwrap_or_default()
}

async fn end_sessions(engine: &Engine) -> Result<(), ImageError> {
    for session in engine.sessions().await.map_err(of_engine)? {
        engine.delete_session(&session.id).await.map_err(of_engine)?;
    }
    Ok(())
}

fn remove(dir: &Path) -> Result<(), ImageError> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(()) };
    Ok(Beneath::open(parent)?.remove_tree(name)?)
}

fn of_engine(err: impl std::fmt::Display) -> ImageError {
    failed(format!("the box: {err}"))
}

fn config(install: &Install) -> Config {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = u32::try_from(cores).map_or(1.0, f64::from);
    Config {
        data_dir: install.data_dir.clone(),
        db_path: install.data_dir.join("sandkasten.db"),
        run_dir: install.run_dir.clone(),
        node: "build".into(),
        default_image: install.image.clone(),
        allowed_images: Vec::new(),
        session_ttl_seconds: 3600,
        defaults: Defaults {
            cpu,
            memory_mb: MEMORY_MB,
            pids: PIDS,
            readonly_rootfs: false,
            shell: ShellPreference::Bash,
        },
        ceilings: Ceilings { cpu, memory_mb: MEMORY_MB, pids: PIDS, disk_mb: None },
        disk_limits: Vec::new(),
        max_exec_timeout_ms: TIMEOUT_MS.unsigned_abs(),
        max_sessions: 1,
        max_output_bytes: 1 << 20,
        max_read_bytes: 1 << 20,
        seccomp: SeccompProfile::Strict,
        workspaces: WorkspacePolicy::On { persist_by_default: false },
        durability: Durability::Rename,
    }
}
