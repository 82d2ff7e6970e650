//! `Lab`: a real daemon for a test, and sessions in it.
//!
//! Invariant: a lab has a data directory, a key and a port of its own, and when it goes, everything
//! of it goes: what is left of it on the host fails the test. The suite's shared daemon, started by
//! `cargo xtask test`, is only borrowed; its sessions are deleted all the same.
//!
//! ```text
//! Lab::start()       a daemon of one's own with the image `tiny`; may be killed and restarted
//! Lab::builder()     the same with other settings, images, binary or surroundings
//! Lab::shared()      the suite's daemon, with `base`, `python` and `tiny`; never disturbed
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
pub use rustix::process::Signal;
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::host;
use crate::http::{Answer, Client};
use crate::image::Rootfs;
use crate::leaks;
use crate::openapi::Document;
use crate::session::Session;
use crate::wait;

/// A daemon that takes longer to start or to stop is a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// The image of labs that nobody gave another.
pub const TINY: &str = "tiny";

/// A daemon and what the test does with it.
#[derive(Debug)]
pub struct Lab {
    pub client: Client,
    pub data_dir: PathBuf,
    own: Option<Own>,
    /// Ids of all sessions that were made, for the look at what is left.
    made: Mutex<Vec<String>>,
}

/// The part of a lab that is not borrowed.
#[derive(Debug)]
struct Own {
    dir: TempDir,
    builder: Builder,
    daemon: Option<Daemon>,
}

/// A running daemon.
#[derive(Debug)]
struct Daemon {
    child: Child,
}

/// A daemon that did not start.
#[derive(Debug)]
pub struct Refusal {
    pub status: ExitStatus,
    pub log: String,
}

/// Which binary a lab runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// What users get.
    Release,
    /// With fault injection.
    Faulty,
}

impl Binary {
    /// Where it is.
    ///
    /// # Panics
    /// Where it has not been built.
    #[must_use]
    pub fn path(self) -> PathBuf {
        let (variable, name) = match self {
            Self::Release => ("SANDKASTEN_TEST_BIN", "release/sandkasten"),
            Self::Faulty => ("SANDKASTEN_TEST_FAULTY_BIN", "test-bin/sandkasten-faulty"),
        };
        artifact(variable, name)
    }
}

/// The probe: a static program that is run inside sessions.
///
/// # Panics
/// Where it has not been built.
#[must_use]
pub fn probe() -> PathBuf {
    artifact("SANDKASTEN_TEST_PROBE", "test-bin/probe")
}

fn artifact(variable: &str, name: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = named.unwrap_or_else(|| target_dir().join(name));
    assert!(path.is_file(), "{} is missing: run `cargo xtask test NAME`", path.display());
    path
}

/// Cargo's target directory: that of the running test.
fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let dir = exe.ancestors().find(|dir| dir.join("CACHEDIR.TAG").exists());
    dir.expect("a target directory").to_owned()
}

/// The root of the checkout: two above this package, which is where the runner says it is.
#[must_use]
pub fn checkout() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    PathBuf::from(own).join("../..")
}

/// How a lab's daemon is started.
#[derive(Debug, Clone)]
pub struct Builder {
    binary: Binary,
    settings: Vec<(String, Value)>,
    variables: Vec<(String, String)>,
    arguments: Vec<String>,
    wrapper: Vec<String>,
    images: Vec<(String, Vec<u8>)>,
    built: Vec<String>,
    key: String,
    tag: String,
}

impl Builder {
    /// Another name on its directory than the run's own.
    #[must_use]
    pub fn tagged(mut self, tag: &str) -> Self {
        tag.clone_into(&mut self.tag);
        self
    }

    /// A key of the configuration file; `a.b` is nested.
    #[must_use]
    pub fn set(mut self, key: &str, value: Value) -> Self {
        self.settings.retain(|(known, _)| known != key);
        self.settings.push((key.to_owned(), value));
        self
    }

