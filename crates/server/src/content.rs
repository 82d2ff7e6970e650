//! Bodies that are mostly one text, taken apart as they arrive.
//!
//! The content (of a file, of a stdin) is nearly all of such a body, and often base64. It is decoded, or
//! unescaped, piece by piece into segments, so that it costs the memory of its content and not three times
//! that. The rest, the *envelope*, is small and is parsed as any other JSON once it is whole, with an empty
//! text where the content was:
//!
//! ```text
//! {"path":"a","content_base64":"aGVsbG8="}   →   {"path":"a","content_base64":""}   +   hello
//! ```

use axum::body::Body;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sandkasten_types::Base64;
use sandkasten_types::exec::ExecRequest;
use sandkasten_types::files::WriteFile;
use sandkasten_types::limits::{
    BODY_BYTES_MAX, BODY_BYTES_MAX_CONTENT, BODY_BYTES_MAX_EXEC, BODY_BYTES_MAX_PROCESS,
};
use sandkasten_types::process::{ProcessStdin, StartProcess};

use crate::body::{Reader, check_length};
use crate::budget::{Budget, Share};
use crate::error::ApiError;
use crate::json;

/// Content is kept in pieces of this size: no reallocation, no copy, nothing held that is not content.
const SEGMENT_BYTES: usize = 256 * 1024;
/// Characters of base64 decoded at once; a multiple of four.
const DECODE_CHARS: usize = 16 * 1024;
/// Names from the top object down to a content.
const PATH_LEN_MAX: usize = 2;

/// Where the content stands in a kind of body.
#[derive(Debug)]
pub(crate) struct Shape {
    places: &'static [(&'static [&'static str], Kind)],
    /// What is allowed beside the content.
    envelope_bytes_max: usize,
    /// What that is called in an error.
    envelope: &'static str,
}

/// `POST …/fs/write`.
static FILE: Shape = Shape {
    places: &[(&["text"], Kind::Text), (&["content_base64"], Kind::Base64)],
    envelope_bytes_max: BODY_BYTES_MAX,
    envelope: "what is beside the content",
};

/// `POST …/exec` and `…/exec/stream`. Whether `stdin` is base64 is said elsewhere in the body.
static EXEC: Shape = Shape {
    places: &[(&["stdin"], Kind::Text)],
    envelope_bytes_max: BODY_BYTES_MAX_EXEC,
    envelope: "the body without `stdin`",
};

/// `POST …/processes`.
static PROCESS: Shape = Shape {
    places: &[(&["stdin", "base64"], Kind::Base64), (&["stdin", "text"], Kind::Text)],
    envelope_bytes_max: BODY_BYTES_MAX_PROCESS,
    envelope: "the body without `stdin`",
};

/// A request to write a file, and the content. The share covers both.
///
/// # Errors
/// 400 where the body is not the JSON it should be, or has not exactly one content; 413 over a limit; 503
/// where memory is short.
pub(crate) async fn write_file(
    body: Body,
    budget: &Budget,
) -> Result<(WriteFile, Vec<Bytes>, Share), ApiError> {
    let (parser, share) = receive(body, &FILE, budget).await?;
    let (request, content) = parser.file()?;
    Ok((request, content, share))
}

/// A request for a command. The share covers it.
///
/// # Errors
/// As [`write_file`].
pub(crate) async fn exec(body: Body, budget: &Budget) -> Result<(ExecRequest, Share), ApiError> {
    let (parser, share) = receive(body, &EXEC, budget).await?;
    Ok((parser.exec()?, share))
}

/// A request for a process. The share covers it.
///
/// # Errors
/// As [`write_file`].
pub(crate) async fn process(
    body: Body,
    budget: &Budget,
) -> Result<(StartProcess, Share), ApiError> {
    let (parser, share) = receive(body, &PROCESS, budget).await?;
    Ok((parser.process()?, share))
}

async fn receive(
    body: Body,
    shape: &'static Shape,
    budget: &Budget,
) -> Result<(Parser, Share), ApiError> {
    let mut reader = Reader::new(body);
    let limit = BODY_BYTES_MAX_CONTENT as u64;
    check_length(reader.length(), limit)?;
    // Content is held once, and is never larger than the body; what is parsed from the envelope lives
    // beside it.
    let held = |bytes: u64| bytes + bytes.min(shape.envelope_bytes_max as u64);
    let mut share = budget.try_take(held(reader.length().unwrap_or(0)))?;
    let mut parser = Parser::new(shape);
    let mut received = 0;
    while let Some(bytes) = reader.next().await? {
        received += bytes.len() as u64;
        if received > limit {
            return Err(ApiError::too_large("the body", None, limit));
        }
        share.grow_to(held(received))?;
        parser.push(&bytes)?;
    }
    Ok((parser, share))
}

/// The parser. Feed it with [`push`](Self::push), end with one of the kinds of bodies.
#[derive(Debug)]
struct Parser {
    shape: &'static Shape,
    envelope: Vec<u8>,
    place: Place,
    /// Open brackets of the envelope.
    depth: usize,
    /// What the next string is.
    expects: Expects,
    /// Contents that may stand in the open object at each depth, a bit for each of the shape's places.
    scope: [u8; PATH_LEN_MAX],
    /// Those that the last name leads to.
    named: u8,
    kind: Kind,
    unescape: Unescape,
    decode: Decode,
    content: Segments,
    has_content: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    /// In a string of the envelope that began at this offset.
    String {
        start: usize,
        escaped: bool,
    },
    Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expects {
    Name,
    /// Of the last name.
    Value,
    Other,
}

/// How a content is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Base64,
}

impl Parser {
    fn new(shape: &'static Shape) -> Self {
        Self {
            shape,
            envelope: Vec::new(),
            place: Place::Outside,
            depth: 0,
            expects: Expects::Other,
            scope: [0; PATH_LEN_MAX],
            named: 0,
            kind: Kind::Text,
            unescape: Unescape::Plain,
            decode: Decode::default(),
            content: Segments::default(),
            has_content: false,
        }
    }

