//! System calls without a safety net: the probe tries what no wrapper would let it try.
//!
//! Invariant: the one file of the probe with `unsafe`. A call gets integers, or pointers to memory
//! that outlives it.
#![expect(unsafe_code, reason = "the probe makes calls that have no safe wrapper")]

use std::io;

/// A raw system call; its result or the error.
pub fn call(number: i64, arguments: [i64; 6]) -> io::Result<i64> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: pointers among the arguments lead to `Memory`, which the caller keeps alive; calls
    // that return twice (fork, vfork, clone) go through `fork` and `clone` below.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Which side of a fork this is.
pub enum Side {
    Parent(i32),
    Child,
}

/// fork(2).
pub fn fork() -> io::Result<Side> {
    // SAFETY: the probe has one thread here, so the child may go on as if alone.
    let pid = unsafe { libc::fork() };
    side(i64::from(pid))
}

/// clone(2) with flags and without a new stack, as a fork.
pub fn clone(flags: i64) -> io::Result<Side> {
    let flags = flags | i64::from(libc::SIGCHLD);
    // SAFETY: without CLONE_VM and with a null stack the child is a copy, as after fork.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    side(pid)
}

fn side(pid: i64) -> io::Result<Side> {
    match pid {
        0 => Ok(Side::Child),
        pid if pid > 0 => Ok(Side::Parent(i32::try_from(pid).unwrap_or(i32::MAX))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends this process at once: no handlers, no flush.
pub fn exit(code: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

/// Waits for a child; its wait status.
pub fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is written before the call returns.
    let done = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

/// getpid(2) by the 32-bit gate.
pub fn int80() -> i64 {
    let result: i64;
    // SAFETY: int 0x80 with number 20 (getpid) touches no memory; rax, and the registers that the
    // gate may clobber, are declared.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") 20i64 => result,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    result
}

/// Maps fresh memory that is never freed; nothing is reserved for it.
pub fn map(bytes: usize, protection: i32) -> io::Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a null hint; the kernel picks a free range.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start.cast()) }
}

/// Asks for small pages in a mapping.
pub fn small_pages(start: *mut u8, bytes: usize) -> io::Result<()> {
    // SAFETY: the range is a mapping of `map`.
    let result = unsafe { libc::madvise(start.cast(), bytes, libc::MADV_NOHUGEPAGE) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Writes to one byte of a mapping.
pub fn touch(start: *mut u8, offset: usize) {
    // SAFETY: the caller stays within a writable mapping of `map`.
    let place = unsafe { start.add(offset) };
    // SAFETY: as above; volatile, so that the write happens.
    unsafe { place.write_volatile(1) };
}

/// Reads one byte of a mapping.
pub fn look(start: *mut u8, offset: usize) -> u8 {
    // SAFETY: the caller stays within a readable mapping of `map`.
    let place = unsafe { start.add(offset) };
    // SAFETY: as above; volatile, so that the read happens.
    unsafe { place.read_volatile() }
}

/// Makes the kernel answer some system calls with an error, for this process and all that it
/// executes. Takes CAP_SYS_ADMIN.
pub fn refuse(calls: &[(u32, u16)]) -> io::Result<()> {
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    let statement = |code: u32, k: u32| filter(code, k, 0, 0);
    // The number is the first field of struct seccomp_data.
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &(number, errno) in calls {
        program.push(filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1));
        program.push(statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | u32::from(errno),
        ));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, ALLOW));
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let header = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let address = &raw const header as i64;
    call(libc::SYS_seccomp, [i64::from(libc::SECCOMP_SET_MODE_FILTER), 0, address, 0, 0, 0])
        .map(drop)
}

fn filter(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    // Codes are small by definition.
    libc::sock_filter { code: (code & 0xffff) as u16, jt, jf, k }
}
