//! Globs and regular expressions, parsed with limits on what they may cost.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use globset::{GlobBuilder, GlobMatcher};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use sandkasten_protocol::work::{Job, Search};

/// Bytes of a pattern.
const PATTERN_BYTES_MAX: usize = 4096;
/// Globs of one search.
const GLOBS_MAX: usize = 64;
/// Bytes that a compiled expression may have, and its caches.
const REGEX_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Refuses a job whose patterns are none, before anything is started for it. The text says why.
///
/// # Errors
/// What is wrong with which pattern.
pub fn check(job: &Job) -> Result<(), String> {
    match job {
        Job::Glob { pattern, .. } => glob(pattern).map(drop),
        Job::Grep { search, .. } => Include::new(&search.include).and(regex(search)).map(drop),
        Job::List { .. }
        | Job::Watch { .. }
        | Job::Copy { .. }
        | Job::RemoveTree { .. }
        | Job::ChmodTree { .. }
        | Job::Pack { .. }
        | Job::Unpack { .. } => Ok(()),
    }
}

/// A glob over paths: `*` and `?` stop at a slash, `**` does not.
pub(crate) fn glob(pattern: &[u8]) -> Result<GlobMatcher, String> {
    let text = std::str::from_utf8(pattern).map_err(|_cause| "the glob is not UTF-8")?;
    check_length("the glob", text)?;
    let glob = GlobBuilder::new(text).literal_separator(true).build();
    glob.map(|glob| glob.compile_matcher()).map_err(|error| format!("the glob: {error}"))
}

pub(crate) fn matches(glob: &GlobMatcher, path: &[u8]) -> bool {
    glob.is_match(Path::new(OsStr::from_bytes(path)))
}

/// The expression of a search, over lines.
pub(crate) fn regex(search: &Search) -> Result<RegexMatcher, String> {
    check_length("the pattern", &search.pattern)?;
    RegexMatcherBuilder::new()
        .case_insensitive(search.ignore_case)
        .multi_line(true)
        .line_terminator(Some(b'\n'))
        .size_limit(REGEX_BYTES_MAX)
        .dfa_size_limit(REGEX_BYTES_MAX)
        .build(&search.pattern)
        .map_err(|error| format!("the pattern: {error}"))
}

fn check_length(what: &str, text: &str) -> Result<(), String> {
    match text.len() {
        0 => Err(format!("{what} is empty")),
        bytes if bytes > PATTERN_BYTES_MAX => {
            Err(format!("{what} is {bytes} bytes; the limit is {PATTERN_BYTES_MAX}"))
        }
        _ => Ok(()),
    }
}

/// Which files a search looks into.
#[derive(Debug)]
pub(crate) struct Include {
    /// Without a slash: over names. With one: over paths.
    names: Vec<GlobMatcher>,
    paths: Vec<GlobMatcher>,
}

impl Include {
    pub(crate) fn new(globs: &[String]) -> Result<Self, String> {
        if globs.len() > GLOBS_MAX {
            return Err(format!("{} globs; the limit is {GLOBS_MAX}", globs.len()));
        }
        let (mut names, mut paths) = (Vec::new(), Vec::new());
        for text in globs {
            let parsed = glob(text.trim_start_matches('/').as_bytes())?;
            if text.contains('/') { paths.push(parsed) } else { names.push(parsed) }
        }
        Ok(Self { names, paths })
    }

    pub(crate) fn has(&self, name: &[u8], path: &[u8]) -> bool {
        (self.names.is_empty() && self.paths.is_empty())
            || self.names.iter().any(|glob| matches(glob, name))
            || self.paths.iter().any(|glob| matches(glob, path))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn globs_know_slashes() {
        let is = |pattern: &str, path: &str| {
            matches(&glob(pattern.as_bytes()).unwrap(), path.as_bytes())
        };
        assert!(is("*.py", "a.py") && is("*.py", ".a.py") && !is("*.py", "d/a.py"));
        assert!(is("**/*.py", "a.py") && is("**/*.py", "d/e/a.py"));
        assert!(is("d/**", "d/e/f") && is("{a,b}/?", "b/c") && is("[!x]", "y"));
        for bad in [&b""[..], b"[", b"{a", b"\xff", &[b'a'; 4097]] {
            assert!(glob(bad).is_err());
        }
    }

    #[test]
    fn includes_are_of_names_or_of_paths() {
        let include = |globs: &[&str]| {
            Include::new(&globs.iter().map(|&glob| glob.to_owned()).collect::<Vec<_>>()).unwrap()
        };
        assert!(include(&[]).has(b"x", b"d/x"));
        assert!(include(&["*.rs", "*.py"]).has(b"a.py", b"d/a.py"));
        assert!(!include(&["*.rs"]).has(b"a.py", b"d/a.py"));
        assert!(include(&["/d/*.py"]).has(b"a.py", b"d/a.py"));
        assert!(!include(&["d/*.py"]).has(b"a.py", b"e/a.py"));
    }

    #[test]
    fn an_expression_that_costs_too_much_is_refused() {
        let search = |pattern: &str| Search {
            pattern: pattern.into(),
            include: Vec::new(),
            ignore_case: false,
            context: 0,
            limit: 1,
        };
        for bad in ["", "(", "a\\nb", "(?:a{1000}){1000}", "\\p{L}{5000}"] {
            assert!(regex(&search(bad)).is_err(), "{bad}");
        }
        assert!(regex(&search("^a.*b$")).is_ok());
    }
}
