//! JSON answers with long texts or bytes in them, made piece by piece as they leave.
//!
//! ```text
//! {"exit_code":0,…  ,"output_base64":"  aGVsbG8…  "  }
//! └── the rest ──┘                      └ pieces ┘
//! ```
//!
//! What is held is the text itself, or nothing but a piece where it comes from the engine in pieces; never
//! its JSON. Invariant: an answer that breaks off is no whole body: the client sees the connection break.

use std::collections::VecDeque;
use std::future::Future;
use std::io;

use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::Stream;
use hyper::header::{CONTENT_LENGTH, HeaderValue};
use sandkasten_engine::Encoding;
use sandkasten_types::exec::ExecOutput;
use serde::Serialize;

use crate::app::held::Held;
use crate::budget::Share;
use crate::edge::JSON;
use crate::error::ApiError;

/// Bytes encoded at once; a multiple of three, so that only the last piece of base64 is padded.
const PIECE_BYTES: usize = 48 * 1024;

/// A field that may be long.
#[derive(Debug)]
pub(crate) enum Long {
    Text(String),
    Bytes(Vec<u8>),
}

impl Long {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }
}

/// The fields of an exec's output that are there, by name.
pub(crate) fn output_fields(output: ExecOutput) -> Vec<(&'static str, Long)> {
    let texts = [("output", output.output), ("stdout", output.stdout), ("stderr", output.stderr)];
    let bytes = [
        ("output_base64", output.output_base64),
        ("stdout_base64", output.stdout_base64),
        ("stderr_base64", output.stderr_base64),
    ];
    let texts = texts.into_iter().filter_map(|(name, text)| Some((name, Long::Text(text?))));
    let bytes = bytes.into_iter().filter_map(|(name, bytes)| Some((name, Long::Bytes(bytes?.0))));
    texts.chain(bytes).collect()
}

