//! What the two sides say.

use serde::{Deserialize, Serialize};

use crate::identity::{Expect, Identity};
use crate::work::Meta;

/// Bytes that need not be UTF-8: paths, commands, output.
pub type Bytes = Vec<u8>;

/// What init is told at its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    pub version: u32,
    /// Proves to the engine that it talks to this session's init, and to init that it is the engine.
    pub nonce: [u8; 16],
    pub user: User,
    /// The whole environment of the shell, names and values, in order.
    pub env: Vec<(Bytes, Bytes)>,
    /// Where the shell starts, made where it is missing and the user may; where it can't be entered, `/`,
    /// and [`Hello::cwd_fault`] says why.
    pub cwd: Bytes,
    pub shell: ShellPreference,
    /// Seccomp program of every process that init starts, 8 bytes an instruction as in
    /// `struct sock_filter`; empty: none beside init's own, which they inherit.
    pub payload_filter: Bytes,
}

/// Who runs the shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

/// Which shell is looked for first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellPreference {
    /// bash, else sh.
    Bash,
    /// sh, else bash.
    Sh,
}

/// The shell that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shell {
    Bash,
    Sh,
}

/// Engine to init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToInit {
    /// First on each connection.
    Attach { version: u32, nonce: [u8; 16] },
    /// Something to be run. Commands queue for the shell in the order they come; programs start at
    /// once. A [`FromInit::End`] follows, whatever happens.
    Begin { run: Run, task: Task },
    /// Take it out of the queue, or end it with all it started. Its [`FromInit::End`] follows, as
    /// always.
    Cancel { run: u64 },
    /// Output of that [cost](Record::cost) is dealt with; as much more may be sent.
    Credit { run: u64, cost: u64 },
    /// Nobody reads it as it comes any more: its output goes to the spool alone.
    Unpace { run: u64 },
    /// More for the stdin of a run, [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX) bytes at most, in order.
    /// No more than [`STDIN_WINDOW_BYTES`](crate::STDIN_WINDOW_BYTES) may wait to be
    /// [taken](FromInit::Taken).
    Stdin {
        run: u64,
        #[serde(with = "whole")]
        data: Bytes,
        is_last: bool,
    },
    /// To the program itself, or to its process group and the one in the foreground of its PTY. Nothing
    /// where it has ended.
    Signal { run: u64, signal: i32, to: SignalTo },
    /// A new size of a program's PTY.
    Resize { run: u64, window: Window },
    /// What is kept of a run behind the event `after` (0: all of it); answered by
    /// [`FromInit::Replayed`].
    Replay(Replay),
    /// Its answer is wanted now, even if there is nothing in it.
    Unwait { tag: u32 },
    /// The engine's word on how a run ended, kept and given back in [`Known`]. The next command in
    /// the queue begins only when it has come for the one before, or no engine is there.
    Settle { run: u64, note: Bytes },
    /// A file operation; answered by [`FromInit::File`] with the same tag.
    File { tag: u32, op: FileOp },
}

/// What commands and programs have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Rises within a session, also over restarts of the engine ([`Hello::next_run`]).
    pub id: u64,
    /// The engine's own, [`NOTE_BYTES_MAX`](crate::NOTE_BYTES_MAX) at most: kept and given back in
    /// [`Known`].
    pub note: Bytes,
    /// From its begin; `None`: it may take for ever.
    pub timeout_ms: Option<u64>,
    /// Of a command: `cd` before it, as if typed, and it stays. Of a program: where it starts, in
    /// place of `/workspace`.
    pub cwd: Option<Bytes>,
    /// Of a command: holds for it alone. Of a program: added to the session's.
    pub env: Vec<(Bytes, Bytes)>,
    pub stdin: Stdin,
    pub reader: Reader,
    pub spool: Spool,
}

impl Run {
    /// With no environment of its own, no stdin, no time limit and nobody who reads.
    #[must_use]
    pub fn new(id: u64) -> Self {
        Self {
            id,
            note: Bytes::new(),
            timeout_ms: None,
            cwd: None,
            env: Vec::new(),
            stdin: Stdin::Empty,
            reader: Reader::None,
            spool: Spool::Together { bytes: crate::SPOOL_BYTES },
        }
    }
}

/// What stdin has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    Empty,
    /// What [`ToInit::Stdin`] brings.
    Piped,
}

