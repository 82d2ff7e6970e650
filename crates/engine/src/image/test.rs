//! The store as a whole: what an archive says stays inside, what goes in comes out the same.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, XattrFlags};
use sandkasten_jail::path::Beneath;

use super::tree::Rules;
use super::*;

/// A data directory beside a canary that nothing may touch.
struct Lab {
    dir: tempfile::TempDir,
    store: Store,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("data")).unwrap();
        std::fs::write(dir.path().join("canary"), "host").unwrap();
        let store = Store::open(&dir.path().join("data")).unwrap();
        Self { dir, store }
    }

    fn layers(&self) -> PathBuf {
        self.dir.path().join("data/layers")
    }

    fn layer(&self, image: &Image, n: usize) -> PathBuf {
        self.layers().join(image.layers[n].as_str())
    }

    fn import(&self, tar: &[u8]) -> Result<Image, ImageError> {
        self.import_as("test", tar)
    }

    fn import_as(&self, name: &str, tar: &[u8]) -> Result<Image, ImageError> {
        self.store.import(tar, &name.parse().unwrap(), ImageConfig::default())
    }

    /// Nothing but what `images` images have is in the data directory, nothing beside it is changed.
    fn assert_clean(&self, layers: usize) {
        assert_eq!(std::fs::read_to_string(self.dir.path().join("canary")).unwrap(), "host");
        assert_eq!(std::fs::read_dir(self.dir.path()).unwrap().count(), 2);
        assert_eq!(std::fs::read_dir(self.layers()).unwrap().count(), layers);
        assert_eq!(std::fs::read_dir(self.dir.path().join("data")).unwrap().count(), 3);
    }
}

/// A tar made by hand, field by field, so that it can be wrong.
#[derive(Clone, Default)]
struct Tar(Vec<u8>);

#[derive(Clone, Copy)]
struct Head<'a> {
    name: &'a [u8],
    kind: u8,
    mode: &'a [u8],
    uid: &'a [u8],
    size: &'a [u8],
    mtime: &'a [u8],
    link: &'a [u8],
    magic: &'a [u8],
}

const FILE: Head<'_> = Head {
    name: b"f",
    kind: b'0',
    mode: b"0000644",
    uid: b"0000000",
    size: b"",
    mtime: b"00000000001",
    link: b"",
    magic: b"ustar\x0000",
};

impl Tar {
    fn head(mut self, head: Head<'_>) -> Self {
        let mut block = [0_u8; 512];
        let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
        put(0, head.name);
        put(100, head.mode);
        put(108, head.uid);
        put(116, b"0000000");
        put(124, head.size);
        put(136, head.mtime);
        put(148, b"        ");
        put(156, &[head.kind]);
        put(157, head.link);
        put(257, head.magic);
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&block);
        self
    }

    fn data(mut self, data: &[u8]) -> Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn sized(self, head: Head<'_>, data: &[u8]) -> Self {
        let size = format!("{:011o}", data.len());
        self.head(Head { size: size.as_bytes(), ..head }).data(data)
    }

    fn file(self, name: &str, data: &str) -> Self {
        self.sized(Head { name: name.as_bytes(), ..FILE }, data.as_bytes())
    }

    fn dir(self, name: &str) -> Self {
        self.head(Head { name: name.as_bytes(), kind: b'5', mode: b"0000755", ..FILE })
    }

    fn link(self, kind: u8, name: &str, target: &str) -> Self {
        let (name, link) = (name.as_bytes(), target.as_bytes());
        self.head(Head { name, kind, link, ..FILE })
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.link(b'2', name, target)
    }

    fn hard_link(self, name: &str, target: &str) -> Self {
        self.link(b'1', name, target)
    }

    fn special(self, name: &str, kind: u8) -> Self {
        self.head(Head { name: name.as_bytes(), kind, ..FILE })
    }

    fn sparse(mut self, name: &str, pieces: &[(u64, u64)], size: u64, data: &[u8]) -> Self {
        let stored = format!("{:011o}", data.len());
        let at = self.0.len();
        let head = Head {
            name: name.as_bytes(),
            kind: b'S',
            size: stored.as_bytes(),
            magic: b"ustar  \0",
            ..FILE
        };
        self = self.head(head);
        let block = &mut self.0[at..];
        for (n, (offset, len)) in pieces.iter().enumerate() {
            let text = format!("{offset:011o}\0{len:011o}\0");
            block[386 + n * 24..][..24].copy_from_slice(text.as_bytes());
        }
        // Binary: it may need more than eleven octal digits.
        block[483] = 0x80;
        block[487..495].copy_from_slice(&size.to_be_bytes());
        block[148..156].copy_from_slice(b"        ");
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.data(data)
    }

    fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut text = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let len = (rest..).find(|len| rest + len.to_string().len() == *len).unwrap();
            text.extend_from_slice(format!("{len} {key}=").as_bytes());
            text.extend_from_slice(value);
            text.push(b'\n');
        }
        self.sized(Head { name: b"pax", kind: b'x', ..FILE }, &text)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }
}

