//! One command: the rules on its request, and what waits in a session's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandkasten_protocol::{FileUser, OutputMode, Reader, Run, Stream, Task, ToInit};
use sandkasten_types::ExecId;
use sandkasten_types::exec::ExecRequest;
use sandkasten_types::limits::{CMD_BYTES_MAX, EXEC_TIMEOUT_MS_DEFAULT, OUTPUT_BYTES_MAX};

use super::pipe::{Outcome, Pipe};
use super::request::{check_directory, check_variables, shortened};
use crate::config::Config;
use crate::error::Error;
use crate::output::Cleaning;

/// A checked request.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) job: Job,
    pub(crate) cleaning: Cleaning,
    /// Cap of a blocking answer in cleaned bytes.
    pub(crate) output_bytes_max: u64,
}

/// A command that waits or runs. Whoever drops it before its end leaves its caller an error.
#[derive(Debug)]
pub(crate) struct Job {
    /// Tells jobs apart within this process.
    pub(crate) ticket: u64,
    pub(crate) id: ExecId,
    /// The client chose the id.
    pub(crate) id_is_chosen: bool,
    pub(crate) cmd: Vec<u8>,
    pub(crate) timeout_ms: u64,
    pub(crate) output: OutputMode,
    pub(crate) cwd: Option<String>,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) pipe: Arc<Pipe>,
}

impl Job {
    /// The frame for init. Takes the command with it: nobody needs it twice.
    pub(crate) fn frame(&mut self, id: u64) -> ToInit {
        let run = Run {
            timeout_ms: Some(self.timeout_ms),
            cwd: self.cwd.clone().map(String::into_bytes),
            env: std::mem::take(&mut self.env),
            reader: Reader::Paced,
            ..Run::new(id)
        };
        let cmd = std::mem::take(&mut self.cmd);
        ToInit::Begin {
            run,
            task: Task::Command { cmd, output: self.output, user: FileUser::Session },
        }
    }

    /// Whether output of that stream can be this command's.
    pub(crate) fn has(&self, stream: Stream) -> bool {
        match self.output {
            OutputMode::Merged => stream == Stream::Output,
            OutputMode::Split => matches!(stream, Stream::Stdout | Stream::Stderr),
            OutputMode::Pty => stream == Stream::Pty,
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.pipe.end(Outcome::Failed(Error::Internal("an exec was dropped".into())));
    }
}

/// Checks a request for a command.
pub(crate) fn check(request: ExecRequest, config: &Config) -> Result<Checked, Error> {
    refuse_later_fields(&request)?;
    let ExecRequest { cmd, timeout_ms, raw_output, cwd, env, max_output_bytes, exec_id, .. } =
        request;
    check_command(&cmd)?;
    if let Some(cwd) = &cwd {
        check_directory(cwd)?;
    }
    let env = env.unwrap_or_default();
    check_variables("env", &env)?;
    let raw = raw_output.unwrap_or(false);
    let id_is_chosen = exec_id.is_some();
    let job = Job {
        ticket: ticket(),
        id: chosen_id(exec_id)?,
        id_is_chosen,
        cmd: cmd.into_bytes(),
        timeout_ms: timeout(timeout_ms, config)?,
        output: if raw { OutputMode::Pty } else { OutputMode::Merged },
        cwd,
        env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        pipe: Arc::new(Pipe::default()),
    };
    Ok(Checked {
        job,
        cleaning: if raw { Cleaning::Utf8Only } else { Cleaning::Full },
        output_bytes_max: cap(max_output_bytes, config)?,
    })
}

fn invalid<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::InvalidRequest(text.into()))
}

fn ticket() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
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
        Some(id) => id
            .parse()
            .map_err(|error: sandkasten_types::InvalidId| Error::InvalidRequest(error.to_string())),
        None => ExecId::random().map_err(|error| Error::internal("random exec id", error)),
    }
}

/// Fields of the API that this version does not do, and values that no version does.
fn refuse_later_fields(request: &ExecRequest) -> Result<(), Error> {
    let not_yet = |what: &str| invalid(format!("{what} is not available in this version"));
    if request.stdin.as_ref().is_some_and(|stdin| !stdin.is_empty()) {
        return not_yet("`stdin`");
    }
    if request.split == Some(true) {
        return not_yet("`split`");
    }
    if request.detach == Some(true) {
        return not_yet("`detach`");
    }
    match request.encoding.as_deref() {
        None => {}
        Some("base64") => return not_yet("`encoding` `base64`"),
        Some(other) => {
            return invalid(format!("`encoding` is `{}`; it must be `base64`", shortened(other)));
        }
    }
    match request.user.as_deref() {
        None => {}
        Some("root") => return not_yet("`user`"),
        Some(other) => {
            return invalid(format!("`user` is `{}`; it must be `root`", shortened(other)));
        }
    }
    match request.on_disconnect.as_deref() {
        None | Some("cancel") => Ok(()),
        Some("keep") => not_yet("`on_disconnect` `keep`"),
        Some(other) => invalid(format!(
            "`on_disconnect` is `{}`; it must be `cancel` or `keep`",
            shortened(other)
        )),
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::testing::config;

    fn checked(change: impl FnOnce(&mut ExecRequest)) -> Result<Checked, Error> {
        let mut request = ExecRequest { cmd: "true".into(), ..ExecRequest::default() };
        change(&mut request);
        check(request, &config("/nonexistent".as_ref()))
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let checked = checked(|_| {}).unwrap();
        assert_eq!(checked.job.timeout_ms, 30_000);
        assert_eq!(checked.output_bytes_max, 1024 * 1024);
        assert_eq!(checked.job.output, OutputMode::Merged);
    }

    #[test]
    fn a_command_may_be_a_mebibyte() {
        assert!(checked(|r| r.cmd = "x".repeat(CMD_BYTES_MAX)).is_ok());
        let error = checked(|r| r.cmd = "x".repeat(CMD_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(error.to_string(), "cmd is 1048577 bytes; the limit is 1048576");
    }

    #[test]
    fn bad_fields_are_refused_by_name() {
        type Change = fn(&mut ExecRequest);
        let cases: [(&str, Change); 13] = [
            ("NUL", |r| r.cmd = "a\0b".into()),
            ("timeout_ms", |r| r.timeout_ms = Some(0)),
            ("timeout_ms", |r| r.timeout_ms = Some(-5)),
            ("max_exec_timeout_ms", |r| r.timeout_ms = Some(600_001)),
            ("max_output_bytes", |r| r.max_output_bytes = Some(0)),
            ("max_output_bytes", |r| r.max_output_bytes = Some(64 * 1024 * 1024 + 1)),
            ("exec id", |r| r.exec_id = Some("a/b".into())),
            ("not available", |r| r.stdin = Some("x".into())),
            ("not available", |r| r.split = Some(true)),
            ("not available", |r| r.detach = Some(true)),
            ("not available", |r| r.encoding = Some("base64".into())),
            ("not available", |r| r.user = Some("root".into())),
            ("not available", |r| r.on_disconnect = Some("keep".into())),
        ];
        for (name, change) in cases {
            let error = checked(change).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
