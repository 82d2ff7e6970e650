//! Workspaces: directories that outlive sessions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Timestamp, WorkspaceId};

/// A workspace as the API shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspace {
    pub id: WorkspaceId,
    pub created_at: Timestamp,
    pub labels: BTreeMap<String, String>,
    /// Sessions that had it, the ended ones of the last 24 h included.
    pub session_count: u64,
    /// Sessions that have it now.
    pub active_session_count: u64,
    pub size_bytes: u64,
}

/// `GET /v1/workspaces`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Workspaces {
    pub workspaces: Vec<Workspace>,
}
