//! What runs are given to read: it goes to init in order, as fast as init and the connection take it.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use sandkasten_protocol::{DATA_BYTES_MAX, STDIN_WINDOW_BYTES, ToInit};
use sandkasten_types::limits::STDIN_BYTES_MAX;
use tokio::sync::oneshot;

use super::link::LinkFault;
use crate::error::Error;

/// Who is told that there was room for all of it, or why not.
#[derive(Debug)]
pub(crate) struct Told {
    /// What messages call the run.
    pub(crate) subject: String,
    pub(crate) to: oneshot::Sender<Result<(), Error>>,
}

impl Told {
    /// One who has gone needs no word.
    pub(super) fn tell(self, done: Result<(), Error>) {
        drop(self.to.send(done));
    }

    pub(super) fn refuse(self, why: Why) {
        let subject = &self.subject;
        let text = match why {
            Why::IsClosed => format!("the stdin of {subject} is closed"),
            Why::HasNone => format!("{subject} takes no stdin"),
            Why::HasEnded => format!("{subject} has ended"),
        };
        self.tell(Err(Error::Conflict(text)));
    }
}

/// Why a run gets no more of a stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    IsClosed,
    HasNone,
    HasEnded,
}

/// The stdin of all runs that have one.
#[derive(Debug, Default)]
pub(super) struct Stdins {
    flows: BTreeMap<u64, Flow>,
    /// The run that was served last: they take turns.
    last: u64,
}

/// What is known of a stdin as it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// All of it comes now.
    Whole,
    /// It comes as callers give it.
    InPieces,
    /// An earlier engine gave some of it: what of that waits in init is not known.
    Before,
}

/// Bytes of a stdin in pieces that may wait in init: a part of what init has room for, so that a later
/// engine has room too.
const PIECES_WINDOW_BYTES: u64 = STDIN_WINDOW_BYTES / 4;

#[derive(Debug)]
struct Flow {
    opened: Opened,
    waiting: VecDeque<Waiting>,
    /// The end of file has been given; nothing comes behind it.
    is_closed: bool,
    sent: u64,
    taken: u64,
}

#[derive(Debug)]
struct Waiting {
    data: Bytes,
    is_last: bool,
    told: Option<Told>,
}

impl Stdins {
    /// Whether so much may be given at once. It lies in memory here and on disk in init's spool until
    /// it is read, and runs that read nothing can be many.
    pub(super) fn may_take(&self, bytes: usize) -> Result<(), Error> {
        let waits: u64 = self.flows.values().map(Flow::unread).sum();
        if bytes == 0 || waits.saturating_add(bytes as u64) <= STDIN_BYTES_MAX {
            return Ok(());
        }
        Err(Error::Overloaded(format!(
            "{waits} bytes of stdin of the session are unread; with {bytes} more they pass the limit of \
             {STDIN_BYTES_MAX}"
        )))
    }

    /// A run that begins with an open stdin.
    pub(super) fn open(&mut self, run: u64, opened: Opened) {
        let waiting = VecDeque::new();
        let flow = Flow { opened, waiting, is_closed: false, sent: 0, taken: 0 };
        self.flows.insert(run, flow);
    }

    /// More of it. Nothing may come behind the last.
    pub(super) fn push(&mut self, run: u64, data: Bytes, end: End, told: Option<Told>) {
        let why = match self.flows.get_mut(&run) {
            Some(flow) if !flow.is_closed => {
                flow.is_closed = end == End::OfFile;
                flow.waiting.push_back(Waiting { data, is_last: flow.is_closed, told });
                return;
            }
            Some(_) => Why::IsClosed,
            None => Why::HasNone,
        };
        if let Some(told) = told {
            told.refuse(why);
        }
    }

    /// The next frame for init, if there is one and init has room for it.
    pub(super) fn next_frame(&mut self) -> Option<ToInit> {
        let all: u64 = self.flows.values().map(Flow::in_init).sum();
        let has_room = |flow: &Flow| {
            let Some(next) = flow.waiting.front() else { return false };
            let bytes = frame_bytes(&next.data) as u64;
            match flow.opened {
                // It was taken on with all of it.
                Opened::Whole => flow.in_init() + bytes <= STDIN_WINDOW_BYTES,
                Opened::InPieces | Opened::Before => {
                    flow.in_init() + bytes <= PIECES_WINDOW_BYTES
                        && (bytes == 0 || all + bytes <= STDIN_BYTES_MAX)
                }
            }
        };
        let mut behind = self.flows.range(self.last.saturating_add(1)..);
        let found = behind.find(|(_, flow)| has_room(flow)).map(|(run, _)| *run);
        let first = || self.flows.iter().find(|(_, flow)| has_room(flow)).map(|(run, _)| *run);
        let run = found.or_else(first)?;
        self.last = run;
        self.flows.get_mut(&run).and_then(|flow| flow.next_frame(run))
    }

    /// init needs so many bytes less.
    pub(super) fn on_taken(&mut self, run: u64, bytes: u64) -> Result<(), LinkFault> {
        // A run that is over has no flow any more; init may still tell what it threw away.
        let Some(flow) = self.flows.get_mut(&run) else { return Ok(()) };
        flow.taken = flow.taken.saturating_add(bytes);
        if flow.opened == Opened::Before {
            flow.taken = flow.taken.min(flow.sent);
        }
        if flow.taken > flow.sent {
            return Err(LinkFault::Protocol("it took more stdin than it was given"));
        }
        Ok(())
    }

    /// The run is over: nobody reads it any more.
    pub(super) fn close(&mut self, run: u64) {
        let Some(flow) = self.flows.remove(&run) else { return };
        for told in flow.waiting.into_iter().filter_map(|waiting| waiting.told) {
            told.refuse(Why::HasEnded);
        }
    }

