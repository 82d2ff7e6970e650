//! Workspaces: directories that outlive sessions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::WorkspaceId;
use crate::time::Timestamp;

/// A workspace as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspace {
    /// Its id, chosen by the client.
    pub id: WorkspaceId,
    /// When it was made.
    pub created_at: Timestamp,
    /// The labels that it was given.
    pub labels: BTreeMap<String, String>,
    /// Sessions that had it, the ended ones of the last 24 h included.
    pub session_count: u64,
    /// Sessions that have it now.
    pub active_session_count: u64,
    /// Bytes that its files take on disk. `null` while they are counted for the first time, where
    /// that takes longer than an answer may.
    #[schema(required)]
    pub size_bytes: Option<u64>,
    /// When they were counted: a count that is dear is not made anew for each answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_counted_at: Option<Timestamp>,
    /// MiB that its files may take; absent where there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_mb: Option<u64>,
}

/// `PUT /v1/workspaces/{id}`. What is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PutWorkspace {
    /// MiB that its files may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_mb: Option<u64>,
    /// All of its labels, 256 entries at most: others that it had go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
}

/// `GET /v1/workspaces`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspaces {
    /// The workspaces, by id.
    pub workspaces: Vec<Workspace>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
