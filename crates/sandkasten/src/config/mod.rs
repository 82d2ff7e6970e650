//! Configuration: flag, then variable, then file, then default.
//!
//! `table` has one row a key and decides what a value may be; `file` reads YAML and knows lines;
//! this file puts the sources in order and checks what concerns more than one key. Nothing else in
//! the program reads the environment.
//!
//! The data directory alone is looked up differently, by every command alike: the file named with
//! `--config` comes before `SANDKASTEN_DATA_DIR`, and `./sandkasten.yaml` after it.

mod file;
mod ready;
mod settings;
mod table;
mod value;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

pub(crate) use ready::{RUN_DIR, disk_limits, engine_config, is_loopback, server_config};
use settings::Seccomp;
pub(crate) use settings::Settings;
pub(crate) use value::addresses;

use crate::failure::{Failure, Result};

/// The file that is read where `--config` names none.
const FILE_IN_CWD: &str = "sandkasten.yaml";

/// Where values can come from. A value itself, so that tests need no environment of their own.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    /// `--config`.
    pub(crate) config: Option<PathBuf>,
    /// `--data-dir`.
    pub(crate) data_dir: Option<PathBuf>,
    /// `--listen`.
    pub(crate) listen: Option<String>,
    /// `--url`.
    pub(crate) url: Option<String>,
    /// `--log-level`.
    pub(crate) log_level: Option<String>,
    /// `--insecure`: allows `security.seccomp: off`.
    pub(crate) insecure: Insecure,
    pub(crate) environment: BTreeMap<String, String>,
    /// Directory in which `./sandkasten.yaml` is looked for.
    pub(crate) cwd: PathBuf,
}

/// Whether the operator said that he knows what he turns off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Insecure {
    Allowed,
    #[default]
    Refused,
}

/// A whole, valid configuration and what its reader should know about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    pub(crate) warnings: Vec<String>,
    /// Where `data_dir` came from.
    pub(crate) data_dir_from: Origin,
    /// Where `api_key` came from.
    pub(crate) api_key_from: Origin,
}

/// Where a value came from; how messages name the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag(&'static str),
    Variable(String),
    File(PathBuf, Option<usize>),
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "{name}"),
            Self::Variable(name) => write!(f, "{name}"),
            Self::File(path, Some(line)) => write!(f, "{}:{line}", path.display()),
            Self::File(path, None) => write!(f, "{}", path.display()),
            Self::Default => write!(f, "default"),
        }
    }
}

impl Sources {
    /// The environment and the working directory of this process.
    pub(crate) fn of_process() -> Self {
        let text = |word: OsString| word.to_string_lossy().into_owned();
        let ours = |name: &String| name.starts_with(table::PREFIX) || is_read(name);
        let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        Self {
            environment: all.filter(|(name, _)| ours(name)).collect(),
            cwd: PathBuf::from("."),
            ..Self::default()
        }
    }

    /// A variable that is not part of the configuration.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// A path as its user means it: `~` and `~/…` are below his home directory.
    ///
    /// # Errors
    /// For the home of somebody else (`~name`), and where no home is known.
    pub(crate) fn path(&self, path: &Path) -> Result<PathBuf, String> {
        value::at_home(path, self.variable("HOME"))
    }

    /// Variables for a daemon's second stage: no settings, only how it writes, and switches of tests.
    pub(crate) fn switches(&self) -> Vec<(&str, &str)> {
        let is_switch = |name: &str| {
            let short = name.strip_prefix(table::PREFIX).is_some_and(table::is_other_variable);
            short || matches!(name, "RUST_BACKTRACE" | "NO_COLOR")
        };
        let all = self.environment.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        all.filter(|(name, _)| is_switch(name)).collect()
    }

    /// Reads and checks everything.
    ///
    /// # Errors
    /// The first bad value, with the place it came from.
    pub(crate) fn load(&self) -> Result<Loaded> {
        Reading::default().read(self)
    }
}

/// A variable of whoever runs this command, for `--env NAME`.
///
/// # Errors
/// Where its value is no UTF-8.
pub(crate) fn variable_of_caller(name: &str) -> Result<Option<String>> {
    let told = |_bytes| Failure::new(format!("--env {name}: its value is not UTF-8"));
    std::env::var_os(name).map(|value| value.into_string().map_err(told)).transpose()
}

