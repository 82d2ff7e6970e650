//! The runs of a session that are known: which there are, how far each has come, and whether what
//! init says of them can be true.
//!
//! ```text
//!   Known ──┐                       ┌── Forgotten ──> gone
//!   begin ──┴──> queued ─ Begun ─> running ─ End ─> over
//! ```
//!
//! Invariants: no I/O; what it holds is bounded by the protocol's limits, whatever init says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use sandkasten_protocol::{
    Begun, DATA_BYTES_MAX, End, Item, KEPT_RUNS_MAX, Known, OutputMode, PROGRAMS_MAX, Part,
    QUEUE_BYTES_MAX, QUEUE_MAX, RECORD_BYTES_MAX, Record, Replay, Stream, Then, WINDOW_COST, Wait,
};
use sandkasten_types::limits::PATH_BYTES_MAX;
use sandkasten_types::{ExecId, ProcessId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::feed::Feed;
use super::link::LinkFault;
use super::note::{Counted, Note, OnLeave, Verdict, What};
use super::outcome::{Over, judge};
use crate::error::Error;

/// Finished runs that may be known beyond those that init keeps: it says which ones it forgets.
const KEPT_SLACK: usize = 256;

/// What a run is called by clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    Exec(ExecId),
    Process(ProcessId),
}

/// What messages call it, as [`Note::subject`].
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exec(id) => write!(f, "exec {id}"),
            Self::Process(id) => write!(f, "process {id}"),
        }
    }
}

impl Name {
    pub(crate) fn not_found(&self) -> Error {
        match self {
            Self::Exec(id) => Error::ExecNotFound(id.clone()),
            Self::Process(id) => Error::ProcessNotFound(id.clone()),
        }
    }
}

/// What others are told of a run.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) run: u64,
    pub(crate) note: Arc<Note>,
    /// `None`: it waits.
    pub(crate) begun: Option<Begun>,
    pub(crate) over: Option<Arc<Over>>,
}

/// Who is told of an end.
pub(super) type Waiter = oneshot::Sender<Result<Arc<Over>, Error>>;

/// One run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) note: Arc<Note>,
    /// What the group had counted when it began, or before.
    pub(super) before: Counted,
    pub(super) begun: Option<Begun>,
    pub(super) over: Option<Arc<Over>>,
    /// Where its output goes as it comes.
    pub(super) feed: Option<Arc<Feed>>,
    /// Somebody had it read as it comes, now or before.
    is_paced: bool,
    /// Cost of output that came and that nobody has taken.
    pub(super) unconsumed: u64,
    last_seq: u64,
    /// Those that wait for it and may take it with them.
    pub(super) callers: usize,
    pub(super) on_leave: OnLeave,
    pub(super) timeout_ms: Option<u64>,
    /// When it must have ended. `None`: it may take for ever, or its begin is not known here.
    pub(super) end_by: Option<Instant>,
    queue_bytes: usize,
    pub(super) waiters: Vec<Waiter>,
}

/// What a run begins with.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) note: Arc<Note>,
    pub(super) feed: Option<Arc<Feed>>,
    pub(super) timeout_ms: Option<u64>,
    pub(super) queue_bytes: usize,
    /// `None`: it waits, or init will say.
    pub(super) begun: Option<Begun>,
}

/// The runs of a session.
#[derive(Debug)]
pub(super) struct Runs {
    all: BTreeMap<u64, Run>,
    /// Those that are not over.
    open: BTreeSet<u64>,
    names: HashMap<Name, u64>,
    next: u64,
    /// Commands that wait, and their bytes.
    queued: usize,
    queued_bytes: usize,
    /// Commands that wait or run.
    commands: usize,
    programs: usize,
    finished: usize,
}

impl Runs {
    pub(super) fn new(next: u64) -> Self {
        Self {
            all: BTreeMap::new(),
            open: BTreeSet::new(),
            names: HashMap::new(),
            next,
            queued: 0,
            queued_bytes: 0,
            commands: 0,
            programs: 0,
            finished: 0,
        }
    }

    // ---- what is there

    pub(super) fn get(&self, run: u64) -> Option<&Run> {
        self.all.get(&run)
    }

    /// One that is not over.
    pub(super) fn unfinished(&mut self, run: u64) -> Option<&mut Run> {
        self.all.get_mut(&run).filter(|run| run.over.is_none())
    }

    pub(super) fn find(&self, name: &Name) -> Option<Found> {
        self.found(*self.names.get(name)?)
    }

    pub(super) fn found(&self, run: u64) -> Option<Found> {
        let Run { note, begun, over, .. } = self.all.get(&run)?;
        Some(Found { run, note: Arc::clone(note), begun: *begun, over: over.clone() })
    }

