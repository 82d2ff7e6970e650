//! A box for tests: the real init in namespaces of its own, and the engine's side of its socket.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of the harness")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    clippy::disallowed_methods,
    clippy::indexing_slicing,
    reason = "a harness fails loudly and may run programs"
)]

use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, Signal, kill_process};
use sandkasten_protocol::*;

const NONCE: [u8; 16] = *b"0123456789abcdef";
/// Nothing that a test waits for takes that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A command, as a test wants it.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) cmd: Vec<u8>,
    pub(crate) timeout_ms: u64,
    pub(crate) output: OutputMode,
    pub(crate) cwd: Option<Vec<u8>>,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) reader: Reader,
    pub(crate) spool: Spool,
    pub(crate) note: Vec<u8>,
    pub(crate) stdin: Stdin,
    pub(crate) user: RunUser,
}

impl Exec {
    pub(crate) fn new(cmd: &str) -> Self {
        let (cmd, timeout_ms) = (cmd.into(), 30_000);
        let (env, note, stdin) = (Vec::new(), Vec::new(), Stdin::Empty);
        let spool = Spool::Together { bytes: SPOOL_BYTES };
        let (output, reader) = (OutputMode::Merged, Reader::Paced);
        let user = RunUser::Session;
        Self { cmd, timeout_ms, output, cwd: None, env, reader, spool, note, stdin, user }
    }

    pub(crate) fn begin(self, id: u64) -> ToInit {
        let Self { cmd, timeout_ms, output, cwd, env, reader, spool, note, stdin, user } = self;
        let timeout_ms = Some(timeout_ms);
        let run = Run { id, note, timeout_ms, cwd, env, stdin, reader, spool };
        ToInit::Begin { run, task: Task::Command { cmd, output, user } }
    }
}

/// Which root file system a box has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Image {
    /// bash, and dash as sh.
    Debian,
    /// busybox alone.
    Busybox,
    /// No program at all.
    Bare,
}

/// The shell a test speaks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Bash,
    Dash,
    Busybox,
}

/// What a new shell has of the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    State,
    Nothing,
}

/// A session's init and a connection to it.
#[derive(Debug)]
pub(crate) struct Sandbox {
    unshare: Child,
    /// Host pid of init.
    pub(crate) init: Pid,
    dir: PathBuf,
    pub(crate) link: Client,
    pub(crate) hello: Hello,
    /// What init said that it keeps.
    pub(crate) known: Vec<Known>,
    next_run: u64,
    next_tag: u32,
}

/// The engine's side of a connection.
#[derive(Debug)]
pub(crate) struct Client {
    stream: UnixStream,
    decoder: Decoder<FromInit>,
    descriptors: Vec<OwnedFd>,
}

/// All that one command gave.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) out: String,
    pub(crate) bytes: Vec<(Stream, Vec<u8>)>,
    pub(crate) end: End,
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn code(&self) -> i32 {
        self.end.exit_code
    }

    pub(crate) fn cwd(&self) -> String {
        String::from_utf8_lossy(&self.end.cwd).into_owned()
    }

    /// Exit code and output.
    #[track_caller]
    pub(crate) fn is(&self, code: i32, out: &str) -> &Self {
        assert_eq!((self.code(), self.out.as_str()), (code, out), "{:?}", self.end);
        self.at_once()
    }

    #[track_caller]
    pub(crate) fn at_once(&self) -> &Self {
        assert!(self.took < Duration::from_secs(2), "took {:?}", self.took);
        self
    }

    pub(crate) fn of(&self, stream: Stream) -> String {
        let parts = self.bytes.iter().filter(|(s, _)| *s == stream).map(|(_, b)| b.as_slice());
        String::from_utf8_lossy(&parts.collect::<Vec<_>>().concat()).into_owned()
    }
}

