//! The runs of the session: those that wait, run, or have ended and are kept.
//!
//! ```text
//!   enter ──> begin ──> add_source … on_output … note_over ──> end ──> settle … ──> forgotten
//!      └── cancelled while it waited ───────────────────────────^
//! ```
//!
//! Commands and programs go the same way. What is special to either stands elsewhere: this knows a
//! run by its number, its sources, its log and what the engine has noted.
//!
//! Bounds: the arena has 256 MiB; [`KEPT_RUNS_MAX`] runs are kept after their end, the one that ended
//! first goes first; [`WAITS_MAX`] questions wait for output.

use std::collections::{BTreeMap, VecDeque};

use sandkasten_protocol::{
    Begun, Bytes, DATA_BYTES_MAX, End, FromInit, KEPT_RUNS_MAX, Known, NOTE_BYTES_MAX, Part,
    Record, Replay, Run, Then, Wait,
};

use crate::clock::{self, Moment};
use crate::flow::{Pace, Sources};
use crate::log::Log;
use crate::output::{Source, Wanted};
use crate::records;
use crate::spool::Arena;
use crate::world::World;

/// Questions that wait for an answer. More are answered at once.
const WAITS_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Runs {
    arena: Arena,
    all: BTreeMap<u64, Entry>,
    sources: Sources,
    /// Runs that have ended, in that order.
    finished: VecDeque<u64>,
    waits: Vec<Replay>,
    next_run: u64,
    /// The engine's connection had no room, and paced runs were not read for that.
    is_held_up: bool,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Entry {
    note: Bytes,
    begun: Option<Begun>,
    end: Option<End>,
    settled: Option<Bytes>,
    pace: Pace,
    sources: Vec<u32>,
    /// They are not read yet.
    is_quiet: bool,
    log: Log,
}

/// The engine has broken the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused;

/// Whether the engine hears of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    Engine,
    Nobody,
}

impl Runs {
    pub(crate) fn new(arena: Arena) -> Self {
        Self {
            arena,
            all: BTreeMap::new(),
            sources: Sources::default(),
            finished: VecDeque::new(),
            waits: Vec::new(),
            next_run: 1,
            is_held_up: false,
            buffer: vec![0; DATA_BYTES_MAX],
        }
    }

    /// The least number that the next run may have.
    pub(crate) fn next_run(&self) -> u64 {
        self.next_run
    }

    /// What the engine is told when it attaches.
    pub(crate) fn known(&self) -> Vec<Known> {
        let known = |(run, entry): (&u64, &Entry)| Known {
            run: *run,
            note: entry.note.clone(),
            begun: entry.begun,
            end: entry.end.clone(),
            settled: entry.settled.clone(),
        };
        self.all.iter().map(known).collect()
    }

    // ---- a run's life ----

    /// The engine has asked for a run. Everything below finds it by its number from here on. Its note
    /// is kept here alone.
    ///
    /// # Errors
    /// The number was used, or the note is too long.
    pub(crate) fn enter(&mut self, run: &mut Run) -> Result<(), Refused> {
        if run.id < self.next_run || run.note.len() > NOTE_BYTES_MAX {
            return Err(Refused);
        }
        self.next_run = run.id.saturating_add(1);
        let entry = Entry {
            note: std::mem::take(&mut run.note),
            begun: None,
            end: None,
            settled: None,
            pace: Pace::of(run.reader),
            sources: Vec::new(),
            is_quiet: false,
            log: Log::new(run.spool),
        };
        self.all.insert(run.id, entry);
        Ok(())
    }

    pub(crate) fn begin(&mut self, world: &mut World, id: u64, begun: Begun, tell: Tell) {
        let Some(entry) = self.all.get_mut(&id) else { return };
        entry.begun = Some(begun);
        if tell == Tell::Engine {
            world.link.queue(&FromInit::Begun { run: id, begun }, None);
        }
    }