    /// All of them, oldest first.
    pub(super) fn list(&self) -> Vec<Found> {
        self.all.keys().filter_map(|run| self.found(*run)).collect()
    }

    /// Those that are not over, oldest first.
    pub(super) fn open(&self) -> Vec<u64> {
        self.open.iter().copied().collect()
    }

    /// Commands that wait.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// No command waits or runs: the next one begins at once.
    pub(super) fn is_idle(&self) -> bool {
        self.commands == 0
    }

    /// A command runs.
    pub(super) fn has_running(&self) -> bool {
        self.commands > self.queued
    }

    /// When the first of those that must end must have.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.open.iter().filter_map(|run| self.all.get(run)?.end_by).min()
    }

    // ---- what the engine does

    /// Whether a command may wait for the shell.
    pub(super) fn may_queue(&self, bytes: usize) -> Result<(), Error> {
        if self.is_idle() {
            return Ok(());
        }
        if self.queued >= QUEUE_MAX {
            let text = format!("{QUEUE_MAX} commands of the session wait already");
            return Err(Error::Overloaded(text));
        }
        if self.queued_bytes.saturating_add(bytes) > QUEUE_BYTES_MAX {
            return Err(Error::Overloaded(format!(
                "the commands of the session that wait are over {QUEUE_BYTES_MAX} bytes"
            )));
        }
        Ok(())
    }

    pub(super) fn may_start(&self) -> Result<(), Error> {
        if self.programs >= PROGRAMS_MAX {
            let text = format!("{PROGRAMS_MAX} processes of the session run already");
            return Err(Error::Overloaded(text));
        }
        Ok(())
    }

    /// Adds one. Gives its id.
    pub(super) fn begin(&mut self, beginning: Beginning) -> u64 {
        let Beginning { note, feed, timeout_ms, queue_bytes, begun } = beginning;
        let id = self.next;
        // What init said is the next one can be any number.
        self.next = id.saturating_add(1);
        let run = Run {
            before: note.before,
            begun: None,
            over: None,
            is_paced: feed.is_some(),
            feed,
            unconsumed: 0,
            last_seq: 0,
            callers: 0,
            on_leave: note.on_leave,
            timeout_ms,
            end_by: None,
            queue_bytes,
            waiters: Vec::new(),
            note,
        };
        self.insert(id, run);
        if let Some(begun) = begun {
            self.set_begun(id, begun);
        }
        id
    }

    fn insert(&mut self, id: u64, run: Run) {
        if let Some(name) = name(&run.note) {
            self.names.insert(name, id);
        }
        if is_program(&run.note) {
            self.programs += 1;
        } else {
            self.commands += 1;
            self.queued += 1;
            self.queued_bytes += run.queue_bytes;
        }
        self.all.insert(id, run);
        self.open.insert(id);
    }

    fn set_begun(&mut self, id: u64, begun: Begun) {
        let Some(run) = self.all.get_mut(&id) else { return };
        if run.begun.is_some() {
            return;
        }
        run.begun = Some(begun);
        if !is_program(&run.note) {
            self.queued -= 1;
            self.queued_bytes -= run.queue_bytes;
        }
    }

    /// What the group has counted is what whoever waits begins with.
    pub(super) fn set_before(&mut self, counted: Counted) {
        if self.queued == 0 {
            return;
        }
        for id in &self.open {
            if let Some(run) = self.all.get_mut(id).filter(|run| run.begun.is_none()) {
                run.before = counted;
            }
        }
    }

    // ---- what init says

    /// A run that an earlier engine began. Gives its id where how it ended is not settled.
    pub(super) fn adopt(
        &mut self,
        known: Known,
        now: Counted,
        memory_limit: u64,
    ) -> Result<Option<u64>, LinkFault> {
        let Known { run: id, note, begun, end, settled } = known;
        let is_later = self.all.last_key_value().is_none_or(|(last, _)| *last < id);
        if !is_later || id >= self.next {
            return Err(LinkFault::Protocol("the ids of its runs do not rise"));
        }
        let Some(note) = Note::decoded(&note).map(Arc::new) else {
            return Err(LinkFault::Protocol("a note that is none of ours"));
        };
        if name(&note).is_some_and(|name| self.names.contains_key(&name)) {
            return Err(LinkFault::Protocol("two runs of one name"));
        }
        let run = Run {
            before: note.before,
            begun: None,
            over: None,
            feed: None,
            is_paced: false,
            unconsumed: 0,
            last_seq: 0,
            callers: 0,
            on_leave: note.on_leave,
            timeout_ms: note.exec().map(|exec| exec.timeout_ms),
            end_by: None,
            queue_bytes: 0,
            waiters: Vec::new(),
            note,
        };
        self.insert(id, run);
        if let Some(begun) = begun {
            self.set_begun(id, begun);
        }
        let Some(end) = end else {
            return match settled {
                None => Ok(None),
                Some(_) => Err(LinkFault::Protocol("a run that is settled before its end")),
            };
        };
        let verdict = match settled.as_deref().map(Verdict::decoded) {
            None => None,
            Some(Some(verdict)) => Some(verdict),
            Some(None) => return Err(LinkFault::Protocol("a verdict that is none of ours")),
        };
        let is_settled = verdict.is_some();
        self.finish(id, end, now, (verdict, memory_limit))?;
        Ok((!is_settled).then_some(id))
    }

    /// Tells that it runs. Gives it where that is news.
    pub(super) fn on_begun(
        &mut self,
        id: u64,
        begun: Begun,
    ) -> Result<Option<&mut Run>, LinkFault> {
        match self.all.get(&id) {
            None => return Err(LinkFault::Protocol("the begin of a run that is not known")),
            Some(run) if run.over.is_some() => {
                return Err(LinkFault::Protocol("the begin of a run that is over"));
            }
            Some(run) if run.begun.is_some() => return Ok(None),
            Some(_) => {}
        }
        self.set_begun(id, begun);
        Ok(self.all.get_mut(&id))
    }

    /// Output that somebody takes as it comes.
    pub(super) fn on_output(&mut self, id: u64, records: Vec<Record>) -> Result<(), LinkFault> {
        let Some(run) = self.all.get_mut(&id) else {
            return Err(LinkFault::Protocol("output of a run that is not known"));
        };
        if run.over.is_some() {
            return Err(LinkFault::Protocol("output of a run that is over"));
        }
        if !run.is_paced {
            return Err(LinkFault::Protocol("output that nobody asked for"));
        }
        let mut bytes = 0;
        for record in &records {
            check_record(record)?;
            if record.seq <= run.last_seq {
                return Err(LinkFault::Protocol("events whose numbers do not rise"));
            }
            if !has_stream(&run.note, record.stream) {
                return Err(LinkFault::Protocol("output of another stream than asked for"));
            }
            run.last_seq = record.seq;
            bytes += record.data.len();
        }
        if records.is_empty() || bytes > DATA_BYTES_MAX {
            return Err(LinkFault::Protocol("output of a length that is not allowed"));
        }
        // Who took it may have left while it was on its way.
        let Some(feed) = &run.feed else { return Ok(()) };
        run.unconsumed += records.iter().map(Record::cost).sum::<u64>();
        if run.unconsumed > WINDOW_COST {
            return Err(LinkFault::Protocol("more output than it had room for"));
        }
        feed.push(records);
        Ok(())
    }

    /// How it ended, judged by what the group has counted.
    pub(super) fn on_end(
        &mut self,
        id: u64,
        end: End,
        now: Counted,
        memory_limit: u64,
    ) -> Result<&mut Run, LinkFault> {
        match self.all.get(&id) {
            None => return Err(LinkFault::Protocol("the end of a run that is not known")),
            Some(run) if run.over.is_some() => {
                return Err(LinkFault::Protocol("a second end of a run"));
            }
            Some(run) if end.seq <= run.last_seq => {
                return Err(LinkFault::Protocol("events whose numbers do not rise"));
            }
            Some(_) => {}
        }
        self.finish(id, end, now, (None, memory_limit))
    }

    fn finish(
        &mut self,
        id: u64,
        mut end: End,
        now: Counted,
        (verdict, memory_limit): (Option<Verdict>, u64),
    ) -> Result<&mut Run, LinkFault> {
        // A path is no longer; a broken init's may be, and many are kept.
        end.cwd.truncate(PATH_BYTES_MAX);
        let Some(run) = self.all.get_mut(&id) else {
            return Err(LinkFault::Protocol("the end of a run that is not known"));
        };
        if is_program(&run.note) {
            self.programs -= 1;
        } else {
            self.commands -= 1;
            if run.begun.is_none() {
                self.queued -= 1;
                self.queued_bytes -= run.queue_bytes;
            }
        }
        self.open.remove(&id);
        self.finished += 1;
        if self.finished > KEPT_RUNS_MAX + KEPT_SLACK {
            return Err(LinkFault::Protocol("it forgets no runs"));
        }
        let verdict = verdict.unwrap_or_else(|| {
            let started_ms = run.begun.map_or(run.note.created_ms, |begun| begun.at_ms);
            judge(&end, run.before.rise(now), started_ms)
        });
        run.over = Some(Arc::new(Over { end, verdict, memory_limit }));
        run.end_by = None;
        run.unconsumed = 0;
        Ok(run)
    }

    pub(super) fn on_forgotten(&mut self, id: u64) -> Result<(), LinkFault> {
        if self.all.get(&id).is_none_or(|run| run.over.is_none()) {
            return Err(LinkFault::Protocol("it forgot a run that is not over, or not known"));
        }
        self.finished -= 1;
        if let Some(run) = self.all.remove(&id)
            && let Some(name) = name(&run.note)
        {
            self.names.remove(&name);
        }
        Ok(())
    }
}

