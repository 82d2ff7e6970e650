//! Memory of every kind that a session can get hold of.

use std::fs::File;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use crate::sys;

const MIB: usize = 1024 * 1024;
const PAGE: usize = 4096;

/// Takes up to `mib` of a kind of memory, holds it, and says how much it got.
///
/// anon, pagetables, memfd, pipe, unix, tcp, udp.
pub fn eat(kind: &str, mib: i64) -> io::Result<String> {
    let want = usize::try_from(mib).unwrap_or(0) * MIB;
    let got = match kind {
        "anon" => anonymous(want)?,
        "pagetables" => page_tables(want)?,
        "memfd" => memfd(want)?,
        "pipe" => pipes(want)?,
        "unix" => unix_sockets(want)?,
        "tcp" => tcp_sockets(want)?,
        "udp" => udp_sockets(want)?,
        _ => return Err(io::Error::other("no such kind")),
    };
    Ok((got / MIB).to_string())
}

/// Writes a file; what fitted where it does not fit.
pub fn fill(path: &str, mib: i64) -> io::Result<String> {
    let mut file = File::create(path)?;
    let block = vec![0x5a; MIB];
    for done in 0..mib {
        if let Err(error) = file.write_all(&block) {
            return Ok(format!("{done} {error}"));
        }
    }
    Ok(mib.to_string())
}

fn anonymous(want: usize) -> io::Result<usize> {
    let start = sys::map(want, libc::PROT_READ | libc::PROT_WRITE)?;
    for offset in (0..want).step_by(PAGE) {
        sys::touch(start, offset);
    }
    Ok(want)
}

/// Reading a page that was never written costs no page, only its table: 4 KiB for 2 MiB of range.
fn page_tables(want: usize) -> io::Result<usize> {
    const SPAN: usize = 2 * MIB;
    let range = want / PAGE * SPAN;
    let start = sys::map(range, libc::PROT_READ)?;
    sys::small_pages(start, range)?;
    for offset in (0..range).step_by(SPAN) {
        sys::look(start, offset);
    }
    Ok(want)
}

fn memfd(want: usize) -> io::Result<usize> {
    let name = b"eat\0";
    let fd = sys::call(libc::SYS_memfd_create, [name.as_ptr() as i64, 0, 0, 0, 0, 0])?;
    let path = format!("/proc/self/fd/{fd}");
    let mut file = File::options().write(true).open(path)?;
    let block = vec![0x5a; MIB];
    for _ in 0..want / MIB {
        file.write_all(&block)?;
    }
    Ok(want)
}

/// Fills one after the other until enough is held or no more are to be had.
fn hold<T>(want: usize, mut fresh: impl FnMut() -> io::Result<(T, usize)>) -> usize {
    let mut got = 0;
    let mut held = Vec::new();
    while got < want {
        match fresh() {
            Ok((item, bytes)) => {
                held.push(item);
                got += bytes;
                if bytes == 0 {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    // Held until the process ends.
    std::mem::forget(held);
    got
}

fn pipes(want: usize) -> io::Result<usize> {
    Ok(hold(want, || {
        let (reader, mut writer) = io::pipe()?;
        // The largest an unprivileged user may ask for; a smaller one does too.
        let _ = sys::call(
            libc::SYS_fcntl,
            [i64::from(writer.as_raw_fd()), i64::from(libc::F_SETPIPE_SZ), MIB as i64, 0, 0, 0],
        );
        set_nonblocking(writer.as_raw_fd())?;
        let bytes = write_until_full(&mut writer);
        Ok(((reader, writer), bytes))
    }))
}

fn unix_sockets(want: usize) -> io::Result<usize> {
    Ok(hold(want, || {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        let bytes = write_until_full(&mut &near);
        Ok(((near, far), bytes))
    }))
}

fn tcp_sockets(want: usize) -> io::Result<usize> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let got = hold(want, || {
        let near = TcpStream::connect(address)?;
        let (far, _) = listener.accept()?;
        near.set_nonblocking(true)?;
        let bytes = write_until_full(&mut &near);
        Ok(((near, far), bytes))
    });
    Ok(got)
}

fn udp_sockets(want: usize) -> io::Result<usize> {
    let sender = UdpSocket::bind("127.0.0.1:0")?;
    Ok(hold(want, || {
        let receiver = UdpSocket::bind("127.0.0.1:0")?;
        let address = receiver.local_addr()?;
        let block = vec![0x5a; 32 * 1024];
        let mut bytes = 0;
        // A full receiver drops without a word: what fits by default is known to be less.
        for _ in 0..16 {
            bytes += sender.send_to(&block, address).unwrap_or(0);
        }
        Ok((receiver, bytes))
    }))
}

fn write_until_full(to: &mut impl Write) -> usize {
    let block = vec![0x5a; 64 * 1024];
    let mut bytes = 0;
    while let Ok(count) = to.write(&block) {
        bytes += count;
    }
    bytes
}

fn set_nonblocking(fd: i32) -> io::Result<()> {
    let arguments = [i64::from(fd), i64::from(libc::F_SETFL), i64::from(libc::O_NONBLOCK), 0, 0, 0];
    sys::call(libc::SYS_fcntl, arguments).map(drop)
}