/// Whether somebody takes the output as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reader {
    /// It gets [`FromInit::Output`], and holds the run up where it is slow: at most
    /// [`WINDOW_COST`](crate::WINDOW_COST) is on its way without a [`ToInit::Credit`].
    Paced,
    None,
}

/// How much output is kept. Beyond it the middle is thrown away and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Spool {
    /// The first and the last half of so many bytes.
    Together { bytes: u64 },
    /// The same of each stream.
    EachStream { bytes: u64 },
}

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// One command of the persistent shell. It waits for those before it.
    Command {
        #[serde(with = "whole")]
        cmd: Bytes,
        output: OutputMode,
        user: RunUser,
    },
    /// Another shell in place of the one that is there. Queues as a command does.
    Restart { keep_state: bool },
    /// A program of its own, beside everything else.
    Program { argv: Vec<Bytes>, user: RunUser, tty: Option<Window> },
}

/// Who runs a command or a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunUser {
    Session,
    Root,
    /// A name of the box's `/etc/passwd`, or a uid of it in digits.
    Named(Bytes),
}

/// Whom a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalTo {
    Process,
    Group,
}

/// Size of a PTY in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub rows: u16,
    pub cols: u16,
}

/// Where a command's output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputMode {
    /// stdout and stderr on one pipe.
    Merged,
    /// stdout and stderr on two pipes.
    Split,
    /// Both on a fresh PTY.
    Pty,
}

/// Which output some bytes are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// stdout and stderr together.
    Output,
    Stdout,
    Stderr,
    Pty,
}

/// A question for what is kept of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replay {
    pub tag: u32,
    pub run: u64,
    /// The last event that is known already.
    pub after: u64,
    /// Output of this stream alone.
    pub stream: Option<Stream>,
    pub wait: Wait,
}

/// What is done where there is nothing to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// The answer is empty.
    No,
    /// The answer comes when there is something, or when there will never be.
    Yes,
}

/// Init to engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromInit {
    /// The answer to [`ToInit::Attach`].
    Hello(Hello),
    /// A run that is kept; all of them come right after [`FromInit::Hello`], by id.
    Known(Known),
    /// A program runs, or a command that had to wait does. A command that need not begins when it
    /// is sent.
    Begun { run: u64, begun: Begun },
    /// Output of a [paced](Reader::Paced) run, in order; never empty, together
    /// [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX) at most.
    Output { run: u64, records: Vec<Record> },
    /// It is over. All output of a paced run came before; that of a child that goes on is kept and
    /// not sent.
    End { run: u64, end: End },
    /// So many bytes of its stdin wait no more: they are read, or will never be.
    Taken { run: u64, bytes: u64 },
    /// The answer to [`ToInit::Replay`]. `None`: nothing is kept of such a run.
    Replayed { tag: u32, part: Option<Part> },
    /// A run that ended is not kept any more: others need the room.
    Forgotten { run: u64 },
    /// The answer to [`ToInit::File`]. A descriptor comes with the frame where the operation says so.
    File { tag: u32, result: Result<FileDone, FileFault> },
}

/// Some output: one event. It is small enough for one of the API's, however its bytes are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Counts the events of a run from 1.
    pub seq: u64,
    pub stream: Stream,
    /// Milliseconds since 1970-01-01 UTC.
    pub at_ms: i64,
    #[serde(with = "whole")]
    pub data: Bytes,
}

impl Record {
    /// What it takes of a window: memory that holds it, not only its bytes.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.data.len() as u64 + crate::RECORD_COST
    }
}

/// A part of what is kept of a run, in the order of its events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub items: Vec<Item>,
    pub then: Then,
}

/// One event that is kept, or a gap between two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    Record(Record),
    /// Output that was thrown away: the events from `from_seq` to `to_seq`.
    Gap {
        bytes: u64,
        from_seq: u64,
        to_seq: u64,
    },
    /// Here it ended; what follows is of children that went on.
    End {
        seq: u64,
    },
}

/// What stands behind a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// More is there.
    More,
    /// Nothing yet.
    Quiet,
    /// Nothing, for ever.
    Over,
}

/// State of init when the engine connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u32,
    pub nonce: [u8; 16],
    /// `None`: the image has no shell.
    pub shell: Option<Shell>,
    pub cwd: Bytes,
    /// Why [`Config::cwd`] could not be made or entered.
    pub cwd_fault: Option<FileFault>,
    /// How many [`FromInit::Known`] follow.
    pub runs: u32,
    /// The least id that the next run may have.
    pub next_run: u64,
}

