//! A job, from what is asked for to how it went.

use sandkasten_protocol::work::{Item, Job};

use crate::channel::Channel;
use crate::done::Done;
use crate::fault::Failure;
use crate::root::Root;
use crate::{archive, chmod, copy, glob, grep, list, remove, watch};

/// Runs a job to its end, telling `channel` what it finds and, last, how it went. Where nobody listens
/// any more it ends early.
pub fn run(root: &Root, job: Job, channel: &mut dyn Channel) {
    let last = match work(root, job, channel) {
        Ok(done) => Item::Done { truncated: done.truncated },
        Err(Failure { fault, path }) => Item::Failed { fault, path },
    };
    // Nobody may be there to hear it.
    drop(channel.tell(last).and_then(|()| channel.flush()));
}

fn work(root: &Root, job: Job, channel: &mut dyn Channel) -> Result<Done, Failure> {
    match job {
        Job::List { path, depth, limit } => list::list(root, &path, (depth, limit), channel),
        Job::Pack { path } => archive::pack(root, &path, channel).map(|()| Done::WHOLE),
        Job::Unpack { path, gzip } => {
            let entries = archive::unpack(root, (&path, gzip.into()), channel)?;
            channel.tell(Item::Unpacked { entries })?;
            Ok(Done::WHOLE)
        }
        Job::Glob { pattern, path, limit } => glob::glob(root, (&path, &pattern), limit, channel),
        Job::Grep { path, search } => grep::grep(root, &path, &search, channel),
        Job::Watch { path, recursive } => {
            let reach = if recursive { watch::Reach::Tree } else { watch::Reach::Top };
            watch::watch(root, &path, reach, channel)
        }
        Job::Copy { from, to, recursive, overwrite } => {
            let existing = if overwrite { copy::Existing::Replace } else { copy::Existing::Keep };
            copy::copy(root, (&from, &to), copy::How { recursive, existing }, channel)
        }
        Job::RemoveTree { path } => remove::remove(root, &path, channel),
        Job::ChmodTree { path, mode } => chmod::chmod(root, &path, mode, channel),
    }
}
