//! Against trees on the real file system and archives made byte by byte.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandkasten_protocol::work::Item;
use sandkasten_protocol::{ArchiveFault, FileFault};

use super::unpack::Packing;
use super::{pack, unpack};
use crate::channel::Channel;
use crate::fault::Failure;
use crate::root::Root;
use crate::tar::BLOCK;

/// Keeps what is told and gives what it was made with, in pieces.
#[derive(Debug, Default)]
struct Memory {
    told: Vec<u8>,
    input: Vec<u8>,
    given: usize,
}

impl Channel for Memory {
    fn tell(&mut self, item: Item) -> io::Result<()> {
        if let Item::Data(bytes) = item {
            assert!(bytes.len() <= sandkasten_protocol::work::WORK_DATA_BYTES_MAX);
            self.told.extend_from_slice(&bytes);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn pulse(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn data(&mut self) -> io::Result<Option<Vec<u8>>> {
        let rest = &self.input[self.given..];
        let piece = &rest[..rest.len().min(64 * 1024)];
        self.given += piece.len();
        Ok(Some(piece.to_vec()).filter(|piece| !piece.is_empty()))
    }

    fn wait(&mut self, _other: BorrowedFd<'_>, _time: Duration) -> io::Result<bool> {
        Ok(false)
    }
}

fn root(dir: &Path) -> Root {
    Root::Beneath(OwnedFd::from(fs::File::open(dir).unwrap()))
}

fn packed(dir: &Path, path: &str) -> Result<Vec<u8>, Failure> {
    let mut memory = Memory::default();
    pack(&root(dir), path.as_bytes(), &mut memory)?;
    Ok(memory.told)
}

const PLAIN: Packing = Packing::Plain;
const GZIP: Packing = Packing::Gzip;

fn unpacked_with(dir: &Path, input: Vec<u8>, packing: Packing) -> Result<u64, Failure> {
    unpacked_at(dir, ".", input, packing)
}

fn unpacked_at(dir: &Path, path: &str, input: Vec<u8>, packing: Packing) -> Result<u64, Failure> {
    let mut memory = Memory { input, ..Memory::default() };
    unpack(&root(dir), (path.as_bytes(), packing), &mut memory)
}

fn unpacked(dir: &Path, input: Vec<u8>) -> Result<u64, Failure> {
    unpacked_with(dir, input, PLAIN)
}

/// Everything of a tree that an archive keeps.
fn facts(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut facts = BTreeMap::new();
    let mut inodes = BTreeMap::new();
    look(top, Path::new(""), &mut facts, &mut inodes);
    facts
}

fn look(
    top: &Path,
    path: &Path,
    facts: &mut BTreeMap<PathBuf, String>,
    inodes: &mut BTreeMap<u64, PathBuf>,
) {
    let full = top.join(path);
    let meta = fs::symlink_metadata(&full).unwrap();
    let mtime = (meta.mtime(), meta.mtime_nsec());
    let owner = (meta.uid(), meta.gid());
    let kind = meta.file_type();
    let mut text = format!("{:o} {owner:?} {mtime:?}", meta.mode());
    if kind.is_symlink() {
        text += &format!(" -> {:?}", fs::read_link(&full).unwrap());
    } else if kind.is_file() {
        text += &format!(" {:?}", fs::read(&full).unwrap());
        if meta.nlink() > 1 {
            let mut paths: Vec<_> = inodes.get(&meta.ino()).cloned().into_iter().collect();
            paths.push(path.to_owned());
            inodes.insert(meta.ino(), paths.remove(0));
            text += &format!(" links {}", meta.nlink());
        }
    } else if kind.is_dir() {
        let mut names: Vec<_> =
            fs::read_dir(&full).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        for name in names {
            look(top, &path.join(name), facts, inodes);
        }
    }
    facts.insert(path.to_owned(), text);
}

fn set_mtime(path: &Path, seconds: i64, nanos: i64) {
    let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanos as _ };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .unwrap();
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let from = tempfile::tempdir().unwrap();
    let top = from.path();
    let deep = top.join("d".repeat(200)).join("e".repeat(200)).join("f".repeat(255));
    fs::create_dir_all(&deep).unwrap();
    let odd = OsStr::from_bytes(b"odd \n \" ' - \xff\xfe");
    let long_odd = [&b"\xff"[..], &[b'x'; 200]].concat();
    for (name, bytes) in [
        (top.join("empty"), Vec::new()),
        (top.join("a b"), b"hello".to_vec()),
        (top.join("-rf"), vec![0; 512]),
        (top.join("large"), (0..=255).cycle().take(700_001).collect()),
        (top.join(odd), b"odd".to_vec()),
        (top.join(OsStr::from_bytes(&long_odd)), b"long and odd".to_vec()),
        (deep.join("g".repeat(255)), b"deep".to_vec()),
    ] {
        fs::write(&name, bytes).unwrap();
        set_mtime(&name, 1_700_000_000, 123_456_789);
    }
    mode(&top.join("a b"), 0o4755);
    mode(&top.join("-rf"), 0o000);
    set_mtime(&top.join("empty"), -5, 250_000_000);
    set_mtime(&top.join("large"), 0o777_7777_7777 + 5, 0);
    fs::hard_link(top.join("a b"), deep.join("link")).unwrap();
    fs::create_dir(top.join("closed")).unwrap();
    fs::write(top.join("closed/in"), "x").unwrap();
    mode(&top.join("closed"), 0o1500);
    set_mtime(&top.join("closed"), 77, 5);
    symlink("/etc/passwd", top.join("absolute")).unwrap();
    symlink("x".repeat(300), top.join("long link")).unwrap();
    symlink("nowhere", deep.join("dangling")).unwrap();
    set_mtime(&deep.join("dangling"), 99, 9);
    set_mtime(&top.join("absolute"), 99, 9);
    set_mtime(&top.join("long link"), 99, 9);
    for dir in deep.ancestors().take(4) {
        set_mtime(dir, 1_000, 7);
    }

    let archive = packed(top, ".").unwrap();
    assert_eq!(archive.len() % BLOCK, 0);
    let to = tempfile::tempdir().unwrap();
    let entries = unpacked(to.path(), archive.clone()).unwrap();
    let (before, after) = (facts(top), facts(to.path()));
    assert_eq!(after, before);
    assert_eq!(entries, before.len() as u64);

    // Again over what is there, and packed with gzip.
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&archive).unwrap();
    unpacked_with(to.path(), encoder.finish().unwrap(), GZIP).unwrap();
    assert_eq!(facts(to.path()), before);
}

#[test]
fn what_is_no_file_is_left_out_and_never_waited_for() {
    let from = tempfile::tempdir().unwrap();
    let top = from.path();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, top.join("fifo"), fifo, 0o644.into(), 0).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(top.join("socket")).unwrap();
    fs::write(top.join("file"), "x").unwrap();
    let archive = packed(top, ".").unwrap();
    let to = tempfile::tempdir().unwrap();
    assert_eq!(unpacked(to.path(), archive).unwrap(), 2);
    assert_eq!(packed(top, "fifo").unwrap_err().fault, FileFault::NotAFile);
    drop(socket);
}

