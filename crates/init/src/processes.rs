//! The process table of the box, and who in it belongs to a command. The judgement is pure.
//!
//! ```text
//!   supervisor ── shell ── what the command started
//!        ├──────── orphan of the command            (a victim)
//!        └──────── kept: it lived when the last command ended, with all below it
//! ```

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir};
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::CapabilitySet;

use crate::rights::Rights;

/// One process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Clock ticks since the host's start. With the pid it names a process for good.
    pub(crate) start: u64,
    /// Ended, waiting to be reaped.
    pub(crate) dead: bool,
}

/// Processes by pid, as one pass over `/proc` found them.
pub(crate) type Table = BTreeMap<i32, Process>;

/// Processes that outlive a command: pid and start time.
pub(crate) type Kept = BTreeMap<i32, u64>;

/// The tree of a shell or a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    /// No member, and no victim.
    pub(crate) supervisor: i32,
    /// The same; of a program, which is a victim as any other, the supervisor again.
    pub(crate) shell: i32,
    /// The session that the supervisor led, where box root has killed it: of the orphans, which are
    /// init's then, those of this session are of the tree.
    pub(crate) orphaned: Option<i32>,
}

const INIT: i32 = 1;

impl Tree {
    /// Everything that lives in the tree but the shell and its supervisor.
    pub(crate) fn members(self, table: &Table) -> Vec<Process> {
        self.living(table).filter(|p| self.line(table, *p).is_some()).collect()
    }

    /// What a command started: the members that are not kept, not below one that is, and not orphans
    /// whose session or group leader is kept.
    pub(crate) fn victims(self, table: &Table, kept: &Kept) -> Vec<Process> {
        let spared = |p: &Process| kept.get(&p.pid) == Some(&p.start);
        self.living(table)
            .filter(|p| {
                self.line(table, *p).is_some_and(|line| {
                    !line.iter().any(spared)
                        && !line.last().is_some_and(|top| self.is_led_by_kept(table, top, kept))
                })
            })
            .collect()
    }

    fn living(self, table: &Table) -> impl Iterator<Item = Process> {
        table
            .values()
            .copied()
            .filter(move |p| !p.dead && p.pid != self.supervisor && p.pid != self.shell)
    }

    /// The process and its ancestors up to the shell or supervisor, which are left out. `None` where
    /// it is not of this tree.
    fn line(self, table: &Table, process: Process) -> Option<Vec<Process>> {
        let mut line = vec![process];
        // A table that changed while it was read may hold a circle.
        while line.len() <= table.len() {
            let top = line.last()?;
            let parent = top.parent;
            if parent == self.supervisor || parent == self.shell || self.is_orphan(top) {
                return Some(line);
            }
            line.push(*table.get(&parent)?);
        }
        None
    }

    /// Whether a process fell to init when it lost its parent and then its supervisor. The number of a
    /// session is nobody else's as long as it has a process.
    fn is_orphan(self, process: &Process) -> bool {
        process.parent == INIT && self.orphaned == Some(process.session)
    }

    /// Whether the topmost process of a line is an orphan that a kept process leads.
    fn is_led_by_kept(self, table: &Table, top: &Process, kept: &Kept) -> bool {
        // A leader that is dead still owns its number while its group lives.
        let is_kept = |leader: i32| {
            kept.get(&leader)
                .is_some_and(|start| table.get(&leader).is_none_or(|p| p.start == *start))
        };
        let is_orphan = top.parent == self.supervisor || self.is_orphan(top);
        is_orphan && (is_kept(top.session) || is_kept(top.group))
    }
}

/// The session's `/proc`.
#[derive(Debug)]
pub(crate) struct Proc {
    dir: OwnedFd,
}