/// A run that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    pub run: u64,
    pub note: Bytes,
    /// `None`: it waits.
    pub begun: Option<Begun>,
    /// `None`: it waits or runs.
    pub end: Option<End>,
    /// The note of [`ToInit::Settle`].
    pub settled: Option<Bytes>,
}

/// A run that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    /// Milliseconds since 1970-01-01 UTC.
    pub at_ms: i64,
    /// Of a program, as the box sees it.
    pub pid: Option<i32>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub how: How,
    /// As a shell shows it: 128 + n for a signal; of a command 124 at the timeout, 130 when cancelled.
    pub exit_code: i32,
    /// The working directory of the shell that takes the next command.
    pub cwd: Bytes,
    pub duration_ms: u64,
    /// Another shell than the one that ran this command takes the next one.
    pub shell_restarted: bool,
    /// The shell that takes the next command has not all of the state that the last finished one left.
    pub state_lost: bool,
    /// Bytes that were written up to the end.
    pub output_bytes: u64,
    /// Bytes of them that are not kept.
    pub dropped_bytes: u64,
    /// The end is an event too.
    pub seq: u64,
}

/// What ended a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// By itself; the shell goes on. A program that is not there is 127, one that can't be executed 126.
    Exited,
    /// The shell was left (`exit`, `set -e`) with the code of the answer.
    ShellExited,
    /// The shell, or the program, died by this signal.
    Signaled(i32),
    Timeout,
    Cancelled,
    /// `cwd` of the request can't be entered; nothing ran.
    BadCwd,
    /// A name in `env` of the request is read-only in the shell; nothing ran.
    ReadOnlyEnv,
    /// The shell gave no whole status: what the command did is not known.
    Broken,
    /// No shell could be started.
    NoShell,
    /// The box's passwd has no such user; nothing ran.
    UnknownUser,
    /// The program could not be started for this errno; nothing ran.
    NotStarted(i32),
}

/// Whose rights a file operation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileUser {
    Session,
    Root,
    /// As [`FileOp::FindUser`] has found them.
    Ids {
        uid: u32,
        gid: u32,
    },
}

/// A file operation. Paths are absolute or relative to `/workspace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileOp {
    /// Opens a regular file for reading. The descriptor comes with the answer.
    Read {
        path: Bytes,
        user: FileUser,
    },
    /// Makes a temporary file beside `path`, to be written by the engine and then committed. The
    /// descriptor, open for writing, comes with the answer.
    Create {
        path: Bytes,
        user: FileUser,
        mode: Option<u32>,
        parents: Parents,
        expect: Expect,
    },
    /// Makes a file with this data, [`DATA_BYTES_MAX`](crate::DATA_BYTES_MAX) bytes at most, and puts it in its
    /// place in one step; answered by [`FileDone::Written`].
    Put {
        path: Bytes,
        user: FileUser,
        mode: Option<u32>,
        parents: Parents,
        expect: Expect,
        data: Bytes,
    },
    /// Puts the temporary file in its place, if what is there still is what was expected.
    Commit {
        token: u32,
    },
    /// Removes the temporary file.
    Abort {
        token: u32,
    },
    /// Starts a worker with the ids of its user. Its socket comes with the answer.
    Work {
        job: crate::work::Job,
        user: FileUser,
    },
    /// Facts about a file; answered by [`FileDone::Found`]. Without `follow` of a link itself.
    Stat {
        path: Bytes,
        user: FileUser,
        follow: bool,
    },
    /// Makes a directory; where parents are made, one that is there is fine.
    MakeDir {
        path: Bytes,
        user: FileUser,
        mode: u32,
        parents: Parents,
    },
    /// Gives a file or directory another name on the same file system.
    Move {
        from: Bytes,
        to: Bytes,
        user: FileUser,
        overwrite: bool,
    },
    Chmod {
        path: Bytes,
        user: FileUser,
        mode: u32,
    },
    /// Removes a file, a link or an empty directory.
    Remove {
        path: Bytes,
        user: FileUser,
        expect: Expect,
    },
    /// Finds a user of the box, as [`RunUser::Named`] does; answered by [`FileDone::User`].
    FindUser {
        name: Bytes,
    },
    /// Opens the directory that a temporary file is in, for fsync(2) alone. The descriptor comes with the
    /// answer.
    OpenDir {
        token: u32,
    },
}

/// Whether missing parent directories are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parents {
    Make,
    MustExist,
}

