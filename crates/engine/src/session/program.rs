//! One program: the rules on its request, and what is given to init.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use sandkasten_protocol::{
    Begun, Reader, Run, RunUser, SPOOL_BYTES, Spool, Stdin, Task, ToInit, Window,
};
use sandkasten_types::ProcessId;
use sandkasten_types::limits::{ENV_STRING_BYTES_MAX, PROCESS_ARGS_BYTES_MAX, WAIT_BYTES_MAX};
use sandkasten_types::process::{ProcessStdin, SignalName, StartProcess, Tty};

use super::job::{encoding_of, on_leave};
use super::note::{
    Counted, Encoding, Given, Note, OnLeave, ProcessNote, What, noted_argv, noted_cwd, noted_user,
};
use super::request::{check_directory, check_variable, shortened};
use super::seat::Seat;
use super::spec::BoxUser;
use super::stdin::End;
use super::user::run_user;
use crate::clock;
use crate::error::Error;

/// The highest signal of Linux on this architecture.
const SIGNAL_MAX: i32 = 64;

/// A checked request for a program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) id: ProcessId,
    pub(crate) argv: Vec<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: Option<String>,
    pub(crate) user: RunUser,
    pub(crate) stdin: Option<(Bytes, End)>,
    pub(crate) tty: Option<Window>,
    pub(crate) encoding: Encoding,
    pub(crate) timeout_ms: Option<u64>,
    /// Its caller waits for it and its output.
    pub(crate) wait: bool,
    pub(crate) on_leave: OnLeave,
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) seat: Seat,
    pub(crate) note: Arc<Note>,
    pub(crate) begun: Begun,
}

impl Program {
    /// What is noted of it.
    pub(crate) fn note(&self, before: Counted) -> Note {
        let process = ProcessNote {
            id: self.id.clone(),
            argv: noted_argv(&self.argv),
            has_tty: self.tty.is_some(),
            stdin: match &self.stdin {
                None => Given::Nothing,
                Some((_, End::OfFile)) => Given::AtOnce,
                Some((_, End::NotYet)) => Given::InPieces,
            },
            encoding: self.encoding,
        };
        Note {
            what: What::Process(process),
            created_ms: clock::now().unix_ms(),
            before,
            on_leave: self.on_leave,
            cwd: noted_cwd(self.cwd.as_deref()),
            user: noted_user(&self.user),
        }
    }

    /// The frame for init, and what stdin has at first where it has one.
    pub(crate) fn into_frame(self, id: u64, note: &Note) -> (ToInit, Option<(Bytes, End)>) {
        let run = Run {
            note: note.encoded(),
            timeout_ms: self.timeout_ms,
            cwd: self.cwd.map(String::into_bytes),
            env: self.env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
            stdin: if self.stdin.is_some() { Stdin::Piped } else { Stdin::Empty },
            reader: Reader::None,
            spool: if self.wait {
                Spool::EachStream { bytes: WAIT_BYTES_MAX }
            } else {
                Spool::Together { bytes: SPOOL_BYTES }
            },
            ..Run::new(id)
        };
        let argv = self.argv.into_iter().map(String::into_bytes).collect();
        let task = Task::Program { argv, user: self.user, tty: self.tty };
        (ToInit::Begin { run, task }, self.stdin)
    }
}

/// Checks a request for a program.
pub(crate) fn check(request: StartProcess, own: &BoxUser) -> Result<Program, Error> {
    let StartProcess {
        argv,
        cmd,
        env,
        cwd,
        user,
        stdin,
        encoding,
        tty,
        timeout_ms,
        wait,
        on_disconnect,
    } = request;
    let argv = arguments(argv, cmd)?;
    let env = env.unwrap_or_default();
    check_bytes(&argv, &env)?;
    if let Some(cwd) = &cwd {
        check_directory(cwd)?;
    }
    let tty = tty.map(|tty| window(tty, "tty.")).transpose()?;
    let wait = wait.unwrap_or(false);
    let on_leave = on_leave(on_disconnect.as_deref(), "kill")?;
    if !wait && on_disconnect.as_deref() == Some("kill") {
        return invalid(
            "`on_disconnect` `kill` needs `wait`: a process outlives those who read it",
        );
    }
    Ok(Program {
        id: ProcessId::random().map_err(|error| Error::internal("random process id", error))?,
        argv,
        env,
        cwd,
        user: run_user(user.as_deref(), own)?,
        stdin: input(stdin, tty)?,
        tty,
        encoding: encoding_of(encoding.as_deref(), Encoding::Base64)?,
        timeout_ms: timeout(timeout_ms)?,
        wait,
        on_leave: if wait { on_leave } else { OnLeave::Keep },
    })
}

