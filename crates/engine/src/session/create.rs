//! Making a session, or leaving nothing.
//!
//! ```text
//!   Requested{row} ──> Prepared{cgroup, uids, folders} ──> Started{init} ──> Ready{link}
//!       └── fail: forget row  └── fail: remove them, and so on back    └── fail: kill, and so on back
//! ```
//!
//! Each phase owns what was made so far; its `fail` undoes what its own step made and hands the rest
//! to the phase before. The row comes first, so that a daemon that dies in between finds the rest by
//! the session's id.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use sandkasten_jail::cgroup::Cgroup;
use sandkasten_jail::launcher::Started as Init;
use sandkasten_jail::plan::Plan;
use sandkasten_jail::seccomp::payload_filter;
use sandkasten_jail::{fault, memfd, tree};
use sandkasten_protocol as protocol;
use sandkasten_types::session::{CreateSession, Session};
use sandkasten_types::{ImageName, SessionId};
use sha2::{Digest as _, Sha256};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot, watch};

use super::actor::{Actor, Parts};
use super::command::Command;
use super::link::{Greeting, Link, LinkFault};
use super::request::Images;
use super::request::shortened;
use super::spec::Spec;
use super::{Cause, Handle, State, View, environment, lease, release, show_row};
use crate::clock;
use crate::db::{Claimed, Hello, Identity, KeyUse, NewRow};
use crate::descriptor::watched;
use crate::dirs::SessionDirs;
use crate::disk::BoxIds;
use crate::error::Error;
use crate::host::Host;
use crate::idempotency::IdempotencyKey;
use crate::image::{Image, ImageConfig, Store};

/// A create is refused below this much free disk.
const FREE_PERCENT_MIN: u64 = 5;
/// How often a create waits for another one of its key that then fails.
const KEY_ATTEMPTS: usize = 3;

/// Makes a session. Dropping the future leaves the making to its task, which ends the session again
/// if nobody can know of it.
pub(crate) async fn create(
    host: &Arc<Host>,
    request: CreateSession,
    key: Option<IdempotencyKey>,
) -> Result<Session, Error> {
    let key = key.map(|key| key_use(key, &request)).transpose()?;
    for _ in 0..KEY_ATTEMPTS {
        let known = match &key {
            Some(key) => host.db.key(key.clone()).await?,
            None => Claimed::New,
        };
        let claimed = match known {
            Claimed::New => begin(host, request.clone(), key.clone()).await?,
            Claimed::Before(id) => Made::ByAnother(id),
            Claimed::Mismatch => Made::Mismatch,
        };
        match claimed {
            Made::Here(session) => return Ok(*session),
            Made::Mismatch => {
                let text = "this `Idempotency-Key` was used for another request";
                return Err(Error::IdempotencyMismatch(text.into()));
            }
            Made::ByAnother(id) => {
                if let Some(session) = made_by_another(host, &id).await? {
                    return Ok(session);
                }
            }
        }
    }
    Err(Error::Overloaded("the create that this key began has failed".into()))
}

/// What came of one attempt.
enum Made {
    Here(Box<Session>),
    ByAnother(SessionId),
    Mismatch,
}

fn key_use(key: IdempotencyKey, request: &CreateSession) -> Result<KeyUse, Error> {
    let body = serde_json::to_vec(request)
        .map_err(|error| Error::internal("fingerprint of a request", error))?;
    let fingerprint = Sha256::digest(&body).to_vec();
    Ok(KeyUse { client: key.client, key: key.key, fingerprint })
}

/// Waits until the session that has the key is there. `None`: its making failed.
async fn made_by_another(host: &Host, id: &SessionId) -> Result<Option<Session>, Error> {
    if let Some(handle) = host.live.get(id) {
        let mut view = handle.view.clone();
        // An error says that its task has gone; what it left is in the row.
        drop(view.wait_for(|view| view.state != State::Creating).await);
        if handle.view.borrow().state != State::Creating {
            return Ok(Some(handle.show(&host.config.node)));
        }
    }
    let row = host.db.session(id.clone()).await?;
    Ok(row.map(|row| show_row(row, &host.config.node)))
}

