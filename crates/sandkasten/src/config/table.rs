//! The table of keys: name, variable, what a value may be, where it goes.

use super::settings::{DiskLimit, Durability, Seccomp, Settings, Shell};
use super::value::{self, Parsed, Raw};
use crate::log::Level;
use sandkasten_types::limits;
use strsim::levenshtein;

/// What every variable's name starts with.
pub(super) const PREFIX: &str = "SANDKASTEN_";

/// One key.
#[derive(Debug)]
pub(super) struct Row {
    /// With dots, as in messages.
    pub(super) key: &'static str,
    /// Without the prefix; empty where there is none.
    pub(super) variable: &'static str,
    pub(super) shape: Shape,
    set: fn(&mut Settings, Raw) -> Parsed<()>,
}

/// What a value looks like in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    Many,
    Counts,
}

impl Row {
    pub(super) fn set(&self, settings: &mut Settings, raw: Raw) -> Parsed<()> {
        (self.set)(settings, raw)
    }
}

pub(super) fn by_key(key: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.key == key)
}

pub(super) fn by_variable(short: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| !row.variable.is_empty() && row.variable == short)
}

/// `key` is the name of a group of keys.
pub(super) fn is_section(key: &str) -> bool {
    ROWS.iter().any(|row| row.key.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')))
}

/// Variables of ours that are not configuration: the cache of built images, what clients are told,
/// switches of tests.
pub(super) fn is_other_variable(short: &str) -> bool {
    short == "CACHE_DIR"
        || short == "URL"
        || short == "FAIL_AT"
        || short == "NO_SKIP"
        || short.starts_with("TEST_")
        || short.starts_with("WITHOUT_")
}

/// The key most like a wrong one, if one is near.
pub(super) fn nearest(key: &str) -> Option<&'static str> {
    let near = |row: &&Row| {
        let (ours, last) = (row.key, row.key.rsplit('.').next().unwrap_or(row.key));
        let given = key.rsplit('.').next().unwrap_or(key);
        last == given || levenshtein(ours, key) <= 2 || levenshtein(last, given) <= 1
    };
    ROWS.iter().find(near).map(|row| row.key)
}

/// A day: what a lease may be, and a command's timeout.
const DAY_MS: u64 = limits::TTL_SECONDS_MAX * 1000;

/// Published clients always send this timeout, so a lower cap would refuse all their execs.
const EXEC_TIMEOUT_MS_LEAST: u64 = limits::EXEC_TIMEOUT_MS_DEFAULT;

/// More than any log that somebody reads.
const LOG_MB_MAX: u64 = 16 << 10;
const LOG_FILES_MAX: u64 = 1000;

macro_rules! row {
    ($key:literal, $variable:literal, $set:expr) => {
        row!($key, $variable, One, $set)
    };
    ($key:literal, $variable:literal, $shape:ident, $set:expr) => {
        Row { key: $key, variable: $variable, shape: Shape::$shape, set: $set }
    };
}

macro_rules! text {
    ($field:ident, $parse:expr) => {
        |settings, raw| {
            settings.$field = $parse(&raw.text()?)?;
            Ok(())
        }
    };
}

