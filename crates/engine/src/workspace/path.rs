//! A workspace path as clients write it. Pure text; what the kernel finds is judged in `place`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use sandkasten_types::limits;

use crate::error::FileFault;

/// Where a workspace is in a box.
pub(super) const ROOT: &str = "/workspace";

/// A path relative to the workspace, as it was written but for the root; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorkspacePath {
    /// For the kernel: a trailing slash and `..` are kept.
    pub(super) raw: PathBuf,
    /// For answers: names alone.
    pub(super) shown: Vec<u8>,
}

/// Parses a relative path, or an absolute one below `/workspace`.
pub(super) fn parse(text: &[u8]) -> Result<WorkspacePath, FileFault> {
    check(text)?;
    let path = Path::new(OsStr::from_bytes(text));
    let relative = match path.has_root() {
        true => below_root(path).ok_or(FileFault::NotAllowed)?,
        false => path.into(),
    };
    let mut shown: Vec<&[u8]> = Vec::new();
    for name in relative.as_os_str().as_bytes().split(|b| *b == b'/') {
        match name {
            b"" | b"." => {}
            // A `..` that leads out is told by the text alone, whether or not its parent exists.
            b".." => drop(shown.pop().ok_or(FileFault::NotAllowed)?),
            name => shown.push(name),
        }
    }
    let shown = shown.join(&b'/');
    let raw = if relative.as_os_str().is_empty() { ".".into() } else { relative };
    Ok(WorkspacePath { raw, shown })
}

/// What follows `/workspace` in an absolute path; `None` where it lies elsewhere.
pub(super) fn below_root(path: &Path) -> Option<PathBuf> {
    let mut components = path.components();
    let is_root = components.next() == Some(Component::RootDir);
    let is_ours = components.next().map(Component::as_os_str) == Path::new(ROOT).file_name();
    if !(is_root && is_ours) {
        return None;
    }
    let mut below = components.as_path().to_owned();
    if path.as_os_str().as_encoded_bytes().ends_with(b"/") && !below.as_os_str().is_empty() {
        // `components` forgets that a directory was meant.
        below.push("");
    }
    Some(below)
}

fn check(text: &[u8]) -> Result<(), FileFault> {
    let fault = |why: &str| Err(FileFault::InvalidPath(why.into()));
    if text.is_empty() {
        return fault("empty");
    }
    if text.contains(&0) {
        return fault("a NUL in it");
    }
    if text.len() > limits::PATH_BYTES_MAX {
        return fault("longer than 4096 bytes");
    }
    if text.split(|b| *b == b'/').any(|name| name.len() > limits::NAME_BYTES_MAX) {
        return fault("a name longer than 255 bytes");
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_taken() {
        for (text, raw, shown) in [
            ("a/b", "a/b", "a/b"),
            ("/workspace/a", "a", "a"),
            ("//workspace//a", "a", "a"),
            ("/workspace", ".", ""),
            ("/workspace/", ".", ""),
            ("/workspace/a/", "a/", "a"),
            ("./a//b/", "./a//b/", "a/b"),
            ("a/../b", "a/../b", "b"),
            ("workspace/a", "workspace/a", "workspace/a"),
            (".", ".", ""),
        ] {
            let path = parse(text.as_bytes()).unwrap();
            assert_eq!(path.raw.to_str().unwrap(), raw, "{text}");
            assert_eq!(path.shown, shown.as_bytes(), "{text}");
        }
    }

    #[test]
    fn what_leads_out() {
        for text in [
            "..",
            "../x",
            "a/../../x",
            "/etc/passwd",
            "/",
            "/workspace/..",
            "/workspace/../etc",
            "/workspacex/a",
            "/workspace/a/../../b",
            "./..",
            "/../workspace/a",
            "//etc",
        ] {
            assert_eq!(parse(text.as_bytes()), Err(FileFault::NotAllowed), "{text}");
        }
    }

    #[test]
    fn what_is_no_path() {
        for text in ["", "a\0b", &"a".repeat(256), &"a/".repeat(2049)] {
            assert!(matches!(parse(text.as_bytes()), Err(FileFault::InvalidPath(_))), "{text:?}");
        }
    }
}
