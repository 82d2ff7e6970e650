//! Stage one: settings in, a clean process out.

use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use sandkasten_engine::Room;
use serde_json::json;

use super::Args;
use crate::config::{Loaded, Settings};
use crate::context::Context;
use crate::failure::{FAILED, Failure, Result, Tried};
use crate::reach;

/// What programs are found by, should the daemon ever run one.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn run(args: &Args, context: &Context) -> Result<u8> {
    let Loaded { settings, warnings, .. } = context.load()?;
    for warning in &warnings {
        context.output.warning(warning);
    }
    reach::need_root("daemon", context)?;
    if settings.api_key.is_empty() {
        context.output.warning(
            "`api_key` is empty: EVERY USER OF THIS HOST CAN RUN CODE THROUGH THIS DAEMON; \
             set SANDKASTEN_API_KEY or `api_key`",
        );
    }
    warn_of_full_disk(&settings, context);
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let command = stage_two(&settings, &arguments, context)?;
    if !args.detach {
        match replace(command)? {}
    }
    let Some(started) = detach(command)? else { return Ok(FAILED) };
    let Started { pid, address } = started;
    let data_dir = settings.data_dir.display().to_string();
    let value = json!({"url": format!("http://{address}"), "pid": pid, "data_dir": data_dir});
    context.output.result(&value, || format!("http://{address} (pid {pid}, data in {data_dir})"));
    Ok(0)
}

fn warn_of_full_disk(settings: &Settings, context: &Context) {
    if let Ok(room) = Room::of(&settings.data_dir)
        && room.is_full()
    {
        context.output.warning(&format!(
            "disk full: {room}: the daemon gives its reserve up and makes no sessions until there is room"
        ));
    }
}

/// Starts a daemon in the background on a free port of this host, for a command that needs one.
pub(super) fn start_private(context: &Context) -> Result<()> {
    let settings = Settings { listen: "127.0.0.1:0".into(), ..context.load()?.settings };
    let arguments = ["daemon".into(), "--detach".into()];
    match detach(stage_two(&settings, &arguments, context)?)? {
        Some(_) => Ok(()),
        None => Err(Failure::new("the daemon did not start")),
    }
}

/// A command line of the daemon again, with the settings beside it.
fn stage_two(settings: &Settings, arguments: &[OsString], context: &Context) -> Result<Command> {
    let text = serde_json::to_vec(settings).tried(|| "settings".to_owned())?;
    let sealed = sandkasten_jail::memfd::sealed("settings", &text);
    let sealed = sealed.tried(|| "settings".to_owned())?;
    #[expect(clippy::disallowed_methods, reason = "our own binary, once")]
    let mut command = Command::new("/proc/self/exe");
    command.arg0("sandkasten").args(arguments).arg("--settings-on-stdin");
    command.env_clear().env("PATH", PATH).envs(context.sources.switches());
    command.stdin(File::from(sealed));
    Ok(command)
}

/// Becomes stage two. Only comes back where that fails.
fn replace(mut command: Command) -> Result<Infallible> {
    Err(Failure::because("exec of /proc/self/exe", &command.exec()))
}

/// A daemon in the background.
struct Started {
    pid: u32,
    address: String,
}

/// Starts stage two in the background and waits until it serves. `None`: it ended, and has said why
/// on our stderr.
fn detach(mut command: Command) -> Result<Option<Started>> {
    let tried = || "daemon".to_owned();
    let mut child = command.stdout(Stdio::piped()).spawn().tried(tried)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).tried(tried)?;
    }
    if let Some(address) = line.strip_suffix('\n') {
        return Ok(Some(Started { pid: child.id(), address: address.to_owned() }));
    }
    child.wait().tried(tried)?;
    Ok(None)
}