    /// A variable of the daemon's environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// One more argument of `sandkasten daemon`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Runs the daemon by this command (`unshare -m …`), which must exec it.
    #[must_use]
    pub fn within(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|&word| word.to_owned()).collect();
        self
    }

    #[must_use]
    pub fn binary(mut self, binary: Binary) -> Self {
        self.binary = binary;
        self
    }

    /// An image beside `tiny`.
    #[must_use]
    pub fn image(self, name: &str, rootfs: Rootfs) -> Self {
        self.archive(name, rootfs.finish())
    }

    /// An image of a root file system's tar.
    #[must_use]
    pub fn archive(mut self, name: &str, tar: Vec<u8>) -> Self {
        self.images.push((name.to_owned(), tar));
        self
    }

    /// An image of a recipe, from the cache where it is there.
    #[must_use]
    pub fn recipe(mut self, name: &str) -> Self {
        self.built.push(name.to_owned());
        self
    }

    /// Starts the daemon.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn start(self) -> Lab {
        self.try_start().unwrap_or_else(|refusal| {
            panic!("the daemon did not start ({}): {}", refusal.status, refusal.log)
        })
    }

    /// Starts the daemon.
    ///
    /// # Errors
    /// Where it ends instead of listening.
    ///
    /// # Panics
    /// Where it neither listens nor ends.
    pub fn try_start(self) -> Result<Lab, Refusal> {
        let lab = self.prepare();
        lab.started()
    }

    /// Data directory, configuration and images, but no daemon yet.
    ///
    /// # Panics
    /// Where an image can't be imported.
    #[must_use]
    pub fn prepare(self) -> Lab {
        let dir = scratch_dir(&self.tag);
        let data_dir = dir.path().join("data");
        fs::create_dir(&data_dir).expect("make the data directory");
        fs::set_permissions(&data_dir, std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .expect("shut the data directory");
        leaks::note(&leaks::group_of(&data_dir));
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let client = Client::new(nowhere, &self.key);
        let own = Own { dir, builder: self, daemon: None };
        let lab = Lab { client, data_dir, own: Some(own), made: Mutex::default() };
        lab.write_configuration();
        lab.make_images();
        lab
    }
}

/// A wrapper of a command, which then sees no other daemon of the host.
pub const ALONE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];

impl Lab {
    /// A daemon of the test's own with the image `tiny`.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    #[must_use]
    pub fn builder() -> Builder {
        let random: [u8; 16] = fresh_bytes();
        let key: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Builder {
            binary: Binary::Release,
            settings: vec![
                ("listen".into(), json!("127.0.0.1:0")),
                ("default_image".into(), json!(TINY)),
            ],
            variables: Vec::new(),
            arguments: Vec::new(),
            wrapper: Vec::new(),
            images: vec![(TINY.to_owned(), Rootfs::tiny().finish())],
            built: Vec::new(),
            key: format!("sk-{key}"),
            tag: leaks::tag(),
        }
    }

    /// The suite's daemon.
    ///
    /// # Panics
    /// Where there is none: the suite was not started by `cargo xtask test`.
    #[must_use]
    pub fn shared() -> Self {
        let variable = |name: &str| {
            let value = std::env::var(name);
            value.unwrap_or_else(|_| panic!("no {name}: run this by `cargo xtask test NAME`"))
        };
        let addr = variable("SANDKASTEN_TEST_ADDR").parse().expect("an address");
        let client = Client::new(addr, &variable("SANDKASTEN_TEST_KEY"));
        let data_dir = variable("SANDKASTEN_TEST_DATA").into();
        let mut lab = Self { client, data_dir, own: None, made: Mutex::default() };
        lab.read_document();
        lab
    }

