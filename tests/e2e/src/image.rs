//! Small images that the tests make themselves, as root file system tars.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::find_program;

/// The applets of `tiny`.
const APPLETS: [&str; 33] = [
    "sh", "ash", "ls", "cat", "echo", "env", "mkdir", "rm", "sleep", "printf", "head", "tail",
    "wc", "grep", "sort", "seq", "kill", "ps", "id", "stat", "touch", "tr", "true", "false",
    "test", "sed", "pwd", "cut", "dd", "yes", "mount", "uname", "hostname",
];

/// A root file system that is being put together.
pub struct Rootfs {
    tar: tar::Builder<Vec<u8>>,
    dirs: BTreeSet<PathBuf>,
}

impl Rootfs {
    /// busybox with a shell; no bash, no python.
    ///
    /// # Panics
    /// Where the host has no static busybox.
    #[must_use]
    pub fn tiny() -> Self {
        let mut root = Self::empty();
        let busybox = find_program("busybox").expect("busybox on PATH (busybox-static)");
        root.file("bin/busybox", &fs::read(busybox).expect("read busybox"), 0o755);
        for applet in APPLETS {
            root.symlink(&format!("bin/{applet}"), "busybox");
        }
        root.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644);
        root.file("etc/group", b"root:x:0:\n", 0o644);
        root
    }

    /// busybox with all of its programs, and a user's shell that is its own.
    ///
    /// # Panics
    /// Where the host has no static busybox.
    #[must_use]
    pub fn busybox() -> Self {
        let mut root = Self::all_applets();
        root.symlink("bin/sh", "busybox");
        root
    }

    /// The same, but `sh` is the host's dash.
    ///
    /// # Panics
    /// Where the host lacks one of the two.
    #[must_use]
    pub fn dash() -> Self {
        let mut root = Self::all_applets();
        root.program("bin/sh", &find_program("dash").expect("dash on PATH"));
        root
    }

    fn all_applets() -> Self {
        let mut root = Self::empty();
        let busybox = find_program("busybox").expect("busybox on PATH (busybox-static)");
        root.file("bin/busybox", &fs::read(&busybox).expect("read busybox"), 0o755);
        let list = Command::new(&busybox).arg("--list").output().expect("busybox --list");
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        for applet in list.lines().filter(|&name| !["busybox", "sh"].contains(&name)) {
            root.symlink(&format!("bin/{applet}"), "busybox");
        }
        root.file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n", 0o644);
        root.file("etc/group", b"root:x:0:\n", 0o644);
        root
    }

    /// Nothing but the usual empty directories: an image without a shell.
    #[must_use]
    pub fn empty() -> Self {
        let mut root = Self { tar: tar::Builder::new(Vec::new()), dirs: BTreeSet::new() };
        for dir in ["etc", "bin", "root", "usr/bin", "usr/local/bin"] {
            root.parents(&Path::new(dir).join("x"));
        }
        root
    }

    /// # Panics
    /// Where the path is too long for a tar.
    pub fn file(&mut self, path: &str, bytes: &[u8], mode: u32) -> &mut Self {
        self.parents(Path::new(path));
        let mut header = tar::Header::new_gnu();
        header.set_mode(mode);
        header.set_size(bytes.len() as u64);
        self.tar.append_data(&mut header, path, bytes).expect("write to memory");
        self
    }

    /// # Panics
    /// Where the path is too long for a tar.
    pub fn symlink(&mut self, path: &str, target: &str) -> &mut Self {
        self.parents(Path::new(path));
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        self.tar.append_link(&mut header, path, target).expect("write to memory");
        self
    }

    /// A program of the host with the libraries that it is linked against.
    ///
    /// # Panics
    /// Where the host does not have it.
    pub fn program(&mut self, path: &str, host: &Path) -> &mut Self {
        let bytes =
            |file: &Path| fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        self.file(path, &bytes(host), 0o755);
        let ldd = Command::new("ldd").arg(host).output().expect("run ldd");
        let text = String::from_utf8_lossy(&ldd.stdout).into_owned();
        for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
            self.file(library.trim_start_matches('/'), &bytes(Path::new(library)), 0o755);
        }
        self
    }

    /// What lies below a directory of the host, at the same place; nothing where there is none. Links are
    /// followed.
    ///
    /// # Panics
    /// Where a file can't be read.
    pub fn tree(&mut self, host: &Path) -> &mut Self {
        for name in crate::host::names(host) {
            let path = host.join(name);
            if path.is_dir() {
                self.tree(&path);
            } else if path.is_file() {
                let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                self.file(
                    path.strip_prefix("/").unwrap_or(&path).to_str().expect("UTF-8"),
                    &bytes,
                    0o644,
                );
            }
        }
        self
    }

    /// The tar.
    ///
    /// # Panics
    /// Never: it is written to memory.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.tar.into_inner().expect("write to memory")
    }

    fn parents(&mut self, path: &Path) {
        let missing: Vec<PathBuf> = path
            .ancestors()
            .skip(1)
            .filter(|dir| !dir.as_os_str().is_empty())
            .map(Path::to_owned)
            .collect();
        for dir in missing.into_iter().rev() {
            if self.dirs.insert(dir.clone()) {
                let mut header = tar::Header::new_gnu();
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                header.set_size(0);
                self.tar.append_data(&mut header, &dir, &[][..]).expect("write to memory");
            }
        }
    }
}