impl Sandbox {
    pub(crate) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Bash => Self::with(Image::Debian, ShellPreference::Bash, id::SANDBOX),
            Kind::Dash => Self::with(Image::Debian, ShellPreference::Sh, id::SANDBOX),
            Kind::Busybox => Self::with(Image::Busybox, ShellPreference::Bash, id::SANDBOX),
        }
    }

    pub(crate) fn with(image: Image, shell: ShellPreference, uid: u32) -> Self {
        let dir = fresh_dir();
        let root = dir.join("root");
        std::fs::create_dir(&root).unwrap();
        let listener = UnixListener::bind(dir.join("control.sock")).unwrap();
        let spool = dir.join("spool");
        std::fs::create_dir(&spool).unwrap();
        std::os::unix::fs::chown(&spool, Some(id::INIT), Some(id::INIT)).unwrap();
        let spool = std::fs::File::open(spool).unwrap();
        let config = config(shell, uid);
        // Numbers that enter.sh puts nothing else to.
        let descriptors = [listener.as_fd(), config.as_fd(), spool.as_fd()]
            .map(|descriptor| rustix::io::fcntl_dupfd_cloexec(descriptor, 20).unwrap());
        for descriptor in &descriptors {
            rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).unwrap();
        }
        let mut unshare = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--propagation", "private", "--", "bash", "-c"])
            .arg(include_str!("enter.sh"))
            .arg("enter.sh")
            .arg(&root)
            .arg(match image {
                Image::Debian => "debian",
                Image::Busybox => "busybox",
                Image::Bare => "bare",
            })
            .arg(env!("CARGO_BIN_EXE_sandkasten-init"))
            .args(descriptors.each_ref().map(|d| d.as_raw_fd().to_string()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        drop((listener, descriptors));
        let Some((link, hello, known)) = Client::attach(&dir) else {
            let log = std::fs::read_to_string(dir.join("root.log")).unwrap_or_default();
            let status = unshare.wait();
            drop(std::fs::remove_dir_all(&dir));
            panic!("the box ended: {status:?} {log}");
        };
        let init = child_of(unshare.id());
        let next_run = hello.next_run;
        Self { unshare, init, dir, link, hello, known, next_run, next_tag: 0 }
    }

    /// Connects anew, as an engine that was restarted.
    pub(crate) fn reattach(&mut self) {
        let (link, hello, known) = Client::attach(&self.dir).unwrap();
        self.link = link;
        self.known = known;
        self.next_run = self.next_run.max(hello.next_run);
        self.hello = hello;
    }

    /// Closes the connection.
    pub(crate) fn detach(&mut self) {
        self.link.stream.shutdown(std::net::Shutdown::Both).unwrap();
    }

    pub(crate) fn socket_dir(&self) -> &Path {
        &self.dir
    }

    /// A file of the workspace, as the host sees it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        format!("/proc/{}/root/workspace/{name}", self.init.as_raw_pid()).into()
    }

    pub(crate) fn run(&mut self, cmd: &str) -> Answer {
        self.run_with(cmd, |_| {})
    }

    pub(crate) fn run_for(&mut self, cmd: &str, timeout_ms: u64) -> Answer {
        self.run_with(cmd, |exec| exec.timeout_ms = timeout_ms)
    }

    pub(crate) fn run_with(&mut self, cmd: &str, change: impl FnOnce(&mut Exec)) -> Answer {
        let id = self.begin(cmd, change);
        self.finish(id)
    }

    /// A number that no run has had.
    pub(crate) fn fresh_run(&mut self) -> u64 {
        self.next_run += 1;
        self.next_run - 1
    }

    /// Asks for a new shell and does not wait.
    pub(crate) fn restart(&mut self, keep: Keep) -> u64 {
        let id = self.next_run;
        self.next_run += 1;
        let keep_state = keep == Keep::State;
        self.link.send(&ToInit::Begin { run: Run::new(id), task: Task::Restart { keep_state } });
        id
    }

    /// Sends a command and does not wait.
    pub(crate) fn begin(&mut self, cmd: &str, change: impl FnOnce(&mut Exec)) -> u64 {
        let id = self.next_run;
        self.next_run += 1;
        let mut exec = Exec::new(cmd);
        change(&mut exec);
        self.link.send(&exec.begin(id));
        id
    }

    /// Takes everything up to the end of a command, giving credit for it.
    pub(crate) fn finish(&mut self, id: u64) -> Answer {
        let began = Instant::now();
        let mut bytes: Vec<(Stream, Vec<u8>)> = Vec::new();
        loop {
            match self.link.next().expect("init closed the connection") {
                FromInit::Output { run, records } => {
                    assert_eq!(run, id, "output of another command");
                    let cost = records.iter().map(Record::cost).sum();
                    self.link.send(&ToInit::Credit { run, cost });
                    for Record { stream, data, .. } in records {
                        assert!(!data.is_empty() && data.len() <= RECORD_BYTES_MAX);
                        bytes.push((stream, data));
                    }
                }
                FromInit::End { run, end } => {
                    assert_eq!(run, id, "end of another command");
                    self.link.send(&ToInit::Settle { run, note: Vec::new() });
                    let all: Vec<u8> = bytes.iter().flat_map(|(_, b)| b.clone()).collect();
                    let out = String::from_utf8_lossy(&all).into_owned();
                    return Answer { out, bytes, end, took: began.elapsed() };
                }
                FromInit::Taken { run, .. } => assert!(run < id),
                // Beyond 1024 runs one goes for each that ends.
                FromInit::Forgotten { run } => assert!(run < id),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next frame, where there must be one.
    #[track_caller]
    pub(crate) fn next(&mut self) -> FromInit {
        self.link.next().expect("init closed the connection")
    }

    /// Asks for what is kept of a run. Frames of other kinds must not come before the answer.
    #[track_caller]
    pub(crate) fn part(&mut self, run: u64, after: u64, wait: Wait) -> Option<Part> {
        let tag = self.ask(run, after, wait);
        self.answer_to(tag)
    }

    pub(crate) fn ask(&mut self, run: u64, after: u64, wait: Wait) -> u32 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.link.send(&ToInit::Replay(Replay { tag, run, after, stream: None, wait }));
        tag
    }

    #[track_caller]
    pub(crate) fn answer_to(&mut self, tag: u32) -> Option<Part> {
        match self.next() {
            FromInit::Replayed { tag: answered, part } => {
                assert_eq!(answered, tag);
                part
            }
            other => panic!("{other:?}"),
        }
    }

    /// All that is kept of a run behind an event, and what stands behind it.
    #[track_caller]
    pub(crate) fn replay(&mut self, run: u64, mut after: u64) -> (Vec<Item>, Then) {
        let mut items = Vec::new();
        loop {
            let part = self.part(run, after, Wait::No).expect("the run is kept");
            after = part.items.last().map_or(after, event);
            items.extend(part.items);
            if part.then != Then::More {
                return (items, part.then);
            }
        }
    }

    /// `echo alive` works.
    #[track_caller]
    pub(crate) fn is_alive(&mut self) {
        self.run("echo alive").is(0, "alive\n");
    }

    pub(crate) fn file(&mut self, op: FileOp) -> (Result<FileDone, FileFault>, Option<OwnedFd>) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.link.send(&ToInit::File { tag, op });
        match self.link.next().expect("init closed the connection") {
            FromInit::File { tag: answered, result } => {
                assert_eq!(answered, tag);
                (result, self.link.descriptors.pop())
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // init is the box: with it everything goes, mounts too.
        let _ = kill_process(self.init, Signal::KILL);
        drop(self.unshare.wait());
        drop(std::fs::remove_dir_all(&self.dir));
    }
}

/// The number of an item as an event.
pub(crate) fn event(item: &Item) -> u64 {
    match item {
        Item::Record(record) => record.seq,
        Item::Gap { to_seq, .. } => *to_seq,
        Item::End { seq } => *seq,
    }
}

/// The output in some items, as text.
pub(crate) fn text_of(items: &[Item]) -> String {
    let data = items.iter().map(|item| match item {
        Item::Record(record) => record.data.as_slice(),
        Item::Gap { .. } | Item::End { .. } => b"",
    });
    String::from_utf8(data.collect::<Vec<_>>().concat()).unwrap()
}

/// All bytes of some output.
pub(crate) fn joined(records: &[Record]) -> Vec<u8> {
    records.iter().flat_map(|record| record.data.clone()).collect()
}

impl Client {
    /// Connects without saying anything.
    pub(crate) fn connect(dir: &Path) -> Self {
        let stream = UnixStream::connect(dir.join("control.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, decoder: Decoder::new(FROM_INIT_BYTES_MAX), descriptors: Vec::new() }
    }

    fn attach(dir: &Path) -> Option<(Self, Hello, Vec<Known>)> {
        let mut client = Self::connect(dir);
        client.send(&ToInit::Attach { version: VERSION, nonce: NONCE });
        match client.next()? {
            FromInit::Hello(hello) => {
                assert_eq!((hello.version, hello.nonce), (VERSION, NONCE));
                let known = (0..hello.runs).map(|_| match client.next() {
                    Some(FromInit::Known(known)) => known,
                    other => panic!("{other:?}"),
                });
                let known = known.collect();
                Some((client, hello, known))
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn send(&mut self, frame: &ToInit) {
        self.send_bytes(&encode(frame, TO_INIT_BYTES_MAX).unwrap());
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next frame; `None`: the connection is closed.
    pub(crate) fn next(&mut self) -> Option<FromInit> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(frame);
            }
            let mut bytes = [0; 64 * 1024];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let iov = &mut [std::io::IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let got = rustix::net::recvmsg(&self.stream, iov, &mut control, flags);
            let length = match got {
                Ok(got) => got.bytes,
                Err(rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE) => return None,
                Err(error) => panic!("init says nothing: {error}"),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    self.descriptors.extend(descriptors);
                }
            }
            if length == 0 {
                return None;
            }
            self.decoder.push(&bytes[..length]);
        }
    }
}

fn fresh_dir() -> PathBuf {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    let dir = std::env::temp_dir().join(format!("init-test-{:016x}", u64::from_ne_bytes(bytes)));
    std::fs::create_dir(&dir).unwrap();
    dir
}

fn config(shell: ShellPreference, uid: u32) -> OwnedFd {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let env =
        [("PATH", path), ("HOME", "/home/sandbox"), ("TERM", "dumb"), ("LC_CTYPE", "C.UTF-8")];
    let allow_all = [6u8, 0, 0, 0, 0, 0, 0xff, 0x7f];
    let config = Config {
        version: VERSION,
        nonce: NONCE,
        user: User { uid, gid: uid },
        env: env.map(|(n, v)| (n.into(), v.into())).to_vec(),
        cwd: b"/workspace".to_vec(),
        shell,
        payload_filter: allow_all.to_vec(),
    };
    let memfd = rustix::fs::memfd_create("config", MemfdFlags::CLOEXEC).unwrap();
    let bytes = encode(&config, usize::MAX).unwrap();
    let mut file = std::fs::File::from(memfd);
    file.write_all(&bytes[4..]).unwrap();
    file.into()
}

/// The only child of a process.
fn child_of(pid: u32) -> Pid {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}
