//! Runs programs of the host that fetch and unpack: mmdebstrap, apt-get and pip.
//!
//! They inherit the environment as it is, so that they find the proxies and certificates that the
//! host is set up with; we read none of it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::process::Stdio;

use rustix::pipe::PipeFlags;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;

use super::{Progress, failed};
use crate::image::ImageError;

/// Lines of output that an error shows.
const LINES_SHOWN: usize = 12;

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
        Self { command: Command::new(file), name, package }
    }

    /// As [`new`](Self::new), in namespaces of its own: it leaves no mount, and all that it started
    /// ends with it.
    pub(super) fn contained(name: &'static str, package: &'static str) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--fork", "--kill-child", "--pid", "--mount", "--mount-proc", "--", name]);
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
        self.command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        self.command.env("LC_ALL", "C.UTF-8").kill_on_drop(true);
        let mut child = self.command.spawn().map_err(|err| self.cannot_run(&err))?;
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
        let status = child.wait().await?;
        if status.success() {
            return Ok(());
        }
        let shown: Vec<String> = last.into();
        Err(failed(format!("{} failed ({status}):\n{}", self.name, shown.join("\n"))))
    }

    /// Runs it and gives what it wrote to its output.
    pub(super) async fn output(mut self) -> Result<String, ImageError> {
        self.command.stdin(Stdio::null()).env("LC_ALL", "C.UTF-8").kill_on_drop(true);
        let output = self.command.output().await.map_err(|err| self.cannot_run(&err))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{} failed ({}):\n{said}", self.name, output.status)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn cannot_run(&self, err: &std::io::Error) -> ImageError {
        let (name, package) = (self.name, self.package);
        failed(format!("{name} can't be run ({err}); install it with `apt-get install {package}`"))
    }
}