async fn begin(
    host: &Arc<Host>,
    request: CreateSession,
    key: Option<KeyUse>,
) -> Result<Made, Error> {
    let spec = check(host, request).await?;
    host.disks.space(spec.disk_bytes())?;
    check_disk(host)?;
    let id = SessionId::random().map_err(|error| Error::internal("random session id", error))?;
    let (commands, inbox) = mpsc::unbounded_channel();
    let (publish, view) = watch::channel(View::new(&spec, lease::renewed(spec.about.ttl_seconds)));
    let handle = Arc::new(Handle { id, spec, created_at: clock::now(), commands, view });
    host.live.add(&handle, host.config.max_sessions)?;
    let (answer, answered) = oneshot::channel();
    let maker = Maker { host: Arc::clone(host), handle, inbox, publish };
    host.tasks.spawn(maker.run(key, answer));
    answered.await.unwrap_or_else(|_| Err(Error::Internal("making a session panicked".into())))
}

async fn check(host: &Arc<Host>, request: CreateSession) -> Result<Spec, Error> {
    let host = Arc::clone(host);
    let is_named = request.image.is_some();
    let checked = tokio::task::spawn_blocking(move || {
        match super::check_create(request, &host.config, &host.images) {
            Err(Error::ImageNotFound(name)) if !is_named => Err(Error::NoDefaultImage(name)),
            checked => checked,
        }
    });
    checked.await.map_err(|error| Error::internal("checking a create", error))?
}

impl Images for Store {
    fn image(&self, name: &ImageName) -> Result<Image, Error> {
        Ok(self.get(name)?)
    }

    fn passwd(&self, image: &Image) -> Result<Vec<u8>, Error> {
        Ok(Store::passwd(self, image)?)
    }
}

fn check_disk(host: &Host) -> Result<(), Error> {
    if let Some(room) = host.reserve.full() {
        return Err(Error::NoSpace(format!(
            "disk full: {room}; delete sessions or workspaces, or make room otherwise"
        )));
    }
    let free = host.dirs.free_percent().map_err(|error| Error::internal("free disk", error))?;
    if free < FREE_PERCENT_MIN {
        return Err(Error::NoSpace(format!(
            "disk full: {free} % are free on the file system of the data directory; a session needs \
             {FREE_PERCENT_MIN} %: delete sessions or workspaces, or make room otherwise"
        )));
    }
    Ok(())
}

/// The task that makes one session.
struct Maker {
    host: Arc<Host>,
    handle: Arc<Handle>,
    inbox: mpsc::UnboundedReceiver<Command>,
    publish: watch::Sender<View>,
}

impl Maker {
    async fn run(self, key: Option<KeyUse>, answer: oneshot::Sender<Result<Made, Error>>) {
        let keyed = key.is_some();
        let (host, handle) = (Arc::clone(&self.host), Arc::clone(&self.handle));
        let made = self.make(key).await;
        if !matches!(made, Ok(Made::Here(_))) {
            host.live.remove(&handle);
        }
        if let Err(Ok(Made::Here(_))) = answer.send(made)
            && !keyed
        {
            // The client went away and never learned the id.
            drop(handle.commands.send(Command::End { cause: Cause::deleted() }));
        }
    }

    async fn make(self, key: Option<KeyUse>) -> Result<Made, Error> {
        let Self { host, handle, inbox, publish } = self;
        let _turn = host.creates.acquire().await.map_err(|_closed| Error::Draining)?;
        let requested = match Requested::write(&host, &handle, key).await? {
            Ok(requested) => requested,
            Err(other) => return Ok(other),
        };
        let ready = match requested.prepare().await {
            Ok(prepared) => prepared.start().await?.attach().await?,
            Err(error) => return Err(error),
        };
        ready.hand_over(inbox, publish).await.map(|session| Made::Here(Box::new(session)))
    }
}

/// The session is written down; nothing is made yet.
struct Requested {
    host: Arc<Host>,
    handle: Arc<Handle>,
    nonce: [u8; 16],
    /// Its workspace did not exist before.
    made_workspace: bool,
}

