//! Room for output that is kept: blocks of one unnamed file.
//!
//! ```text
//!   Lane    most = 16 MiB, say
//!   ┌────────────── head ──────────────┐   gap   ┌────────────── tail ──────────────┐
//!   │ memory │ block │ block │ … │     │ n bytes │ ▒▒ block │ block │ … │ block      │
//!   └──────────────────────────────────┘         └──────────────────────────────────┘
//!     up to half, then never changed              a ring: the oldest records make room
//! ```
//!
//! Records are whole and lie in one block each. What can't be kept, for whatever reason, is counted
//! in the gap; nothing here fails.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use sandkasten_protocol::{Item, Record, SPOOL_BYTES_MAX, Stream};

const BLOCK_BYTES: u32 = 64 * 1024;
/// Records of each half of a lane: the smallest ones would cost more than their bytes.
const RECORDS_MAX: u32 = 32_768;
/// What stands before a record's bytes: its number, its time, its stream and its length.
const HEADER_BYTES: usize = 8 + 8 + 1 + 2;

/// The blocks of a session.
#[derive(Debug)]
pub(crate) struct Arena {
    dir: Option<OwnedFd>,
    file: Option<OwnedFd>,
    /// Blocks that were used before; the last is taken first.
    free: VecDeque<u32>,
    /// Blocks that the file has had.
    made: u32,
    most: u32,
}

/// No block is to be had, or it can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NoRoom;

impl Arena {
    /// Its file is made in `dir`, when it is needed.
    pub(crate) fn new(dir: Option<OwnedFd>) -> Self {
        let most = u32::try_from(SPOOL_BYTES_MAX / u64::from(BLOCK_BYTES)).unwrap_or(u32::MAX);
        Self { dir, file: None, free: VecDeque::new(), made: 0, most }
    }

    #[cfg(test)]
    pub(crate) fn of_file(file: OwnedFd, most: u32) -> Self {
        Self { dir: None, file: Some(file), free: VecDeque::new(), made: 0, most }
    }

    /// Blocks that hold something.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.made as usize - self.free.len()
    }

    /// Whether all blocks are in use.
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.made >= self.most
    }

    fn take(&mut self) -> Result<u32, NoRoom> {
        if let Some(block) = self.free.pop_back() {
            return Ok(block);
        }
        if self.made >= self.most || self.file().is_err() {
            return Err(NoRoom);
        }
        self.made += 1;
        Ok(self.made - 1)
    }

    fn give(&mut self, block: u32) {
        self.free.push_back(block);
    }

    /// A block that could not be written: the others are tried before it.
    fn give_bad(&mut self, block: u32) {
        self.free.push_front(block);
    }

    fn file(&mut self) -> io::Result<&OwnedFd> {
        match &mut self.file {
            Some(file) => Ok(file),
            none => {
                let dir = self.dir.as_ref().ok_or(io::ErrorKind::NotFound)?;
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = rustix::fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR)?;
                Ok(none.insert(file))
            }
        }
    }

    fn write(&mut self, (block, at): (u32, u32), parts: [&[u8]; 2]) -> Result<(), NoRoom> {
        let file = self.file.as_ref().ok_or(NoRoom)?;
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let parts = parts.map(IoSlice::new);
        // A file takes less than all only where the disk is full.
        match rustix::io::pwritev(file, &parts, offset(block, at)) {
            Ok(written) if written == length => Ok(()),
            Ok(_) | Err(_) => Err(NoRoom),
        }
    }

    fn read(&self, block: &Block) -> io::Result<Vec<u8>> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let length = usize::try_from(block.used.saturating_sub(block.start)).unwrap_or(0);
        let mut bytes = vec![0; length];
        let mut read = 0;
        while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
            let from = offset(block.at, block.start) + read as u64;
            match rustix::io::pread(file, rest, from)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => read += more,
            }
        }
        Ok(bytes)
    }
}

