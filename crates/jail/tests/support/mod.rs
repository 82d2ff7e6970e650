//! A box of busybox, made with this crate alone, and init's protocol spoken to it.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, process};

use sandkasten_jail::{
    Beneath, Cgroup, CgroupLimits, Cgroups, LaunchError, Launcher, Plan, SeccompProfile, Started,
    memfd, seccomp, tree,
};
use sandkasten_protocol as protocol;
use sandkasten_protocol::{Decoder, End, FromInit, ToInit};

/// A directory, removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(parent: &Path) -> Self {
        let path = parent.join(format!("sandkasten-jail-{}", process::id()));
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// What a box is made with, beside what a [`Host`] has.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) uid_base: u32,
    pub(crate) user: u32,
    pub(crate) readonly_rootfs: bool,
    pub(crate) seccomp: SeccompProfile,
    pub(crate) limits: CgroupLimits,
    pub(crate) extra_layers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            uid_base: 100_000 + 65_536 * 7,
            user: protocol::id::SANDBOX,
            readonly_rootfs: false,
            seccomp: SeccompProfile::Strict,
            limits: CgroupLimits { memory_bytes: 64 << 20, cpu_cores: 0.5, pids: 50 },
            extra_layers: 0,
        }
    }
}

/// Launcher, groups and an image.
pub(crate) struct Host {
    pub(crate) launcher: Launcher,
    pub(crate) cgroups: Option<Cgroups>,
    pub(crate) folder: Folder,
}

pub(crate) const PARENT: CgroupLimits =
    CgroupLimits { memory_bytes: 1 << 30, cpu_cores: 2.0, pids: 2000 };

impl Host {
    /// `parent` lies on a file system that can be idmapped.
    pub(crate) fn new(parent: &Path, busybox: &Path) -> Self {
        let launcher = Launcher::spawn().expect("launcher");
        let folder = Folder::new(parent);
        let tag = format!("test-{}", process::id());
        let cgroups = Cgroups::open(&tag, &PARENT).expect("cgroups");
        make_image(&folder.0.join("layer"), busybox);
        Self { launcher, cgroups: Some(cgroups), folder }
    }

    pub(crate) fn start(&self, name: &str, options: &Options) -> Result<Session, LaunchError> {
        let cgroups = self.cgroups.as_ref().unwrap();
        let cgroup = cgroups.create(name, &options.limits).expect("cgroup");
        let started = self.launch(name, options, &cgroup);
        if started.is_err() {
            cgroup.remove().expect("nothing is left of a launch that failed");
        }
        let (started, socket) = started?;
        Ok(Self::attach(started, cgroup, &socket))
    }

    /// Connects to the init of a box.
    pub(crate) fn attach(started: Started, cgroup: Cgroup, socket: &Path) -> Session {
        Session { started, cgroup, link: Link::new(socket), next_run: 1 }
    }

    fn launch(
        &self,
        name: &str,
        options: &Options,
        cgroup: &Cgroup,
    ) -> Result<(Started, PathBuf), LaunchError> {
        let (plan, socket) = self.plan(name, options, cgroup)?;
        Ok((self.launcher.launch(plan)?, socket))
    }

