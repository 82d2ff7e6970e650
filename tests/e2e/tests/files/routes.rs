//! Every route that takes a path, for sessions and for workspaces.
//!
//! Which of them the daemon has is read from its own document: a route that this table does not know
//! fails the tests, so that no route is left out.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use sandkasten_e2e::http::{Answer, Request};
use sandkasten_e2e::session::encode;
use serde_json::{Value, json};

use crate::{Files, document, form_part};

/// How a route is given its path.
#[derive(Clone, Copy)]
enum Way {
    /// In the query, before these other fields.
    Query(&'static str),
    /// The same, with a body.
    Body(&'static str, &'static [u8]),
    /// In a JSON object, under this name, beside these.
    Json(&'static str, fn() -> Value),
    /// As the target of a form with one file.
    Form,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Query(more) => write!(f, "Query({more:?})"),
            Self::Body(more, body) => write!(f, "Body({more:?}, {} bytes)", body.len()),
            Self::Json(name, more) => write!(f, "Json({name:?}, {})", more()),
            Self::Form => f.write_str("Form"),
        }
    }
}

/// A route that takes a path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// Behind `…/fs`.
    pub(crate) rest: &'static str,
    way: Way,
}

const fn query(method: &'static str, rest: &'static str, more: &'static str) -> Route {
    Route { method, rest, way: Way::Query(more) }
}

const fn fields(rest: &'static str, name: &'static str, more: fn() -> Value) -> Route {
    Route { method: "POST", rest, way: Way::Json(name, more) }
}

/// The end of a tar that has no entry.
const EMPTY_TAR: [u8; 1024] = [0; 1024];

/// What makes the file that is given, or changes it, stands last: the others see what was there.
pub(crate) const ROUTES: [Route; 24] = [
    query("GET", "", ""),
    query("GET", "/list", ""),
    query("GET", "/read", ""),
    query("GET", "/file", ""),
    query("HEAD", "/file", ""),
    query("GET", "/stat", ""),
    query("GET", "/glob", "&pattern=**"),
    query("GET", "/grep", "&pattern=."),
    query("GET", "/watch", ""),
    query("GET", "/archive", ""),
    fields("/copy", "from", || json!({ "to": "copied", "overwrite": true })),
    // What follows has to get through a directory.
    fields("/chmod", "path", || json!({ "mode": "0755" })),
    fields("/edit", "path", || json!({ "edits": [{ "old": "x", "new": "x" }] })),
    fields("/mkdir", "path", || json!({})),
    fields("/write", "path", || json!({ "text": "written" })),
    Route { method: "PUT", rest: "/file", way: Way::Body("", b"put") },
    Route { method: "POST", rest: "/upload", way: Way::Form },
    Route { method: "PUT", rest: "/archive", way: Way::Body("", &EMPTY_TAR) },
    fields("/copy", "to", || json!({ "from": "own", "overwrite": true })),
    fields("/move", "to", || json!({ "from": "own", "overwrite": true })),
    fields("/move", "from", || json!({ "to": "moved", "overwrite": true })),
    query("DELETE", "/file", ""),
    query("DELETE", "/file", "&recursive=true"),
    fields("/chmod", "path", || json!({ "mode": "0755", "recursive": true })),
];

impl Route {
    /// Asks for a path; bytes that are not UTF-8 go as base64.
    pub(crate) fn ask(&self, files: &Files<'_>, path: &[u8]) -> Answer {
        let request = self.request(files, path);
        if self.rest != "/watch" {
            return request.send();
        }
        let begin = Instant::now();
        let stream = request.stream();
        if stream.head.status != 200 {
            return stream.answer();
        }
        // It would go on for ever.
        Answer { head: stream.head.clone(), body: Vec::new(), took: begin.elapsed() }
    }

