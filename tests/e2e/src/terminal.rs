//! A terminal for a program: a real PTY, with this test in front of it.
//!
//! Invariant: whatever is waited for comes within [`PATIENCE`], or the test fails with all that was
//! on the screen.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::wait;

const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal and the program on it.
#[derive(Debug)]
pub struct Terminal {
    master: OwnedFd,
    /// Open here too, so that the terminal outlives the program.
    slave: OwnedFd,
    child: Child,
    screen: Vec<u8>,
    seen: usize,
}

impl Terminal {
    /// Starts a program as the leader of a session on a terminal of that size.
    ///
    /// # Panics
    /// Where it can't be started.
    #[must_use]
    pub fn start(command: &Command, rows: u16, cols: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a PTY");
        grantpt(&master).expect("grantpt");
        unlockpt(&master).expect("unlockpt");
        let name = ptsname(&master, Vec::new()).expect("ptsname");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let slave = rustix::fs::open(name, flags, Mode::empty()).expect("the terminal");
        tcsetwinsize(&slave, window(rows, cols)).expect("set the size");
        let end = || Stdio::from(slave.try_clone().expect("dup"));
        // It execs the program; only so has the program a terminal that it gets signals from.
        let mut leader = Command::new("setsid");
        leader.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => leader.env(name, value),
                None => leader.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            leader.current_dir(dir);
        }
        let child = leader.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid");
        Self { master, slave, child, screen: Vec::new(), seen: 0 }
    }

    /// The program's pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types.
    ///
    /// # Panics
    /// Where the terminal takes nothing.
    pub fn types(&self, text: &str) {
        let written = rustix::io::write(&self.master, text.as_bytes()).expect("type");
        assert_eq!(written, text.len());
    }

    /// # Panics
    /// Where there is no such size.
    pub fn resize(&self, rows: u16, cols: u16) {
        tcsetwinsize(&self.master, window(rows, cols)).expect("set the size");
    }

    /// Waits until a text is on the screen, behind what was waited for before.
    ///
    /// # Panics
    /// Where it does not come.
    #[track_caller]
    pub fn shows(&mut self, text: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let unseen = self.screen.get(self.seen..).unwrap_or_default();
            let found = unseen.windows(text.len()).position(|part| part == text.as_bytes());
            if let Some(at) = found {
                self.seen += at + text.len();
                return;
            }
            assert!(self.read(end), "`{text}` does not come: {}", self.screen());
        }
    }

    /// All that was on the screen so far.
    #[must_use]
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen).into_owned()
    }

    /// Waits for the program's end; what it wrote before is on the screen then.
    ///
    /// # Panics
    /// Where it does not end.
    #[track_caller]
    pub fn ends(&mut self) -> ExitStatus {
        assert!(wait::ends_within(&self.child, PATIENCE), "it does not end: {}", self.screen());
        while self.read(Instant::now()) {}
        self.child.wait().expect("its end")
    }

    /// What the terminal does with what is typed.
    ///
    /// # Panics
    /// Never: it is open here.
    #[must_use]
    pub fn modes(&self) -> String {
        let Termios { input_modes, output_modes, control_modes, local_modes, .. } =
            tcgetattr(&self.slave).expect("tcgetattr");
        format!("{input_modes:?} {output_modes:?} {control_modes:?} {local_modes:?}")
    }

    /// False: nothing came.
    fn read(&mut self, end: Instant) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a short time");
        let mut fds = [PollFd::from_borrowed_fd(self.master.as_fd(), PollFlags::IN)];
        if poll(&mut fds, Some(&left)).expect("poll") == 0 {
            return false;
        }
        let mut bytes = [0; 4096];
        let length = rustix::io::read(&self.master, &mut bytes).unwrap_or(0);
        self.screen.extend_from_slice(&bytes[..length]);
        length > 0
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Of one that has ended there is nothing to end.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn window(ws_row: u16, ws_col: u16) -> Winsize {
    Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 }
}
