//! Lists a directory, some levels deep. Links are shown, not followed.

use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::{Entry, Item};

use crate::channel::Channel;
use crate::done::Done;
use crate::fault::Failure;
use crate::meta::meta;
use crate::root::Root;
use crate::walk::{Step, Walk};

pub(crate) fn list(
    root: &Root,
    path: &[u8],
    (depth, limit): (u32, u64),
    channel: &mut dyn Channel,
) -> Result<Done, Failure> {
    let names_max = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut walk = Walk::new(root.open_dir(path)?, names_max)?;
    let mut told = 0;
    while let Some(step) = walk.next_step()? {
        let Step::Entry(found) = step else { continue };
        let Some(dir) = walk.dir() else { continue };
        if told == limit {
            return Ok(Done { truncated: true });
        }
        told += 1;
        let meta = meta(&found.stat, dir, &found.name);
        channel.tell(Item::Entry(Entry { path: found.path.clone(), meta }))?;
        if found.is_dir() && walk.depth() < depth as usize {
            passable(walk.enter(&found)).map_err(|fault| Failure::at(fault, &found.path))?;
        }
    }
    Ok(Done { truncated: walk.is_cut() })
}

/// What keeps a walk from going down somewhere and is no reason to end it. False: it didn't go.
pub(crate) fn passable(entered: Result<(), FileFault>) -> Result<bool, FileFault> {
    match entered {
        Ok(()) => Ok(true),
        Err(
            FileFault::NotFound
            | FileFault::NotADirectory
            | FileFault::PermissionDenied
            | FileFault::InvalidPath,
        ) => Ok(false),
        Err(fault) => Err(fault),
    }
}