    /// Takes the next bytes of the body.
    ///
    /// # Errors
    /// 400 where the content can't be decoded, 413 where the rest is larger than any request needs.
    fn push(&mut self, mut bytes: &[u8]) -> Result<(), ApiError> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.place == Place::Content {
                let used = self.content(bytes)?;
                bytes = bytes.get(used..).unwrap_or_default();
            } else {
                self.envelope(*first);
                bytes = rest;
            }
        }
        let limit = self.shape.envelope_bytes_max;
        if self.envelope.len() > limit {
            return Err(ApiError::too_large(self.shape.envelope, None, limit as u64));
        }
        Ok(())
    }

    fn file(mut self) -> Result<(WriteFile, Vec<Bytes>), ApiError> {
        let request: WriteFile = json::parse(&self.envelope)?;
        match (&request.text, &request.content_base64) {
            (Some(_), Some(_)) => {
                Err(ApiError::invalid("give one of `text` and `content_base64`, not both"))
            }
            (None, None) => Err(ApiError::invalid("missing field `text` or `content_base64`")),
            (Some(_), None) => Ok((request, self.content.finish_text()?)),
            (None, Some(_)) => {
                self.decode.finish(&mut self.content)?;
                Ok((request, self.content.finish()))
            }
        }
    }

    fn exec(self) -> Result<ExecRequest, ApiError> {
        let mut request: ExecRequest = json::parse(&self.envelope)?;
        if self.has_content {
            let text = String::from_utf8(joined(self.content.finish()));
            request.stdin = Some(text.map_err(|_cause| bad_utf8())?);
        }
        Ok(request)
    }

    fn process(mut self) -> Result<StartProcess, ApiError> {
        let mut request: StartProcess = json::parse(&self.envelope)?;
        if self.has_content {
            request.stdin = Some(match self.kind {
                Kind::Base64 => {
                    self.decode.finish(&mut self.content)?;
                    ProcessStdin::Data { base64: Base64(joined(self.content.finish())) }
                }
                Kind::Text => {
                    let text = String::from_utf8(joined(self.content.finish()));
                    ProcessStdin::Text { text: text.map_err(|_cause| bad_utf8())? }
                }
            });
        }
        Ok(request)
    }

    /// One byte outside the content.
    fn envelope(&mut self, byte: u8) {
        self.envelope.push(byte);
        match (self.place, byte) {
            (Place::String { start, escaped: true }, _) => {
                self.place = Place::String { start, escaped: false };
            }
            (Place::String { start, .. }, b'\\') => {
                self.place = Place::String { start, escaped: true };
            }
            (Place::String { start, .. }, b'"') => self.string_ends(start),
            (Place::String { .. } | Place::Content, _) => {}
            (Place::Outside, b'"') => self.string_begins(),
            (Place::Outside, b'{' | b'[') => self.opens(byte),
            (Place::Outside, b'}' | b']') => {
                self.depth = self.depth.saturating_sub(1);
                self.expects = Expects::Other;
            }
            (Place::Outside, b':') if self.depth <= PATH_LEN_MAX => self.expects = Expects::Value,
            (Place::Outside, b',') if self.depth <= PATH_LEN_MAX => self.expects = Expects::Name,
            (Place::Outside, _) => {}
        }
    }

    fn opens(&mut self, bracket: u8) {
        let within = match (bracket, self.depth, self.expects) {
            (b'{', 0, _) => u8::MAX,
            (b'{', _, Expects::Value) => self.named,
            _ => 0,
        };
        if let Some(scope) = self.scope.get_mut(self.depth) {
            *scope = within;
        }
        self.depth += 1;
        self.expects = if within == 0 { Expects::Other } else { Expects::Name };
    }

    fn string_begins(&mut self) {
        let start = self.envelope.len() - 1;
        let content = self.content_here().filter(|_| self.expects == Expects::Value);
        self.place = match content {
            Some(kind) => {
                self.kind = kind;
                self.has_content = true;
                Place::Content
            }
            None => Place::String { start, escaped: false },
        };
    }

    /// The content whose last name was read last, at this depth.
    fn content_here(&self) -> Option<Kind> {
        let mut places = self.shape.places.iter().enumerate();
        let here = |(n, (path, _)): &(usize, &(&[&str], Kind))| {
            self.named & (1 << n) != 0 && path.len() == self.depth
        };
        places.find(here).map(|(_, (_, kind))| *kind)
    }

    fn string_ends(&mut self, start: usize) {
        self.place = Place::Outside;
        if self.expects != Expects::Name {
            return;
        }
        self.expects = Expects::Other;
        self.named = 0;
        let Some(level) = self.depth.checked_sub(1) else { return };
        let scope = self.scope.get(level).copied().unwrap_or(0);
        // The name as JSON: it may be written with escapes.
        let raw = self.envelope.get(start..).unwrap_or_default();
        let Ok(name) = serde_json::from_slice::<String>(raw) else { return };
        for (n, (path, _)) in self.shape.places.iter().enumerate() {
            if scope & (1 << n) != 0 && path.get(level).is_some_and(|part| *part == name) {
                self.named |= 1 << n;
            }
        }
    }

    /// Takes bytes of the content and says how many.
    fn content(&mut self, bytes: &[u8]) -> Result<usize, ApiError> {
        if self.unescape == Unescape::Plain {
            let special = |b: &u8| matches!(b, b'"' | b'\\' | 0..0x20);
            let run = bytes.iter().position(special).unwrap_or(bytes.len());
            if run > 0 {
                self.put(bytes.get(..run).unwrap_or_default())?;
                return Ok(run);
            }
        }
        let Some(byte) = bytes.first() else { return Ok(0) };
        match self.unescape.step(*byte)? {
            Step::More => {}
            Step::Char(c) => self.put(c.encode_utf8(&mut [0; 4]).as_bytes())?,
            Step::End => {
                self.envelope.push(b'"');
                self.place = Place::Outside;
                self.expects = Expects::Other;
            }
        }
        Ok(1)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        match self.kind {
            Kind::Base64 => self.decode.push(bytes, &mut self.content),
            Kind::Text => {
                self.content.push(bytes);
                Ok(())
            }
        }
    }
}

