//! Files of a workspace, against boxes that mean harm.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FileType;
use sandkasten_types::files;

use super::*;

const REPLACE: WriteOptions = WriteOptions {
    mode: None,
    parents: Parents::Make,
    durability: Durability::Rename,
    expect: Expect::Anything,
};

/// One workspace, `ws`, beside a canary that nothing may touch.
struct Lab {
    dir: tempfile::TempDir,
    store: Workspaces,
    id: WorkspaceId,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        std::fs::write(dir.path().join("canary"), "host").unwrap();
        let store = Workspaces::open(&dir.path().join("data")).unwrap();
        let id: WorkspaceId = "ws".parse().unwrap();
        store.create(&id, Durability::Rename).unwrap();
        Self { dir, store, id }
    }

    /// The host's view of a path of the workspace.
    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("data/workspaces/ws").join(path)
    }

    fn acting(&self) -> Acting {
        Acting { id: self.id.clone(), who: Who::Sandbox }
    }

    /// Something that the session user made.
    fn made(&self, path: &str, bytes: &str, mode: u32) {
        std::fs::write(self.at(path), bytes).unwrap();
        std::fs::set_permissions(self.at(path), PermissionsExt::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(self.at(path), Some(1000), Some(1000)).unwrap();
    }

    fn made_dir(&self, path: &str) {
        std::fs::create_dir(self.at(path)).unwrap();
        std::os::unix::fs::chown(self.at(path), Some(1000), Some(1000)).unwrap();
    }

    fn write(&self, path: &str, bytes: &str) -> Result<String, FileFault> {
        self.write_with(path, bytes, REPLACE)
    }

    fn write_with(&self, path: &str, bytes: &str, how: WriteOptions) -> Result<String, FileFault> {
        let mut file =
            self.store.create_file(&self.acting(), path.as_bytes(), how).map_err(fault)?;
        file.write(bytes.as_bytes()).map_err(fault)?;
        let shown = String::from_utf8(file.path().to_vec()).unwrap();
        file.commit().map_err(fault).map(|_| shown)
    }

    fn read(&self, path: &str) -> Result<String, FileFault> {
        let read = self.store.read_file(&self.acting(), path.as_bytes(), 1 << 20).map_err(fault)?;
        Ok(String::from_utf8(read.bytes).unwrap())
    }

    fn list(&self, path: &str) -> Result<Vec<files::DirEntry>, FileFault> {
        self.store.list_dir(&self.acting(), path.as_bytes()).map_err(fault)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.at("."))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Nothing outside has been made or changed.
    fn assert_outside_untouched(&self) {
        assert_eq!(std::fs::read_to_string(self.dir.path().join("canary")).unwrap(), "host");
        let count = |dir: &str| std::fs::read_dir(self.dir.path().join(dir)).unwrap().count();
        // The workspace and the staging directory.
        assert_eq!((count("."), count("data/workspaces")), (2, 2));
        assert_eq!(count("data/workspaces/.staging"), 0);
    }
}

fn fault(err: WorkspaceError) -> FileFault {
    match err {
        WorkspaceError::File(fault) => fault,
        WorkspaceError::Gone(id) => panic!("gone: {id}"),
        WorkspaceError::Io(err) => panic!("not the caller's fault: {err}"),
    }
}

#[test]
fn a_workspace_belongs_to_the_session_user() {
    let lab = Lab::new();
    let stat = std::fs::metadata(lab.at(".")).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (1000, 1000, 0o755));
    lab.write("a/b/c.sh", "x").unwrap();
    for path in ["a", "a/b", "a/b/c.sh"] {
        let stat = std::fs::metadata(lab.at(path)).unwrap();
        assert_eq!((stat.uid(), stat.gid()), (1000, 1000), "{path}");
    }
}

