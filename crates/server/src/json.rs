//! JSON bodies, read strictly.
//!
//! serde_json alone lets through a name given twice where nobody asks for it, or in a map. So a body is
//! read twice: once for its form (one object, no name twice at any depth, nesting, numbers that can be
//! held), once for its meaning (see [`strict`](crate::strict)). A name that nobody knows is an error.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use axum::body::Body;
use axum::extract::{FromRef, FromRequest, Request};
use hyper::HeaderMap;
use hyper::header::CONTENT_ENCODING;
use sandkasten_types::limits::{JSON_DEPTH_MAX, JSON_ITEMS_MAX, JSON_NAMES_MAX};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};

use crate::body::collect;
use crate::budget::{Budget, Share};
use crate::error::ApiError;
use crate::strict::{Way, plain};

/// A request's body as `T`, at most `LIMIT` bytes of JSON. An empty body is `{}`.
#[derive(Debug)]
pub(crate) struct Json<T, const LIMIT: usize> {
    pub(crate) value: T,
    /// Covers `value`.
    _share: Share,
}

impl<S, T, const LIMIT: usize> FromRequest<S> for Json<T, LIMIT>
where
    S: Send + Sync,
    T: DeserializeOwned,
    Budget: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request<Body>, state: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        refuse_coding(&parts.headers)?;
        let (bytes, share) = collect(body, LIMIT, &Budget::from_ref(state)).await?;
        Ok(Self { value: parse(&bytes)?, _share: share })
    }
}

/// # Errors
/// 400 where the body is compressed.
pub(crate) fn refuse_coding(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(CONTENT_ENCODING) {
        Some(coding) if coding.as_bytes() != b"identity" => {
            Err(ApiError::invalid("`Content-Encoding` is not supported; send the body as it is"))
        }
        _ => Ok(()),
    }
}

/// Reads one JSON object.
///
/// # Errors
/// 400 that says where and why.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    check_form(bytes)?;
    let way = Way::default();
    way.read(&mut serde_json::Deserializer::from_slice(bytes)).map_err(|cause| {
        let (field, text) = (way.to_string(), plain(&cause));
        if field.is_empty() {
            return ApiError::invalid(text);
        }
        // What is said of a field begins with a verb; what is said of a name in it stands before it.
        let message = match text.strip_prefix("unknown ") {
            Some(name) => match name.rsplit_once("; did you mean ") {
                Some((name, hint)) => {
                    format!("unknown {name} in `{field}`; did you mean {hint}")
                }
                None => format!("unknown {name} in `{field}`"),
            },
            None if text.starts_with("must ") => format!("`{field}` {text}"),
            None => format!("`{field}`: {text}"),
        };
        ApiError::invalid(message).with("field", field)
    })
}

fn check_form(bytes: &[u8]) -> Result<(), ApiError> {
    let malformed =
        |error: serde_json::Error| ApiError::invalid(format!("malformed JSON: {error}"));
    let (names, items) = (Cell::new(0), Cell::new(0));
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    Form { depth: 1, names: &names, items: &items }
        .deserialize(&mut deserializer)
        .map_err(malformed)?;
    deserializer.end().map_err(malformed)?;
    match bytes.trim_ascii_start().first() {
        Some(b'{') => Ok(()),
        _ => Err(ApiError::invalid("the body must be a JSON object")),
    }
}

/// Visits a value and keeps nothing of it but the names of the objects it is in.
#[derive(Clone, Copy)]
struct Form<'a> {
    /// Of the value's own elements, if it has some.
    depth: usize,
    /// Names seen in the whole body.
    names: &'a Cell<usize>,
    /// Items of arrays seen in it.
    items: &'a Cell<usize>,
}