/// Whether a part can be the answer to a question.
pub(super) fn check_part(asked: &Replay, part: &Part) -> Result<(), LinkFault> {
    let mut last = asked.after;
    for item in &part.items {
        let seq = match item {
            Item::Record(record) => {
                check_record(record)?;
                if asked.stream.is_some_and(|stream| stream != record.stream) {
                    return Err(LinkFault::Protocol("output of another stream than asked for"));
                }
                record.seq
            }
            Item::Gap { from_seq, to_seq, .. } if from_seq > to_seq => {
                return Err(LinkFault::Protocol("a gap that ends before it begins"));
            }
            Item::Gap { to_seq, .. } => *to_seq,
            Item::End { seq } => *seq,
        };
        if seq <= last {
            return Err(LinkFault::Protocol("events whose numbers do not rise"));
        }
        last = seq;
    }
    // Whoever asked would ask again at once, for ever.
    let is_due = part.then == Then::More || (part.then == Then::Quiet && asked.wait == Wait::Yes);
    if part.items.is_empty() && is_due {
        return Err(LinkFault::Protocol("it has more to tell and does not"));
    }
    Ok(())
}

fn check_record(record: &Record) -> Result<(), LinkFault> {
    if record.data.is_empty() || record.data.len() > RECORD_BYTES_MAX {
        return Err(LinkFault::Protocol("output of a length that is not allowed"));
    }
    Ok(())
}