fn offset(block: u32, at: u32) -> u64 {
    u64::from(block) * u64::from(BLOCK_BYTES) + u64::from(at)
}

/// A record that is to be kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) seq: u64,
    pub(crate) stream: Stream,
    pub(crate) at_ms: i64,
    pub(crate) data: &'a [u8],
}

impl New<'_> {
    fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        let stream = match self.stream {
            Stream::Output => 0,
            Stream::Stdout => 1,
            Stream::Stderr => 2,
            Stream::Pty => 3,
        };
        let length = u16::try_from(self.data.len()).unwrap_or(u16::MAX);
        let parts = self.seq.to_le_bytes().into_iter().chain(self.at_ms.to_le_bytes());
        let parts = parts.chain([stream]).chain(length.to_le_bytes());
        for (to, from) in header.iter_mut().zip(parts) {
            *to = from;
        }
        header
    }
}

/// A record as it is kept.
struct Kept<'a> {
    seq: u64,
    stream: Stream,
    at_ms: i64,
    data: &'a [u8],
}

impl<'a> Kept<'a> {
    /// The first record of `bytes`, and how long it is there.
    fn parse(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let (seq, bytes) = bytes.split_first_chunk::<8>()?;
        let (at_ms, bytes) = bytes.split_first_chunk::<8>()?;
        let ([stream], bytes) = bytes.split_first_chunk::<1>()?;
        let (length, bytes) = bytes.split_first_chunk::<2>()?;
        let length = usize::from(u16::from_le_bytes(*length));
        let stream = match stream {
            0 => Stream::Output,
            1 => Stream::Stdout,
            2 => Stream::Stderr,
            _ => Stream::Pty,
        };
        let kept = Self {
            seq: u64::from_le_bytes(*seq),
            stream,
            at_ms: i64::from_le_bytes(*at_ms),
            data: bytes.get(..length)?,
        };
        Some((kept, HEADER_BYTES + length))
    }

    fn to_item(&self) -> Item {
        let Self { seq, stream, at_ms, data } = *self;
        Item::Record(Record { seq, stream, at_ms, data: data.to_vec() })
    }
}

/// A piece of the arena with whole records in it, from `start` to `used`.
#[derive(Debug)]
struct Block {
    at: u32,
    start: u32,
    used: u32,
    first: u64,
    last: u64,
    bytes: u64,
    records: u32,
}

/// Records in the order of their numbers: some in memory, the rest in blocks.
#[derive(Debug, Default)]
struct Half {
    memory: Vec<u8>,
    blocks: VecDeque<Block>,
    bytes: u64,
    records: u32,
    /// Numbers and lengths of the records of the first block, once the oldest must go.
    oldest: Option<VecDeque<(u64, u16)>>,
}

impl Half {
    /// Appends. `memory` is what a run may still hold beside its blocks, in bytes.
    fn push(&mut self, arena: &mut Arena, new: &New<'_>, memory: &mut usize) -> Result<(), NoRoom> {
        let header = new.header();
        let length = HEADER_BYTES + new.data.len();
        if self.blocks.is_empty() && length <= *memory {
            *memory -= length;
            self.memory.extend_from_slice(&header);
            self.memory.extend_from_slice(new.data);
        } else {
            self.push_to_block(arena, new, [&header, new.data])?;
        }
        self.bytes += new.data.len() as u64;
        self.records += 1;
        Ok(())
    }