    /// Takes a source of the run's output and reads it from now on, to its end.
    pub(crate) fn add_source(&mut self, world: &World, id: u64, source: Source) {
        self.add_quiet_source(id, source);
        self.listen(world, id);
    }

    /// The same, to be read when the run is listened to or is over.
    pub(crate) fn add_quiet_source(&mut self, id: u64, source: Source) {
        if let Some(entry) = self.all.get_mut(&id) {
            entry.sources.push(source.id);
            entry.is_quiet = true;
        }
        self.sources.add(id, source);
    }

    pub(crate) fn listen(&mut self, world: &World, id: u64) {
        if let Some(entry) = self.all.get_mut(&id) {
            entry.is_quiet = false;
            self.watch(world, id);
        }
    }

    /// See [`Source::was_opened`]; of all sources of a run.
    pub(crate) fn were_opened(&mut self, id: u64) -> bool {
        self.sources_of(id).into_iter().all(|source| self.was_opened(source))
    }

    fn was_opened(&mut self, source: u32) -> bool {
        self.sources.get_mut(source).is_none_or(|owned| owned.source.was_opened())
    }

    fn sources_of(&self, id: u64) -> Vec<u32> {
        self.all.get(&id).map(|entry| entry.sources.clone()).unwrap_or_default()
    }

    /// What was run is over: what is in its pipes now is still its own. It is read at once; most have no
    /// more than that.
    pub(crate) fn note_over(&mut self, world: &mut World, id: u64) {
        let Some(entry) = self.all.get_mut(&id) else { return };
        entry.pace.end();
        entry.is_quiet = false;
        for id in &entry.sources {
            if let Some(owned) = self.sources.get_mut(*id) {
                owned.source.note_owed();
            }
        }
        for source in self.sources_of(id) {
            self.read_owed(world, source);
        }
        self.watch(world, id);
    }

    /// Reads what a run that is over has left in a pipe, and the pipe's end where nobody holds it.
    fn read_owed(&mut self, world: &mut World, source: u32) {
        loop {
            let owes = |runs: &Self| runs.sources.get(source).map(Source::owed);
            let before = owes(self);
            self.on_output(world, source);
            if before.is_none_or(|before| before == 0 || owes(self).is_none_or(|now| now >= before))
            {
                return;
            }
        }
    }

    /// Whether something that was in its pipes when it was over is not read. It may wait for credit.
    pub(crate) fn owes(&self, id: u64) -> bool {
        self.of(id).any(Source::owes)
    }

    /// Whether all its output is read, or has had its time.
    pub(crate) fn is_read(&self, id: u64, until: Moment, now: Moment) -> bool {
        self.of(id).next().is_none() || (now >= until && !self.owes(id))
    }

    /// Tells how a run ended, and keeps that. The numbers of output in `end` are filled in here. What
    /// still comes from its sources goes to its log alone.
    pub(crate) fn end(&mut self, world: &mut World, id: u64, mut end: End) {
        for source in self.sources_of(id) {
            // Nobody ever will.
            if !self.was_opened(source) {
                self.on_source_gone(world, id, source);
            }
        }
        let Some(entry) = self.all.get_mut(&id) else { return };
        end.seq = entry.log.end();
        end.output_bytes = entry.log.output_bytes();
        end.dropped_bytes = entry.log.dropped_bytes();
        entry.end = Some(end.clone());
        entry.pace = Pace::Free;
        if entry.sources.is_empty() {
            entry.log.close();
        }
        world.link.queue(&FromInit::End { run: id, end }, None);
        for source in self.sources_of(id) {
            if let Some(gone) = self.sources.note_late(&world.poller, source) {
                self.on_source_gone(world, gone.run, gone.source.id);
            }
        }
        self.watch(world, id);
        self.answer_waits(world, id);
        self.finished.push_back(id);
        if self.finished.len() > KEPT_RUNS_MAX
            && let Some(oldest) = self.finished.pop_front()
        {
            self.forget(world, oldest);
        }
    }