/// All segments in one; each is given back as it is copied.
fn joined(segments: Vec<Bytes>) -> Vec<u8> {
    let mut whole = Vec::with_capacity(segments.iter().map(Bytes::len).sum());
    for segment in segments {
        whole.extend_from_slice(&segment);
    }
    whole
}

/// Where an escape sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unescape {
    Plain,
    Backslash,
    /// Digits still to come, and what the ones so far say.
    Hex {
        left: u8,
        value: u32,
        /// The first half of a pair, where this is the second.
        high: Option<u32>,
    },
    /// After the first half of a pair: a backslash must follow, then a `u`.
    Low {
        high: u32,
        backslash: bool,
    },
}

enum Step {
    More,
    Char(char),
    End,
}

impl Unescape {
    fn step(&mut self, byte: u8) -> Result<Step, ApiError> {
        match *self {
            Self::Plain => match byte {
                b'"' => Ok(Step::End),
                b'\\' => self.go_on(Self::Backslash),
                _ => Err(bad_string()),
            },
            Self::Backslash => self.escape(byte),
            Self::Low { high, backslash: false } if byte == b'\\' => {
                self.go_on(Self::Low { high, backslash: true })
            }
            Self::Low { high, backslash: true } if byte == b'u' => {
                self.go_on(Self::Hex { left: 4, value: 0, high: Some(high) })
            }
            Self::Low { .. } => Err(bad_string()),
            Self::Hex { left, value, high } => {
                let digit = char::from(byte).to_digit(16).ok_or_else(bad_string)?;
                let value = value * 16 + digit;
                if left > 1 {
                    return self.go_on(Self::Hex { left: left - 1, value, high });
                }
                self.unit(value, high)
            }
        }
    }