#[test]
fn workspaces_are_made_listed_and_removed() {
    let lab = Lab::new();
    let other: WorkspaceId = "other".parse().unwrap();
    assert!(!lab.store.exists(&other).unwrap());
    lab.store.create(&other, Durability::Fsync).unwrap();
    lab.write("kept", "x").unwrap();
    lab.store.create(&lab.id, Durability::Fsync).unwrap();
    assert_eq!(lab.read("kept").unwrap(), "x");
    assert_eq!(lab.store.list().unwrap(), [other.clone(), lab.id.clone()]);
    assert!(lab.store.size_bytes(&lab.id, &|| true).unwrap().unwrap() >= 4096);
    assert_eq!(lab.store.size_bytes(&lab.id, &|| false).unwrap(), None);
    assert!(lab.store.remove(&other).unwrap());
    assert!(!lab.store.remove(&other).unwrap());
    assert!(lab.store.open_dir(&other).is_err());
    let read = lab.store.read_file(&Acting { id: other.clone(), who: Who::Sandbox }, b"f", 1);
    assert!(matches!(read, Err(WorkspaceError::Gone(id)) if id == other));
    lab.store.trash.empty().unwrap();
    assert_eq!(std::fs::read_dir(lab.dir.path().join("data/trash")).unwrap().count(), 0);
}

#[test]
fn a_delete_can_be_taken_back_until_it_is_over() {
    let lab = Lab::new();
    lab.write("kept", "x").unwrap();
    assert!(lab.store.withdraw(&lab.id).unwrap());
    assert!(!lab.store.withdraw(&"other".parse().unwrap()).unwrap());
    assert!(!lab.store.exists(&lab.id).unwrap());
    assert_eq!(lab.store.withdrawn().unwrap(), std::slice::from_ref(&lab.id));
    assert!(lab.store.list().unwrap().is_empty());
    assert!(lab.store.restore(&lab.id).unwrap());
    assert_eq!(lab.read("kept").unwrap(), "x");
    assert!(!lab.store.restore(&lab.id).unwrap());

    // A new one of that name is never replaced by the old one.
    assert!(lab.store.withdraw(&lab.id).unwrap());
    lab.store.create(&lab.id, Durability::Rename).unwrap();
    assert!(!lab.store.restore(&lab.id).unwrap());
    assert_eq!(lab.read("kept"), Err(FileFault::NotFound));
    assert!(lab.store.discard(&lab.id).unwrap());
    assert!(lab.store.withdrawn().unwrap().is_empty());
}

#[test]
fn only_what_is_empty_is_removed_as_such() {
    let lab = Lab::new();
    lab.write("kept", "x").unwrap();
    assert!(!lab.store.remove_empty(&lab.id).unwrap());
    assert_eq!(lab.read("kept").unwrap(), "x");
    std::fs::create_dir(lab.dir.path().join("data/workspaces/.new-1")).unwrap();
    std::fs::create_dir_all(lab.dir.path().join("data/workspaces/.new-2/full")).unwrap();
    lab.store.sweep().unwrap();
    assert_eq!(lab.store.names().unwrap().iter().filter(|name| name.starts_with(NEW)).count(), 1);
    std::fs::remove_file(lab.at("kept")).unwrap();
    assert!(lab.store.remove_empty(&lab.id).unwrap());
    assert!(!lab.store.remove_empty(&lab.id).unwrap());
}

#[test]
fn bytes_come_back_as_they_were() {
    let lab = Lab::new();
    let text: String = (0..4000).map(|i| format!("{i}\r\n\u{feff}é\0")).collect();
    assert_eq!(lab.write("/workspace/d//b.bin", &text).unwrap(), "d/b.bin");
    assert_eq!(lab.read("d/b.bin").unwrap(), text);
    lab.write("empty", "").unwrap();
    assert_eq!(lab.read("empty").unwrap(), "");
    let read = lab.store.read_file(&lab.acting(), b"d/b.bin", 10).unwrap();
    assert_eq!((read.bytes.len(), read.size, read.truncated), (10, text.len() as u64, true));
    let whole = lab.store.read_file(&lab.acting(), b"d/b.bin", text.len() as u64).unwrap();
    assert!(!whole.truncated);
}

