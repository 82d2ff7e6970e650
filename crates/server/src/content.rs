//! Bodies that are mostly one text, taken apart in place.
//!
//! The content (of a file, of a stdin) is nearly all of such a body, and often base64. It stays where it was
//! received: what is before it and after it, the *envelope*, is small and is parsed as any other JSON, with an
//! empty text where the content was; then the content is unescaped and decoded into its own memory.
//!
//! ```text
//! {"path":"a","content_base64":"aGVsbG8="}   →   {"path":"a","content_base64":""}   +   hello
//! ```

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use axum::body::Body;
use bytes::Bytes;
use sandkasten_types::Base64;
use sandkasten_types::exec::ExecRequest;
use sandkasten_types::files::WriteFile;
use sandkasten_types::limits::{
    BODY_BYTES_MAX, BODY_BYTES_MAX_CONTENT, BODY_BYTES_MAX_EXEC, BODY_BYTES_MAX_PROCESS, MIB,
};
use sandkasten_types::process::{ProcessStdin, StartProcess};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::body::{Reader, check_length};
use crate::budget::{Budget, Share};
use crate::error::ApiError;
use crate::json;

/// A body without `Content-Length` gets memory in such steps.
const STEP_BYTES: usize = MIB;
/// What is longer is taken apart on another thread: it takes a millisecond or more.
const LONG_BYTES: usize = MIB;

/// Where the content stands in a kind of body.
#[derive(Debug)]
struct Shape {
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

/// How a content is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Base64,
}

/// A request to write a file, and the content. The share covers both.
///
/// # Errors
/// 400 where the body is not the JSON it should be, or has not exactly one content; 413 over a limit; 503
/// where memory is short.
pub(crate) async fn write_file(
    body: Body,
    budget: &Budget,
) -> Result<(WriteFile, Vec<Bytes>, Share), ApiError> {
    let ((request, content), share) = receive(body, &FILE, file, budget).await?;
    Ok((request, vec![content.into()], share))
}

/// A request for a command. The share covers it.
///
/// # Errors
/// As [`write_file`].
pub(crate) async fn exec(body: Body, budget: &Budget) -> Result<(ExecRequest, Share), ApiError> {
    receive(body, &EXEC, command, budget).await
}

/// A request for a process. The share covers it.
///
/// # Errors
/// As [`write_file`].
pub(crate) async fn process(
    body: Body,
    budget: &Budget,
) -> Result<(StartProcess, Share), ApiError> {
    receive(body, &PROCESS, program, budget).await
}

async fn receive<T, R: Send + 'static>(
    body: Body,
    shape: &'static Shape,
    read: fn(Apart<T>) -> Result<R, ApiError>,
    budget: &Budget,
) -> Result<(R, Share), ApiError>
where
    T: DeserializeOwned + 'static,
{
    let (bytes, share) = collect(Reader::new(body), shape, budget).await?;
    if bytes.len() <= LONG_BYTES {
        return Ok((read(Apart::of(bytes, shape)?)?, share));
    }
    // The share goes with it: the memory is in use until this is done, whoever waits for it.
    let take = move || Ok((read(Apart::of(bytes, shape)?)?, share));
    let taken = tokio::task::spawn_blocking(take).await;
    taken.map_err(|error| ApiError::internal(error.to_string()))?
}

/// All of a body, in memory of its own size.
async fn collect(
    mut reader: Reader,
    shape: &Shape,
    budget: &Budget,
) -> Result<(Vec<u8>, Share), ApiError> {
    let (length, limit) = (reader.length(), BODY_BYTES_MAX_CONTENT);
    check_length(length, limit as u64)?;
    // What is parsed from the envelope lives beside it.
    let held = |bytes: u64| bytes + bytes.min(shape.envelope_bytes_max as u64);
    let mut share = budget.try_take(held(length.unwrap_or(0)))?;
    let mut bytes = Vec::with_capacity(usize::try_from(length.unwrap_or(0)).unwrap_or(0));
    while let Some(piece) = reader.next().await? {
        let total = bytes.len() + piece.len();
        if total > limit {
            return Err(ApiError::too_large("the body", None, limit as u64));
        }
        share.grow_to(held(total as u64))?;
        if total > bytes.capacity() {
            bytes.reserve_exact(piece.len().max(STEP_BYTES));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes, share))
}

/// A body that is taken apart.
#[derive(Debug)]
struct Apart<T> {
    request: T,
    content: Option<(Kind, Vec<u8>)>,
}