    fn request<'a>(&self, files: &'a Files<'_>, path: &[u8]) -> Request<'a> {
        let client = &files.lab.client;
        let ask = |more: &str| {
            let query = path_query(path);
            client.request(self.method, &files.url(&format!("{}?{query}{more}", self.rest)))
        };
        match self.way {
            Way::Query(more) => ask(more),
            Way::Body(more, body) => ask(more).body(body),
            Way::Json(name, more) => {
                let mut body = more();
                match std::str::from_utf8(path) {
                    Ok(text) => body[name] = json!(text),
                    Err(_) => body[format!("{name}_base64")] = json!(encode(path)),
                }
                client.request(self.method, &files.url(self.rest)).json(&body)
            }
            Way::Form => {
                let mut body = match std::str::from_utf8(path) {
                    Ok(_) => form_part("name=\"path\"", path),
                    Err(_) => form_part("name=\"path_base64\"", encode(path).as_bytes()),
                };
                body.extend(form_part("name=\"file\"; filename=\"sent\"", b"sent"));
                body.extend_from_slice(b"--b--\r\n");
                let request = client.request(self.method, &files.url(self.rest));
                request.header("Content-Type", "multipart/form-data; boundary=b").body(body)
            }
        }
    }

    /// Whether it goes through all that is below a directory.
    pub(crate) fn walks(&self) -> bool {
        let recursive = matches!(self.way, Way::Query("&recursive=true"));
        recursive || ["/glob", "/grep", "/archive", "/chmod"].contains(&self.rest)
    }

    /// Whether an empty path may be the place's own directory.
    pub(crate) fn has_default(&self) -> bool {
        ["", "/list", "/glob", "/grep", "/watch", "/archive", "/upload"].contains(&self.rest)
    }

    /// Whether it says what is there without changing anything.
    pub(crate) fn only_looks(&self) -> bool {
        ["GET", "HEAD"].contains(&self.method)
    }
}

impl std::fmt::Display for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} fs{} ({:?})", self.method, self.rest, self.way)
    }
}

/// A path in a query, every byte escaped: nothing on the way may read it as something else.
pub(crate) fn path_query(path: &[u8]) -> String {
    if std::str::from_utf8(path).is_err() {
        let text = encode(path).replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        return format!("path_base64={text}");
    }
    let escaped: String = path.iter().map(|byte| format!("%{byte:02X}")).collect();
    format!("path={escaped}")
}

impl Files<'_> {
    /// The routes that the daemon has here.
    #[track_caller]
    pub(crate) fn routes(&self) -> Vec<Route> {
        let noun = self.base.split('/').nth(2).unwrap_or_default();
        let above = format!("/v1/{noun}/{{id}}/fs");
        let document = document(self.lab);
        let mut there = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().into_iter().flatten() {
            let Some(rest) = path.strip_prefix(&above) else { continue };
            let methods = methods.as_object().into_iter().flatten().map(|(method, _)| method);
            there.extend(methods.map(|method| (method.to_uppercase(), rest.to_owned())));
        }
        let is =
            |route: &Route, method: &str, rest: &str| route.method == method && route.rest == rest;
        for (method, rest) in &there {
            let in_table = |method: &str| ROUTES.iter().any(|route| is(route, method, rest));
            // HEAD is the GET without its body, by the same handler, where it is not in the table itself.
            let known = in_table(method) || (method == "HEAD" && in_table("GET"));
            assert!(known, "{method} {above}{rest} is not in the table of routes");
        }
        let has = |route: &&Route| there.iter().any(|(method, rest)| is(route, method, rest));
        let found: Vec<Route> = ROUTES.iter().filter(has).copied().collect();
        assert!(found.len() >= 4, "{found:?}");
        found
    }

    pub(crate) fn has(&self, method: &str, rest: &str) -> bool {
        self.routes().iter().any(|route| route.method == method && route.rest == rest)
    }
}

/// An answer that a hostile path may get: a success, or an error of the one shape that is the caller's.
#[track_caller]
pub(crate) fn is_civil(route: &Route, path: &[u8], answer: &Answer, limit: Duration) {
    let what = format!("{route} of {:?}", String::from_utf8_lossy(path));
    assert!(answer.took < limit, "{what}: {answer}");
    assert!(answer.status() < 500, "{what}: {answer}");
    if answer.status() >= 400 && route.method != "HEAD" {
        let code = answer.json()["error_code"].as_str().unwrap_or_default().to_owned();
        // A path of the host that the caller named may be named to the caller.
        let named = String::from_utf8_lossy(path);
        if ["/var/", "/proc/self/fd/"].iter().any(|part| named.contains(part)) {
            assert!(!code.is_empty() && code != "INTERNAL_ERROR", "{what}: {answer}");
        } else {
            answer.error(answer.status(), &code);
        }
    }
}