fn tar() -> Tar {
    Tar::default()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

#[test]
fn a_root_file_system_becomes_an_image() {
    let lab = Lab::new();
    let bytes = tar()
        .dir("./")
        .dir("./bin/")
        .sized(Head { name: b"./bin/sh", mode: b"0004755", ..FILE }, b"#!")
        .symlink("bin/link", "/bin/sh")
        .hard_link("bin/hard", "bin/sh")
        .sized(Head { name: b"owned", uid: b"0001750", mtime: b"14000000000", ..FILE }, b"x")
        .end();
    for bytes in [bytes.clone(), gzip(&bytes), [gzip(&bytes[..512]), gzip(&bytes[512..])].concat()]
    {
        let image = lab.import(&bytes).unwrap();
        let layer = lab.layer(&image, 0);
        let stat = std::fs::metadata(layer.join("bin/sh")).unwrap();
        assert_eq!((stat.mode() & 0o7777, stat.nlink(), stat.mtime()), (0o4755, 2, 1));
        assert_eq!(std::fs::read_link(layer.join("bin/link")).unwrap(), Path::new("/bin/sh"));
        let stat = std::fs::metadata(layer.join("owned")).unwrap();
        assert_eq!((stat.uid(), stat.mtime()), (1000, 0o14_000_000_000));
        assert_eq!(lab.store.get(&"test".parse().unwrap()).unwrap(), image);
        assert_eq!(image.layers.len(), 2);
    }
    lab.assert_clean(2);
}

/// Each is refused with a text that says why, and nothing is left of it.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn evil_archives_are_refused() {
    let long = "n".repeat(256);
    let deep = "d/".repeat(300);
    let huge = [b'\x80', 0, 0, 0, 0, 0x7f, 0, 0, 0, 0, 0, 0];
    let good = tar().file("f", "x");
    let mut bad_sum = good.clone().end();
    bad_sum[0] ^= 1;
    let cut_gzip = {
        let z = gzip(&good.clone().end());
        z[..z.len() - 4].to_vec()
    };
    let corrupt_gzip = {
        let mut z = gzip(&good.clone().end());
        let n = z.len() - 6;
        z[n] ^= 1;
        z
    };
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("dot dot", tar().file("../canary", "evil").end(), "`..`"),
        ("dot dot inside", tar().file("a/../b", "evil").end(), "`..`"),
        ("absolute dot dot", tar().file("/../../canary", "evil").end(), "`..`"),
        ("dot dot by pax", tar().pax(&[("path", b"../canary")]).file("f", "evil").end(), "`..`"),
        (
            "dot dot by a GNU name",
            tar()
                .sized(Head { name: b"L", kind: b'L', ..FILE }, b"../canary\0")
                .file("f", "x")
                .end(),
            "`..`",
        ),
        ("hard link to dot dot", tar().hard_link("f", "../../canary").end(), "`..`"),
        ("hard link to the host", tar().hard_link("f", "/etc/passwd").end(), "hard link"),
        (
            "hard link through a link",
            tar().symlink("up", "../../..").hard_link("f", "up/canary").end(),
            "hard link",
        ),
        ("hard link to a directory", tar().dir("d").hard_link("f", "d").end(), "directory"),
        ("hard link to the top", tar().file("f", "x").hard_link("g", ".").end(), "hard link"),
        (
            "hard link to what it replaces",
            tar().file("d/f", "x").hard_link("d", "d/f").end(),
            "hard link",
        ),
        (
            "hard link with data",
            tar()
                .file("f", "x")
                .sized(Head { name: b"g", kind: b'1', link: b"f", ..FILE }, b"evil")
                .end(),
            "data behind",
        ),
        (
            "symlink with data",
            tar().sized(Head { name: b"g", kind: b'2', link: b"f", ..FILE }, b"evil").end(),
            "data behind",
        ),
        (
            "directory with data",
            tar()
                .sized(Head { name: b"g", kind: b'5', ..FILE }, &tar().file("hidden", "evil").0)
                .end(),
            "data behind",
        ),
        ("empty symlink", tar().symlink("l", "").end(), "symbolic link"),
        ("file as a parent", tar().file("f", "x").file("f/g", "x").end(), "directory"),
        ("loop as a parent", tar().symlink("l", "l").file("l/g", "x").end(), "l/g"),
        (
            "absolute link to nothing as a parent",
            tar().symlink("l", "/etc").file("l/passwd", "x").end(),
            "l/passwd",
        ),
        ("whiteout", tar().file("a/.wh.b", "").end(), "whiteout"),
        ("opaque whiteout", tar().file(".wh..wh..opq", "").end(), "whiteout"),
        ("short whiteout", tar().file(".wh.", "").end(), "whiteout"),
        (
            "two sizes",
            tar().pax(&[("size", b"1024")]).file("f", "x").data(&[b'y'; 1024]).end(),
            "two sizes",
        ),
        (
            "two pax sizes",
            tar().pax(&[("size", b"1"), ("size", b"0")]).file("f", "x").end(),
            "two names or sizes",
        ),
        (
            "two pax headers",
            tar().pax(&[("path", b"a")]).pax(&[("path", b"b")]).file("f", "x").end(),
            "two PAX",
        ),
        (
            "pax and GNU names",
            tar()
                .pax(&[("path", b"a")])
                .sized(Head { name: b"L", kind: b'L', ..FILE }, b"b\0")
                .file("f", "x")
                .end(),
            "two names",
        ),
        (
            "global pax path",
            tar()
                .sized(Head { name: b"g", kind: b'g', ..FILE }, b"11 path=ab\n")
                .file("f", "x")
                .end(),
            "global PAX",
        ),
        (
            "pax without a length",
            tar().sized(Head { name: b"x", kind: b'x', ..FILE }, b"path=a\n").file("f", "x").end(),
            "PAX header",
        ),
        (
            "pax with a wrong length",
            tar()
                .sized(Head { name: b"x", kind: b'x', ..FILE }, b"99 path=a\n")
                .file("f", "x")
                .end(),
            "PAX header",
        ),
        ("pax sparse", tar().pax(&[("GNU.sparse.major", b"1")]).file("f", "x").end(), "sparse"),
        (
            "pax header of 2 GiB",
            tar().head(Head { name: b"x", kind: b'x', size: b"20000000000", ..FILE }).end(),
            "too long",
        ),
        ("NUL by pax", tar().pax(&[("path", b"a\0b")]).file("f", "x").end(), "NUL"),
        ("owner too high", tar().head(Head { uid: b"0200000", ..FILE }).end(), "owner 65536"),
        (
            "owner by pax",
            tar().pax(&[("gid", b"4294967295")]).file("f", "x").end(),
            "owner 4294967295",
        ),
        (
            "negative owner",
            tar().head(Head { uid: b"\xff\xff\xff\xff\xff\xff\xff\xff", ..FILE }).end(),
            "number",
        ),
        ("owner that is no number", tar().head(Head { uid: b"12x4567", ..FILE }).end(), "number"),
        ("huge size", tar().head(Head { size: &huge, ..FILE }).end(), "larger than the limit"),
        (
            "100 GiB of sparse zeros",
            tar().sparse("s", &[], 100 << 30, b"").end(),
            "larger than the limit",
        ),
        (
            "many holes",
            tar().sparse("s", &[], 9 << 30, b"").sparse("t", &[], 9 << 30, b"").end(),
            "larger than the limit",
        ),
        (
            "sparse out of order",
            tar().sparse("s", &[(512, 1), (0, 1)], 1024, b"xy").end(),
            "out of order",
        ),
        (
            "sparse overlap",
            tar().sparse("s", &[(0, 2), (1, 2)], 1024, b"xxyy").end(),
            "out of order",
        ),
        (
            "sparse beyond its end",
            tar().sparse("s", &[(1024, 1)], 1024, b"x").end(),
            "out of order",
        ),
        ("sparse with other data", tar().sparse("s", &[(0, 1)], 1024, b"xxx").end(), "differ"),
        ("long name", tar().pax(&[("path", long.as_bytes())]).file("f", "x").end(), "too long"),
        ("deep", tar().pax(&[("path", deep.as_bytes())]).dir("d").end(), "too deep"),
        ("no name", tar().head(Head { name: b"", ..FILE }).end(), "without a name"),
        ("top is a file", tar().file("./.", "x").end(), "no directory"),
        ("unknown type", tar().special("f", b'V').end(), "entry type"),
        ("multi volume", tar().special("f", b'M').end(), "entry type"),
        ("bad checksum", bad_sum, "not a tar"),
        ("no end", good.clone().0, "cut short"),
        ("half an end", [good.clone().0, vec![0; 512]].concat(), "cut short"),
        ("cut in data", good.clone().0[..600].to_vec(), "cut short"),
        ("cut in a header", good.clone().0[..100].to_vec(), "of no kind that is known"),
        ("pax header alone", tar().pax(&[("path", b"a")]).end(), "cut short"),
        (
            "header behind zeros",
            [good.clone().0, vec![0; 512], good.clone().end()].concat(),
            "zero block",
        ),
        ("cut gzip", cut_gzip, "cut short"),
        ("corrupt gzip", corrupt_gzip, "damaged"),
        ("gzip of nothing", gzip(b""), "it is empty, in gzip"),
        ("gzip of text", gzip(b"hello\n"), "it is text, in gzip"),
        ("no entries", tar().end(), "no entries"),
        ("empty", Vec::new(), "it is empty"),
        ("text", vec![b'x'; 4096], "it is text"),
        (
            "docker save",
            tar().file("manifest.json", "[]").file("oci-layout", "{}").end(),
            "docker save",
        ),
        ("OCI layout", tar().dir("blobs").file("oci-layout", "{}").end(), "OCI image layout"),
        ("docker save, zipped", gzip(&tar().file("manifest.json", "[]").end()), "in gzip"),
        ("zstd", b"\x28\xb5\x2f\xfd rest".to_vec(), "zstd"),
        ("xz", b"\xfd7zXZ\0 rest".to_vec(), "xz"),
    ];
    let lab = Lab::new();
    for (name, bytes, says) in cases {
        match lab.import(&bytes) {
            Err(error @ (ImageError::Invalid(_) | ImageError::NotRootfs(_))) => {
                let text = error.to_string();
                assert!(text.contains(says), "{name}: {text}");
                assert!(!text.contains(lab.dir.path().to_str().unwrap()), "{name}: {text}");
            }
            other => panic!("{name}: {other:?}"),
        }
        lab.assert_clean(0);
        assert!(lab.store.list().unwrap().is_empty(), "{name}");
    }
}

