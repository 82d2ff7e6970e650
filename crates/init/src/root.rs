//! A command for box root: what it takes over from the shell.
//!
//! The command is a fresh `sh` of root's with the directory of the shell and the variables that it
//! exports. Only the kernel has these byte for byte, as the environment of what the shell starts: so
//! the shell starts a helper, which says its pid and waits at a gate until init has read that.
//!
//! What is read is the payload's, with the payload's rights. If the helper is not what it should be,
//! the payload has fooled itself.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use sandkasten_protocol::{Bytes, OutputMode, Run, Shell};

use crate::accounts::{Account, read_up_to};
use crate::environment;
use crate::line;
use crate::outcome::Outcome;
use crate::program::{Feed, Order, Output, Role, not_started};
use crate::rights::Ids;
use crate::runtime::Fifo;
use crate::status::{Said, Status};
use crate::supervisor::Base;
use crate::world::World;

/// Bytes of an environment: more than execve(2) takes.
const ENVIRONMENT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A longer command stands in a file: execve(2) takes no string of 128 KiB.
pub(crate) const ARGUMENT_BYTES_MAX: usize = 100 * 1024;

/// The helper, from the line that starts it to the end of that.
#[derive(Debug)]
pub(crate) struct Helper {
    said: Status,
    gate: Fifo,
    /// What it had, once that is read.
    variables: Option<Vec<Bytes>>,
}

impl Helper {
    /// # Errors
    /// No descriptor or no room for a FIFO.
    pub(crate) fn new(world: &mut World) -> io::Result<Self> {
        let gate = world.run.fifo_for_reading()?;
        let said = Status::new(&mut world.poller, &mut world.run)?;
        Ok(Self { said, gate, variables: None })
    }

    pub(crate) fn line(&self, shell: Shell, status: &str) -> Vec<u8> {
        line::show_environment(shell, (&self.said.path(), &self.gate.path()), status)
    }

    pub(crate) fn owns(&self, status: u32) -> bool {
        self.said.id == status
    }

    /// It has said something: reads its environment, and lets it go.
    pub(crate) fn on_status(&mut self, world: &World, shell: Option<Pid>, ids: Ids) {
        match self.said.read() {
            Said::NotYet => return,
            Said::Record(record) => {
                let pid = std::str::from_utf8(&record.word).ok().and_then(|n| n.parse().ok());
                self.variables = pid.and_then(|pid| variables(world, pid, shell, ids));
            }
            Said::Broken => {}
        }
        self.said.unwatch(&world.poller);
        // The gate is open for both: this can't fail, and waits there until it is read.
        let _ = rustix::io::write(&self.gate.read, b"\n");
    }

    /// Gives what was read.
    pub(crate) fn close(self, world: &World) -> Option<Vec<Bytes>> {
        self.said.close(&world.poller);
        self.variables
    }
}

/// The environment of a child of the shell.
fn variables(world: &World, pid: i32, shell: Option<Pid>, ids: Ids) -> Option<Vec<Bytes>> {
    let process = world.proc.process(pid)?;
    if Some(process.parent) != shell.map(Pid::as_raw_pid) {
        return None;
    }
    let text = world.rights.act_as(ids, || {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = format!("{pid}/environ");
        let file = rustix::fs::openat(world.proc.dir(), path, flags, Mode::empty()).ok()?;
        read_up_to(file, ENVIRONMENT_BYTES_MAX).ok()
    })?;
    let pairs = text.split(|b| *b == 0).filter(|pair| !pair.is_empty());
    // bash's word for the helper itself.
    let pairs = pairs.filter(|pair| !pair.starts_with(b"_="));
    Some(pairs.map(<[u8]>::to_vec).collect())
}

/// The directory that a process is in. It may have no name any more.
///
/// # Errors
/// The process is gone, or there is no descriptor.
pub(crate) fn dir_of(world: &World, pid: Pid, ids: Ids) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let link = format!("{}/cwd", pid.as_raw_pid());
    let opened = world
        .rights
        .act_as(ids, || rustix::fs::openat(world.proc.dir(), link, flags, Mode::empty()));
    Ok(opened?)
}

/// The command as a program. `text` is the command, or what runs the file that it stands in.
///
/// # Errors
/// How it ended: it can't be started.
pub(crate) fn order<'a>(
    account: &Account,
    (text, output): (Bytes, OutputMode),
    variables: &[Bytes],
    run: &Run,
    (base, feed): (Base<'a>, Feed),
) -> Result<Order<'a>, Outcome> {
    let mut changes = account.variables().to_vec();
    changes.extend(run.env.iter().cloned());
    let env = environment::build(variables.iter().map(Vec::as_slice), &changes);
    let output = match output {
        OutputMode::Merged => Output::Together,
        OutputMode::Split => Output::Apart,
        OutputMode::Pty => Output::Screen,
    };
    Ok(Order {
        paths: vec![CString::from(c"/bin/sh")],
        argv: vec![b"sh".to_vec(), b"-c".to_vec(), text],
        ids: account.ids,
        env: env.map_err(not_started)?,
        base,
        feed,
        output,
        role: Role::Command,
    })
}
