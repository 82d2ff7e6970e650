//! How a job went that has worked.

/// What a job gives that has worked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// There is more than was told.
    pub truncated: bool,
}

impl Done {
    /// All of it.
    pub const WHOLE: Self = Self { truncated: false };
}
