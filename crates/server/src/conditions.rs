//! Ranges and preconditions of HTTP, as far as files need them (RFC 9110, 13 and 14).

use hyper::HeaderMap;
use hyper::header::{HeaderName, IF_MATCH, IF_NONE_MATCH, IF_RANGE, RANGE};
use sandkasten_engine::{Etag, Expect};

use crate::error::ApiError;

/// Tags of one header that are looked at.
const TAGS_MAX: usize = 64;

/// What a client has to say about which contents it means.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tags {
    Any,
    These(Vec<Etag>),
}

impl Tags {
    fn hold(&self, etag: Etag) -> bool {
        match self {
            Self::Any => true,
            Self::These(tags) => tags.contains(&etag),
        }
    }
}

/// What part of a file is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    /// From the first byte, up to the one behind the last.
    Bytes(u64, u64),
    /// None that is there.
    Outside,
}

/// What must be there before a file is written or removed.
///
/// # Errors
/// 400 for what is not understood: a write that ignored it could destroy something.
pub(crate) fn expect(headers: &HeaderMap) -> Result<Expect, ApiError> {
    let matching = tags(headers, &IF_MATCH, Weak::NeverMatch)?;
    match (matching, tags(headers, &IF_NONE_MATCH, Weak::NeverMatch)?) {
        (None, None) => Ok(Expect::Anything),
        (Some(Tags::Any), None) => Ok(Expect::Something),
        (Some(Tags::These(tags)), None) => {
            Ok(Expect::OneOf(tags.into_iter().map(|tag| tag.0).collect()))
        }
        (None, Some(Tags::Any)) => Ok(Expect::Nothing),
        (_, Some(_)) => Err(ApiError::invalid(
            "`If-None-Match` of a write must be `*`, and there may be no `If-Match` beside it",
        )),
    }
}

/// What a reader gets by its preconditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Send,
    /// 304: the client has it.
    NotModified,
    /// 412.
    Failed,
}

/// # Errors
/// 400 where a header is malformed.
pub(crate) fn verdict(headers: &HeaderMap, etag: Etag) -> Result<Verdict, ApiError> {
    if tags(headers, &IF_MATCH, Weak::NeverMatch)?.is_some_and(|tags| !tags.hold(etag)) {
        return Ok(Verdict::Failed);
    }
    let known = tags(headers, &IF_NONE_MATCH, Weak::Match)?;
    let is_known = known.is_some_and(|tags| tags.hold(etag));
    Ok(if is_known { Verdict::NotModified } else { Verdict::Send })
}

/// The part of `size` bytes that is asked for. What is malformed, of another unit, or more than one
/// range is as if it were not there.
pub(crate) fn part(headers: &HeaderMap, etag: Etag, size: u64) -> Part {
    let Some(range) = text(headers, &RANGE) else { return Part::Whole };
    // A date is no strong validator of ours.
    let is_current = text(headers, &IF_RANGE).is_none_or(|tag| tag.trim().parse() == Ok(etag));
    if !is_current || headers.get_all(RANGE).iter().count() > 1 {
        return Part::Whole;
    }
    range_of(range, size).unwrap_or(Part::Whole)
}

fn range_of(range: &str, size: u64) -> Option<Part> {
    let (unit, range) = range.split_once('=')?;
    if !unit.trim().eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (first, last) = range.trim().split_once('-')?;
    match (first.trim(), last.trim()) {
        ("", last) => Some(match number(last)? {
            0 => Part::Outside,
            _ if size == 0 => Part::Outside,
            bytes => Part::Bytes(size.saturating_sub(bytes), size),
        }),
        (first, last) => {
            let first = number(first)?;
            let end = if last.is_empty() { size } else { number(last)?.saturating_add(1) };
            if end <= first && !last.is_empty() {
                return None;
            }
            Some(if first >= size { Part::Outside } else { Part::Bytes(first, end.min(size)) })
        }
    }
}

/// One so large that it is no `u64` is as good as the largest.
fn number(digits: &str) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// What a tag with `W/` before it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weak {
    Match,
    NeverMatch,
}

