//! One header block, and the records of a PAX header.

use super::read::Piece;
use super::{BLOCK, TarFault};

/// A block of 512 bytes that has been read.
#[derive(Debug)]
pub(super) struct Block(pub(super) [u8; BLOCK]);

impl Block {
    pub(super) const ZEROS: Self = Self([0; BLOCK]);

    pub(super) fn is_zeros(&self) -> bool {
        self.0 == Self::ZEROS.0
    }

    pub(super) fn kind(&self) -> u8 {
        self.byte(156)
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn field(&self, at: usize, length: usize) -> &[u8] {
        self.0.get(at..at + length).unwrap_or_default()
    }

    /// The sum of all bytes, those of its own field taken as blanks.
    pub(super) fn check(&self) -> Result<(), TarFault> {
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let (own, all) = (sum(self.field(148, 8)), sum(&self.0));
        match self.number(148, 8) {
            Ok(said) if said == all - own + 8 * u64::from(b' ') => Ok(()),
            _ => Err(TarFault::NotAnArchive),
        }
    }

    pub(super) fn path(&self) -> Result<Vec<u8>, TarFault> {
        let name = text(self.field(0, 100));
        // GNU headers have times where ustar has the prefix.
        let is_ustar = self.field(257, 6) == b"ustar\0";
        let prefix = if is_ustar { text(self.field(345, 155)) } else { b"" };
        match (prefix, name) {
            (b"", b"") => Err(TarFault::NoName),
            (b"", name) => Ok(name.to_vec()),
            (prefix, name) => Ok([prefix, b"/", name].concat()),
        }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        text(self.field(157, 100)).to_vec()
    }

    pub(super) fn device(&self) -> Result<(u64, u64), TarFault> {
        Ok((self.number(329, 8)?, self.number(337, 8)?))
    }

    /// The size that holds: PAX says it where the field can't. Two that differ are an attack.
    pub(super) fn size(&self, pax: Option<u64>) -> Result<u64, TarFault> {
        let size = self.number(124, 12)?;
        match pax {
            Some(pax) if size != 0 && size != pax => Err(TarFault::TwoSizes),
            Some(pax) => Ok(pax),
            None => Ok(size),
        }
    }

    /// Seconds since 1970; `None` where the field is no number.
    pub(super) fn mtime(&self) -> Option<i64> {
        let field = self.field(136, 12);
        // Before 1970: all bits above the number are set.
        if let Some((0xff, rest)) = field.split_first() {
            let (high, low) = rest.split_at(rest.len().saturating_sub(8));
            let seconds = big_endian(low).cast_signed();
            return (high.iter().all(|byte| *byte == 0xff) && seconds < 0).then_some(seconds);
        }
        self.number(136, 12).ok().map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX))
    }

    /// A number: octal digits, or big-endian binary behind a first byte of 0x80. Blank is 0.
    pub(super) fn number(&self, at: usize, length: usize) -> Result<u64, TarFault> {
        let field = self.field(at, length);
        let number = match field.split_first() {
            Some((0x80, rest)) => {
                let (high, low) = rest.split_at(rest.len().saturating_sub(8));
                high.iter().all(|byte| *byte == 0).then(|| big_endian(low))
            }
            _ => text(field).trim_ascii().iter().try_fold(0_u64, |number, byte| match byte {
                b'0'..=b'7' => number.checked_mul(8)?.checked_add(u64::from(byte - b'0')),
                _ => None,
            }),
        };
        number.ok_or_else(|| TarFault::Number(field.to_vec()))
    }

    /// `count` pairs of GNU's sparse map; an empty one ends it.
    pub(super) fn pieces(
        &self,
        at: usize,
        count: usize,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), TarFault> {
        for at in (0..count).map(|index| at + index * 24) {
            if self.byte(at) == 0 {
                break;
            }
            let (offset, length) = (self.number(at, 12)?, self.number(at + 12, 12)?);
            pieces.push(Piece { offset, length });
        }
        Ok(())
    }
}

/// Whether bytes begin with a header whose sum is right.
#[must_use]
pub fn is_header(bytes: &[u8]) -> bool {
    let block = bytes.first_chunk().map(|block| Block(*block));
    block.is_some_and(|block| block.check().is_ok())
}

/// `LENGTH KEY=VALUE\n`, repeated.
pub(super) fn pax_records(text: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), TarFault>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = pax_record(rest);
        rest = record.map_or(&[][..], |(_, _, tail)| tail);
        Some(record.map(|(key, value, _)| (key, value)).ok_or(TarFault::PaxRecord))
    })
}

fn pax_record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let blank = text.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(text.get(..blank)?).ok()?.parse().ok()?;
    let record = text.get(blank + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((record.get(..equals)?, record.get(equals + 1..)?, text.get(length..)?))
}

pub(super) fn decimal(text: &[u8]) -> Result<u64, TarFault> {
    let is_plain = text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| is_plain);
    let number = number.and_then(|text| text.parse().ok());
    number.ok_or_else(|| TarFault::PaxNumber(text.to_vec()))
}

/// Seconds and nanoseconds of a decimal fraction, finer digits cut off.
pub(super) fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !(whole.bytes().chain(fraction.bytes())).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole: i64 = whole.parse().ok()?;
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
    Some(match (is_negative, nanos) {
        (false, _) => (whole, nanos),
        (true, 0) => (-whole, 0),
        (true, _) => (-whole - 1, 1_000_000_000 - nanos),
    })
}

fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A field up to its NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_before_and_after_1970() {
        assert_eq!(time(b"5"), Some((5, 0)));
        assert_eq!(time(b"5.000000001"), Some((5, 1)));
        assert_eq!(time(b"5.0000000019"), Some((5, 1)));
        assert_eq!(time(b"-4.75"), Some((-5, 250_000_000)));
        assert_eq!(time(b"-0.000000001"), Some((-1, 999_999_999)));
        for bad in [&b""[..], b".", b"x", b"1e3", b"+1", b"99999999999999999999"] {
            assert_eq!(time(bad), None, "{bad:?}");
        }
    }
}
