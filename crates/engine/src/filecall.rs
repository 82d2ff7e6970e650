//! What calls on files say and hear, in a session and in a workspace.

/// What was read of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRead {
    pub bytes: Vec<u8>,
    /// Bytes of the whole file.
    pub size: u64,
    pub truncated: bool,
}

/// What is done with a link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastLink {
    Followed,
    /// It is the link itself that is meant.
    Meant,
}

/// What may be where something is moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    MustBeFree,
    MayBeReplaced,
}