    /// Files and descriptors of a box, and its control socket.
    pub(crate) fn plan(
        &self,
        name: &str,
        options: &Options,
        cgroup: &Cgroup,
    ) -> Result<(Plan, PathBuf), LaunchError> {
        let base = options.uid_base;
        let namespace = self.launcher.user_namespace(base)?;
        let dir = self.folder.0.join(name);
        for (part, mode) in [("upper", 0o755), ("work", 0o700), ("spool", 0o700), ("ws", 0o755)] {
            let path = dir.join(part);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
        chown(dir.join("upper"), Some(base), Some(base))?;
        chown(dir.join("ws"), Some(1000), Some(1000))?;
        let init = base + protocol::id::INIT;
        chown(dir.join("spool"), Some(init), Some(init))?;
        let socket = dir.join("control.sock");
        let listener = UnixListener::bind(&socket)?;
        let idmapped =
            |path: &Path| tree::idmapped_clone(Beneath::open(path)?.as_fd(), namespace.as_fd());
        let mut layers = Vec::new();
        for n in 0..options.extra_layers {
            let layer = self.folder.0.join(format!("extra-{n}"));
            fs::create_dir_all(&layer)?;
            layers.push(idmapped(&layer)?);
        }
        layers.push(idmapped(&self.folder.0.join("layer"))?);
        let plan = Plan {
            name: name.to_owned(),
            layers,
            scratch: tree::clone_tree(Beneath::open(&dir)?.as_fd())?,
            workspace: Some(idmapped(&dir.join("ws"))?),
            readonly_rootfs: options.readonly_rootfs,
            user_namespace: namespace,
            uid_base: base,
            cgroup: cgroup.fds()?,
            tmp_bytes: 16 << 20,
            shm_bytes: 8 << 20,
            seccomp: options.seccomp,
            listener: listener.into(),
            config: memfd::sealed("config", &config(options))?,
            spool: OwnedFd::from(fs::File::open(dir.join("spool"))?),
        };
        Ok((plan, socket))
    }

    /// Ends a session and waits until nothing of it is left.
    pub(crate) fn end(&self, session: Session) {
        session.cgroup.kill().unwrap();
        session.cgroup.remove().unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(cgroups) = self.cgroups.take() else { return };
        for session in cgroups.list() {
            if let Some(cgroup) = cgroups.find(&session) {
                drop(cgroup.kill());
            }
            drop(cgroups.remove(&session));
        }
        cgroups.close();
    }
}

const NONCE: [u8; 16] = *b"0123456789abcdef";

fn config(options: &Options) -> Vec<u8> {
    let user = protocol::User { uid: options.user, gid: options.user };
    let env = [("PATH", "/bin:/sbin"), ("HOME", "/home/sandbox")];
    let config = protocol::Config {
        version: protocol::VERSION,
        nonce: NONCE,
        user,
        env: env.map(|(name, value)| (name.into(), value.into())).to_vec(),
        cwd: b"/workspace".to_vec(),
        shell: protocol::ShellPreference::Sh,
        payload_filter: seccomp::payload_filter(options.seccomp),
    };
    postcard::to_stdvec(&config).unwrap()
}

/// A layer with busybox under all its names.
fn make_image(root: &Path, busybox: &Path) {
    let folders = [
        ("", 0o755),
        ("bin", 0o755),
        ("sbin", 0o755),
        ("etc", 0o755),
        ("home", 0o755),
        ("home/sandbox", 0o755),
        ("workspace", 0o755),
        ("tmp", 0o755),
        ("dev", 0o755),
        ("proc", 0o755),
        ("root", 0o700),
        (".sandkasten", 0o711),
    ];
    for (name, mode) in folders {
        fs::create_dir(root.join(name)).unwrap();
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    fs::set_permissions(root.join("bin/busybox"), fs::Permissions::from_mode(0o755)).unwrap();
    for name in [
        "sh", "ls", "cat", "id", "mount", "umount", "grep", "sleep", "echo", "touch", "readlink",
        "mkdir", "stat", "chown", "chmod", "mknod", "hostname", "ping", "nc", "dd", "true", "yes",
        "ps", "kill", "wc", "tr", "sort", "su", "head", "chroot", "pwd", "rm", "seq", "test",
        "unshare", "ifconfig", "df", "awk", "cut", "find", "ln", "tty", "rmdir", "env",
    ] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let passwd = "root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n";
    fs::write(root.join("etc/passwd"), passwd).unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\ntty:x:5:\nsandbox:x:1000:\n").unwrap();
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost sandbox\n").unwrap();
    chown(root.join("home/sandbox"), Some(1000), Some(1000)).unwrap();
}

/// A running box and the connection to its init.
pub(crate) struct Session {
    pub(crate) started: Started,
    pub(crate) cgroup: Cgroup,
    link: Link,
    next_run: u64,
}

impl Session {
    /// Runs a command in the box's shell; all it wrote, and how it ended.
    pub(crate) fn run(&mut self, cmd: &str) -> (String, End) {
        self.run_as(protocol::RunUser::Session, cmd, "")
    }

    /// The same with a stdin, perhaps as box root.
    pub(crate) fn run_as(
        &mut self,
        user: protocol::RunUser,
        cmd: &str,
        stdin: &str,
    ) -> (String, End) {
        let output = protocol::OutputMode::Merged;
        self.task(protocol::Task::Command { cmd: cmd.into(), output, user }, stdin)
    }

    /// The same of a program with that stdin; on a terminal where it has a size.
    #[allow(dead_code, reason = "the example has no use for it")]
    pub(crate) fn program(
        &mut self,
        argv: &[&str],
        user: protocol::RunUser,
        (stdin, tty): (&str, Option<protocol::Window>),
    ) -> (String, End) {
        let argv = argv.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.task(protocol::Task::Program { argv, user, tty }, stdin)
    }

    fn task(&mut self, task: protocol::Task, input: &str) -> (String, End) {
        let id = self.next_run;
        self.next_run += 1;
        let (timeout_ms, reader) = (Some(30_000), protocol::Reader::Paced);
        let stdin = if input.is_empty() { protocol::Stdin::Empty } else { protocol::Stdin::Piped };
        let run = protocol::Run { timeout_ms, reader, stdin, ..protocol::Run::new(id) };
        self.link.send(&ToInit::Begin { run, task });
        if stdin == protocol::Stdin::Piped {
            let data = input.as_bytes().to_vec();
            self.link.send(&ToInit::Stdin { run: id, data, is_last: true });
        }
        let mut output = Vec::new();
        loop {
            match self.link.next() {
                FromInit::Output { run, records } if run == id => {
                    let cost = records.iter().map(protocol::Record::cost).sum();
                    self.link.send(&ToInit::Credit { run, cost });
                    output.extend(records.into_iter().flat_map(|record| record.data));
                }
                FromInit::End { run, end } if run == id => {
                    self.link.send(&ToInit::Settle { run, note: Vec::new() });
                    return (String::from_utf8_lossy(&output).into_owned(), end);
                }
                FromInit::Begun { run, .. } | FromInit::Taken { run, .. } if run == id => {}
                other => panic!("init said {other:?}"),
            }
        }
    }

    /// What a command wrote, without the last newline.
    pub(crate) fn output(&mut self, cmd: &str) -> String {
        self.run(cmd).0.trim_end().to_owned()
    }
}

struct Link {
    stream: UnixStream,
    decoder: Decoder<FromInit>,
}

impl Link {
    fn new(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        let mut link = Self { stream, decoder: Decoder::new(protocol::FROM_INIT_BYTES_MAX) };
        link.send(&ToInit::Attach { version: protocol::VERSION, nonce: NONCE });
        match link.next() {
            FromInit::Hello(hello) => assert_eq!(hello.nonce, NONCE),
            other => panic!("init said {other:?}"),
        }
        link
    }

    fn send(&mut self, message: &ToInit) {
        let frame = protocol::encode(message, protocol::TO_INIT_BYTES_MAX).unwrap();
        self.stream.write_all(&frame).unwrap();
    }

    fn next(&mut self) -> FromInit {
        let mut bytes = vec![0; 65_536];
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            let read = self.stream.read(&mut bytes).unwrap();
            assert!(read > 0, "{}", io::Error::other("init has closed the connection"));
            self.decoder.push(&bytes[..read]);
        }
    }
}
