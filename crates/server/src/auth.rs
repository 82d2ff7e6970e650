//! Who may call. Closed by default: whatever is not let through here gets 401, unknown routes too.
//!
//! With a key, a request must carry it. Without one (the binary allows that on loopback alone) the
//! danger is a web page in the operator's browser: so the `Host` must be a loopback name, which stops
//! DNS rebinding, and an `Origin` must be the daemon's own or a configured one.

use std::fmt;
use std::net::IpAddr;

use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};
use sandkasten_types::ErrorCode;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::cors::Cors;
use crate::error::ApiError;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// An API key, as its SHA-256: the key itself is not kept. It may have a second one that is as good.
#[derive(Clone)]
pub struct ApiKey {
    hash: [u8; 32],
    second: Option<[u8; 32]>,
}

impl ApiKey {
    /// `None` for an empty text.
    #[must_use]
    pub fn new(key: &str) -> Option<Self> {
        (!key.is_empty())
            .then(|| Self { hash: Sha256::digest(key.as_bytes()).into(), second: None })
    }

    /// The same, or `second`: who has either is the same caller.
    #[must_use]
    pub fn or(self, second: &str) -> Self {
        let second = (!second.is_empty()).then(|| Sha256::digest(second.as_bytes()).into());
        Self { second, ..self }
    }

    /// Takes the same time whatever `presented` has in common with a key: the hashes are compared,
    /// all of their bytes.
    fn matches(&self, presented: &[u8]) -> bool {
        let presented: [u8; 32] = Sha256::digest(presented).into();
        let second = self.second.as_ref().unwrap_or(&self.hash);
        (self.hash.ct_eq(&presented) | second.ct_eq(&presented)).into()
    }

    /// Tells keys apart in the database; says nothing of the key.
    fn fingerprint(&self) -> String {
        self.hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey")
    }
}

/// Whose request it is: a name for the key, the same in all requests with it.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) String);

#[derive(Debug)]
pub(crate) struct Guard {
    key: Option<ApiKey>,
}

impl Guard {
    pub(crate) fn new(key: Option<ApiKey>) -> Self {
        Self { key }
    }

    /// Lets a request through or says why not.
    pub(crate) fn check(&self, request: &Parts, cors: &Cors) -> Result<Caller, ApiError> {
        if is_open(request) {
            return Ok(Caller(String::new()));
        }
        match &self.key {
            Some(key) if bearer(&request.headers).is_some_and(|text| key.matches(text)) => {
                Ok(Caller(key.fingerprint()))
            }
            Some(_) => Err(ApiError::new(
                ErrorCode::Unauthorized,
                "missing or wrong API key; send `Authorization: Bearer <key>`",
            )),
            None => check_origin(request, cors).map(|()| Caller(String::new())),
        }
    }
}

