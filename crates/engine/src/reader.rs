//! What is kept of a run, asked for piece by piece: whoever reads slowly holds nobody up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandkasten_protocol::{Item, Record, Replay, Stream, Then, Wait};
use sandkasten_types::exec::Gap;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::Error;
use crate::session::{Command, Handle, Name, Over, PartReply};

/// Whether a replay waits for events that are not there yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Follow {
    /// It ends with what is there.
    #[default]
    No,
    /// It ends with the end of the run and of what is kept behind that.
    Yes,
}

/// init answers a question that it need not wait for within this, on however little CPU the session
/// has.
const DEADLINE: Duration = Duration::from_secs(30);

/// One reader of one run. Its `next` may be dropped and called again.
#[derive(Debug)]
pub(crate) struct Reader {
    session: Arc<Handle>,
    /// Tells readers apart within this process.
    ticket: u64,
    name: Name,
    run: u64,
    stream: Option<Stream>,
    pub(crate) wait: Wait,
    /// The last event that was asked for.
    last: u64,
    pending: Option<oneshot::Receiver<PartReply>>,
    items: VecDeque<Item>,
    /// What stands behind `items`. `None`: nobody has asked.
    then: Option<Then>,
}

/// One event, or a gap.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) item: Item,
    pub(crate) before: Before,
}

/// What comes behind an event, as far as that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Gap,
    Other,
}

impl Reader {
    /// Reads what stands behind the event `after`.
    pub(crate) fn new(session: Arc<Handle>, (name, run): (Name, u64), after: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            session,
            ticket: NEXT.fetch_add(1, Ordering::Relaxed),
            name,
            run,
            stream: None,
            wait: Wait::No,
            last: after,
            pending: None,
            items: VecDeque::new(),
            then: None,
        }
    }

    pub(crate) fn of(mut self, stream: Stream) -> Self {
        self.stream = Some(stream);
        self
    }

    /// The next event; `None` where there is none, or none yet and it does not wait.
    pub(crate) async fn next(&mut self) -> Result<Option<Read>, Error> {
        loop {
            let more = self.then == Some(Then::More);
            // Whether a gap follows an event is known only when the next one is.
            if self.items.len() > 1 || (!more && !self.items.is_empty()) {
                let Some(item) = self.items.pop_front() else { return Ok(None) };
                let is_gap = matches!(self.items.front(), Some(Item::Gap { .. }));
                let before = if is_gap { Before::Gap } else { Before::Other };
                return Ok(Some(Read { item, before }));
            }
            let is_done = match self.then {
                Some(Then::Over) => true,
                Some(Then::Quiet) => self.wait == Wait::No,
                Some(Then::More) | None => false,
            };
            if is_done {
                return Ok(None);
            }
            self.fetch().await?;
        }
    }

    async fn fetch(&mut self) -> Result<(), Error> {
        let wait = if self.items.is_empty() { self.wait } else { Wait::No };
        if self.pending.is_none() {
            self.ask(wait)?;
        }
        let Some(pending) = &mut self.pending else { return Ok(()) };
        let answer = if wait == Wait::Yes {
            pending.await
        } else {
            match timeout(DEADLINE, pending).await {
                Ok(answer) => answer,
                Err(_elapsed) => {
                    let text = format!("no answer from the session in {} s", DEADLINE.as_secs());
                    return Err(Error::Overloaded(text));
                }
            }
        };
        self.pending = None;
        let part = match answer {
            Ok(part) => part?,
            Err(_gone) => return Err(self.session.gone()),
        };
        let part = part.ok_or_else(|| self.name.not_found())?;
        if let Some(last) = part.items.last() {
            self.last = seq(last);
        }
        self.items.extend(part.items);
        self.then = Some(part.then);
        Ok(())
    }

    fn ask(&mut self, wait: Wait) -> Result<(), Error> {
        let (reply, pending) = oneshot::channel();
        let (run, after, stream) = (self.run, self.last, self.stream);
        let replay = Replay { tag: 0, run, after, stream, wait };
        let command = Command::Replay { replay, ticket: self.ticket, reply };
        self.session.commands.send(command).map_err(|_unsent| self.session.gone())?;
        self.pending = Some(pending);
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.pending.is_some() {
            // A session that is gone needs no word.
            drop(self.session.commands.send(Command::Unwait { ticket: self.ticket }));
        }
    }
}

fn seq(item: &Item) -> u64 {
    match item {
        Item::Record(record) => record.seq,
        Item::Gap { to_seq, .. } => *to_seq,
        Item::End { seq } => *seq,
    }
}

/// What a caller is given of a run.
#[derive(Debug)]
pub(crate) enum Given {
    Record(Record, Before),
    Gap(Gap),
    /// How it ended. Output of children that went on may follow.
    End(Arc<Over>),
    /// Nothing follows.
    Failed(Error),
}

/// The events of a run with the way it ended.
#[derive(Debug)]
pub(crate) struct Pull {
    reader: Reader,
    /// The last event that the caller knows.
    after: u64,
    follow: Follow,
    /// The end has been read; what it is has been asked for.
    ending: Option<oneshot::Receiver<Result<Arc<Over>, Error>>>,
    has_failed: bool,
}

impl Pull {
    pub(crate) fn new(mut reader: Reader, after: u64, follow: Follow) -> Self {
        reader.wait = if follow == Follow::Yes { Wait::Yes } else { Wait::No };
        Self { reader, after, follow, ending: None, has_failed: false }
    }

    /// The next event; `None` after the last. May be dropped and called again.
    pub(crate) async fn next(&mut self) -> Option<Given> {
        if self.has_failed {
            return None;
        }
        let given = self.try_next().await.unwrap_or_else(|error| Some(Given::Failed(error)));
        self.has_failed = matches!(given, Some(Given::Failed(_)));
        given
    }

    async fn try_next(&mut self) -> Result<Option<Given>, Error> {
        if self.ending.is_none() {
            let Some(Read { item, before }) = self.reader.next().await? else { return Ok(None) };
            match item {
                Item::Record(record) => return Ok(Some(Given::Record(record, before))),
                Item::Gap { bytes, from_seq, to_seq } => {
                    return Ok(Some(Given::Gap(Gap { bytes, from_seq, to_seq, seq: to_seq })));
                }
                Item::End { seq } => {
                    if self.follow == Follow::Yes && seq > self.after {
                        // Who saw the end waits for nothing more.
                        self.reader.wait = Wait::No;
                    }
                    let Reader { session, name, run, .. } = &self.reader;
                    self.ending = Some(session.ask_over(*run, name.to_string())?);
                }
            }
        }
        let Some(ending) = &mut self.ending else { return Ok(None) };
        let over = ending.await;
        self.ending = None;
        match over {
            Ok(over) => Ok(Some(Given::End(over?))),
            Err(_gone) => Err(self.reader.session.gone()),
        }
    }
}