impl Requested {
    /// Writes the row and makes sure of the workspace. The inner error: the key had its session.
    async fn write(
        host: &Arc<Host>,
        handle: &Arc<Handle>,
        key: Option<KeyUse>,
    ) -> Result<Result<Self, Made>, Error> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|error| Error::internal("random nonce", error))?;
        let row = NewRow {
            id: handle.id.clone(),
            spec: handle.spec.clone(),
            boot_id: host.boot_id.clone(),
            nonce,
            created_at: handle.created_at,
            lease: handle.view.borrow().lease,
            key,
        };
        // Between its row and its directory, nobody may remove the workspace.
        let gate = host.workspace_gate.lock().await;
        match host.db.insert_session(row).await? {
            Claimed::New => {}
            Claimed::Before(id) => return Ok(Err(Made::ByAnother(id))),
            Claimed::Mismatch => return Ok(Err(Made::Mismatch)),
        }
        let (host, handle) = (Arc::clone(host), Arc::clone(handle));
        let mut requested = Self { host, handle, nonce, made_workspace: false };
        let made = requested.make_workspace().await;
        drop(gate);
        match made {
            Ok(made) => {
                requested.made_workspace = made;
                Ok(Ok(requested))
            }
            Err(error) => Err(requested.fail(error).await),
        }
    }

    async fn make_workspace(&self) -> Result<bool, Error> {
        point("engine: workspace")?;
        match &self.handle.spec.workspace {
            Some(id) => crate::workspaces::make_for(&self.host, id, Some(&self.handle.id)).await,
            None => Ok(false),
        }
    }

    async fn prepare(self) -> Result<Prepared, Error> {
        let (host, handle) = (Arc::clone(&self.host), Arc::clone(&self.handle));
        let nonce = self.nonce;
        match run(move || Things::make(&host, &handle, nonce)).await {
            Ok(made) => Ok(Prepared { requested: self, made }),
            Err(error) => {
                // Which of them were made does not matter: they have names.
                release(&self.host, &self.handle.id, None, None).await;
                Err(self.fail(error).await)
            }
        }
    }

    async fn fail(self, error: Error) -> Error {
        if self.made_workspace
            && let Some(id) = &self.handle.spec.workspace
        {
            crate::workspaces::unmake(&self.host, id, &self.handle.id).await;
        }
        if let Err(unwritten) = self.host.db.forget_session(self.handle.id.clone()).await {
            tracing::error!(session = %self.handle.id, error = %unwritten, "session_not_forgotten");
        }
        tracing::warn!(session = %self.handle.id, %error, "session_not_made");
        error
    }
}

/// The session has its group, its uids and its folders.
struct Prepared {
    requested: Requested,
    made: Things,
}

/// What the second phase made.
struct Things {
    uid_base: u32,
    namespace: OwnedFd,
    plan: Plan,
    scratch: OwnedFd,
}

impl Things {
    /// Blocks. What it made when it fails is found by name.
    fn make(host: &Host, handle: &Handle, nonce: [u8; 16]) -> Result<Self, Error> {
        let (id, spec) = (&handle.id, &handle.spec);
        point("engine: cgroup")?;
        let cgroup = host
            .cgroups
            .create(id.as_str(), &spec.cgroup_limits())
            .map_err(|error| Error::internal("cgroup of a session", error))?;
        point("engine: uids")?;
        let range = host
            .uids
            .claim(id, &host.launcher)
            .map_err(|error| Error::internal("uids of a session", error))?;
        point("engine: folders")?;
        let ids = BoxIds { base: range.base, user: spec.protocol_user() };
        let dirs = host
            .dirs
            .make(id, &ids, (host.disks.space(spec.disk_bytes())?, host.disks.ahead()))
            .map_err(|error| no_space_or("folders of a session", error))?;
        point("engine: plan")?;
        let scratch = dirs.scratch.try_clone().map_err(internal)?;
        let with = Ingredients { dirs, cgroup: &cgroup, range: &range, nonce };
        let plan = plan(host, handle, with)?;
        let (uid_base, namespace) = (range.base, range.namespace);
        Ok(Self { uid_base, namespace, plan, scratch })
    }
}

