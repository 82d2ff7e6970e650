//! Headers of a tar stream: ustar, with a PAX header before it for what does not fit.

use rustix::fs::Stat;

use crate::tar::{Header, NUMBER_MAX, padding, record};

/// The largest number of seven octal digits.
const ID_MAX: u64 = 0o777_7777;

/// What a header says.
pub(super) struct Head<'a> {
    /// Relative; that of a directory ends in a slash.
    pub(super) path: &'a [u8],
    pub(super) kind: u8,
    pub(super) link: &'a [u8],
    pub(super) size: u64,
    pub(super) stat: &'a Stat,
}

/// Appends the headers of one entry.
pub(super) fn head(out: &mut Vec<u8>, head: &Head<'_>) {
    let records = records(head);
    if !records.is_empty() {
        let header = Header::new(b"PaxHeaders/entry", b'x', records.len() as u64).mode(0o644);
        out.extend_from_slice(&header.finish());
        out.extend_from_slice(&records);
        pad(out, records.len() as u64);
    }
    // That of a link means nothing.
    let mode = if head.kind == b'2' { 0o777 } else { head.stat.st_mode & 0o7777 };
    let seconds = u64::try_from(mtime(head.stat).0).unwrap_or(0);
    let header = Header::new(head.path, head.kind, head.size)
        .mode(mode)
        .owner(fitting(head.stat.st_uid), fitting(head.stat.st_gid))
        .mtime(if seconds > NUMBER_MAX { 0 } else { seconds })
        .link(head.link);
    out.extend_from_slice(&header.finish());
}

/// Appends zeros up to the next block after `size` bytes.
pub(super) fn pad(out: &mut Vec<u8>, size: u64) {
    out.resize(out.len() + padding(size), 0);
}

/// Seconds since 1970 and nanoseconds.
pub(super) fn mtime(stat: &Stat) -> (i64, u32) {
    (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

/// Zero for an id that a PAX record says instead.
fn fitting(id: u32) -> u32 {
    if u64::from(id) > ID_MAX { 0 } else { id }
}

fn records(head: &Head<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    let long = |text: &[u8]| text.len() > Header::NAME_BYTES;
    let names = [("path", head.path), ("linkpath", head.link)];
    let is_bytes = |text: &[u8]| std::str::from_utf8(text).is_err();
    if names.iter().any(|(_, text)| long(text) && is_bytes(text)) {
        record(&mut records, "hdrcharset", b"BINARY");
    }
    for (key, text) in names.into_iter().filter(|(_, text)| long(text)) {
        record(&mut records, key, text);
    }
    let numbers = [
        ("size", head.size, NUMBER_MAX),
        ("uid", u64::from(head.stat.st_uid), ID_MAX),
        ("gid", u64::from(head.stat.st_gid), ID_MAX),
    ];
    for (key, number, _) in numbers.into_iter().filter(|(_, number, max)| number > max) {
        record(&mut records, key, number.to_string().as_bytes());
    }
    let (seconds, nanos) = mtime(head.stat);
    if nanos != 0 || u64::try_from(seconds).map_or(true, |seconds| seconds > NUMBER_MAX) {
        record(&mut records, "mtime", time(seconds, nanos).as_bytes());
    }
    records
}

/// A time as a decimal fraction. Before 1970 the fraction counts down as the number does.
fn time(seconds: i64, nanos: u32) -> String {
    let (sign, whole, nanos) = match (seconds < 0, nanos) {
        (true, 1..) => ("-", seconds.unsigned_abs() - 1, 1_000_000_000 - nanos),
        (is_negative, _) => (if is_negative { "-" } else { "" }, seconds.unsigned_abs(), nanos),
    };
    if nanos == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{nanos:09}") }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_are_decimal_fractions() {
        assert_eq!(time(5, 0), "5");
        assert_eq!(time(5, 1), "5.000000001");
        assert_eq!(time(-5, 0), "-5");
        assert_eq!(time(-5, 250_000_000), "-4.750000000");
        assert_eq!(time(-1, 999_999_999), "-0.000000001");
    }
}
