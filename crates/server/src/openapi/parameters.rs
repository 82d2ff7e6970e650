//! Parameters by name: what each means wherever it stands, its bounds and an example. A handler's own
//! description of a parameter follows the one here. Request headers stand here too, with the calls that
//! read them.

use sandkasten_types::limits as l;
use serde_json::{Value, json};

use super::Call;
use super::bounds::{self, RUN_ID};

/// What is known of a parameter.
pub(super) struct Known {
    /// A sentence without its dot.
    pub(super) about: &'static str,
    /// Added to its schema.
    pub(super) schema: Value,
    /// Null where it excludes another: all examples of a call together are a call that works.
    pub(super) example: Value,
}

fn known(about: &'static str, schema: Value, example: impl Into<Value>) -> Known {
    Known { about, schema, example: example.into() }
}

/// A parameter of a path or query.
pub(super) fn named(call: &Call<'_>, name: &str) -> Option<Known> {
    in_path(call, name).or_else(|| of_files(call, name)).or_else(|| in_query(name))
}

fn in_path(call: &Call<'_>, name: &str) -> Option<Known> {
    let workspace = call.path.starts_with("/v1/workspaces");
    Some(match name {
        "id" if workspace => known(
            "Id of the workspace: 2 to 64 of `[a-z0-9-]`, no hyphen first or last",
            json!({ "pattern": "^[a-z0-9][a-z0-9-]{0,62}[a-z0-9]$" }),
            "my-project",
        ),
        "id" => known(
            "Id of the session",
            json!({ "pattern": "^[a-z0-9-]{1,64}$" }),
            super::examples::SESSION_ID,
        ),
        "exec_id" => known(
            "Id of the exec, as the client chose it or the daemon told it",
            json!({ "pattern": RUN_ID }),
            super::examples::EXEC_ID,
        ),
        "process_id" => known(
            "Id of the process, as its start told it",
            json!({ "pattern": RUN_ID }),
            super::examples::PROCESS_ID,
        ),
        "name" if call.path.contains("{name}") => known(
            "Name of the image: 1 to 128 of `[a-z0-9._-]`, a letter or digit first",
            json!({ "pattern": "^[a-z0-9][a-z0-9._-]{0,127}$" }),
            "python",
        ),
        _ => return None,
    })
}

fn of_files(call: &Call<'_>, name: &str) -> Option<Known> {
    Some(match name {
        // Empty is the workspace itself, for clients of version 0.3.0.
        "path" if call.is("get", "/v1/workspaces/{id}/fs") => known(
            "A path of at most 4096 bytes, absolute or relative to `/workspace`",
            json!({ "maxLength": l::PATH_BYTES_MAX }),
            "src",
        ),
        "path" => known(
            "A path of at most 4096 bytes, absolute or relative to `/workspace`",
            bounds::path(),
            "src/main.py",
        ),
        "path_base64" => known(
            "Base64 of the bytes of a path, as `c3JjL21haW4ucHk=`",
            json!({ "contentEncoding": "base64", "maxLength": l::PATH_BYTES_MAX.div_ceil(3) * 4 }),
            Value::Null,
        ),
        "user" => {
            known("In whose name the call acts; the session's user where absent", json!({}), "root")
        }
        "mode" => known("Permissions, octal", json!({ "pattern": bounds::OCTAL }), "0644"),
        "create_parents" => {
            known("Whether missing directories above it are made", json!({ "default": true }), true)
        }
        "recursive" => {
            known("Whether all that lies below is meant too", json!({ "default": false }), true)
        }
        "max_bytes" => known(
            "Bytes that are read at most, up to 64 MiB; the daemon's `max_read_bytes` where absent",
            json!({ "minimum": 0, "maximum": l::READ_BYTES_MAX }),
            65536,
        ),
        "depth" => known(
            "Levels of directories that are listed, 1 to 64",
            json!({ "minimum": 1, "maximum": l::LIST_DEPTH_MAX, "default": 1 }),
            2,
        ),
        "include" => known("May be given several times", json!({}), json!(["*.py"])),
        "ignore_case" => known(
            "Whether capitals and small letters are the same",
            json!({ "default": false }),
            true,
        ),
        "context" => known(
            "Number of lines, 0 to 100",
            json!({ "minimum": 0, "maximum": l::GREP_CONTEXT_MAX, "default": 0 }),
            2,
        ),
        "pattern" => known("What is looked for", json!({ "minLength": 1 }), "*.py"),
        _ => return None,
    })
}

fn in_query(name: &str) -> Option<Known> {
    Some(match name {
        "after" => known(
            "Number of an event, 0 or more: only events after it are sent",
            json!({ "minimum": 0, "default": 0 }),
            7,
        ),
        "follow" => known("`true` or `false`", json!({}), true),
        "eof" => known("`true` or `false`", json!({ "default": false }), true),
        "limit" => known("The most entries that are answered", json!({ "minimum": 1 }), 100),
        "cursor" => known(
            "Where the page begins: what the page before told as its next cursor",
            json!({}),
            Value::Null,
        ),
        "status" => known("Only those with this status", json!({}), "running"),
        "label" => known(
            "Only those with this label, `key=value`; may be given several times",
            json!({}),
            json!(["team=blue"]),
        ),
        "name" => known("Only those with this name", json!({}), "my-session"),
        _ => return None,
    })
}

/// The headers that a call reads, beside those that are documented at its handler.
pub(super) fn headers(call: &Call<'_>) -> Vec<Value> {
    let mut headers = vec![json!({ "$ref": "#/components/parameters/XRequestId" })];
    if call.is_file() {
        if call.method == "get" {
            headers.extend(["Range", "IfRange"].map(reference));
        }
        headers.extend(["IfMatch", "IfNoneMatch"].map(reference));
    }
    headers
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/parameters/{name}") })
}

/// What [`headers`] refers to, and bounds of those that handlers document.
pub(super) fn components() -> Value {
    json!({
        "XRequestId": header("X-Request-Id",
            "The client's own id of the request: 1 to 64 of `[A-Za-z0-9._-]`. The answer and the daemon's \
             log carry it; where it is absent or another text, one is made."),
        "Range": header("Range",
            "One range of bytes, as `bytes=0-1023`. Several, another unit or a malformed one are as if it was absent."),
        "IfRange": header("If-Range",
            "`Range` counts only if the file still has this `ETag`."),
        "IfMatch": header("If-Match",
            "`*` or entity tags in quotes: the file must be there and have one of them, else 412."),
        "IfNoneMatch": header("If-None-Match",
            "`*` or entity tags in quotes. A read is 304 where the file has one of them; a write takes `*` \
             alone and is 412 where the file is there."),
    })
}

fn header(name: &str, about: &str) -> Value {
    json!({
        "name": name, "in": "header", "required": false, "description": about,
        "schema": { "type": "string" },
    })
}

/// Bounds of a header that a handler documents.
pub(super) fn documented_header(name: &str) -> Option<Known> {
    Some(match name {
        "Idempotency-Key" => known(
            "A key of the client's: the same key and body within 24 h answer with the same session, \
             another body is 409",
            json!({ "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]+$" }),
            "job-4711",
        ),
        "Last-Event-ID" => known(
            "Number of the last event that the client has, 0 or more",
            json!({ "minimum": 0 }),
            7,
        ),
        _ => return None,
    })
}
