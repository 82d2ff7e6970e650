//! Gives a tree one mode. Links keep theirs, which nobody asks for.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::Kind;

use crate::channel::Channel;
use crate::done::Done;
use crate::fault::{Failure, fault};
use crate::meta::{MODE_BITS, kind};
use crate::root::Root;
use crate::walk::open_dir;
use crate::walk::{Found, Step, Walk};

pub(crate) fn chmod(
    root: &Root,
    path: &[u8],
    mode: u32,
    channel: &mut dyn Channel,
) -> Result<Done, Failure> {
    let mode = Mode::from_raw_mode(mode & MODE_BITS);
    let top = root.find(path, OFlags::empty())?;
    if kind(rustix::fs::fstat(&top)?.st_mode) != Kind::Dir {
        set(&top, mode)?;
        return Ok(Done::WHOLE);
    }
    let mut failed = None;
    let walk = match open_dir(top.as_fd(), b".").and_then(|dir| Walk::new(dir, usize::MAX)) {
        // The new mode may allow what the old one does not.
        Err(FileFault::PermissionDenied) => {
            set(&top, mode)?;
            Walk::new(open_dir(top.as_fd(), b".")?, usize::MAX)?
        }
        walk => walk?,
    };
    below(walk, mode, (&mut failed, channel))?;
    set(&top, mode)?;
    match failed {
        Some(failure) => Err(failure),
        None => Ok(Done::WHOLE),
    }
}

/// A directory comes after what is in it, since its new mode may keep us out.
pub(crate) fn below(
    mut walk: Walk,
    mode: Mode,
    (failed, channel): (&mut Option<Failure>, &mut dyn Channel),
) -> Result<(), Failure> {
    while let Some(step) = walk.next_step()? {
        channel.pulse()?;
        let (found, entered) = match step {
            Step::Entry(found) if found.kind() == Kind::Symlink => continue,
            Step::Entry(found) if found.is_dir() => match walk.enter(&found) {
                Ok(()) => continue,
                Err(FileFault::PermissionDenied) => {
                    let again = set_found(&walk, &found, mode).and_then(|()| walk.enter(&found));
                    (found, again)
                }
                Err(fault) => (found, Err(fault)),
            },
            Step::Entry(found) | Step::Left(found) => {
                let set = set_found(&walk, &found, mode);
                (found, set)
            }
        };
        match entered {
            Ok(()) | Err(FileFault::NotFound) => {}
            Err(fault) => {
                failed.get_or_insert_with(|| Failure::at(fault, &found.path));
            }
        }
    }
    if walk.is_cut() {
        return Err(FileFault::TooLarge.into());
    }
    Ok(())
}

fn set_found(walk: &Walk, found: &Found, mode: Mode) -> Result<(), FileFault> {
    let dir = walk.dir().ok_or(FileFault::NotFound)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, found.name.as_slice(), flags, Mode::empty());
    let file = file.map_err(fault)?;
    let is_link = kind(rustix::fs::fstat(&file).map_err(fault)?.st_mode) == Kind::Symlink;
    if is_link { Ok(()) } else { set(&file, mode).map_err(fault) }
}

/// By what was opened without reading, which fchmod(2) does not take.
fn set(file: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    rustix::fs::chmodat(
        CWD,
        format!("/proc/self/fd/{}", file.as_raw_fd()),
        mode,
        rustix::fs::AtFlags::empty(),
    )
}