#[test]
fn a_hole_of_a_tebibyte_costs_what_is_read() {
    let lab = Lab::new();
    let file = std::fs::File::create(lab.at("hole")).unwrap();
    file.set_len(1 << 40).unwrap();
    std::os::unix::fs::chown(lab.at("hole"), Some(1000), Some(1000)).unwrap();
    let read = lab.store.read_file(&lab.acting(), b"hole", 1 << 16).unwrap();
    assert_eq!((read.bytes.len(), read.size, read.truncated), (1 << 16, 1 << 40, true));
}

#[test]
fn no_path_leads_out() {
    let lab = Lab::new();
    lab.made_dir("real");
    for (target, link) in [
        ("/etc/passwd", "leak"),
        ("/", "up"),
        ("/nonexistent/x", "dangling"),
        ("../../../canary", "relative"),
        ("../../..", "out"),
        ("real", "ok"),
    ] {
        symlink(target, lab.at(link)).unwrap();
    }
    symlink(lab.dir.path().join("canary"), lab.at("canary")).unwrap();
    for path in [
        "leak",
        "up/etc/hostname",
        "up/tmp/evil",
        "dangling",
        "../x",
        "/etc/passwd",
        "a/../../x",
        "relative",
        "out/evil",
        "out/canary",
        "canary",
        "/workspace/../x",
        "real/../../x",
    ] {
        assert_eq!(lab.read(path), Err(FileFault::NotAllowed), "read {path}");
        assert_eq!(lab.write(path, "evil"), Err(FileFault::NotAllowed), "write {path}");
        assert!(lab.list(path).is_err(), "list {path}");
    }
    for path in ["up", "out", "up/etc", ".."] {
        assert_eq!(lab.list(path).unwrap_err(), FileFault::NotAllowed, "list {path}");
    }
    lab.write("ok/f", "in").unwrap();
    assert_eq!(std::fs::read_to_string(lab.at("real/f")).unwrap(), "in");
    lab.assert_outside_untouched();
}

#[test]
fn links_that_stay_inside_are_followed() {
    let lab = Lab::new();
    lab.made_dir("real");
    lab.made("real/file", "one", 0o644);
    symlink("/workspace/real", lab.at("absolute")).unwrap();
    symlink("absolute", lab.at("twice")).unwrap();
    symlink("/workspace/real/new", lab.at("to-be")).unwrap();
    symlink("../file", lab.at("real/sideways")).unwrap();
    assert_eq!(lab.read("absolute/file").unwrap(), "one");
    assert_eq!(lab.read("twice/file").unwrap(), "one");
    lab.write("twice/file", "two").unwrap();
    lab.write("absolute/made/deep", "x").unwrap();
    lab.write("to-be", "three").unwrap();
    lab.write("real/sideways", "four").unwrap();
    assert_eq!(lab.read("real/file").unwrap(), "two");
    assert_eq!(lab.read("real/made/deep").unwrap(), "x");
    assert_eq!(lab.read("real/new").unwrap(), "three");
    assert_eq!(lab.read("file").unwrap(), "four");
    assert_eq!(lab.list("twice").unwrap().len(), 4);
}