fn invalid<T>(text: impl Into<String>) -> Result<T, Error> {
    Err(Error::InvalidRequest(text.into()))
}

fn arguments(argv: Option<Vec<String>>, cmd: Option<String>) -> Result<Vec<String>, Error> {
    match (argv, cmd) {
        (Some(argv), None) if argv.first().is_none_or(String::is_empty) => {
            invalid("`argv` names no program")
        }
        (Some(argv), None) => Ok(argv),
        (None, Some(cmd)) => Ok(vec!["/bin/sh".into(), "-c".into(), cmd]),
        (Some(_), Some(_)) => invalid("`argv` and `cmd` are both given; one of them is needed"),
        (None, None) => invalid("neither `argv` nor `cmd` is given; one of them is needed"),
    }
}

/// The rules of execve(2): no NUL, one string no longer than `ENV_STRING_BYTES_MAX`, all together no
/// longer than the API's limit.
fn check_bytes(argv: &[String], env: &BTreeMap<String, String>) -> Result<(), Error> {
    let mut total = 0;
    for arg in argv {
        if arg.contains('\0') {
            return invalid("`argv` has a NUL");
        }
        if arg.len() > ENV_STRING_BYTES_MAX {
            return invalid(format!(
                "one string of `argv` is {} bytes; the limit is {ENV_STRING_BYTES_MAX}",
                arg.len()
            ));
        }
        total += arg.len() + 1;
    }
    for (name, value) in env {
        total += check_variable("env", name, value)? + 1;
    }
    if total > PROCESS_ARGS_BYTES_MAX {
        let (bytes, limit) = (total as u64, PROCESS_ARGS_BYTES_MAX as u64);
        return Err(Error::TooLarge { what: "argv and env".into(), bytes, limit });
    }
    Ok(())
}

fn input(stdin: Option<ProcessStdin>, tty: Option<Window>) -> Result<Option<(Bytes, End)>, Error> {
    match stdin {
        None if tty.is_some() => Ok(Some((Bytes::new(), End::NotYet))),
        None => Ok(None),
        Some(ProcessStdin::Data { base64 }) => Ok(Some((base64.0.into(), End::OfFile))),
        Some(ProcessStdin::Text { text }) => Ok(Some((text.into(), End::OfFile))),
        Some(ProcessStdin::Mode(mode)) => match mode.as_str() {
            "none" => Ok(None),
            "open" => Ok(Some((Bytes::new(), End::NotYet))),
            other => invalid(format!(
                "`stdin` is `{}`; it must be `none`, `open` or an object with `base64` or `text`",
                shortened(other)
            )),
        },
    }
}

/// The rule for the size of a PTY. `above` stands before the names of its fields.
pub(crate) fn window(size: Tty, above: &str) -> Result<Window, Error> {
    let one = |name: &str, value: i64| match u16::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => invalid(format!("`{above}{name}` is {value}; it must be 1 to 65535")),
    };
    Ok(Window { rows: one("rows", size.rows)?, cols: one("cols", size.cols)? })
}

fn timeout(asked: Option<i64>) -> Result<Option<u64>, Error> {
    match asked.map(u64::try_from) {
        None => Ok(None),
        Some(Ok(ms)) if ms > 0 => Ok(Some(ms)),
        Some(_) => {
            invalid(format!("`timeout_ms` is {}; the least is 1", asked.unwrap_or_default()))
        }
    }
}

/// The number of a signal: by name with or without `SIG`, or as such.
pub(crate) fn signal(name: &SignalName) -> Result<i32, Error> {
    let number = match name {
        SignalName::Number(number) => i32::try_from(*number).ok(),
        SignalName::Name(name) => match name.parse() {
            Ok(number) => Some(number),
            Err(_) => named(name),
        },
    };
    if let Some(number) = number.filter(|number| (1..=SIGNAL_MAX).contains(number)) {
        return Ok(number);
    }
    let asked = match name {
        SignalName::Number(number) => number.to_string(),
        SignalName::Name(name) => shortened(name),
    };
    invalid(format!("`signal` is `{asked}`, which is no signal"))
}

