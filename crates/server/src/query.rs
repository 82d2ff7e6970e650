//! Query strings. Each route has the names that the OpenAPI document gives it; another one is an error, and
//! so is one that stands there twice (but for `label`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri};
use sandkasten_types::Base64;
use sandkasten_types::limits::EVENT_NUMBER_MAX;
use sandkasten_types::strict::unknown;
use utoipa::openapi::path::ParameterIn;
use utoipa::openapi::{OpenApi, RefOr};

use crate::error::ApiError;

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        Self::of(&parts.uri)
    }
}

impl Query {
    pub(crate) fn of(uri: &Uri) -> Result<Self, ApiError> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri);
        pairs
            .map(|query| Self(query.0))
            .map_err(|_cause| ApiError::invalid("malformed query string"))
    }

    /// # Errors
    /// 400 where the name is there twice.
    pub(crate) fn get(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let mut values = self.0.iter().filter(|(key, _)| key == name);
        let first = values.next().map(|(_, value)| value.as_str());
        match values.next() {
            None => Ok(first),
            Some(_) => Err(ApiError::invalid(format!("duplicate `{name}` in the query"))),
        }
    }

    /// All values of a name that may stand there more than once.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        let values = self.0.iter().filter(|(key, _)| key == name);
        values.map(|(_, value)| value.clone()).collect()
    }

    /// # Errors
    /// 400 where the name is missing or there twice.
    pub(crate) fn require(&self, name: &str) -> Result<&str, ApiError> {
        self.get(name)?.ok_or_else(|| ApiError::invalid(format!("missing `{name}` in the query")))
    }

    /// The file that a call is about: `path`, or `path_base64` for one that is not UTF-8.
    ///
    /// # Errors
    /// 400 where there is none, or both, or no base64.
    pub(crate) fn path(&self) -> Result<Vec<u8>, ApiError> {
        match self.optional_path()? {
            Some(path) => Ok(path),
            None => self.require("path").map(|path| path.as_bytes().to_vec()),
        }
    }

    /// The same, where it may be absent.
    ///
    /// # Errors
    /// 400 for both at once, or no base64.
    pub(crate) fn optional_path(&self) -> Result<Option<Vec<u8>>, ApiError> {
        let base64 = self.get("path_base64")?.map(Base64::decode).transpose();
        let base64 =
            base64.map_err(|error| ApiError::invalid_path(format!("`path_base64` is {error}")))?;
        one_path("path", self.get("path")?.map(str::to_owned), base64)
    }

    /// The labels that are asked for: `label=key=value`, any number of times.
    ///
    /// # Errors
    /// 400 where one has no `=`.
    pub(crate) fn labels(&self) -> Result<Vec<(String, String)>, ApiError> {
        let labels = self.all("label").into_iter().map(|label| match label.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(ApiError::invalid("`label` must be `key=value`")),
        });
        labels.collect()
    }

    /// One of some words.
    ///
    /// # Errors
    /// 400 for another one, which is told what there is.
    pub(crate) fn word<T: Copy>(
        &self,
        name: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, ApiError> {
        let Some(asked) = self.get(name)? else { return Ok(None) };
        match words.iter().find(|(word, _)| *word == asked) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<String> =
                    words.iter().map(|(word, _)| format!("`{word}`")).collect();
                Err(ApiError::invalid(format!("`{name}` must be one of {}", words.join(", "))))
            }
        }
    }

    /// A whole number from `min` to `max`.
    ///
    /// # Errors
    /// 400 for anything else.
    pub(crate) fn whole(&self, name: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.get(name)? else { return Ok(None) };
        match text.parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(ApiError::invalid(format!(
                "`{name}` must be a whole number from {min} to {max}"
            ))),
        }
    }

    /// `true` or `false`, false where absent.
    ///
    /// # Errors
    /// 400 for anything else.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name)? {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiError::invalid(format!("`{name}` must be `true` or `false`"))),
        }
    }

    /// The number of an event: `after`.
    ///
    /// # Errors
    /// 400 where it is no whole number.
    pub(crate) fn after(&self) -> Result<Option<u64>, ApiError> {
        self.get("after")?.map(|text| event_number("`after`", text)).transpose()
    }

    /// A count of bytes, 0 to `limit`.
    ///
    /// # Errors
    /// 400 for anything else.
    pub(crate) fn bytes(&self, name: &str, limit: u64) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.get(name)? else { return Ok(None) };
        match text.parse() {
            Ok(bytes) if bytes <= limit => Ok(Some(bytes)),
            Ok(bytes) => {
                let message = format!("`{name}` is {bytes}; the limit is {limit}");
                Err(ApiError::invalid(message).with("limit", limit))
            }
            Err(_) => {
                Err(ApiError::invalid(format!("`{name}` must be a whole number from 0 to {limit}")))
            }
        }
    }
}

