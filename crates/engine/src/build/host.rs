//! Runs programs of the host that fetch and unpack: mmdebstrap, apt-get and pip.
//!
//! They inherit the environment as it is, so that they find the proxies and certificates that the
//! host is set up with; we read none of it.
//!
//! Invariant: a program is given up whole. It runs in pid and mount namespaces and a process group of
//! its own, so a Ctrl-C at the terminal does not reach it, it leaves no mount, and all that it has
//! started ends with it, before [`Program::run`]'s future is dropped.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};

use super::{Progress, failed};
use crate::image::ImageError;

/// Lines of output that an error shows.
const LINES_SHOWN: usize = 12;

/// What `unshare` ends with where it can't run the program.
const NOT_FOUND: i32 = 127;

/// A program, its arguments, and the Debian package that has it.
pub(super) struct Program {
    command: Command,
    name: &'static str,
    package: &'static str,
}

impl Program {
    pub(super) fn new(name: &'static str, package: &'static str) -> Self {
        Self::at(name, name, package)
    }

    /// As [`new`](Self::new), for a program that is not on the path.
    pub(super) fn at(file: impl AsRef<OsStr>, name: &'static str, package: &'static str) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--"]);
        command.arg(file);
        Self { command, name, package }
    }

    pub(super) fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.command.arg(arg);
        self
    }

    pub(super) fn args<A: AsRef<OsStr>>(&mut self, args: impl IntoIterator<Item = A>) -> &mut Self {
        self.command.args(args);
        self
    }

    pub(super) fn env(&mut self, key: &str, value: impl AsRef<OsStr>) -> &mut Self {
        self.command.env(key, value);
        self
    }

    /// Runs it to its end and says its lines.
    pub(super) async fn run(mut self, progress: Progress<'_>) -> Result<(), ImageError> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        self.command.stdout(writer.try_clone()?).stderr(writer);
        let mut running = self.start()?;
        // It holds our ends of the pipe.
        drop(std::mem::replace(&mut self.command, Command::new("true")));
        let mut lines = BufReader::new(Receiver::from_owned_fd(reader)?);
        let (mut last, mut line) = (VecDeque::new(), Vec::new());
        while lines.read_until(b'\n', &mut line).await? > 0 {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if text.is_empty() {
                continue;
            }
            progress(&text);
            if last.len() == LINES_SHOWN {
                last.pop_front();
            }
            last.push_back(text);
        }
        let shown = |last: VecDeque<String>| Vec::from(last).join("\n");
        self.succeeded(running.wait().await?, || shown(last))
    }

    /// Runs it and gives what it wrote to its output.
    pub(super) async fn output(mut self) -> Result<String, ImageError> {
        let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (errors, their_errors) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        self.command.stdout(writer).stderr(their_errors);
        let mut running = self.start()?;
        drop(std::mem::replace(&mut self.command, Command::new("true")));
        let (output, errors) = tokio::try_join!(whole(reader), whole(errors))?;
        self.succeeded(running.wait().await?, || errors)?;
        Ok(output)
    }

    fn start(&mut self) -> Result<Running, ImageError> {
        self.command.stdin(Stdio::null()).env("LC_ALL", "C.UTF-8").process_group(0);
        let child = self.command.spawn();
        let child = child.map_err(|err| failed(format!("unshare can't be run: {err}")))?;
        Running::new(child)
    }

    fn succeeded(
        &self,
        status: ExitStatus,
        said: impl FnOnce() -> String,
    ) -> Result<(), ImageError> {
        if status.success() {
            return Ok(());
        }
        let (name, package, said) = (self.name, self.package, said());
        if status.code() == Some(NOT_FOUND) {
            let text =
                format!("{name} can't be run: {said}\ninstall it with `apt-get install {package}`");
            return Err(failed(text));
        }
        Err(failed(format!("{name} failed ({status}):\n{said}")))
    }
}

/// All that comes out of a pipe, as text.
async fn whole(pipe: OwnedFd) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let mut pipe = Receiver::from_owned_fd(pipe)?;
    tokio::io::AsyncReadExt::read_to_end(&mut pipe, &mut bytes).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A program that runs: `unshare`, which leads a process group, and below it the first process of the
/// new pid namespace. Dropped, all of it is killed, and is gone.
struct Running {
    child: Child,
    pid: Pid,
    pidfd: OwnedFd,
    ended: bool,
}

impl Running {
    fn new(child: Child) -> Result<Self, ImageError> {
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        let pid = pid.ok_or_else(|| failed("a program ended before it was seen"))?;
        // It is a child that nobody has waited for, so the number is its own.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { child, pid, pidfd, ended: false })
    }

    async fn wait(&mut self) -> Result<ExitStatus, ImageError> {
        let status = self.child.wait().await?;
        self.ended = true;
        Ok(status)
    }

    /// Kills the group. The namespace's first process is in it, unless it left; with it goes whatever
    /// the namespace has.
    fn kill(&self) {
        let first = children(self.pid);
        // Gone already: then there is nothing to wait for either.
        kill_process_group(self.pid, Signal::KILL).ok();
        for process in first.iter().chain([&self.pidfd]) {
            // A pidfd is readable once its process has ended; a first process ends after all others.
            while poll(&mut [PollFd::new(process, PollFlags::IN)], None)
                == Err(rustix::io::Errno::INTR)
            {}
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

/// Handles of a process's children.
fn children(of: Pid) -> Vec<OwnedFd> {
    let of = of.as_raw_nonzero();
    let list = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
    let pids = list.unwrap_or_default();
    let pids = pids.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    pids.filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
}

#[cfg(test)]
mod test {
    use std::sync::mpsc;

    use super::*;

    /// The programs below are in namespaces, which takes root.
    fn is_root() -> bool {
        rustix::process::geteuid().is_root()
    }

    fn sh(script: &str) -> Program {
        let mut sh = Program::new("sh", "dash");
        sh.args(["-c", script]);
        sh
    }

    #[tokio::test]
    async fn lines_and_output_come_back() {
        if !is_root() {
            return;
        }
        let (sender, lines) = mpsc::channel();
        let said = move |line: &str| drop(sender.send(line.to_owned()));
        sh("echo a; echo b >&2").run(&said).await.unwrap();
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(sh("echo a; echo b >&2").output().await.unwrap(), "a\n");
        let failure = sh("echo why >&2; exit 3").output().await.unwrap_err().to_string();
        assert!(failure.contains("why") && failure.contains("exit status: 3"), "{failure}");
        let failure = Program::new("no-such-program", "some-package").output().await;
        let failure = failure.unwrap_err().to_string();
        assert!(failure.contains("apt-get install some-package"), "{failure}");
    }

    /// Of a program that is given up nothing is left, not even what it put elsewhere.
    #[tokio::test]
    async fn what_is_given_up_is_gone() {
        if !is_root() {
            return;
        }
        let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
        let said = move |line: &str| drop(sender.send(line.to_owned()));
        let mark = format!("sandkasten-given-up-{}", std::process::id());
        let script = format!(
            "trap '' INT TERM HUP; setsid sh -c 'sleep 1000; : {mark}' & echo ready; sleep 1000"
        );
        tokio::select! {
            ended = sh(&script).run(&said) => panic!("{ended:?}"),
            line = lines.recv() => assert_eq!(line.as_deref(), Some("ready")),
        }
        let left = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&mark)
        });
        assert_eq!(left.count(), 0);
    }
}