    fn push_to_block(
        &mut self,
        arena: &mut Arena,
        new: &New<'_>,
        parts: [&[u8]; 2],
    ) -> Result<(), NoRoom> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let length = u32::try_from(length).map_err(|_too_long| NoRoom)?;
        let fits = |block: &Block| block.used.saturating_add(length) <= BLOCK_BYTES;
        if !self.blocks.back().is_some_and(fits) {
            let (at, first) = (arena.take()?, new.seq);
            let (start, used, last, bytes, records) = (0, 0, first, 0, 0);
            self.blocks.push_back(Block { at, start, used, first, last, bytes, records });
        }
        let is_first = self.blocks.len() == 1;
        let Some(block) = self.blocks.back_mut() else { return Err(NoRoom) };
        if let Err(no_room) = arena.write((block.at, block.used), parts) {
            if block.used == 0 {
                arena.give_bad(block.at);
                self.blocks.pop_back();
            }
            return Err(no_room);
        }
        block.used += length;
        block.last = new.seq;
        block.bytes += new.data.len() as u64;
        block.records += 1;
        if let Some(oldest) = self.oldest.as_mut().filter(|_| is_first) {
            oldest.push_back((new.seq, u16::try_from(new.data.len()).unwrap_or(u16::MAX)));
        }
        Ok(())
    }

    /// Takes the oldest record out. Gives what has gone.
    fn drop_oldest(&mut self, arena: &mut Arena) -> Option<Gap> {
        let block = self.blocks.front_mut()?;
        let oldest = match &mut self.oldest {
            Some(oldest) => oldest,
            none => match arena.read(block) {
                Ok(bytes) => none.insert(records_of(&bytes)),
                Err(_unreadable) => return self.drop_block(arena),
            },
        };
        let Some((seq, length)) = oldest.pop_front().filter(|_| block.records > 1) else {
            return self.drop_block(arena);
        };
        let bytes = u64::from(length);
        block.start += u32::from(length) + u32::try_from(HEADER_BYTES).unwrap_or(0);
        block.first = oldest.front().map_or(block.last, |(seq, _)| *seq);
        block.bytes = block.bytes.saturating_sub(bytes);
        block.records -= 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        self.records -= 1;
        Some(Gap { bytes, from: seq, to: seq })
    }

    /// Takes out the oldest block with all that is in it.
    fn drop_block(&mut self, arena: &mut Arena) -> Option<Gap> {
        let block = self.blocks.pop_front()?;
        self.oldest = None;
        arena.give(block.at);
        self.bytes = self.bytes.saturating_sub(block.bytes);
        self.records = self.records.saturating_sub(block.records);
        Some(Gap { bytes: block.bytes, from: block.first, to: block.last })
    }
}

fn records_of(bytes: &[u8]) -> VecDeque<(u64, u16)> {
    let mut records = VecDeque::new();
    let mut rest = bytes;
    while let Some((kept, length)) = Kept::parse(rest) {
        records.push_back((kept.seq, u16::try_from(kept.data.len()).unwrap_or(u16::MAX)));
        rest = rest.get(length..).unwrap_or_default();
    }
    records
}

/// Records that went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    bytes: u64,
    from: u64,
    to: u64,
}

impl Gap {
    fn item(self) -> Item {
        Item::Gap { bytes: self.bytes, from_seq: self.from, to_seq: self.to }
    }
}

/// Output of which the first and the last part is kept.
#[derive(Debug)]
pub(crate) struct Lane {
    most: u64,
    head: Half,
    head_is_closed: bool,
    gap: Option<Gap>,
    tail: Half,
}

impl Lane {
    /// Keeps `most` bytes.
    pub(crate) fn new(most: u64) -> Self {
        let (head, tail) = (Half::default(), Half::default());
        Self { most, head, head_is_closed: false, gap: None, tail }
    }

