//! What a file is that was given as an image, by its content: its name says nothing.
//!
//! Invariant: what is called a tar here has a header that adds up; everything else is named, so that
//! an error can say what was given and what to do with it.

use std::fmt;

use sandkasten_files::tar;

/// So many first bytes tell all kinds apart: the mark of btrfs is the last.
pub(super) const HEAD_BYTES: usize = 0x1_0048;

/// What was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Tar,
    Gzip,
    Zstd,
    Xz,
    Bzip2,
    Lz4,
    Zip,
    SevenZip,
    Cpio,
    DebianPackage,
    RpmPackage,
    Program,
    Ext4,
    Xfs,
    Btrfs,
    Squashfs,
    Erofs,
    Iso,
    Qcow2,
    Disk,
    Pdf,
    Html,
    Json,
    Text,
    Empty,
    /// A tar, but of layers: `docker save`.
    DockerSave,
    /// A tar, but of layers: an OCI image layout.
    OciLayout,
    Unknown,
}

/// Marks at fixed places; the first that is there counts.
const MARKS: [(usize, &[u8], Kind); 24] = [
    (0, &[0x1f, 0x8b], Kind::Gzip),
    (0, &[0x28, 0xb5, 0x2f, 0xfd], Kind::Zstd),
    (0, b"\xfd7zXZ\0", Kind::Xz),
    (0, b"BZh", Kind::Bzip2),
    (0, &[0x04, 0x22, 0x4d, 0x18], Kind::Lz4),
    (0, b"PK\x03\x04", Kind::Zip),
    (0, b"PK\x05\x06", Kind::Zip),
    (0, b"7z\xbc\xaf\x27\x1c", Kind::SevenZip),
    (0, b"070701", Kind::Cpio),
    (0, b"070707", Kind::Cpio),
    (0, b"!<arch>\n", Kind::DebianPackage),
    (0, &[0xed, 0xab, 0xee, 0xdb], Kind::RpmPackage),
    (0, b"\x7fELF", Kind::Program),
    (0, b"hsqs", Kind::Squashfs),
    (0, b"XFSB", Kind::Xfs),
    (0, b"QFI\xfb", Kind::Qcow2),
    (0, b"%PDF-", Kind::Pdf),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], Kind::Erofs),
    (1080, &[0x53, 0xef], Kind::Ext4),
    (0x8001, b"CD001", Kind::Iso),
    (0x1_0040, b"_BHRfS_M", Kind::Btrfs),
    (257, b"ustar", Kind::Tar),
    (512, b"EFI PART", Kind::Disk),
    (510, &[0x55, 0xaa], Kind::Disk),
];

impl Kind {
    /// By the first [`HEAD_BYTES`] of a file, or all that it has.
    pub(super) fn of(head: &[u8]) -> Self {
        if head.is_empty() {
            return Self::Empty;
        }
        // Before the marks: a file in the archive may have bytes of another kind at such a place.
        if tar::is_header(head) {
            return Self::Tar;
        }
        let has = |at: usize, mark: &[u8]| head.get(at..at + mark.len()) == Some(mark);
        match MARKS.iter().find(|(at, mark, _)| has(*at, mark)) {
            Some((_, _, kind)) => *kind,
            // A block of zeros ends an archive: this is one without entries.
            None if head.get(..512).is_some_and(|block| block.iter().all(|b| *b == 0)) => Self::Tar,
            None => Self::of_text(head),
        }
    }

    fn of_text(head: &[u8]) -> Self {
        let Some(text) = text(head) else { return Self::Unknown };
        let start: String = text.trim_start().chars().take(14).collect();
        let start = start.to_ascii_lowercase();
        if start.starts_with("<!doctype html") || start.starts_with("<html") {
            Self::Html
        } else if start.starts_with(['{', '[']) {
            Self::Json
        } else {
            Self::Text
        }
    }

    /// By the names at the top of an archive: layers are no root file system.
    pub(super) fn of_top<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Self {
        let has = |wanted: &str| names.clone().any(|name| name == wanted);
        let is_layers = |name: &str| {
            let is_hex = name.len() >= 64 && name.bytes().take(64).all(|b| b.is_ascii_hexdigit());
            let known = ["blobs", "index.json", "manifest.json", "oci-layout", "repositories"];
            is_hex || known.contains(&name)
        };
        if !names.clone().all(is_layers) {
            return Self::Tar;
        }
        match (has("manifest.json"), has("oci-layout")) {
            (true, _) => Self::DockerSave,
            (false, true) => Self::OciLayout,
            (false, false) => Self::Tar,
        }
    }