static ROWS: &[Row] = &[
    row!("listen", "LISTEN", text!(listen, value::listen)),
    row!("api_key", "API_KEY", text!(api_key, value::api_key)),
    row!("data_dir", "DATA_DIR", |settings, raw| {
        settings.data_dir = path(&raw.text()?)?;
        Ok(())
    }),
    row!("db_path", "DB_PATH", |settings, raw| {
        settings.db_path = Some(path(&raw.text()?)?);
        Ok(())
    }),
    row!("default_image", "DEFAULT_IMAGE", text!(default_image, value::image)),
    row!("allowed_images", "ALLOWED_IMAGES", Many, |settings, raw| {
        settings.allowed_images = every(raw, value::image)?;
        Ok(())
    }),
    row!(
        "session_ttl_seconds",
        "SESSION_TTL_SECONDS",
        text!(session_ttl_seconds, |text: &str| value::integer(text, 1, limits::TTL_SECONDS_MAX))
    ),
    row!("defaults.cpu_limit", "CPU_LIMIT", text!(cpu_limit, value::cores)),
    row!("defaults.mem_limit_mb", "MEM_LIMIT_MB", text!(mem_limit_mb, memory_mb)),
    row!("defaults.pids_limit", "PIDS_LIMIT", text!(pids_limit, pids)),
    row!(
        "defaults.max_exec_timeout_ms",
        "MAX_EXEC_TIMEOUT_MS",
        text!(max_exec_timeout_ms, exec_timeout)
    ),
    row!("defaults.network_mode", "NETWORK_MODE", |_, raw| network(&raw.text()?)),
    row!("defaults.readonly_rootfs", "READONLY_ROOTFS", text!(readonly_rootfs, value::boolean)),
    row!("defaults.exec_mode", "EXEC_MODE", |_, raw| exec_mode(&raw.text()?)),
    row!("defaults.shell_prefer", "SHELL_PREFER", text!(shell_prefer, shell)),
    row!("security.seccomp", "SECCOMP", text!(seccomp, seccomp)),
    row!("pool.enabled", "POOL_ENABLED", text!(pool_enabled, value::boolean)),
    row!("pool.images", "", Counts, |settings, raw| {
        settings.pool_images = raw.count()?;
        Ok(())
    }),
    row!("workspace.enabled", "WORKSPACE_ENABLED", text!(workspace_enabled, value::boolean)),
    row!(
        "workspace.persist_by_default",
        "WORKSPACE_PERSIST_BY_DEFAULT",
        text!(persist_by_default, value::boolean)
    ),
    row!("dashboard.enabled", "DASHBOARD_ENABLED", text!(dashboard_enabled, value::boolean)),
    row!("playground_config_path", "PLAYGROUND_CONFIG_PATH", |settings, raw| {
        settings.playground = !raw.text()?.is_empty();
        Ok(())
    }),
    row!(
        "max_sessions",
        "MAX_SESSIONS",
        text!(max_sessions, |text: &str| value::integer(text, 1, 100_000))
    ),
    row!(
        "max_output_bytes",
        "MAX_OUTPUT_BYTES",
        text!(max_output_bytes, |text: &str| value::bytes(text, limits::OUTPUT_BYTES_MAX))
    ),
    row!(
        "max_read_bytes",
        "MAX_READ_BYTES",
        text!(max_read_bytes, |text: &str| value::bytes(text, limits::READ_BYTES_MAX))
    ),
    row!(
        "max_upload_bytes",
        "MAX_UPLOAD_BYTES",
        text!(max_upload_bytes, |text: &str| value::bytes(text, 1 << 40))
    ),
    row!("ceilings.cpu", "CEILINGS_CPU", |settings, raw| {
        settings.ceilings_cpu = Some(value::cores(&raw.text()?)?);
        Ok(())
    }),
    row!("ceilings.mem_mb", "CEILINGS_MEM_MB", |settings, raw| {
        settings.ceilings_mem_mb = Some(memory_mb(&raw.text()?)?);
        Ok(())
    }),
    row!("ceilings.pids", "CEILINGS_PIDS", text!(ceilings_pids, pids)),
    row!("ceilings.disk_mb", "CEILINGS_DISK_MB", text!(ceilings_disk_mb, disk_mb)),
    row!("disk_limits", "DISK_LIMITS", Many, |settings, raw| {
        settings.disk_limits = disk_limits(&raw.list()?)?;
        Ok(())
    }),
    row!("cors_origins", "CORS_ORIGINS", Many, |settings, raw| {
        settings.cors_origins = every(raw, value::origin)?;
        Ok(())
    }),
    row!("extra_ca", "EXTRA_CA", |_, raw| only_none(&raw.text()?)),
    row!("upstream_proxy", "UPSTREAM_PROXY", |_, raw| only_none(&raw.text()?)),
    row!("durability", "DURABILITY", text!(durability, durability)),
    row!("log.level", "LOG_LEVEL", text!(log_level, log_level)),
    row!(
        "log.max_mb",
        "LOG_MAX_MB",
        text!(log_max_mb, |text: &str| value::integer(text, 1, LOG_MB_MAX))
    ),
    row!(
        "log.keep",
        "LOG_KEEP",
        text!(log_keep, |text: &str| value::integer(text, 1, LOG_FILES_MAX))
    ),
];