/// Variables without our prefix that some command reads.
fn is_read(name: &str) -> bool {
    matches!(name, "HOME" | "XDG_CACHE_HOME" | "RUST_BACKTRACE" | "NO_COLOR")
}

/// A configuration being put together.
#[derive(Debug, Default)]
struct Reading {
    settings: Settings,
    file: Option<file::File>,
    /// Of what did not come from the file.
    origins: BTreeMap<&'static str, Origin>,
    warnings: Vec<String>,
}

impl Reading {
    fn read(mut self, sources: &Sources) -> Result<Loaded> {
        self.read_file(sources)?;
        let data_dir_of_file = self.settings.data_dir.clone();
        self.read_variables(sources)?;
        // An explicit file says where the data is, whatever a stray variable says.
        if sources.config.is_some() && self.file_has("data_dir") {
            self.settings.data_dir = data_dir_of_file;
            self.origins.remove("data_dir");
        }
        self.read_flags(sources)?;
        self.resolve_paths(sources)?;
        self.check(sources)?;
        let [data_dir_from, api_key_from] = ["data_dir", "api_key"].map(|key| self.origin(key));
        Ok(Loaded { settings: self.settings, warnings: self.warnings, data_dir_from, api_key_from })
    }

    fn read_file(&mut self, sources: &Sources) -> Result<()> {
        let (path, named) = match &sources.config {
            Some(path) => {
                let path = sources.path(path).map_err(|why| flag_refusal("--config", &why))?;
                (path, file::Named::ByUser)
            }
            None => (sources.cwd.join(FILE_IN_CWD), file::Named::ByDefault),
        };
        if let Some(text) = file::read(&path, named)? {
            self.file = Some(file::parse(&path, text, &mut self.settings)?);
        }
        Ok(())
    }

    fn file_has(&self, key: &str) -> bool {
        self.file.as_ref().is_some_and(|file| file.has(key))
    }

    fn read_variables(&mut self, sources: &Sources) -> Result<()> {
        for (name, text) in &sources.environment {
            let Some(short) = name.strip_prefix(table::PREFIX) else { continue };
            // An empty variable has always meant the same as none.
            if text.is_empty() {
                continue;
            }
            match table::by_variable(short) {
                Some(row) => {
                    let origin = Origin::Variable(name.clone());
                    row.set(&mut self.settings, value::Raw::Text(text.clone()))
                        .map_err(|why| refusal(&origin, row.key, &why))?;
                    self.origins.insert(row.key, origin);
                }
                None if table::is_other_variable(short) => {}
                None => self.warnings.push(format!("unknown variable `{name}` has no effect")),
            }
        }
        Ok(())
    }

    fn read_flags(&mut self, sources: &Sources) -> Result<()> {
        if let Some(listen) = &sources.listen {
            let origin = Origin::Flag("--listen");
            self.settings.listen =
                value::listen(listen).map_err(|why| refusal(&origin, "listen", &why))?;
            self.origins.insert("listen", origin);
        }
        if let Some(level) = &sources.log_level {
            let origin = Origin::Flag("--log-level");
            self.settings.log_level =
                table::log_level(level).map_err(|why| refusal(&origin, "log.level", &why))?;
        }
        if let Some(data_dir) = &sources.data_dir {
            self.settings.data_dir.clone_from(data_dir);
            self.origins.insert("data_dir", Origin::Flag("--data-dir"));
        }
        Ok(())
    }

    /// Puts the user's home in the place of `~`, wherever the path came from.
    fn resolve_paths(&mut self, sources: &Sources) -> Result<()> {
        let resolved = |key: &str, path: &Path| {
            sources.path(path).map_err(|why| refusal(&self.origin(key), key, &why))
        };
        let data_dir = resolved("data_dir", &self.settings.data_dir)?;
        let db_path = self.settings.db_path.as_deref();
        let db_path = db_path.map(|path| resolved("db_path", path)).transpose()?;
        self.settings.data_dir = data_dir;
        self.settings.db_path = db_path;
        Ok(())
    }

    /// What no single value shows.
    fn check(&mut self, sources: &Sources) -> Result<()> {
        self.check_key()?;
        self.check_seccomp(sources)?;
        self.check_ceilings()?;
        self.warn_of_what_is_off();
        Ok(())
    }

