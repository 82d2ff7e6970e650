//! An engine of its own for each test: data directory, launcher, groups, an image of busybox and bash.

#![allow(dead_code, reason = "each of the test programs uses a part of it")]

pub(crate) mod fake;

use std::fs;
use std::future::Future;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandkasten_engine::image::ImageConfig;
use sandkasten_engine::{
    Ceilings, Config, CreateFile, Defaults, Durability, Engine, Error, EventsFrom, ExecEvent,
    Expect, FileUser, Parents, Place, SeccompProfile, ShellPreference, WorkspacePolicy,
};
use sandkasten_jail::launcher::Launcher;
use sandkasten_types::exec::{ExecAnswer, ExecEnd, ExecRequest};
use sandkasten_types::session::{CreateSession, Limits, Session};
use sandkasten_types::{ExecId, SessionId};

/// What a test has.
pub(crate) struct Lab {
    pub(crate) engine: Engine,
    pub(crate) dir: PathBuf,
}

/// Runs a test with an engine, and sees to it that nothing is left on the host.
pub(crate) fn lab<F: Future<Output = Lab>>(test: impl FnOnce(Lab) -> F) {
    labs(|dir| {
        runtime().block_on(async {
            let lab = start(dir).await;
            let lab =
                tokio::time::timeout(Duration::from_secs(60), test(lab)).await.expect("in time");
            lab.end().await;
        });
    });
}