#[test]
fn what_is_no_file_has_its_own_error() {
    let lab = Lab::new();
    let dir = Beneath::open(&lab.at(".")).unwrap();
    for (name, kind) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
        rustix::fs::mknodat(&dir, name, kind, Mode::from(0o666), 0).unwrap();
    }
    let zero = rustix::fs::makedev(1, 5);
    let kind = FileType::CharacterDevice;
    rustix::fs::mknodat(&dir, "device", kind, Mode::from(0o666), zero).unwrap();
    lab.made_dir("dir");
    lab.made("file", "x", 0o644);
    symlink("loop", lab.at("loop")).unwrap();
    for name in ["fifo", "socket", "device"] {
        assert_eq!(lab.read(name), Err(FileFault::NotAFile), "{name}");
        assert_eq!(lab.write(name, "x"), Err(FileFault::NotAFile), "{name}");
    }
    for name in ["dir", "dir/", ".", "/workspace", "dir/."] {
        assert_eq!(lab.read(name), Err(FileFault::IsADirectory), "{name}");
        assert_eq!(lab.write(name, "x"), Err(FileFault::IsADirectory), "{name}");
    }
    assert_eq!(lab.write("new/", "x"), Err(FileFault::IsADirectory));
    assert_eq!(lab.read("nope"), Err(FileFault::NotFound));
    assert_eq!(lab.read("nope/nope"), Err(FileFault::NotFound));
    assert_eq!(lab.read("file/x"), Err(FileFault::NotADirectory));
    assert_eq!(lab.write("file/x", "x"), Err(FileFault::NotADirectory));
    assert_eq!(lab.write("file/x/y", "x"), Err(FileFault::NotADirectory));
    assert!(matches!(lab.read("loop"), Err(FileFault::InvalidPath(_))));
    assert!(matches!(lab.write("loop", "x"), Err(FileFault::InvalidPath(_))));
    assert_eq!(lab.list("file").unwrap_err(), FileFault::NotADirectory);
    assert_eq!(lab.list("nope").unwrap_err(), FileFault::NotFound);
    let must_exist = WriteOptions { parents: Parents::MustExist, ..REPLACE };
    assert_eq!(lab.write_with("no/x", "x", must_exist), Err(FileFault::NotFound));
}

/// Whoever looks between the two steps of an overwrite sees no name but the file's own.
#[test]
fn an_overwrite_makes_no_other_name() {
    use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

    let lab = Lab::new();
    lab.write("file", "old").unwrap();
    let watch = inotify::init(CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, lab.at(""), WatchFlags::CREATE | WatchFlags::MOVE).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&watch, &mut buffer);
    let mut names = || {
        let mut names = Vec::new();
        while let Ok(event) = reader.next() {
            names.push(event.file_name().unwrap().to_owned());
        }
        names
    };
    lab.write("file", "new").unwrap();
    assert_eq!(names(), [c"file"]);
    // What a killed daemon has left is in nobody's way.
    std::fs::write(lab.dir.path().join("data/workspaces/.staging/staged"), "torn").unwrap();
    lab.write("file", "newer").unwrap();
    assert_eq!(names(), [c"file"]);
    assert_eq!(std::fs::read_to_string(lab.at("file")).unwrap(), "newer");
    let staging = lab.dir.path().join("data/workspaces/.staging");
    assert_eq!(std::fs::read_dir(staging).unwrap().count(), 0);
}

#[test]
fn modes_and_links_survive_an_overwrite() {
    let lab = Lab::new();
    lab.made("r.sh", "hi", 0o755);
    symlink("r.sh", lab.at("l.sh")).unwrap();
    lab.write("r.sh", "ho").unwrap();
    assert_eq!(std::fs::metadata(lab.at("r.sh")).unwrap().mode() & 0o7777, 0o755);
    lab.write("l.sh", "hu").unwrap();
    assert!(lab.at("l.sh").is_symlink());
    assert_eq!(lab.read("r.sh").unwrap(), "hu");
    lab.write_with("new", "x", WriteOptions { mode: Some(0o4711), ..REPLACE }).unwrap();
    assert_eq!(std::fs::metadata(lab.at("new")).unwrap().mode() & 0o7777, 0o711);
    assert_eq!(lab.names(), ["l.sh", "new", "r.sh"]);
}