#[test]
fn a_file_is_packed_under_its_last_name() {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d/file"), "x").unwrap();
    let archive = packed(from.path(), "d/file").unwrap();
    let to = tempfile::tempdir().unwrap();
    unpacked_at(to.path(), "made/on/the way/", archive, PLAIN).unwrap();
    assert_eq!(fs::read(to.path().join("made/on/the way/file")).unwrap(), b"x");
    assert_eq!(packed(from.path(), "none").unwrap_err().fault, FileFault::NotFound);
}

/// Makes archives that no packer would.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn raw(mut self, path: &str, kind: u8, link: &str, size: &str) -> Self {
        let mut block = [0u8; BLOCK];
        let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
        put(0, path.as_bytes());
        put(100, b"0000755\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, size.as_bytes());
        put(136, b"00000000144\0");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&block);
        self
    }

    fn data(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        self
    }

    fn entry(self, path: &str, kind: u8, link: &str) -> Self {
        self.raw(path, kind, link, "00000000000\0")
    }

    fn dir(self, path: &str) -> Self {
        self.entry(path, b'5', "")
    }

    fn file(self, path: &str, bytes: &[u8]) -> Self {
        self.with_data(path, b'0', bytes)
    }

    fn with_data(self, path: &str, kind: u8, bytes: &[u8]) -> Self {
        self.raw(path, kind, "", &format!("{:011o}\0", bytes.len())).data(bytes)
    }

    fn pax(self, records: &str) -> Self {
        self.with_data("pax", b'x', records.as_bytes())
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

fn tar() -> Tar {
    Tar::default()
}

/// A directory with a canary beside what is unpacked into.
struct Field {
    dir: tempfile::TempDir,
}

impl Field {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("box")).unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        fs::write(dir.path().join("out/canary"), "canary").unwrap();
        Self { dir }
    }

    fn inside(&self) -> PathBuf {
        self.dir.path().join("box")
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn check(&self) {
        assert_eq!(fs::read(self.outside().join("canary")).unwrap(), b"canary");
        assert_eq!(fs::metadata(self.outside().join("canary")).unwrap().nlink(), 1);
        assert_eq!(fs::read_dir(self.outside()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(self.dir.path()).unwrap().count(), 2);
        let names = facts(&self.inside()).into_keys();
        for name in names {
            assert!(!name.to_string_lossy().contains(".sandkasten-"), "{name:?} was left");
        }
    }

    fn refused(&self, archive: Vec<u8>, path: &str, fault: FileFault) {
        let failure = unpacked(&self.inside(), archive).unwrap_err();
        let at = String::from_utf8_lossy(&failure.path).into_owned();
        assert_eq!((failure.fault, at.as_str()), (fault, path));
        self.check();
    }
}

const fn bad(fault: ArchiveFault) -> FileFault {
    FileFault::Archive(fault)
}

#[test]
fn names_that_lead_out_are_refused() {
    let field = Field::new();
    let out = field.outside().display().to_string();
    let absolute = format!("{out}/x");
    field.refused(tar().file(&absolute, b"x").end(), &absolute, bad(ArchiveFault::AbsoluteName));
    for name in ["../out/x", "a/../../out/x", "..", "a/.."] {
        field.refused(tar().file(name, b"x").end(), name, bad(ArchiveFault::ParentName));
        field.refused(tar().dir(name).end(), name, bad(ArchiveFault::ParentName));
    }
    let pax = tar().pax("20 path=../out/evil\n").file("fine", b"x").end();
    field.refused(pax, "../out/evil", bad(ArchiveFault::ParentName));
    let gnu = tar().with_data("././@LongLink", b'L', b"../out/evil\0").file("fine", b"x").end();
    field.refused(gnu, "../out/evil", bad(ArchiveFault::ParentName));
    let long = "n".repeat(256);
    let records = format!("{} path={long}\n", 256 + 10);
    field.refused(tar().pax(&records).file("x", b"").end(), &long, FileFault::InvalidPath);
}

#[test]
fn links_in_the_way_are_refused() {
    let field = Field::new();
    let out = field.outside().display().to_string();
    for target in [out.as_str(), "../out"] {
        let archive = tar().entry("link", b'2', target).file("link/x", b"x").end();
        field.refused(archive, "link/x", bad(ArchiveFault::LinkInTheWay));
        let archive = tar().entry("link", b'2', target).dir("link/x/").end();
        field.refused(archive, "link/x/", bad(ArchiveFault::LinkInTheWay));
        let archive = tar().entry("link", b'2', target).entry("link/x", b'2', "y").end();
        field.refused(archive, "link/x", bad(ArchiveFault::LinkInTheWay));
    }
    // One of the box's own, and one within it.
    symlink(&out, field.inside().join("theirs")).unwrap();
    field.refused(tar().file("theirs/x", b"").end(), "theirs/x", bad(ArchiveFault::LinkInTheWay));
    let archive = tar().dir("real").entry("to", b'2', "real").file("to/x", b"").end();
    field.refused(archive, "to/x", bad(ArchiveFault::LinkInTheWay));
    // An entry at a link's name replaces the link, not what it leads to.
    let canary = format!("{out}/canary");
    let archive = tar().entry("l", b'2', &canary).file("l", b"new").end();
    unpacked(&field.inside(), archive).unwrap();
    assert_eq!(fs::read(field.inside().join("l")).unwrap(), b"new");
    let archive = tar().entry("m", b'2', &out).dir("m").file("m/x", b"new").end();
    unpacked(&field.inside(), archive).unwrap();
    assert!(fs::symlink_metadata(field.inside().join("m")).unwrap().is_dir());
    field.check();
}

#[test]
fn hard_links_to_outside_are_refused() {
    let field = Field::new();
    let out = field.outside().display().to_string();
    let fault = bad(ArchiveFault::LinkTarget);
    let absolute = format!("{out}/canary");
    for target in ["../out/canary", absolute.as_str(), "none", "none/x", "d", ".", ""] {
        field.refused(tar().dir("d").entry("h", b'1', target).end(), "h", fault);
    }
    let archive = tar().entry("l", b'2', &out).entry("h", b'1', "l/canary").end();
    field.refused(archive, "h", bad(ArchiveFault::LinkInTheWay));
    // To a link: the link itself.
    let archive = tar().entry("k", b'2', &absolute).entry("h", b'1', "k").end();
    unpacked(&field.inside(), archive).unwrap();
    assert!(fs::symlink_metadata(field.inside().join("h")).unwrap().is_symlink());
    // To itself.
    unpacked(&field.inside(), tar().file("f", b"x").entry("f", b'1', "f").end()).unwrap();
    assert_eq!(fs::read(field.inside().join("f")).unwrap(), b"x");
    field.check();
}

#[test]
fn what_is_neither_file_nor_directory_nor_link_is_refused() {
    let field = Field::new();
    for kind in [b'3', b'4', b'6'] {
        field.refused(tar().entry("dev", kind, "").end(), "dev", bad(ArchiveFault::Special));
    }
    field.refused(tar().entry("s", b'S', "").end(), "s", bad(ArchiveFault::Sparse));
    field.refused(tar().entry("v", b'V', "").end(), "v", bad(ArchiveFault::UnknownKind));
    let archive = tar().pax("22 GNU.sparse.major=1\n").file("x", b"").end();
    field.refused(archive, "", bad(ArchiveFault::Sparse));
}

#[test]
fn what_readers_disagree_on_is_refused() {
    let field = Field::new();
    let size = "00000000003\0";
    for (kind, link) in [(b'1', "a"), (b'2', "a"), (b'5', "")] {
        let archive = tar().raw("x", kind, link, size).data(b"abc").end();
        field.refused(archive, "x", bad(ArchiveFault::DataBehindLink));
    }
    let archive = tar().pax("9 size=1\n").file("x", b"abc").end();
    field.refused(archive, "x", bad(ArchiveFault::Contradiction));
    for records in ["8 path=\n", "x", "99 path=a\n", "6 path\n"] {
        let fault = if records == "8 path=\n" { None } else { Some(ArchiveFault::Malformed) };
        let result = unpacked(&field.inside(), tar().pax(records).file("x", b"").end());
        assert_eq!(result.err().map(|f| f.fault), fault.map(bad), "{records}");
    }
    let archive = tar().pax("10 path=a\n10 path=b\n").file("x", b"").end();
    field.refused(archive, "", bad(ArchiveFault::Contradiction));
    let nul = tar().pax("12 path=a\0b\n").file("x", b"").end();
    field.refused(nul, "", bad(ArchiveFault::Malformed));
    let behind = [tar().file("x", b"").end(), tar().file("y", b"").end()].concat();
    field.refused(behind, "", bad(ArchiveFault::BehindTheEnd));
}

#[test]
fn streams_that_are_cut_and_sizes_that_lie() {
    let field = Field::new();
    let whole = tar().file("f", &[7; 1000]).dir("d").end();
    for cut in (0..whole.len()).step_by(100) {
        let failure = unpacked(&field.inside(), whole[..cut].to_vec()).unwrap_err();
        assert_eq!(failure.fault, bad(ArchiveFault::CutShort), "cut at {cut}");
    }
    for size in ["77777777777\0", "\u{1}       "] {
        let archive = tar().raw("huge", b'0', "", size).data(b"abc").end();
        unpacked(&field.inside(), archive).unwrap_err();
    }
    let mut huge = tar().raw("huge", b'0', "", "00000000000\0");
    huge.0[124] = 0x80;
    huge.0[128..136].fill(0xff);
    let sum: u32 = huge
        .0
        .iter()
        .enumerate()
        .map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) })
        .sum();
    huge.0[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    unpacked(&field.inside(), huge.end()).unwrap_err();
    assert!(!field.inside().join("huge").exists());
    let long = tar().raw("x", b'x', "", "00077777777\0").end();
    field.refused(long, "", bad(ArchiveFault::LongHeader));
}

