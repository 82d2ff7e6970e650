//! One command as its caller sees it.

use std::collections::VecDeque;
use std::sync::Arc;

use sandkasten_types::ExecId;
use sandkasten_types::exec::{Chunk, ExecAnswer, ExecEnd, ExecRequest, Gap};
use tokio::sync::oneshot;

use crate::config::Config;
use crate::error::Error;
use crate::output::{Cleaning, Collected, Shown};
use crate::reader::{Before, Follow, Given, Pull, Reader};
use crate::session::{
    Command, Encoding, ExecNote, Feed, Handle, Name, Note, Over, Role, Seat, Seated, Shape, Taken,
    check_exec,
};

/// Output that was taken is reported to init in steps of this cost: a small part of its window.
const CREDIT_STEP: u64 = sandkasten_protocol::WINDOW_COST / 4;

/// A command that is queued or runs, or has ended before. Dropping it before the end cancels the
/// command, unless another waits for it or the request said `keep`.
#[derive(Debug)]
#[must_use = "dropping it may cancel the command"]
pub struct ExecHandle {
    id: ExecId,
    session: Arc<Handle>,
    source: Source,
    seat: Seat,
    teller: Teller,
    shape: Shape,
}

/// One event of a command. `Done` or `Failed` comes once, last; in a replay output of children that
/// went on may follow.
#[derive(Debug)]
pub enum ExecEvent {
    /// Fits an SSE event of 8 KiB once it is escaped.
    Chunk(Chunk),
    /// Output that is not kept any more.
    Gap(Gap),
    Done {
        seq: u64,
        end: ExecEnd,
    },
    Failed {
        seq: u64,
        error: Error,
    },
}

impl ExecHandle {
    #[must_use]
    pub fn id(&self) -> &ExecId {
        &self.id
    }

    /// The next event of the stream; `None` after the last. May be dropped and called again.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        loop {
            if let Some(told) = self.teller.ready.pop_front() {
                return Some(event(&self.teller.note, told));
            }
            if self.teller.is_over {
                return None;
            }
            match self.source.next(&self.session, self.seat.run()).await {
                Some(given) => self.teller.take(given),
                None => self.teller.is_over = true,
            }
            if self.teller.is_over {
                self.seat.quiet();
            }
        }
    }

    /// Leaves the command to itself: it goes on, and its events wait under its id.
    pub fn detach(self) {
        // A session that is gone needs no word.
        drop(self.session.commands.send(Command::Keep { run: self.seat.run() }));
    }

    /// Waits for the end and gives the blocking answer, each field capped head and tail.
    ///
    /// # Errors
    /// [`Error::Ended`] with the output so far where the session ended first.
    pub async fn finish(mut self) -> Result<ExecAnswer, Error> {
        let mut collected = collected(self.shape);
        loop {
            let error = match self.source.next(&self.session, self.seat.run()).await {
                Some(Given::Record(record, _)) => {
                    collected.push(record.stream, &record.data);
                    continue;
                }
                Some(Given::Gap(gap)) => {
                    collected.gap(&gap);
                    continue;
                }
                Some(Given::End(over)) => {
                    self.seat.quiet();
                    return answer(&self.teller.note, &over, collected);
                }
                Some(Given::Failed(error)) => error,
                None => Error::Internal("an exec was waited for twice".into()),
            };
            return Err(self.failed(error, collected));
        }
    }

    /// Adds the output so far to the news that the session ended in mid-command.
    fn failed(&mut self, error: Error, collected: Collected) -> Error {
        let Error::Ended(mut ended) = error else { return error };
        self.seat.quiet();
        if ended.started {
            ended.output = Some(collected.finish().0);
        }
        Error::Ended(ended)
    }
}

/// The blocking answer of a command that has ended.
pub(crate) fn answer(note: &Note, over: &Over, output: Collected) -> Result<ExecAnswer, Error> {
    let Some(exec) = note.exec() else { return Err(no_exec()) };
    let mut end = over.exec(note, exec)?;
    let (output, truncated) = output.finish();
    end.truncated = truncated;
    Ok(ExecAnswer { output, end })
}

pub(crate) fn collected(shape: Shape) -> Collected {
    Collected::new(shape.output, cleaning(shape), shape.bytes_max)
}

/// What is told of a command.
pub(crate) fn event(note: &Note, told: Told) -> ExecEvent {
    match told {
        Told::Chunk(chunk) => ExecEvent::Chunk(chunk),
        Told::Gap(gap) => ExecEvent::Gap(gap),
        Told::End { seq, over } => {
            let end = note.exec().ok_or_else(no_exec).and_then(|exec| over.exec(note, exec));
            match end {
                Ok(end) => ExecEvent::Done { seq, end },
                Err(error) => ExecEvent::Failed { seq, error },
            }
        }
        Told::Failed { seq, error } => ExecEvent::Failed { seq, error },
    }
}

pub(crate) fn cleaning(shape: Shape) -> Option<Cleaning> {
    match (shape.encoding, shape.output) {
        (Encoding::Base64, _) => None,
        (Encoding::Text, sandkasten_protocol::OutputMode::Pty) => Some(Cleaning::Utf8Only),
        (Encoding::Text, _) => Some(Cleaning::Full),
    }
}

