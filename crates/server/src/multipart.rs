//! `multipart/form-data`, taken apart as it arrives, in constant memory.
//!
//! Written here and not taken from a crate, because what matters is what the crates leave open: how
//! clients write file names (see [`parameters`]), and that every part of it has a limit.
//!
//! ```text
//! Preamble ──delimiter──> Head ──empty line──> Data ──delimiter──> Head …
//!                                                   ──last delimiter──> Done
//! ```

use bytes::{Bytes, BytesMut};
use hyper::HeaderMap;
use hyper::header::CONTENT_TYPE;
use sandkasten_types::ErrorCode;
use sandkasten_types::limits::{UPLOAD_OVERHEAD_BYTES_MAX, UPLOAD_PARTS_MAX};

use crate::body::Reader;
use crate::error::ApiError;

const HEAD_BYTES_MAX: usize = 8 * 1024;
/// RFC 2046.
const BOUNDARY_BYTES_MAX: usize = 70;

/// Whose name a part has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartHead {
    pub(crate) name: String,
    /// `None` for a plain form field.
    pub(crate) file_name: Option<String>,
}

/// A multipart body being read.
#[derive(Debug)]
pub(crate) struct Multipart {
    reader: Reader,
    splitter: Splitter,
}

impl Multipart {
    /// # Errors
    /// 400 where the content type is another or names no boundary.
    pub(crate) fn new(headers: &HeaderMap, reader: Reader) -> Result<Self, ApiError> {
        Ok(Self { reader, splitter: Splitter::new(&boundary(headers)?) })
    }

    /// The next part; what is left of the one before is skipped.
    ///
    /// # Errors
    /// 400 where the body is malformed, 413 where there is too much beside the files.
    pub(crate) async fn next_part(&mut self) -> Result<Option<PartHead>, ApiError> {
        loop {
            match self.event().await? {
                Event::Part(head) => return Ok(Some(head)),
                Event::Data(skipped) => self.splitter.add_overhead(skipped.len())?,
                Event::PartEnd => {}
                Event::End => return self.skip_rest().await,
            }
        }
    }

    /// The next bytes of the part; `None` at its end.
    ///
    /// # Errors
    /// As [`next_part`](Self::next_part).
    pub(crate) async fn data(&mut self) -> Result<Option<Bytes>, ApiError> {
        match self.event().await? {
            Event::Data(bytes) => Ok(Some(bytes)),
            Event::Part(_) | Event::PartEnd | Event::End => Ok(None),
        }
    }

    async fn event(&mut self) -> Result<Event, ApiError> {
        loop {
            if let Some(event) = self.splitter.next()? {
                return Ok(event);
            }
            match self.reader.next().await? {
                Some(bytes) => self.splitter.feed(&bytes),
                None => return Err(ApiError::invalid("the multipart body has no last boundary")),
            }
        }
    }