/// Each is taken, and does in its own layer what it was to do elsewhere.
#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn odd_archives_stay_inside() {
    type Check = fn(&Path);
    let opaque: &[(&str, &[u8])] = &[
        ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ("SCHILY.xattr.security.capability", b"\x01\0\0\x02"),
        ("SCHILY.xattr.user.note", b"x"),
    ];
    let nested = tar().file("hidden", "evil").end();
    let nested_len = nested.len().to_string();
    let odd_name = Head { name: b"\xff\xfe", ..FILE };
    let before_1970 = Head { mtime: b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", ..FILE };
    let cases: Vec<(&str, Tar, Check)> = vec![
        ("absolute name", tar().file("/etc/x", "x"), |l| {
            assert_eq!(text(l, "etc/x"), "x");
        }),
        ("link as a parent", tar().symlink("up", "../../..").file("up/canary", "x"), |l| {
            assert_eq!(text(l, "canary"), "x");
        }),
        (
            "absolute link as a parent",
            tar().dir("etc").symlink("l", "/etc").file("l/x", "x"),
            |l| {
                assert_eq!(text(l, "etc/x"), "x");
            },
        ),
        (
            "link to the host as a parent",
            tar().symlink("l", "/proc/self/root").file("f", "x"),
            |l| {
                assert!(l.join("l").is_symlink());
            },
        ),
        ("file over a link", tar().symlink("f", "../../../canary").file("f", "x"), |l| {
            assert!(!l.join("f").is_symlink());
            assert_eq!(text(l, "f"), "x");
        }),
        (
            "directory over a link",
            tar().symlink("d", "../../..").dir("d").file("d/canary", "x"),
            |l| {
                assert_eq!(text(l, "d/canary"), "x");
            },
        ),
        ("file over a directory", tar().file("d/e/f", "x").file("d", "y"), |l| {
            assert_eq!(text(l, "d"), "y");
        }),
        ("directory over a file", tar().file("d", "x").dir("d").file("d/f", "y"), |l| {
            assert_eq!(text(l, "d/f"), "y");
        }),
        (
            "parent replaced by a link",
            tar().file("d/a", "x").symlink("d", "e").file("e/b", "y").file("d/c", "z"),
            |l| {
                assert_eq!((text(l, "e/b"), text(l, "e/c")), ("y".into(), "z".into()));
                assert!(!l.join("e/a").exists());
            },
        ),
        ("the same file twice", tar().file("f", "long long").file("f", "x"), |l| {
            assert_eq!(text(l, "f"), "x");
        }),
        ("hard link to itself", tar().file("f", "x").hard_link("f", "./f"), |l| {
            assert_eq!(text(l, "f"), "x");
        }),
        ("hard link to a link", tar().symlink("l", "/etc/shadow").hard_link("h", "l"), |l| {
            assert_eq!(std::fs::read_link(l.join("h")).unwrap(), Path::new("/etc/shadow"));
        }),
        ("hard link over a file", tar().file("f", "x").file("g", "y").hard_link("g", "f"), |l| {
            assert_eq!(text(l, "g"), "x");
        }),
        (
            "devices and FIFOs",
            tar().special("c", b'3').special("b", b'4').special("p", b'6').file("f", "x"),
            |l| {
                assert_eq!(std::fs::read_dir(l).unwrap().count(), 1);
            },
        ),
        ("attributes", tar().pax(opaque).dir("d").pax(opaque).file("f", "x"), |l| {
            for name in ["d", "f"] {
                let mut list = [0; 256];
                assert_eq!(rustix::fs::listxattr(l.join(name), &mut list).unwrap(), 0, "{name}");
            }
        }),
        ("no text", tar().sized(odd_name, b"x"), |l| {
            assert!(l.join(OsStr::from_bytes(b"\xff\xfe")).exists());
        }),
        (
            "time before 1970",
            tar().sized(before_1970, b"x").pax(&[("mtime", b"-5.5")]).file("g", "x"),
            |l| {
                for name in ["f", "g"] {
                    assert_eq!(std::fs::metadata(l.join(name)).unwrap().mtime(), 0, "{name}");
                }
            },
        ),
        (
            "time of the far future",
            tar().pax(&[("mtime", b"99999999999999.9")]).file("f", "x"),
            |l| {
                assert_eq!(std::fs::metadata(l.join("f")).unwrap().mtime(), i64::from(u32::MAX));
            },
        ),
        (
            "a size by PAX hides no archive",
            tar().pax(&[("size", nested_len.as_bytes())]).head(FILE).data(&nested),
            |l| {
                assert_eq!(std::fs::read(l.join("f")).unwrap().len(), 2048);
                assert!(!l.join("hidden").exists());
            },
        ),
        (
            "a path by PAX",
            tar().pax(&[("path", b"long/name"), ("linkpath", b"t")]).symlink("f", "x"),
            |l| {
                assert_eq!(std::fs::read_link(l.join("long/name")).unwrap(), Path::new("t"));
            },
        ),
        (
            "GNU names",
            tar()
                .sized(Head { name: b"L", kind: b'L', ..FILE }, b"gnu/name\0")
                .sized(Head { name: b"K", kind: b'K', ..FILE }, b"target\0")
                .symlink("f", "x"),
            |l| {
                assert_eq!(std::fs::read_link(l.join("gnu/name")).unwrap(), Path::new("target"));
            },
        ),
        ("sparse", tar().sparse("s", &[(1, 2), (600, 1)], 1000, b"abc").file("f", "x"), |l| {
            let bytes = std::fs::read(l.join("s")).unwrap();
            assert_eq!((bytes.len(), &bytes[..4], bytes[600]), (1000, &b"\0ab\0"[..], b'c'));
            assert_eq!(text(l, "f"), "x");
        }),
        (
            "directory of mode 000",
            tar().head(Head { name: b"d", kind: b'5', mode: b"0000000", ..FILE }).file("d/f", "x"),
            |l| {
                assert_eq!(std::fs::metadata(l.join("d")).unwrap().mode() & 0o7777, 0);
            },
        ),
        ("old directory", tar().file("d/", "").file("d/f", "x"), |l| {
            assert_eq!(text(l, "d/f"), "x");
        }),
        (
            "a comment for all",
            tar().sized(Head { name: b"g", kind: b'g', ..FILE }, b"12 comment=\n").file("f", "x"),
            |l| {
                assert_eq!(text(l, "f"), "x");
            },
        ),
    ];
    for (name, tar, check) in cases {
        let lab = Lab::new();
        let image = lab.import(&tar.end()).unwrap_or_else(|err| panic!("{name}: {err}"));
        check(&lab.layer(&image, 0));
        lab.assert_clean(2);
    }
}