/// What anybody may ask, by its exact path.
fn is_open(request: &Parts) -> bool {
    const OPEN: [&str; 6] =
        ["/healthz", "/readyz", "/openapi.json", "/docs", "/docs/script.js", "/docs/style.css"];
    let reads = matches!(request.method, Method::GET | Method::HEAD);
    reads && OPEN.contains(&request.uri.path())
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn check_origin(request: &Parts, cors: &Cors) -> Result<(), ApiError> {
    let forbidden = |message| Err(ApiError::new(ErrorCode::Forbidden, message));
    let host = host(request);
    if let Some(host) = host
        && !is_loopback(host)
    {
        return forbidden(
            "without an API key the `Host` must be localhost, 127.0.0.1 or [::1]; set `api_key`",
        );
    }
    let mut origins = request.headers.get_all(ORIGIN).iter();
    let is_own = |origin: &[u8]| {
        host.is_some_and(|host| origin.eq_ignore_ascii_case(format!("http://{host}").as_bytes()))
    };
    if !origins.all(|origin| is_own(origin.as_bytes()) || cors.allows(origin)) {
        return forbidden("requests of other web pages need an API key; set `api_key`");
    }
    let site = request.headers.get(FETCH_SITE).map(|value| value.as_bytes());
    if site == Some(b"cross-site") && !request.headers.contains_key(ORIGIN) {
        return forbidden("requests of other web sites need an API key; set `api_key`");
    }
    Ok(())
}

/// The name that the client used for us. HTTP/1.0 programs may send none; browsers always do.
fn host(request: &Parts) -> Option<&str> {
    if let Some(authority) = request.uri.authority() {
        return Some(authority.as_str());
    }
    // What is no text is no loopback name either.
    request.headers.get(HOST).map(|value| value.to_str().unwrap_or("?"))
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((name, port)) = rest.split_once(']') else { return false };
            if !(port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
                return false;
            }
            name
        }
        None => match host.split_once(':') {
            Some((name, port)) if is_port(port) => name,
            Some(_) => return false,
            None => host,
        },
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod test {
    use super::*;

    fn request(path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut builder = hyper::Request::get(path);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap().into_parts().0
    }

    fn code(guard: &Guard, request: &Parts) -> Result<(), ErrorCode> {
        let cors = Cors::new(&["https://ok.example".into()]);
        guard.check(request, &cors).map(drop).map_err(|error| error.code)
    }

    #[test]
    fn only_exact_paths_are_open() {
        let guard = Guard::new(ApiKey::new("k"));
        for path in ["/healthz", "/readyz", "/openapi.json", "/docs", "/docs/script.js"] {
            assert_eq!(code(&guard, &request(path, &[])), Ok(()), "{path}");
        }
        for path in [
            "/",
            "/healthz/",
            "//healthz",
            "/Healthz",
            "/HEALTHZ",
            "/healthz;x.js",
            "/healthz.js",
            "/healthz%2f",
            "/%68ealthz",
            "/x/..%2fhealthz",
            "/v1/../healthz",
            "/healthzz",
            "/v1/sessions",
            "/v1/sessions/",
            "/readyz/",
            "/metrics",
            "/openapi.json/",
            "/docs/",
            "/docs/other.js",
            "/favicon.ico",
        ] {
            assert_eq!(code(&guard, &request(path, &[])), Err(ErrorCode::Unauthorized), "{path}");
        }
    }

    #[test]
    fn a_second_key_is_the_same_caller() {
        let key = ApiKey::new("first").map(|key| key.or("second"));
        let guard = Guard::new(key);
        let caller = |key: &str| {
            let request = request("/", &[("authorization", &format!("Bearer {key}"))]);
            guard.check(&request, &Cors::new(&[])).map(|caller| caller.0).ok()
        };
        assert_eq!(caller("first"), caller("second"));
        assert!(caller("first").is_some());
        assert_eq!((caller("third"), caller("")), (None, None));
        let alone = Guard::new(ApiKey::new("first").map(|key| key.or("")));
        assert!(code(&alone, &request("/", &[("authorization", "Bearer ")])).is_err());
    }

    #[test]
    fn the_key_must_be_whole_and_in_the_header() {
        let guard = Guard::new(ApiKey::new("sk-secret"));
        let with = |value: &str| code(&guard, &request("/", &[("authorization", value)]));
        assert_eq!(with("Bearer sk-secret"), Ok(()));
        assert_eq!(with("bearer sk-secret"), Ok(()));
        for bad in ["", "sk-secret", "Bearer", "Bearer ", "Bearer sk-secre", "Bearer sk-secret2"] {
            assert_eq!(with(bad), Err(ErrorCode::Unauthorized), "{bad}");
        }
        let twice = [("authorization", "Bearer sk-secret"), ("authorization", "Bearer x")];
        assert_eq!(code(&guard, &request("/", &twice)), Err(ErrorCode::Unauthorized));
        let query = request("/?api_key=sk-secret", &[]);
        assert_eq!(code(&guard, &query), Err(ErrorCode::Unauthorized));
    }

    #[test]
    fn without_a_key_only_loopback_names_are_served() {
        let guard = Guard::new(None);
        let with = |host: &str| code(&guard, &request("/", &[("host", host)]));
        for good in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]", "[::1]:8080"] {
            assert_eq!(with(good), Ok(()), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "10.0.0.1",
            "localhost:",
            "localhost:80:80",
            "[::1",
            "[::1]x",
            "user@localhost",
            "",
        ] {
            assert_eq!(with(bad), Err(ErrorCode::Forbidden), "{bad}");
        }
        let absolute = request("http://evil.example/", &[("host", "localhost")]);
        assert_eq!(code(&guard, &absolute), Err(ErrorCode::Forbidden));
    }

    #[test]
    fn without_a_key_other_web_pages_are_refused() {
        let guard = Guard::new(None);
        let with =
            |name, value| code(&guard, &request("/", &[("host", "localhost:8080"), (name, value)]));
        assert_eq!(with("origin", "http://localhost:8080"), Ok(()));
        assert_eq!(with("origin", "https://ok.example"), Ok(()));
        for bad in ["null", "http://localhost:3000", "https://evil.example"] {
            assert_eq!(with("origin", bad), Err(ErrorCode::Forbidden), "{bad}");
        }
        assert_eq!(with("sec-fetch-site", "cross-site"), Err(ErrorCode::Forbidden));
        assert_eq!(with("sec-fetch-site", "none"), Ok(()));
    }
}
