//! Jobs on real trees.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use sandkasten_protocol::work::{Change, Item, Job, Kind, Match, Search};
use sandkasten_protocol::{Bytes, FileFault};

use super::watch::Reach;
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
    let entries = items.into_iter().map(|item| {
        let Item::Entry(entry) = item else { panic!("{item:?}") };
        (String::from_utf8_lossy(&entry.path).into_owned(), entry.meta.kind)
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

fn globbed(root: &Root, path: &str, pattern: &str, limit: u64) -> (Vec<String>, bool) {
    let job = Job::Glob { pattern: pattern.into(), path: path.into(), limit };
    let (items, done) = told(root, job).unwrap();
    let paths = items.into_iter().map(|item| {
        let Item::Path(path) = item else { panic!("{item:?}") };
        String::from_utf8(path).unwrap()
    });
    (paths.collect(), done.truncated)
}

#[test]
fn a_glob_finds_paths() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("src/deep/er")).unwrap();
    for file in ["a.py", ".hidden.py", "src/b.py", "src/c.rs", "src/deep/er/d.py"] {
        fs::write(at(file), "").unwrap();
    }
    symlink("src", at("link")).unwrap();
    let root = beneath(dir.path());
    let found = |pattern: &str| globbed(&root, ".", pattern, 100).0;
    assert_eq!(found("*.py"), [".hidden.py", "a.py"]);
    assert_eq!(found("**/*.py"), [".hidden.py", "a.py", "src/b.py", "src/deep/er/d.py"]);
    assert_eq!(found("src/*.{py,rs}"), ["src/b.py", "src/c.rs"]);
    assert_eq!(found("src/deep/**"), ["src/deep/er", "src/deep/er/d.py"]);
    assert_eq!(found("nowhere/*.py"), Vec::<String>::new());
    assert_eq!(found("l*"), ["link"]);
    assert_eq!(globbed(&root, "src", "*", 2), (vec!["b.py".to_owned(), "c.rs".into()], true));
}

fn searched(root: &Root, path: &str, search: Search) -> (Vec<Match>, bool) {
    let (items, done) = told(root, Job::Grep { path: path.into(), search }).unwrap();
    let matches = items.into_iter().map(|item| {
        let Item::Match(found) = item else { panic!("{item:?}") };
        found
    });
    (matches.collect(), done.truncated)
}

fn search(pattern: &str) -> Search {
    let (pattern, include) = (pattern.to_owned(), Vec::new());
    Search { pattern, include, ignore_case: false, context: 0, limit: 100 }
}

fn text(matches: &[Match]) -> Vec<String> {
    let line = |one: &Match| {
        let (path, text) = (String::from_utf8_lossy(&one.path), String::from_utf8_lossy(&one.text));
        format!("{path}:{}:{text}", one.line)
    };
    matches.iter().map(line).collect()
}

#[test]
fn a_search_finds_lines_in_text() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at(".git/x")).unwrap();
    fs::write(at(".git/x/y"), "needle\r\n").unwrap();
    fs::write(at("a.txt"), "one\nNeedle two\nthree needle").unwrap();
    fs::write(at("binary"), b"needle\n\0").unwrap();
    fs::write(at("late"), [b"needle\n".repeat(9), b"hay\n".repeat(100_000), vec![0]].concat())
        .unwrap();
    fs::write(at("long"), vec![b'n'; 20 << 20]).unwrap();
    fs::write(at("latin"), b"\xe9 needle\n").unwrap();
    symlink("a.txt", at("link")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, 0o644.into(), 0).unwrap();
    let root = beneath(dir.path());
    let (found, is_cut) = searched(&root, ".", search("needle"));
    assert_eq!(
        text(&found),
        [".git/x/y:1:needle", "a.txt:3:three needle", "latin:1:\u{fffd} needle"]
    );
    assert!(!is_cut);
    let (found, _) = searched(&root, "a.txt", Search { ignore_case: true, ..search("^needle") });
    assert_eq!(text(&found), [":2:Needle two"]);
    let include = vec!["*.txt".to_owned()];
    let (found, is_cut) = searched(&root, ".", Search { include, limit: 1, ..search("e") });
    assert_eq!((text(&found), is_cut), (vec!["a.txt:1:one".to_owned()], true));
    assert_eq!(fault_of_grep(&root, "fifo"), FileFault::NotAFile);
}

fn fault_of_grep(root: &Root, path: &str) -> FileFault {
    told(root, Job::Grep { path: path.into(), search: search("x") }).unwrap_err().0
}

