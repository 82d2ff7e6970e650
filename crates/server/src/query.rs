//! Query strings. Unknown names are ignored; a known one may stand there once.

use axum::extract::FromRequestParts;
use hyper::http::request::Parts;
use sandkasten_engine::FileUser;

use crate::error::ApiError;

#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&parts.uri);
        pairs
            .map(|query| Self(query.0))
            .map_err(|_cause| ApiError::invalid("malformed query string"))
    }
}

impl Query {
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

    /// # Errors
    /// 400 where the name is missing or there twice.
    pub(crate) fn require(&self, name: &str) -> Result<&str, ApiError> {
        self.get(name)?.ok_or_else(|| ApiError::invalid(format!("missing `{name}` in the query")))
    }

    /// # Errors
    /// 400 where one of `names`, which the API has and this version does not, is asked for.
    pub(crate) fn refuse(&self, names: &[&str]) -> Result<(), ApiError> {
        match names.iter().find(|name| self.0.iter().any(|(key, _)| key == *name)) {
            Some(name) => Err(ApiError::not_available(name)),
            None => Ok(()),
        }
    }

    /// In whose name a file call acts.
    ///
    /// # Errors
    /// 400 for anybody but the session user and root.
    pub(crate) fn file_user(&self) -> Result<FileUser, ApiError> {
        match self.get("user")? {
            None | Some("" | "sandbox") => Ok(FileUser::Session),
            Some("root") => Ok(FileUser::Root),
            Some(other) => Err(ApiError::invalid(format!(
                "`user` must be `sandbox` or `root`, not `{}`",
                other.escape_debug()
            ))),
        }
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
        assert!(q.refuse(&["x"]).is_err());
        assert!(q.refuse(&["status"]).is_ok());
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