    /// The engine's last word on a run.
    ///
    /// # Errors
    /// The note is too long, or the run has not ended.
    pub(crate) fn settle(&mut self, id: u64, note: Bytes) -> Result<(), Refused> {
        if note.len() > NOTE_BYTES_MAX {
            return Err(Refused);
        }
        // It may be forgotten by now.
        let Some(entry) = self.all.get_mut(&id) else { return Ok(()) };
        if entry.end.is_none() {
            return Err(Refused);
        }
        entry.settled = Some(note);
        Ok(())
    }

    // ---- output ----

    /// Reads what a source has: keeps it, and sends it where somebody waits for it.
    pub(crate) fn on_output(&mut self, world: &mut World, id: u32) {
        let Some(run) = self.sources.get_mut(id).map(|owned| owned.run) else { return };
        let most = self.most(world, run);
        let Some(owned) = self.sources.get_mut(id).filter(|_| most > 0) else { return };
        let mut buffer = std::mem::take(&mut self.buffer);
        let room = buffer.get_mut(..most).unwrap_or_default();
        let data = owned.source.read(&world.poller, room);
        let is_over = owned.source.is_over();
        let stream = owned.source.stream;
        if !data.is_empty() {
            self.take(world, run, stream, data);
        }
        self.buffer = buffer;
        if is_over {
            self.on_source_gone(world, run, id);
        }
    }

    /// Output that init itself has for a run.
    pub(crate) fn say(
        &mut self,
        world: &mut World,
        run: u64,
        stream: sandkasten_protocol::Stream,
        text: &[u8],
    ) {
        self.take(world, run, stream, text);
    }

    fn take(
        &mut self,
        world: &mut World,
        run: u64,
        stream: sandkasten_protocol::Stream,
        data: &[u8],
    ) {
        // Of a run that is forgotten it is thrown away.
        if !self.all.contains_key(&run) {
            return;
        }
        let at_ms = clock::wall_ms();
        let mut records = Vec::new();
        for piece in records::pieces(data) {
            self.make_room(world, run);
            let Some(entry) = self.all.get_mut(&run) else { return };
            let seq = entry.log.append(&mut self.arena, stream, at_ms, piece);
            if entry.pace != Pace::Free {
                let record = Record { seq, stream, at_ms, data: piece.to_vec() };
                entry.pace.spend(record.cost());
                records.push(record);
            }
        }
        if !records.is_empty() {
            world.link.queue(&FromInit::Output { run, records }, None);
            self.watch(world, run);
        }
        self.answer_waits(world, run);
    }

    /// Where no block is free, the run that ended first and has some is forgotten, but not `run`.
    fn make_room(&mut self, world: &mut World, run: u64) {
        if !self.arena.is_full() {
            return;
        }
        let has_blocks =
            |id: &u64| *id != run && self.all.get(id).is_some_and(|e| e.log.has_blocks());
        if let Some(index) = self.finished.iter().position(has_blocks)
            && let Some(oldest) = self.finished.remove(index)
        {
            self.forget(world, oldest);
        }
    }

    fn forget(&mut self, world: &mut World, id: u64) {
        if let Some(entry) = self.all.remove(&id) {
            entry.log.release(&mut self.arena);
            self.answer_waits(world, id);
            world.link.queue(&FromInit::Forgotten { run: id }, None);
        }
    }

    fn on_source_gone(&mut self, world: &mut World, run: u64, id: u32) {
        drop(self.sources.remove(&world.poller, id));
        let Some(entry) = self.all.get_mut(&run) else { return };
        entry.sources.retain(|source| *source != id);
        if entry.sources.is_empty() && entry.end.is_some() {
            entry.log.close();
            self.answer_waits(world, run);
        }
    }

    fn of(&self, id: u64) -> impl Iterator<Item = &Source> {
        let ids = self.all.get(&id).map(|entry| entry.sources.as_slice()).unwrap_or_default();
        ids.iter().filter_map(|id| self.sources.get(*id))
    }