#[test]
fn a_match_comes_with_lines_around_it() {
    let dir = tempfile::tempdir().unwrap();
    let lines: String =
        (1..=12).map(|n| format!("{n}{}\n", if n % 5 == 0 { "x" } else { "" })).collect();
    fs::write(dir.path().join("f"), lines).unwrap();
    let root = beneath(dir.path());
    let around = |limit| {
        let (found, is_cut) = searched(&root, ".", Search { context: 3, limit, ..search("x") });
        let join = |lines: &[Bytes]| String::from_utf8(lines.join(&b' ')).unwrap();
        let found: Vec<_> =
            found.iter().map(|one| (join(&one.before), one.line, join(&one.after))).collect();
        (found, is_cut)
    };
    let (five, ten) =
        (("2 3 4".to_owned(), 5, "6 7 8".to_owned()), ("7 8 9".to_owned(), 10, "11 12".to_owned()));
    assert_eq!(around(9), (vec![five.clone(), ten], false));
    assert_eq!(around(1), (vec![five], true));
}

#[test]
fn a_copy_keeps_what_it_is_of() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/b/f"), vec![7; 5 << 20]).unwrap();
    symlink("nowhere", at("a/l")).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_nanos(1_500_000_000_123_456_789);
    fs::File::open(at("a/b/f")).unwrap().set_modified(old).unwrap();
    fs::File::open(at("a/b")).unwrap().set_modified(old).unwrap();
    fs::set_permissions(at("a/b/f"), PermissionsExt::from_mode(0o741)).unwrap();
    fs::set_permissions(at("a/b"), PermissionsExt::from_mode(0o500)).unwrap();
    let root = beneath(dir.path());
    let copy = |from: &str, to: &str, recursive, overwrite| {
        let job = Job::Copy { from: from.into(), to: to.into(), recursive, overwrite };
        told(&root, job)
            .map(drop)
            .map_err(|(fault, path)| (fault, String::from_utf8(path).unwrap()))
    };
    copy("a", "c", true, false).unwrap();
    let meta = fs::metadata(at("c/b/f")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.modified().unwrap()), (0o741, old));
    let meta = fs::metadata(at("c/b")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.modified().unwrap()), (0o500, old));
    assert_eq!(fs::read(at("c/b/f")).unwrap(), vec![7; 5 << 20]);
    assert_eq!(fs::read_link(at("c/l")).unwrap(), Path::new("nowhere"));
    let fails = |fault, path: &str| Err((fault, path.to_owned()));
    assert_eq!(copy("a", "c", true, false), fails(FileFault::AlreadyExists, "c"));
    assert_eq!(copy("a", "d", false, false), fails(FileFault::IsADirectory, "a"));
    assert_eq!(copy("a", "a/b/x", true, false), fails(FileFault::IntoItself, "a/b/x"));
    assert_eq!(copy("a", "a", true, true), fails(FileFault::IntoItself, "a"));
    assert_eq!(copy(".", "a/x", true, false), fails(FileFault::IntoItself, "a/x"));
    assert_eq!(copy("a/b/f", "c", false, true), fails(FileFault::IsADirectory, "c"));
    assert_eq!(copy("a", "c/b/f", true, true), fails(FileFault::NotADirectory, "c/b/f"));
    assert_eq!(copy("a/b/f", "no/x", false, false), fails(FileFault::NotFound, "no/x"));
    assert_eq!(copy("a/b/f", "../x", false, false), fails(FileFault::NotAllowed, "../x"));
    fs::write(at("c/own"), "stays").unwrap();
    fs::write(at("c/l2"), "").unwrap();
    copy("a", "c", true, true).unwrap();
    copy("a/l", "c/l2", false, true).unwrap();
    assert_eq!(fs::read(at("c/own")).unwrap(), b"stays");
    assert_eq!(fs::read_link(at("c/l2")).unwrap(), Path::new("nowhere"));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_socket_is_not_copied_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("a/s")).unwrap();
    let job = Job::Copy { from: "a".into(), to: "c".into(), recursive: true, overwrite: false };
    let failed = told(&beneath(dir.path()), job).unwrap_err();
    assert_eq!(failed, (FileFault::NotAFile, b"s".to_vec()));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_tree_is_removed_and_what_links_lead_to_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::create_dir(at("keep")).unwrap();
    fs::write(at("keep/f"), "").unwrap();
    symlink("../keep", at("a/l")).unwrap();
    symlink("keep", at("l")).unwrap();
    let root = beneath(dir.path());
    let remove = |path: &str| told(&root, Job::RemoveTree { path: path.into() }).map(drop);
    remove("a").unwrap();
    remove("l").unwrap();
    assert!(!at("a").exists() && fs::symlink_metadata(at("l")).is_err() && at("keep/f").exists());
    assert_eq!(remove("a"), Err((FileFault::NotFound, Vec::new())));
    assert_eq!(remove("."), Err((FileFault::IsADirectory, Vec::new())));
    assert_eq!(remove("../x"), Err((FileFault::NotAllowed, Vec::new())));
}

