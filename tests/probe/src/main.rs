//! What the escape tests run inside a session: a static program that tries things and says what
//! came of them.
//!
//! Each argument is a step, `CALL ARGUMENT…`; each prints one line, `ok`, `ok VALUE` or the name of
//! the error. Steps share one process, so that a descriptor or an identity of one is there for the
//! next. Invariant: a step judges nothing; what a result means is the test's business.
//!
//! ```text
//! sys NAME ARG…        a raw system call; ARG is a number, s:TEXT (a C string), buf, iov, or $ (the last result)
//! open PATH r|w        open(2)
//! read PATH            the file's text, on one line
//! write PATH TEXT      write to a file that exists
//! link PATH            readlink(2)
//! ls PATH              names, sorted
//! status FIELD         a field of /proc/self/status
//! fds                  what the descriptors above 2 lead to
//! clone FLAGS          clone(2) as a fork
//! child STEP           the step in a child: `exit N` or `signal N`
//! int80, x32           getpid(2) by another gate
//! breakout             the classic way out of a chroot; then the names in `/`
//! threads N            that many threads, joined
//! spawn PROGRAM ARG…   its exit code
//! zombies N            that many orphans that end at once
//! bomb SECONDS         forks as fast as it goes; how many there were
//! burn SECONDS N       N busy processes
//! eat KIND MIB         memory of a kind (see `eat`)
//! fill PATH MIB        a file of that size
//! ```
//!
//! On the host, `probe --without CALL=ERRNO,… PROGRAM ARG…` runs a program that the kernel refuses some
//! system calls, as an older kernel or a stricter host would.

mod eat;
mod load;
mod sys;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, calls, program, arguments @ ..] = words.as_slice()
        && flag == "--without"
    {
        let error = without(calls, program, arguments);
        eprintln!("probe: {error}");
        return ExitCode::from(126);
    }
    let mut memory = Memory::default();
    for step in words {
        println!("{}", perform(&step, &mut memory));
    }
    ExitCode::SUCCESS
}

/// Becomes a program that is refused some calls; only comes back where that fails.
fn without(calls: &str, program: &str, arguments: &[String]) -> io::Error {
    let mut refused = Vec::new();
    for word in calls.split(',') {
        let (name, errno) = word.split_once('=').unwrap_or((word, "1"));
        let (Some(number), Ok(errno)) = (number_of(name), errno.parse()) else {
            return io::Error::other(format!("not CALL=ERRNO: {word}"));
        };
        refused.push((u32::try_from(number).unwrap_or(u32::MAX), errno));
    }
    match sys::refuse(&refused) {
        Ok(()) => std::os::unix::process::CommandExt::exec(Command::new(program).args(arguments)),
        Err(error) => error,
    }
}

/// What steps hand on to each other, and what their pointers lead to.
struct Memory {
    last: i64,
    texts: Vec<Box<[u8]>>,
    buffer: Box<[u64; 512]>,
    vector: Box<[i64; 2]>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { last: 0, texts: Vec::new(), buffer: Box::new([0; 512]), vector: Box::new([0; 2]) }
    }
}

fn perform(step: &str, memory: &mut Memory) -> String {
    let words: Vec<&str> = step.split(' ').collect();
    let result = match words.as_slice() {
        ["child", ..] => child(step.strip_prefix("child ").unwrap_or_default(), memory),
        words => run(words, memory),
    };
    match result {
        Ok(text) if text.is_empty() => "ok".to_owned(),
        Ok(text) => format!("ok {}", text.replace('\n', "\\n")),
        Err(error) => name_of(&error),
    }
}

