//! One command: the rules on its request, and what is given to init.

use std::sync::Arc;

use sandkasten_protocol::{
    OutputMode, Reader, Run, RunUser, SPOOL_BYTES, Spool, Stdin, Task, ToInit,
};
use sandkasten_types::exec::ExecRequest;
use sandkasten_types::limits::{CMD_BYTES_MAX, EXEC_TIMEOUT_MS_DEFAULT, OUTPUT_BYTES_MAX};
use sandkasten_types::{Base64, ExecId};
use sha2::{Digest as _, Sha256};

use super::feed::Feed;
use super::note::{
    Counted, Cut, Encoding, ExecNote, Given, Note, OnLeave, Shape, What, noted_cwd, noted_user,
};
use super::request::{check_directory, check_variables, shortened};
use super::spec::BoxUser;
use super::user::run_user;
use crate::clock;
use crate::config::Config;
use crate::error::Error;

/// A checked request for a command.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: ExecId,
    /// Hash of what makes it the same command, where the client chose its id.
    pub(crate) same: Option<[u8; 32]>,
    pub(crate) cmd: Vec<u8>,
    pub(crate) noted: Cut,
    pub(crate) timeout_ms: u64,
    pub(crate) output: OutputMode,
    pub(crate) user: RunUser,
    pub(crate) cwd: Option<String>,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) stdin: JobStdin,
    pub(crate) shape: Shape,
    pub(crate) on_leave: OnLeave,
    /// Where its output goes as it comes. `None`: its caller does not wait for it.
    pub(crate) feed: Option<Arc<Feed>>,
}

/// What a command is given to read.
#[derive(Debug, Default)]
pub(crate) enum JobStdin {
    #[default]
    Empty,
    Whole(Vec<u8>),
    /// It comes as callers give it.
    InPieces,
}

impl JobStdin {
    /// Bytes that are there already.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Empty | Self::InPieces => 0,
            Self::Whole(bytes) => bytes.len(),
        }
    }

    fn given(&self) -> Given {
        match self {
            Self::Empty => Given::Nothing,
            Self::Whole(_) => Given::AtOnce,
            Self::InPieces => Given::InPieces,
        }
    }
}

impl Job {
    /// What is noted of it.
    pub(crate) fn note(&self, before: Counted) -> Note {
        let exec = ExecNote {
            id: self.id.clone(),
            same: self.same,
            cmd: self.noted.clone(),
            timeout_ms: self.timeout_ms,
            stdin: self.stdin.given(),
            shape: self.shape,
        };
        Note {
            what: What::Exec(exec),
            created_ms: clock::now().unix_ms(),
            before,
            on_leave: self.on_leave,
            cwd: noted_cwd(self.cwd.as_deref()),
            user: noted_user(&self.user),
        }
    }

    /// Bytes that wait in init where it can't begin at once.
    pub(crate) fn queue_bytes(&self) -> usize {
        let env: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.cmd.len() + self.cwd.as_ref().map_or(0, String::len) + env
    }

    /// The frame for init. Takes the command with it: nobody needs it twice.
    pub(crate) fn frame(&mut self, id: u64, note: &Note) -> ToInit {
        let run = Run {
            note: note.encoded(),
            timeout_ms: Some(self.timeout_ms),
            cwd: self.cwd.take().map(String::into_bytes),
            env: std::mem::take(&mut self.env),
            stdin: match self.stdin {
                JobStdin::Empty => Stdin::Empty,
                JobStdin::Whole(_) | JobStdin::InPieces => Stdin::Piped,
            },
            reader: if self.feed.is_some() { Reader::Paced } else { Reader::None },
            // Who may have more of its output may also have it later.
            spool: Spool::Together { bytes: self.shape.bytes_max.max(SPOOL_BYTES) },
            ..Run::new(id)
        };
        let (cmd, output, user) = (std::mem::take(&mut self.cmd), self.output, self.user.clone());
        ToInit::Begin { run, task: Task::Command { cmd, output, user } }
    }
}

/// Checks a request for a command.
pub(crate) fn check(request: ExecRequest, config: &Config, own: &BoxUser) -> Result<Job, Error> {
    let ExecRequest {
        cmd,
        timeout_ms,
        raw_output,
        stdin: given,
        stdin_open,
        cwd,
        env,
        user: asked,
        split,
        encoding: word,
        max_output_bytes,
        exec_id,
        on_disconnect,
        detach,
    } = request;
    check_command(&cmd)?;
    if let Some(cwd) = &cwd {
        check_directory(cwd)?;
    }
    let env = env.unwrap_or_default();
    check_variables("env", &env)?;
    let output = output_mode(raw_output, split)?;
    let encoding = encoding_of(word.as_deref(), Encoding::Text)?;
    let on_leave = on_leave(on_disconnect.as_deref(), "cancel")?;
    let is_detached = detach.unwrap_or(false);
    let is_chosen = exec_id.is_some();
    let mut job = Job {
        id: chosen_id(exec_id)?,
        same: None,
        noted: Cut::new(&cmd),
        cmd: cmd.into_bytes(),
        timeout_ms: timeout(timeout_ms, config)?,
        output,
        user: run_user(asked.as_deref(), own)?,
        cwd,
        env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        stdin: stdin(given, stdin_open, encoding)?,
        shape: Shape { output, encoding, bytes_max: cap(max_output_bytes, config)? },
        on_leave: if is_detached { OnLeave::Keep } else { on_leave },
        feed: (!is_detached).then(Arc::default),
    };
    if is_chosen {
        job.same = Some(same(&job));
    }
    Ok(job)
}

