//! What is kept of one run: its output, where it ended, and what its children wrote later.
//!
//! ```text
//!   1 2 3 … n      (two are left free)    n + 3     n + 4 …
//!   ── output ──                           End      ── late output ──>
//! ```
//!
//! The numbers only grow, and once a run has ended nothing before its end changes: whoever reads it
//! gets the same, however often.

use sandkasten_protocol::{DATA_BYTES_MAX, Item, Part, Spool, Stream, Then};

use crate::spool::{Arena, Lane, New};

/// Bytes of a run, what is written to say so included, that are in no block.
const MEMORY_BYTES: usize = 4096;
/// Bytes that are kept of what comes after the end.
const LATE_BYTES: u64 = 8 * 1024 * 1024;
/// Numbers from the last output to the end: those between are for text that the engine holds back, of
/// each of two streams.
const END_STEP: u64 = 3;

#[derive(Debug)]
pub(crate) struct Log {
    /// All output, or what is not stderr.
    first: Lane,
    /// stderr, where each stream has its own.
    second: Option<Lane>,
    late: Option<Lane>,
    /// What of [`MEMORY_BYTES`] is left.
    memory: usize,
    last_seq: u64,
    end: Option<u64>,
    /// Nothing will come any more.
    is_closed: bool,
    output_bytes: u64,
}

impl Log {
    pub(crate) fn new(spool: Spool) -> Self {
        let (bytes, second) = match spool {
            Spool::Together { bytes } => (bytes, None),
            Spool::EachStream { bytes } => (bytes, Some(Lane::new(bytes))),
        };
        Self {
            first: Lane::new(bytes),
            second,
            late: None,
            memory: MEMORY_BYTES,
            last_seq: 0,
            end: None,
            is_closed: false,
            output_bytes: 0,
        }
    }

    /// Keeps a record, or counts it where there is no room. Gives its number.
    pub(crate) fn append(
        &mut self,
        arena: &mut Arena,
        stream: Stream,
        at_ms: i64,
        data: &[u8],
    ) -> u64 {
        self.last_seq += 1;
        let new = New { seq: self.last_seq, stream, at_ms, data };
        let lane = if self.end.is_some() {
            self.late.get_or_insert_with(|| Lane::new(LATE_BYTES))
        } else {
            self.output_bytes += data.len() as u64;
            match &mut self.second {
                Some(second) if stream == Stream::Stderr => second,
                _ => &mut self.first,
            }
        };
        lane.push(arena, &new, &mut self.memory);
        self.last_seq
    }

    /// The run has ended. Gives the number of that.
    pub(crate) fn end(&mut self) -> u64 {
        self.last_seq += END_STEP;
        self.end = Some(self.last_seq);
        self.last_seq
    }

    /// Nothing comes any more.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Bytes that were written up to the end.
    pub(crate) fn output_bytes(&self) -> u64 {
        self.output_bytes
    }

    /// Those of them that are not kept.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.first.dropped_bytes() + self.second.as_ref().map_or(0, Lane::dropped_bytes)
    }

    /// Whether others could have room when it is forgotten.
    pub(crate) fn has_blocks(&self) -> bool {
        let lanes = [Some(&self.first), self.second.as_ref(), self.late.as_ref()];
        lanes.into_iter().flatten().any(Lane::has_blocks)
    }

    /// Gives all blocks back.
    pub(crate) fn release(mut self, arena: &mut Arena) {
        let lanes = [Some(&mut self.first), self.second.as_mut(), self.late.as_mut()];
        for lane in lanes.into_iter().flatten() {
            lane.release(arena);
        }
    }

    /// Up to a frame of what stands behind the event `after`, of one stream or of all. A gap stands
    /// where its last event would, and is told whole.
    pub(crate) fn read<'a>(&'a self, arena: &'a Arena, after: u64, stream: Option<Stream>) -> Part {
        let (first, second) = match (stream, &self.second) {
            (_, None) => (Some(&self.first), None),
            (None, second) => (Some(&self.first), second.as_ref()),
            (Some(Stream::Stderr), second) => (None, second.as_ref()),
            (Some(_), _) => (Some(&self.first), None),
        };
        let items = |lane: Option<&'a Lane>| {
            lane.into_iter().flat_map(move |lane| lane.items(arena, after, stream)).peekable()
        };
        let (mut first, mut second) = (items(first), items(second));
        let before_end = std::iter::from_fn(|| match (first.peek(), second.peek()) {
            (Some(a), Some(b)) if seq(b) < seq(a) => second.next(),
            (None, _) => second.next(),
            (Some(_), _) => first.next(),
        });
        let end = self.end.filter(|end| *end > after).map(|seq| Item::End { seq });
        let late = self.late.iter().flat_map(|lane| lane.items(arena, after, stream));
        let mut items = Vec::new();
        let mut cost = 0;
        for item in before_end.chain(end).chain(late) {
            cost += match &item {
                Item::Record(record) => record.cost(),
                Item::Gap { .. } | Item::End { .. } => sandkasten_protocol::RECORD_COST,
            };
            if cost > DATA_BYTES_MAX as u64 {
                return Part { items, then: Then::More };
            }
            items.push(item);
        }
        let then = if self.is_closed { Then::Over } else { Then::Quiet };
        Part { items, then }
    }
}

