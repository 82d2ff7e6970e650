//! The log of a daemon in the background: a file with a bound, and a few older ones beside it.
//!
//! ```text
//!   daemon.log ──full──> daemon.log.1 ──> daemon.log.2 ──> … ──> daemon.log.N ──> gone
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep {
    /// A file that would grow beyond this is put aside first.
    pub(crate) bytes_max: u64,
    /// How many are kept that were put aside.
    pub(crate) files: u64,
}

/// An open log.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    keep: Keep,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    bytes: u64,
    stdio: Stdio,
}

/// Whose stdout and stderr are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stdio {
    Own,
    /// The log's, so that what a panic says is found in it.
    Log,
}

impl LogFile {
    pub(crate) fn open(path: &Path, keep: Keep) -> io::Result<Self> {
        let file = open(path)?;
        let state = State { bytes: file.metadata()?.len(), file, stdio: Stdio::Own };
        Ok(Self { path: path.to_owned(), keep, state: Mutex::new(state) })
    }

    /// Lets stdout and stderr of the process go into the log from now on.
    pub(crate) fn take_stdio(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.stdio = Stdio::Log;
        point_stdio_at(&state.file)
    }

    fn write_line(&self, line: &[u8]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let length = line.len() as u64;
        if state.bytes > 0 && state.bytes + length > self.keep.bytes_max {
            // Where there is no room for another file, this one goes on.
            drop(self.put_aside(&mut state));
        }
        // What a panic said is not counted yet.
        let before = state.file.metadata().map_or(state.bytes, |file| file.len());
        state.bytes = before + length;
        if state.file.write_all(line).is_err() {
            // A half line would spoil the next one.
            drop(state.file.set_len(before));
            state.bytes = before;
        }
    }

    fn put_aside(&self, state: &mut State) -> io::Result<()> {
        let fresh = beside(&self.path, "new");
        let file = open(&fresh)?;
        for number in (1..self.keep.files).rev() {
            let older = beside(&self.path, &(number + 1).to_string());
            // One that is not there yet is none to be moved.
            drop(fs::rename(beside(&self.path, &number.to_string()), older));
        }
        fs::rename(&self.path, beside(&self.path, "1"))?;
        fs::rename(&fresh, &self.path)?;
        if state.stdio == Stdio::Log {
            point_stdio_at(&file)?;
        }
        (state.file, state.bytes) = (file, 0);
        Ok(())
    }
}

/// The subscriber writes one whole line at a time.
impl Write for &LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.write_line(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

fn point_stdio_at(file: &File) -> io::Result<()> {
    rustix::stdio::dup2_stdout(file)?;
    Ok(rustix::stdio::dup2_stderr(file)?)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_full_file_is_put_aside_and_the_oldest_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = LogFile::open(&path, Keep { bytes_max: 10, files: 2 }).unwrap();
        for line in ["one\n", "two\n", "three\n", "four\n", "five\n", "a line beyond the bound\n"] {
            (&log).write_all(line.as_bytes()).unwrap();
        }
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(text("log"), "a line beyond the bound\n");
        assert_eq!((text("log.1").as_str(), text("log.2").as_str()), ("four\nfive\n", "three\n"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_an_earlier_daemon_wrote_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "before\n").unwrap();
        let log = LogFile::open(&path, Keep { bytes_max: 10, files: 1 }).unwrap();
        (&log).write_all(b"after\n").unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("log.1")).unwrap(), "before\n");
        assert_eq!(fs::read_to_string(path).unwrap(), "after\n");
    }
}
