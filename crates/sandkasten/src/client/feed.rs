//! stdin of this process on its way into a box: a request whose body is stdin as it comes.
//!
//! Invariant: what is not needed any more is not read, so that it is still there for who comes next:
//! each read is preceded by a look at whether the command has ended.

use std::io::{self, IsTerminal, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, fstat, major, minor};
use rustix::io::Errno;

use super::Client;
use crate::failure::{Result, Tried};
use crate::{output, terminal};

/// Read at once.
const PIECE_BYTES: usize = 64 << 10;

/// A thread that gives a command this process's stdin.
#[derive(Debug)]
pub(crate) struct Feeder {
    /// Closed: no more is needed.
    stop: OwnedFd,
    connection: TcpStream,
}

/// What there is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Input,
    /// The daemon answered before the end: it takes no more.
    Answered,
    Stopped,
}

impl Feeder {
    /// Whether there is a stdin that can have something in it.
    pub(crate) fn is_needed() -> bool {
        let stdin = io::stdin();
        if stdin.is_terminal() {
            return !terminal::is_in_background();
        }
        let Ok(found) = fstat(&stdin) else { return false };
        let kind = FileType::from_raw_mode(found.st_mode);
        let is_null = kind == FileType::CharacterDevice
            && (major(found.st_rdev), minor(found.st_rdev)) == (1, 3);
        !is_null
    }

    /// Gives stdin to `path` from now on, and its end.
    pub(crate) fn start(client: Client, path: &str) -> Result<Self> {
        let tried = || "stdin".to_owned();
        let (stopped, stop) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).tried(tried)?;
        let connection = client.handle()?;
        let path = format!("{path}?eof=true");
        std::thread::spawn(move || {
            if let Err(why) = feed(client, &path, &stopped) {
                output::progress(&format!("warning: stdin: {}", why.message));
            }
        });
        Ok(Self { stop, connection })
    }

    /// The command has ended. The thread is not waited for: where another process reads the same stdin,
    /// a read may find nothing of what poll(2) promised, and wait.
    pub(crate) fn stop(self) {
        drop(self.stop);
        // It may hang in a write that the command never takes.
        self.connection.shutdown(Shutdown::Both).ok();
    }
}

fn feed(mut client: Client, path: &str, stopped: &OwnedFd) -> Result<()> {
    let tried = || "daemon".to_owned();
    let head = client.request_in_pieces(path);
    let mut piece = vec![0; PIECE_BYTES];
    let mut sent = client.connection.get_mut().write_all(head.as_bytes());
    while sent.is_ok() {
        match ready(stopped, client.connection.get_ref()).tried(tried)? {
            Ready::Stopped => return Ok(()),
            Ready::Answered => break,
            Ready::Input => {}
        }
        let bytes = match read(&mut piece) {
            Ok(Some(length)) => piece.get(..length).unwrap_or_default(),
            Ok(None) => continue,
            Err(why) => {
                output::progress(&format!("warning: stdin: {why}"));
                &[]
            }
        };
        sent = send(client.connection.get_mut(), bytes);
        if bytes.is_empty() {
            break;
        }
    }
    // A connection that is cut: whoever waits for the command says why.
    let Ok(head) = client.head() else { return Ok(()) };
    let Ok(body) = client.body(head.length) else { return Ok(()) };
    let answer = client.answer(head, body);
    match answer.status {
        // The command, its session or both have ended.
        404 | 409 | 410 => Ok(()),
        _ => answer.succeeded().map(drop),
    }
}

/// One chunk; the last is empty.
fn send(connection: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    connection.write_all(&chunk)
}

fn ready(stopped: &OwnedFd, connection: &TcpStream) -> io::Result<Ready> {
    let stdin = io::stdin();
    let mut fds = [
        PollFd::new(stopped, PollFlags::IN),
        PollFd::new(connection, PollFlags::IN),
        PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN),
    ];
    loop {
        match poll(&mut fds, None) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(why) => return Err(why.into()),
        }
    }
    let [stop, answer, _input] = fds.map(|fd| !fd.revents().is_empty());
    Ok(match (stop, answer) {
        (true, _) => Ready::Stopped,
        (false, true) => Ready::Answered,
        (false, false) => Ready::Input,
    })
}

/// Bytes of stdin, 0 at its end. `None`: nothing after all.
fn read(piece: &mut [u8]) -> io::Result<Option<usize>> {
    // To read from the terminal of another job would stop this one.
    if io::stdin().is_terminal() && terminal::is_in_background() {
        return Ok(Some(0));
    }
    match rustix::io::read(io::stdin(), piece) {
        Ok(length) => Ok(Some(length)),
        Err(Errno::INTR | Errno::AGAIN) => Ok(None),
        // A terminal that is gone.
        Err(Errno::IO) => Ok(Some(0)),
        Err(why) => Err(why.into()),
    }
}
