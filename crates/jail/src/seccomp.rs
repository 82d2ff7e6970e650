//! Which system calls a session may make: an allow-list.
//!
//! What is not in the list below is refused: with `EPERM` where it is a call that programs know and
//! must be told they may not make, with `ENOSYS` where it is one that they must take for missing and
//! do without (`clone3`, whose flags no filter can see; calls that came after this table). Calls of
//! the i386 and x32 kind kill the process: they are a second way to every call, past the numbers here.
//!
//! Two programs stand on each payload process: init's, which it inherits, and its own.

use crate::bpf::{self, Argument, Clause, Decision, Table, Test, Verdict};
use crate::sys::Instruction;

#[cfg(target_arch = "x86_64")]
#[path = "seccomp/x86_64.rs"]
mod calls;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the table of system calls is written for x86_64 only");

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
        SeccompProfile::Strict => bpf::to_bytes(&program(&[])),
        SeccompProfile::Mvp => bpf::to_bytes(&program(calls::DEBUGGING)),
        SeccompProfile::Off => Vec::new(),
    }
}

/// init's own program, which all that it starts inherits; empty for [`SeccompProfile::Off`]. It is the
/// looser one, so that the payload's decides.
pub(crate) fn init_filter(profile: SeccompProfile) -> Vec<Instruction> {
    match profile {
        SeccompProfile::Strict | SeccompProfile::Mvp => program(calls::DEBUGGING),
        SeccompProfile::Off => Vec::new(),
    }
}

const EPERM: Verdict = Verdict::Errno(1);
const ENOSYS: Verdict = Verdict::Errno(38);
const EAFNOSUPPORT: Verdict = Verdict::Errno(97);

/// Every CLONE_NEW* that clone(2) knows.
const CLONE_NAMESPACES: u32 = 0x7e02_0000;

/// unshare(2) knows CLONE_NEWTIME too; for clone(2) that bit is part of the exit signal.
const UNSHARE_NAMESPACES: u32 = CLONE_NAMESPACES | 0x80;

const fn when(argument: u8, test: Test, then: Verdict) -> Clause {
    Clause { argument: Argument(argument), test, then }
}

const CLONE: &[Clause] = &[when(0, Test::HasAny(CLONE_NAMESPACES), EPERM)];
const UNSHARE: &[Clause] = &[when(0, Test::HasAny(UNSHARE_NAMESPACES), EPERM)];

/// UNIX, INET, INET6, and of NETLINK the protocol ROUTE. Every other family is kernel code that
/// nothing in a box needs.
const SOCKET: &[Clause] = &[
    when(0, Test::Equals(1), Verdict::Allow),
    when(0, Test::Equals(2), Verdict::Allow),
    when(0, Test::Equals(10), Verdict::Allow),
    when(0, Test::HasAny(!16), EAFNOSUPPORT),
    when(0, Test::Equals(0), EAFNOSUPPORT),
    when(2, Test::Equals(0), Verdict::Allow),
];

const SOCKETPAIR: &[Clause] = &[when(0, Test::Equals(1), Verdict::Allow)];

/// TIOCSTI and TIOCLINUX put words into the mouth of a terminal's user; TIOCSETD makes the kernel load
/// line disciplines. The kernel takes 32 bits of the request, so a bit above them changes nothing.
const IOCTL: &[Clause] = &[
    when(1, Test::Equals(0x5412), EPERM),
    when(1, Test::Equals(0x541c), EPERM),
    when(1, Test::Equals(0x5423), EPERM),
];

/// Linux with and without UNAME26, its 32-bit face, and the question which one it is.
const PERSONALITY: &[Clause] = &[
    when(0, Test::Equals(0), Verdict::Allow),
    when(0, Test::Equals(8), Verdict::Allow),
    when(0, Test::Equals(0x20000), Verdict::Allow),
    when(0, Test::Equals(0x20008), Verdict::Allow),
    when(0, Test::Equals(u32::MAX), Verdict::Allow),
];

fn program(also_allowed: &[u32]) -> Vec<Instruction> {
    bpf::assemble(calls::ARCHITECTURE, &table(also_allowed))
}

fn table(also_allowed: &[u32]) -> Table {
    let mut decisions = vec![Decision::Always(ENOSYS); calls::COUNT];
    let mut decide = |number: u32, decision| {
        if let Some(entry) = usize::try_from(number).ok().and_then(|n| decisions.get_mut(n)) {
            *entry = decision;
        }
    };
    calls::DENIED.iter().for_each(|n| decide(*n, Decision::Always(EPERM)));
    calls::ALLOWED.iter().for_each(|n| decide(*n, Decision::Always(Verdict::Allow)));
    also_allowed.iter().for_each(|n| decide(*n, Decision::Always(Verdict::Allow)));
    decide(calls::CLONE, Decision::ByArguments(CLONE, Verdict::Allow));
    decide(calls::UNSHARE, Decision::ByArguments(UNSHARE, Verdict::Allow));
    decide(calls::SOCKET, Decision::ByArguments(SOCKET, EAFNOSUPPORT));
    decide(calls::SOCKETPAIR, Decision::ByArguments(SOCKETPAIR, EAFNOSUPPORT));
    decide(calls::IOCTL, Decision::ByArguments(IOCTL, Verdict::Allow));
    decide(calls::PERSONALITY, Decision::ByArguments(PERSONALITY, EPERM));
    let mut table: Table = (0..).zip(decisions).collect();
    table.extend(calls::BEHIND);
    table
}

#[cfg(test)]
mod test {
    use super::*;