    /// Variables by which [`Lab::shared`] finds this lab.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        vec![
            ("SANDKASTEN_TEST_ADDR", self.client.addr.to_string().into()),
            ("SANDKASTEN_TEST_KEY", self.client.key.clone().unwrap_or_default().into()),
            ("SANDKASTEN_TEST_DATA", self.data_dir.clone().into()),
        ]
    }

    /// Makes a session; it is deleted when the handle goes.
    ///
    /// # Panics
    /// Where the daemon refuses.
    #[must_use]
    #[track_caller]
    pub fn session(&self, request: &Value) -> Session<'_> {
        let info = self.client.post("/v1/sessions", request).ok(201);
        Session::new(self, info)
    }

    /// A session that was made before, here or under a daemon that was killed since. It is deleted with
    /// the lab.
    #[must_use]
    pub fn known(&self, id: &str) -> std::mem::ManuallyDrop<Session<'_>> {
        std::mem::ManuallyDrop::new(Session::new(self, json!({ "id": id })))
    }

    /// Tries to make a session; an id that comes back is looked after.
    #[must_use]
    pub fn try_session(&self, request: &Value) -> Answer {
        let answer = self.client.post("/v1/sessions", request);
        if answer.status() == 201 {
            self.note(answer.json()["id"].as_str().unwrap_or_default());
        }
        answer
    }

    pub(crate) fn note(&self, id: &str) {
        self.made.lock().expect("no panic").push(id.to_owned());
    }

    /// The daemon's pid on this host.
    ///
    /// # Panics
    /// Where its pid file has none.
    #[must_use]
    pub fn pid(&self) -> u32 {
        let text = fs::read_to_string(self.data_dir.join("pid")).expect("the pid file");
        text.trim().parse().expect("a pid")
    }

    /// Kills the daemon as a power cut would.
    ///
    /// # Panics
    /// Where the lab is shared.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait();
    }

    /// Asks the daemon to stop and waits until it has.
    ///
    /// # Panics
    /// Where the lab is shared, or the daemon does not stop in time.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Sends a signal to the daemon (the child of this test, not what a wrapper started).
    ///
    /// # Panics
    /// Where the lab is shared or has no daemon.
    pub fn signal(&self, signal: Signal) {
        let own = self.own.as_ref().expect("a lab of one's own");
        let daemon = own.daemon.as_ref().expect("a running daemon");
        let pid = i32::try_from(daemon.child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        kill_process(pid, signal).expect("signal the daemon");
    }

    /// Waits for the daemon's end.
    ///
    /// # Panics
    /// Where it does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        let own = self.own.as_mut().expect("a lab of one's own");
        let mut daemon = own.daemon.take().expect("a running daemon");
        if !wait::ends_within(&daemon.child, PATIENCE) {
            daemon.child.kill().expect("kill the daemon");
            daemon.child.wait().expect("reap the daemon");
            panic!("the daemon did not stop within {PATIENCE:?}: {}", self.log());
        }
        daemon.child.wait().expect("reap the daemon")
    }

    /// Starts the daemon again, after [`Lab::kill`] or [`Lab::stop`], on the same data directory.
    ///
    /// # Panics
    /// Where it does not start.
    pub fn restart(&mut self) {
        if let Err(refusal) = self.run() {
            panic!("no restart ({}): {}", refusal.status, refusal.log);
        }
    }

    /// As [`Lab::restart`].
    ///
    /// # Errors
    /// Where the daemon ends instead of listening.
    pub fn try_restart(&mut self) -> Result<(), Refusal> {
        self.run()
    }

    /// Takes a variable from the environment that the next start gets.
    ///
    /// # Panics
    /// Where the lab is shared.
    pub fn unset(&mut self, name: &str) {
        let own = self.own.as_mut().expect("a lab of one's own");
        own.builder.variables.retain(|(known, _)| known != name);
    }

    /// Adds a variable to the environment that the next start gets.
    ///
    /// # Panics
    /// Where the lab is shared.
    pub fn variable(&mut self, name: &str, value: &str) {
        self.unset(name);
        let own = self.own.as_mut().expect("a lab of one's own");
        own.builder.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Runs a CLI command on this lab's data directory.
    ///
    /// # Panics
    /// Where the program can't be run.
    #[must_use]
    pub fn cli(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("run sandkasten")
    }

    /// A CLI command on this lab's data directory, not yet run.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let binary = self.own.as_ref().map_or(Binary::Release, |own| own.builder.binary);
        let mut command = Command::new(binary.path());
        clear_settings(&mut command);
        command.args(arguments).stdin(Stdio::null()).env("SANDKASTEN_DATA_DIR", &self.data_dir);
        command.env("SANDKASTEN_API_KEY", self.client.key.clone().unwrap_or_default());
        if let Some(own) = &self.own {
            command.current_dir(own.dir.path());
        }
        command
    }

    /// Runs a CLI command on this lab's data directory by a wrapper, which must exec it; the working
    /// directory is [`Lab::dir`], with the data directory at `data`.
    ///
    /// # Panics
    /// Where the wrapper can't be run.
    #[must_use]
    pub fn cli_within(&self, wrapper: &[&str], arguments: &[&str]) -> Output {
        let plain = self.command(arguments);
        let Some((first, rest)) = wrapper.split_first() else { return self.cli(arguments) };
        let mut command = Command::new(first);
        clear_settings(&mut command);
        command.args(rest).arg(plain.get_program()).args(plain.get_args()).stdin(Stdio::null());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(self.dir()).output().expect("run the wrapper")
    }

    /// What the daemon has logged.
    #[must_use]
    pub fn log(&self) -> String {
        let Some(own) = &self.own else { return String::new() };
        let bytes = fs::read(own.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A directory of the lab's own, beside the data directory.
    ///
    /// # Panics
    /// Where the lab is shared.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.own.as_ref().expect("a lab of one's own").dir.path()
    }

    /// What is left on the host of all sessions that were made here.
    #[must_use]
    pub fn left_of_sessions(&self) -> Vec<String> {
        let made = self.made.lock().expect("no panic").clone();
        let marks = leaks::Marks::new(made.clone());
        wait::until_empty(leaks::SETTLE, || {
            let mut left = leaks::Snapshot::take(&marks).beyond(&leaks::Snapshot::empty());
            let dirs = crate::host::names(&self.data_dir.join("sessions"));
            let of_session = |entry: &String| made.iter().any(|id| entry.contains(id.as_str()));
            left.extend(dirs.into_iter().filter(of_session));
            left
        })
    }

    /// What the daemon's things on the host are known by.
    #[must_use]
    pub fn marks(&self) -> Vec<String> {
        vec![self.data_dir.to_string_lossy().into_owned(), leaks::group_of(&self.data_dir)]
    }

    /// Whether the daemon answers.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.client.request("GET", "/healthz").try_send().is_ok_and(|answer| answer.status() == 200)
    }

    /// The sessions that the daemon has now, each as an entry of the leak list.
    #[must_use]
    pub fn sessions(&self) -> Vec<String> {
        let list = self.client.get("/v1/sessions").ok(200);
        let sessions = list.as_array().into_iter().flatten();
        sessions.map(|one| format!("session {}", one["id"].as_str().unwrap_or_default())).collect()
    }

    /// Starts a prepared lab.
    ///
    /// # Errors
    /// Where the daemon ends instead of listening.
    ///
    /// # Panics
    /// Where it neither listens nor ends.
    pub fn started(mut self) -> Result<Self, Refusal> {
        self.run()?;
        Ok(self)
    }

    fn run(&mut self) -> Result<(), Refusal> {
        let own = self.own.as_mut().expect("a lab of one's own");
        let log = File::options().append(true).create(true).open(own.dir.path().join("log"));
        let log = log.expect("the log");
        let binary = own.builder.binary.path();
        let mut words: Vec<OsString> = own.builder.wrapper.iter().map(OsString::from).collect();
        words.push(binary.into());
        let mut command = Command::new(&words[0]);
        clear_settings(&mut command);
        command.args(&words[1..]).arg("daemon").arg("--config");
        command.arg(own.dir.path().join("sandkasten.yaml")).args(&own.builder.arguments);
        command.envs(own.builder.variables.clone()).current_dir(own.dir.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("the log")).stderr(log);
        let addr_file = self.data_dir.join("addr");
        drop(fs::remove_file(&addr_file));
        let watch = watch(&self.data_dir);
        let mut child = command.spawn().expect("start the daemon");
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("pidfd_open");
        if !appears(&watch, &pidfd, &addr_file) {
            drop(child.kill());
            let status = child.wait().expect("reap the daemon");
            return Err(Refusal { status, log: self.log() });
        }
        own.daemon = Some(Daemon { child });
        let addr = fs::read_to_string(&addr_file).expect("the address");
        self.client.addr = addr.trim().parse().expect("an address");
        self.read_document();
        Ok(())
    }

    fn read_document(&mut self) {
        self.client.document = None;
        let document = self.client.get("/openapi.json").ok(200);
        self.client.document = Some(Arc::new(Document::new(document)));
    }

    fn write_configuration(&self) {
        let own = self.own.as_ref().expect("a lab of one's own");
        let mut root = json!({ "api_key": own.builder.key, "data_dir": self.data_dir });
        for (key, value) in &own.builder.settings {
            let pointer = key.split('.').fold(&mut root, |place, part| &mut place[part]);
            *pointer = value.clone();
        }
        // JSON is YAML; one key a line, so that messages have lines to name.
        let text = serde_json::to_string_pretty(&root).expect("JSON");
        fs::write(own.dir.path().join("sandkasten.yaml"), text).expect("write the configuration");
    }

    fn make_images(&self) {
        let own = self.own.as_ref().expect("a lab of one's own");
        for (name, tar) in &own.builder.images {
            self.import(name, tar);
        }
        for name in &own.builder.built {
            self.must(&["image", "build", name]);
        }
    }

    /// Makes an image of a root file system's tar.
    ///
    /// # Panics
    /// Where it can't be imported, or the lab is shared.
    pub fn import(&self, name: &str, tar: &[u8]) {
        let file = self.dir().join(format!("{name}.tar"));
        fs::write(&file, tar).expect("write the image");
        self.must(&["image", "import", &file.to_string_lossy(), "--name", name]);
        fs::remove_file(&file).expect("remove the tar");
    }

    /// Runs a CLI command that has to work.
    ///
    /// # Panics
    /// Where it does not.
    #[track_caller]
    pub fn must(&self, arguments: &[&str]) -> String {
        let output = self.cli(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {}: {errors}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Ends all sessions and the daemon; what is left of them then.
    fn close(&mut self) -> Vec<String> {
        if self.own.is_none() {
            return Vec::new();
        }
        let running = self.own.as_ref().is_some_and(|own| own.daemon.is_some());
        // Sessions of a killed daemon live on: only a daemon can end them.
        let started = self.client.addr.port() != 0;
        let mut marks = self.marks();
        if started && (running || self.run().is_ok()) {
            self.delete_sessions();
            // A stop does not wait for it.
            wait::until_empty(PATIENCE, || host::names(&self.data_dir.join("trash")));
            self.stop();
        }
        marks.extend(self.made.lock().expect("no panic").clone());
        leaks::of_daemon(&self.data_dir, &marks)
    }

    fn delete_sessions(&self) {
        let Ok(list) = self.client.request("GET", "/v1/sessions").try_send() else { return };
        for session in list.json().as_array().into_iter().flatten() {
            let id = session["id"].as_str().unwrap_or_default();
            self.note(id);
            drop(self.client.request("DELETE", &format!("/v1/sessions/{id}")).try_send());
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The test's own message is the one that counts; its traces go all the same.
            eprintln!("daemon's log:\n{}", self.log());
            drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.close())));
            return;
        }
        let left = self.close();
        assert!(left.is_empty(), "left behind: {left:#?}");
    }
}