    fn go_on(&mut self, next: Self) -> Result<Step, ApiError> {
        *self = next;
        Ok(Step::More)
    }

    fn escape(&mut self, byte: u8) -> Result<Step, ApiError> {
        let c = match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.go_on(Self::Hex { left: 4, value: 0, high: None }),
            _ => return Err(bad_string()),
        };
        *self = Self::Plain;
        Ok(Step::Char(c))
    }

    /// One UTF-16 unit is complete.
    fn unit(&mut self, value: u32, high: Option<u32>) -> Result<Step, ApiError> {
        let code = match (high, value) {
            (None, 0xd800..0xdc00) => {
                return self.go_on(Self::Low { high: value, backslash: false });
            }
            (None, _) => value,
            (Some(high), 0xdc00..0xe000) => 0x10000 + ((high - 0xd800) << 10) + (value - 0xdc00),
            (Some(_), _) => return Err(bad_string()),
        };
        *self = Self::Plain;
        char::from_u32(code).map(Step::Char).ok_or_else(bad_string)
    }
}

/// base64 of the standard alphabet with padding.
#[derive(Debug, Default)]
struct Decode {
    /// Characters that wait for a multiple of four.
    chars: Vec<u8>,
    is_padded: bool,
}

impl Decode {
    fn push(&mut self, mut bytes: &[u8], out: &mut Segments) -> Result<(), ApiError> {
        while !bytes.is_empty() {
            let room = DECODE_CHARS - self.chars.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chars.extend_from_slice(now);
            bytes = later;
            if self.chars.len() == DECODE_CHARS {
                self.decode(out)?;
            }
        }
        Ok(())
    }

    fn decode(&mut self, out: &mut Segments) -> Result<(), ApiError> {
        if self.is_padded && !self.chars.is_empty() {
            return Err(bad_base64());
        }
        // Padding ends the text: what follows a padded piece is refused above.
        self.is_padded = self.chars.ends_with(b"=");
        let bytes = STANDARD.decode(&self.chars).map_err(|_cause| bad_base64())?;
        self.chars.clear();
        out.push(&bytes);
        Ok(())
    }