impl Form<'_> {
    fn inner<E: Error>(self) -> Result<Self, E> {
        if self.depth > JSON_DEPTH_MAX {
            return Err(E::custom(format_args!("nested deeper than {JSON_DEPTH_MAX}")));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Form<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Form<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        while items.next_element_seed(inner)?.is_some() {
            self.items.set(self.items.get() + 1);
            if self.items.get() > JSON_ITEMS_MAX {
                return Err(A::Error::custom(format_args!("more than {JSON_ITEMS_MAX} items")));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let inner = self.inner()?;
        let mut seen = HashSet::new();
        while let Some(name) = members.next_key::<String>()? {
            self.names.set(self.names.get() + 1);
            if self.names.get() > JSON_NAMES_MAX {
                return Err(A::Error::custom(format_args!("more than {JSON_NAMES_MAX} names")));
            }
            if seen.contains(&name) {
                return Err(A::Error::custom(format_args!("duplicate field `{name}`")));
            }
            seen.insert(name);
            members.next_value_seed(inner)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use sandkasten_types::exec::ExecRequest;
    use sandkasten_types::files::EditFile;
    use sandkasten_types::process::{SignalProcess, StartProcess};
    use sandkasten_types::session::CreateSession;

    use super::*;

    fn message<T: DeserializeOwned>(text: &str) -> String {
        match parse::<T>(text.as_bytes()) {
            Ok(_) => "ok".into(),
            Err(error) => error.message,
        }
    }

    #[test]
    fn malformed_bodies_are_refused() {
        for bad in [
            "{",
            "{}}",
            "{} x",
            "nul",
            "[]",
            "null",
            "7",
            "\"a\"",
            "[\"ls\"]",
            "{\"cmd\":\"a\",}",
            "{'cmd':'a'}",
            "{\"cmd\":\"a\",\"x\":NaN}",
            "{\"cmd\":\"a\",\"x\":1e400}",
            "{\"cmd\":\"a\",\"x\":-Infinity}",
            "{\"cmd\":\"\\ud800\"}",
            "{\"cmd\":\"a\nb\"}",
            "{\"cmd\":\"a\",\"cmd\":\"b\"}",
            "{\"cmd\":\"a\",\"c\\u006dd\":\"b\"}",
            "{\"cmd\":\"a\",\"x\":1,\"x\":2}",
            "{\"cmd\":\"a\",\"env\":{\"A\":\"1\",\"A\":\"2\"}}",
            "{\"cmd\":\"a\",\"x\":[{\"y\":{\"z\":1,\"z\":1}}]}",
        ] {
            assert_ne!(message::<ExecRequest>(bad), "ok", "{bad}");
        }
        assert!(parse::<ExecRequest>(b"{\"cmd\":\"\xff\"}").is_err());
    }

    #[test]
    fn depth_64_is_allowed_and_65_is_not() {
        let nested = |depth: usize| {
            let inner = "[".repeat(depth - 1) + &"]".repeat(depth - 1);
            format!("{{\"cmd\":\"\",\"x\":{inner}}}")
        };
        assert_eq!(message::<ExecRequest>(&nested(64)), "unknown field `x`");
        assert!(message::<ExecRequest>(&nested(65)).contains("nested deeper than 64"));
        assert_ne!(message::<ExecRequest>(&nested(10_000)), "ok");
    }

    #[test]
    fn unknown_names_are_told_with_the_nearest_and_absent_bodies_are_empty() {
        for (text, told) in [
            (
                r#"{"limits":{"memory":5}}"#,
                "unknown field `memory` in `limits`; did you mean `memory_mb`?",
            ),
            (r#"{"colour":{"a":[1]}}"#, "unknown field `colour`"),
            (r#"{"ttl":5}"#, "unknown field `ttl`; did you mean `ttl_seconds`?"),
            (r#"{"a at line b":5}"#, "unknown field `a at line b`"),
            (r#"{"limits":{"a; b":5}}"#, "unknown field `a; b` in `limits`"),
            (r#"{"name":["a at line 1 column 2"]}"#, "`name` must be a string, not an array"),
            (
                r#"{"network":{"mod":"none"}}"#,
                "unknown field `mod` in `network`; did you mean `mode`?",
            ),
        ] {
            assert_eq!(message::<CreateSession>(text), told, "{text}");
        }
        let text = r#"{"edits":[{"old":"a","new":"b"},{"old":"a","nwe":"b"}]}"#;
        let told = "unknown field `nwe` in `edits[1]`; did you mean `new`?";
        assert_eq!(message::<EditFile>(text), told);
        assert_eq!(message::<CreateSession>(r#"{"env":{"any":"1"},"labels":{"x":"y"}}"#), "ok");
        for empty in ["", " \n", "{}"] {
            assert_eq!(message::<CreateSession>(empty), "ok");
        }
    }

    #[test]
    fn a_message_names_the_field() {
        assert!(message::<ExecRequest>("{}").contains("missing field `cmd`"));
        assert!(message::<ExecRequest>("").contains("missing field `cmd`"));
        let wrong = message::<ExecRequest>("{\"cmd\":\"a\",\"timeout_ms\":\"5\"}");
        assert!(wrong.contains("`timeout_ms`"), "{wrong}");
        let wrong = message::<CreateSession>("{\"limits\":{\"cpu\":\"x\"}}");
        assert!(wrong.contains("`limits.cpu`"), "{wrong}");
    }

    #[test]
    fn a_message_speaks_of_json_not_of_rust() {
        for (text, told) in [
            (r#"{"ttl_seconds":"5"}"#, "`ttl_seconds` must be a whole number, not the text \"5\""),
            (r#"{"ttl_seconds":1.5}"#, "`ttl_seconds` must be a whole number, not `1.5`"),
            (r#"{"name":{}}"#, "`name` must be a string, not an object"),
            (r#"{"limits":[]}"#, "`limits` must be an object, not an array"),
            (r#"{"limits":7}"#, "`limits` must be an object, not `7`"),
            (r#"{"labels":{"a":true}}"#, "`labels.a` must be a string, not `true`"),
            (
                r#"{"network":true}"#,
                "`network` must be a network mode or an object with `mode`, not `true`",
            ),
        ] {
            assert_eq!(message::<CreateSession>(text), told, "{text}");
        }
        let signal = message::<SignalProcess>(r#"{"signal":{}}"#);
        assert_eq!(signal, "`signal` must be the name or the number of a signal, not an object");
        let stdin = message::<StartProcess>(r#"{"argv":["a"],"stdin":7}"#);
        assert!(stdin.starts_with("`stdin` must be `none`, `open` or an object"), "{stdin}");
    }

    #[test]
    fn whole_numbers_may_have_a_fraction_of_nothing() {
        let exec = |timeout: &str| {
            let body = format!(r#"{{"cmd":"","timeout_ms":{timeout}}}"#);
            parse::<ExecRequest>(body.as_bytes()).map(|request| request.timeout_ms)
        };
        assert_eq!(exec("30000.0"), Ok(Some(30_000)));
        assert_eq!(exec("3e4"), Ok(Some(30_000)));
        assert_eq!(exec("-1.0"), Ok(Some(-1)));
        assert_eq!(exec("null"), Ok(None));
        assert!(exec("1.5").is_err() && exec("1e300").is_err() && exec("true").is_err());
        let limits = parse::<CreateSession>(br#"{"limits":{"pids":64.0,"cpu":1}}"#).unwrap().limits;
        assert_eq!(limits.and_then(|limits| limits.pids), Some(64));
    }

    #[test]
    fn a_flood_of_items_is_refused() {
        let text = format!("{{\"x\":[[0],[{}]]}}", vec!["0"; JSON_ITEMS_MAX].join(","));
        assert!(message::<CreateSession>(&text).contains("more than"));
    }

    #[test]
    fn a_flood_of_names_is_refused() {
        let names: Vec<_> = (0..=JSON_NAMES_MAX).map(|n| format!("\"{n}\":0")).collect();
        let text = format!("{{{}}}", names.join(","));
        assert!(message::<CreateSession>(&text).contains("more than"));
    }
}