/// Removes what would configure a daemon from a command's environment.
pub fn clear_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("SANDKASTEN_") && text != "SANDKASTEN_CACHE_DIR" {
            command.env_remove(&name);
        }
    }
}

fn watch(dir: &Path) -> OwnedFd {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let watch = inotify::init(flags).expect("inotify");
    let events = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CLOSE_WRITE;
    inotify::add_watch(&watch, dir, events).expect("watch the data directory");
    watch
}

/// Whether a file appears in the watched directory before the process ends.
fn appears(watch: &OwnedFd, pidfd: &OwnedFd, file: &Path) -> bool {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        if fs::read_to_string(file).is_ok_and(|text| text.ends_with('\n') || text.contains(':')) {
            return true;
        }
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        let mut fds = [
            PollFd::new(watch, PollFlags::IN),
            PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN),
        ];
        let ready = poll(&mut fds, Some(&timespec(left))).expect("poll");
        if ready == 0 || fds[1].revents().contains(PollFlags::IN) {
            return false;
        }
        let mut buffer = [0; 4096];
        // Which file it was is looked at above.
        let _ = rustix::io::read(watch, &mut buffer);
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec::try_from(time).expect("a short time")
}

/// A directory whose name begins with a tag. Not below `/tmp`, which may be a small tmpfs.
///
/// # Panics
/// Where it can't be made.
#[must_use]
pub fn scratch_dir(tag: &str) -> TempDir {
    let dir = tempfile::Builder::new().prefix(&format!("{tag}-")).tempdir_in("/var/tmp");
    dir.expect("a temporary directory")
}

