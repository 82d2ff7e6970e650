//! Processes as their callers see them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sandkasten_protocol::{self as protocol, Item, SignalTo, ToInit};
use sandkasten_types::exec::{Chunk, Gap, Stream};
use sandkasten_types::process::{
    ProcessEnd, ProcessStarted, ProcessStatus, SignalProcess, StartProcess, Tty,
};
use sandkasten_types::{ProcessId, SessionId, Timestamp};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::engine::Engine;
use crate::error::Error;
use crate::events::{EventsFrom, cancel, run_status, shown, started_at};
use crate::exec::{Teller, Told};
use crate::output::{Cleaning, Decoder};
use crate::reader::{Given, Pull, Read, Reader};
use crate::session::{
    Command, Encoding, Found, Handle, Hold, Name, Note, Seat, Started, StdinEnd, StdinTold,
    check_program, signal, window,
};

/// init says within this that a program runs, on however little CPU the session has.
const BEGIN_WAIT: Duration = Duration::from_secs(30);

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
    started: ProcessStarted,
    session: Arc<Handle>,
    note: Arc<Note>,
    seat: Seat,
    /// While somebody waits for it the session lives.
    hold: Option<Hold>,
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

impl Engine {
    /// Starts a program. It answers when the program runs, or could not be found.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::TooLarge`], [`Error::SessionNotFound`], [`Error::Ended`],
    /// [`Error::Overloaded`] where too many run.
    pub async fn start_process(
        &self,
        id: &SessionId,
        request: StartProcess,
    ) -> Result<ProcessHandle, Error> {
        self.check_stopping()?;
        let session = self.living(id).await?;
        let program = check_program(request, &session.spec.user)?;
        let process_id = program.id.clone();
        let hold = program.wait.then(|| Hold::new(&session));
        let (reply, begun) = oneshot::channel();
        session.tell(Command::Program { program: Box::new(program), reply })?;
        let Ok(started) = timeout(BEGIN_WAIT, begun).await else {
            if let Ok(found) = session.find(Name::Process(process_id)).await {
                session.tell(Command::Cancel { run: found.run })?;
            }
            let text = format!("no answer from the session in {} s", BEGIN_WAIT.as_secs());
            return Err(Error::Overloaded(text));
        };
        let Started { seat, note, begun } = started.map_err(|_gone| session.gone())??;
        let started = ProcessStarted {
            process_id,
            pid: begun.pid.unwrap_or(0),
            started_at: Timestamp::from_unix_ms(begun.at_ms),
        };
        Ok(ProcessHandle { started, session, note, seat, hold })
    }

    /// The processes of a session that are kept, oldest first. Each has a number, which rises from one to
    /// the next.
    ///
    /// # Errors
    /// [`Error::SessionNotFound`], [`Error::Ended`].
    pub async fn list_processes(&self, id: &SessionId) -> Result<Vec<(u64, ProcessStatus)>, Error> {
        let found = self.living(id).await?.list().await?;
        Ok(found.iter().filter_map(|found| Some((found.run, status(found)?))).collect())
    }

    /// One process.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], and those of the session.
    pub async fn process(
        &self,
        id: &SessionId,
        process: &ProcessId,
    ) -> Result<ProcessStatus, Error> {
        let (_, found) = self.program(id, process).await?;
        status(&found).ok_or_else(|| Error::ProcessNotFound(process.clone()))
    }

    /// Gives a process more stdin; answers when there was room for all of it.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], [`Error::Conflict`] where it has ended or takes no stdin.
    pub async fn process_stdin(
        &self,
        id: &SessionId,
        process: &ProcessId,
        data: Bytes,
        last: Last,
    ) -> Result<(), Error> {
        give_stdin(self.program(id, process).await?, data, last).await
    }

    /// Sends a signal to the process itself, or to its group. One that has ended gets none, and that is no
    /// error.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a signal that is none, [`Error::ProcessNotFound`].
    pub async fn signal_process(
        &self,
        id: &SessionId,
        process: &ProcessId,
        request: &SignalProcess,
    ) -> Result<(), Error> {
        let signal = signal(&request.signal)?;
        let group = request.group.unwrap_or(false);
        let to = if group { SignalTo::Group } else { SignalTo::Process };
        let (session, found) = self.program(id, process).await?;
        session.tell(Command::Renew)?;
        let (run, frame) = (found.run, ToInit::Signal { run: found.run, signal, to });
        session.tell(Command::Tell { run, frame })
    }

    /// Gives the PTY of a process another size.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::ProcessNotFound`], [`Error::Conflict`] where it has none.
    pub async fn resize_process(
        &self,
        id: &SessionId,
        process: &ProcessId,
        size: Tty,
    ) -> Result<(), Error> {
        let window = window(size, "")?;
        let (session, found) = self.program(id, process).await?;
        if !found.note.process().is_some_and(|process| process.has_tty) {
            return Err(Error::Conflict(format!("process {process} has no PTY")));
        }
        session.tell(Command::Renew)?;
        let (run, frame) = (found.run, ToInit::Resize { run: found.run, window });
        session.tell(Command::Tell { run, frame })
    }

    /// Kills a process with all that it started. Answers when it has ended, or after 5 s.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], and those of the session.
    pub async fn kill_process(&self, id: &SessionId, process: &ProcessId) -> Result<(), Error> {
        let (session, found) = self.program(id, process).await?;
        session.tell(Command::Renew)?;
        cancel(&session, &found).await?;
        // Of one that had ended its children are killed: init answers this behind it.
        let of = (Name::Process(process.clone()), found.run);
        Reader::new(session, of, u64::MAX).next().await.map(drop)
    }

    /// The events of a process from any of them on.
    ///
    /// # Errors
    /// [`Error::ProcessNotFound`], and those of the session.
    pub async fn process_events(
        &self,
        id: &SessionId,
        process: &ProcessId,
        from: EventsFrom,
        form: Form,
    ) -> Result<ProcessEvents, Error> {
        let (session, found) = self.program(id, process).await?;
        let hold = Hold::new(&session);
        let EventsFrom { after, follow } = from;
        let asked = found.note.process().map(|process| process.encoding);
        let cleaning =
            (form == Form::AsAsked && asked == Some(Encoding::Text)).then_some(Cleaning::Utf8Only);
        // Text depends on all that stands before it.
        let begin = if cleaning.is_some() { 0 } else { after };
        let reader = Reader::new(session, (Name::Process(process.clone()), found.run), begin);
        let teller = Teller::new(found.note, cleaning, after);
        Ok(ProcessEvents {
            pull: Pull::new(reader, after, follow),
            teller,
            is_over: false,
            _hold: hold,
        })
    }

    async fn program(
        &self,
        id: &SessionId,
        process: &ProcessId,
    ) -> Result<(Arc<Handle>, Found), Error> {
        let session = self.living(id).await?;
        let found = session.find(Name::Process(process.clone())).await?;
        Ok((session, found))
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
fn status(found: &Found) -> Option<ProcessStatus> {
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