impl Proc {
    pub(crate) fn open() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { dir: rustix::fs::openat(CWD, "/proc", flags, Mode::empty())? })
    }

    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// All processes. One that ends meanwhile may be missing.
    pub(crate) fn table(&self) -> io::Result<Table> {
        let mut table = Table::new();
        let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
        rustix::fs::seek(&self.dir, rustix::fs::SeekFrom::Start(0))?;
        let mut names = RawDir::new(&self.dir, &mut buffer);
        while let Some(name) = names.next() {
            let pid = name?.file_name().to_str().ok().and_then(|n| n.parse().ok());
            if let Some(process) = pid.and_then(|pid| self.process(pid)) {
                table.insert(process.pid, process);
            }
        }
        Ok(table)
    }

    /// Whether the process has children; `None` where the kernel can't tell.
    pub(crate) fn children(&self, pid: i32) -> Option<Vec<i32>> {
        let text = self.read(&format!("{pid}/task/{pid}/children"))?;
        let text = String::from_utf8(text).ok()?;
        Some(text.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect())
    }

    pub(crate) fn process(&self, pid: i32) -> Option<Process> {
        parse_stat(&self.read(&format!("{pid}/stat"))?)
    }

    /// Whether a process is in a read(2) of the same file as `file`. The caller has the rights to ask.
    pub(crate) fn reads_from(&self, pid: Pid, file: impl AsFd) -> bool {
        let pid = pid.as_raw_pid();
        let call = self.read(&format!("{pid}/syscall"));
        let descriptor = call.as_deref().and_then(parse_read_call);
        let theirs = descriptor.and_then(|number| {
            let path = format!("{pid}/fd/{number}");
            rustix::fs::statat(&self.dir, path, AtFlags::empty()).ok()
        });
        match (theirs, rustix::fs::fstat(file)) {
            (Some(theirs), Ok(ours)) => {
                (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)
            }
            _ => false,
        }
    }

    /// Whether a process is in an open(2) of this path, which it may feign. The caller has the rights to ask.
    pub(crate) fn opens(&self, pid: Pid, path: &[u8]) -> bool {
        let pid = pid.as_raw_pid();
        let call = self.read(&format!("{pid}/syscall"));
        let Some(address) = call.as_deref().and_then(parse_open_call) else { return false };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let memory = rustix::fs::openat(&self.dir, format!("{pid}/mem"), flags, Mode::empty());
        // With the NUL behind it.
        let mut found = vec![0xff; path.len() + 1];
        memory.is_ok_and(|memory| rustix::io::pread(memory, &mut found, address) == Ok(found.len()))
            && found.split_last() == Some((&0, path))
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, path, flags, Mode::empty()).ok()?;
        let mut text = vec![0; 4096];
        let length = rustix::io::read(&file, &mut text).ok()?;
        text.truncate(length);
        Some(text)
    }

    /// Signals exactly this process; nothing where it is gone.
    pub(crate) fn signal(&self, rights: Rights, process: Process, signal: Signal) {
        let Some(pid) = Pid::from_raw(process.pid) else { return };
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { return };
        // The number may have a new owner by now; the descriptor is of whoever has it.
        if self.process(process.pid).is_some_and(|now| now.start == process.start) {
            signal_by(rights, pidfd, signal);
        }
    }
}

/// Signals a process by its descriptor; nothing where it is gone.
pub(crate) fn signal_by(rights: Rights, pidfd: impl AsFd, signal: Signal) {
    // ESRCH alone can come, and then there is nobody to signal.
    let _ = rights.with(CapabilitySet::KILL, || rustix::process::pidfd_send_signal(pidfd, signal));
}

/// The descriptor that is read, from `/proc/PID/syscall`: a number, then arguments in hexadecimal.
fn parse_read_call(text: &[u8]) -> Option<u32> {
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    (words.next()?.parse() == Ok(libc::SYS_read)).then_some(())?;
    u32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()
}

/// Where the path is that is opened.
fn parse_open_call(text: &[u8]) -> Option<u64> {
    let mut words = std::str::from_utf8(text).ok()?.split(' ');
    let number = words.next()?.parse::<libc::c_long>().ok()?;
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_open {
        return u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    }
    (number == libc::SYS_openat).then_some(())?;
    u64::from_str_radix(words.nth(1)?.strip_prefix("0x")?, 16).ok()
}

/// Reads `/proc/PID/stat`. The name in it may hold anything, so what counts stands after its last
/// parenthesis.
fn parse_stat(text: &[u8]) -> Option<Process> {
    let text = String::from_utf8_lossy(text);
    let pid = text.split(' ').next()?.parse().ok()?;
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    // proc(5) counts from 1 and the state is its third field.
    let number = |field: usize| fields.get(field - 3)?.parse::<i32>().ok();
    Some(Process {
        pid,
        parent: number(4)?,
        group: number(5)?,
        session: number(6)?,
        start: fields.get(22 - 3)?.parse().ok()?,
        dead: matches!(*fields.first()?, "Z" | "X"),
    })
}

#[cfg(test)]
mod test {
    use super::*;

    const TREE: Tree = Tree { supervisor: 10, shell: 11, orphaned: None };

    fn process(pid: i32, parent: i32) -> Process {
        Process { pid, parent, group: 10, session: 10, start: 1, dead: false }
    }

