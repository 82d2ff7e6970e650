//! Files and workspaces: what stands in the field's cases and in the checks on files, by every route that
//! takes a path, with a session and without one.
//!
//! Every target of this package that begins with `files` belongs to the suite.

mod alone;
mod archives;
mod canary;
mod cases;
mod contents;
mod kinds;
mod names;
mod paths;
mod routes;
mod shared;
mod uploads;

use std::sync::atomic::{AtomicUsize, Ordering};

use sandkasten_e2e::http::{Answer, Client};
use sandkasten_e2e::session::{decode, encode, escape};
use sandkasten_e2e::{Lab, Session};
use serde_json::{Value, json};

/// What the daemon says that it can. It does not describe itself in there.
fn document(lab: &Lab) -> Value {
    let client = Client { document: None, ..lab.client.clone() };
    client.get("/openapi.json").ok(200)
}

fn base(lab: &Lab) -> Session<'_> {
    lab.session(&json!({ "image": "base" }))
}

/// A workspace of the suite's daemon that a test has for itself, removed at its end.
struct Workspace<'a> {
    lab: &'a Lab,
    id: String,
}

impl<'a> Workspace<'a> {
    /// A name that no other test has, in this process or another.
    fn new(lab: &'a Lab, name: &str) -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        Self { lab, id: format!("{name}-{}-{number}", std::process::id()) }
    }

    fn session(&self) -> Session<'a> {
        self.in_image("base")
    }

    fn in_image(&self, image: &str) -> Session<'a> {
        self.lab.session(&json!({ "image": image, "workspace_id": self.id }))
    }

    fn files(&self) -> Files<'a> {
        Files { lab: self.lab, base: format!("/v1/workspaces/{}", self.id) }
    }
}

impl Drop for Workspace<'_> {
    fn drop(&mut self) {
        drop(self.lab.client.request("DELETE", &format!("/v1/workspaces/{}", self.id)).try_send());
    }
}

/// The files of a session or of a workspace, by the routes that both have.
struct Files<'a> {
    lab: &'a Lab,
    base: String,
}

impl<'a> Files<'a> {
    fn of(session: &Session<'a>) -> Self {
        Self { lab: session.lab, base: session.path("") }
    }

    fn url(&self, rest: &str) -> String {
        format!("{}/fs{rest}", self.base)
    }

    fn write(&self, path: &str, bytes: &[u8]) -> Answer {
        let body = json!({ "path": path, "content_base64": encode(bytes) });
        self.lab.client.post(&self.url("/write"), &body)
    }

    /// Writes what has to be taken.
    #[track_caller]
    fn put(&self, path: &str, bytes: &[u8]) {
        assert_eq!(self.write(path, bytes).ok(200), json!({ "ok": true }), "{path:?}");
    }

    fn read(&self, path: &str) -> Answer {
        self.lab.client.get(&self.url(&format!("/read?path={}", escape(path))))
    }

    /// Reads what has to be there and whole.
    #[track_caller]
    fn get(&self, path: &str) -> Vec<u8> {
        let body = self.read(path).ok(200);
        assert_eq!(body["truncated"], false, "{path:?}");
        decode(&body["content_base64"])
    }

    /// Uploads one file into a directory.
    fn upload(&self, target: &str, name: &str, bytes: &[u8]) -> Answer {
        let mut body = form_part("name=\"path\"", target.as_bytes());
        body.extend(form_part(&format!("name=\"file\"; filename=\"{name}\""), bytes));
        body.extend_from_slice(b"--b--\r\n");
        self.form(body)
    }

    fn form(&self, body: Vec<u8>) -> Answer {
        let request = self.lab.client.request("POST", &self.url("/upload"));
        request.header("Content-Type", "multipart/form-data; boundary=b").body(body).send()
    }
}

/// A part of a form with the boundary `b`.
fn form_part(disposition: &str, bytes: &[u8]) -> Vec<u8> {
    let mut part =
        format!("--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n").into_bytes();
    part.extend_from_slice(bytes);
    part.extend_from_slice(b"\r\n");
    part
}