fn run(words: &[&str], memory: &mut Memory) -> io::Result<String> {
    match *words {
        ["sys", name, ref arguments @ ..] => system_call(name, arguments, memory),
        ["open", path, how] => {
            let write = how == "w";
            fs::File::options().read(!write).write(write).open(path).map(|_| String::new())
        }
        ["read", path] => fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        ["write", path, text] => {
            let file = fs::File::options().write(true).open(path);
            file.and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
                .map(|()| String::new())
        }
        ["link", path] => fs::read_link(path).map(|target| target.to_string_lossy().into_owned()),
        ["ls", path] => names(path),
        ["status", field] => status(field),
        ["fds"] => descriptors(),
        ["clone", flags] => fork_with(|| sys::clone(number(flags))),
        ["int80"] => Ok(sys::int80().to_string()),
        ["x32"] => sys::call(libc::SYS_getpid | 0x4000_0000, [0; 6]).map(|pid| pid.to_string()),
        ["breakout"] => breakout(),
        ["threads", count] => load::threads(number(count)),
        ["spawn", program, ref arguments @ ..] => spawn(program, arguments),
        ["zombies", count] => load::zombies(number(count)),
        ["bomb", seconds] => load::bomb(number(seconds)),
        ["burn", seconds, count] => load::burn(number(seconds), number(count)),
        ["eat", kind, mib] => eat::eat(kind, number(mib)),
        ["fill", path, mib] => eat::fill(path, number(mib)),
        _ => Err(io::Error::other("no such step")),
    }
}

/// Performs a step in a child and says how the child ended.
fn child(step: &str, memory: &mut Memory) -> io::Result<String> {
    match sys::fork()? {
        sys::Side::Child => {
            let line = perform(step, memory);
            sys::exit(i32::from(!line.starts_with("ok")));
        }
        sys::Side::Parent(pid) => how_it_ended(sys::wait(pid)?),
    }
}

fn how_it_ended(status: i32) -> io::Result<String> {
    if libc::WIFSIGNALED(status) {
        return Ok(format!("signal {}", libc::WTERMSIG(status)));
    }
    Ok(format!("exit {}", libc::WEXITSTATUS(status)))
}

fn fork_with(start: impl FnOnce() -> io::Result<sys::Side>) -> io::Result<String> {
    match start()? {
        sys::Side::Child => sys::exit(0),
        sys::Side::Parent(pid) => how_it_ended(sys::wait(pid)?),
    }
}

fn system_call(name: &str, arguments: &[&str], memory: &mut Memory) -> io::Result<String> {
    let mut values = [0; 6];
    for (value, argument) in values.iter_mut().zip(arguments) {
        *value = memory.value(argument);
    }
    let number = number_of(name).ok_or_else(|| io::Error::other(format!("no call {name}")))?;
    let result = sys::call(number, values)?;
    memory.last = result;
    Ok(result.to_string())
}

impl Memory {
    fn value(&mut self, argument: &str) -> i64 {
        if let Some(text) = argument.strip_prefix("s:") {
            let text: Box<[u8]> = text.bytes().chain([0]).collect();
            let start = text.as_ptr() as i64;
            self.texts.push(text);
            return start;
        }
        match argument {
            "$" => self.last,
            "buf" => self.buffer.as_mut_ptr() as i64,
            "iov" => {
                *self.vector = [self.buffer.as_mut_ptr() as i64, 64];
                self.vector.as_mut_ptr() as i64
            }
            digits => number(digits),
        }
    }
}

fn number(text: &str) -> i64 {
    let hex = text.strip_prefix("0x").map(|digits| i64::from_str_radix(digits, 16));
    hex.unwrap_or_else(|| text.parse()).unwrap_or_else(|_| panic!("not a number: {text}"))
}