    fn finish(&mut self, out: &mut Segments) -> Result<(), ApiError> {
        self.decode(out)
    }
}

#[derive(Debug, Default)]
struct Segments {
    full: Vec<Bytes>,
    last: Vec<u8>,
}

impl Segments {
    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.last.capacity() == 0 {
                // A small file gets a small buffer.
                let size = if self.full.is_empty() { bytes.len() } else { SEGMENT_BYTES };
                self.last.reserve_exact(size.min(SEGMENT_BYTES));
            }
            let room = SEGMENT_BYTES - self.last.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.last.extend_from_slice(now);
            bytes = later;
            if self.last.len() == SEGMENT_BYTES {
                self.full.push(std::mem::take(&mut self.last).into());
            }
        }
    }

    fn finish(mut self) -> Vec<Bytes> {
        if !self.last.is_empty() {
            self.full.push(self.last.into());
        }
        self.full
    }

    fn finish_text(self) -> Result<Vec<Bytes>, ApiError> {
        let segments = self.finish();
        let mut carry = Vec::new();
        for segment in &segments {
            carry = check_utf8(carry, segment)?;
        }
        if carry.is_empty() { Ok(segments) } else { Err(bad_utf8()) }
    }
}

/// Checks `carry` and `bytes` together and returns the unfinished character at their end.
fn check_utf8(mut carry: Vec<u8>, bytes: &[u8]) -> Result<Vec<u8>, ApiError> {
    let mut rest = bytes;
    // At most three bytes complete a character that was cut.
    while let (Err(_), Some((first, after))) = (std::str::from_utf8(&carry), rest.split_first()) {
        if carry.len() >= 4 {
            return Err(bad_utf8());
        }
        carry.push(*first);
        rest = after;
    }
    if std::str::from_utf8(&carry).is_err() {
        return if carry.len() < 4 { Ok(carry) } else { Err(bad_utf8()) };
    }
    match std::str::from_utf8(rest) {
        Ok(_) => Ok(Vec::new()),
        Err(error) if error.error_len().is_some() => Err(bad_utf8()),
        Err(error) => Ok(rest.get(error.valid_up_to()..).unwrap_or_default().to_vec()),
    }
}

fn bad_string() -> ApiError {
    ApiError::invalid("malformed JSON: invalid character or escape in a string")
}

fn bad_utf8() -> ApiError {
    ApiError::invalid("malformed JSON: invalid UTF-8")
}