    /// Whatever follows the last boundary.
    async fn skip_rest(&mut self) -> Result<Option<PartHead>, ApiError> {
        while let Some(bytes) = self.reader.next().await? {
            self.splitter.add_overhead(bytes.len())?;
        }
        Ok(None)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Part(PartHead),
    Data(Bytes),
    PartEnd,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    Head,
    Data,
    Done,
}

/// The parser without I/O: bytes in, events out.
#[derive(Debug)]
struct Splitter {
    /// Line break, two hyphens, boundary.
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
    parts: usize,
    overhead: u64,
}

/// What stands at a place that looks like a delimiter.
enum Found {
    /// Bytes up to the head that follows.
    Next(usize),
    Last,
    /// The boundary is the start of some longer text.
    Nothing,
    NeedsMore,
}

impl Splitter {
    fn new(boundary: &str) -> Self {
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // The first delimiter may be the first bytes; with this it looks like all others.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Self { delimiter, buffer, state: State::Preamble, parts: 0, overhead: 0 }
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event; `None` where more bytes are needed.
    fn next(&mut self) -> Result<Option<Event>, ApiError> {
        loop {
            match self.state {
                State::Done => return Ok(Some(Event::End)),
                State::Head => return self.head(),
                State::Data => return self.data(),
                State::Preamble => match self.data()? {
                    None => return Ok(None),
                    Some(Event::Data(bytes)) => self.add_overhead(bytes.len())?,
                    Some(_) => {}
                },
            }
        }
    }

    fn add_overhead(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.overhead += bytes as u64;
        if self.overhead > UPLOAD_OVERHEAD_BYTES_MAX {
            let what = "what is beside the files of the upload";
            return Err(ApiError::too_large(what, None, UPLOAD_OVERHEAD_BYTES_MAX));
        }
        Ok(())
    }

    /// Bytes up to the next delimiter, or the end of the part.
    fn data(&mut self) -> Result<Option<Event>, ApiError> {
        let first = self.delimiter.first().copied().unwrap_or_default();
        let mut from = 0;
        loop {
            let rest = self.buffer.get(from..).unwrap_or_default();
            let Some(at) = rest.iter().position(|b| *b == first).map(|at| from + at) else {
                return Ok(self.take(self.buffer.len()));
            };
            let candidate = self.buffer.get(at..).unwrap_or_default();
            let known = candidate.len().min(self.delimiter.len());
            if candidate.get(..known) != self.delimiter.get(..known) {
                from = at + 1;
                continue;
            }
            let found = self.what_follows(candidate);
            if matches!(found, Found::Nothing) {
                from = at + 1;
                continue;
            }
            if at > 0 {
                return Ok(self.take(at));
            }
            return self.boundary(&found);
        }
    }

    fn take(&mut self, bytes: usize) -> Option<Event> {
        (bytes > 0).then(|| Event::Data(self.buffer.split_to(bytes).freeze()))
    }

    /// At a delimiter, or at the start of one.
    fn what_follows(&self, candidate: &[u8]) -> Found {
        let Some(after) = candidate.get(self.delimiter.len()..) else { return Found::NeedsMore };
        if after.starts_with(b"--") {
            return Found::Last;
        }
        let blanks = after.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
        match after.get(blanks..).unwrap_or_default() {
            [] | [b'\r'] if blanks < HEAD_BYTES_MAX => Found::NeedsMore,
            [b'-'] if blanks == 0 => Found::NeedsMore,
            [b'\r', b'\n', ..] => Found::Next(self.delimiter.len() + blanks + 2),
            _ => Found::Nothing,
        }
    }

    fn boundary(&mut self, found: &Found) -> Result<Option<Event>, ApiError> {
        let was_part = self.state == State::Data;
        match found {
            Found::NeedsMore | Found::Nothing => return Ok(None),
            Found::Last => {
                self.state = State::Done;
                self.add_overhead(self.buffer.len())?;
                self.buffer.clear();
            }
            Found::Next(bytes) => {
                self.state = State::Head;
                self.add_overhead(*bytes)?;
                drop(self.buffer.split_to(*bytes));
            }
        }
        Ok(was_part.then_some(Event::PartEnd).or(Some(Event::Data(Bytes::new()))))
    }

    fn head(&mut self) -> Result<Option<Event>, ApiError> {
        let end = if self.buffer.starts_with(b"\r\n") {
            Some(2)
        } else {
            self.buffer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
        };
        match end {
            None if self.buffer.len() <= HEAD_BYTES_MAX => Ok(None),
            Some(end) if end <= HEAD_BYTES_MAX => {
                self.parts += 1;
                if self.parts > UPLOAD_PARTS_MAX {
                    let message = format!("more than {UPLOAD_PARTS_MAX} parts; that is the limit");
                    let error = ApiError::new(ErrorCode::TooLarge, message);
                    return Err(error.with("limit", UPLOAD_PARTS_MAX as u64));
                }
                self.add_overhead(end)?;
                let head = self.buffer.split_to(end);
                self.state = State::Data;
                part_head(&head).map(|head| Some(Event::Part(head)))
            }
            None | Some(_) => Err(ApiError::invalid("the head of a part is too long")),
        }
    }
}

fn boundary(headers: &HeaderMap) -> Result<String, ApiError> {
    let wrong = || ApiError::invalid("the body must be multipart/form-data with a boundary");
    let value = headers.get(CONTENT_TYPE).ok_or_else(wrong)?;
    let value = value.to_str().map_err(|_cause| wrong())?;
    let (kind, rest) = value.split_once(';').ok_or_else(wrong)?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return Err(wrong());
    }
    let found = parameters(rest).into_iter().find(|(name, _)| name == "boundary");
    let (_, boundary) = found.ok_or_else(wrong)?;
    if (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len()) { Ok(boundary) } else { Err(wrong()) }
}

fn part_head(head: &[u8]) -> Result<PartHead, ApiError> {
    let text = std::str::from_utf8(head)
        .map_err(|_cause| ApiError::invalid_path("the head of a part is not UTF-8"))?;
    let missing = || ApiError::invalid("a part has no `Content-Disposition: form-data; name=…`");
    let disposition = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let (_, rest) = disposition.ok_or_else(missing)?.split_once(';').ok_or_else(missing)?;
    let mut name = None;
    let mut file_name = None;
    let mut extended = None;
    for (key, value) in parameters(rest) {
        match key.as_str() {
            "name" => name = Some(unescape(&value)),
            "filename" => file_name = Some(unescape(&value)),
            "filename*" => extended = Some(extended_value(&value)?),
            _ => {}
        }
    }
    let name = name.ok_or_else(missing)?;
    Ok(PartHead { name, file_name: extended.or(file_name) })
}

/// `; key=value; key="value"`. In quotes, `\"` and `\\` stand for `"` and `\` (curl, httpx); any other
/// backslash is itself (browsers).
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| matches!(c, ';' | ' ' | '\t')).is_some() {}
        let mut key = String::new();
        while let Some(c) = chars.next_if(|c| !matches!(c, '=' | ';')) {
            key.push(c);
        }
        match chars.next() {
            Some('=') => {
                let value = parameter_value(&mut chars);
                found.push((key.trim().to_ascii_lowercase(), value));
            }
            Some(_) => {}
            None => return found,
        }
    }
}