fn text(layer: &Path, path: &str) -> String {
    std::fs::read_to_string(layer.join(path)).unwrap()
}

/// Whatever stands at a name that we need, the image works: our layer hides it.
#[test]
fn mount_points_are_there_whatever_the_image_has() {
    let names = [
        "proc",
        "dev",
        "sys",
        "tmp",
        "workspace",
        ".sandkasten",
        "etc",
        "home",
        "home/sandbox",
        "etc/passwd",
        "etc/group",
        "etc/shadow",
        "etc/hosts",
        "run",
        "usr/local/bin",
        "etc/resolv.conf",
    ];
    let kinds: [fn(&str) -> Tar; 8] = [
        |name| tar().symlink(name, "/real").dir("real"),
        |name| tar().symlink(name, "/missing"),
        |name| tar().symlink(name, "../../../../etc"),
        |name| tar().symlink(name, &format!("/{name}")),
        |name| tar().file(name, "x"),
        |name| tar().special(name, b'6').file("x", "x"),
        |name| tar().head(Head { name: name.as_bytes(), kind: b'5', mode: b"0000000", ..FILE }),
        |name| tar().file(&format!("{name}/x"), "x"),
    ];
    for name in names {
        for (n, kind) in kinds.iter().enumerate() {
            let lab = Lab::new();
            let image = lab.import(&kind(name).end()).unwrap_or_else(|e| panic!("{name} {n}: {e}"));
            assert_usable(&lab.store, &image, &format!("{name} {n}"));
            lab.assert_clean(2);
        }
    }
}

