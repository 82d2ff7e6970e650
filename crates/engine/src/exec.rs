//! One command as its caller sees it.

use std::collections::VecDeque;
use std::sync::Arc;

use sandkasten_protocol as protocol;
use sandkasten_types::ExecId;
use sandkasten_types::exec::{Chunk, ExecAnswer, ExecEnd, ExecOutput, ExecRequest, Gap, Stream};
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::config::Config;
use crate::output::{Blocking, Cleaning, Streaming, chunks};
use crate::session::{Command, Handle, Outcome, Pipe, Taken, check_exec};

/// Output that was taken is reported to init in steps of this cost: a small part of its window.
const CREDIT_STEP: u64 = protocol::WINDOW_COST / 4;

/// A command that is queued or runs. Dropping it before its end cancels the command.
#[derive(Debug)]
#[must_use = "dropping it cancels the command"]
pub struct ExecHandle {
    id: ExecId,
    cleaning: Cleaning,
    output_bytes_max: u64,
    source: Source,
    /// Of a stream: the text that was cleaned and not given yet.
    ready: VecDeque<Chunk>,
    streaming: Streaming,
    seq: u64,
    /// Of the last piece: what is held back to the end belongs to it.
    last: (Stream, i64),
    end: Option<Outcome>,
}

/// One event of a stream. `Done` or `Failed` comes once, last.
#[derive(Debug)]
pub enum ExecEvent {
    /// Fits an SSE event of 8 KiB once it is escaped.
    Chunk(Chunk),
    /// Output that is not kept any more.
    Gap(Gap),
    /// `seq` is the number after the last chunk's.
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

    /// The next event of the stream, cleaned; `None` after the last. May be dropped and called again.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Some(ExecEvent::Chunk(chunk));
            }
            if let Some(outcome) = self.end.take() {
                return Some(self.last_event(outcome));
            }
            match self.source.take().await? {
                Taken::Record(record) => {
                    let text = self.streaming.push(&record.data);
                    self.last = (stream(record.stream), record.at_ms);
                    self.add_chunks(&text);
                }
                Taken::End(outcome) => {
                    let text = self.streaming.finish();
                    self.add_chunks(&text);
                    self.end = Some(outcome);
                }
            }
        }
    }

    /// Leaves the command to itself: it goes on, and its events wait under its id.
    pub fn detach(self) {
        // This version refuses what asks for it.
    }

    /// Waits for the end and gives the blocking answer, capped head and tail.
    ///
    /// # Errors
    /// [`Error::Ended`] with the output so far where the session ended first.
    pub async fn finish(mut self) -> Result<ExecAnswer, Error> {
        let mut output = Blocking::new(self.cleaning, self.output_bytes_max);
        loop {
            match self.source.take().await {
                Some(Taken::Record(record)) => output.push(&record.data),
                Some(Taken::End(outcome)) => return answer(outcome, output),
                None => return Err(Error::Internal("an exec was waited for twice".into())),
            }
        }
    }

    fn add_chunks(&mut self, text: &str) {
        let (stream, timestamp) = self.last;
        for chunk in chunks(text) {
            self.seq += 1;
            let (chunk, seq) = (Some(chunk.to_owned()), self.seq);
            let chunk_base64 = None;
            self.ready.push_back(Chunk { chunk, chunk_base64, timestamp, stream, seq });
        }
    }

    fn last_event(&mut self, outcome: Outcome) -> ExecEvent {
        self.seq += 1;
        let seq = self.seq;
        match outcome {
            Outcome::Done(end) => ExecEvent::Done { seq, end },
            Outcome::Failed(error) => ExecEvent::Failed { seq, error },
        }
    }
}

fn answer(outcome: Outcome, output: Blocking) -> Result<ExecAnswer, Error> {
    let (output, truncated) = output.finish();
    let output = ExecOutput { output: Some(output), ..ExecOutput::default() };
    match outcome {
        Outcome::Done(mut end) => {
            end.truncated |= truncated;
            Ok(ExecAnswer { output, end })
        }
        Outcome::Failed(Error::Ended(mut ended)) => {
            if ended.started {
                ended.output = Some(output);
            }
            Err(Error::Ended(ended))
        }
        Outcome::Failed(error) => Err(error),
    }
}

/// Where the output comes from. Dropping it before the end cancels the command.
#[derive(Debug)]
struct Source {
    ticket: u64,
    pipe: Arc<Pipe>,
    commands: mpsc::UnboundedSender<Command>,
    /// Cost of what was taken and not reported yet.
    taken: u64,
    ended: bool,
}

impl Source {
    async fn take(&mut self) -> Option<Taken> {
        let taken = self.pipe.take().await;
        match &taken {
            Some(Taken::Record(record)) => self.report(record.cost()),
            Some(Taken::End(_)) | None => self.ended = true,
        }
        taken
    }

    /// init may send as many more.
    fn report(&mut self, cost: u64) {
        self.taken += cost;
        if self.taken >= CREDIT_STEP {
            let (ticket, cost) = (self.ticket, std::mem::take(&mut self.taken));
            // A session that is gone needs no credit.
            drop(self.commands.send(Command::Consumed { ticket, cost }));
        }
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if !self.ended {
            drop(self.commands.send(Command::Cancel { ticket: self.ticket }));
        }
    }
}

/// Checks a command and queues it in a session.
pub(crate) async fn begin(
    config: &Config,
    session: &Handle,
    request: ExecRequest,
) -> Result<ExecHandle, Error> {
    let checked = check_exec(request, config)?;
    let job = checked.job;
    let source = Source {
        ticket: job.ticket,
        pipe: Arc::clone(&job.pipe),
        commands: session.commands.clone(),
        taken: 0,
        ended: false,
    };
    let id = job.id.clone();
    let (reply, queued) = oneshot::channel();
    let command = Command::Exec { job: Box::new(job), reply };
    if session.commands.send(command).is_err() {
        return Err(session.ended().unwrap_or(Error::Draining));
    }
    queued.await.unwrap_or_else(|_| Err(session.ended().unwrap_or(Error::Draining)))?;
    Ok(ExecHandle {
        id,
        cleaning: checked.cleaning,
        output_bytes_max: checked.output_bytes_max,
        source,
        ready: VecDeque::new(),
        streaming: Streaming::new(checked.cleaning),
        seq: 0,
        last: (Stream::Output, 0),
        end: None,
    })
}

fn stream(stream: protocol::Stream) -> Stream {
    match stream {
        protocol::Stream::Output => Stream::Output,
        protocol::Stream::Stdout => Stream::Stdout,
        protocol::Stream::Stderr => Stream::Stderr,
        protocol::Stream::Pty => Stream::Pty,
    }
}