impl<T: DeserializeOwned> Apart<T> {
    /// # Errors
    /// 400 where the body is not the JSON it should be, 413 where the envelope is larger than any request
    /// needs.
    fn of(body: Vec<u8>, shape: &Shape) -> Result<Self, ApiError> {
        let found = find(&body, shape.places)?;
        let part = |range: Range<usize>| body.get(range).unwrap_or_default();
        let (start, end) = found.as_ref().map_or((0, 0), |(_, at)| (at.start, at.end));
        let envelope = [part(0..start), part(end..body.len())].concat();
        let limit = shape.envelope_bytes_max;
        if envelope.len() > limit {
            return Err(ApiError::too_large(shape.envelope, None, limit as u64));
        }
        let request = json::parse(&envelope)?;
        let content = found.map(|(kind, at)| Ok::<_, ApiError>((kind, content(body, at, kind)?)));
        Ok(Self { request, content: content.transpose()? })
    }
}

fn file(apart: Apart<WriteFile>) -> Result<(WriteFile, Vec<u8>), ApiError> {
    let Apart { request, content } = apart;
    if request.text.is_some() && request.content_base64.is_some() {
        return Err(ApiError::invalid("give one of `text` and `content_base64`, not both"));
    }
    let missing = || ApiError::invalid("missing field `text` or `content_base64`");
    let (_, content) = content.ok_or_else(missing)?;
    Ok((request, content))
}

fn command(apart: Apart<ExecRequest>) -> Result<ExecRequest, ApiError> {
    let Apart { mut request, content } = apart;
    if let Some((_, bytes)) = content {
        request.stdin = Some(text(bytes)?);
    }
    Ok(request)
}

fn program(apart: Apart<StartProcess>) -> Result<StartProcess, ApiError> {
    let Apart { mut request, content } = apart;
    request.stdin = match content {
        None => request.stdin,
        Some((Kind::Base64, bytes)) => Some(ProcessStdin::Data { base64: Base64(bytes) }),
        Some((Kind::Text, bytes)) => Some(ProcessStdin::Text { text: text(bytes)? }),
    };
    Ok(request)
}

/// Where a content stands, without its quotes. What is no string is no content.
fn find(body: &[u8], places: &[(&[&str], Kind)]) -> Result<Option<(Kind, Range<usize>)>, ApiError> {
    for (path, kind) in places {
        let mut value = Some(body);
        for name in *path {
            value = value.map(|value| member(value, name)).transpose()?.flatten();
        }
        let Some(string) = value.filter(|value| value.starts_with(b"\"")) else { continue };
        let start = string.as_ptr().addr() - body.as_ptr().addr();
        return Ok(Some((*kind, start + 1..start + string.len() - 1)));
    }
    Ok(None)
}

/// The value of a name in an object; the last one where there are several, which the form of the envelope
/// does not allow. What is no object has none.
fn member<'a>(object: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, ApiError> {
    let found = serde_json::Deserializer::from_slice(object).deserialize_map(Member(name));
    match found {
        Ok(found) => Ok(found.map(|value| value.get().as_bytes())),
        Err(error) if error.is_data() => Ok(None),
        Err(error) => Err(ApiError::invalid(format!("malformed JSON: {error}"))),
    }
}

struct Member<'n>(&'n str);

/// Borrowed where it has no escapes: names may be many, or long.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Visitor<'de> for Member<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(Name(name)) = members.next_key()? {
            if name == self.0 {
                found = Some(members.next_value()?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// The bytes of a content, in the memory of the body.
fn content(mut body: Vec<u8>, at: Range<usize>, kind: Kind) -> Result<Vec<u8>, ApiError> {
    body.truncate(at.end);
    body.drain(..at.start);
    unescape(&mut body)?;
    match kind {
        Kind::Text => Ok(body),
        Kind::Base64 => Base64::decode(body).map(|bytes| bytes.0).map_err(|_cause| bad_base64()),
    }
}

fn text(bytes: Vec<u8>) -> Result<String, ApiError> {
    String::from_utf8(bytes).map_err(|_cause| bad_string())
}

/// Takes the escapes out of the inside of a JSON string. No character is longer than its escape.
fn unescape(text: &mut Vec<u8>) -> Result<(), ApiError> {
    let (mut from, mut to) = (0, 0);
    loop {
        let rest = text.get(from..).unwrap_or_default();
        let run = memchr::memchr(b'\\', rest).unwrap_or(rest.len());
        text.copy_within(from..from + run, to);
        (from, to) = (from + run, to + run);
        let Some(escaped) = text.get(from + 1..) else { break };
        let (char, length) = escape(escaped).ok_or_else(bad_string)?;
        let mut utf8 = [0; 4];
        let utf8 = char.encode_utf8(&mut utf8).as_bytes();
        if let Some(place) = text.get_mut(to..to + utf8.len()) {
            place.copy_from_slice(utf8);
        }
        (from, to) = (from + 1 + length, to + utf8.len());
    }
    text.truncate(to);
    Ok(())
}

/// The character of an escape, and how many bytes follow its backslash.
fn escape(text: &[u8]) -> Option<(char, usize)> {
    let char = match text.first()? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return escape_of_units(text),
        _ => return None,
    };
    Some((char, 1))
}

/// `uXXXX`, or a pair of those, which stands for one character.
fn escape_of_units(text: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = std::str::from_utf8(text.get(at..at + 4)?).ok()?;
        u16::from_str_radix(digits, 16).ok()
    };
    let first = unit(1)?;
    if !(0xd800..0xdc00).contains(&first) {
        return Some((char::from_u32(u32::from(first))?, 5));
    }
    let second = text.get(5..7).filter(|next| *next == b"\\u").and_then(|_| unit(7))?;
    let char = char::decode_utf16([first, second]).next()?.ok()?;
    Some((char, 11))
}

