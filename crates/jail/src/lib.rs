//! (skeleton)
pub mod launcher {
    /// (skeleton)
    #[derive(Debug)]
    pub struct Launcher {}
    /// (skeleton)
    #[derive(Debug)]
    pub struct LaunchError {}
    impl Launcher {
        /// (skeleton)
        ///
        /// # Errors
        /// (skeleton)
        pub fn spawn() -> Result<Self, LaunchError> {
            Ok(Self {})
        }
    }
}
pub mod seccomp {
    /// (skeleton)
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SeccompProfile {
        Strict,
        Mvp,
        Off,
    }
}
