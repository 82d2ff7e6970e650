//! A small assembler for seccomp programs: a decision for each system call number, as a binary tree.
//!
//! Programs only load words of `struct seccomp_data`, compare them with constants and return; jumps go
//! forward. The kernel answers numbers whose path looks at nothing but number and architecture from a
//! bitmap, without running the program.

use crate::sys::Instruction;

/// What the kernel does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    /// The call fails with this errno.
    Errno(u16),
    KillProcess,
}

/// The word of the call's data that a [`Test`] looks at; arguments by their low 32 bits, which is what
/// the kernel itself takes of every argument that is tested here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Argument(pub(crate) u8);

/// A condition on one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    Equals(u32),
    /// One of these bits at least is set.
    HasAny(u32),
}

/// `if argument test { verdict }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clause {
    pub(crate) argument: Argument,
    pub(crate) test: Test,
    pub(crate) then: Verdict,
}

/// What is decided for a system call number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    Always(Verdict),
    /// The first clause that holds decides, else the verdict behind.
    ByArguments(&'static [Clause], Verdict),
}

/// Decisions for all numbers: each holds from its number up to the next entry's. Sorted by number, no
/// number twice, the first is 0.
pub(crate) type Table = Vec<(u32, Decision)>;

const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const JUMP: u16 = 0x05; // BPF_JMP | BPF_JA
const IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
const IF_AT_LEAST: u16 = 0x35; // BPF_JMP | BPF_JGE | BPF_K
const IF_ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const RETURN: u16 = 0x06; // BPF_RET | BPF_K

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

const RET_KILL_PROCESS: u32 = 0x8000_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_ALLOW: u32 = 0x7fff_0000;

/// The program that decides by `table` for calls of `architecture` and kills the process that makes a
/// call of another one.
pub(crate) fn assemble(architecture: u32, table: &[(u32, Decision)]) -> Vec<Instruction> {
    let mut program = vec![
        plain(LOAD, OFFSET_ARCHITECTURE),
        Instruction { code: IF_EQUAL, jt: 1, jf: 0, k: architecture },
        verdict(Verdict::KillProcess),
        plain(LOAD, OFFSET_NUMBER),
    ];
    program.extend(tree(&merged(table)));
    program
}

/// The program as bytes of `struct sock_filter`, in this machine's byte order.
pub(crate) fn to_bytes(program: &[Instruction]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(program));
    for instruction in program {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}

/// Neighbours with the same decision become one range.
fn merged(table: &[(u32, Decision)]) -> Table {
    let mut ranges = Table::new();
    for (first, decision) in table {
        if ranges.last().is_none_or(|(_, last)| last != decision) {
            ranges.push((*first, *decision));
        }
    }
    ranges
}

/// Finds the range of the loaded number by halving.
fn tree(ranges: &[(u32, Decision)]) -> Vec<Instruction> {
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let Some((middle, decision)) = upper.first() else {
        return vec![verdict(Verdict::KillProcess)];
    };
    if lower.is_empty() {
        return leaf(*decision);
    }
    let below = tree(lower);
    let mut program = Vec::new();
    // A conditional jump reaches 255 instructions; behind that, an unconditional one goes on.
    if let Ok(near) = u8::try_from(below.len()) {
        program.push(Instruction { code: IF_AT_LEAST, jt: near, jf: 0, k: *middle });
    } else {
        program.push(Instruction { code: IF_AT_LEAST, jt: 0, jf: 1, k: *middle });
        program.push(plain(JUMP, u32::try_from(below.len()).unwrap_or(u32::MAX)));
    }
    program.extend(below);
    program.extend(tree(upper));
    program
}

fn leaf(decision: Decision) -> Vec<Instruction> {
    match decision {
        Decision::Always(always) => vec![verdict(always)],
        Decision::ByArguments(clauses, otherwise) => {
            let mut program = Vec::new();
            for clause in clauses {
                let (code, k) = match clause.test {
                    Test::Equals(value) => (IF_EQUAL, value),
                    Test::HasAny(bits) => (IF_ANY_BIT, bits),
                };
                program.push(plain(LOAD, offset(clause.argument)));
                program.push(Instruction { code, jt: 0, jf: 1, k });
                program.push(verdict(clause.then));
            }
            program.push(verdict(otherwise));
            program
        }
    }
}

