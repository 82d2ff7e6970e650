//! Searches files for lines. Hidden files and `.git` are files like others; binary files are skipped.
//!
//! Invariants: a file is opened only where it is a regular one, and no more is read of it than it had at
//! that moment, so that none that grows or blocks holds the search up. What is found in a file is told
//! once the file is known to be text.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};

use grep_regex::RegexMatcher;
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch,
};
use rustix::fs::{Mode, OFlags};
use sandkasten_protocol::FileFault;
use sandkasten_protocol::work::{Item, Kind, Match, Search};

use crate::channel::Channel;
use crate::done::Done;
use crate::fault::Failure;
use crate::list::passable;
use crate::meta::kind;
use crate::pattern::{self, Include};
use crate::root::Root;
use crate::walk::{Step, Walk};

/// Bytes of a line that are told.
const TEXT_BYTES_MAX: usize = 4096;
/// Bytes of a line that a match is looked for in: a file with a longer one is none of text.
const LINE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Lines before and after a match.
const CONTEXT_MAX: usize = 100;

pub(crate) fn grep(
    root: &Root,
    path: &[u8],
    search: &Search,
    channel: &mut dyn Channel,
) -> Result<Done, Failure> {
    let include = Include::new(&search.include).map_err(|_why| FileFault::InvalidPath)?;
    let mut grep = Grep::new(search).map_err(|_why| FileFault::InvalidPath)?;
    let top = root.open(path, OFlags::RDONLY)?;
    if kind(rustix::fs::fstat(&top)?.st_mode) == Kind::File {
        grep.file(top, &[], channel)?;
        return Ok(Done { truncated: grep.has_more });
    }
    let mut walk = Walk::new(top, usize::MAX)?;
    while let Some(step) = walk.next_step()? {
        channel.pulse()?;
        let Step::Entry(found) = step else { continue };
        if found.is_dir() {
            passable(walk.enter(&found)).map_err(|fault| Failure::at(fault, &found.path))?;
        } else if found.kind() == Kind::File && include.has(&found.name, &found.path) {
            let Some(file) = walk.dir().and_then(|dir| open(dir, &found.name)) else { continue };
            grep.file(file, &found.path, channel)?;
            if grep.has_more {
                break;
            }
        }
    }
    Ok(Done { truncated: grep.has_more || walk.is_cut() })
}

/// A regular file, if it can be read at once.
fn open(dir: BorrowedFd<'_>, name: &[u8]) -> Option<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, name, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    (kind(stat.st_mode) == Kind::File).then_some(file)
}

#[derive(Debug)]
struct Grep {
    matcher: RegexMatcher,
    searcher: Searcher,
    context: usize,
    /// Matches that may still be told.
    left: u64,
    /// There are more than were asked for.
    has_more: bool,
}

impl Grep {
    fn new(search: &Search) -> Result<Self, String> {
        let context = (search.context as usize).min(CONTEXT_MAX);
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .before_context(context)
            .after_context(context)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(LINE_BYTES_MAX))
            .build();
        let matcher = pattern::regex(search)?;
        Ok(Self { matcher, searcher, context, left: search.limit, has_more: false })
    }

    fn file(
        &mut self,
        file: OwnedFd,
        path: &[u8],
        channel: &mut dyn Channel,
    ) -> Result<(), Failure> {
        let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        let channel = RefCell::new(channel);
        let gone = RefCell::new(None);
        let reader = Reading { file: File::from(file).take(size), channel: &channel, gone: &gone };
        let mut found = Finding::new(path, self.context, self.left);
        let searched = self.searcher.search_reader(&self.matcher, reader, &mut found);
        if let Some(error) = gone.into_inner() {
            return Err(error.into());
        }
        // A file that can't be read to its end, or has too long a line, is skipped as a binary one.
        if searched.is_err() || found.is_binary {
            return Ok(());
        }
        self.left -= found.matches.len() as u64;
        self.has_more |= found.has_more;
        let channel = channel.into_inner();
        for one in found.matches {
            channel.tell(Item::Match(one))?;
        }
        Ok(())
    }
}

/// Reads a file and shows that it does.
struct Reading<'a, 'c> {
    file: io::Take<File>,
    channel: &'a RefCell<&'c mut dyn Channel>,
    /// Why nobody listens any more.
    gone: &'a RefCell<Option<io::Error>>,
}

impl Read for Reading<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Err(error) = self.channel.borrow_mut().pulse() {
            self.gone.replace(Some(error));
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.file.read(buffer)
    }
}

/// What is found in one file.
#[derive(Debug)]
struct Finding<'a> {
    path: &'a [u8],
    context: usize,
    left: u64,
    matches: Vec<Match>,
    /// The last lines, without a gap.
    recent: VecDeque<Vec<u8>>,
    last_line: u64,
    has_more: bool,
    is_binary: bool,
}

impl<'a> Finding<'a> {
    fn new(path: &'a [u8], context: usize, left: u64) -> Self {
        Self {
            path,
            context,
            left,
            matches: Vec::new(),
            recent: VecDeque::new(),
            last_line: 0,
            has_more: false,
            is_binary: false,
        }
    }

    /// Takes a line into the context of others. Gives what to tell of it.
    fn line(&mut self, line: u64, bytes: &[u8]) -> Vec<u8> {
        if line != self.last_line + 1 {
            self.recent.clear();
        }
        self.last_line = line;
        let text = text(bytes);
        let reach = line.saturating_sub(self.context as u64);
        for earlier in self.matches.iter_mut().rev().take_while(|one| one.line >= reach) {
            earlier.after.push(text.clone());
        }
        text
    }

    fn keep(&mut self, text: Vec<u8>) {
        self.recent.push_back(text);
        while self.recent.len() > self.context {
            self.recent.pop_front();
        }
    }

    /// Whether more lines are wanted.
    fn goes_on(&self) -> bool {
        let last = self.matches.last().map_or(0, |one| one.line);
        !self.has_more || self.last_line < last + self.context as u64
    }
}

impl Sink for &mut Finding<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        let line = found.line_number().unwrap_or(0);
        let text = self.line(line, found.bytes());
        if self.matches.len() as u64 == self.left {
            self.has_more = true;
        } else {
            let before = self.recent.iter().cloned().collect();
            let (path, after) = (self.path.to_vec(), Vec::new());
            self.matches.push(Match { path, line, text: text.clone(), before, after });
        }
        self.keep(text);
        Ok(self.goes_on())
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, io::Error> {
        let text = self.line(context.line_number().unwrap_or(0), context.bytes());
        self.keep(text);
        Ok(self.goes_on())
    }

    fn binary_data(&mut self, _: &Searcher, _offset: u64) -> Result<bool, io::Error> {
        self.is_binary = true;
        Ok(false)
    }

    fn finish(&mut self, _: &Searcher, end: &SinkFinish) -> Result<(), io::Error> {
        self.is_binary |= end.binary_byte_offset().is_some();
        Ok(())
    }
}

/// A line without its end.
fn text(line: &[u8]) -> Vec<u8> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.get(..TEXT_BYTES_MAX).unwrap_or(line).to_vec()
}