#[test]
fn entries_that_change_kind() {
    let field = Field::new();
    let inside = field.inside();
    let kinds = |tar: Tar| unpacked(&inside, tar.end());
    // Anything for anything, as long as a directory in the way is empty.
    kinds(tar().file("a", b"1").dir("a").file("a/b", b"2")).unwrap();
    kinds(tar().dir("c").file("c", b"3").entry("c", b'2', "x").dir("c").entry("c", b'2', "y"))
        .unwrap();
    assert_eq!(fs::read_link(inside.join("c")).unwrap(), Path::new("y"));
    kinds(tar().file("c", b"4").entry("d", b'1', "c").file("d", b"5")).unwrap();
    assert_eq!(fs::read(inside.join("c")).unwrap(), b"4");
    field.refused(tar().file("a", b"6").end(), "a", FileFault::IsADirectory);
    field.refused(tar().entry("a", b'2', "x").end(), "a", FileFault::IsADirectory);
    field.refused(tar().file("c/x", b"").end(), "c/x", FileFault::NotADirectory);
    field.refused(tar().file(".", b"").end(), ".", FileFault::IsADirectory);
    assert_eq!(fs::read(inside.join("a/b")).unwrap(), b"2");
}

#[test]
fn a_directory_keeps_its_time_when_it_is_filled_later() {
    let field = Field::new();
    let mut archive = tar().dir("a").dir("b").file("a/x", b"x").file("b/x", b"x").file("a/y", b"y");
    archive = archive.dir("a/c").file("z", b"").file("a/c/x", b"");
    unpacked(&field.inside(), archive.end()).unwrap();
    for dir in ["a", "b", "a/c"] {
        assert_eq!(fs::metadata(field.inside().join(dir)).unwrap().mtime(), 0o144, "{dir}");
    }
}