#[test]
fn a_mode_is_for_all_but_links() {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/b/f"), "").unwrap();
    fs::write(at("outside"), "").unwrap();
    symlink("../outside", at("a/l")).unwrap();
    let before = fs::metadata(at("outside")).unwrap().mode();
    let job = Job::ChmodTree { path: b"a".into(), mode: 0o750 };
    told(&beneath(dir.path()), job).unwrap();
    for path in ["a", "a/b", "a/b/f"] {
        assert_eq!(fs::metadata(at(path)).unwrap().mode() & 0o7777, 0o750, "{path}");
    }
    assert_eq!(fs::metadata(at("outside")).unwrap().mode(), before);
}

/// What is done once a watch has told of a change at a path.
type Act<'a> = (Change, &'a str, &'a dyn Fn());

/// What a watch says while things are done, one after the other.
fn watched(dir: &Path, reach: Reach, acts: &[Act<'_>]) -> Vec<(Change, String, Option<String>)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let root = beneath(dir);
    let thread = std::thread::spawn(move || {
        let job = Job::Watch { path: b".".into(), recursive: reach == Reach::Tree };
        run(&root, job, &mut Socket::new(theirs.into()));
    });
    let mut decoder = sandkasten_protocol::Decoder::new(1 << 20);
    let mut events = Vec::new();
    let mut buffer = [0; 4096];
    let mut acts = acts.iter().peekable();
    ours.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    while let Ok(read) = io::Read::read(&mut &ours, &mut buffer) {
        decoder.push(&buffer[..read]);
        while let Some(item) = decoder.next_frame().unwrap() {
            let Item::Event(event) = item else { continue };
            let text = |path: Bytes| String::from_utf8(path).unwrap();
            let (change, path) = (event.change, text(event.path));
            if let Some((_, _, act)) = acts.next_if(|act| (act.0, act.1) == (change, &path)) {
                act();
            }
            if change != Change::Ready {
                events.push((change, path, event.from.map(text)));
            }
        }
        if read == 0 {
            break;
        }
    }
    drop(ours);
    thread.join().unwrap();
    assert_eq!(acts.len(), 0, "not all was done: {events:?}");
    events
}

#[test]
fn a_watch_tells_what_changes() {
    use Change::{Created, Modified, Moved, Ready, Removed};
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir(at("d")).unwrap();
    let change = || {
        fs::write(at("f"), "1").unwrap();
        fs::rename(at("f"), at("g")).unwrap();
        fs::rename(at("g"), at("d/g")).unwrap();
        fs::write(at("d/unseen"), "1").unwrap();
        fs::remove_dir_all(at("d")).unwrap();
    };
    let events = watched(dir.path(), Reach::Top, &[(Ready, "", &change)]);
    let event = |change, path: &str| (change, path.to_owned(), None);
    let expected =
        [event(Created, "f"), event(Modified, "f"), (Moved, "g".to_owned(), Some("f".to_owned()))];
    assert_eq!(events[..3], expected);
    assert!(events.contains(&event(Removed, "g")) && events.contains(&event(Removed, "d")));
    assert_eq!(events.len(), 5, "{events:?}");
}

#[test]
fn a_recursive_watch_follows_new_directories() {
    use Change::{Created, Moved, Ready, Removed};
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    let make = || {
        fs::create_dir_all(at("a/b/c")).unwrap();
        fs::write(at("a/b/c/f"), "1").unwrap();
    };
    // Once the last is told of, all of them are followed.
    let change = || {
        fs::write(at("a/b/late"), "1").unwrap();
        fs::rename(at("a"), at("z")).unwrap();
        fs::write(at("z/b/later"), "1").unwrap();
        fs::remove_file(at("z/b/c/f")).unwrap();
    };
    let acts: [Act<'_>; 2] = [(Ready, "", &make), (Created, "a/b/c/f", &change)];
    let events = watched(dir.path(), Reach::Tree, &acts);
    let event = |change, path: &str| (change, path.to_owned(), None);
    for path in ["a", "a/b", "a/b/c", "a/b/c/f", "a/b/late", "z/b/later"] {
        let told = events.iter().filter(|one| **one == event(Created, path)).count();
        assert_eq!(told, 1, "{path}: {events:?}");
    }
    assert!(events.contains(&(Moved, "z".into(), Some("a".into()))), "{events:?}");
    assert!(events.contains(&event(Removed, "z/b/c/f")), "{events:?}");
}

#[test]
fn a_watch_ends_with_what_it_watches() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    fs::create_dir(&top).unwrap();
    let remove = || fs::remove_dir(&top).unwrap();
    let events = watched(&top, Reach::Tree, &[(Change::Ready, "", &remove)]);
    assert!(events.iter().all(|(change, path, _)| *change == Change::Removed && path.is_empty()));
}