fn invalid<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::InvalidRequest(text.into()))
}

fn check_command(cmd: &str) -> Result<(), Error> {
    if cmd.len() > CMD_BYTES_MAX {
        let (bytes, limit) = (cmd.len() as u64, CMD_BYTES_MAX as u64);
        return Err(Error::TooLarge { what: "cmd".into(), bytes, limit });
    }
    if cmd.contains('\0') {
        return invalid("`cmd` has a NUL");
    }
    Ok(())
}

fn timeout(asked: Option<i64>, config: &Config) -> Result<u64, Error> {
    let max = config.max_exec_timeout_ms;
    let Some(asked) = asked else { return Ok(EXEC_TIMEOUT_MS_DEFAULT.min(max)) };
    match u64::try_from(asked) {
        Ok(ms) if ms > max => {
            invalid(format!("`timeout_ms` is {ms}; the limit `max_exec_timeout_ms` is {max}"))
        }
        Ok(ms) if ms > 0 => Ok(ms),
        _ => invalid(format!("`timeout_ms` is {asked}; the least is 1")),
    }
}

fn cap(asked: Option<i64>, config: &Config) -> Result<u64, Error> {
    let Some(asked) = asked else { return Ok(config.max_output_bytes) };
    match u64::try_from(asked) {
        Ok(bytes @ 1..=OUTPUT_BYTES_MAX) => Ok(bytes),
        _ => invalid(format!("`max_output_bytes` is {asked}; it must be 1 to {OUTPUT_BYTES_MAX}")),
    }
}

fn chosen_id(id: Option<String>) -> Result<ExecId, Error> {
    match id {
        Some(id) => id.parse().map_err(|error: sandkasten_types::InvalidId| {
            Error::InvalidRequest(error.of_field("exec_id"))
        }),
        None => ExecId::random().map_err(|error| Error::internal("random exec id", error)),
    }
}

fn output_mode(raw: Option<bool>, split: Option<bool>) -> Result<OutputMode, Error> {
    match (raw.unwrap_or(false), split.unwrap_or(false)) {
        (true, true) => invalid("`raw_output` and `split` exclude each other: a PTY is one stream"),
        (true, false) => Ok(OutputMode::Pty),
        (false, true) => Ok(OutputMode::Split),
        (false, false) => Ok(OutputMode::Merged),
    }
}

/// The rule for `encoding`, with what holds where it is absent.
pub(super) fn encoding_of(asked: Option<&str>, default: Encoding) -> Result<Encoding, Error> {
    match asked {
        None => Ok(default),
        Some("text") => Ok(Encoding::Text),
        Some("base64") => Ok(Encoding::Base64),
        Some(other) => {
            invalid(format!("`encoding` is `{}`; it must be `text` or `base64`", shortened(other)))
        }
    }
}

fn stdin(asked: Option<String>, open: Option<bool>, encoding: Encoding) -> Result<JobStdin, Error> {
    if open == Some(true) {
        return match asked {
            None => Ok(JobStdin::InPieces),
            Some(_) => invalid("`stdin` and `stdin_open` exclude each other"),
        };
    }
    let bytes = match (asked, encoding) {
        (None, _) => Vec::new(),
        (Some(text), Encoding::Text) => text.into_bytes(),
        (Some(text), Encoding::Base64) => match Base64::decode(text) {
            Ok(bytes) => bytes.0,
            Err(error) => return invalid(format!("`stdin` is {error}")),
        },
    };
    Ok(if bytes.is_empty() { JobStdin::Empty } else { JobStdin::Whole(bytes) })
}

/// The rule for `on_disconnect`, with the word that stands for the end of the run.
pub(super) fn on_leave(asked: Option<&str>, end: &str) -> Result<OnLeave, Error> {
    match asked {
        None => Ok(OnLeave::Cancel),
        Some("keep") => Ok(OnLeave::Keep),
        Some(word) if word == end => Ok(OnLeave::Cancel),
        Some(other) => invalid(format!(
            "`on_disconnect` is `{}`; it must be `{end}` or `keep`",
            shortened(other)
        )),
    }
}

