//! `docs/errors.md`: each code of the table in [`crate::error`], what it means, and what to do.
//!
//! Invariant: the page is made from the code, and a test fails where the two differ. It is renewed as
//! `docs/openapi.json` is: `touch crates/server/src/error/page.rs`, then
//! `UPDATE_OPENAPI=1 cargo test -p sandkasten-server --lib error::page`.

use sandkasten_types::ErrorCode;
use serde_json::Value;

use super::test::all;
use super::{ApiError, Special, code_name, meaning};
use crate::request_id::RequestId;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");

const HEAD: &str = r#"# Errors

Made from the code's own table by `UPDATE_OPENAPI=1 cargo test -p sandkasten-server --lib error::page`.

Every error answer has one form, whatever went wrong, unknown routes and malformed JSON included:

```json
{
  "error_code": "FILE_NOT_FOUND",
  "message": "notes.txt: no such file or directory",
  "error": "notes.txt: no such file or directory",
  "details": {"path": "notes.txt"},
  "retryable": false
}
```

- `error_code` is for programs. Codes keep their names.
- `message` is for people: it names the thing and the limit. Its words may change. `error` is the same text, for older clients.
- `details` has facts for programs. The table names those that a code always or often has.
- `retryable` is true where nothing ran and the same call may be sent again. `Retry-After` says after how many seconds.
- Every answer has `X-Request-Id`, which the daemon's log has too.

In an event stream an error is the last event, `event: error`, with `error`, `error_code` and `details`. A command that ran and
failed is no error: its answer is 200 with an `exit_code`.

"#;

const SPECIAL_HEAD: &str = r#"
The status follows from the code, but for these answers:

| status | code | where and when |
|---|---|---|
"#;

/// What a client can do, and which `details` help it.
struct Advice {
    details: &'static str,
    remedy: &'static str,
}

fn advice(code: ErrorCode) -> Advice {
    use ErrorCode as E;
    let (details, remedy) = match code {
        E::InvalidRequest => ("`field`", "correct the field that the message names"),
        E::InvalidImage => {
            ("", "name an image of `sandkasten image list` that `allowed_images` has")
        }
        E::InvalidWorkspace => {
            ("", "use 2 to 64 of `a-z`, `0-9` and `-`; or switch `workspace.enabled` on")
        }
        E::InvalidPath => ("`path`", "correct the path"),
        E::PathNotAllowed => ("`path`", "stay below the workspace: no `..` or link that leads out"),
        E::NotAFile => {
            ("`path`", "name a regular file; FIFOs, sockets and devices are never opened")
        }
        E::IsADirectory => ("`path`", "name a file, or use `fs/list` or `fs/archive`"),
        E::NotADirectory => ("`path`", "look at each part of the path with `fs/stat`"),
        E::Unauthorized => ("", "send `Authorization: Bearer KEY` with the daemon's key"),
        E::Forbidden => {
            ("", "set an `api_key`; or call by `localhost`, from an origin of `cors_origins`")
        }
        E::PermissionDenied => ("`path`", "change the mode, or act as root with `user=root`"),
        E::SessionNotFound => {
            ("`session_id`", "make a new session; ended ones are forgotten after 24 h")
        }
        E::WorkspaceNotFound => {
            ("`workspace_id`", "make it with `PUT /v1/workspaces/{id}`, or write a file to it")
        }
        E::FileNotFound => ("`path`", "look with `fs/list` what is there"),
        E::ImageNotFound => {
            ("`image`", "build or import it: `sandkasten image build`, `image import`")
        }
        E::ExecNotFound => ("`exec_id`", "list with `GET …/execs`; the oldest are forgotten first"),
        E::ProcessNotFound => {
            ("`process_id`", "list with `GET …/processes`; the oldest are forgotten first")
        }
        E::RouteNotFound => ("", "look the route up in `/openapi.json`"),
        E::MethodNotAllowed => ("", "use a method of the header `Allow`"),
        E::Conflict => ("an edit: `edit`, `found`, `asked`", "read the present state, then decide"),
        E::AlreadyExists => ("`path`", "choose another name, or set `overwrite`"),
        E::WorkspaceInUse => {
            ("`workspace_id`", "end the sessions that have it, or wait for their end")
        }
        E::IdempotencyMismatch => ("", "use a new key or id for a new request"),
        E::SessionExpired => (ENDED, "make a new session; a longer `ttl_seconds` keeps one longer"),
        E::SessionDestroyed => (ENDED, "make a new session; with `started` a command had begun"),
        E::SessionCrashed => (ENDED, "make a new session; `reason` says what ended this one"),
        E::PreconditionFailed => ("`path`", "read the file again and take its new `ETag`"),
        E::TooLarge => {
            ("`limit`", "send less, or use a route that streams: `fs/file`, `fs/archive`")
        }
        E::QuotaExceeded => ("`limit`", "end a session, or wait for one to end"),
        E::RateLimited => ("", "wait as `Retry-After` says"),
        E::Overloaded => ("", "wait as `Retry-After` says, and send the same again"),
        E::Draining => ("", "send the same again; the next daemon answers"),
        E::NoSpace => ("`path`", "remove files, or ask for more: `limits.disk_mb`, `quota_mb`"),
        E::InternalError => ("`request_id`", "look the request id up in the log, and report a bug"),
    };
    Advice { details, remedy }
}

const ENDED: &str = "`session_id`, `status`, `reason`, `started`, `output`";

fn page() -> String {
    let mut text = HEAD.to_owned();
    text += "| status | code | when | `details` | what to do |\n|---|---|---|---|---|\n";
    for code in all() {
        let error = ApiError::new(code, "m");
        let body = serde_json::to_value(error.body(&RequestId::new())).unwrap_or_default();
        let name = body.get("error_code").and_then(Value::as_str).unwrap_or_default();
        let again =
            if body.get("retryable") == Some(&Value::Bool(true)) { ", retryable" } else { "" };
        let (status, Advice { details, remedy }) = (error.status().as_u16(), advice(code));
        text +=
            &format!("| {status}{again} | `{name}` | {} | {details} | {remedy} |\n", meaning(code));
    }
    text += SPECIAL_HEAD;
    for special in Special::ALL {
        let error = special.error("m");
        let again = if error.body(&RequestId::new()).retryable { ", retryable" } else { "" };
        let (status, name) = (error.status().as_u16(), code_name(special.code()));
        text += &format!("| {status}{again} | `{name}` | {} |\n", special.meaning());
    }
    text
}

#[test]
fn the_page_of_errors_is_the_codes() {
    let page = page();
    if option_env!("UPDATE_OPENAPI").is_some() {
        std::fs::write(FILE, &page).expect("write the page");
    }
    let kept = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(kept == page, "docs/errors.md is old; its head says how to renew it");
}