/// `None` where the header is absent. Tags that are not of our making match nothing.
fn tags(headers: &HeaderMap, name: &HeaderName, weak: Weak) -> Result<Option<Tags>, ApiError> {
    let malformed = || ApiError::invalid(format!("`{name}` must be `*` or entity tags in quotes"));
    let mut found = Vec::new();
    let mut any = false;
    let mut is_there = false;
    for value in headers.get_all(name) {
        is_there = true;
        for tag in value.to_str().map_err(|_cause| malformed())?.split(',').map(str::trim) {
            if tag == "*" {
                any = true;
                continue;
            }
            let strong = tag.strip_prefix("W/").unwrap_or(tag);
            if strong.len() < 2 || !strong.starts_with('"') || !strong.ends_with('"') {
                return Err(malformed());
            }
            let counts = strong.len() == tag.len() || weak == Weak::Match;
            found.extend(strong.parse::<Etag>().ok().filter(|_| counts));
            if found.len() > TAGS_MAX {
                return Err(ApiError::invalid(format!("more than {TAGS_MAX} tags in `{name}`")));
            }
        }
    }
    match (is_there, any, found.is_empty()) {
        (false, ..) => Ok(None),
        (true, true, false) => Err(malformed()),
        (true, true, true) => Ok(Some(Tags::Any)),
        (true, false, _) => Ok(Some(Tags::These(found))),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod test {
    use super::*;

    const TAG: &str = "\"a-0-1-2\"";
    const OTHER: &str = "\"b-0-1-2\"";

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap()));
        pairs.collect()
    }

    #[test]
    fn ranges() {
        for (range, size, part) in [
            ("bytes=0-0", 10, Part::Bytes(0, 1)),
            ("bytes=2-5", 10, Part::Bytes(2, 6)),
            ("bytes=2-", 10, Part::Bytes(2, 10)),
            ("bytes=2-99", 10, Part::Bytes(2, 10)),
            ("bytes=-3", 10, Part::Bytes(7, 10)),
            ("bytes=-99", 10, Part::Bytes(0, 10)),
            ("Bytes = 9 - 9", 10, Part::Bytes(9, 10)),
            ("bytes=0-99999999999999999999999", 10, Part::Bytes(0, 10)),
            ("bytes=10-", 10, Part::Outside),
            ("bytes=10-11", 10, Part::Outside),
            ("bytes=-0", 10, Part::Outside),
            ("bytes=0-", 0, Part::Outside),
            ("bytes=-1", 0, Part::Outside),
            ("bytes=5-2", 10, Part::Whole),
            ("bytes=0-1,3-4", 10, Part::Whole),
            ("bytes=", 10, Part::Whole),
            ("bytes=-", 10, Part::Whole),
            ("bytes=a-b", 10, Part::Whole),
            ("bytes=+1-2", 10, Part::Whole),
            ("lines=0-1", 10, Part::Whole),
            ("0-1", 10, Part::Whole),
        ] {
            let etag = TAG.parse().unwrap();
            assert_eq!(super::part(&headers(&[(RANGE, range)]), etag, size), part, "{range}");
        }
    }

    #[test]
    fn a_range_holds_for_the_contents_that_it_names() {
        let etag = TAG.parse().unwrap();
        let with = |tag| part(&headers(&[(RANGE, "bytes=1-2"), (IF_RANGE, tag)]), etag, 10);
        assert_eq!(with(TAG), Part::Bytes(1, 3));
        assert_eq!(with(OTHER), Part::Whole);
        assert_eq!(with("W/\"a-0-1-2\""), Part::Whole);
        assert_eq!(with("Wed, 21 Oct 2015 07:28:00 GMT"), Part::Whole);
        assert_eq!(part(&HeaderMap::new(), etag, 10), Part::Whole);
    }

    #[test]
    fn readers() {
        let etag = TAG.parse().unwrap();
        let verdict = |name: &HeaderName, value: &str| {
            super::verdict(&headers(&[(name.clone(), value)]), etag).ok()
        };
        assert_eq!(verdict(&IF_MATCH, TAG), Some(Verdict::Send));
        assert_eq!(verdict(&IF_MATCH, &format!("{OTHER}, {TAG}")), Some(Verdict::Send));
        assert_eq!(verdict(&IF_MATCH, "*"), Some(Verdict::Send));
        assert_eq!(verdict(&IF_MATCH, OTHER), Some(Verdict::Failed));
        assert_eq!(verdict(&IF_MATCH, "W/\"a-0-1-2\""), Some(Verdict::Failed));
        assert_eq!(verdict(&IF_MATCH, "\"of somebody else\""), Some(Verdict::Failed));
        assert_eq!(verdict(&IF_NONE_MATCH, TAG), Some(Verdict::NotModified));
        assert_eq!(verdict(&IF_NONE_MATCH, "W/\"a-0-1-2\""), Some(Verdict::NotModified));
        assert_eq!(verdict(&IF_NONE_MATCH, "*"), Some(Verdict::NotModified));
        assert_eq!(verdict(&IF_NONE_MATCH, OTHER), Some(Verdict::Send));
        for bad in ["", "a-0-1-2", "\"", "*, \"a-0-1-2\""] {
            assert_eq!(verdict(&IF_MATCH, bad), None, "{bad}");
        }
    }

    #[test]
    fn writers() {
        let expect = |pairs: &[(HeaderName, &str)]| super::expect(&headers(pairs)).ok();
        let tag: Etag = TAG.parse().unwrap();
        assert_eq!(expect(&[]), Some(Expect::Anything));
        assert_eq!(expect(&[(IF_MATCH, TAG)]), Some(Expect::OneOf(vec![tag.0])));
        assert_eq!(expect(&[(IF_MATCH, "\"else\"")]), Some(Expect::OneOf(Vec::new())));
        assert_eq!(expect(&[(IF_MATCH, "*")]), Some(Expect::Something));
        assert_eq!(expect(&[(IF_NONE_MATCH, "*")]), Some(Expect::Nothing));
        assert_eq!(expect(&[(IF_NONE_MATCH, TAG)]), None);
        assert_eq!(expect(&[(IF_MATCH, TAG), (IF_NONE_MATCH, "*")]), None);
    }
}