/// What the jail and the session user rely on, in the merged layers.
fn assert_usable(store: &Store, image: &Image, case: &str) {
    let view = entries::merged(&store.open_layers(image).unwrap()).unwrap();
    for name in ["proc", "dev", "sys", "tmp", "workspace", ".sandkasten"] {
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW;
        let dir = view.open_file(Path::new(name), flags, Mode::empty());
        assert!(dir.is_ok(), "{case}: /{name}: {dir:?}");
    }
    let sys = view.open_dir(Path::new("sys")).unwrap();
    assert_eq!(rustix::fs::Dir::read_from(&sys).unwrap().count(), 2, "{case}: /sys is not empty");
    let home = view.open_dir_in_root(Path::new("home/sandbox")).unwrap();
    let stat = rustix::fs::fstat(&home).unwrap();
    assert_eq!((stat.st_uid, stat.st_mode & 0o7777), (1000, 0o755), "{case}");
    let parent = rustix::fs::fstat(view.open_dir_in_root(Path::new("home")).unwrap()).unwrap();
    assert_eq!(parent.st_mode & 0o111, 0o111, "{case}");
    for (name, has) in
        [("passwd", "sandbox:?:1000:1000:"), ("group", "sandbox:?:1000:"), ("hosts", "\tlocalhost")]
    {
        let path = Path::new("etc").join(name);
        let file =
            view.open_file_in_root(&path, rustix::fs::OFlags::RDONLY, Mode::empty()).unwrap();
        let mut text = String::new();
        std::fs::File::from(file).read_to_string(&mut text).unwrap();
        // `x` where the image has a shadow file.
        let text = text.replace(":x:", ":?:").replace(":*:", ":?:");
        assert!(text.contains(has), "{case}: {text}");
    }
}