struct Ingredients<'a> {
    dirs: SessionDirs,
    cgroup: &'a Cgroup,
    range: &'a crate::uids::Range,
    nonce: [u8; 16],
}

fn plan(host: &Host, handle: &Handle, with: Ingredients<'_>) -> Result<Plan, Error> {
    let (id, spec) = (&handle.id, &handle.spec);
    let namespace = with.range.namespace.as_fd();
    let workspace = spec.workspace.as_ref().map(|id| host.workspaces.tree_for(id, namespace));
    let image = image_layers(host, spec)?;
    let shell = environment::shell_path(spec, &image);
    let config = postcard::to_stdvec(&init_config(host, handle, with.nonce, shell))
        .map_err(|error| Error::internal("configuration of init", error))?;
    Ok(Plan {
        name: id.to_string(),
        layers: shifted(&image, namespace)?,
        scratch: with.dirs.tree,
        workspace: workspace.transpose().map_err(internal)?,
        readonly_rootfs: spec.readonly_rootfs,
        user_namespace: with.range.namespace.try_clone().map_err(internal)?,
        uid_base: with.range.base,
        cgroup: with.cgroup.fds().map_err(internal)?,
        tmp_bytes: spec.tmp_bytes(),
        shm_bytes: spec.shm_bytes(),
        seccomp: host.config.seccomp,
        listener: with.dirs.listener,
        config: memfd::sealed("init-config", &config).map_err(internal)?,
        spool: with.dirs.spool,
    })
}

fn image_layers(host: &Host, spec: &Spec) -> Result<Vec<OwnedFd>, Error> {
    // The layers as they were when the request was checked; the name may stand for others by now.
    let image = Image {
        name: spec.image.clone(),
        layers: spec.layers.clone(),
        config: ImageConfig::default(),
        size_bytes: 0,
        created_at: clock::now(),
    };
    host.images.open_layers(&image).map_err(internal)
}

