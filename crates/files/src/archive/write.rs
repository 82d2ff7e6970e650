//! Headers of a tar stream: ustar, with a PAX header before it for what does not fit.

use rustix::fs::Stat;

use super::BLOCK;

/// The largest number of eleven octal digits.
const OCTAL_MAX: u64 = 0o777_7777_7777;
/// The largest number of seven octal digits.
const ID_MAX: u64 = 0o777_7777;
const NAME_BYTES: usize = 100;

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
        let mut block = Block::new(b"PaxHeaders/entry", b'x');
        block.number(100, 8, 0o644);
        block.number(108, 8, 0);
        block.number(116, 8, 0);
        block.number(124, 12, records.len() as u64);
        block.number(136, 12, 0);
        out.extend_from_slice(&block.finish());
        out.extend_from_slice(&records);
        pad(out, records.len() as u64);
    }
    let mut block = Block::new(head.path, head.kind);
    // That of a link means nothing.
    let mode = if head.kind == b'2' { 0o777 } else { head.stat.st_mode & 0o7777 };
    block.number(100, 8, u64::from(mode));
    block.number(108, 8, fitting(u64::from(head.stat.st_uid), ID_MAX));
    block.number(116, 8, fitting(u64::from(head.stat.st_gid), ID_MAX));
    block.number(124, 12, fitting(head.size, OCTAL_MAX));
    let seconds = u64::try_from(mtime(head.stat).0).unwrap_or(0);
    block.number(136, 12, fitting(seconds, OCTAL_MAX));
    block.text(157, NAME_BYTES, head.link);
    out.extend_from_slice(&block.finish());
}

/// Appends zeros up to the next block behind `size` bytes.
pub(super) fn pad(out: &mut Vec<u8>, size: u64) {
    out.resize(out.len() + padding(size), 0);
}

pub(super) fn padding(size: u64) -> usize {
    usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or(0)
}

/// Seconds since 1970 and nanoseconds.
pub(super) fn mtime(stat: &Stat) -> (i64, u32) {
    (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

/// Zero for what a PAX record says instead.
fn fitting(number: u64, max: u64) -> u64 {
    if number > max { 0 } else { number }
}

fn records(head: &Head<'_>) -> Vec<u8> {
    let mut records = Vec::new();
    let long = |text: &[u8]| text.len() > NAME_BYTES;
    let names = [("path", head.path), ("linkpath", head.link)];
    let is_bytes = |text: &[u8]| std::str::from_utf8(text).is_err();
    if names.iter().any(|(_, text)| long(text) && is_bytes(text)) {
        record(&mut records, "hdrcharset", b"BINARY");
    }
    for (key, text) in names.into_iter().filter(|(_, text)| long(text)) {
        record(&mut records, key, text);
    }
    let numbers = [
        ("size", head.size, OCTAL_MAX),
        ("uid", u64::from(head.stat.st_uid), ID_MAX),
        ("gid", u64::from(head.stat.st_gid), ID_MAX),
    ];
    for (key, number, _) in numbers.into_iter().filter(|(_, number, max)| number > max) {
        record(&mut records, key, number.to_string().as_bytes());
    }
    let (seconds, nanos) = mtime(head.stat);
    if nanos != 0 || u64::try_from(seconds).map_or(true, |seconds| seconds > OCTAL_MAX) {
        record(&mut records, "mtime", time(seconds, nanos).as_bytes());
    }
    records
}

/// `LENGTH KEY=VALUE\n`; the length counts its own digits.
fn record(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() > length {
        length += 1;
    }
    out.extend_from_slice(format!("{length} {key}=").as_bytes());
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// A time as a decimal fraction. Before 1970 the fraction counts down as the number does.
fn time(seconds: i64, nanos: u32) -> String {
    let (sign, whole, nanos) = match (seconds < 0, nanos) {
        (true, 1..) => ("-", seconds.unsigned_abs() - 1, 1_000_000_000 - nanos),
        (is_negative, _) => (if is_negative { "-" } else { "" }, seconds.unsigned_abs(), nanos),
    };
    if nanos == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{nanos:09}") }
}

/// A ustar header being filled.
struct Block([u8; BLOCK]);

impl Block {
    fn new(path: &[u8], kind: u8) -> Self {
        let mut block = Self([0; BLOCK]);
        block.text(0, NAME_BYTES, path);
        block.text(156, 1, &[kind]);
        block.text(257, 8, b"ustar\x0000");
        block.number(329, 8, 0);
        block.number(337, 8, 0);
        block
    }

    /// What does not fit stands in a PAX record.
    fn text(&mut self, at: usize, length: usize, text: &[u8]) {
        let text = text.get(..length).unwrap_or(text);
        if let Some(field) = self.0.get_mut(at..at + text.len()) {
            field.copy_from_slice(text);
        }
    }

    fn number(&mut self, at: usize, length: usize, number: u64) {
        let mut left = number;
        let digits = self.0.get_mut(at..at + length - 1).unwrap_or_default();
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + u8::try_from(left & 7).unwrap_or(0);
            left >>= 3;
        }
    }

    fn finish(mut self) -> [u8; BLOCK] {
        self.text(148, 8, b"        ");
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        self.number(148, 7, sum);
        self.text(154, 2, b"\0 ");
        self.0
    }
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

    #[test]
    fn a_record_counts_its_own_digits() {
        for length in 0..200 {
            let mut out = Vec::new();
            record(&mut out, "path", &vec![b'x'; length]);
            let said: usize =
                std::str::from_utf8(&out).unwrap().split(' ').next().unwrap().parse().unwrap();
            assert_eq!(said, out.len());
        }
    }
}
