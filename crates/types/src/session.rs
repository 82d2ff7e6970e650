//! Sessions: what a client asks for and what it sees.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::ids::{ImageName, SessionId, WorkspaceId};
use crate::strict::unknown_field;
use crate::time::Timestamp;

/// `POST /v1/sessions`. Every field may be absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CreateSession {
    /// Name of an image, 1 to 128 of `[a-z0-9._-]`; the configured default where it is absent or empty.
    pub image: Option<String>,
    /// Seconds the session lives after its last use: 1 to 86400; absent or 0 is the default.
    pub ttl_seconds: Option<i64>,
    /// Id of the workspace to mount at `/workspace`, 2 to 64 of `[a-z0-9-]`; made on first use.
    pub workspace_id: Option<String>,
    /// A name for people, 128 bytes at most.
    pub name: Option<String>,
    /// Environment of every command of the session: 256 entries at most, 512 KiB in all.
    pub env: Option<BTreeMap<String, String>>,
    /// Labels for people and programs, shown with the session: 256 entries at most, names and values of
    /// 256 bytes at most.
    pub labels: Option<BTreeMap<String, String>>,
    /// Directory that the first command starts in, an absolute path of at most 4095 bytes, made where it is
    /// missing; `/workspace` where absent.
    pub cwd: Option<String>,
    /// `sandbox` where absent; `root`, or any name or uid of the image's passwd, of at most 256 bytes.
    pub user: Option<String>,
    /// What of the network it gets; `none` where absent.
    pub network: Option<Network>,
    /// What it may use; the daemon's defaults where absent.
    pub limits: Option<Limits>,
    /// Only `stateful` in this version.
    pub exec_mode: Option<String>,
    /// Nothing in this version, which has one profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<String>,
}

/// `PATCH /v1/sessions/{id}`. What is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct UpdateSession {
    /// Seconds the session lives after its last use, from now on: 1 to 86400. It expires that much after
    /// now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    /// All of its labels, 256 entries at most: others that it had go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// A name for people, 128 bytes at most; empty takes the name away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A network mode, or a mode with rules. This version has `none`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Network {
    Mode(String),
    Policy(NetworkPolicy),
}

/// A network mode with its allow and deny rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkPolicy {
    /// Only `none` in this version.
    pub mode: String,
    /// Hosts that may be reached; not in this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Hosts that may not be reached; not in this version.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NetworkVisitor)
    }
}

struct NetworkVisitor;

impl<'de> Visitor<'de> for NetworkVisitor {
    type Value = Network;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a network mode or an object with `mode`")
    }

    fn visit_str<E: Error>(self, mode: &str) -> Result<Network, E> {
        Ok(Network::Mode(mode.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Network, A::Error> {
        let (mut mode, mut allow, mut deny) = (None, Vec::new(), Vec::new());
        while let Some(name) = members.next_key::<String>()? {
            match name.as_str() {
                "mode" => mode = Some(members.next_value()?),
                "allow" => allow = members.next_value()?,
                "deny" => deny = members.next_value()?,
                _ => {
                    let known = ["mode", "allow", "deny"];
                    return Err(A::Error::custom(unknown_field(&name, &known)));
                }
            }
        }
        let mode = mode.ok_or_else(|| A::Error::custom("missing field `mode`"))?;
        Ok(Network::Policy(NetworkPolicy { mode, allow, deny }))
    }
}

/// Limits of one session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// Cores, 0.01 at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// MiB of memory, tmpfs and socket buffers included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// MiB on disk outside a persistent workspace, 16 at least. No limit where absent, unless the daemon
    /// has a ceiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
}

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Creating,
    Running,
    Paused,
    Stopping,
    Destroyed,
    Expired,
    Crashed,
    Lost,
}

impl Status {
    /// The word on the wire and in the database.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Destroyed => "destroyed",
            Self::Expired => "expired",
            Self::Crashed => "crashed",
            Self::Lost => "lost",
        }
    }

    /// The session has ended and owns nothing any more.
    #[must_use]
    pub fn is_over(self) -> bool {
        matches!(self, Self::Destroyed | Self::Expired | Self::Crashed | Self::Lost)
    }
}

impl std::str::FromStr for Status {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [
            Self::Creating,
            Self::Running,
            Self::Paused,
            Self::Stopping,
            Self::Destroyed,
            Self::Expired,
            Self::Crashed,
            Self::Lost,
        ];
        let found = all.into_iter().find(|status| status.as_str() == text);
        found.ok_or_else(|| format!("unknown status `{text}`"))
    }
}

/// Where a session came from: made for this request, or ahead of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum AcquireSource {
    Cold,
    Pool,
}

/// Which shell runs a session's commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Shell {
    Bash,
    Sh,
}

/// A session as the API shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its id, which names it in every other call.
    pub id: SessionId,
    /// The image that it was made of.
    pub image: ImageName,
    /// Where it stands.
    pub status: Status,
    /// The shell's working directory after its last command.
    pub cwd: String,
    /// The persistent workspace at `/workspace`, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<WorkspaceId>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends unless it is used before.
    pub expires_at: Timestamp,
    /// When it was used last.
    pub last_activity: Timestamp,
    /// Whether it was made for this request or ahead of it.
    pub acquire_source: AcquireSource,
    /// The name that it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Names of the variables given at create; values are never shown.
    pub env_keys: Vec<String>,
    /// The labels that it was given.
    pub labels: BTreeMap<String, String>,
    /// What it may use.
    pub limits: Limits,
    /// What of the network it has.
    pub network: Network,
    /// `null` where the image has no shell.
    #[schema(required)]
    pub shell: Option<Shell>,
    /// What ended the session, once it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_reason: Option<String>,
    /// Name of the daemon.
    pub node: String,
}

/// `GET /v1/sessions/{id}/stats`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// Bytes of memory in use now.
    pub memory_bytes: u64,
    /// Bytes of memory that it may use.
    pub memory_limit: u64,
    /// CPU time used so far, in microseconds.
    pub cpu_usage_usec: u64,
    /// The most bytes of memory that were in use.
    pub memory_peak_bytes: u64,
    /// Cores.
    pub cpu_limit: f64,
    /// Processes and threads now.
    pub pids: u64,
    /// Processes and threads that it may have.
    pub pids_limit: u64,
    /// Bytes on disk outside a persistent workspace; `null` where nothing counts them.
    #[schema(required)]
    pub disk_bytes: Option<u64>,
    /// Bytes on disk that it may use; `null`: no limit.
    #[schema(required)]
    pub disk_limit: Option<u64>,
    /// Processes killed because the session's memory was full.
    pub oom_kills: u64,
}

/// `{"ok": true}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ok {
    /// Always true.
    pub ok: bool,
}

impl Ok {
    pub const TRUE: Self = Self { ok: true };
}
