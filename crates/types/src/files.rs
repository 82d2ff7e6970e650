//! Files, in a session or in a workspace.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Base64;

/// `POST …/fs/write`. One of `text` and `content_base64` is given; what counts is its presence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WriteFile {
    /// This or `path_base64`.
    pub path: Option<String>,
    /// For a path that is not UTF-8.
    pub path_base64: Option<Base64>,
    pub text: Option<String>,
    pub content_base64: Option<String>,
    /// Octal, as in `"0644"`; an existing file keeps its own where absent.
    pub mode: Option<String>,
    /// Make missing parent directories; true where absent.
    pub create_parents: Option<bool>,
}

/// The answer of `GET …/fs/read`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileContent {
    /// As asked for.
    pub path: String,
    /// Where it was asked for so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<Base64>,
    pub content_base64: String,
    /// The file is longer than what is here.
    pub truncated: bool,
    /// Bytes of the whole file.
    pub size: u64,
}

/// The answer of `POST …/fs/upload`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Uploaded {
    pub ok: bool,
    /// In a session absolute, in a workspace relative to it.
    pub paths: Vec<String>,
    /// The same, where one is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths_base64: Option<Vec<Base64>>,
}

/// Kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FileType {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Device,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DirEntry {
    /// Bytes that are not UTF-8 are replaced; `name_base64` then has the name.
    pub name: String,
    pub is_dir: bool,
    pub path: String,
    pub r#type: FileType,
    pub size: u64,
    /// Octal, as in `"0644"`.
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
    /// RFC 3339 with nanoseconds.
    pub mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_base64: Option<String>,
    /// Where the path is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
}

/// The answer of `GET …/fs/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Listing {
    /// As asked for.
    pub path: String,
    /// By name; those in a directory follow it.
    pub entries: Vec<DirEntry>,
    /// There are more entries than are listed.
    pub truncated: bool,
}

/// The answer of `GET /v1/workspaces/{id}/fs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entries {
    pub entries: Vec<DirEntry>,
}