    /// Bytes that were thrown away.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.gap.map_or(0, |gap| gap.bytes)
    }

    /// Appends. `memory` is what the run may still hold beside its blocks, in bytes.
    pub(crate) fn push(&mut self, arena: &mut Arena, new: &New<'_>, memory: &mut usize) {
        let length = new.data.len() as u64;
        if !self.head_is_closed {
            let fits = self.head.bytes + length <= self.most / 2 && self.head.records < RECORDS_MAX;
            if fits && self.head.push(arena, new, memory).is_ok() {
                return;
            }
            self.head_is_closed = true;
        }
        // So that nothing is lost of output that has just the size.
        let most = self.most.saturating_sub(self.head.bytes);
        while self.tail.bytes + length > most || self.tail.records >= RECORDS_MAX {
            match self.tail.drop_oldest(arena) {
                Some(gone) => self.note_gone(gone),
                None => break,
            }
        }
        let mut fits = length <= most;
        while fits && self.tail.push(arena, new, &mut 0).is_err() {
            // No block is free: its own oldest.
            match self.tail.drop_block(arena) {
                Some(gone) => self.note_gone(gone),
                None => fits = false,
            }
        }
        if !fits {
            self.note_gone(Gap { bytes: length, from: new.seq, to: new.seq });
        }
    }

    fn note_gone(&mut self, gone: Gap) {
        let gap = self.gap.get_or_insert(Gap { bytes: 0, ..gone });
        gap.bytes += gone.bytes;
        gap.to = gone.to;
    }

    pub(crate) fn has_blocks(&self) -> bool {
        !self.head.blocks.is_empty() || !self.tail.blocks.is_empty()
    }

    /// Gives all blocks back.
    pub(crate) fn release(&mut self, arena: &mut Arena) {
        for block in self.head.blocks.drain(..).chain(self.tail.blocks.drain(..)) {
            arena.give(block.at);
        }
    }

    /// What is kept behind the event `after`, of one stream or of all.
    pub(crate) fn items<'a>(
        &'a self,
        arena: &'a Arena,
        after: u64,
        stream: Option<Stream>,
    ) -> Items<'a> {
        let place = Place::Memory;
        Items { lane: self, arena, after, stream, place, bytes: Vec::new(), taken: 0 }
    }
}

/// Goes through a lane.
#[derive(Debug)]
pub(crate) struct Items<'a> {
    lane: &'a Lane,
    arena: &'a Arena,
    after: u64,
    stream: Option<Stream>,
    /// What is read next.
    place: Place,
    bytes: Vec<u8>,
    taken: usize,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Memory,
    Head(usize),
    Gap,
    Tail(usize),
    End,
}

impl Iterator for Items<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            while let Some((kept, length)) =
                Kept::parse(self.bytes.get(self.taken..).unwrap_or_default())
            {
                self.taken += length;
                let is_wanted = self.stream.is_none_or(|stream| stream == kept.stream);
                if kept.seq > self.after && is_wanted {
                    return Some(kept.to_item());
                }
            }
            if let Some(gap) = self.load()? {
                return Some(gap.item());
            }
        }
    }
}

impl Items<'_> {
    /// Goes to the next place with something in it; gives the gap where that is one.
    fn load(&mut self) -> Option<Option<Gap>> {
        let (blocks, index) = match self.place {
            Place::Memory => {
                self.place = Place::Head(first_behind(&self.lane.head, self.after));
                self.bytes.clone_from(&self.lane.head.memory);
                self.taken = 0;
                return Some(None);
            }
            Place::Head(index) => (&self.lane.head.blocks, index),
            Place::Tail(index) => (&self.lane.tail.blocks, index),
            Place::Gap => {
                self.place = Place::Tail(first_behind(&self.lane.tail, self.after));
                return Some(self.lane.gap.filter(|gap| gap.to > self.after));
            }
            Place::End => return None,
        };
        let is_head = matches!(self.place, Place::Head(_));
        let Some(block) = blocks.get(index) else {
            self.place = if is_head { Place::Gap } else { Place::End };
            return Some(None);
        };
        self.place = if is_head { Place::Head(index + 1) } else { Place::Tail(index + 1) };
        self.taken = 0;
        match self.arena.read(block) {
            Ok(bytes) => {
                self.bytes = bytes;
                Some(None)
            }
            // What a disk has lost is told as what is not kept.
            Err(_unreadable) => {
                self.bytes.clear();
                Some(Some(Gap { bytes: block.bytes, from: block.first, to: block.last }))
            }
        }
    }
}

/// The first block with something behind the event `after`.
fn first_behind(half: &Half, after: u64) -> usize {
    half.blocks.partition_point(|block| block.last <= after)
}