fn name(note: &Note) -> Option<Name> {
    match &note.what {
        What::Exec(exec) => Some(Name::Exec(exec.id.clone())),
        What::Process(process) => Some(Name::Process(process.id.clone())),
        What::Restart => None,
    }
}

fn is_program(note: &Note) -> bool {
    matches!(note.what, What::Process(_))
}

/// Whether output of that stream can be this run's.
fn has_stream(note: &Note, stream: Stream) -> bool {
    let apart = matches!(stream, Stream::Stdout | Stream::Stderr);
    match &note.what {
        What::Restart => false,
        What::Process(process) if process.has_tty => stream == Stream::Pty,
        What::Process(_) => apart,
        What::Exec(exec) => match exec.shape.output {
            OutputMode::Merged => stream == Stream::Output,
            OutputMode::Split => apart,
            OutputMode::Pty => stream == Stream::Pty,
        },
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn record(seq: u64, stream: Stream, data: &[u8]) -> Item {
        Item::Record(Record { seq, stream, at_ms: 0, data: data.to_vec() })
    }

    #[test]
    fn an_answer_must_fit_its_question() {
        let asked = |wait| Replay { tag: 1, run: 1, after: 5, stream: Some(Stream::Stdout), wait };
        let check = |wait, items: &[Item], then| {
            check_part(&asked(wait), &Part { items: items.to_vec(), then }).is_ok()
        };
        let one = |seq| record(seq, Stream::Stdout, b"x");
        let gap = |from_seq, to_seq| Item::Gap { bytes: 1, from_seq, to_seq };
        assert!(check(Wait::No, &[], Then::Quiet) && check(Wait::Yes, &[], Then::Over));
        assert!(check(Wait::Yes, &[one(6), gap(2, 8), Item::End { seq: 10 }], Then::Quiet));
        let lies: [(&[Item], Then); 9] = [
            (&[], Then::More),
            (&[], Then::Quiet),
            (&[one(5)], Then::Over),
            (&[one(7), one(6)], Then::Over),
            (&[one(7), one(7)], Then::Over),
            (&[gap(9, 8)], Then::Over),
            (&[gap(2, 5)], Then::Over),
            (&[record(6, Stream::Stderr, b"x")], Then::Over),
            (&[record(6, Stream::Stdout, b"")], Then::Over),
        ];
        for (items, then) in lies {
            assert!(!check(Wait::Yes, items, then), "{items:?} {then:?}");
        }
    }
}
