//! What is noted of a run, in init: a later daemon knows by it all that this one did.
//!
//! Invariant: a note and a verdict are [`NOTE_BYTES_MAX`] bytes at most, whatever was asked for.

use sandkasten_jail::cgroup::Events;
use sandkasten_protocol::{NOTE_BYTES_MAX, OutputMode, RunUser};
use sandkasten_types::exec::ExitReason;
use sandkasten_types::{ExecId, ProcessId};
use serde::{Deserialize, Serialize};

/// Bytes of a command that are noted.
const TEXT_BYTES: usize = 2048;
/// Bytes of a `cwd` that are noted, for a message.
const CWD_BYTES: usize = 512;

/// What a run is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) what: What,
    /// Milliseconds since 1970-01-01 UTC.
    pub(crate) created_ms: i64,
    /// What the group had counted before.
    pub(crate) before: Counted,
    pub(crate) on_leave: OnLeave,
    /// The directory of the request, or its beginning.
    pub(crate) cwd: Option<String>,
    /// Who it was asked to be run by, where that is to be looked up.
    pub(crate) user: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    Exec(ExecNote),
    Restart,
    Process(ProcessNote),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExecNote {
    pub(crate) id: ExecId,
    /// Hash of all that makes it the same command. `None`: the client did not choose its id.
    pub(crate) same: Option<[u8; 32]>,
    pub(crate) cmd: Cut,
    pub(crate) timeout_ms: u64,
    pub(crate) stdin: Given,
    pub(crate) shape: Shape,
}

/// How a command's output is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) output: OutputMode,
    pub(crate) encoding: Encoding,
    /// Cap of each field of a blocking answer.
    pub(crate) bytes_max: u64,
}

/// How output is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Encoding {
    Text,
    Base64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessNote {
    pub(crate) id: ProcessId,
    /// The beginning of its arguments, NULs between them: a list could have very many.
    pub(crate) argv: String,
    pub(crate) has_tty: bool,
    pub(crate) stdin: Given,
    pub(crate) encoding: Encoding,
}

/// What a run is given to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Given {
    Nothing,
    /// All at its begin.
    AtOnce,
    InPieces,
}

/// What happens when nobody waits for a run any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnLeave {
    Cancel,
    Keep,
}

/// The beginning of a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cut {
    pub(crate) text: String,
    /// Bytes of all of it.
    pub(crate) bytes: u64,
}

impl Cut {
    pub(crate) fn new(text: &str) -> Self {
        Self { text: beginning(text, TEXT_BYTES).to_owned(), bytes: text.len() as u64 }
    }
}

/// What a group counted up to some time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) oom_kills: u64,
    pub(crate) fork_fails: u64,
    pub(crate) host_oom_kills: u64,
}

impl From<Events> for Counted {
    fn from(events: Events) -> Self {
        Self {
            oom_kills: events.oom_kills,
            fork_fails: events.fork_fails,
            host_oom_kills: events.host_oom_kills,
        }
    }
}

impl Counted {
    /// What came to it since.
    pub(crate) fn rise(self, now: Self) -> Self {
        Self {
            oom_kills: now.oom_kills.saturating_sub(self.oom_kills),
            fork_fails: now.fork_fails.saturating_sub(self.fork_fails),
            host_oom_kills: now.host_oom_kills.saturating_sub(self.host_oom_kills),
        }
    }
}

/// The engine's word on how a run ended: what init does not know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) reason: ExitReason,
    pub(crate) rise: Counted,
    /// As it was shown while it ran, in milliseconds since 1970-01-01 UTC.
    pub(crate) started_ms: i64,
}

impl Note {
    /// As init keeps it.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        encoded(self)
    }

    /// `None` where it is none of ours.
    pub(crate) fn decoded(bytes: &[u8]) -> Option<Self> {
        decoded(bytes)
    }

    /// What messages call it.
    pub(crate) fn subject(&self) -> String {
        match &self.what {
            What::Exec(exec) => format!("exec {}", exec.id),
            What::Process(process) => format!("process {}", process.id),
            What::Restart => "the restart of the shell".into(),
        }
    }

    pub(crate) fn exec(&self) -> Option<&ExecNote> {
        if let What::Exec(note) = &self.what { Some(note) } else { None }
    }

    pub(crate) fn stdin(&self) -> Given {
        match &self.what {
            What::Exec(exec) => exec.stdin,
            What::Process(process) => process.stdin,
            What::Restart => Given::Nothing,
        }
    }

    pub(crate) fn process(&self) -> Option<&ProcessNote> {
        if let What::Process(note) = &self.what { Some(note) } else { None }
    }
}

impl Verdict {
    pub(crate) fn encoded(&self) -> Vec<u8> {
        encoded(self)
    }

    pub(crate) fn decoded(bytes: &[u8]) -> Option<Self> {
        decoded(bytes)
    }
}

/// As much of the arguments as is noted.
pub(crate) fn noted_argv(argv: &[String]) -> String {
    let mut noted = String::new();
    for (at, arg) in argv.iter().enumerate() {
        let room = TEXT_BYTES - noted.len();
        if room < 2 {
            break;
        }
        if at > 0 {
            noted.push('\0');
        }
        noted.push_str(beginning(arg, room - 1));
    }
    noted
}

pub(crate) fn noted_user(user: &RunUser) -> Option<String> {
    match user {
        RunUser::Named(name) => Some(String::from_utf8_lossy(name).into_owned()),
        RunUser::Session | RunUser::Root => None,
    }
}

pub(crate) fn noted_cwd(cwd: Option<&str>) -> Option<String> {
    cwd.map(|cwd| beginning(cwd, CWD_BYTES).to_owned())
}

/// The first `bytes` of a text, less where a character would be cut.
fn beginning(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default()
}

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    // Its parts are bounded, and serialising into a vector can't fail.
    postcard::to_stdvec(value).unwrap_or_default()
}

fn decoded<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    if bytes.len() > NOTE_BYTES_MAX {
        return None;
    }
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Some(value),
        Ok(_) | Err(_) => None,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn note(what: What) -> Note {
        let cwd = noted_cwd(Some(&"ä".repeat(4000)));
        let before = Counted { oom_kills: u64::MAX, fork_fails: u64::MAX, host_oom_kills: 1 };
        let user = Some("u".repeat(256));
        Note { what, created_ms: i64::MIN, before, on_leave: OnLeave::Keep, cwd, user }
    }

    #[test]
    fn the_largest_notes_fit_and_come_back() {
        let shape =
            Shape { output: OutputMode::Split, encoding: Encoding::Base64, bytes_max: u64::MAX };
        let exec = ExecNote {
            id: "x".repeat(64).parse().unwrap(),
            same: Some([255; 32]),
            cmd: Cut::new(&"€".repeat(100_000)),
            timeout_ms: u64::MAX,
            stdin: Given::AtOnce,
            shape,
        };
        let argv = noted_argv(&vec![String::new(); 100_000]);
        let process = ProcessNote {
            id: "x".repeat(64).parse().unwrap(),
            argv,
            has_tty: true,
            stdin: Given::InPieces,
            encoding: Encoding::Text,
        };
        for what in [What::Exec(exec), What::Process(process), What::Restart] {
            let note = note(what);
            let bytes = note.encoded();
            assert!(bytes.len() <= NOTE_BYTES_MAX, "{}", bytes.len());
            assert_eq!(Note::decoded(&bytes), Some(note));
        }
        assert_eq!(Note::decoded(b""), None);
        assert_eq!(Verdict::decoded(&[0xFF; 40]), None);
    }
}
