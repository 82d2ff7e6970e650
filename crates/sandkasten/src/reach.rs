//! Finding a daemon, for every command that asks one something.
//!
//! ```text
//!   --url URL            this daemon, with the key in SANDKASTEN_API_KEY
//!   --data-dir, --config the daemon of that data directory
//!   SANDKASTEN_URL       this daemon, with the key in SANDKASTEN_API_KEY
//!   else                 the daemon of the configured data directory
//! ```
//!
//! With a URL neither root nor a data directory is needed, and no file is read: a key that stands in a
//! file of this host is not sent to another one. The data directory is root's; its daemon keeps a key
//! for root there (see [`instance`]), so that a new terminal and `sudo` need no variable.

mod neighbours;
mod url;

#[cfg(test)]
use std::net::SocketAddr;
use std::path::PathBuf;

pub(crate) use url::Url;

use crate::config::{Loaded, Origin};
use crate::context::Context;
use crate::failure::{Failure, Result, WRONG_USAGE};
use crate::instance;

/// The variable that names a daemon.
const URL: &str = "SANDKASTEN_URL";
/// The variable that has the key to it.
const KEY: &str = "SANDKASTEN_API_KEY";

/// A daemon to connect to, and the key to it.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    pub(crate) url: Url,
    /// Empty: none is sent.
    pub(crate) key: String,
    key_from: KeyFrom,
    named_by: Named,
}

/// What named the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    /// `--url` or its variable.
    Url(&'static str),
    DataDir(PathBuf),
}

/// Where a key came from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KeyFrom {
    /// A variable or a file's line.
    Configuration(Origin),
    /// The running daemon's own key for root.
    DataDir,
    Nowhere,
}

impl Endpoint {
    /// The daemon that the user means.
    ///
    /// # Errors
    /// Where none runs there, or the URL is not one.
    pub(crate) fn find(context: &Context) -> Result<Self> {
        match named_url(context)? {
            Some((url, flag)) => Ok(Self::at(url, flag, context)),
            None => of_data_dir(&context.load()?),
        }
    }

    /// The daemon of the data directory, for a command that works on that directory itself: what
    /// `SANDKASTEN_URL` names may be another one, and `SANDKASTEN_API_KEY` the key to that one. So the
    /// daemon's own key for root comes first.
    ///
    /// # Errors
    /// Where none runs there.
    pub(crate) fn of_data_dir(context: &Context) -> Result<Self> {
        let loaded = context.load()?;
        let found = of_data_dir(&loaded)?;
        Ok(match instance::key(&loaded.settings.data_dir)? {
            Some(key) => Self { key, key_from: KeyFrom::DataDir, ..found },
            None => found,
        })
    }

    fn at(url: Url, flag: &'static str, context: &Context) -> Self {
        let key = context.sources.variable(KEY).unwrap_or_default().to_owned();
        let key_from = match key.as_str() {
            "" => KeyFrom::Nowhere,
            _ => KeyFrom::Configuration(Origin::Variable(KEY.into())),
        };
        Self { url, key, key_from, named_by: Named::Url(flag) }
    }

    /// A daemon of this process's own making.
    #[cfg(test)]
    pub(crate) fn of_test(address: SocketAddr, key: &str) -> Self {
        let key_from = KeyFrom::Configuration(Origin::Variable(KEY.into()));
        let named_by = Named::Url("--url");
        Self { url: Url::of_address(address), key: key.into(), key_from, named_by }
    }

    /// What is said where nobody answers.
    pub(crate) fn unreachable(&self, why: &std::io::Error) -> Failure {
        let failure = Failure::new(format!(
            "no daemon answers at {}{}: {why}{}",
            self.url,
            self.named_by,
            neighbours::lines(&neighbours::all())
        ));
        match self.named_by {
            Named::Url(flag) => failure.hint(format!("check the address in {flag}")),
            Named::DataDir(_) => failure.hint("has it stopped just now? run the command again"),
        }
    }

    /// What is said where something answers, but not as a daemon does.
    pub(crate) fn no_daemon(&self, status: u16) -> Failure {
        let message = format!(
            "no daemon answers at {}{}, but something does: status {status}",
            self.url, self.named_by
        );
        Failure::new(message).hint("check host, port and path of the address")
    }

    /// What is said where the daemon refuses the key.
    pub(crate) fn refused_key(&self) -> Failure {
        let url = &self.url;
        match (&self.key_from, &self.named_by) {
            (KeyFrom::Nowhere, _) => {
                Failure::new(format!("the daemon at {url} asks for an API key, and none is set"))
                    .hint(format!("set {KEY} to the key that the daemon was started with"))
            }
            (KeyFrom::Configuration(origin), Named::Url(_)) => {
                Failure::new(format!("the daemon at {url} refuses the API key of {origin}"))
                    .hint(format!("set {KEY} to the key that the daemon was started with"))
            }
            (KeyFrom::Configuration(origin), Named::DataDir(_)) => {
                Failure::new(format!("the daemon at {url} refuses the API key of {origin}"))
                    .hint("leave it out: root needs none for the daemon of a data directory")
            }
            (KeyFrom::DataDir, _) => {
                Failure::new(format!("the daemon at {url} refuses the key that it wrote itself"))
                    .hint("it was started anew just now: run the command again")
            }
        }
    }
}

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(flag) => write!(f, " ({flag})"),
            Self::DataDir(path) => write!(f, " (data directory {})", path.display()),
        }
    }
}

