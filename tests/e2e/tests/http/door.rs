//! nothing answers without the key.

use std::fs;
use std::path::Path;

use sandkasten_e2e::{Lab, Session};
use serde_json::json;

/// What needs no key.
const OPEN: [(&str, &str); 6] = [
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/docs/script.js"),
    ("GET", "/docs/style.css"),
];

/// Every route with its parameters filled in by a session and a workspace that are there.
fn routes(lab: &Lab, session: &Session<'_>) -> Vec<(String, String)> {
    let document = lab.client.document.as_ref().expect("the document");
    let fill = |path: String| {
        let id = if path.starts_with("/v1/workspaces") { "mine" } else { &session.id };
        path.split('/')
            .map(|part| if part.starts_with('{') { id } else { part })
            .collect::<Vec<_>>()
            .join("/")
    };
    document.operations().into_iter().map(|(method, path)| (method, fill(path))).collect()
}

/// Ways to write a path that a careless guard and a careless router read differently.
fn variants(path: &str) -> Vec<String> {
    let slash = path.replacen('/', "//", 1);
    let encoded = format!("/{}", path[1..].replacen('/', "%2f", 1));
    vec![
        path.to_owned(),
        format!("{path}/"),
        format!("{path}?key=x"),
        format!("{path};x.js"),
        format!("{path}.css"),
        format!("{path}%00"),
        format!("{path}/../healthz"),
        format!("/healthz/..{path}"),
        format!("/healthz/..%2f{}", &path[1..]),
        format!("/healthz{path}"),
        format!("/.{path}"),
        path.to_uppercase(),
        slash,
        encoded,
    ]
}

#[test]
fn a_01_every_route_wants_the_key() {
    let lab = Lab::start();
    let session = lab.session(&json!({ "workspace_id": "mine" }));
    session.run("echo secret > file");
    let anonymous = lab.client.anonymous();
    let routes = routes(&lab, &session);
    assert!(routes.len() >= 31, "{routes:?}");
    for (method, path) in &routes {
        if OPEN.contains(&(method.as_str(), path.as_str())) {
            assert_eq!(anonymous.request(method, path).send().status(), 200);
            continue;
        }
        for variant in variants(path) {
            let answer = anonymous.request(method, &variant).send();
            assert!(matches!(answer.status(), 401 | 403), "{method} {variant}: {answer}");
        }
    }
    for method in ["GET", "HEAD", "OPTIONS", "PATCH", "PUT", "TRACE", "BREW"] {
        let answer = anonymous.request(method, "/v1/sessions").send();
        assert!(matches!(answer.status(), 401 | 403 | 405), "{method}: {answer}");
    }
    assert_eq!(session.run("cat file"), "secret\n", "nothing was deleted on the way");
}

#[test]
fn a_01_unknown_routes_want_it_too() {
    let lab = Lab::start();
    for path in
        ["/", "/v1", "/v2/sessions", "/admin", "/healthzz", "/healthz/", "/Healthz", "//healthz"]
    {
        lab.client.anonymous().get(path).error(401, "UNAUTHORIZED");
    }
}

#[test]
fn a_03_keys_in_the_wrong_place_do_not_count() {
    let lab = Lab::start();
    let key = lab.client.key.clone().unwrap_or_default();
    let anonymous = lab.client.anonymous();
    for name in ["api_key", "key", "token", "access_token", "authorization"] {
        anonymous.get(&format!("/v1/sessions?{name}={key}")).error(401, "UNAUTHORIZED");
    }
    for (name, value) in [
        ("X-Api-Key", key.clone()),
        ("Cookie", format!("key={key}")),
        ("Authorization", key.clone()),
        ("Authorization", format!("Bearer  {key}x")),
        ("Authorization", format!("Bearer {}", key.to_uppercase())),
    ] {
        let answer = anonymous.request("GET", "/v1/sessions").header(name, &value).send();
        answer.error(401, "UNAUTHORIZED");
    }
    // Two keys are none, whichever is right.
    let two =
        lab.client.request("GET", "/v1/sessions").header("Authorization", "Bearer wrong").send();
    assert!(matches!(two.status(), 400 | 401), "{two}");
}

/// The name of the scheme is no secret and may be written as the client likes (RFC 9110).
#[test]
fn a_03_the_scheme_is_read_in_any_case() {
    let lab = Lab::start();
    let key = lab.client.key.clone().unwrap_or_default();
    let request = lab.client.anonymous();
    let answer = request
        .request("GET", "/v1/sessions")
        .header("Authorization", &format!("bearer {key}"))
        .send();
    assert_eq!(answer.status(), 200, "{answer}");
}

#[test]
fn a_03_keys_are_not_stored() {
    let lab = Lab::start();
    let key = lab.client.key.clone().unwrap_or_default();
    let session = lab.session(&json!({}));
    let retried =
        lab.client.request("POST", "/v1/sessions").header("Idempotency-Key", "k").body("{}");
    let id = retried.send().ok(201)["id"].as_str().expect("an id").to_owned();
    assert_eq!(lab.client.delete(&format!("/v1/sessions/{id}")).status(), 200);
    session.alive();
    let found = files_with(&lab.data_dir, key.as_bytes());
    assert_eq!(found, Vec::<String>::new());
    assert!(!lab.log().contains(&key), "the log has the key");
    let environment = sandkasten_e2e::host::proc_file(lab.pid(), "environ");
    assert!(!environment.contains(&key), "the daemon's environment has the key");
}

/// Files below a directory that contain some bytes.
fn files_with(dir: &Path, what: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let kind = entry.file_type().expect("a file type");
        if kind.is_dir() {
            found.extend(files_with(&entry.path(), what));
        } else if kind.is_file() {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            if bytes.windows(what.len()).any(|window| window == what) {
                found.push(entry.path().display().to_string());
            }
        }
    }
    found
}