fn parameter_value(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> String {
    let mut value = String::new();
    if chars.next_if_eq(&'"').is_none() {
        while let Some(c) = chars.next_if(|c| *c != ';') {
            value.push(c);
        }
        return value.trim().to_owned();
    }
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => value.push(chars.next_if(|c| matches!(c, '"' | '\\')).unwrap_or('\\')),
            _ => value.push(c),
        }
    }
    value
}

/// The three characters that browsers and httpx cannot write in quotes. Other percent signs are
/// themselves: a file may well be called `100%25.txt`.
fn unescape(value: &str) -> String {
    value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

/// `UTF-8''a%20b` (RFC 8187).
fn extended_value(value: &str) -> Result<String, ApiError> {
    let wrong = || ApiError::invalid_path("`filename*` is not well formed");
    let mut parts = value.splitn(3, '\'');
    let (charset, text) = (parts.next().unwrap_or_default(), parts.nth(1).ok_or_else(wrong)?);
    let bytes = percent_decoded(text).ok_or_else(wrong)?;
    match charset.to_ascii_lowercase().as_str() {
        "utf-8" => String::from_utf8(bytes).map_err(|_cause| wrong()),
        "iso-8859-1" => Ok(bytes.into_iter().map(char::from).collect()),
        _ => Err(wrong()),
    }
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            u8::from_str_radix(digits, 16).ok()?
        } else {
            byte
        });
    }
    Some(bytes)
}

