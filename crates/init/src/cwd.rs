//! The working directory of a shell, as the answer shows it.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::process::Pid;

use crate::rights::{Ids, Rights};

const DELETED: &[u8] = b" (deleted)";

/// `$PWD` where it names the shell's directory, else what the kernel calls that. A deleted directory
/// keeps its last name. `None` where the kernel says nothing.
///
/// init may not trace the payload, so both are asked with the rights of the shell's user.
pub(crate) fn of(
    rights: Rights,
    proc: impl AsFd,
    shell: Pid,
    ids: Ids,
    pwd: &[u8],
) -> Option<Vec<u8>> {
    rights.act_as(ids, || {
        let link = format!("{}/cwd", shell.as_raw_pid());
        let actual = rustix::fs::statat(proc.as_fd(), &link, AtFlags::empty()).ok();
        if let Some(actual) = &actual
            && names(pwd, actual)
        {
            return Some(pwd.to_vec());
        }
        let name = rustix::fs::readlinkat(proc, &link, Vec::new()).ok()?.into_bytes();
        Some(match name.strip_suffix(DELETED) {
            Some(last) if !actual.is_some_and(|actual| names(&name, &actual)) => last.to_vec(),
            _ => name,
        })
    })
}

/// Whether an absolute path leads to this directory.
fn names(path: &[u8], actual: &Stat) -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_MAGICLINKS;
    path.starts_with(b"/")
        && rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
            .and_then(|dir| rustix::fs::fstat(&dir))
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (actual.st_dev, actual.st_ino))
}
