//! Stage two: the daemon itself.

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit};
use sandkasten_engine::image::{ImageError, Store, way_to_make};
use sandkasten_engine::{Engine, Room};
use sandkasten_jail::disk;
use sandkasten_jail::doctor::{DISK_SPACE, Guarantee, State};
use sandkasten_jail::launcher::Launcher;
use sandkasten_server::{ApiKey, Rest};
use sandkasten_types::ids::random_hex;
use sandkasten_types::{info, limits};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::Args;
use crate::commands::doctor;
use crate::config::{Settings, absolute, addresses, engine_config, is_loopback, server_config};
use crate::failure::{Failure, Result, Tried};
use crate::instance::{self, Claim};
use crate::log::{self, Colours, Keep, Log, LogFile};
use crate::output;

/// A configuration in JSON is a page; this is far above.
const SETTINGS_BYTES_MAX: u64 = 4 << 20;

/// How long the server may take to let running requests go, with a little for itself.
const DRAIN: Duration = Duration::from_millis(limits::DRAIN_MS + 100);

pub(super) fn run(args: &Args, colours: Colours) -> Result<u8> {
    // exec of /proc/self/exe has made the name `exe`.
    rustix::thread::set_name(c"sandkasten").ok();
    rustix::process::umask(Mode::from_raw_mode(0o077));
    raise_file_limit();
    let launcher = Launcher::spawn();
    let settings = read_settings()?;
    let data_dir = absolute(&settings.data_dir);
    let full = make_room(&settings, &data_dir)?;
    let guarantees = doctor::of_host(&settings);
    let shown = shown(&guarantees);
    let missing: Vec<Guarantee> = guarantees.into_iter().filter(doctor::is_missing).collect();
    refuse_host(args, &missing, full)?;
    let launcher = launcher.map_err(no_launcher)?;
    instance::prepare(&data_dir)?;
    let claim = Claim::take(&data_dir)?;
    let log = if args.detach { Some(Arc::new(open_log(&settings, &data_dir)?)) } else { None };
    let to = log.clone().map_or(Log::Stderr(colours), Log::File);
    log::start(to, settings.log_level);
    tell_missing(&missing);
    // What it writes for a workspace counts as what a box writes.
    disk::keep_to_quotas().tried(|| "keep to quotas".to_owned())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.tried(|| "runtime".to_owned())?;
    let http = server_config(&settings, shown);
    let served = runtime.block_on(serve((&settings, http), launcher, &claim, log.as_deref()));
    // A trash that is being emptied and requests that do not end are no reason to stay.
    runtime.shutdown_background();
    served?;
    Ok(0)
}

/// A full disk has no room for what a start tries and writes, unless the reserve is given up. `Some`: it
/// is full, and this is free now.
fn make_room(settings: &Settings, data_dir: &Path) -> Result<Option<Room>> {
    let db_path = engine_config(settings).db_path;
    let made = sandkasten_engine::make_room(data_dir, &db_path);
    made.tried(|| format!("reserve in {}", data_dir.display()))
}

fn no_launcher(why: sandkasten_jail::launcher::LaunchError) -> Failure {
    Failure::because("launcher", &why).hint("`sandkasten doctor` shows what this host lacks")
}

/// Each session costs the daemon a few descriptors; the soft limit is often 1024. Where the hard
/// one is no higher there is nothing to be done.
fn raise_file_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(Resource::Nofile, raised).ok();
}

fn read_settings() -> Result<Settings> {
    let tried = || "settings on standard input".to_owned();
    let mut text = Vec::new();
    std::io::stdin().lock().take(SETTINGS_BYTES_MAX).read_to_end(&mut text).tried(tried)?;
    let settings = serde_json::from_slice(&text).tried(tried)?;
    let null = File::open("/dev/null").tried(|| "/dev/null".to_owned())?;
    rustix::stdio::dup2_stdin(&null).tried(tried)?;
    Ok(settings)
}

fn open_log(settings: &Settings, data_dir: &Path) -> Result<LogFile> {
    let path = data_dir.join("daemon.log");
    let keep = Keep { bytes_max: settings.log_max_mb << 20, files: settings.log_keep };
    LogFile::open(&path, keep).tried(|| path.display().to_string())
}

/// As the API shows them.
fn shown(guarantees: &[Guarantee]) -> info::Guarantees {
    let mut shown = info::Guarantees::default();
    for one in guarantees {
        let list = if doctor::is_missing(one) { &mut shown.missing } else { &mut shown.given };
        let (name, says) = (one.name.to_owned(), one.says.clone());
        list.push(info::Guarantee { name, required: one.required, says });
    }
    shown
}

/// Refuses a host that lacks a required guarantee, unless told not to. A full disk is no reason as long as
/// root can write to it: what is there is served and deleted, and no sessions are made.
fn refuse_host(args: &Args, missing: &[Guarantee], full: Option<Room>) -> Result<()> {
    let can_serve = full.is_some_and(|room| !room.is_full_for_root());
    let is_allowed = |one: &Guarantee| {
        args.allow_degraded.iter().any(|name| name == one.name)
            || (can_serve && one.name == DISK_SPACE)
    };
    let refused: Vec<String> =
        missing.iter().filter(|one| one.required && !is_allowed(one)).map(in_one_line).collect();
    if refused.is_empty() {
        return Ok(());
    }
    let list = refused.join("\n  ");
    Err(Failure::new(format!("this host lacks required guarantees\n  {list}"))
        .hint("`sandkasten doctor` shows them all; --allow-degraded=NAME starts without one"))
}

fn in_one_line(one: &Guarantee) -> String {
    match &one.state {
        State::Given => one.name.to_owned(),
        State::Missing { why, fix } => format!("{}: {why}; fix: {fix}", one.name),
    }
}