/// Signals as kill(1) numbers them on x86-64 and arm64.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

fn named(name: &str) -> Option<i32> {
    let upper = name.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let name = match name {
        "IOT" => "ABRT",
        "CLD" => "CHLD",
        "POLL" => "IO",
        other => other,
    };
    let at = SIGNALS.iter().position(|known| *known == name)?;
    i32::try_from(at + 1).ok()
}

#[cfg(test)]
mod test {
    use sandkasten_types::Base64;

    use super::*;

    fn checked(change: impl FnOnce(&mut StartProcess)) -> Result<Program, Error> {
        let argv = Some(vec!["true".to_owned()]);
        let mut request = StartProcess { argv, ..StartProcess::default() };
        change(&mut request);
        check(request, &BoxUser::Sandbox)
    }

    #[test]
    fn defaults_are_those_of_the_api() {
        let program = checked(|_| {}).unwrap();
        assert_eq!((program.timeout_ms, program.on_leave), (None, OnLeave::Keep));
        assert!(program.stdin.is_none() && program.user == RunUser::Session);
        let waited = checked(|r| r.wait = Some(true)).unwrap();
        assert_eq!(waited.on_leave, OnLeave::Cancel);
        let tty = checked(|r| r.tty = Some(Tty { rows: 24, cols: 80 })).unwrap();
        assert_eq!(tty.stdin, Some((Bytes::new(), End::NotYet)));
        let shell = checked(|r| (r.argv, r.cmd) = (None, Some("echo".into()))).unwrap();
        assert_eq!(shell.argv, ["/bin/sh", "-c", "echo"]);
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for (name, number) in [("TERM", 15), ("SIGTERM", 15), ("sigkill", 9), ("9", 9), ("SYS", 31)]
        {
            assert_eq!(signal(&SignalName::Name(name.into())).unwrap(), number);
        }
        assert_eq!(signal(&SignalName::Number(64)).unwrap(), 64);
        for bad in ["", "SIG", "TERMX", "0", "65", "-1", "99999999999"] {
            assert!(signal(&SignalName::Name(bad.into())).is_err(), "{bad}");
        }
        assert!(signal(&SignalName::Number(0)).is_err());
    }

    #[test]
    fn bad_fields_are_refused_by_name() {
        type Change = fn(&mut StartProcess);
        let cases: [(&str, Change); 17] = [
            ("argv", |r| r.argv = None),
            ("argv", |r| r.argv = Some(Vec::new())),
            ("argv", |r| r.argv = Some(vec![String::new()])),
            ("cmd", |r| r.cmd = Some("x".into())),
            ("NUL", |r| r.argv = Some(vec!["a\0".into()])),
            ("limit", |r| r.argv = Some(vec!["a".repeat(200_000)])),
            ("limit", |r| r.argv = Some(vec!["a".repeat(100_000); 22])),
            ("env", |r| r.env = Some([("A-B".to_owned(), String::new())].into())),
            ("`env.A` has a NUL", |r| r.env = Some([("A".to_owned(), "\0".to_owned())].into())),
            ("cwd", |r| r.cwd = Some("/a\0".into())),
            ("`cwd` is empty", |r| r.cwd = Some(String::new())),
            ("user", |r| r.user = Some("a:b".into())),
            ("stdin", |r| r.stdin = Some(ProcessStdin::Mode("pipe".into()))),
            ("tty.rows", |r| r.tty = Some(Tty { rows: 0, cols: 80 })),
            ("timeout_ms", |r| r.timeout_ms = Some(0)),
            ("on_disconnect", |r| r.on_disconnect = Some("cancel".into())),
            ("wait", |r| r.on_disconnect = Some("kill".into())),
        ];
        for (name, change) in cases {
            let error = checked(change).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
        let data = ProcessStdin::Data { base64: Base64(b"x".to_vec()) };
        let given = checked(|r| r.stdin = Some(data)).unwrap();
        assert_eq!(given.stdin, Some((Bytes::from_static(b"x"), End::OfFile)));
    }
}
