//! What validators say of the document, and how the daemon shows it.

use std::fs;

use sandkasten_e2e::http::Client;
use sandkasten_e2e::{Lab, lab};
use serde_json::Value;

use crate::tools::{self, must};

#[test]
fn the_daemon_sends_the_document_that_is_checked_in() {
    let lab = Lab::shared();
    let text = fs::read(lab::checkout().join("docs/openapi.json")).expect("docs/openapi.json");
    let checked_in: Value = serde_json::from_slice(&text).expect("JSON");
    let document = lab.client.document.as_ref().expect("the document");
    assert!(*document.root() == checked_in, "docs/openapi.json is not what the daemon sends");
}

#[test]
fn redocly_has_no_complaint() {
    let (dir, document) = tools::document(&Lab::shared());
    // What it may pass over stands beside its settings, and names the document by its path from there.
    let settings = dir.path().join("redocly.yaml");
    fs::copy(tools::file("redocly.yaml"), &settings).expect("copy the settings");
    let ignored = dir.path().join(".redocly.lint-ignore.yaml");
    fs::copy(tools::file("redocly_ignore.yaml"), ignored).expect("copy what it passes over");
    let mut lint = tools::node("@redocly/cli/bin/cli.js");
    lint.arg("lint").arg(&document).arg("--config").arg(settings);
    let output = lint.arg("--format=json").output().expect("run redocly");
    let said = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|error| {
        panic!("{error}: {said}{}", String::from_utf8_lossy(&output.stderr))
    });
    let totals = (&report["totals"]["errors"], &report["totals"]["warnings"]);
    assert_eq!(totals, (&Value::from(0), &Value::from(0)), "{:#}", report["problems"]);
}

#[test]
fn openapi_spec_validator_has_no_complaint() {
    let (_dir, document) = tools::document(&Lab::shared());
    must(tools::program("openapi-spec-validator").arg(document));
}

/// What the daemon says of itself is what the document shows.
#[test]
fn examples_of_the_daemon_are_its_answers() {
    let lab = Lab::shared();
    let document = lab.client.document.as_ref().expect("the document").root();
    let shown = |path: &str, kind: &str| {
        let answer = &document["paths"][path]["get"]["responses"]["200"];
        answer["content"][kind]["example"].clone()
    };
    for path in ["/healthz", "/readyz"] {
        assert_eq!(lab.client.get(path).ok(200), shown(path, "application/json"), "{path}");
    }
    let metrics = lab.client.request("GET", "/metrics").send();
    let metrics = String::from_utf8(metrics.body).expect("text");
    for line in shown("/metrics", "text/plain").as_str().expect("a text").lines() {
        // Of a figure the name alone: its value is another each time.
        let told = if line.starts_with('#') { Some(line) } else { line.split(' ').next() };
        let told = told.expect("a line");
        assert!(metrics.lines().any(|other| other.starts_with(told)), "{line}: {metrics}");
    }
}

/// The page needs no key, and its policy lets in nothing but its own files.
#[test]
fn docs_are_a_page_of_its_own_files() {
    let lab = Lab::shared();
    let anonymous = lab.client.anonymous();
    let page = anonymous.request("GET", "/docs").send();
    assert_eq!(page.status(), 200);
    let policy = page.header("Content-Security-Policy").expect("a policy").to_owned();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
    let page = String::from_utf8(page.body).expect("text");
    let parts = |attribute: &str| -> Vec<String> {
        let start = format!("{attribute}=\"");
        let starts = page.split(start.as_str()).skip(1);
        starts.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
    };
    assert_eq!(page.matches("<script").count(), 1, "no script but the file's");
    assert!(page.contains("<script src=\"docs/script.js\" defer></script>"));
    assert!(!page.contains("<style") && !page.contains("style="), "no style but the file's");
    for address in [parts("href"), parts("src")].concat() {
        if address.starts_with('#') || address == "data:," {
            continue;
        }
        // Relative to `/docs`: behind a proxy the page may be at `/any/prefix/docs`.
        assert!(!address.starts_with('/') && !address.contains(':'), "{address}");
        // Without the document as its judge, which has no schema of the whole document.
        let client = Client { document: None, ..anonymous.clone() };
        assert_eq!(client.get(&format!("/{address}")).status(), 200, "{address}");
    }
}

/// Node reads the page's script: there is no browser in the suite.
#[test]
fn the_script_of_the_docs_is_whole() {
    let lab = Lab::shared();
    let (dir, document) = tools::document(&lab);
    let script = lab.client.anonymous().request("GET", "/docs/script.js").send();
    fs::write(dir.path().join("script.js"), script.body).expect("write the script");
    let mut run = tools::bare_node();
    must(run.arg(tools::file("docs_page.mjs")).arg(dir.path().join("script.js")).arg(document));
}

/// `HEAD` has the head of `GET`.
#[test]
fn head_is_get_without_its_body() {
    let lab = Lab::shared();
    let session = lab.session(&Value::Object(serde_json::Map::new()));
    session.run("echo text > file");
    for path in ["", "/stats", "/fs/file?path=file", "/fs/stat?path=file", "/fs/file?path=none"] {
        let target = format!("/v1/sessions/{}{path}", session.id);
        let get = lab.client.request("GET", &target).send();
        let head = lab.client.request("HEAD", &target).send();
        assert_eq!(head.status(), get.status(), "{target}");
        assert!(head.body.is_empty(), "{target}");
        for name in ["Content-Type", "ETag", "Accept-Ranges"] {
            assert_eq!(head.header(name), get.header(name), "{target}: {name}");
        }
    }
}
