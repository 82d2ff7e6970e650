//! From the exec of init to a session that serves.

use std::ffi::CString;
use std::io;

use rustix::process::{Resource, Rlimit};
use sandkasten_protocol::{Config, VERSION, fd};

use crate::link::Link;
use crate::poll::{Poller, Token, Want};
use crate::processes::Proc;
use crate::rights::{Ids, Rights, undumpable};
use crate::runs::Runs;
use crate::runtime::RunDir;
use crate::session::Session;
use crate::shell::Setup;
use crate::spawn;
use crate::spool::Arena;
use crate::state::Saved;
use crate::world::World;

/// Bytes of a configuration: an environment of execve's size fits.
const CONFIG_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// A step of the start that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Protect = 81,
    Descriptors = 82,
    Config = 83,
    Rights = 84,
    Places = 85,
    Socket = 86,
}

impl Step {
    /// Exit code of init.
    pub(crate) fn exit_code(self) -> u8 {
        self as u8
    }
}

/// Takes over what jail has prepared and starts the shell.
pub(crate) fn session() -> Result<Session, Step> {
    at(Step::Protect, undumpable())?;
    // exec of a memfd has made the name one of our innards; the box's `ps` shows it. A name that
    // can't be set does no harm.
    rustix::thread::set_name(c"sandkasten-init").ok();
    at(Step::Descriptors, spawn::cloexec_from(3))?;
    let listener = at(Step::Descriptors, spawn::inherited(fd::LISTENER))?;
    let config = at(Step::Config, read_config())?;
    let spool = at(Step::Descriptors, spawn::inherited(fd::SPOOL))?;
    let rights = at(Step::Rights, Rights::take())?;
    let run = at(Step::Places, RunDir::open())?;
    let proc = at(Step::Places, Proc::open())?;
    let poller = at(Step::Socket, Poller::new())?;
    let children = at(Step::Socket, spawn::child_signals())?;
    at(Step::Socket, poller.add(&children, Token::Children, Want::Read))?;
    let link = at(Step::Socket, Link::new(&poller, listener, config.nonce))?;
    let world = World { poller, link, rights, proc, run };
    let names = config.env.iter().map(|(name, _)| name.clone()).collect();
    let arena = Arena::new(spool.try_clone().ok());
    let saved = Saved::new(config.cwd.clone(), Some(spool), names);
    let nonce = config.nonce;
    Ok(Session::new(world, (nonce, children), setup(config), saved, Runs::new(arena)))
}

/// Whoever waits for init learns the step from its exit code; there is nobody to tell more.
fn at<T, E>(step: Step, result: Result<T, E>) -> Result<T, Step> {
    result.map_err(|_untold| step)
}

fn read_config() -> io::Result<Config> {
    let file = spawn::inherited(fd::CONFIG)?;
    let length = rustix::fs::fstat(&file)?.st_size;
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    if length > CONFIG_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(&file, rest, read as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => read += more,
        }
    }
    let config: Config =
        postcard::from_bytes(&bytes).map_err(|_malformed| io::ErrorKind::InvalidData)?;
    if config.version == VERSION { Ok(config) } else { Err(io::ErrorKind::Unsupported.into()) }
}

fn setup(config: Config) -> Setup {
    let path = config.env.iter().rev().find(|(name, _)| name == b"PATH");
    let env = config.env.iter().filter_map(|(name, value)| {
        CString::new([name.as_slice(), b"=", value.as_slice()].concat()).ok()
    });
    Setup {
        preference: config.shell,
        ids: Ids { uid: config.user.uid, gid: config.user.gid },
        path: path.map(|(_, value)| value.clone()).unwrap_or_default(),
        env: env.collect(),
        filter: config.payload_filter,
        open_files: raise_open_files(),
    }
}

/// Late output takes a descriptor a background job: init itself uses all that it may. Gives what was
/// set, which is what the payload gets.
fn raise_open_files() -> Rlimit {
    let given = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: given.maximum, maximum: given.maximum };
    // Where that fails the limit stays as it is.
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
    given
}