fn bad_base64() -> ApiError {
    ApiError::invalid("not base64 (standard alphabet, with padding)")
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn read(body: &[u8], step: usize) -> Result<(WriteFile, Vec<u8>), ApiError> {
        let (request, content) = parsed(&FILE, body, step)?.file()?;
        Ok((request, content.concat()))
    }

    fn parsed(shape: &'static Shape, body: &[u8], step: usize) -> Result<Parser, ApiError> {
        let mut parser = Parser::new(shape);
        for piece in body.chunks(step) {
            parser.push(piece)?;
        }
        Ok(parser)
    }

    fn exec(body: &str) -> Result<ExecRequest, ApiError> {
        parsed(&EXEC, body.as_bytes(), 3)?.exec()
    }

    fn process(body: &str) -> Result<StartProcess, ApiError> {
        parsed(&PROCESS, body.as_bytes(), 3)?.process()
    }

    fn stdin(body: &str) -> Option<ProcessStdin> {
        process(body).unwrap().stdin
    }

    fn data(bytes: &[u8]) -> Option<ProcessStdin> {
        Some(ProcessStdin::Data { base64: Base64(bytes.to_vec()) })
    }

    #[test]
    fn stdin_of_a_command_is_its_text() {
        let request = exec(r#"{"stdin":"a\u00e9\n","cmd":"cat","env":{"stdin":"x"}}"#).unwrap();
        assert_eq!((request.cmd.as_str(), request.stdin.as_deref()), ("cat", Some("aé\n")));
        assert_eq!(request.env.unwrap()["stdin"], "x");
        assert_eq!(exec(r#"{"cmd":"cat","stdin":""}"#).unwrap().stdin.as_deref(), Some(""));
        assert_eq!(exec(r#"{"cmd":"cat","stdin":null}"#).unwrap().stdin, None);
        assert_eq!(exec(r#"{"cmd":"stdin"}"#).unwrap().stdin, None);
        assert!(exec(r#"{"cmd":"cat","stdin":"a","stdin":"b"}"#).is_err());
        assert!(exec(r#"{"cmd":"cat","stdin":["a"]}"#).is_err());
    }

    #[test]
    fn stdin_of_a_process_is_its_bytes() {
        assert_eq!(stdin(r#"{"argv":["a"],"stdin":{"base64":"aGk="}}"#), data(b"hi"));
        assert_eq!(stdin(r#"{"stdin" : { "base64" : "" } ,"argv":["a"]}"#), data(b""));
        assert_eq!(stdin(r#"{"argv":["stdin","base64"]}"#), None);
        let open = Some(ProcessStdin::Mode("open".into()));
        assert_eq!(stdin(r#"{"stdin":"open","env":{"base64":"aGk="}}"#), open);
        let text = Some(ProcessStdin::Text { text: "h\u{e9}\n".into() });
        assert_eq!(stdin(r#"{"argv":["a"],"stdin":{"text":"h\u00e9\n"}}"#), text);
        for other in [
            r#"{"base64":"aGk=","argv":["a"]}"#,
            r#"{"argv":["a"],"x":{"stdin":{"base64":"!"}}}"#,
            r#"{"argv":["a"],"stdin":{"y":{"base64":"!"},"base64":"aA=="}}"#,
        ] {
            let message = process(other).unwrap_err().message;
            assert!(message.starts_with("unknown field `"), "{message}");
        }
        for bad in [
            r#"{"stdin":{"base64":"!"}}"#,
            r#"{"stdin":{"base64":"aGk"}}"#,
            r#"{"stdin":{"base64":"aGk=","base64":"aGk="}}"#,
            r#"{"stdin":[{"base64":"aGk="}]}"#,
            r#"{"stdin":{"base64":7}}"#,
            r#"{"stdin":{}}"#,
            r#"{"stdin":{"base64":"aGk=","text":"hi"}}"#,
            r#"{"stdin":{"text":7}}"#,
        ] {
            assert!(process(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_beside_stdin_has_a_limit_of_its_own() {
        let pad = |bytes: usize| format!(r#"{{"cmd":"","pad":"{}"}}"#, "x".repeat(bytes));
        assert!(parsed(&EXEC, pad(BODY_BYTES_MAX_EXEC - 100).as_bytes(), 65536).is_ok());
        let error = parsed(&EXEC, pad(BODY_BYTES_MAX_EXEC).as_bytes(), 65536).unwrap_err();
        assert_eq!(error.code, sandkasten_types::ErrorCode::TooLarge);
        let stdin = format!(r#"{{"cmd":"cat","stdin":"{}"}}"#, "x".repeat(2 * BODY_BYTES_MAX_EXEC));
        let request = parsed(&EXEC, stdin.as_bytes(), 65536).unwrap().exec().unwrap();
        assert_eq!(request.stdin.unwrap().len(), 2 * BODY_BYTES_MAX_EXEC);
    }

    fn content(body: &str) -> Result<Vec<u8>, String> {
        read(body.as_bytes(), 3).map(|(_, content)| content).map_err(|error| error.message)
    }

    #[test]
    fn the_content_is_found_wherever_it_stands() {
        assert_eq!(content(r#"{"path":"a","content_base64":"aGVsbG8="}"#).unwrap(), b"hello");
        assert_eq!(content(r#"{"content_base64" : "aGVsbG8=" , "path":"a"}"#).unwrap(), b"hello");
        assert_eq!(
            content(r#"{"path":"a","t\u0065xt":"h\u00e9\n\ud83d\ude00"}"#).unwrap(),
            "hé\n😀".as_bytes()
        );
        assert_eq!(
            content(r#"{"path":"text","text":"content_base64"}"#).unwrap(),
            b"content_base64"
        );
        // Slashes may be escaped, and some clients do.
        assert_eq!(
            content(r#"{"path":"a","content_base64":"\/\/\u002b\/"}"#).unwrap(),
            [255, 255, 191]
        );
    }

    #[test]
    fn empty_content_is_content() {
        assert_eq!(content(r#"{"path":"a","text":""}"#).unwrap(), b"");
        assert_eq!(content(r#"{"path":"a","content_base64":""}"#).unwrap(), b"");
    }

    #[test]
    fn names_inside_other_values_are_not_the_content() {
        let body = r#"{"path":"a","x":{"text":"no"},"y":["text",":","no"],"text":"yes"}"#;
        assert_eq!(content(body).unwrap_err(), "unknown field `x`");
        let body = r#"{"path":"text\":\"no","text":"yes"}"#;
        assert_eq!(content(body).unwrap(), b"yes");
    }

    #[test]
    fn exactly_one_content_is_needed() {
        for bad in [
            r#"{"path":"a"}"#,
            r#"{"path":"a","text":null}"#,
            r#"{"path":"a","text":"x","content_base64":""}"#,
            r#"{"path":"a","text":"x","text":"y"}"#,
            r#"{"path":"a","text":7}"#,
            r#"["text","x"]"#,
            r#"{"path":"a","text":"x""#,
            r#"{"path":"a","text":"x"}}"#,
            r#"{"path":"a","text":"x"#,
        ] {
            assert!(content(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bad_encodings_are_refused() {
        for bad in [
            "aGVsbG8",
            "aGVsbG8==",
            "aGVs bG8=",
            "aGVs\\nbG8=",
            "a-_=",
            "====",
            "=aaa",
            "a===",
            "YQ==YQ==",
            "YR==",
            "é",
        ] {
            let body = format!(r#"{{"path":"a","content_base64":"{bad}"}}"#);
            assert!(content(&body).unwrap_err().contains("base64"), "{bad}");
        }
        for bad in [r"\x", r"\u12g4", r"\ud800", r"\ud800a", r"\ud800\u0041", r"\udc00", "a\nb"] {
            let body = format!(r#"{{"path":"a","text":"{bad}"}}"#);
            assert!(content(&body).unwrap_err().contains("malformed"), "{bad}");
        }
        assert!(read(b"{\"path\":\"a\",\"text\":\"\xff\"}", 2).is_err());
        assert!(read(b"{\"path\":\"a\",\"text\":\"\xc3\"}", 2).is_err());
    }

    #[test]
    fn padding_in_the_middle_is_refused_at_every_piece() {
        let mut text = "A".repeat(DECODE_CHARS - 2) + "==";
        text += "AAAA";
        let body = format!(r#"{{"path":"a","content_base64":"{text}"}}"#);
        assert!(content(&body).is_err());
    }

    #[test]
    fn an_envelope_without_end_is_refused() {
        let body = format!(r#"{{"path":"{}","text":""}}"#, "a".repeat(BODY_BYTES_MAX));
        assert!(read(body.as_bytes(), 65536).is_err());
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(bytes in prop::collection::vec(any::<u8>(), 0..60_000), step in 1usize..5000) {
            let body = format!(r#"{{"path":"a","content_base64":"{}"}}"#, STANDARD.encode(&bytes));
            let (request, content) = read(body.as_bytes(), step).unwrap();
            prop_assert_eq!(request.path.as_deref(), Some("a"));
            prop_assert_eq!(content, bytes);
        }

        #[test]
        fn any_text_comes_through(text in ".*", step in 1usize..9) {
            let body = serde_json::json!({"text": text, "path": "é"}).to_string();
            let (_, content) = read(body.as_bytes(), step).unwrap();
            prop_assert_eq!(content, text.into_bytes());
        }
    }
}
