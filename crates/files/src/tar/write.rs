//! Headers of a tar stream: ustar, and the records of a PAX header for what does not fit.

use super::BLOCK;

/// The largest number of eleven octal digits: what a field of twelve bytes holds.
pub const NUMBER_MAX: u64 = 0o777_7777_7777;

/// A ustar header being filled.
#[derive(Debug)]
pub struct Header([u8; BLOCK]);

impl Header {
    /// Bytes of a path or a link's target. What is longer stands in a PAX record.
    pub const NAME_BYTES: usize = 100;

    /// Of a member, or of the PAX header before one (`x`), that is `size` bytes long. Mode, owner
    /// and time are 0.
    #[must_use]
    pub fn new(path: &[u8], kind: u8, size: u64) -> Self {
        let mut header = Self([0; BLOCK]);
        header.text(0, Self::NAME_BYTES, path);
        header.number(124, 12, if size > NUMBER_MAX { 0 } else { size });
        header.text(156, 1, &[kind]);
        header.text(257, 8, b"ustar\x0000");
        for number in [(100, 8), (108, 8), (116, 8), (136, 12), (329, 8), (337, 8)] {
            header.number(number.0, number.1, 0);
        }
        header
    }

    /// Permission, set-id and sticky bits.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.number(100, 8, u64::from(mode));
        self
    }

    /// At most seven octal digits each.
    #[must_use]
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.number(108, 8, u64::from(uid));
        self.number(116, 8, u64::from(gid));
        self
    }

    /// Seconds since 1970, at most [`NUMBER_MAX`].
    #[must_use]
    pub fn mtime(mut self, seconds: u64) -> Self {
        self.number(136, 12, seconds);
        self
    }

    #[must_use]
    pub fn link(mut self, target: &[u8]) -> Self {
        self.text(157, Self::NAME_BYTES, target);
        self
    }

    /// The block, with its sum.
    #[must_use]
    pub fn finish(mut self) -> [u8; BLOCK] {
        self.text(148, 8, b"        ");
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        self.number(148, 7, sum);
        self.text(154, 2, b"\0 ");
        self.0
    }

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
}

/// Bytes of zeros that follow `size` bytes up to the next block.
#[must_use]
pub fn padding(size: u64) -> usize {
    usize::try_from(size.next_multiple_of(BLOCK as u64) - size).unwrap_or(0)
}

/// Appends a PAX record, `LENGTH KEY=VALUE\n`; the length counts its own digits.
pub fn record(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() > length {
        length += 1;
    }
    out.extend_from_slice(format!("{length} {key}=").as_bytes());
    out.extend_from_slice(value);
    out.push(b'\n');
}

#[cfg(test)]
mod test {
    use super::*;

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