/// Runs a test with a data directory for engines, one after the other. A test that fails leaves
/// sessions; they are ended, too.
pub(crate) fn labs(test: impl FnOnce(&Path)) {
    let dir = tempfile::tempdir().unwrap();
    make_images(dir.path());
    let outcome = catch_unwind(AssertUnwindSafe(|| test(dir.path())));
    if let Err(failure) = outcome {
        let last = runtime();
        last.block_on(async { start(dir.path()).await.end().await });
        resume_unwind(failure);
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// An engine as a daemon starts it.
pub(crate) async fn start(dir: &Path) -> Lab {
    start_with(config(dir)).await
}

pub(crate) async fn start_with(config: Config) -> Lab {
    let launcher = Launcher::spawn().expect("launcher");
    let dir = config.data_dir.clone();
    let engine = Engine::start(config, launcher).await.expect("engine");
    Lab { engine, dir }
}

pub(crate) fn config(dir: &Path) -> Config {
    Config {
        data_dir: dir.to_owned(),
        db_path: dir.join("sandkasten.db"),
        run_dir: "/run/sandkasten".into(),
        node: "local".into(),
        default_image: "bash".into(),
        allowed_images: Vec::new(),
        session_ttl_seconds: 600,
        defaults: Defaults {
            cpu: 1.0,
            memory_mb: 128,
            pids: 64,
            readonly_rootfs: false,
            shell: ShellPreference::Bash,
        },
        ceilings: Ceilings { cpu: 2.0, memory_mb: 1024, pids: 512, disk_mb: None },
        disk_limits: Vec::new(),
        max_exec_timeout_ms: 600_000,
        max_sessions: 20,
        max_output_bytes: 1024 * 1024,
        max_read_bytes: 10 * 1024 * 1024,
        seccomp: SeccompProfile::Strict,
        workspaces: WorkspacePolicy::On { persist_by_default: false },
        durability: Durability::Rename,
    }
}

/// Two images: busybox alone, and busybox with bash and its libraries.
fn make_images(dir: &Path) {
    let store = sandkasten_engine::image::Store::open(dir).unwrap();
    let import = |name: &str, tar: Vec<u8>| {
        store.import(Cursor::new(tar), &name.parse().unwrap(), ImageConfig::default()).unwrap();
    };
    import("busybox", rootfs(&[]));
    let bash = ["/bin/bash", "libtinfo.so.6", "libc.so.6", "ld-linux-x86-64.so.2"];
    import("bash", rootfs(&bash));
}

fn rootfs(extra: &[&str]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for name in ["bin", "etc", "tmp", "proc", "dev", "root", "lib64", "lib"] {
        let mut header = header(tar::EntryType::Directory, 0o755);
        tar.append_data(&mut header, format!("{name}/"), &[][..]).unwrap();
    }
    add_file(&mut tar, "bin/busybox", Path::new("/bin/busybox"));
    for name in [
        "sh",
        "ls",
        "cat",
        "id",
        "sleep",
        "seq",
        "head",
        "dd",
        "yes",
        "kill",
        "ps",
        "mkdir",
        "rm",
        "stat",
        "wc",
        "tr",
        "env",
        "sha256sum",
        "touch",
        "mount",
        "sync",
        "tail",
        "setsid",
        "nohup",
    ] {
        let mut header = header(tar::EntryType::Symlink, 0o777);
        tar.append_link(&mut header, format!("bin/{name}"), "busybox").unwrap();
    }
    for file in extra {
        let (name, path) = match file.strip_prefix('/') {
            Some(name) => (name.to_owned(), PathBuf::from(file)),
            None if file.starts_with("ld-") => (format!("lib64/{file}"), library(file)),
            None => (format!("lib/{file}"), library(file)),
        };
        add_file(&mut tar, &name, &path);
    }
    tar.into_inner().unwrap()
}

fn library(name: &str) -> PathBuf {
    let found = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib/x86_64-linux-gnu"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists());
    found.unwrap_or_else(|| panic!("no {name}"))
}

fn add_file(tar: &mut tar::Builder<Vec<u8>>, name: &str, path: &Path) {
    let bytes = fs::read(path).unwrap();
    let mut header = header(tar::EntryType::Regular, 0o755);
    header.set_size(bytes.len() as u64);
    tar.append_data(&mut header, name, bytes.as_slice()).unwrap();
}

fn header(kind: tar::EntryType, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

impl Lab {
    /// Ends all sessions and the engine, and looks at what is left.
    pub(crate) async fn end(self) {
        for session in self.engine.sessions().await.unwrap() {
            self.engine.delete_session(&session.id).await.unwrap();
        }
        self.engine.stop().await;
        assert_eq!(self.left(), Vec::<PathBuf>::new(), "left on the host");
        let parent = self.dir.file_name().unwrap().to_owned();
        assert_eq!(self.groups(), Vec::<PathBuf>::new(), "left of {parent:?}");
    }

    /// Groups of this lab's sessions, in any hierarchy.
    pub(crate) fn groups(&self) -> Vec<PathBuf> {
        let is_ours = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            self.ids().iter().any(|id| id == name)
        };
        folders_below(Path::new("/sys/fs/cgroup"))
            .into_iter()
            .filter(|path| is_ours(path))
            .collect()
    }

    /// Ids of all sessions that this lab's database remembers.
    fn ids(&self) -> Vec<String> {
        let db = rusqlite::Connection::open(self.dir.join("sandkasten.db")).unwrap();
        let mut ids = db.prepare("SELECT id FROM sessions WHERE ended_ms IS NOT NULL").unwrap();
        ids.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    pub(crate) async fn create(&self) -> Session {
        self.create_with(CreateSession::default()).await.unwrap()
    }

    pub(crate) async fn create_with(&self, request: CreateSession) -> Result<Session, Error> {
        self.engine.create_session(request, None).await
    }

    pub(crate) async fn exec(&self, id: &SessionId, cmd: &str) -> Result<ExecAnswer, Error> {
        self.exec_with(id, ExecRequest { cmd: cmd.into(), ..ExecRequest::default() }).await
    }

    pub(crate) async fn exec_with(
        &self,
        id: &SessionId,
        request: ExecRequest,
    ) -> Result<ExecAnswer, Error> {
        self.engine.exec(id, request).await?.finish().await
    }

    /// The output of a command that ends with 0.
    pub(crate) async fn output(&self, id: &SessionId, cmd: &str) -> String {
        let answer = self.exec(id, cmd).await.unwrap();
        assert_eq!(answer.end.exit_code, 0, "{cmd}: {answer:?}");
        answer.output.output.unwrap()
    }

    /// The chunks and the end of a stream.
    pub(crate) async fn stream(&self, id: &SessionId, cmd: &str) -> (Vec<String>, ExecEnd) {
        let request = ExecRequest { cmd: cmd.into(), ..ExecRequest::default() };
        let mut handle = self.engine.exec(id, request).await.unwrap();
        let (mut chunks, mut seq) = (Vec::new(), 0);
        loop {
            match handle.next().await.expect("an end") {
                ExecEvent::Chunk(chunk) => {
                    assert!(chunk.seq > seq);
                    seq = chunk.seq;
                    chunks.push(chunk.chunk.unwrap());
                }
                ExecEvent::Done { seq: last, end } => {
                    assert!(last > seq);
                    assert!(handle.next().await.is_none());
                    return (chunks, end);
                }
                ExecEvent::Gap(gap) => panic!("{gap:?}"),
                ExecEvent::Failed { error, .. } => panic!("{error}"),
            }
        }
    }

    /// The events of a command, each as it is shown.
    pub(crate) async fn events(
        &self,
        id: &SessionId,
        exec: &ExecId,
        from: EventsFrom,
    ) -> Vec<String> {
        let mut events = self.engine.exec_events(id, exec, from).await.unwrap();
        let mut all = Vec::new();
        while let Some(event) = events.next().await {
            all.push(format!("{event:?}"));
        }
        all
    }

    /// The number of the last event of a command that is there.
    pub(crate) async fn last_seq(&self, id: &SessionId, exec: &ExecId) -> u64 {
        let mut events = self.engine.exec_events(id, exec, EventsFrom::default()).await.unwrap();
        let mut last = 0;
        while let Some(event) = events.next().await {
            last = match event {
                ExecEvent::Chunk(chunk) => chunk.seq,
                ExecEvent::Gap(gap) => gap.seq,
                ExecEvent::Done { seq, .. } | ExecEvent::Failed { seq, .. } => seq,
            };
        }
        last
    }

    pub(crate) async fn write(
        &self,
        place: Place,
        path: &str,
        data: &[u8],
    ) -> Result<String, Error> {
        let request = CreateFile {
            path: path.into(),
            user: FileUser::Session,
            mode: None,
            parents: Parents::Make,
            expect: Expect::Anything,
        };
        let mut file = self.engine.create_file(place, request).await?;
        file.write(data.to_vec().into()).await?;
        let path = String::from_utf8(file.path().to_vec()).unwrap();
        file.commit().await?;
        Ok(path)
    }

    pub(crate) async fn read(&self, place: Place, path: &str) -> Result<Vec<u8>, Error> {
        let file = self.engine.read_file(place, path.as_bytes(), FileUser::Session, None).await?;
        Ok(file.bytes)
    }

    /// Freezes all processes of a session.
    pub(crate) fn freeze(&self, id: &SessionId) {
        fs::write(find_group(id).join("cgroup.freeze"), "1").unwrap();
    }

    /// The host pid of a session's init.
    pub(crate) fn init_pid(&self, id: &SessionId) -> rustix::process::Pid {
        let procs = find_group(id).join("cgroup.procs");
        let pids = fs::read_to_string(procs).unwrap();
        let first = pids.lines().map(|pid| pid.parse().unwrap()).min().unwrap();
        rustix::process::Pid::from_raw(first).unwrap()
    }

    /// What of this lab is left in the host's groups, folders and claims.
    pub(crate) fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        let folders = [self.dir.join("sessions")];
        for folder in folders {
            left.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()));
        }
        for claim in fs::read_dir("/run/sandkasten/uids").unwrap() {
            let path = claim.unwrap().path();
            let owner = fs::read_to_string(path.join("owner")).unwrap_or_default();
            if owner.lines().nth(1) == self.dir.to_str() {
                left.push(path);
            }
        }
        left
    }
}

/// The v2 group of a session, wherever the host has it.
fn find_group(id: &SessionId) -> PathBuf {
    let all = folders_below(Path::new("/sys/fs/cgroup")).into_iter();
    let mut groups = all.filter(|path| {
        path.file_name() == Some(id.as_str().as_ref()) && path.join("cgroup.kill").exists()
    });
    groups.next().unwrap_or_else(|| panic!("no group of {id}"))
}

fn folders_below(top: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![top.to_owned()];
    while let Some(folder) = folders.pop() {
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(below.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        found.push(folder);
    }
    found
}

/// Limits with that much memory, in MiB.
pub(crate) fn memory(memory_mb: u64) -> Limits {
    Limits { memory_mb: Some(memory_mb), ..Limits::default() }
}