#[test]
fn deep_paths_have_a_limit() {
    let field = Field::new();
    let path = |depth: usize| format!("{}f", "d/".repeat(depth));
    let archive = |path: &str| {
        let rest = path.len() + 7;
        let length = rest + (rest + 3).to_string().len();
        tar().pax(&format!("{length} path={path}\n")).file("x", b"").end()
    };
    unpacked(&field.inside(), archive(&path(512))).unwrap();
    let deep = path(513);
    let failure = unpacked(&field.inside(), archive(&deep)).unwrap_err();
    assert_eq!(failure.fault, bad(ArchiveFault::TooDeep));
    packed(&field.inside(), ".").unwrap();
    let long = archive(&path(2050));
    assert_eq!(unpacked(&field.inside(), long).unwrap_err().fault, FileFault::InvalidPath);
}

#[test]
fn gzip_that_is_damaged_or_blows_up_is_refused() {
    let field = Field::new();
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let fault = |bytes: Vec<u8>| unpacked_with(&field.inside(), bytes, GZIP).unwrap_err().fault;
    let good = gzip(&tar().file("f", &[1; 5000]).end());
    assert_eq!(fault(good[..good.len() - 20].to_vec()), bad(ArchiveFault::CutShort));
    let mut wrong = good.clone();
    let at = wrong.len() - 6;
    wrong[at] ^= 1;
    assert_eq!(fault(wrong), bad(ArchiveFault::Gzip));
    assert_eq!(fault(tar().file("f", b"").end()), bad(ArchiveFault::Gzip));
    let bomb = gzip(&tar().file("zeros", &vec![0; 80 << 20]).end());
    assert_eq!(fault(bomb), bad(ArchiveFault::Ratio));
    // The little that zeros of a usual archive make is fine.
    let zeros = gzip(&tar().file("zeros", &vec![0; 10 << 20]).end());
    unpacked_with(&field.inside(), zeros, GZIP).unwrap();
    let mut noise = 1u32;
    let noise = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        noise.to_be_bytes()[0]
    });
    let good = gzip(&tar().file("f", &noise.take(5000).collect::<Vec<_>>()).end());
    assert_eq!(
        unpacked_with(&field.inside(), good, PLAIN).unwrap_err().fault,
        bad(ArchiveFault::NotAnArchive)
    );
}

