//! Questions for what is kept of runs: told apart by tag, each for one reader.

use std::collections::HashMap;

use sandkasten_protocol::{Part, Replay, ToInit, Wait};
use tokio::sync::oneshot;

use super::link::LinkFault;
use super::runs::check_part;
use crate::error::Error;

/// Questions of one session whose answers may be on their way at once.
const ASKED_MAX: usize = 2048;
/// Questions that may wait for output: init has no room for more.
const WAITING_MAX: usize = 256;

/// What a question gave. `None`: nothing is kept of such a run.
pub(crate) type PartReply = Result<Option<Part>, Error>;

/// The questions that init has.
#[derive(Debug, Default)]
pub(super) struct Asked {
    waiting: HashMap<u32, Waiting>,
    last_tag: u32,
}

#[derive(Debug)]
struct Waiting {
    replay: Replay,
    /// Who asked.
    ticket: u64,
    /// `None`: nobody wants to know any more.
    reply: Option<oneshot::Sender<PartReply>>,
}

impl Asked {
    /// Takes a question on, whatever its tag; the frame is to be sent.
    pub(super) fn ask(
        &mut self,
        mut replay: Replay,
        ticket: u64,
        reply: oneshot::Sender<PartReply>,
    ) -> Option<ToInit> {
        let waits = |one: &&Waiting| one.replay.wait == Wait::Yes && one.reply.is_some();
        let is_full = self.waiting.len() >= ASKED_MAX
            || (replay.wait == Wait::Yes
                && self.waiting.values().filter(waits).count() >= WAITING_MAX);
        if is_full {
            let text = format!("{WAITING_MAX} readers of the session's runs wait already");
            drop(reply.send(Err(Error::Overloaded(text))));
            return None;
        }
        replay.tag = self.tag();
        self.waiting.insert(replay.tag, Waiting { replay, ticket, reply: Some(reply) });
        Some(ToInit::Replay(replay))
    }

    /// Whoever asked has gone. The frame that ends its question is to be sent.
    pub(super) fn leave(&mut self, ticket: u64) -> Option<ToInit> {
        let mut waiting = self.waiting.iter_mut();
        let (tag, left) = waiting.find(|(_, one)| one.ticket == ticket && one.reply.is_some())?;
        left.reply = None;
        (left.replay.wait == Wait::Yes).then_some(ToInit::Unwait { tag: *tag })
    }

    pub(super) fn answer(&mut self, tag: u32, part: Option<Part>) -> Result<(), LinkFault> {
        let Some(waiting) = self.waiting.remove(&tag) else {
            return Err(LinkFault::Protocol("it answered what nobody asked"));
        };
        let Some(reply) = waiting.reply else { return Ok(()) };
        if let Some(part) = &part {
            check_part(&waiting.replay, part)?;
        }
        // It may have left meanwhile.
        drop(reply.send(Ok(part)));
        Ok(())
    }

    /// Tells all that wait why they get nothing, by the run they asked for.
    pub(super) fn refuse_all(&mut self, why: impl Fn(u64) -> Error) {
        for (_, waiting) in self.waiting.drain() {
            if let Some(reply) = waiting.reply {
                drop(reply.send(Err(why(waiting.replay.run))));
            }
        }
    }

    fn tag(&mut self) -> u32 {
        // A tag is taken as long as its answer has not come, however long ago that was.
        loop {
            self.last_tag = self.last_tag.wrapping_add(1);
            if !self.waiting.contains_key(&self.last_tag) {
                return self.last_tag;
            }
        }
    }
}