    /// What to do with it.
    #[must_use]
    pub fn way_out(self) -> &'static str {
        match self {
            Self::Zstd => {
                "decompress it first: `zstd -d FILE`, or `zstd -dc FILE |` and - as the file"
            }
            Self::Xz => "decompress it first: `xz -d FILE`, or `xz -dc FILE |` and - as the file",
            Self::Bzip2 => {
                "decompress it first: `bzip2 -d FILE`, or `bzip2 -dc FILE |` and - as the file"
            }
            Self::Lz4 => {
                "decompress it first: `lz4 -d FILE`, or `lz4 -dc FILE |` and - as the file"
            }
            Self::Zip | Self::SevenZip | Self::Cpio => {
                "unpack it and pack it as tar: `tar -C DIR -c . > rootfs.tar`"
            }
            Self::Ext4 | Self::Xfs | Self::Btrfs | Self::Squashfs | Self::Erofs | Self::Iso => {
                "mount it and pack what is in it: `mount -o ro FILE /mnt`, `tar -C /mnt -c . > rootfs.tar`"
            }
            Self::Qcow2 | Self::Disk => {
                "mount the partition that has the root file system and pack it: `tar -C /mnt -c . > rootfs.tar`"
            }
            Self::DockerSave | Self::OciLayout => {
                "images in layers come in a later version; until then export the root file system: \
                 `docker create --name x IMAGE`, `docker export x > rootfs.tar`"
            }
            Self::Html => "was a page saved in place of the file? look at the address it came from",
            Self::Empty => "was the download or the program before the pipe broken off?",
            Self::Tar
            | Self::Gzip
            | Self::DebianPackage
            | Self::RpmPackage
            | Self::Program
            | Self::Pdf
            | Self::Json
            | Self::Text
            | Self::Unknown => {
                "give a root file system as tar or tar.gz, as `docker export` and `mmdebstrap` write it"
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tar => "a tar archive",
            Self::Gzip => "compressed with gzip",
            Self::Zstd => "compressed with zstd",
            Self::Xz => "compressed with xz",
            Self::Bzip2 => "compressed with bzip2",
            Self::Lz4 => "compressed with lz4",
            Self::Zip => "a zip archive",
            Self::SevenZip => "a 7z archive",
            Self::Cpio => "a cpio archive",
            Self::DebianPackage => "a Debian package or an `ar` archive",
            Self::RpmPackage => "an rpm package",
            Self::Program => "a program (ELF)",
            Self::Ext4 => "an ext2, ext3 or ext4 file system",
            Self::Xfs => "an xfs file system",
            Self::Btrfs => "a btrfs file system",
            Self::Squashfs => "a squashfs file system",
            Self::Erofs => "an erofs file system",
            Self::Iso => "an ISO 9660 image",
            Self::Qcow2 => "a qcow2 disk image",
            Self::Disk => "a disk image with partitions",
            Self::Pdf => "a PDF document",
            Self::Html => "an HTML page",
            Self::Json => "JSON text",
            Self::Text => "text",
            Self::Empty => "empty",
            Self::DockerSave => "an archive of `docker save` (layers and their manifest)",
            Self::OciLayout => "an OCI image layout (layers and their index)",
            Self::Unknown => "of no kind that is known here",
        })
    }
}

/// The head as text, if it is text: UTF-8, cut anywhere, without control characters.
fn text(head: &[u8]) -> Option<&str> {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(why) if why.error_len().is_none() => {
            std::str::from_utf8(head.get(..why.valid_up_to())?).ok()?
        }
        Err(_) => return None,
    };
    let is_plain = |c: char| !c.is_control() || matches!(c, '\t' | '\n' | '\r' | '\x0c' | '\x1b');
    text.chars().all(is_plain).then_some(text)
}

#[cfg(test)]
mod test {
    use super::*;

    fn at(offset: usize, mark: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; offset];
        bytes.extend_from_slice(mark);
        bytes
    }

    #[test]
    fn content_tells_the_kind() {
        for (bytes, kind) in [
            (Vec::new(), Kind::Empty),
            (at(1080, b"\x53\xef"), Kind::Ext4),
            (at(0x1_0040, b"_BHRfS_M"), Kind::Btrfs),
            (at(0, b"hsqs"), Kind::Squashfs),
            (at(0, b"PK\x03\x04"), Kind::Zip),
            (at(0, b"BZh91AY&SY"), Kind::Bzip2),
            (at(510, b"\x55\xaa"), Kind::Disk),
            (vec![1; 600], Kind::Unknown),
            (b"hello\n".to_vec(), Kind::Text),
            ("gr\u{fc}n".as_bytes().get(..3).unwrap().to_vec(), Kind::Text),
            (b"\n <!DOCTYPE HTML><p>".to_vec(), Kind::Html),
            (b"{\"a\": 1}".to_vec(), Kind::Json),
            (vec![0; 1024], Kind::Tar),
            (vec![0xff; 2048], Kind::Unknown),
        ] {
            assert_eq!(Kind::of(&bytes), kind, "{:?}", bytes.get(..20.min(bytes.len())));
        }
    }

    #[test]
    fn layers_are_no_root_file_system() {
        let of = |names: &[&str]| Kind::of_top(names.iter().copied());
        let hex = "0".repeat(64);
        assert_eq!(of(&["bin", "etc", "usr"]), Kind::Tar);
        assert_eq!(of(&["blobs", "index.json", "oci-layout"]), Kind::OciLayout);
        assert_eq!(of(&["blobs", "index.json", "manifest.json", "oci-layout"]), Kind::DockerSave);
        assert_eq!(of(&[&hex, &format!("{hex}.json"), "manifest.json"]), Kind::DockerSave);
        assert_eq!(of(&["bin", "manifest.json"]), Kind::Tar);
        assert_eq!(of(&[]), Kind::Tar);
    }

    #[test]
    fn every_kind_has_a_way_out() {
        for kind in MARKS.map(|(_, _, kind)| kind) {
            assert!(!kind.to_string().is_empty() && !kind.way_out().is_empty());
        }
    }
}