/// Numbers of the calls that tests name; a call without a name here is given as its number.
fn number_of(name: &str) -> Option<i64> {
    Some(match name {
        "ptrace" => libc::SYS_ptrace,
        "process_vm_readv" => libc::SYS_process_vm_readv,
        "process_vm_writev" => libc::SYS_process_vm_writev,
        "pidfd_open" => libc::SYS_pidfd_open,
        "pidfd_getfd" => libc::SYS_pidfd_getfd,
        "pidfd_send_signal" => libc::SYS_pidfd_send_signal,
        "kill" => libc::SYS_kill,
        "tgkill" => libc::SYS_tgkill,
        "prlimit64" => libc::SYS_prlimit64,
        "setpriority" => libc::SYS_setpriority,
        "ioprio_set" => libc::SYS_ioprio_set,
        "sched_setaffinity" => libc::SYS_sched_setaffinity,
        "sched_setscheduler" => libc::SYS_sched_setscheduler,
        "sched_setattr" => libc::SYS_sched_setattr,
        "kcmp" => libc::SYS_kcmp,
        "mount" => libc::SYS_mount,
        "umount2" => libc::SYS_umount2,
        "pivot_root" => libc::SYS_pivot_root,
        "fsopen" => libc::SYS_fsopen,
        "fsmount" => libc::SYS_fsmount,
        "fspick" => libc::SYS_fspick,
        "move_mount" => libc::SYS_move_mount,
        "open_tree" => libc::SYS_open_tree,
        "mount_setattr" => libc::SYS_mount_setattr,
        "chroot" => libc::SYS_chroot,
        "unshare" => libc::SYS_unshare,
        "setns" => libc::SYS_setns,
        "clone3" => libc::SYS_clone3,
        "mknod" => libc::SYS_mknod,
        "setresuid" => libc::SYS_setresuid,
        "setresgid" => libc::SYS_setresgid,
        "socket" => libc::SYS_socket,
        "sethostname" => libc::SYS_sethostname,
        "fsconfig" => libc::SYS_fsconfig,
        "seccomp" => libc::SYS_seccomp,
        "execveat" => libc::SYS_execveat,
        "bpf" => libc::SYS_bpf,
        "keyctl" => libc::SYS_keyctl,
        "io_uring_setup" => libc::SYS_io_uring_setup,
        "userfaultfd" => libc::SYS_userfaultfd,
        "perf_event_open" => libc::SYS_perf_event_open,
        "open_by_handle_at" => libc::SYS_open_by_handle_at,
        digits => return digits.parse().ok(),
    })
}

fn names(path: &str) -> io::Result<String> {
    let entries = fs::read_dir(path)?.flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names.join(" "))
}

fn status(field: &str) -> io::Result<String> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let value = line.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
    Ok(value.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn descriptors() -> io::Result<String> {
    let mut text = String::new();
    for number in 3..1024 {
        if let Ok(target) = fs::read_link(format!("/proc/self/fd/{number}")) {
            write!(text, "{number}={} ", target.display()).map_err(io::Error::other)?;
        }
    }
    Ok(text.trim_end().to_owned())
}

fn spawn(program: &str, arguments: &[&str]) -> io::Result<String> {
    let status = Command::new(program).args(arguments).status()?;
    Ok(format!("exit {}", status.code().unwrap_or(-1)))
}

/// A directory is kept open (as the working directory) while the root moves below it; from there
/// `..` leads past the new root.
fn breakout() -> io::Result<String> {
    let jail = "/tmp/breakout";
    fs::create_dir_all(jail)?;
    std::os::unix::fs::chroot(jail)?;
    for _ in 0..64 {
        std::env::set_current_dir("..")?;
    }
    std::os::unix::fs::chroot(".")?;
    names("/")
}

fn name_of(error: &io::Error) -> String {
    let Some(code) = error.raw_os_error() else { return format!("{error}") };
    let known = [
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::ESRCH, "ESRCH"),
        (libc::EIO, "EIO"),
        (libc::ENXIO, "ENXIO"),
        (libc::EBADF, "EBADF"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EFAULT, "EFAULT"),
        (libc::EBUSY, "EBUSY"),
        (libc::EEXIST, "EEXIST"),
        (libc::EXDEV, "EXDEV"),
        (libc::ENODEV, "ENODEV"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EISDIR, "EISDIR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EMFILE, "EMFILE"),
        (libc::ETXTBSY, "ETXTBSY"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::EROFS, "EROFS"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ELOOP, "ELOOP"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
        (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
    ];
    let name = known.iter().find(|(number, _)| *number == code).map(|(_, name)| (*name).to_owned());
    name.unwrap_or_else(|| format!("errno {code}"))
}