fn bad_string() -> ApiError {
    ApiError::invalid("malformed JSON: invalid character or escape in a string")
}

fn bad_base64() -> ApiError {
    ApiError::invalid("not base64 (standard alphabet, with padding)")
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn read(body: &[u8]) -> Result<(WriteFile, Vec<u8>), ApiError> {
        file(Apart::of(body.to_vec(), &FILE)?)
    }

    fn exec(body: &str) -> Result<ExecRequest, ApiError> {
        command(Apart::of(body.into(), &EXEC)?)
    }

    fn process(body: &str) -> Result<StartProcess, ApiError> {
        program(Apart::of(body.into(), &PROCESS)?)
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
        let pad = |bytes: usize| exec(&format!(r#"{{"cmd":"","pad":"{}"}}"#, "x".repeat(bytes)));
        let error = pad(BODY_BYTES_MAX_EXEC - 100).unwrap_err();
        assert!(error.message.starts_with("unknown field"), "{}", error.message);
        let error = pad(BODY_BYTES_MAX_EXEC).unwrap_err();
        assert_eq!(error.code, sandkasten_types::ErrorCode::TooLarge);
        let stdin = format!(r#"{{"cmd":"cat","stdin":"{}"}}"#, "x".repeat(2 * BODY_BYTES_MAX_EXEC));
        assert_eq!(exec(&stdin).unwrap().stdin.unwrap().len(), 2 * BODY_BYTES_MAX_EXEC);
    }

    fn content(body: &str) -> Result<Vec<u8>, String> {
        read(body.as_bytes()).map(|(_, content)| content).map_err(|error| error.message)
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
        assert!(read(b"{\"path\":\"a\",\"text\":\"\xff\"}").is_err());
        assert!(read(b"{\"path\":\"a\",\"text\":\"\xc3\"}").is_err());
    }

    #[test]
    fn an_envelope_without_end_is_refused() {
        let body = format!(r#"{{"path":"{}","text":""}}"#, "a".repeat(BODY_BYTES_MAX));
        assert!(read(body.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_come_through(bytes in prop::collection::vec(any::<u8>(), 0..60_000)) {
            let body = format!(r#"{{"path":"a","content_base64":"{}"}}"#, Base64(bytes.clone()));
            let (request, content) = read(body.as_bytes()).unwrap();
            prop_assert_eq!(request.path.as_deref(), Some("a"));
            prop_assert_eq!(content, bytes);
        }

        #[test]
        fn any_text_comes_through(text in ".*") {
            let body = serde_json::json!({"text": text, "path": "é"}).to_string();
            let (_, content) = read(body.as_bytes()).unwrap();
            prop_assert_eq!(content, text.into_bytes());
        }

        #[test]
        fn escapes_mean_what_the_library_says(text in r#"(a|é|\\[nt"/bu\\]|\\u[0-9a-fA-F]{4}|\\ud83d\\ude00){0,6}"#) {
            let ours = read(format!(r#"{{"text":"{text}"}}"#).as_bytes()).map(|(_, content)| content);
            let theirs = serde_json::from_str::<String>(&format!("\"{text}\""));
            prop_assert_eq!(ours.ok(), theirs.ok().map(String::into_bytes), "{}", text);
        }
    }
}
