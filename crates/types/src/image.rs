//! Images: what sessions are made of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::ImageName;
use crate::time::Timestamp;

/// An image of this daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Name that sessions are made of it by.
    pub name: ImageName,
    /// SHA-256 of each layer in lower-case hex, lowest first.
    pub layers: Vec<String>,
    /// Bytes of all layers on disk. Layers that images share are counted for each of them.
    pub size_bytes: u64,
    /// When it was imported or built.
    pub created_at: Timestamp,
    /// Names of the variables that the image sets for every command.
    pub env_keys: Vec<String>,
    /// Labels of the image itself.
    pub labels: BTreeMap<String, String>,
    /// A session that names no image gets this one.
    pub is_default: bool,
    /// Sessions that were made of it and have not ended.
    pub active_session_count: u64,
}

/// `GET /v1/images`, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Images {
    /// The images, by name.
    pub images: Vec<Image>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}