#[test]
fn links_of_etc_and_home_are_kept() {
    let lab = Lab::new();
    let bytes = tar()
        .symlink("etc", "usr/etc")
        .file("usr/etc/app.conf", "x")
        .symlink("home", "/var/home")
        .dir("var/home")
        .end();
    let image = lab.import(&bytes).unwrap();
    let top = lab.layer(&image, 1);
    assert!(!top.join("etc").exists() && !top.join("home").exists());
    assert!(top.join("usr/etc/passwd").exists() && top.join("var/home/sandbox").exists());
    assert_usable(&lab.store, &image, "links");
}

#[test]
fn an_account_file_that_is_too_long_is_refused() {
    let lab = Lab::new();
    let bytes = tar().file("etc/passwd", &"x".repeat((1 << 20) + 1)).end();
    assert!(
        matches!(lab.import(&bytes), Err(ImageError::Invalid(text)) if text.contains("etc/passwd"))
    );
    // The layer itself is whole and stays until the garbage is collected.
    assert_eq!(lab.store.collect_garbage(&[]).unwrap(), 1);
    lab.assert_clean(0);
}

/// A session's upper directory, made in another order each time.
fn upper(dir: &Path, base: u32, names: [&str; 4]) -> Beneath {
    for name in names {
        let path = dir.join(if name == "long" { "n".repeat(200) } else { name.to_owned() });
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), name).unwrap();
        std::fs::hard_link(path.join("file"), path.join("hard")).unwrap();
        symlink("x".repeat(150), path.join("link")).unwrap();
        std::os::unix::fs::chown(path.join("file"), Some(base + 1000), Some(base)).unwrap();
        std::os::unix::fs::lchown(path.join("link"), Some(base), Some(base)).unwrap();
        std::os::unix::fs::chown(&path, Some(base), Some(base)).unwrap();
    }
    let top = Beneath::open(dir).unwrap();
    rustix::fs::mknodat(&top, "gone", FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    rustix::fs::mknodat(&top, "socket", FileType::Socket, Mode::empty(), 0).unwrap();
    let opaque = top.open_dir(Path::new("a")).unwrap();
    rustix::fs::fsetxattr(&opaque, c"trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    std::fs::set_permissions(dir.join("b/file"), PermissionsExt::from_mode(0o4755)).unwrap();
    top
}

#[test]
fn equal_uppers_are_equal_layers() {
    let rules = |owner_base| Rules { owner_base, mtime_max: 1_000_000, without: &["z"] };
    let export = |base, names| {
        let dir = tempfile::tempdir().unwrap();
        let mut out = Vec::new();
        let digest = tree::write(&upper(dir.path(), base, names), &rules(base), &mut out).unwrap();
        (digest, out)
    };
    let (digest, tar) = export(500_000, ["b", "a", "z", "long"]);
    // Earlier versions gave the same tree the same digest.
    assert_eq!(digest.as_str(), "c29ca5fd9ebf2f65a3b974e9d0b7a0087a61e20b865a781bf7459d3cb88bb2e8");
    assert_eq!(export(1_000_000, ["long", "z", "a", "b"]), (digest.clone(), tar.clone()));
    let lab = Lab::new();
    let source = store::LayerSource { tar: &mut tar.as_slice(), digest: digest.clone() };
    let image =
        lab.store.install(&"test".parse().unwrap(), vec![source], ImageConfig::default()).unwrap();
    assert_eq!(image.layers[0], digest);
    let layer = lab.layer(&image, 0);
    assert_eq!(tree::digest(&Beneath::open(&layer).unwrap()).unwrap(), digest);
    let stat = std::fs::metadata(layer.join("b/hard")).unwrap();
    assert_eq!((stat.uid(), stat.mode() & 0o7777, stat.nlink()), (1000, 0o4755, 2));
    assert_eq!(stat.mtime(), 1_000_000);
    let gone = std::fs::symlink_metadata(layer.join("gone")).unwrap();
    assert_eq!((gone.mode() & 0o170_000, gone.rdev()), (0o020_000, 0));
    let mut value = [0; 8];
    let n = rustix::fs::getxattr(layer.join("a"), c"trusted.overlay.opaque", &mut value).unwrap();
    assert_eq!(&value[..n], b"y");
    assert!(!layer.join("z").exists() && !layer.join("socket").exists());
}

#[test]
fn a_strange_owner_is_no_layer() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "x").unwrap();
    let rules = Rules { owner_base: 500_000, ..Rules::EXACT };
    let err = tree::write(&Beneath::open(dir.path()).unwrap(), &rules, &mut std::io::sink());
    assert!(matches!(err, Err(ImageError::Invalid(_))));
}