fn shifted(dirs: &[OwnedFd], namespace: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Error> {
    let shifted = |dir: &OwnedFd| tree::idmapped_clone(dir.as_fd(), namespace);
    dirs.iter().map(shifted).collect::<Result<_, _>>().map_err(internal)
}

fn init_config(host: &Host, handle: &Handle, nonce: [u8; 16], shell: &str) -> protocol::Config {
    let spec = &handle.spec;
    protocol::Config {
        version: protocol::VERSION,
        nonce,
        user: spec.protocol_user(),
        env: environment::of(spec, &handle.id, shell),
        cwd: spec.cwd.clone().into_bytes(),
        shell: spec.shell_preference(),
        payload_filter: payload_filter(host.config.seccomp),
    }
}

impl Prepared {
    async fn start(self) -> Result<Started, Error> {
        let Self { requested, made } = self;
        let Things { uid_base, namespace, plan, scratch } = made;
        let host = Arc::clone(&requested.host);
        let launched = run(move || {
            point("engine: launch")?;
            host.launcher.launch(plan).map_err(|error| Error::internal("launching init", error))
        });
        let launched = launched.await;
        requested.host.park_starters();
        requested.host.make_images_ahead();
        match launched.and_then(identified) {
            Ok((init, pidfd)) => {
                Ok(Started { requested, uid_base, namespace, scratch, init, pidfd })
            }
            Err(error) => {
                release(&requested.host, &requested.handle.id, None, Some(namespace)).await;
                Err(requested.fail(error).await)
            }
        }
    }
}

fn identified(init: Init) -> Result<(Identity, AsyncFd<OwnedFd>), Error> {
    let identity = Identity { pid: init.pid, start_time: init.start_time };
    let pidfd = watched(init.pidfd, Interest::READABLE).map_err(internal)?;
    Ok((identity, pidfd))
}

/// Its init runs.
struct Started {
    requested: Requested,
    uid_base: u32,
    namespace: OwnedFd,
    scratch: OwnedFd,
    init: Identity,
    pidfd: AsyncFd<OwnedFd>,
}

impl Started {
    async fn attach(self) -> Result<Ready, Error> {
        let attached = match point("engine: attach") {
            Ok(()) => tokio::select! {
                attached = Link::attach(&self.scratch, self.requested.nonce) => {
                    attached.map_err(|error| Error::internal("attaching to init", error))
                }
                _ = self.pidfd.readable() => Err(Error::Internal("init died at its start".into())),
            },
            Err(error) => Err(error),
        };
        let attached = attached.and_then(|(link, greeting)| match greeting.hello.cwd_fault {
            Some(fault) => Err(bad_cwd(&self.requested.handle.spec.cwd, fault)),
            None => Ok((link, greeting)),
        });
        match attached {
            Ok((link, greeting)) => Ok(Ready { started: self, link, greeting }),
            Err(error) => Err(self.fail(error).await),
        }
    }

    async fn fail(self, error: Error) -> Error {
        let Self { requested, namespace, pidfd, .. } = self;
        release(&requested.host, &requested.handle.id, Some(&pidfd), Some(namespace)).await;
        requested.fail(error).await
    }
}

/// An exec would work.
struct Ready {
    started: Started,
    link: Link,
    greeting: Greeting,
}

impl Ready {
    /// Writes down that it runs, and gives it to its actor.
    async fn hand_over(
        self,
        commands: mpsc::UnboundedReceiver<Command>,
        view: watch::Sender<View>,
    ) -> Result<Session, Error> {
        if let Err(error) = self.write().await {
            return Err(self.started.fail(error).await);
        }
        let Self { started, link, greeting } = self;
        let Started { requested, namespace, pidfd, init, .. } = started;
        let Requested { host, handle, .. } = requested;
        tracing::info!(session = %handle.id, pid = init.pid, "session_running");
        host.counters.session_created();
        let node = host.config.node.clone();
        let namespace = Some(namespace);
        let shown = Arc::clone(&handle);
        Actor::spawn(Parts { host, handle, commands, view, link, greeting, pidfd, namespace });
        Ok(shown.show(&node))
    }

    async fn write(&self) -> Result<(), Error> {
        point("engine: running")?;
        let Started { requested, init, uid_base, .. } = &self.started;
        let hello = Hello {
            shell: self.greeting.hello.shell.map(super::actor::shell),
            cwd: String::from_utf8_lossy(&self.greeting.hello.cwd).into_owned(),
        };
        let id = requested.handle.id.clone();
        requested.host.db.set_running(id, *init, *uid_base, hello).await?;
        Ok(())
    }
}

/// The directory that was asked for can't be made, or not entered, by the session's user.
fn bad_cwd(cwd: &str, fault: protocol::FileFault) -> Error {
    if fault == protocol::FileFault::NoSpace {
        return Error::NoSpace(format!("no space left to make `cwd`: {}", shortened(cwd)));
    }
    let error = super::files::error(fault, shortened(cwd));
    Error::InvalidRequest(format!("`cwd` can't be entered: {error}"))
}

fn no_space_or(what: &'static str, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    if matches!(error.kind(), StorageFull | QuotaExceeded) {
        return Error::NoSpace(format!("no space left for {what}"));
    }
    Error::internal(what, error)
}

fn internal(error: std::io::Error) -> Error {
    Error::internal("making a session", error)
}

fn point(name: &'static str) -> Result<(), Error> {
    fault::point(name).map_err(|error| Error::internal("test", error))
}

impl From<LinkFault> for Error {
    fn from(fault: LinkFault) -> Self {
        Self::internal("connection to init", fault)
    }
}

/// Runs what blocks.
async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::internal("a blocking task", error))?
}

#[cfg(test)]
mod test {
    use sandkasten_protocol::FileFault;

    use super::*;

    #[test]
    fn a_directory_that_finds_no_space_is_not_the_callers_fault() {
        let error = bad_cwd("/workspace/x", FileFault::NoSpace);
        assert!(matches!(&error, Error::NoSpace(text) if text.contains("/workspace/x")), "{error}");
        let error = bad_cwd("/root/x", FileFault::PermissionDenied);
        assert!(matches!(&error, Error::InvalidRequest(text) if text.contains("/root/x")));
    }
}