/// The number that an item has as an event.
fn seq(item: &Item) -> u64 {
    match item {
        Item::Record(record) => record.seq,
        Item::Gap { to_seq, .. } => *to_seq,
        Item::End { seq } => *seq,
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;
    use rustix::fs::MemfdFlags;

    use super::*;

    fn arena(blocks: u32) -> Arena {
        let file = rustix::fs::memfd_create("spool", MemfdFlags::CLOEXEC).unwrap();
        Arena::of_file(file, blocks)
    }

    /// All that is kept behind an event, in frames.
    fn all(log: &Log, arena: &Arena, mut after: u64, stream: Option<Stream>) -> (Vec<Item>, Then) {
        let mut items = Vec::new();
        loop {
            let part = log.read(arena, after, stream);
            let cost: u64 = part
                .items
                .iter()
                .map(|item| match item {
                    Item::Record(record) => record.cost(),
                    Item::Gap { .. } | Item::End { .. } => 0,
                })
                .sum();
            assert!(cost <= DATA_BYTES_MAX as u64);
            items.extend(part.items);
            if part.then != Then::More {
                return (items, part.then);
            }
            after = seq(items.last().unwrap());
        }
    }

    #[derive(Debug, Clone)]
    struct Written {
        seq: u64,
        stream: Stream,
        data: Vec<u8>,
    }

    /// What a lane keeps of all that was written to it.
    fn model(written: &[Written], most: u64) -> Vec<Item> {
        let item = |w: &Written| {
            let Written { seq, stream, data } = w.clone();
            Item::Record(sandkasten_protocol::Record { seq, stream, at_ms: 5, data })
        };
        let mut bytes = 0;
        let mut head = 0;
        while let Some(w) = written.get(head) {
            if bytes + w.data.len() as u64 > most / 2 {
                break;
            }
            bytes += w.data.len() as u64;
            head += 1;
        }
        let mut tail = written.len();
        while tail > head && bytes + written[tail - 1].data.len() as u64 <= most {
            tail -= 1;
            bytes += written[tail].data.len() as u64;
        }
        let gone = &written[head..tail];
        let mut items: Vec<Item> = written[..head].iter().map(item).collect();
        if let (Some(first), Some(last)) = (gone.first(), gone.last()) {
            let bytes = gone.iter().map(|w| w.data.len() as u64).sum();
            items.push(Item::Gap { bytes, from_seq: first.seq, to_seq: last.seq });
        }
        items.extend(written[tail..].iter().map(item));
        items
    }

    fn write(log: &mut Log, arena: &mut Arena, (is_error, length): (bool, usize)) -> Written {
        let stream = if is_error { Stream::Stderr } else { Stream::Stdout };
        let mut data = vec![0; length];
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = u8::try_from((index * 7 + length) % 251).unwrap();
        }
        let seq = log.append(arena, stream, 5, &data);
        Written { seq, stream, data }
    }

    fn lengths() -> impl Strategy<Value = Vec<(bool, usize)>> {
        let length = prop_oneof![1..100usize, 1..5376usize];
        prop::collection::vec((any::<bool>(), length), 0..120)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_log_keeps_the_first_and_the_last(
            before in lengths(), later in lengths(), most in 0..400_000u64, after in 0..200u64
        ) {
            let arena = &mut arena(4096);
            let mut log = Log::new(Spool::Together { bytes: most });
            let written: Vec<_> =
                before.iter().map(|w| write(&mut log, arena, *w)).collect();
            let end = log.end();
            prop_assert_eq!(end, before.len() as u64 + END_STEP);
            let mut expected = model(&written, most);
            let (items, then) = all(&log, arena, 0, None);
            expected.push(Item::End { seq: end });
            prop_assert_eq!(&items, &expected);
            prop_assert_eq!(then, Then::Quiet);
            let dropped: u64 = expected.iter().map(|item| match item {
                Item::Gap { bytes, .. } => *bytes,
                Item::Record(_) | Item::End { .. } => 0,
            }).sum();
            prop_assert_eq!(log.dropped_bytes(), dropped);
            let late: Vec<_> = later.iter().map(|w| write(&mut log, arena, *w)).collect();
            log.close();
            expected.extend(model(&late, LATE_BYTES));
            prop_assert_eq!(all(&log, arena, 0, None), (expected.clone(), Then::Over));
            let rest: Vec<_> = expected.iter().filter(|i| seq(i) > after).cloned().collect();
            prop_assert_eq!(all(&log, arena, after, None), (rest, Then::Over));
            log.release(arena);
            prop_assert_eq!(arena.used(), 0);
        }

        #[test]
        fn each_stream_has_its_own_room(before in lengths(), most in 0..200_000u64) {
            let arena = &mut arena(4096);
            let mut log = Log::new(Spool::EachStream { bytes: most });
            let written: Vec<_> =
                before.iter().map(|w| write(&mut log, arena, *w)).collect();
            let end = Item::End { seq: log.end() };
            let mut both = Vec::new();
            for stream in [Stream::Stdout, Stream::Stderr] {
                let of_it: Vec<_> =
                    written.iter().filter(|w| w.stream == stream).cloned().collect();
                let mut expected = model(&of_it, most);
                both.extend(expected.clone());
                expected.push(end.clone());
                prop_assert_eq!(all(&log, arena, 0, Some(stream)).0, expected);
            }
            both.sort_by_key(seq);
            both.push(end);
            prop_assert_eq!(all(&log, arena, 0, None).0, both);
        }

        #[test]
        fn without_room_all_is_counted(lengths in lengths(), blocks in 0..4u32) {
            let arena = &mut arena(blocks);
            let mut log = Log::new(Spool::Together { bytes: 1 << 20 });
            let written: Vec<_> = lengths.iter().map(|w| write(&mut log, arena, *w)).collect();
            let (items, _) = all(&log, arena, 0, None);
            let total: u64 = written.iter().map(|w| w.data.len() as u64).sum();
            let mut next = 1;
            let mut found = 0;
            for item in &items {
                match item {
                    Item::Record(record) => {
                        prop_assert_eq!(record.seq, next);
                        let index = usize::try_from(record.seq - 1).unwrap();
                        prop_assert_eq!(&record.data, &written[index].data);
                        found += record.data.len() as u64;
                        next += 1;
                    }
                    Item::Gap { bytes, from_seq, to_seq } => {
                        prop_assert_eq!(*from_seq, next);
                        found += bytes;
                        next = to_seq + 1;
                    }
                    Item::End { .. } => prop_assert!(false),
                }
            }
            prop_assert_eq!(next, written.len() as u64 + 1);
            prop_assert_eq!(found, total);
            prop_assert_eq!(items.iter().filter(|i| matches!(i, Item::Gap { .. })).count() <= 1, true);
            log.release(arena);
            prop_assert_eq!(arena.used(), 0);
        }
    }

    #[test]
    fn little_output_takes_no_file() {
        let arena = &mut Arena::new(None);
        let mut log = Log::new(Spool::Together { bytes: 1 << 20 });
        for _ in 0..10 {
            log.append(arena, Stream::Output, 5, &[b'x'; 300]);
        }
        log.end();
        log.append(arena, Stream::Output, 5, b"late");
        assert_eq!(all(&log, arena, 0, None).0.len(), 12);
        assert_eq!((log.output_bytes(), log.dropped_bytes()), (3000, 0));
    }

    #[test]
    fn very_many_records_are_bounded() {
        let arena = &mut arena(4096);
        let mut log = Log::new(Spool::Together { bytes: 1 << 20 });
        for _ in 0..200_000 {
            log.append(arena, Stream::Output, 5, b"x");
        }
        assert_eq!(log.dropped_bytes(), 200_000 - 2 * 32_768);
        let last = all(&log, arena, 199_999, None).0;
        assert_eq!(last.len(), 1);
    }
}
