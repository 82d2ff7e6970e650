//! Processes as their callers see them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandkasten_protocol::{self as protocol, Item};
use sandkasten_types::exec::{Chunk, Gap, Stream};
use sandkasten_types::process::{ProcessEnd, ProcessStarted, ProcessStatus};
use sandkasten_types::{ProcessId, Timestamp};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::events::{run_status, shown, started_at};
use crate::exec::{Teller, Told};
use crate::output::Decoder;
use crate::reader::{Given, Pull, Read, Reader};
use crate::session::{
    Command, Encoding, Found, Handle, Hold, Name, Note, Seat, StdinEnd, StdinTold,
};

/// init says within this that a program runs, on however little CPU the session has.
pub(crate) const BEGIN_WAIT: Duration = Duration::from_secs(30);

/// Whether more stdin will follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    No,
    /// Then comes the end of file.
    Yes,
}

/// A process that runs. Dropping it kills the process where the request waits for it and says
/// `on_disconnect` `kill`.
#[derive(Debug)]
#[must_use = "dropping it may kill the process"]
pub struct ProcessHandle {
    pub(crate) started: ProcessStarted,
    pub(crate) session: Arc<Handle>,
    pub(crate) note: Arc<Note>,
    pub(crate) seat: Seat,
    /// While somebody waits for it the session lives.
    pub(crate) hold: Option<Hold>,
}

impl ProcessHandle {
    #[must_use]
    pub fn started(&self) -> &ProcessStarted {
        &self.started
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// [`Error::Ended`] where the session ended first.
    pub async fn wait(mut self) -> Result<ProcessResult, Error> {
        let over = self.session.over(self.seat.run(), self.note.subject()).await;
        self.seat.quiet();
        let end = over?.process(&self.note)?;
        let has_tty = self.note.process().is_some_and(|process| process.has_tty);
        let encoding = self.note.process().map_or(Encoding::Base64, |process| process.encoding);
        let text = || (encoding == Encoding::Text).then(Decoder::default);
        let process_id = self.started.process_id;
        let hold = self.hold.map(Arc::new);
        let kept = |stream| {
            let of = (Name::Process(process_id.clone()), self.seat.run());
            let reader = Reader::new(Arc::clone(&self.session), of, 0).of(stream);
            Kept { reader: Some(reader), text: text(), _hold: hold.clone() }
        };
        let (stdout, stderr) = if has_tty {
            (kept(protocol::Stream::Pty), Kept { reader: None, text: None, _hold: None })
        } else {
            (kept(protocol::Stream::Stdout), kept(protocol::Stream::Stderr))
        };
        Ok(ProcessResult { process_id, end, encoding, stdout, stderr })
    }
}

/// What a process that was waited for gave.
#[derive(Debug)]
pub struct ProcessResult {
    pub process_id: ProcessId,
    pub end: ProcessEnd,
    /// Of the two streams; pieces of a text are valid UTF-8.
    pub encoding: Encoding,
    /// With a PTY all that it wrote.
    pub stdout: Kept,
    pub stderr: Kept,
}

/// What is kept of one stream up to the end, in pieces. While it is there the session's lease is held.
#[derive(Debug)]
pub struct Kept {
    reader: Option<Reader>,
    /// Where it is a text.
    text: Option<Decoder>,
    _hold: Option<Arc<Hold>>,
}

impl Kept {
    /// The next piece, `None` after the last. What is missing in the middle is left out.
    ///
    /// # Errors
    /// Where it is not kept any more, or the session has ended.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(reader) = &mut self.reader else { return Ok(None) };
        loop {
            match reader.next().await? {
                Some(Read { item: Item::Record(record), .. }) => {
                    return Ok(Some(match &mut self.text {
                        Some(text) => text.push(&record.data).into(),
                        None => record.data.into(),
                    }));
                }
                Some(Read { item: Item::Gap { .. }, .. }) => {
                    if let Some(rest) = self.text.as_mut().map(Decoder::finish) {
                        return Ok(Some(rest.into()));
                    }
                }
                Some(Read { item: Item::End { .. }, .. }) | None => {
                    self.reader = None;
                    return Ok(self.text.take().map(|mut text| text.finish().into()));
                }
            }
        }
    }
}