/// Whether the user named a daemon by its URL. A flag for a data directory comes before the variable.
///
/// # Errors
/// Where it is no URL, or two flags contradict each other.
pub(crate) fn named_url(context: &Context) -> Result<Option<(Url, &'static str)>> {
    let sources = &context.sources;
    let names_dir = sources.data_dir.is_some() || sources.config.is_some();
    let (text, flag) = match (&sources.url, sources.variable(URL)) {
        (Some(_), _) if names_dir => {
            let message = "--url names a daemon, and so do --data-dir and --config";
            return Err(Failure::new(message).hint("give one of them").exit_code(WRONG_USAGE));
        }
        (Some(flag), _) => (flag.as_str(), "--url"),
        (None, Some(variable)) if !names_dir => (variable, URL),
        (None, _) => return Ok(None),
    };
    let url = text.parse().map_err(|why: url::Refusal| {
        let failure = Failure::new(format!("{flag}: {}", why.message)).hint(why.hint);
        if flag == URL { failure } else { failure.exit_code(WRONG_USAGE) }
    })?;
    Ok(Some((url, flag)))
}

/// Refuses `--url` for a command that works on this host.
///
/// # Errors
/// Where it was given. The variable is for other commands too, and is left alone.
pub(crate) fn refuse_url(command: &str, context: &Context) -> Result<()> {
    if context.sources.url.is_none() {
        return Ok(());
    }
    let message = format!("`sandkasten {command}` works on this host and takes no --url");
    let hint = "--url is for `run`, `exec`, `ps`, `result` and `bench`";
    Err(Failure::new(message).hint(hint).exit_code(WRONG_USAGE))
}

/// Refuses who is not root, for a command that works on the data directory itself.
///
/// # Errors
/// Where the user is not root.
pub(crate) fn need_root(command: &str, context: &Context) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let loaded = context.load()?;
    let place = place(&loaded);
    Err(Failure::new(format!("`sandkasten {command}` needs root: it works on {place}"))
        .hint(format!("run it as root: `sudo sandkasten {command}`")))
}

fn of_data_dir(loaded: &Loaded) -> Result<Endpoint> {
    let data_dir = &loaded.settings.data_dir;
    if !rustix::process::geteuid().is_root() {
        return Err(for_root_alone(loaded));
    }
    let Some(running) = instance::find(data_dir)? else { return Err(nobody(loaded)) };
    let Some(address) = running.address else {
        let pid = running.pid.as_raw_nonzero();
        let message = format!("the daemon of {} (pid {pid}) does not serve", place(loaded));
        return Err(Failure::new(message).hint("it is starting or stopping: try again"));
    };
    let configured = loaded.settings.api_key.clone();
    let (key, key_from) = if configured.is_empty() {
        match instance::key(data_dir)? {
            Some(key) => (key, KeyFrom::DataDir),
            None => (String::new(), KeyFrom::Nowhere),
        }
    } else {
        (configured, KeyFrom::Configuration(loaded.api_key_from.clone()))
    };
    let named_by = Named::DataDir(data_dir.clone());
    Ok(Endpoint { url: Url::of_address(address), key, key_from, named_by })
}

/// The data directory and what named it.
fn place(loaded: &Loaded) -> String {
    let path = loaded.settings.data_dir.display();
    match &loaded.data_dir_from {
        Origin::Default => format!("the data directory {path} (default)"),
        origin @ (Origin::Flag(_) | Origin::Variable(_) | Origin::File(..)) => {
            format!("the data directory {path} (from {origin})")
        }
    }
}

fn for_root_alone(loaded: &Loaded) -> Failure {
    let neighbours = neighbours::lines(&neighbours::all());
    Failure::new(format!("only root can reach the daemon of {}{neighbours}", place(loaded))).hint(
        format!(
            "name the daemon with --url http://HOST:PORT or {URL}, and its key with {KEY}; \
             or run this as root"
        ),
    )
}

/// A second daemon is not offered where one runs: that one is probably meant.
fn nobody(loaded: &Loaded) -> Failure {
    let all = neighbours::all();
    let hint = match all.iter().find_map(|one| one.data_dir.as_ref()) {
        Some(other) => {
            format!("name the one that is meant, as in `--data-dir {}`", other.display())
        }
        None if all.is_empty() => {
            "`sandkasten daemon -d` starts one; --data-dir, --config or --url name another".into()
        }
        None => format!("name the one that is meant with --url, and its key with {KEY}"),
    };
    let neighbours = neighbours::lines(&all);
    Failure::new(format!("no daemon runs on {}{neighbours}", place(loaded))).hint(hint)
}

/// What a command says that wants no daemon there: none runs, but these do.
pub(crate) fn none_runs(loaded: &Loaded) -> String {
    format!("no daemon runs on {}{}", place(loaded), neighbours::lines(&neighbours::all()))
}