    fn check_key(&self) -> Result<()> {
        if !self.settings.api_key.is_empty() || is_loopback(&self.settings.listen) {
            return Ok(());
        }
        let why =
            format!("`{}` is not a loopback address, and `api_key` is empty", self.settings.listen);
        Err(refusal(&self.origin("listen"), "listen", &why)
            .hint("set `api_key` (SANDKASTEN_API_KEY), or listen on 127.0.0.1"))
    }

    fn check_seccomp(&mut self, sources: &Sources) -> Result<()> {
        if self.settings.seccomp != Seccomp::Off {
            return Ok(());
        }
        if sources.insecure == Insecure::Refused {
            let why = "`off` lets a session reach every system call of the host's kernel";
            return Err(refusal(&self.origin("security.seccomp"), "security.seccomp", why)
                .hint("use `strict` or, for debuggers, `mvp`; `off` needs --insecure"));
        }
        self.warnings
            .push("seccomp is off: sessions reach every system call of this kernel".into());
        Ok(())
    }

    /// No default may be above its ceiling: a ceiling that was set is a contradiction, one that
    /// follows from the host lowers the default.
    fn check_ceilings(&mut self) -> Result<()> {
        let ceilings = ready::ceilings(&self.settings);
        let given = &self.settings;
        let pairs = [
            ("defaults.cpu_limit", "ceilings.cpu", given.cpu_limit, ceilings.cpu),
            (
                "defaults.mem_limit_mb",
                "ceilings.mem_mb",
                float(given.mem_limit_mb),
                float(ceilings.memory_mb),
            ),
            ("defaults.pids_limit", "ceilings.pids", float(given.pids_limit), float(ceilings.pids)),
        ];
        for (key, ceiling, value, most) in pairs {
            if value <= most {
                continue;
            }
            if self.origin(ceiling) != Origin::Default {
                let why = format!("{value} is above `{ceiling}`, which is {most}");
                return Err(refusal(&self.origin(key), key, &why));
            }
            self.warnings.push(format!("`{key}` {value} is above this host's {most}, which holds"));
        }
        self.settings.cpu_limit = self.settings.cpu_limit.min(ceilings.cpu);
        self.settings.mem_limit_mb = self.settings.mem_limit_mb.min(ceilings.memory_mb);
        self.settings.pids_limit = self.settings.pids_limit.min(ceilings.pids);
        Ok(())
    }

    fn warn_of_what_is_off(&mut self) {
        let settings = &self.settings;
        let off = "is not in this version and stays off";
        let mut warn = |holds: bool, text: String| {
            if holds {
                self.warnings.push(text);
            }
        };
        warn(settings.dashboard_enabled, format!("`dashboard.enabled`: the dashboard {off}"));
        warn(settings.pool_enabled, format!("`pool.enabled`: the pool {off}"));
        warn(
            settings.pool_images > 0 && !settings.pool_enabled,
            format!("`pool.images`: the pool {off}"),
        );
        warn(settings.playground, "`playground_config_path` is no longer read".to_owned());
        warn(
            settings.persist_by_default && !settings.workspace_enabled,
            "`workspace.persist_by_default` has no effect: `workspace.enabled` is false".to_owned(),
        );
        let allowed = &settings.allowed_images;
        warn(
            !allowed.is_empty() && !allowed.contains(&settings.default_image),
            format!("`default_image` {} is not in `allowed_images`", settings.default_image),
        );
    }

    fn origin(&self, key: &str) -> Origin {
        if let Some(origin) = self.origins.get(key) {
            return origin.clone();
        }
        match &self.file {
            Some(file) if file.has(key) => Origin::File(file.path.clone(), file.line(key)),
            _ => Origin::Default,
        }
    }
}

/// For a comparison of limits only; they are far below 2^52.
#[expect(clippy::cast_precision_loss, reason = "limits are small")]
fn float(limit: u64) -> f64 {
    limit as f64
}

fn refusal(origin: &Origin, key: &str, why: &str) -> Failure {
    Failure::new(format!("{origin}: `{key}`: {why}"))
}

fn flag_refusal(flag: &str, why: &str) -> Failure {
    Failure::new(format!("{flag}: {why}"))
}

/// Resolves a path of the command line or the file against the working directory, by its text.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(test)]
mod test;