#[test]
fn a_built_layer_must_have_its_digest() {
    let lab = Lab::new();
    let tar = tar().file("f", "x").end();
    let source = store::LayerSource { tar: &mut tar.as_slice(), digest: Digest("0".repeat(64)) };
    let made = lab.store.install(&"test".parse().unwrap(), vec![source], ImageConfig::default());
    assert!(matches!(made, Err(ImageError::Invalid(_))));
    lab.assert_clean(0);
}

#[test]
fn layers_live_as_long_as_somebody_has_them() {
    let lab = Lab::new();
    let (one, two) = (tar().file("f", "1").end(), tar().file("f", "2").end());
    let image = lab.import_as("one", &one).unwrap();
    let copy = lab.import_as("copy", &one).unwrap();
    let other = lab.import_as("two", &two).unwrap();
    assert_eq!(image.layers, copy.layers);
    // The tops are alike, since the images are but for one file.
    lab.assert_clean(3);
    let names: Vec<_> = lab.store.list().unwrap().into_iter().map(|i| i.name.to_string()).collect();
    assert_eq!(names, ["copy", "one", "two"]);
    let in_use = image.layers.clone();
    lab.store.remove(&"one".parse().unwrap(), &in_use).unwrap();
    let refused = lab.store.remove(&"copy".parse().unwrap(), &in_use);
    assert!(matches!(refused, Err(ImageError::InUse(_))), "{refused:?}");
    lab.store.remove(&"copy".parse().unwrap(), &[]).unwrap();
    assert_eq!(lab.store.collect_garbage(&in_use).unwrap(), 0);
    assert_eq!(lab.store.collect_garbage(&[]).unwrap(), 1);
    let held = lab.store.open_layers(&other).unwrap();
    lab.store.remove(&"two".parse().unwrap(), &[]).unwrap();
    assert_eq!(lab.store.collect_garbage(&[]).unwrap(), 0);
    drop(held);
    assert_eq!(lab.store.collect_garbage(&[]).unwrap(), 2);
    assert!(lab.store.open_layers(&image).is_err());
    let missing = lab.store.remove(&"one".parse().unwrap(), &[]);
    assert!(matches!(missing, Err(ImageError::NotFound(_))));
}