fn tell_missing(missing: &[Guarantee]) {
    for one in missing {
        if one.required {
            tracing::warn!(guarantee = one.name, "started without: {}", in_one_line(one));
        } else {
            tracing::info!(guarantee = one.name, "not on this host: {}", in_one_line(one));
        }
    }
}

/// Serves until a signal says stop. Sessions live on.
async fn serve(
    (settings, http): (&Settings, sandkasten_server::Config),
    launcher: Launcher,
    claim: &Claim,
    log: Option<&LogFile>,
) -> Result<()> {
    let signals = Signals::new().tried(|| "signals".to_owned())?;
    let listener = bind(&settings.listen).await?;
    let address = instance::reachable(&listener).tried(|| settings.listen.clone())?;
    let engine = Engine::start(engine_config(settings), launcher);
    let engine = engine.await.tried(|| "start".to_owned())?;
    let shutdown = CancellationToken::new();
    let config = sandkasten_server::Config { api_key: keys(settings, claim)?, ..http };
    let http = sandkasten_server::serve(listener, engine.clone(), config, shutdown.clone());
    let server = tokio::spawn(http);
    claim.announce(address)?;
    tracing::info!(%address, data_dir = %settings.data_dir.display(), "serving");
    warn_of_open_door(settings);
    warn_of_missing_image(settings, log);
    if let Some(log) = log {
        detached(address, log)?;
    }
    let served = until_stopped(signals, server, &shutdown).await;
    let began = Instant::now();
    engine.stop().await;
    let engine_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let requests_left = match served {
        Ok(Some(rest)) => rest.wait().await,
        Ok(None) => 0,
        Err(why) => return Err(why),
    };
    tracing::info!(engine_ms, requests_left, "stopped");
    Ok(())
}

/// The API key, and beside it one of this run for root, which finds it in the data directory.
fn keys(settings: &Settings, claim: &Claim) -> Result<Option<ApiKey>> {
    let Some(api_key) = ApiKey::new(&settings.api_key) else { return Ok(None) };
    let half = || random_hex().tried(|| "random key".to_owned());
    let for_root = format!("{}{}", half()?, half()?);
    claim.hand_key(&for_root)?;
    Ok(Some(api_key.or(&for_root)))
}

fn warn_of_open_door(settings: &Settings) {
    if settings.api_key.is_empty() {
        tracing::warn!("no API key: every user of this host can run code through this daemon");
    } else if !is_loopback(&settings.listen) {
        tracing::warn!(
            listen = settings.listen,
            "listening beyond this host without TLS: put a reverse proxy in front"
        );
    }
}

/// A create that names no image would fail: said at the start, and on the terminal too where the log
/// goes to a file.
fn warn_of_missing_image(settings: &Settings, log: Option<&LogFile>) {
    let image = settings.default_image.as_str();
    let Ok(name) = image.parse() else { return };
    let found = Store::open(&absolute(&settings.data_dir)).map(|store| store.get(&name));
    let Ok(Err(ImageError::NotFound(_))) = found else { return };
    let way = way_to_make(image);
    tracing::warn!(image, "the default image does not exist; `{way}` makes it");
    if log.is_some() {
        output::progress(&format!(
            "warning: the default image `{image}` does not exist, so creates must name another; `{way}` makes it"
        ));
    }
}

async fn bind(listen: &str) -> Result<TcpListener> {
    let addresses = addresses(listen).tried(|| format!("listen on {listen}"))?;
    let bound = TcpListener::bind(addresses.as_slice()).await;
    bound.map_err(|why| {
        let failure = Failure::because(format!("listen on {listen}"), &why);
        if why.kind() == std::io::ErrorKind::AddrInUse {
            return failure.hint("another program has this port; --listen HOST:0 picks a free one");
        }
        failure
    })
}

/// Tells stage one that we serve, and lets go of its terminal.
fn detached(address: SocketAddr, log: &LogFile) -> Result<()> {
    let tried = || "detach".to_owned();
    // A daemon that was started by a session leader has no session of its own yet.
    rustix::process::setsid().ok();
    std::env::set_current_dir("/").tried(tried)?;
    let mut stdout = std::io::stdout().lock();
    // Where stage one is gone there is nobody to tell, and the daemon serves all the same.
    writeln!(stdout, "{address}").and_then(|()| stdout.flush()).ok();
    log.take_stdio().tried(tried)
}

/// Waits for a signal or the server's own end, then lets running requests finish. A second signal ends
/// that too.
async fn until_stopped(
    mut signals: Signals,
    mut server: tokio::task::JoinHandle<std::io::Result<Rest>>,
    shutdown: &CancellationToken,
) -> Result<Option<Rest>> {
    let ended = tokio::select! {
        ended = &mut server => Some(ended),
        name = signals.stop() => {
            tracing::info!(signal = name, "stopping");
            shutdown.cancel();
            tokio::select! {
                ended = &mut server => Some(ended),
                () = tokio::time::sleep(DRAIN) => None,
                _ = signals.stop() => None,
            }
        }
    };
    match ended {
        Some(Ok(served)) => served.map(Some).tried(|| "server".to_owned()),
        Some(Err(panicked)) => Err(Failure::because("server", &panicked)),
        None => {
            server.abort();
            Ok(None)
        }
    }
}

/// The signals that the daemon knows.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one that means stop, and gives its name.
    async fn stop(&mut self) -> &'static str {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return "SIGTERM",
                _ = self.interrupt.recv() => return "SIGINT",
                _ = self.hangup.recv() => tracing::info!("SIGHUP has no effect"),
            }
        }
    }
}