/// # Errors
/// 400 where `name` is no name of a file: it has a slash, is `.`, `..` or empty.
pub(crate) fn check_file_name(name: &str) -> Result<(), ApiError> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        let name: String = name.chars().take(80).collect();
        let message = format!("invalid file name `{}`", name.escape_debug());
        return Err(ApiError::invalid_path(message).with("name", name));
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    type Parts = Vec<(PartHead, Vec<u8>)>;

    fn split(body: &[u8], step: usize) -> Result<Parts, ApiError> {
        let mut splitter = Splitter::new("XX");
        let mut parts: Parts = Vec::new();
        let mut pieces = body.chunks(step);
        loop {
            match splitter.next()? {
                Some(Event::Part(head)) => parts.push((head, Vec::new())),
                Some(Event::Data(bytes)) => parts.last_mut().unwrap().1.extend_from_slice(&bytes),
                Some(Event::PartEnd) => {}
                Some(Event::End) => return Ok(parts),
                None => match pieces.next() {
                    Some(piece) => splitter.feed(piece),
                    None => return Err(ApiError::invalid("no end")),
                },
            }
        }
    }

    fn head(disposition: &str) -> Result<PartHead, ApiError> {
        part_head(format!("Content-Disposition: {disposition}\r\n\r\n").as_bytes())
    }

    fn file_name(disposition: &str) -> String {
        head(disposition).unwrap().file_name.unwrap()
    }

    #[test]
    fn parts_come_out_as_the_clients_send_them() {
        let body = "--XX\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n/workspace\r\n\
            --XX\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\
            Content-Type: text/plain\r\n\r\nhello\r\n--XX-\r\n--XXY\r\n\r\n--XX--\r\nepilogue";
        for step in 1..body.len() {
            let parts = split(body.as_bytes(), step).unwrap();
            assert_eq!(parts.len(), 2);
            assert_eq!(parts[0].0, PartHead { name: "path".into(), file_name: None });
            assert_eq!(parts[0].1, b"/workspace");
            assert_eq!(parts[1].0.file_name.as_deref(), Some("a.txt"));
            assert_eq!(parts[1].1, b"hello\r\n--XX-\r\n--XXY\r\n", "step {step}");
        }
    }

    #[test]
    fn empty_parts_and_preambles_are_fine() {
        let body = "hi\r\n--XX \t\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n--XX--";
        for step in 1..body.len() {
            let parts = split(body.as_bytes(), step).unwrap();
            assert_eq!((parts.len(), parts[0].1.len()), (1, 0), "step {step}");
        }
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        let body = "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nhello\r\n--XX--";
        for end in 0..body.len() - 1 {
            assert!(split(&body.as_bytes()[..end], 7).is_err(), "{end}");
        }
        assert!(split(b"--XX\r\nA: b\r\n\r\n\r\n--XX--", 7).is_err());
        assert!(split(b"--XX\r\n\r\n\r\n--XX--", 7).is_err());
    }

    #[test]
    fn everything_has_a_limit() {
        let part = "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\r\n";
        let error = split(part.repeat(UPLOAD_PARTS_MAX + 1).as_bytes(), 4096).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLarge);
        let long = format!("--XX\r\nA: {}\r\n\r\n", "a".repeat(HEAD_BYTES_MAX));
        assert!(split(long.as_bytes(), 4096).unwrap_err().message.contains("too long"));
        let preamble = vec![b'a'; usize::try_from(UPLOAD_OVERHEAD_BYTES_MAX).unwrap() + 1];
        assert_eq!(split(&preamble, 4096).unwrap_err().code, ErrorCode::TooLarge);
    }

    #[test]
    fn file_names_are_read_as_clients_write_them() {
        for (sent, meant) in [
            (r#"form-data; name="f"; filename="a b.txt""#, "a b.txt"),
            (r#"form-data; name="f"; filename="a%22b%0D%0A.txt""#, "a\"b\r\n.txt"),
            (r#"form-data; name="f"; filename="100%25 %2F.txt""#, "100%25 %2F.txt"),
            (r#"form-data; name="f"; filename="a\"b\\c\d""#, "a\"b\\c\\d"),
            (r#"form-data; name="f"; filename="a;b=c.txt"; x=y"#, "a;b=c.txt"),
            (r"form-data; name=f; filename=plain.txt", "plain.txt"),
            (r#"form-data; FileName="é.txt"; Name="f""#, "é.txt"),
            (r#"form-data; name="f"; filename="x"; filename*=UTF-8''%C3%A9%2F"#, "é/"),
            (r#"form-data; name="f"; filename*=iso-8859-1'en'%E9; filename="x""#, "é"),
        ] {
            assert_eq!(file_name(sent), meant, "{sent}");
        }
        for bad in ["UTF-8''%C3", "UTF-8''%x", "UTF-8''%", "koi8-r''a", "a", "''a"] {
            assert!(head(&format!("form-data; name=f; filename*={bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for bad in ["", ".", "..", "a/b", "/", "../../evil", "/etc/evil", "a\0b"] {
            assert_eq!(check_file_name(bad).unwrap_err().code, ErrorCode::InvalidPath, "{bad:?}");
        }
        for good in ["a", "...", ".hidden", "a\"b\r\n", "a\\b", "ä"] {
            assert!(check_file_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn the_boundary_is_read_from_the_content_type() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            boundary(&headers).ok()
        };
        assert_eq!(of("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        let quoted = of("Multipart/Form-Data; charset=x; Boundary=\"a b;c\"");
        assert_eq!(quoted.as_deref(), Some("a b;c"));
        for bad in ["application/json", "multipart/form-data", "multipart/form-data; boundary="] {
            assert_eq!(of(bad), None, "{bad}");
        }
        assert_eq!(boundary(&HeaderMap::new()).ok(), None);
    }

    proptest! {
        #[test]
        fn any_content_comes_through(
            files in prop::collection::vec(prop::collection::vec(prop::sample::select(b"\r\n-Xab".to_vec()), 0..60), 0..5),
            step in 1usize..40,
        ) {
            let holds = |file: &[u8]| [b"\r\n", file].concat().windows(6).any(|w| w == b"\r\n--XX");
            prop_assume!(!files.iter().any(|file| holds(file)));
            let mut body = Vec::new();
            for file in &files {
                body.extend_from_slice(b"--XX\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\n");
                body.extend_from_slice(file);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"--XX--\r\n");
            let parts = split(&body, step).unwrap();
            let contents: Vec<_> = parts.into_iter().map(|(_, content)| content).collect();
            prop_assert_eq!(contents, files);
        }
    }
}