fn no_exec() -> Error {
    Error::Internal("a run that is no exec".into())
}

/// One event of a run, before it is known what the run is.
#[derive(Debug)]
pub(crate) enum Told {
    Chunk(Chunk),
    Gap(Gap),
    End { seq: u64, over: Arc<Over> },
    Failed { seq: u64, error: Error },
}

/// Turns what a run gives into events.
#[derive(Debug)]
pub(crate) struct Teller {
    pub(crate) note: Arc<Note>,
    shown: Shown,
    /// Events up to this one are known already.
    after: u64,
    /// The last event that was seen.
    last: u64,
    pub(crate) ready: VecDeque<Told>,
    /// The end was told.
    pub(crate) is_over: bool,
}

impl Teller {
    pub(crate) fn new(note: Arc<Note>, cleaning: Option<Cleaning>, after: u64) -> Self {
        let shown = Shown::new(cleaning);
        Self { note, shown, after, last: 0, ready: VecDeque::new(), is_over: false }
    }

    pub(crate) fn take(&mut self, given: Given) {
        match given {
            Given::Record(record, before) => {
                self.last = record.seq;
                let chunk = match before {
                    Before::Gap => self.shown.record_before_gap(record),
                    Before::Other => self.shown.record(record),
                };
                self.add(chunk.map(Told::Chunk));
            }
            Given::Gap(gap) => {
                self.last = gap.to_seq;
                self.shown.gap();
                self.add([Told::Gap(gap)]);
            }
            Given::End(over) => self.end(over),
            Given::Failed(error) => self.fail(error),
        }
    }

    fn end(&mut self, over: Arc<Over>) {
        let seq = over.end.seq;
        // init leaves as many numbers free before the end as there are streams.
        self.flush(seq.saturating_sub(2));
        self.add([Told::End { seq, over }]);
        self.last = seq;
        self.is_over = true;
    }

    fn fail(&mut self, error: Error) {
        // Behind the end there is output of children at most: that it breaks off is no news.
        if self.is_over {
            return;
        }
        self.flush(self.last.saturating_add(1));
        let last = self.ready.iter().map(seq).max().unwrap_or(0).max(self.last);
        self.ready.push_back(Told::Failed { seq: last.saturating_add(1), error });
        self.is_over = true;
    }

    fn flush(&mut self, seq: u64) {
        let rest: Vec<Chunk> = self.shown.finish(seq).collect();
        self.add(rest.into_iter().map(Told::Chunk));
    }

    fn add(&mut self, events: impl IntoIterator<Item = Told>) {
        let after = self.after;
        self.ready.extend(events.into_iter().filter(|event| seq(event) > after));
    }
}

fn seq(told: &Told) -> u64 {
    match told {
        Told::Chunk(chunk) => chunk.seq,
        Told::Gap(gap) => gap.seq,
        Told::End { seq, .. } | Told::Failed { seq, .. } => *seq,
    }
}

/// Where the output comes from.
#[derive(Debug)]
enum Source {
    /// As it comes. Who is slow holds the command up.
    Live {
        feed: Arc<Feed>,
        /// Cost of what was taken and not reported yet.
        taken: u64,
    },
    /// From what is kept, up to the end.
    Kept(Box<Pull>),
}

impl Source {
    async fn next(&mut self, session: &Handle, run: u64) -> Option<Given> {
        let (feed, taken) = match self {
            Self::Live { feed, taken } => (feed, taken),
            Self::Kept(pull) => return pull.next().await,
        };
        match feed.take().await? {
            Taken::Record(record) => {
                *taken += record.cost();
                if *taken >= CREDIT_STEP {
                    let cost = std::mem::take(taken);
                    // A session that is gone needs no credit.
                    drop(session.commands.send(Command::Consumed { run, cost }));
                }
                Some(Given::Record(record, Before::Other))
            }
            Taken::End(Ok(over)) => Some(Given::End(over)),
            Taken::End(Err(error)) => Some(Given::Failed(error)),
        }
    }
}

/// Checks a command and begins it in a session, or joins the one that has its id.
pub(crate) async fn begin(
    config: &Config,
    session: &Arc<Handle>,
    request: ExecRequest,
) -> Result<ExecHandle, Error> {
    let job = check_exec(request, config, &session.spec.user)?;
    let (id, shape, feed) = (job.id.clone(), job.shape, job.feed.clone());
    let (reply, begun) = oneshot::channel();
    let command = Command::Exec { job: Box::new(job), reply };
    let Seated { seat, note } = session.ask(command, begun).await??;
    let source = match feed {
        Some(feed) if seat.role() == Role::Reader => Source::Live { feed, taken: 0 },
        _ => {
            let of = (Name::Exec(id.clone()), seat.run());
            let reader = Reader::new(Arc::clone(session), of, 0);
            Source::Kept(Box::new(Pull::new(reader, 0, Follow::Yes)))
        }
    };
    let teller = Teller::new(note, cleaning(shape), 0);
    Ok(ExecHandle { id, session: Arc::clone(session), source, seat, teller, shape })
}

/// What [`ExecNote`] says of how its output is shown.
pub(crate) fn shape(note: &Note) -> Result<(&ExecNote, Shape), Error> {
    note.exec().map(|exec| (exec, exec.shape)).ok_or_else(no_exec)
}