/// Where the low half of an argument lies in `struct seccomp_data`.
fn offset(argument: Argument) -> u32 {
    let low_half = if cfg!(target_endian = "little") { 0 } else { 4 };
    OFFSET_ARGUMENTS + 8 * u32::from(argument.0) + low_half
}

fn plain(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn verdict(verdict: Verdict) -> Instruction {
    plain(
        RETURN,
        match verdict {
            Verdict::Allow => RET_ALLOW,
            Verdict::Errno(errno) => RET_ERRNO | u32::from(errno),
            Verdict::KillProcess => RET_KILL_PROCESS,
        },
    )
}

/// Runs a program as the kernel does.
#[cfg(test)]
pub(crate) fn interpret(
    program: &[Instruction],
    architecture: u32,
    number: u32,
    arguments: [u64; 6],
) -> Verdict {
    let mut data = Vec::new();
    data.extend(number.to_ne_bytes());
    data.extend(architecture.to_ne_bytes());
    data.extend(0_u64.to_ne_bytes());
    arguments.iter().for_each(|argument| data.extend(argument.to_ne_bytes()));
    let (mut at, mut loaded) = (0, 0);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        let offset = k as usize;
        let holds = match code {
            LOAD => {
                loaded = u32::from_ne_bytes(data[offset..offset + 4].try_into().unwrap());
                at += 1;
                continue;
            }
            JUMP => {
                at += 1 + offset;
                continue;
            }
            RETURN if k == RET_ALLOW => return Verdict::Allow,
            RETURN if k == RET_KILL_PROCESS => return Verdict::KillProcess,
            RETURN => {
                assert_eq!(k & 0xffff_0000, RET_ERRNO);
                return Verdict::Errno((k & 0xffff).try_into().unwrap());
            }
            IF_EQUAL => loaded == k,
            IF_AT_LEAST => loaded >= k,
            IF_ANY_BIT => loaded & k != 0,
            other => panic!("instruction {other:#x}"),
        };
        at += 1 + usize::from(if holds { jt } else { jf });
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const ARCHITECTURE: u32 = 7;

    #[test]
    fn each_number_gets_its_own_decision_however_far_the_jumps() {
        // 2,000 ranges make subtrees much longer than a conditional jump reaches.
        let table: Table = (0..2000_u16)
            .map(|n| (u32::from(n) * 3, Decision::Always(Verdict::Errno(n))))
            .collect();
        let program = assemble(ARCHITECTURE, &table);
        for number in 0..6000 {
            let expected = Verdict::Errno(u16::try_from(number / 3).unwrap());
            assert_eq!(interpret(&program, ARCHITECTURE, number, [0; 6]), expected, "{number}");
        }
    }

    #[test]
    fn another_architecture_is_killed() {
        let program = assemble(ARCHITECTURE, &[(0, Decision::Always(Verdict::Allow))]);
        assert_eq!(interpret(&program, 8, 0, [0; 6]), Verdict::KillProcess);
    }

    #[test]
    fn the_first_clause_that_holds_decides() {
        const CLAUSES: &[Clause] = &[
            Clause { argument: Argument(1), test: Test::Equals(5), then: Verdict::Errno(1) },
            Clause { argument: Argument(0), test: Test::HasAny(6), then: Verdict::Errno(2) },
        ];
        let table = [(0, Decision::ByArguments(CLAUSES, Verdict::Allow))];
        let program = assemble(ARCHITECTURE, &table);
        let run = |a, b| interpret(&program, ARCHITECTURE, 0, [a, b, 0, 0, 0, 0]);
        assert_eq!(run(6, 5), Verdict::Errno(1));
        assert_eq!(run(6, 5 | 1 << 32), Verdict::Errno(1), "only the low half counts");
        assert_eq!(run(4, 0), Verdict::Errno(2));
        assert_eq!(run(1, 0), Verdict::Allow);
    }
}