    /// Tells all that wait why they wait no more.
    pub(super) fn refuse_all(&mut self, why: impl Fn() -> Error) {
        for flow in std::mem::take(&mut self.flows).into_values() {
            for told in flow.waiting.into_iter().filter_map(|waiting| waiting.told) {
                told.tell(Err(why()));
            }
        }
    }
}

/// Whether more follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    OfFile,
    NotYet,
}

fn frame_bytes(data: &Bytes) -> usize {
    data.len().min(DATA_BYTES_MAX)
}

impl Flow {
    /// Bytes that wait in init, as far as is known.
    fn in_init(&self) -> u64 {
        self.sent.saturating_sub(self.taken)
    }

    fn unread(&self) -> u64 {
        let here = self.waiting.iter().map(|waiting| waiting.data.len() as u64);
        self.in_init() + here.sum::<u64>()
    }

    fn next_frame(&mut self, run: u64) -> Option<ToInit> {
        let next = self.waiting.front_mut()?;
        let data = next.data.split_to(frame_bytes(&next.data));
        self.sent = self.sent.saturating_add(data.len() as u64);
        let is_whole = next.data.is_empty();
        let is_last = is_whole && next.is_last;
        if is_whole && let Some(told) = self.waiting.pop_front().and_then(|whole| whole.told) {
            told.tell(Ok(()));
        }
        Some(ToInit::Stdin { run, data: data.to_vec(), is_last })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn told() -> (Told, oneshot::Receiver<Result<(), Error>>) {
        let (to, heard) = oneshot::channel();
        (Told { subject: "exec e1".into(), to }, heard)
    }

    fn next(stdins: &mut Stdins) -> Option<(u64, usize, bool)> {
        match stdins.next_frame() {
            Some(ToInit::Stdin { run, data, is_last }) => Some((run, data.len(), is_last)),
            Some(_) => panic!(),
            None => None,
        }
    }

    #[test]
    fn bytes_go_in_frames_and_end_once() {
        let mut stdins = Stdins::default();
        stdins.open(1, Opened::InPieces);
        stdins.push(1, vec![1; DATA_BYTES_MAX + 5].into(), End::NotYet, None);
        let (told, mut heard) = self::told();
        stdins.push(1, Bytes::new(), End::OfFile, Some(told));
        assert_eq!(next(&mut stdins), Some((1, DATA_BYTES_MAX, false)));
        assert_eq!(next(&mut stdins), Some((1, 5, false)));
        assert!(heard.try_recv().is_err());
        assert_eq!(next(&mut stdins), Some((1, 0, true)));
        assert!(heard.try_recv().unwrap().is_ok());
        assert_eq!(next(&mut stdins), None);
        for (run, why) in [(1, "the stdin of exec e1 is closed"), (2, "exec e1 takes no stdin")] {
            let (told, mut heard) = self::told();
            stdins.push(run, Bytes::new(), End::NotYet, Some(told));
            let Err(Error::Conflict(text)) = heard.try_recv().unwrap() else { panic!("{why}") };
            assert_eq!(text, why);
        }
    }

    #[test]
    fn no_more_than_the_window_waits_in_init() {
        let mut stdins = Stdins::default();
        stdins.open(1, Opened::Whole);
        stdins.open(2, Opened::InPieces);
        let all = usize::try_from(STDIN_WINDOW_BYTES).unwrap() + 1;
        stdins.push(1, vec![0; all].into(), End::OfFile, None);
        stdins.push(2, b"x"[..].into(), End::OfFile, None);
        let mut sent = 0;
        while let Some((run, bytes, _)) = next(&mut stdins) {
            sent += if run == 1 { bytes } else { 0 };
        }
        assert_eq!(sent, all - 1);
        stdins.on_taken(1, 1).unwrap();
        assert_eq!(next(&mut stdins), Some((1, 1, true)));
        assert!(stdins.on_taken(1, STDIN_WINDOW_BYTES).is_ok());
        assert!(stdins.on_taken(1, 1).is_err());
        assert!(stdins.on_taken(7, 1).is_ok());
    }

    #[test]
    fn all_runs_together_have_a_limit() {
        let mut stdins = Stdins::default();
        let piece = Bytes::from(vec![0; 1024 * 1024]);
        for run in 0..20 {
            stdins.open(run, Opened::InPieces);
            (0..16).for_each(|_| stdins.push(run, piece.clone(), End::NotYet, None));
        }
        let mut sent = 0;
        while let Some((_, bytes, _)) = next(&mut stdins) {
            sent += bytes as u64;
        }
        assert_eq!(sent, STDIN_BYTES_MAX);
        stdins.may_take(0).unwrap();
        assert!(matches!(stdins.may_take(1), Err(Error::Overloaded(_))));
        // What is closed or read makes room.
        (0..5).for_each(|run| stdins.close(run));
        assert!(next(&mut stdins).is_some());
        stdins = Stdins::default();
        let all = usize::try_from(STDIN_BYTES_MAX).unwrap();
        stdins.may_take(all).unwrap();
        assert!(stdins.may_take(all + 1).is_err());
    }

    #[test]
    fn what_an_earlier_engine_gave_is_no_fault() {
        let mut stdins = Stdins::default();
        stdins.open(1, Opened::Before);
        stdins.on_taken(1, 5).unwrap();
        let all = usize::try_from(PIECES_WINDOW_BYTES).unwrap() + 1;
        stdins.push(1, vec![0; all].into(), End::OfFile, None);
        let mut sent = 0;
        while let Some((_, bytes, _)) = next(&mut stdins) {
            sent += bytes;
        }
        assert_eq!(sent, all - 1);
    }
}