    // ---- pacing ----

    pub(crate) fn add_credit(&mut self, world: &World, id: u64, cost: u64) {
        if let Some(entry) = self.all.get_mut(&id) {
            entry.pace.add(cost);
            self.watch(world, id);
        }
    }

    pub(crate) fn unpace(&mut self, world: &World, id: u64) {
        if let Some(entry) = self.all.get_mut(&id) {
            entry.pace = Pace::Free;
            self.watch(world, id);
        }
    }

    /// The engine has gone, or another has come: nobody reads.
    pub(crate) fn on_link_change(&mut self, world: &World) {
        self.waits.clear();
        for entry in self.all.values_mut() {
            entry.pace = Pace::Free;
        }
        self.watch_all(world);
    }

    /// To be called when the engine's connection may have room again.
    pub(crate) fn look_at_link(&mut self, world: &World) {
        if self.is_held_up && !world.link.is_full() {
            self.watch_all(world);
        }
    }

    /// Bytes that may be read of a run now.
    fn most(&mut self, world: &World, run: u64) -> usize {
        match self.all.get(&run).map(|entry| entry.pace) {
            None | Some(Pace::Free) => DATA_BYTES_MAX,
            Some(Pace::Paced { .. } | Pace::Ending { .. }) if world.link.is_full() => {
                self.is_held_up = true;
                0
            }
            Some(pace) => pace.most(),
        }
    }

    fn watch_all(&mut self, world: &World) {
        self.is_held_up = false;
        for run in self.sources.runs() {
            self.watch(world, run);
        }
    }

    /// A source that may not be read is not watched: it would wake the loop for ever.
    fn watch(&mut self, world: &World, run: u64) {
        let wanted = if self.most(world, run) > 0 { Wanted::Yes } else { Wanted::No };
        let Some(entry) = self.all.get(&run).filter(|entry| !entry.is_quiet) else { return };
        for id in &entry.sources {
            if let Some(owned) = self.sources.get_mut(*id) {
                owned.source.watch(&world.poller, wanted);
            }
        }
    }

    // ---- questions ----

    /// Answers at once, or when there is something.
    pub(crate) fn replay(&mut self, world: &mut World, replay: Replay) {
        let part = self.part(&replay);
        let may_wait = replay.wait == Wait::Yes && self.waits.len() < WAITS_MAX;
        if may_wait && part.as_ref().is_some_and(says_nothing) {
            self.waits.push(replay);
        } else {
            world.link.queue(&FromInit::Replayed { tag: replay.tag, part }, None);
        }
    }

    /// A question that waits is answered with what there is. Nothing where it has been.
    pub(crate) fn unwait(&mut self, world: &mut World, tag: u32) {
        if let Some(index) = self.waits.iter().position(|wait| wait.tag == tag) {
            let wait = self.waits.swap_remove(index);
            let part = self.part(&wait);
            world.link.queue(&FromInit::Replayed { tag, part }, None);
        }
    }

    fn answer_waits(&mut self, world: &mut World, run: u64) {
        if !self.waits.iter().any(|wait| wait.run == run) {
            return;
        }
        for wait in std::mem::take(&mut self.waits) {
            let part = if wait.run == run { self.part(&wait) } else { Some(NOTHING) };
            if part.as_ref().is_some_and(says_nothing) {
                self.waits.push(wait);
            } else {
                world.link.queue(&FromInit::Replayed { tag: wait.tag, part }, None);
            }
        }
    }

    fn part(&self, replay: &Replay) -> Option<Part> {
        let entry = self.all.get(&replay.run)?;
        Some(entry.log.read(&self.arena, replay.after, replay.stream))
    }
}

const NOTHING: Part = Part { items: Vec::new(), then: Then::Quiet };

fn says_nothing(part: &Part) -> bool {
    *part == NOTHING
}