    fn strict(number: i64, arguments: [u64; 6]) -> Verdict {
        let number = u32::try_from(number).unwrap();
        bpf::interpret(&program(&[]), calls::ARCHITECTURE, number, arguments)
    }

    #[test]
    fn no_call_is_both_allowed_and_denied() {
        for number in calls::ALLOWED.iter().chain(calls::DEBUGGING) {
            let twice = calls::DENIED.contains(number) && !calls::DEBUGGING.contains(number);
            assert!(!twice, "{number}");
        }
    }

    #[test]
    fn programs_fit_and_every_path_is_short() {
        let program = program(calls::DEBUGGING);
        assert!(program.len() < 1000, "{}", program.len());
        assert_eq!(payload_filter(SeccompProfile::Strict).len() % 8, 0);
        assert!(payload_filter(SeccompProfile::Off).is_empty());
    }

    #[test]
    fn common_calls_are_allowed() {
        for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_openat2, libc::SYS_futex] {
            assert_eq!(strict(call, [0; 6]), Verdict::Allow, "{call}");
        }
    }

    #[test]
    fn dangerous_calls_are_not() {
        let calls = [
            libc::SYS_ptrace,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_userfaultfd,
            libc::SYS_keyctl,
            libc::SYS_add_key,
            libc::SYS_request_key,
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_setns,
            libc::SYS_kexec_load,
            libc::SYS_init_module,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_acct,
            libc::SYS_quotactl,
            libc::SYS_syslog,
            libc::SYS_kcmp,
            libc::SYS_open_by_handle_at,
            libc::SYS_vhangup,
            libc::SYS_iopl,
            libc::SYS_modify_ldt,
            libc::SYS_process_vm_readv,
            libc::SYS_pidfd_getfd,
            libc::SYS_fsopen,
            libc::SYS_open_tree,
            libc::SYS_move_mount,
        ];
        for call in calls {
            assert_eq!(strict(call, [0; 6]), EPERM, "{call}");
        }
        assert_eq!(strict(libc::SYS_clone3, [0; 6]), ENOSYS);
        assert_eq!(strict(600, [0; 6]), ENOSYS);
        assert_eq!(strict(i64::from(u32::MAX), [0; 6]), ENOSYS);
    }

    #[test]
    fn debuggers_get_ptrace_and_no_more() {
        let program = program(calls::DEBUGGING);
        let run = |n| bpf::interpret(&program, calls::ARCHITECTURE, n, [0; 6]);
        assert_eq!(run(101), Verdict::Allow);
        assert_eq!(run(310), Verdict::Allow);
        assert_eq!(run(321), EPERM);
    }

    #[test]
    fn namespaces_are_refused_and_threads_are_not() {
        let thread = 0x003d_0f00;
        assert_eq!(strict(libc::SYS_clone, [thread, 0, 0, 0, 0, 0]), Verdict::Allow);
        for shift in [17, 25, 26, 27, 28, 29, 30] {
            let flags = [1_u64 << shift, 0, 0, 0, 0, 0];
            assert_eq!(strict(libc::SYS_clone, flags), EPERM, "{shift}");
            assert_eq!(strict(libc::SYS_unshare, flags), EPERM, "{shift}");
        }
        assert_eq!(strict(libc::SYS_unshare, [0x80, 0, 0, 0, 0, 0]), EPERM);
        assert_eq!(strict(libc::SYS_unshare, [0x400, 0, 0, 0, 0, 0]), Verdict::Allow);
    }

    #[test]
    fn only_four_families_of_sockets_exist() {
        for family in 0..=45 {
            let expected =
                if [1, 2, 10, 16].contains(&family) { Verdict::Allow } else { EAFNOSUPPORT };
            assert_eq!(strict(libc::SYS_socket, [family, 1, 0, 0, 0, 0]), expected, "{family}");
        }
        for protocol in 1..25 {
            let netlink = [16, 3, protocol, 0, 0, 0];
            assert_eq!(strict(libc::SYS_socket, netlink), EAFNOSUPPORT, "{protocol}");
        }
        assert_eq!(strict(libc::SYS_socket, [2, 1, 6, 0, 0, 0]), Verdict::Allow);
        assert_eq!(strict(libc::SYS_socketpair, [2, 1, 0, 0, 0, 0]), EAFNOSUPPORT);
    }

    #[test]
    fn terminal_injection_is_refused_in_both_encodings() {
        for request in [0x5412, 0x541c, 0x5412 | 1 << 32] {
            assert_eq!(strict(libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), EPERM);
        }
        assert_eq!(strict(libc::SYS_ioctl, [0, 0x5401, 0, 0, 0, 0]), Verdict::Allow);
    }

    #[test]
    fn personality_takes_five_values() {
        for allowed in [0, 8, 0x20000, 0x20008, 0xffff_ffff] {
            assert_eq!(strict(libc::SYS_personality, [allowed, 0, 0, 0, 0, 0]), Verdict::Allow);
        }
        assert_eq!(strict(libc::SYS_personality, [0x40000, 0, 0, 0, 0, 0]), EPERM);
    }

    #[test]
    fn x32_and_i386_are_killed() {
        assert_eq!(strict(0x4000_0000, [0; 6]), Verdict::KillProcess);
        assert_eq!(strict(0x4000_0000 + 39, [0; 6]), Verdict::KillProcess);
        let i386 = 0x4000_0003;
        assert_eq!(bpf::interpret(&program(&[]), i386, 4, [0; 6]), Verdict::KillProcess);
    }
}
