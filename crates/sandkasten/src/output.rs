//! The one place that writes to stdout and stderr.
//!
//! People get lines and tables, programs get JSON. A text that came from elsewhere is escaped
//! before it reaches a terminal as part of a line or table, so that no name can move the cursor;
//! what a command in a box wrote is passed through as it is.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;

use crate::failure::Failure;
use crate::terminal;

/// Where a command's words go.
#[derive(Debug)]
pub(crate) struct Output {
    format: Format,
    /// The reader of stdout is gone; what else there is to say to him is dropped.
    closed: Cell<bool>,
}

/// For whom the output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Human,
    Json,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format, closed: Cell::new(false) }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// A result: `human` for people, `value` for programs.
    pub(crate) fn result(&self, value: &impl Serialize, human: impl FnOnce() -> String) {
        match self.format {
            Format::Human => self.line(&human()),
            Format::Json => self.json(value),
        }
    }

    /// One line on stdout.
    pub(crate) fn line(&self, text: &str) {
        self.write(text.as_bytes());
        self.write(b"\n");
    }

    /// One document on stdout.
    pub(crate) fn json(&self, value: &impl Serialize) {
        let text = if io::stdout().is_terminal() {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        self.line(&text.unwrap_or_else(|why| format!("{{\"error\":\"{why}\"}}")));
    }

    /// One event of many, on a line of stdout. False: nobody reads them.
    pub(crate) fn event(&self, value: &serde_json::Value) -> bool {
        self.write(format!("{value}\n").as_bytes())
    }

    /// Bytes on stdout, at once. False: nobody reads them.
    pub(crate) fn write(&self, bytes: &[u8]) -> bool {
        if !self.closed.get() {
            self.closed.set(write_all(io::stdout(), bytes).is_err());
        }
        !self.closed.get()
    }

    /// Bytes of a command's stderr on ours.
    pub(crate) fn write_stderr(&self, bytes: &[u8]) {
        // Where nobody reads them the command goes on, as with any other program.
        write_all(io::stderr(), bytes).ok();
    }

    /// Something to know beside the result, on stderr.
    pub(crate) fn note(&self, text: &str) {
        progress(text);
    }

    pub(crate) fn warning(&self, text: &str) {
        to_stderr(&format!("warning: {}\n", escaped(text)));
    }

    pub(crate) fn failure(&self, failure: &Failure) {
        if self.is_json() {
            let error = serde_json::json!({"error": failure.message, "hint": failure.hint});
            return to_stderr(&format!("{error}\n"));
        }
        let mut text = format!("error: {}\n", escaped(&failure.message));
        if let Some(hint) = &failure.hint {
            text.push_str(&format!("hint: {}\n", escaped(hint)));
        }
        to_stderr(&text);
    }

    /// Help, version, or a wrong command line.
    pub(crate) fn usage(usage: &clap::Error) -> ExitCode {
        // Where even this can't be written there is nobody to tell.
        usage.print().ok();
        ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2))
    }
}

/// Writes past std's buffers, which are empty: whoever shares the descriptor may have made it
/// non-blocking.
fn write_all(to: impl AsFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(&to, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut room = [PollFd::new(&to, PollFlags::OUT)];
                match poll(&mut room, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(why) => return Err(why),
                }
            }
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

/// One line of progress on stderr; for callbacks that have no [`Output`].
pub(crate) fn progress(text: &str) {
    to_stderr(&format!("{}\n", escaped(text)));
}

/// Where a message can't be written, there is nobody to tell.
fn to_stderr(text: &str) {
    // A raw terminal returns to the begin of the line only when it is told to.
    let text = if terminal::is_raw() { text.replace('\n', "\r\n") } else { text.to_owned() };
    write_all(io::stderr(), text.as_bytes()).ok();
}

/// Control characters made visible; line breaks and all that is printable stay.
pub(crate) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let moves_text = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if (c.is_control() && c != '\n') || moves_text {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Columns as wide as their widest cell, two spaces between them.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    fitted(head, rows, &[], None)
}

/// The same within so many characters a line: columns that are `soft` are cut, the first of them first,
/// then the ends of lines.
pub(crate) fn fitted(
    head: &[&str],
    rows: &[Vec<String>],
    soft: &[usize],
    line_max: Option<usize>,
) -> String {
    let clean = |cell: &String| escaped(cell).replace('\n', "\\n");
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(clean).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().chain([&head]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line_max = line_max.unwrap_or(usize::MAX);
    for column in soft {
        let all = widths.iter().sum::<usize>() + 2 * head.len().saturating_sub(1);
        let least = head.get(*column).map_or(0, |name| name.chars().count());
        if let Some(width) = widths.get_mut(*column) {
            *width = width.saturating_sub(all.saturating_sub(line_max)).max(least);
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, &width)| format!("{:<width$}", cut(cell, width)));
        cut(cells.collect::<Vec<_>>().join("  ").trim_end(), line_max).trim_end().to_owned()
    };
    [&head].into_iter().chain(&rows).map(line).collect::<Vec<_>>().join("\n")
}

/// The begin of a text, so many characters with the `…` that says so.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let begin: String = text.chars().take(width.saturating_sub(1)).collect();
    begin + "…"
}

/// Bytes in the unit that suits them.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(*unit);
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_cannot_move_the_cursor() {
        let text = table(&["NAME"], &[vec!["a\u{1b}[2Jb\r\n\u{202e}c\u{9b}1m".into()]]);
        assert_eq!(text, "NAME\na\\u{1b}[2Jb\\u{d}\\n\\u{202e}c\\u{9b}1m");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "long cell".into()], vec!["longer".into(), "b".into()]];
        assert_eq!(table(&["X", "Y"], &rows), "X       Y\na       long cell\nlonger  b");
    }

    #[test]
    fn soft_columns_give_way() {
        let rows = [vec!["abcdef".into(), "ghijkl".into(), "mnopqrst".into()]];
        let within = |width| fitted(&["X", "Y", "Z"], &rows, &[2, 0], Some(width));
        assert_eq!(within(24), "X       Y       Z\nabcdef  ghijkl  mnopqrst");
        assert_eq!(within(20), "X       Y       Z\nabcdef  ghijkl  mno…");
        assert_eq!(within(14), "X    Y       Z\nab…  ghijkl  …");
        assert_eq!(within(8), "X  Y   …\n…  ghij…");
    }

    #[test]
    fn sizes_have_one_decimal() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(10 << 30), "10.0 GiB");
    }
}