    fn table(processes: &[Process]) -> Table {
        let base = [process(1, 0), process(10, 1), process(11, 10)];
        base.iter().chain(processes).map(|p| (p.pid, *p)).collect()
    }

    fn victims(processes: &[Process], kept: &[(i32, u64)]) -> Vec<i32> {
        let kept = kept.iter().copied().collect();
        TREE.victims(&table(processes), &kept).iter().map(|p| p.pid).collect()
    }

    #[test]
    fn children_and_orphans_are_victims() {
        let all = [process(20, 11), process(21, 20), process(22, 10)];
        assert_eq!(victims(&all, &[]), [20, 21, 22]);
    }

    #[test]
    fn other_trees_are_not() {
        let all = [process(20, 1), process(30, 12), process(12, 1)];
        assert_eq!(victims(&all, &[]), []);
    }

    #[test]
    fn without_its_supervisor_a_tree_has_the_orphans_of_its_session() {
        let tree = Tree { supervisor: 11, shell: 11, orphaned: Some(10) };
        let other = Process { session: 30, ..process(23, 1) };
        let all = [process(11, 1), process(20, 11), process(21, 1), process(22, 21), other];
        let table = all.iter().map(|p| (p.pid, *p)).collect();
        let members: Vec<i32> = tree.members(&table).iter().map(|p| p.pid).collect();
        assert_eq!(members, [20, 21, 22]);
    }

    #[test]
    fn of_a_program_all_but_the_supervisor_are_victims() {
        let tree = Tree { supervisor: 10, shell: 10, orphaned: None };
        let all = table(&[process(20, 11), process(21, 10)]);
        let victims: Vec<i32> = tree.victims(&all, &Kept::new()).iter().map(|p| p.pid).collect();
        assert_eq!(victims, [11, 20, 21]);
    }

    #[test]
    fn kept_processes_and_what_is_below_them_are_spared() {
        let all = [process(20, 11), process(21, 20), process(22, 21), process(23, 11)];
        assert_eq!(victims(&all, &[(20, 1)]), [23]);
    }

    #[test]
    fn a_pid_that_was_used_again_is_not_kept() {
        assert_eq!(victims(&[process(20, 11)], &[(20, 99)]), [20]);
    }

    #[test]
    fn an_orphan_follows_its_kept_leader() {
        let led = |pid| Process { session: 40, group: 40, ..process(pid, 10) };
        // The leader is dead in the first case and alive in the second.
        assert_eq!(victims(&[led(21)], &[(40, 1)]), []);
        assert_eq!(victims(&[led(21), process(40, 10)], &[(40, 1)]), []);
        // A number that is another's now.
        let other = Process { start: 2, ..led(40) };
        assert_eq!(victims(&[led(21), other], &[(40, 1)]), [21, 40]);
    }

    #[test]
    fn the_dead_are_no_victims() {
        assert_eq!(victims(&[Process { dead: true, ..process(20, 11) }], &[]), []);
    }

    #[test]
    fn a_circle_ends() {
        assert_eq!(victims(&[process(20, 21), process(21, 20)], &[]), []);
    }

    #[test]
    fn a_name_can_not_forge_fields() {
        let line = b"42 (a) Z 1 1 1) S 7 8 9 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 555 0 0";
        let expected =
            Process { pid: 42, parent: 7, group: 8, session: 9, start: 555, dead: false };
        assert_eq!(parse_stat(line), Some(expected));
    }

    #[test]
    fn calls_that_read() {
        assert_eq!(parse_read_call(b"0 0xff 0x7ffd 0x1 0x0 0x0 0x0 0x7ffd 0x7f03\n"), Some(255));
        assert_eq!(parse_read_call(b"61 0xff 0x0"), None);
        assert_eq!(parse_read_call(b"running\n"), None);
    }

    #[test]
    fn calls_that_open() {
        let call = format!("{} 0xffffff9c 0x7ffd12 0x0 0x0 0x0 0x0 0x1 0x2\n", libc::SYS_openat);
        assert_eq!(parse_open_call(call.as_bytes()), Some(0x7f_fd12));
        assert_eq!(parse_open_call(b"61 0xff 0x0"), None);
        assert_eq!(parse_open_call(b"running\n"), None);
    }

    #[test]
    fn own_process_is_in_the_table() {
        let own = rustix::process::getpid().as_raw_pid();
        let proc = Proc::open().unwrap();
        assert_eq!(proc.table().unwrap().get(&own).map(|p| p.pid), Some(own));
    }
}
