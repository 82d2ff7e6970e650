//! Files, in a session or in a workspace.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::base64::Base64;

/// `POST …/fs/write`. One of `text` and `content_base64` is given; what counts is its presence.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WriteFile {
    /// Where the file is or is to be, of at most 4096 bytes: absolute, or relative to `/workspace`. This or
    /// `path_base64`.
    pub path: Option<String>,
    /// Base64 of the bytes of a path, in place of `path`, for one that is not UTF-8.
    pub path_base64: Option<Base64>,
    /// The content as text. This or `content_base64`.
    pub text: Option<String>,
    /// The content as base64 of its bytes. This or `text`.
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
    /// Base64 of the bytes that were read.
    pub content_base64: String,
    /// The file is longer than what is here.
    pub truncated: bool,
    /// Bytes of the whole file.
    pub size: u64,
}

/// The answer of `POST …/fs/upload`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Uploaded {
    /// Always true.
    pub ok: bool,
    /// In a session absolute, in a workspace relative to it.
    pub paths: Vec<String>,
    /// The same, where one is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths_base64: Option<Vec<Base64>>,
}

/// The answer of `PUT …/fs/archive`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unpacked {
    /// Always true.
    pub ok: bool,
    /// Members of the archive, all of which were made.
    pub entries: u64,
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
    /// Whether it is a directory; a link to one is not.
    pub is_dir: bool,
    /// Absolute in a session, relative in a workspace.
    pub path: String,
    /// What it is; of a link itself where it was not followed.
    pub r#type: FileType,
    /// Bytes of its content; of a link, of its target.
    pub size: u64,
    /// Octal, as in `"0644"`.
    pub mode: String,
    /// Number of its owner, as the session sees it.
    pub uid: u32,
    /// Number of its group, as the session sees it.
    pub gid: u32,
    /// RFC 3339 with nanoseconds.
    pub mtime: String,
    /// What a link leads to, as written in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Base64 of the name, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_base64: Option<String>,
    /// Where the path is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
}

/// The answer of `GET …/fs/list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Listing {
    /// The directory: absolute in a session, relative in a workspace.
    pub path: String,
    /// By name; those in a directory follow it.
    pub entries: Vec<DirEntry>,
    /// There are more entries than are listed.
    pub truncated: bool,
}

/// `POST …/fs/copy`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CopyFiles {
    /// A path of at most 4096 bytes. This or `from_base64`.
    pub from: Option<String>,
    /// Base64 of the bytes of a path, in place of `from`, for one that is not UTF-8.
    pub from_base64: Option<Base64>,
    /// Where the copy is to be, its own name included: a path of at most 4096 bytes. This or `to_base64`.
    pub to: Option<String>,
    /// Base64 of the bytes of a path, in place of `to`, for one that is not UTF-8.
    pub to_base64: Option<Base64>,
    /// A directory, with all that is in it; false where absent.
    pub recursive: Option<bool>,
    /// What is there may be replaced; false where absent. Of a directory, files in it one by one.
    pub overwrite: Option<bool>,
}

/// The answer of `GET …/fs/glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Globbed {
    /// In a session absolute, in a workspace relative to it.
    pub paths: Vec<String>,
    /// The same, where one is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths_base64: Option<Vec<Base64>>,
    /// There are more.
    pub truncated: bool,
}

/// A line that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FoundLine {
    /// In a session absolute, in a workspace relative to it.
    pub path: String,
    /// Base64 of the path, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<Base64>,
    /// Number of the line, from 1.
    pub line: u64,
    /// Bytes that are not UTF-8 are replaced; what is beyond 4096 bytes is left out.
    pub text: String,
    /// Lines before it, as many as `context` asks for.
    pub before: Vec<String>,
    /// Lines after it, as many as `context` asks for.
    pub after: Vec<String>,
}

/// The answer of `GET …/fs/grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grepped {
    /// The lines, file by file.
    pub matches: Vec<FoundLine>,
    /// There are more.
    pub truncated: bool,
}

/// Data of the events of `GET …/fs/watch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatchDatum {
    /// In a session absolute, in a workspace relative to it.
    pub path: String,
    /// Base64 of the path, where it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<Base64>,
    /// Of `moved`: where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Base64 of `from`, where that is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_base64: Option<Base64>,
    /// What it is; of something removed, what it was.
    pub r#type: FileType,
    /// Number of the event, also its `id`.
    pub seq: u64,
}

/// The answer of `GET /v1/workspaces/{id}/fs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Entries {
    /// What is in the directory, by name.
    pub entries: Vec<DirEntry>,
}

/// The answer of `PUT …/fs/file`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Written {
    /// Always true.
    pub ok: bool,
    /// Of the file as it is now, with its quotes.
    pub etag: String,
}

/// `POST …/fs/mkdir`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MakeDirectory {
    /// A path of at most 4096 bytes. This or `path_base64`.
    pub path: Option<String>,
    /// Base64 of the bytes of a path, in place of `path`, for one that is not UTF-8.
    pub path_base64: Option<Base64>,
    /// Octal; `"0755"` where absent.
    pub mode: Option<String>,
    /// Make missing parents, and be content with a directory that is there; true where absent.
    pub parents: Option<bool>,
}

/// `POST …/fs/move`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoveFile {
    /// A path of at most 4096 bytes. This or `from_base64`.
    pub from: Option<String>,
    /// Base64 of the bytes of a path, in place of `from`, for one that is not UTF-8.
    pub from_base64: Option<Base64>,
    /// The new path itself, of at most 4096 bytes, never a directory to move into. This or `to_base64`.
    pub to: Option<String>,
    /// Base64 of the bytes of a path, in place of `to`, for one that is not UTF-8.
    pub to_base64: Option<Base64>,
    /// Replace what is there; false where absent.
    pub overwrite: Option<bool>,
}

/// `POST …/fs/chmod`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeMode {
    /// A path of at most 4096 bytes. This or `path_base64`.
    pub path: Option<String>,
    /// Base64 of the bytes of a path, in place of `path`, for one that is not UTF-8.
    pub path_base64: Option<Base64>,
    /// Octal, as in `"0644"`.
    pub mode: String,
    /// All that lies below too; false where absent.
    pub recursive: Option<bool>,
}

/// `POST …/fs/edit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EditFile {
    /// A path of at most 4096 bytes. This or `path_base64`.
    pub path: Option<String>,
    /// Base64 of the bytes of a path, in place of `path`, for one that is not UTF-8.
    pub path_base64: Option<Base64>,
    /// 1 to 1000 edits, applied in order, all or none.
    pub edits: Vec<Edit>,
    /// The `ETag` that the file must have.
    pub if_match: Option<String>,
}

/// One replacement of a text by another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Edit {
    /// The exact text that is replaced; not empty.
    pub old: String,
    /// The text that takes its place.
    pub new: String,
    /// Number of times that `old` must be there; 1 where absent.
    pub count: Option<u64>,
}

/// The answer of `POST …/fs/edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Edited {
    /// Always true.
    pub ok: bool,
    /// Replacements made, over all edits.
    pub replaced: u64,
    /// Of the file as it is now, with its quotes.
    pub etag: String,
}