fn path(text: &str) -> Parsed<std::path::PathBuf> {
    if text.is_empty() || text.contains('\0') {
        return Err("must be a path".into());
    }
    Ok(text.into())
}

fn every(raw: Raw, parse: fn(&str) -> Parsed<String>) -> Parsed<Vec<String>> {
    raw.list()?.iter().map(|part| parse(part)).collect()
}

/// MiB. Below 16 not even a shell starts.
fn memory_mb(text: &str) -> Parsed<u64> {
    value::integer(text, 16, 1 << 30)
}

/// Below 8 there is no room for init, its shell and one program.
fn pids(text: &str) -> Parsed<u64> {
    value::integer(text, 8, 4_000_000)
}

fn exec_timeout(text: &str) -> Parsed<u64> {
    value::integer(text, 1, DAY_MS).and_then(|ms| {
        if ms < EXEC_TIMEOUT_MS_LEAST {
            return Err(format!(
                "{ms} is below {EXEC_TIMEOUT_MS_LEAST}, which published clients always ask for"
            ));
        }
        Ok(ms)
    })
}

fn network(text: &str) -> Parsed<()> {
    value::known_later(text, &["proxy", "bridge", "full", "host"], "sessions have no network yet")?;
    value::word(text, &[("none", ())])
}

fn exec_mode(text: &str) -> Parsed<()> {
    value::known_later(text, &["stateless"], "each session has one shell that keeps its state")?;
    value::word(text, &[("stateful", ())])
}

fn shell(text: &str) -> Parsed<Shell> {
    value::word(text, &[("bash", Shell::Bash), ("sh", Shell::Sh)])
}

fn seccomp(text: &str) -> Parsed<Seccomp> {
    let words = [("strict", Seccomp::Strict), ("mvp", Seccomp::Mvp), ("off", Seccomp::Off)];
    value::word(text, &words)
}

fn durability(text: &str) -> Parsed<Durability> {
    value::word(text, &[("rename", Durability::Rename), ("fsync", Durability::Fsync)])
}

pub(super) fn log_level(text: &str) -> Parsed<Level> {
    let words = [
        ("error", Level::Error),
        ("warn", Level::Warn),
        ("info", Level::Info),
        ("debug", Level::Debug),
        ("trace", Level::Trace),
    ];
    value::word(text, &words)
}

fn disk_mb(text: &str) -> Parsed<Option<u64>> {
    if text == "unlimited" {
        return Ok(None);
    }
    value::integer(text, limits::DISK_MB_MIN, limits::DISK_MB_MAX).map(Some)
}

/// `none` alone is no way at all.
fn disk_limits(words: &[String]) -> Parsed<Vec<DiskLimit>> {
    if words == ["none"] {
        return Ok(Vec::new());
    }
    let known = [
        ("project", DiskLimit::Project),
        ("image", DiskLimit::Image),
        ("memory", DiskLimit::Memory),
    ];
    words.iter().map(|word| value::word(word, &known)).collect()
}

fn only_none(text: &str) -> Parsed<()> {
    if text.is_empty() || text == "none" {
        return Ok(());
    }
    Err("is not available in this version: it comes with the network".into())
}

#[cfg(test)]
pub(super) fn rows() -> &'static [Row] {
    ROWS
}
