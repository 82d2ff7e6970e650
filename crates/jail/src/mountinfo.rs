//! `/proc/PID/mountinfo`, line by line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount, as the process sees it whose file it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Which directory of its file system is mounted.
    pub(crate) root: PathBuf,
    /// Where.
    pub(crate) point: PathBuf,
    pub(crate) fs_type: String,
    /// Options of the file system; for cgroup v1 they name the controllers.
    pub(crate) super_options: String,
}

/// All mounts of the text. Lines that are no mounts are left out.
pub(crate) fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// `ID PARENT DEV ROOT POINT OPTIONS [TAG…] - TYPE SOURCE SUPER_OPTIONS`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let root = fields.nth(3)?;
    let point = fields.next()?;
    fields.find(|field| *field == b"-")?;
    let fs_type = fields.next()?;
    let super_options = fields.nth(1)?;
    Some(Mount {
        root: unescape(root),
        point: unescape(point),
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        super_options: String::from_utf8_lossy(super_options).into_owned(),
    })
}

/// The kernel writes space, tab, newline and backslash as `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| behind.get(..3)).flatten().and_then(octal_byte);
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn octal_byte(digits: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(digits).ok()?;
    u8::from_str_radix(text, 8).ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn reads_tags_and_escapes() {
        let text =
            b"36 35 98:0 /mnt1 /a\\040b rw,noatime shared:1 - ext3 /dev/root rw,errors=continue\n\
                     junk\n\
                     37 35 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].root, PathBuf::from("/mnt1"));
        assert_eq!(mounts[0].point, PathBuf::from("/a b"));
        assert_eq!(mounts[0].fs_type, "ext3");
        assert_eq!(mounts[1].super_options, "rw,cpu,cpuacct");
    }
}
