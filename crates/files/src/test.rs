//! Jobs on real trees.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use sandkasten_protocol::work::{Item, Job, Kind};
use sandkasten_protocol::{Bytes, FileFault};

use super::*;

/// Keeps what it is told.
#[derive(Debug, Default)]
struct Told {
    items: Vec<Item>,
}

impl Channel for Told {
    fn tell(&mut self, item: Item) -> io::Result<()> {
        self.items.push(item);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn pulse(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn data(&mut self) -> io::Result<Option<Bytes>> {
        Ok(None)
    }

    fn wait(&mut self, _other: BorrowedFd<'_>, _time: Duration) -> io::Result<bool> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
}

fn beneath(dir: &Path) -> Root {
    Root::Beneath(OwnedFd::from(fs::File::open(dir).unwrap()))
}

fn told(root: &Root, job: Job) -> Result<(Vec<Item>, Done), (FileFault, Bytes)> {
    let mut channel = Told::default();
    run(root, job, &mut channel);
    match channel.items.pop() {
        Some(Item::Done { truncated }) => Ok((channel.items, Done { truncated })),
        Some(Item::Failed { fault, path }) => Err((fault, path)),
        other => panic!("the last item is {other:?}"),
    }
}

fn listed(root: &Root, path: &str, depth: u32, limit: u64) -> (Vec<(String, Kind)>, bool) {
    let job = Job::List { path: path.into(), depth, limit };
    let (items, done) = told(root, job).unwrap();
    let entries = items.into_iter().map(|item| match item {
        Item::Entry(entry) => (String::from_utf8_lossy(&entry.path).into_owned(), entry.meta.kind),
        other => panic!("{other:?}"),
    });
    (entries.collect(), done.truncated)
}

fn fault_of(root: &Root, path: &[u8]) -> FileFault {
    told(root, Job::List { path: path.to_vec(), depth: 1, limit: 10 }).unwrap_err().0
}

#[test]
fn a_listing_goes_as_deep_as_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/f"), "1").unwrap();
    fs::write(at("z"), "22").unwrap();
    symlink("a", at("l")).unwrap();
    let root = beneath(dir.path());
    let entry = |path: &str, kind| (path.to_owned(), kind);
    let (a, l, z) = (entry("a", Kind::Dir), entry("l", Kind::Symlink), entry("z", Kind::File));
    assert_eq!(listed(&root, ".", 1, 100), (vec![a.clone(), l.clone(), z.clone()], false));
    let (b, f) = (entry("a/b", Kind::Dir), entry("a/f", Kind::File));
    let deep = vec![a.clone(), b.clone(), f.clone(), l.clone(), z.clone()];
    assert_eq!(listed(&root, ".", 2, 100), (deep, false));
    let c = entry("a/b/c", Kind::Dir);
    assert_eq!(listed(&root, "/workspace", 64, 100), (vec![a, b, c, f, l, z], false));
    let (cut, is_cut) = listed(&root, ".", 1, 1);
    assert_eq!((cut.len(), is_cut), (1, true));
    assert_eq!(
        listed(&root, "l", 1, 9),
        (vec![entry("b", Kind::Dir), entry("f", Kind::File)], false)
    );
}

#[test]
fn what_a_workspace_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir(at("in")).unwrap();
    fs::write(at("file"), "").unwrap();
    symlink("/etc", at("out")).unwrap();
    symlink("..", at("up")).unwrap();
    symlink("../../x", at("in/over")).unwrap();
    symlink("loop", at("loop")).unwrap();
    symlink("/workspace/in", at("own")).unwrap();
    let root = beneath(dir.path());
    for out in ["..", "/etc", "/", "out", "up", "in/over", "in/../..", "missing/../.."] {
        assert_eq!(fault_of(&root, out.as_bytes()), FileFault::NotAllowed, "{out}");
    }
    assert_eq!(listed(&root, "own", 1, 10), (vec![("over".to_owned(), Kind::Symlink)], false));
    assert_eq!(fault_of(&root, b"loop"), FileFault::InvalidPath);
    assert_eq!(fault_of(&root, b"missing"), FileFault::NotFound);
    assert_eq!(fault_of(&root, b"file"), FileFault::NotADirectory);
    for invalid in [&b""[..], b"a\0b", &[b'n'; 256], &b"a/".repeat(2049)] {
        assert_eq!(fault_of(&root, invalid), FileFault::InvalidPath);
    }
}

#[test]
fn procfs_is_refused_in_a_box() {
    for path in ["/proc", "/proc/self", "/proc/1/fd"] {
        assert_eq!(fault_of(&Root::Box, path.as_bytes()), FileFault::PermissionDenied, "{path}");
    }
    let (entries, _) = listed(&Root::Box, "/", 2, 100_000);
    assert!(entries.iter().any(|(path, _)| path == "proc"));
    assert!(!entries.iter().any(|(path, _)| path.starts_with("proc/")));
}

#[test]
fn names_are_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let names: [&[u8]; 5] = [b"-rf", b"a b", b"new\nline", b"quote\"'", b"\xff\xfe"];
    for name in names {
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
    }
    let job = Job::List { path: b".".into(), depth: 1, limit: 10 };
    let (items, _) = told(&beneath(dir.path()), job).unwrap();
    let paths: Vec<_> = items
        .iter()
        .map(|item| if let Item::Entry(entry) = item { entry.path.as_slice() } else { b"" })
        .collect();
    assert_eq!(paths, names);
}

#[test]
fn a_tree_deeper_than_descriptors_is_gone_through() {
    const DEPTH: usize = 600;
    let dir = tempfile::tempdir().unwrap();
    let mut open = OwnedFd::from(fs::File::open(dir.path()).unwrap());
    for _ in 0..DEPTH {
        rustix::fs::mkdirat(&open, "d", rustix::fs::Mode::RWXU).unwrap();
        open = walk::open_dir(std::os::fd::AsFd::as_fd(&open), b"d").unwrap();
    }
    let top = OwnedFd::from(fs::File::open(dir.path()).unwrap());
    let mut walk = Walk::new(top, 10).unwrap();
    let (mut down, mut up) = (0, 0);
    while let Some(step) = walk.next_step().unwrap() {
        match step {
            Step::Entry(found) => {
                down += 1;
                walk.enter(&found).unwrap();
            }
            Step::Left(found) => {
                up += 1;
                let flags = rustix::fs::AtFlags::REMOVEDIR;
                rustix::fs::unlinkat(walk.dir().unwrap(), found.name.as_slice(), flags).unwrap();
            }
        }
    }
    assert_eq!((down, up), (DEPTH, DEPTH));
}