/// Whether something has all of the labels that are asked for.
pub(crate) fn has_all(labels: &BTreeMap<String, String>, asked: &[(String, String)]) -> bool {
    asked.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// The names that the query of each route may have, from the one place that has them: the document.
#[derive(Debug, Default)]
pub(crate) struct QueryNames(HashMap<String, Vec<(Method, Vec<String>)>>);

impl QueryNames {
    pub(crate) fn of(document: &OpenApi) -> Self {
        let mut names = Self::default();
        for (path, item) in &document.paths.paths {
            let operations = [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
                (Method::PATCH, &item.patch),
            ];
            for (method, operation) in operations {
                let Some(operation) = operation else { continue };
                let parameters = operation.parameters.iter().flatten();
                let queries = parameters.filter_map(|one| match one {
                    RefOr::T(one) if one.parameter_in == ParameterIn::Query => {
                        Some(one.name.clone())
                    }
                    RefOr::T(_) | RefOr::Ref(_) => None,
                });
                let queries = queries.collect();
                names.0.entry(path.clone()).or_default().push((method, queries));
            }
        }
        names
    }

    /// `None`: no such route.
    fn known(&self, path: &str, method: &Method) -> Option<&[String]> {
        // What answers GET answers HEAD.
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let of_path = self.0.get(path)?;
        of_path.iter().find(|(known, _)| known == method).map(|(_, names)| names.as_slice())
    }

    fn check(&self, path: &str, method: &Method, uri: &Uri) -> Result<(), ApiError> {
        if uri.query().is_none_or(str::is_empty) {
            return Ok(());
        }
        let Some(known) = self.known(path, method) else { return Ok(()) };
        let query = Query::of(uri)?;
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        match query.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(ApiError::invalid(unknown("query parameter", name, &known))
                .with("name", name.as_str())),
            None => Ok(()),
        }
    }
}