#[test]
fn root_may_what_the_user_may_not() {
    let lab = Lab::new();
    let root = &Acting { who: Who::Root, ..lab.acting() };
    let owner = |path: &str| {
        let found = std::fs::symlink_metadata(lab.at(path)).unwrap();
        (found.uid(), found.gid())
    };
    lab.made("ro", "k", 0o444);
    std::fs::create_dir(lab.at("closed")).unwrap();
    std::fs::set_permissions(lab.at("closed"), PermissionsExt::from_mode(0o1700)).unwrap();
    for path in ["ro", "closed/new", "closed/a/b/new"] {
        let mut file = lab.store.create_file(root, path.as_bytes(), REPLACE).unwrap();
        file.write(b"r").unwrap();
        file.commit().unwrap();
        assert_eq!(lab.store.read_file(root, path.as_bytes(), 9).unwrap().bytes, b"r");
    }
    // What it replaces keeps its owner, what it makes is its own.
    assert_eq!((owner("ro"), owner("closed/new")), ((1000, 1000), (0, 0)));
    assert_eq!(owner("closed/a/b"), (0, 0));
    lab.store.make_dir(root, b"closed/d", 0o700, Parents::MustExist).unwrap();
    assert_eq!(owner("closed/d"), (0, 0));
    assert_eq!(lab.store.list_dir(root, b"closed").unwrap().len(), 3);
    lab.store.chmod(root, b"ro", 0o2755).unwrap();
    assert_eq!(std::fs::metadata(lab.at("ro")).unwrap().mode() & 0o7777, 0o2755);
    lab.store.move_file(root, (b"ro", b"closed/ro"), Target::MustBeFree).unwrap();
    lab.store.remove_file(root, b"closed/ro", &Expect::Something).unwrap();
    let denied = lab.store.remove_file(&lab.acting(), b"closed/new", &Expect::Anything);
    assert_eq!(denied.map_err(fault), Err(FileFault::PermissionDenied));
    // Nothing outside is in its reach either.
    assert_eq!(
        lab.store.read_file(root, b"../../canary", 9).map_err(fault).unwrap_err(),
        FileFault::NotAllowed
    );
}