/// A file operation that worked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileDone {
    /// A descriptor comes with the frame.
    Opened,
    /// A descriptor comes with the frame.
    Created {
        token: u32,
        /// The absolute path of the file to be, links in its directory not resolved.
        path: Bytes,
    },
    Done,
    Found(Meta),
    /// Which contents the file has now.
    Written(Identity),
    User {
        uid: u32,
        gid: u32,
    },
}

/// A file operation that did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileFault {
    NotFound,
    IsADirectory,
    NotADirectory,
    /// FIFO, socket or device.
    NotAFile,
    PermissionDenied,
    AlreadyExists,
    /// Empty, with a NUL, too long, or a loop of links.
    InvalidPath,
    NoSpace,
    /// It leaves the tree that it must stay in.
    NotAllowed,
    /// A directory into itself, or onto what it lies in.
    IntoItself,
    /// A tree is deeper, or a directory larger, than what is gone through.
    TooLarge,
    /// Something else is there than was expected.
    Changed,
    /// A directory with entries.
    NotEmpty,
    /// The two paths are on two file systems.
    OtherDevice,
    /// More directories than a watch follows.
    TooManyDirs,
    /// Workers of the session that are there at once, and those of them that watch.
    TooManyWorkers,
    TooManyWatches,
    /// init's own limit on open operations.
    Busy,
    /// The token names no temporary file.
    UnknownToken,
    /// The box's passwd has no such user.
    UnknownUser,
    /// An archive that is damaged or not allowed.
    Archive(ArchiveFault),
    /// An errno that has no name here.
    Other(i32),
}

/// What is wrong with an archive, or with one of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveFault {
    NotAnArchive,
    CutShort,
    /// Something that is not zeros follows the end mark.
    BehindTheEnd,
    /// The data of its compression are damaged.
    Gzip,
    /// It grows too much when it is unpacked.
    Ratio,
    Malformed,
    LongHeader,
    /// Two sizes or names of one entry.
    Contradiction,
    DataBehindLink,
    Sparse,
    /// A device or FIFO.
    Special,
    UnknownKind,
    AbsoluteName,
    /// A name with `..`.
    ParentName,
    /// The target of a hard link is none, or outside.
    LinkTarget,
    LinkInTheWay,
    TooDeep,
}

impl ArchiveFault {
    /// In words, with the way out where there is one.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NotAnArchive => {
                "not a tar archive, or a damaged one (gzip is told by its Content-Type)"
            }
            Self::CutShort => "the archive is cut short",
            Self::BehindTheEnd => "data follow the archive's end mark",
            Self::Gzip => "the gzip data are damaged",
            Self::Ratio => "the gzip data grow more than 200-fold; send the archive unpacked",
            Self::Malformed => "a malformed header",
            Self::LongHeader => "an extended header is longer than 1 MiB",
            Self::Contradiction => "two headers contradict each other",
            Self::DataBehindLink => "data behind an entry that is no file",
            Self::Sparse => "sparse entries are not supported; pack without `--sparse`",
            Self::Special => "devices and FIFOs are not unpacked; leave them out",
            Self::UnknownKind => "neither a file nor a directory nor a link",
            Self::AbsoluteName => "an absolute name; names are relative to the directory",
            Self::ParentName => "`..` in a name",
            Self::LinkTarget => "a hard link to what is no file of the directory",
            Self::LinkInTheWay => "a symbolic link is in the way",
            Self::TooDeep => "more than 512 directories deep",
        }
    }
}

/// Byte strings as such: serde's own way is one call a byte. The bytes on the wire are the same.
pub(crate) mod whole {
    use std::fmt;

    use serde::de::{Deserializer, Error, Visitor};
    use serde::ser::Serializer;

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }
        from.deserialize_byte_buf(Whole)
    }

    #[cfg(test)]
    mod test {
        use super::super::{FromInit, Record, Stream};

        #[test]
        fn the_wire_is_that_of_a_sequence() {
            let data = vec![7u8; 300];
            let record = (9u64, Stream::Output, -1i64, &data);
            let plain = postcard::to_stdvec(&(3u32, 5u64, vec![record])).unwrap();
            let record = Record { seq: 9, stream: Stream::Output, at_ms: -1, data: data.clone() };
            let frame = FromInit::Output { run: 5, records: vec![record] };
            let bytes = postcard::to_stdvec(&frame).unwrap();
            assert_eq!(bytes, plain);
            assert_eq!(postcard::from_bytes::<FromInit>(&bytes), Ok(frame));
        }
    }
}