/// The object that `rest` is, with some fields more. `share` covers these until they have left.
///
/// # Errors
/// 500 where `rest` is no object.
pub(crate) fn long(
    rest: &impl Serialize,
    fields: Vec<(&'static str, Long)>,
    share: Option<Share>,
) -> Result<Response, ApiError> {
    let is_short = fields.iter().map(|(_, field)| field.len()).sum::<usize>() <= PIECE_BYTES;
    let mut pieces = Pieces::new(rest, fields)?;
    if is_short {
        let whole = pieces.by_ref().fold(Vec::new(), |mut whole, piece| {
            whole.extend_from_slice(&piece);
            whole
        });
        let length = HeaderValue::from(whole.len());
        let mut response = Response::new(Body::from(whole));
        response.headers_mut().extend([JSON, (CONTENT_LENGTH, length)]);
        return Ok(response);
    }
    let mut response = Response::new(Held::body(pieces, share));
    response.headers_mut().extend([JSON]);
    Ok(response)
}

/// An object as JSON, without its last bracket, ready for one more field.
fn opened(object: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    let json = serde_json::to_vec(object).map_err(|error| ApiError::internal(error.to_string()))?;
    match json.strip_suffix(b"}") {
        Some(opened) => Ok(opened.to_vec()),
        None => Err(ApiError::internal("an answer that is no object")),
    }
}

fn field_begins(opened: &[u8], name: &str) -> String {
    let comma = if opened.ends_with(b"{") { "" } else { "," };
    format!("{comma}\"{name}\":\"")
}

/// The pieces of an answer.
#[derive(Debug)]
struct Pieces(VecDeque<Part>);

#[derive(Debug)]
enum Part {
    Json(Vec<u8>),
    Long { field: Long, at: usize },
}

impl Pieces {
    fn new(rest: &impl Serialize, fields: Vec<(&'static str, Long)>) -> Result<Self, ApiError> {
        let mut parts = VecDeque::new();
        let mut json = opened(rest)?;
        for (name, field) in fields {
            json.extend_from_slice(field_begins(&json, name).as_bytes());
            parts.push_back(Part::Json(std::mem::take(&mut json)));
            parts.push_back(Part::Long { field, at: 0 });
            json.push(b'"');
        }
        json.push(b'}');
        parts.push_back(Part::Json(json));
        Ok(Self(parts))
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            let piece = match self.0.front_mut()? {
                Part::Json(json) => {
                    let json = Bytes::from(std::mem::take(json));
                    self.0.pop_front();
                    return Some(json);
                }
                Part::Long { field: Long::Text(text), at } => text_piece(text, at, PIECE_BYTES),
                Part::Long { field: Long::Bytes(bytes), at } => {
                    let rest = bytes.get(*at..).unwrap_or_default();
                    let piece = rest.get(..PIECE_BYTES).unwrap_or(rest);
                    *at += piece.len();
                    STANDARD.encode(piece).into()
                }
            };
            if !piece.is_empty() {
                return Some(piece);
            }
            self.0.pop_front();
        }
    }
}

/// The next characters as they stand in a JSON string.
fn text_piece(text: &str, at: &mut usize, most: usize) -> Bytes {
    let mut end = text.len().min(*at + most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let json = serde_json::to_vec(text.get(*at..end).unwrap_or_default()).unwrap_or_default();
    *at = end;
    let json = Bytes::from(json);
    // Without the quotes, which stand around the whole.
    json.slice(json.len().min(1)..json.len().saturating_sub(1).max(json.len().min(1)))
}

/// Bytes that come in pieces of any size.
pub(crate) trait Pull: Send + 'static {
    /// The next piece; `None` after the last.
    fn pull(&mut self) -> impl Future<Output = Result<Option<Bytes>, ApiError>> + Send;
}

/// The object that `rest` is, with fields of text or base64 more, whose bytes are pulled as they leave.
/// Pieces of text are valid UTF-8.
///
/// # Errors
/// 500 where `rest` is no object.
pub(crate) fn pulled<P: Pull>(
    rest: &impl Serialize,
    (fields, encoding): (Vec<(&'static str, P)>, Encoding),
    share: Option<Share>,
) -> Result<Response, ApiError> {
    let (json, fields) = (opened(rest)?, fields.into());
    let state = Pulled { json, fields, encoding, open: None, carry: Vec::new(), share };
    let mut response = Response::new(Body::from_stream(state.stream()));
    response.headers_mut().extend([JSON]);
    Ok(response)
}

/// An answer that is being pulled.
struct Pulled<P> {
    /// What is to be sent before the next field.
    json: Vec<u8>,
    fields: VecDeque<(&'static str, P)>,
    encoding: Encoding,
    open: Option<P>,
    /// Bytes that wait for a multiple of three.
    carry: Vec<u8>,
    share: Option<Share>,
}

impl<P: Pull> Pulled<P> {
    fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        futures_util::stream::unfold(Some(self), async |state| {
            let mut state = state?;
            match state.next().await {
                Ok((piece, More::Yes)) => Some((Ok(piece), Some(state))),
                Ok((piece, More::No)) => Some((Ok(piece), None)),
                Err(error) => {
                    let cause = error.internal.unwrap_or(error.message);
                    let cause = cause.escape_debug();
                    tracing::error!(%cause, "an answer breaks off");
                    Some((Err(io::Error::other("broken off")), None))
                }
            }
        })
    }

    /// The next piece, which may be empty.
    async fn next(&mut self) -> Result<(Bytes, More), ApiError> {
        let Some(source) = &mut self.open else { return Ok(self.between()) };
        let Some(piece) = source.pull().await? else {
            self.open = None;
            self.json.push(b'"');
            return Ok((STANDARD.encode(std::mem::take(&mut self.carry)).into(), More::Yes));
        };
        if self.encoding == Encoding::Text {
            let text = str::from_utf8(&piece).unwrap_or("\u{FFFD}");
            return Ok((text_piece(text, &mut 0, text.len()), More::Yes));
        }
        self.carry.extend_from_slice(&piece);
        let whole = self.carry.len() / 3 * 3;
        let encoded = STANDARD.encode(self.carry.get(..whole).unwrap_or_default());
        self.carry.drain(..whole);
        Ok((encoded.into(), More::Yes))
    }

    fn between(&mut self) -> (Bytes, More) {
        let mut json = std::mem::take(&mut self.json);
        let Some((name, source)) = self.fields.pop_front() else {
            json.push(b'}');
            drop(self.share.take());
            return (json.into(), More::No);
        };
        json.extend_from_slice(field_begins(&json, name).as_bytes());
        self.open = Some(source);
        (json.into(), More::Yes)
    }
}

enum More {
    Yes,
    No,
}

#[cfg(test)]
mod test {
    use http_body_util::BodyExt;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    async fn json_of(response: Response) -> Value {
        let body = response.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).expect("JSON")
    }

    #[tokio::test]
    async fn long_fields_are_the_same_as_short_ones() {
        for size in [0, 1, 2, 3, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 5 * PIECE_BYTES] {
            let bytes: Vec<u8> = (0..=255).cycle().take(size).collect();
            let text: String = "ä\n\"\u{1}😀x".chars().cycle().take(size).collect();
            let fields =
                vec![("text", Long::Text(text.clone())), ("bytes", Long::Bytes(bytes.clone()))];
            let response = long(&json!({"a": 1}), fields, None).unwrap();
            let want = json!({"a": 1, "text": text, "bytes": STANDARD.encode(bytes)});
            assert!(json_of(response).await == want, "{size}");
        }
        let response = long(&json!({}), vec![("a", Long::Text("b".into()))], None).unwrap();
        assert_eq!(response.headers()[CONTENT_LENGTH], "9");
        assert_eq!(json_of(response).await, json!({"a": "b"}));
        assert_eq!(json_of(long(&json!({}), vec![], None).unwrap()).await, json!({}));
    }

    impl Pull for std::vec::IntoIter<Vec<u8>> {
        async fn pull(&mut self) -> Result<Option<Bytes>, ApiError> {
            Ok(self.next().map(Bytes::from))
        }
    }

    struct Breaks;

    impl Pull for Breaks {
        async fn pull(&mut self) -> Result<Option<Bytes>, ApiError> {
            Err(ApiError::internal("gone"))
        }
    }

    #[tokio::test]
    async fn an_answer_that_breaks_off_is_not_whole() {
        let response = pulled(&json!({}), (vec![("a", Breaks)], Encoding::Base64), None).unwrap();
        assert!(response.into_body().collect().await.is_err());
    }

    proptest! {
        #[test]
        fn pulled_bytes_are_whole_however_they_are_cut(
            one in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..9),
            two in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..9),
        ) {
            let want = json!({
                "a": 1, "one": STANDARD.encode(one.concat()), "two": STANDARD.encode(two.concat()),
            });
            let fields = vec![("one", one.into_iter()), ("two", two.into_iter())];
            let fields = (fields, Encoding::Base64);
            let response = pulled(&json!({"a": 1}), fields, None).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            prop_assert_eq!(runtime.block_on(json_of(response)), want);
        }
    }
}