/// A layer inside the router, where the route is known: refuses names that it does not have.
pub(crate) async fn known_query(
    State(names): State<Arc<QueryNames>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let checked = names.check(path.unwrap_or_default(), request.method(), request.uri());
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// The path that a body has in the field `name`, or in base64 in `name_base64`.
///
/// # Errors
/// 400 for both at once, and for none.
pub(crate) fn field_path(
    name: &str,
    text: Option<String>,
    base64: Option<Base64>,
) -> Result<Vec<u8>, ApiError> {
    one_path(name, text, base64)?
        .ok_or_else(|| ApiError::invalid(format!("missing field `{name}` (or `{name}_base64`)")))
}

fn one_path(
    name: &str,
    text: Option<String>,
    base64: Option<Base64>,
) -> Result<Option<Vec<u8>>, ApiError> {
    match (text, base64) {
        (Some(_), Some(_)) => {
            Err(ApiError::invalid(format!("give one of `{name}` and `{name}_base64`, not both")))
        }
        (Some(text), None) => Ok(Some(text.into_bytes())),
        (None, base64) => Ok(base64.map(|base64| base64.0)),
    }
}

/// Where a client wants an event stream to go on: behind the event that it had last. The header is
/// newer than the query: clients that reconnect repeat their address and add the header.
///
/// # Errors
/// 400 where one of the two is no whole number, or the header is there twice.
pub(crate) fn known_event(query: &Query, headers: &HeaderMap) -> Result<u64, ApiError> {
    let after = query.after()?;
    let mut values = headers.get_all(LAST_EVENT_ID).iter();
    let Some(value) = values.next() else { return Ok(after.unwrap_or(0)) };
    if values.next().is_some() {
        return Err(ApiError::invalid("more than one `Last-Event-ID`"));
    }
    event_number("`Last-Event-ID`", value.to_str().unwrap_or_default())
}

fn event_number(what: &str, text: &str) -> Result<u64, ApiError> {
    let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    number
        .filter(|number| *number <= EVENT_NUMBER_MAX)
        .ok_or_else(|| ApiError::invalid(format!("{what} must be the number of an event")))
}

#[cfg(test)]
mod test {
    use super::*;

    async fn query(text: &str) -> Query {
        let request = hyper::Request::get(format!("/?{text}")).body(()).unwrap();
        Query::from_request_parts(&mut request.into_parts().0, &()).await.unwrap()
    }

    #[tokio::test]
    async fn names_are_decoded_and_must_be_unique() {
        let q = query("path=a%20b%2Fc+d&x=1&x=2&other").await;
        assert_eq!(q.require("path").unwrap(), "a b/c d");
        assert!(q.get("x").is_err());
        assert!(q.require("absent").is_err());
    }

    #[test]
    fn a_name_that_the_document_does_not_have_is_refused() {
        let names = QueryNames::of(&crate::routes::router_and_document().1);
        let told = |method: &Method, path: &str, query: &str| {
            let uri = format!("/?{query}").parse().unwrap();
            names.check(path, method, &uri).map_err(|error| error.message)
        };
        let file = "/v1/sessions/{id}/fs/file";
        assert_eq!(told(&Method::GET, file, "path=a&user=root"), Ok(()));
        assert_eq!(told(&Method::HEAD, file, "path=a"), Ok(()));
        assert_eq!(told(&Method::DELETE, "/v1/sessions/{id}", ""), Ok(()));
        assert_eq!(
            told(&Method::GET, file, "path=a&usr=root"),
            Err("unknown query parameter `usr`; did you mean `user`?".into())
        );
        assert_eq!(told(&Method::GET, "/healthz", "x"), Err("unknown query parameter `x`".into()));
    }

    #[tokio::test]
    async fn a_path_is_text_or_base64() {
        assert_eq!(query("path=a%20b").await.path().unwrap(), b"a b");
        assert_eq!(query("path_base64=YX%2Fi%2Fw%3D%3D").await.path().unwrap(), b"a\x7f\xe2\xff");
        assert_eq!(query("x=1").await.optional_path().unwrap(), None);
        for bad in
            ["", "path=a&path_base64=YQ==", "path_base64=!", "path_base64=YQ", "path=a&path=a"]
        {
            assert!(query(bad).await.path().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_of_a_body_is_told_by_the_name_of_its_field() {
        let told = |text: Option<&str>, base64: Option<&[u8]>| {
            let base64 = base64.map(|bytes| Base64(bytes.to_vec()));
            field_path("to", text.map(str::to_owned), base64).map_err(|error| error.message)
        };
        assert_eq!(told(Some("a"), None), Ok(b"a".to_vec()));
        assert_eq!(told(None, Some(b"\xff")), Ok(b"\xff".to_vec()));
        assert_eq!(told(None, None), Err("missing field `to` (or `to_base64`)".into()));
        let both = told(Some("a"), Some(b"a"));
        assert_eq!(both, Err("give one of `to` and `to_base64`, not both".into()));
    }

    #[tokio::test]
    async fn event_numbers_and_flags_are_read_strictly() {
        let known = async |text: &str, header: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.extend(header.map(|v| (LAST_EVENT_ID, v.parse().unwrap())));
            known_event(&query(text).await, &headers).ok()
        };
        assert_eq!(known("", None).await, Some(0));
        assert_eq!(known("after=7", None).await, Some(7));
        assert_eq!(known("after=7", Some("9")).await, Some(9));
        assert_eq!(known("after=9007199254740991", None).await, Some(EVENT_NUMBER_MAX));
        assert_eq!(known("after=9007199254740992", None).await, None);
        for bad in ["after=", "after=+1", "after=-1", "after=1.0", "after=x", "after=1&after=1"] {
            assert_eq!(known(bad, None).await, None, "{bad}");
            assert_eq!(known(bad, Some("1")).await, None, "{bad}");
        }
        for bad in ["", "x", "+1", "1 2"] {
            assert_eq!(known("", Some(bad)).await, None, "{bad}");
        }
        assert!(query("follow=true").await.flag("follow").unwrap());
        assert!(!query("follow=false").await.flag("follow").unwrap());
        assert!(!query("").await.flag("follow").unwrap());
        for bad in ["follow", "follow=1", "follow=TRUE", "follow=true&follow=true"] {
            assert!(query(bad).await.flag("follow").is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn counts_are_whole_numbers_up_to_the_limit() {
        assert_eq!(query("n=0").await.bytes("n", 5).unwrap(), Some(0));
        assert_eq!(query("n=5").await.bytes("n", 5).unwrap(), Some(5));
        assert_eq!(query("").await.bytes("n", 5).unwrap(), None);
        for bad in ["n=6", "n=-1", "n=1.5", "n=", "n=x", "n=99999999999999999999"] {
            assert!(query(bad).await.bytes("n", 5).is_err(), "{bad}");
        }
    }
}