fn fresh_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .expect("random bytes");
    bytes
}

/// The Python of a virtual environment with some packages, kept in the cache folder.
///
/// # Panics
/// Where it can't be made.
#[must_use]
pub fn venv(name: &str, packages: &[&str]) -> PathBuf {
    let run = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().expect("run python3");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {errors}");
    };
    let made = cached(&format!("venvs/{name}"), |dir| {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(dir));
        let mut pip = Command::new(dir.join("bin/python"));
        run(pip.args(["-m", "pip", "install", "--quiet"]).args(packages));
    });
    made.join("bin/python")
}

/// A folder of the cache. `make` fills it once; what was broken off half-way is made again.
///
/// # Panics
/// Where it can't be made.
pub fn cached(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let dir = cache_dir().join(name);
    let whole = dir.join("whole");
    fs::create_dir_all(dir.parent().expect("a parent")).expect("make the cache folder");
    let lock = File::create(dir.with_extension("lock")).expect("the lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("flock");
    if !whole.exists() {
        make(&dir);
        fs::write(&whole, "").expect("mark it as whole");
    }
    dir
}

/// Where what is expensive is kept between runs, outside the checkout.
///
/// # Panics
/// Where neither a variable nor HOME says where.
#[must_use]
pub fn cache_dir() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    variable("SANDKASTEN_CACHE_DIR")
        .or_else(|| variable("XDG_CACHE_HOME").map(|dir| dir.join("sandkasten")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/sandkasten")))
        .expect("HOME")
}