/// Runs something with the ids of a user, as a thread of its own.
fn as_user<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    use rustix::process::{Gid, Uid};
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let root = Uid::from_raw(0);
            rustix::thread::set_thread_groups(&[]).unwrap();
            let gid = Gid::from_raw(uid);
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(root, Uid::from_raw(uid), root).unwrap();
            act()
        });
        thread.join().unwrap()
    })
}

#[test]
fn the_rights_are_those_of_who_runs_it() {
    let dir = tempfile::tempdir().unwrap();
    mode(dir.path(), 0o755);
    let top = dir.path().join("d");
    fs::create_dir(&top).unwrap();
    fs::create_dir(top.join("sub")).unwrap();
    fs::write(top.join("sub/secret"), "x").unwrap();
    mode(&top.join("sub/secret"), 0o600);
    // No byte comes before the fault, which has the name.
    let (failure, told) = as_user(1000, || {
        let mut memory = Memory::default();
        (pack(&root(&top), b".", &mut memory).unwrap_err(), memory.told)
    });
    let expected = Failure::at(FileFault::PermissionDenied, b"sub/secret");
    assert_eq!((failure, told), (expected, Vec::new()));
    mode(&top.join("sub"), 0o700);
    let failure = as_user(1000, || packed(&top, ".").unwrap_err());
    assert_eq!(failure, Failure::at(FileFault::PermissionDenied, b"sub"));

    let mine = dir.path().join("mine");
    fs::create_dir(&mine).unwrap();
    std::os::unix::fs::chown(&mine, Some(1000), Some(1000)).unwrap();
    let mut setuid = tar().file("f", b"x");
    setuid.0[100..108].copy_from_slice(b"0006755\0");
    let sum: u32 = setuid.0[..BLOCK]
        .iter()
        .enumerate()
        .map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) })
        .sum();
    setuid.0[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let archive = setuid.end();
    as_user(1000, || unpacked(&mine, archive.clone()).unwrap());
    let meta = fs::metadata(mine.join("f")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o755, 1000, 1000));
    unpacked(&mine, archive).unwrap();
    let meta = fs::metadata(mine.join("f")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o6755, 0, 0));
    // A closed directory of an archive is filled all the same, also later.
    let mut closed = tar().dir("closed");
    closed.0[100..108].copy_from_slice(b"0000500\0");
    let sum: u32 = closed
        .0
        .iter()
        .enumerate()
        .map(|(i, b)| if (148..156).contains(&i) { 32 } else { u32::from(*b) })
        .sum();
    closed.0[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let archive = closed.file("closed/x", b"").file("y", b"").file("closed/z", b"").end();
    as_user(1000, || unpacked(&mine, archive).unwrap());
    let meta = fs::metadata(mine.join("closed")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.mtime()), (0o500, 0o144));
    let theirs = as_user(1000, || unpacked(&top, tar().file("x", b"").end()).unwrap_err());
    assert_eq!(theirs, Failure::at(FileFault::PermissionDenied, b"x"));
}

#[test]
fn files_that_change_while_they_are_packed_leave_a_whole_archive() {
    let from = tempfile::tempdir().unwrap();
    let top = from.path();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0usize;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                round += 1;
                for name in 0..20 {
                    let path = top.join(format!("f{name}"));
                    match (round + name) % 5 {
                        0 => drop(fs::remove_file(&path)),
                        1 => drop(fs::create_dir(&path)),
                        2 => drop(fs::remove_dir(&path)),
                        3 => drop(symlink("x", &path)),
                        _ => drop(fs::write(&path, vec![1; (round * 7919) % 900_000])),
                    }
                }
            }
        });
        let to = tempfile::tempdir().unwrap();
        for _ in 0..60 {
            let archive = packed(top, ".").unwrap();
            let fresh = to.path().join("fresh");
            fs::create_dir(&fresh).unwrap();
            unpacked(&fresh, archive).unwrap();
            fs::remove_dir_all(&fresh).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