/// Some output of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    pub stream: Stream,
    pub data: Data,
    pub seq: u64,
    /// Milliseconds since 1970-01-01 UTC.
    pub timestamp: i64,
}

/// Output as it is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    Bytes(Bytes),
    /// What is no UTF-8 is replaced; characters are whole.
    Text(String),
}

impl Data {
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Text(text) => text.as_bytes(),
        }
    }
}

/// One event of a process.
#[derive(Debug)]
pub enum ProcessEvent {
    Output(Written),
    Gap(Gap),
    /// Comes once; output of children that went on may follow.
    Exit {
        seq: u64,
        end: ProcessEnd,
    },
    /// Last.
    Failed {
        seq: u64,
        error: Error,
    },
}

/// The events of a process, one after the other. While it is there the session's lease is held.
#[derive(Debug)]
pub struct ProcessEvents {
    pull: Pull,
    teller: Teller,
    is_over: bool,
    _hold: Hold,
}

/// How the output in a process's events is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// As the process's request asked for.
    AsAsked,
    /// As bytes, whatever that was.
    Bytes,
}

impl ProcessEvents {
    pub(crate) fn new(pull: Pull, teller: Teller, hold: Hold) -> Self {
        Self { pull, teller, is_over: false, _hold: hold }
    }

    /// The next event; `None` after the last. May be dropped and called again.
    pub async fn next(&mut self) -> Option<ProcessEvent> {
        loop {
            if let Some(told) = self.teller.ready.pop_front() {
                return Some(event(&self.teller.note, told));
            }
            if self.is_over {
                return None;
            }
            match self.pull.next().await {
                Some(given) => {
                    self.is_over = matches!(given, Given::Failed(_));
                    self.teller.take(given);
                }
                None => self.is_over = true,
            }
        }
    }
}

fn event(note: &Note, told: Told) -> ProcessEvent {
    match told {
        Told::Chunk(chunk) => {
            let Chunk { chunk: text, chunk_base64: bytes, timestamp, stream, seq } = chunk;
            let data = match text {
                Some(text) => Data::Text(text),
                None => Data::Bytes(bytes.unwrap_or_default().0.into()),
            };
            ProcessEvent::Output(Written { stream, data, seq, timestamp })
        }
        Told::Gap(gap) => ProcessEvent::Gap(gap),
        Told::End { seq, over } => match over.process(note) {
            Ok(end) => ProcessEvent::Exit { seq, end },
            Err(error) => ProcessEvent::Failed { seq, error },
        },
        Told::Failed { seq, error } => ProcessEvent::Failed { seq, error },
    }
}

/// Gives a run more stdin; answers when there was room for all of it.
pub(crate) async fn give_stdin(
    (session, found): (Arc<Handle>, Found),
    data: Bytes,
    last: Last,
) -> Result<(), Error> {
    session.tell(Command::Renew)?;
    let end = match last {
        Last::Yes => StdinEnd::OfFile,
        Last::No => StdinEnd::NotYet,
    };
    let (to, room) = oneshot::channel();
    let told = StdinTold { subject: found.note.subject(), to };
    session.ask(Command::Stdin { run: found.run, data, end, told }, room).await?
}

/// `None` for what is no process.
pub(crate) fn status(found: &Found) -> Option<ProcessStatus> {
    let process = found.note.process()?;
    let ended = found.over.as_ref().map(|over| over.process(&found.note));
    let (end, error) = match ended {
        None => (None, None),
        Some(Ok(end)) => (Some(end), None),
        Some(Err(error)) => (None, Some(shown(&error))),
    };
    Some(ProcessStatus {
        process_id: process.id.clone(),
        status: run_status(found),
        pid: found.begun.and_then(|begun| begun.pid),
        argv: process.argv.split('\0').map(str::to_owned).collect(),
        tty: process.has_tty,
        created_at: Timestamp::from_unix_ms(found.note.created_ms),
        started_at: started_at(found),
        finished_at: found.over.as_ref().map(|over| Timestamp::from_unix_ms(over.finished_ms())),
        error,
        end,
    })
}