#[test]
fn what_the_user_may_not_the_daemon_does_not() {
    let lab = Lab::new();
    lab.made("ro", "k", 0o444);
    lab.made("secret", "k", 0o200);
    std::fs::write(lab.at("roots"), "k").unwrap();
    std::fs::set_permissions(lab.at("roots"), PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::create_dir(lab.at("roots-dir")).unwrap();
    assert_eq!(lab.write("ro", "x"), Err(FileFault::PermissionDenied));
    assert_eq!(lab.read("secret"), Err(FileFault::PermissionDenied));
    assert_eq!(lab.read("roots"), Err(FileFault::PermissionDenied));
    assert_eq!(lab.write("roots", "x"), Err(FileFault::PermissionDenied));
    assert_eq!(lab.write("roots-dir/x", "x"), Err(FileFault::PermissionDenied));
    assert_eq!(lab.write("roots-dir/a/b/x", "x"), Err(FileFault::PermissionDenied));
    assert_eq!(std::fs::read(lab.at("ro")).unwrap(), b"k");
}

#[test]
fn a_closed_directory_closes_what_is_below_it() {
    let lab = Lab::new();
    let (acting, root) = (lab.acting(), Acting { who: Who::Root, ..lab.acting() });
    lab.made_dir("closed");
    lab.made_dir("closed/d");
    lab.made("closed/f", "k", 0o666);
    std::os::unix::fs::chown(lab.at("closed"), Some(0), Some(0)).unwrap();
    std::fs::set_permissions(lab.at("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    symlink("closed/f", lab.at("link")).unwrap();
    let denied = Err(FileFault::PermissionDenied);
    for path in ["closed/f", "link"] {
        assert_eq!(lab.read(path), denied.clone(), "{path}");
        assert_eq!(lab.write(path, "x"), denied.clone(), "{path}");
        let opened = lab.store.open_file(&acting, path.as_bytes()).map(drop).map_err(fault);
        assert_eq!(opened, Err(FileFault::PermissionDenied), "{path}");
        let changed = lab.store.chmod(&acting, path.as_bytes(), 0o600).map_err(fault);
        assert_eq!(changed, Err(FileFault::PermissionDenied), "{path}");
    }
    let faults = [
        lab.store.stat(&acting, b"closed/f", LastLink::Followed).map(drop),
        lab.store.list_dir(&acting, b"closed/d").map(drop),
        lab.store.make_dir(&acting, b"closed/d/e", 0o755, Parents::Make),
        lab.store.move_file(&acting, (b"closed/f", b"f"), Target::MustBeFree),
        lab.store.remove_file(&acting, b"closed/f", &Expect::Anything),
    ];
    for (number, found) in faults.into_iter().enumerate() {
        assert_eq!(found.map_err(fault), Err(FileFault::PermissionDenied), "{number}");
    }
    assert_eq!(lab.store.read_file(&root, b"closed/f", 9).unwrap().bytes, b"k");
}

#[test]
fn a_dropped_file_leaves_nothing() {
    let lab = Lab::new();
    let mut file = lab.store.create_file(&lab.acting(), b"x", REPLACE).unwrap();
    file.write(b"half").unwrap();
    assert!(lab.names().is_empty());
    drop(file);
    assert!(lab.names().is_empty());
}

#[test]
fn a_listing_has_every_kind() {
    let lab = Lab::new();
    lab.made_dir("d");
    lab.made("d/f", "1234", 0o640);
    symlink("/etc/passwd", lab.at("d/link")).unwrap();
    let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff");
    std::fs::create_dir(lab.at("d").join(name)).unwrap();
    let entries = lab.list("/workspace/d").unwrap();
    let shown: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.r#type, e.is_dir)).collect();
    assert_eq!(
        shown,
        [
            ("f", files::FileType::File, false),
            ("link", files::FileType::Symlink, false),
            ("\u{fffd}", files::FileType::Dir, true)
        ]
    );
    let [file, link, odd] = entries.try_into().unwrap();
    assert_eq!((file.path.as_str(), file.size, file.mode.as_str()), ("d/f", 4, "0640"));
    assert_eq!((file.uid, file.gid), (1000, 1000));
    assert_eq!(link.target.as_deref(), Some("/etc/passwd"));
    assert_eq!(odd.name_base64.as_deref(), Some("/w=="));
    assert!(file.mtime.ends_with('Z') && file.mtime.len() == 30, "{}", file.mtime);
    assert_eq!(lab.list("").unwrap().len(), 1);
}

/// A reader sees one of the texts that were written, whole.
#[test]
fn a_write_is_atomic() {
    let lab = Lab::new();
    let text = |c: char| c.to_string().repeat(100_000);
    lab.write("f", &text('a')).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for c in ('a'..='z').cycle().take(200) {
                lab.write("f", &text(c)).unwrap();
            }
        });
        for _ in 0..200 {
            let read = lab.read("f").unwrap();
            assert_eq!(read, text(read.chars().next().unwrap()));
        }
    });
    assert_eq!(lab.names(), ["f"]);
}

/// A directory and a link to the outside change places 20,000 times under reads and writes.
#[test]
fn a_race_of_renames_never_escapes() {
    let lab = Lab::new();
    lab.made_dir("swap");
    lab.made("swap/canary", "box", 0o644);
    symlink("../../..", lab.at("evil")).unwrap();
    let box_view = Beneath::open(&lab.at(".")).unwrap();
    let swaps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=20_000 {
                let flags = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&box_view, "swap", &box_view, "evil", flags).unwrap();
                swaps.store(n, Ordering::Release);
            }
        });
        while swaps.load(Ordering::Acquire) < 20_000 {
            if let Ok(text) = lab.read("swap/canary") {
                assert!(text == "box" || text == "written", "{text}");
            }
            drop(lab.write("swap/canary", "written"));
            drop(lab.write("swap/new/deep", "written"));
            if let Ok(entries) = lab.list("swap") {
                assert!(entries.iter().all(|entry| entry.name != "data"));
            }
        }
    });
    lab.assert_outside_untouched();
}