#[test]
fn a_replaced_image_leaves_the_old_layers_to_their_sessions() {
    let lab = Lab::new();
    let old = lab.import(&tar().file("f", "1").end()).unwrap();
    let new = lab.import(&tar().file("f", "2").end()).unwrap();
    assert_eq!(lab.store.get(&old.name).unwrap(), new);
    assert_eq!(lab.store.collect_garbage(&old.layers).unwrap(), 0);
    lab.store.open_layers(&old).unwrap();
    assert_eq!(lab.store.collect_garbage(&[]).unwrap(), 1);
}

#[test]
fn what_a_killed_import_left_is_garbage_and_a_running_one_is_not() {
    let lab = Lab::new();
    for name in [".new-dead", ".new-live"] {
        std::fs::create_dir_all(lab.layers().join(name).join("etc")).unwrap();
    }
    let live = Beneath::open(&lab.layers().join(".new-live")).unwrap();
    rustix::fs::flock(&live, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert_eq!(lab.store.collect_garbage(&[]).unwrap(), 1);
    assert!(lab.layers().join(".new-live").exists());
}

#[test]
fn an_archive_that_fails_to_be_read_is_no_bad_archive() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk"))
        }
    }
    let lab = Lab::new();
    let broken = lab.store.import(Broken, &"test".parse().unwrap(), ImageConfig::default());
    assert!(matches!(broken, Err(ImageError::Io(_))));
    lab.assert_clean(0);
}

mod random {
    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = String> {
        let part = prop::sample::select(vec!["a", "b", "c", "..", ".", "", "etc", "passwd", "dev"]);
        prop::collection::vec(part, 1..4).prop_map(|parts| parts.join("/"))
    }

    fn entry() -> impl Strategy<Value = (u8, String, String)> {
        let kind = prop::sample::select(vec![b'0', b'0', b'5', b'2', b'2', b'1', b'3']);
        (kind, name(), name())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Any archive is refused or stays inside; what is taken has the same digest again.
        #[test]
        fn entries_stay_inside(entries in prop::collection::vec(entry(), 1..12)) {
            let mut bytes = tar();
            for (kind, name, target) in &entries {
                bytes = match kind {
                    b'0' => bytes.file(name, target),
                    b'5' => bytes.dir(name),
                    b'3' => bytes.special(name, b'3'),
                    kind => bytes.link(*kind, name, target),
                };
            }
            let lab = Lab::new();
            match lab.import(&bytes.end()) {
                Ok(image) => {
                    lab.assert_clean(2);
                    let layer = Beneath::open(&lab.layer(&image, 0)).unwrap();
                    let mut again = Vec::new();
                    let digest = tree::write(&layer, &Rules::EXACT, &mut again).unwrap();
                    prop_assert_eq!(&digest, &image.layers[0]);
                    // Without entries it is no archive: all of them were devices.
                    if again.len() > 1024 {
                        prop_assert_eq!(lab.import_as("two", &again).unwrap().layers, image.layers);
                    }
                }
                Err(ImageError::Invalid(_)) => lab.assert_clean(0),
                Err(other) => panic!("{other}"),
            }
        }

        /// Noise never makes the reader panic or ask for much memory.
        #[test]
        fn noise_is_refused(noise in prop::collection::vec(any::<u8>(), 0..3000), at in 0..512_usize, byte: u8) {
            let lab = Lab::new();
            prop_assert!(lab.import(&noise).is_err());
            let mut damaged = tar().pax(&[("path", b"p")]).file("f", "x").end();
            damaged[at + 1024] = byte;
            drop(lab.import(&damaged));
        }
    }
}

/// A reader that has its store's cancel called when it is read for the second time.
struct CancelsAt<'a> {
    bytes: &'a [u8],
    cancel: Cancel,
}

impl Read for CancelsAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.bytes.len().min(buffer.len()).min(512);
        buffer[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes = &self.bytes[n..];
        if self.bytes.len() < 512 {
            self.cancel.cancel();
        }
        Ok(n)
    }
}

#[test]
fn an_import_that_is_given_up_leaves_nothing() {
    let mut lab = Lab::new();
    let cancel = Cancel::default();
    lab.store = Store::open(&lab.dir.path().join("data")).unwrap().cancelled_by(cancel.clone());
    let tar = tar().file("a", &"x".repeat(200_000)).end();
    let reader = CancelsAt { bytes: &tar, cancel };
    let given_up = lab.store.import(reader, &"x".parse().unwrap(), ImageConfig::default());
    assert!(given_up.is_err());
    lab.assert_clean(0);
    assert!(lab.store.list().unwrap().is_empty());
}
