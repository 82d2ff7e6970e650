//! What output waits for, and where it comes from.
//!
//! Output of a run that somebody reads as it comes waits for that reader, so that nothing of it is
//! lost; nobody else holds a run up. The sources outlive their run, and even the memory of it: as long
//! as something holds the other end it is read.

use std::collections::{BTreeMap, VecDeque};

use sandkasten_protocol::{DATA_BYTES_MAX, RECORD_COST, RECORD_ESCAPED_MAX, Reader, WINDOW_COST};

use crate::output::{Source, Wanted};
use crate::poll::Poller;

/// Less than this of a window is not worth a read.
const CREDIT_MIN: u64 = 8 * 1024;
/// Kept of a window for what stands in the pipes when a run is over, 64 KiB of each of two: a reader that
/// stopped must not keep the end, and so the next command, from coming.
const END_COST: u64 = 160 * 1024;
/// The shortest piece but the last of a read.
const PIECE_MIN: u64 = RECORD_ESCAPED_MAX as u64 / 6 - 4;
/// Sources that are kept after the end of their runs: half of the run directory's inodes, which
/// unnamed FIFOs still take. Each needs a process that holds its other end, so honest sessions stay
/// far below; beyond it the oldest goes, whose writers then get SIGPIPE.
const LATE_MAX: usize = 2048;

/// Whether a run waits for its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Output of that cost may be sent.
    Paced {
        credit: u64,
    },
    /// The same of one that is over: what is left may have all the credit.
    Ending {
        credit: u64,
    },
    Free,
}

impl Pace {
    pub(crate) fn of(reader: Reader) -> Self {
        match reader {
            Reader::Paced => Self::Paced { credit: WINDOW_COST },
            Reader::None => Self::Free,
        }
    }

    /// Bytes that may be read at once: however they are cut, the credit does for them.
    pub(crate) fn most(self) -> usize {
        match self {
            Self::Free => DATA_BYTES_MAX,
            Self::Paced { credit } => {
                Self::Ending { credit: credit.saturating_sub(END_COST) }.most()
            }
            Self::Ending { credit } if credit < CREDIT_MIN => 0,
            Self::Ending { credit } => {
                let bytes = (credit - RECORD_COST) * PIECE_MIN / (PIECE_MIN + RECORD_COST);
                usize::try_from(bytes).unwrap_or(usize::MAX).min(DATA_BYTES_MAX)
            }
        }
    }

    pub(crate) fn spend(&mut self, cost: u64) {
        if let Self::Paced { credit } | Self::Ending { credit } = self {
            *credit = credit.saturating_sub(cost);
        }
    }

    pub(crate) fn add(&mut self, cost: u64) {
        if let Self::Paced { credit } | Self::Ending { credit } = self {
            *credit = credit.saturating_add(cost).min(WINDOW_COST);
        }
    }

    /// The run is over.
    pub(crate) fn end(&mut self) {
        if let Self::Paced { credit } = *self {
            *self = Self::Ending { credit };
        }
    }
}

/// The sources of all runs, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    all: BTreeMap<u32, Owned>,
    /// Those of runs that have ended, the first of them first.
    late: VecDeque<u32>,
}

#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) run: u64,
    pub(crate) source: Source,
}

impl Sources {
    pub(crate) fn add(&mut self, run: u64, source: Source) {
        self.all.insert(source.id, Owned { run, source });
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Source> {
        self.all.get(&id).map(|owned| &owned.source)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Owned> {
        self.all.get_mut(&id)
    }

    /// The run of a source has ended. Gives the one that has to go for it.
    pub(crate) fn note_late(&mut self, poller: &Poller, id: u32) -> Option<Owned> {
        self.late.push_back(id);
        if self.late.len() <= LATE_MAX {
            return None;
        }
        let oldest = self.late.pop_front()?;
        self.remove(poller, oldest)
    }

    /// Closes a source.
    pub(crate) fn remove(&mut self, poller: &Poller, id: u32) -> Option<Owned> {
        let mut owned = self.all.remove(&id)?;
        owned.source.watch(poller, Wanted::No);
        self.late.retain(|late| *late != id);
        Some(owned)
    }

    /// Runs that have sources, once for each.
    pub(crate) fn runs(&self) -> Vec<u64> {
        self.all.values().map(|owned| owned.run).collect()
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;
    use sandkasten_protocol::Record;

    use super::*;
    use crate::records;

    proptest! {
        #[test]
        fn what_may_be_read_may_be_sent(credit in 0..WINDOW_COST, bytes in any::<[u8; 7]>()) {
            let most = Pace::Ending { credit }.most();
            let running = Pace::Paced { credit }.most();
            prop_assert!(running <= most);
            let read: Vec<u8> = bytes.iter().copied().cycle().take(most).collect();
            let cost: u64 = records::pieces(&read)
                .map(|piece| {
                    let (seq, stream, at_ms) = (1, sandkasten_protocol::Stream::Output, 0);
                    Record { seq, stream, at_ms, data: piece.to_vec() }.cost()
                })
                .sum();
            prop_assert!(cost <= credit);
            prop_assert!(credit < CREDIT_MIN || most > 6000);
        }
    }

    #[test]
    fn credit_never_exceeds_the_window() {
        let mut pace = Pace::of(Reader::Paced);
        pace.add(1);
        assert_eq!(pace, Pace::Paced { credit: WINDOW_COST });
        pace.spend(WINDOW_COST);
        assert_eq!(pace.most(), 0);
        pace.add(u64::MAX);
        assert_eq!(pace, Pace::Paced { credit: WINDOW_COST });
    }
}