/// A hash of all that makes two requests the same command. How its output is shown, how long it may
/// take and who waits for it is not a part of it.
fn same(job: &Job) -> [u8; 32] {
    let Job { cmd, output, user, cwd, env, stdin, .. } = job;
    let (bytes, in_pieces) = match stdin {
        JobStdin::Empty => (&[][..], false),
        JobStdin::Whole(bytes) => (bytes.as_slice(), false),
        JobStdin::InPieces => (&[][..], true),
    };
    let parts = (cmd, output, user, cwd, env, bytes, in_pieces);
    // Every field has its length in front, so that no two requests give the same bytes.
    let bytes = postcard::to_stdvec(&parts).unwrap_or_default();
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::config;

    fn checked(change: impl FnOnce(&mut ExecRequest)) -> Result<Job, Error> {
        let mut request = ExecRequest { cmd: "true".into(), ..ExecRequest::default() };
        change(&mut request);
        check(request, &config("/nonexistent".as_ref()), &BoxUser::Sandbox)
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let job = checked(|_| {}).unwrap();
        assert_eq!((job.timeout_ms, job.shape.bytes_max), (30_000, 1024 * 1024));
        assert_eq!(
            (job.output, job.on_leave, job.same),
            (OutputMode::Merged, OnLeave::Cancel, None)
        );
        assert!(job.feed.is_some());
    }

    #[test]
    fn a_command_may_be_a_mebibyte() {
        assert!(checked(|r| r.cmd = "x".repeat(CMD_BYTES_MAX)).is_ok());
        let error = checked(|r| r.cmd = "x".repeat(CMD_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(error.to_string(), "cmd is 1048577 bytes; the limit is 1048576");
    }

    #[test]
    fn detaching_implies_keeping() {
        let job = checked(|r| r.detach = Some(true)).unwrap();
        assert!(job.feed.is_none() && job.on_leave == OnLeave::Keep);
        let job = checked(|r| r.on_disconnect = Some("keep".into())).unwrap();
        assert!(job.feed.is_some() && job.on_leave == OnLeave::Keep);
    }

    #[test]
    fn the_same_command_is_the_same_whoever_waits_for_it() {
        let of = |change: &dyn Fn(&mut ExecRequest)| {
            let checked = checked(|request| {
                request.exec_id = Some("mine".into());
                change(request);
            });
            checked.unwrap().same.unwrap()
        };
        let first = of(&|_| {});
        assert_eq!(first, of(&|r| r.timeout_ms = Some(5)));
        assert_eq!(first, of(&|r| r.detach = Some(true)));
        assert_eq!(first, of(&|r| r.stdin = Some(String::new())));
        type Change = fn(&mut ExecRequest);
        let others: [Change; 8] = [
            |r| r.stdin_open = Some(true),
            |r| r.cmd = "true ".into(),
            |r| r.stdin = Some("x".into()),
            |r| r.cwd = Some("/".into()),
            |r| r.env = Some([("A".to_owned(), "1".to_owned())].into()),
            |r| r.user = Some("root".into()),
            |r| r.split = Some(true),
            |r| r.raw_output = Some(true),
        ];
        for (index, change) in others.into_iter().enumerate() {
            assert_ne!(first, of(&change), "{index}");
        }
    }

    #[test]
    fn stdin_is_text_or_base64() {
        let bytes = |job: Job| match job.stdin {
            JobStdin::Whole(bytes) => bytes,
            JobStdin::Empty | JobStdin::InPieces => Vec::new(),
        };
        let job = checked(|r| r.stdin = Some("YQ==".into())).unwrap();
        assert_eq!(bytes(job), b"YQ==");
        let job = checked(|r| {
            r.stdin = Some("YQ==".into());
            r.encoding = Some("base64".into());
        });
        assert_eq!(bytes(job.unwrap()), b"a");
        let job = checked(|r| r.stdin_open = Some(true)).unwrap();
        assert!(matches!(job.stdin, JobStdin::InPieces));
    }

    #[test]
    fn bad_fields_are_refused_by_name() {
        type Change = fn(&mut ExecRequest);
        let cases: [(&str, Change); 14] = [
            ("stdin_open", |r| (r.stdin, r.stdin_open) = (Some("x".into()), Some(true))),
            ("NUL", |r| r.cmd = "a\0b".into()),
            ("timeout_ms", |r| r.timeout_ms = Some(0)),
            ("timeout_ms", |r| r.timeout_ms = Some(-5)),
            ("max_exec_timeout_ms", |r| r.timeout_ms = Some(600_001)),
            ("max_output_bytes", |r| r.max_output_bytes = Some(0)),
            ("max_output_bytes", |r| r.max_output_bytes = Some(64 * 1024 * 1024 + 1)),
            ("`exec_id`", |r| r.exec_id = Some("a/b".into())),
            ("encoding", |r| r.encoding = Some("hex".into())),
            ("user", |r| r.user = Some("a:b".into())),
            ("`cwd` is empty", |r| r.cwd = Some(String::new())),
            ("on_disconnect", |r| r.on_disconnect = Some("kill".into())),
            ("stdin", |r| {
                r.stdin = Some("?".into());
                r.encoding = Some("base64".into());
            }),
            ("split", |r| (r.split, r.raw_output) = (Some(true), Some(true))),
        ];
        for (name, change) in cases {
            let error = checked(change).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
