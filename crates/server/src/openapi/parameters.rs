//! Parameters by name: what each means, its bounds and an example. A handler that has a description of its
//! own for one has another meaning for it: that description stands in place of the one here. Request headers
//! stand here too, with the calls that read them.

use sandkasten_types::limits as l;
use serde_json::{Value, json};

use super::Call;
use super::bounds::{self, BASE64, RUN_ID};
use super::examples::ETAG;
use crate::page::PAGE_MAX;
use crate::routes::exec::RUN_STATUSES;
use crate::routes::sessions::STATUSES;

/// Bytes of a glob or expression, and globs of one search, as the crate `files` has them.
const PATTERN_BYTES_MAX: usize = 4096;
const GLOBS_MAX: usize = 64;

/// What is known of a parameter.
pub(super) struct Known {
    /// A whole sentence.
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
    in_path(call, name).or_else(|| of_files(call, name)).or_else(|| in_query(call, name))
}

fn in_path(call: &Call<'_>, name: &str) -> Option<Known> {
    let workspace = call.path.starts_with("/v1/workspaces");
    Some(match name {
        "id" if workspace => known(
            "Id of the workspace: 2 to 64 of `[a-z0-9-]`, no hyphen first or last.",
            json!({ "pattern": "^[a-z0-9][a-z0-9-]{0,62}[a-z0-9]$" }),
            "my-project",
        ),
        "id" => known(
            "Id of the session.",
            json!({ "pattern": "^[a-z0-9-]{1,64}$" }),
            super::examples::SESSION_ID,
        ),
        "exec_id" => known(
            "Id of the exec, as the client chose it or the daemon told it.",
            json!({ "pattern": RUN_ID }),
            super::examples::EXEC_ID,
        ),
        "process_id" => known(
            "Id of the process, as its start told it.",
            json!({ "pattern": RUN_ID }),
            super::examples::PROCESS_ID,
        ),
        "name" if call.path.contains("{name}") => known(
            "Name of the image: 1 to 128 of `[a-z0-9._-]`, a letter or digit first.",
            json!({ "pattern": "^[a-z0-9][a-z0-9._-]{0,127}$" }),
            "python",
        ),
        _ => return None,
    })
}

fn of_files(call: &Call<'_>, name: &str) -> Option<Known> {
    Some(match name {
        "path" => path(call),
        "path_base64" if call.is("get", "/v1/workspaces/{id}/fs") => known(
            "Base64 of the bytes of a path, in place of `path` for one that is not UTF-8.",
            json!({
                "contentEncoding": "base64", "pattern": BASE64,
                "maxLength": l::PATH_BYTES_MAX.div_ceil(3) * 4,
            }),
            Value::Null,
        ),
        "path_base64" => known(
            "Base64 of the bytes of a path, in place of `path` for one that is not UTF-8: `c3JjL21haW4ucHk=`.",
            json!({
                "contentEncoding": "base64", "pattern": BASE64, "minLength": 4,
                "maxLength": l::PATH_BYTES_MAX.div_ceil(3) * 4,
            }),
            Value::Null,
        ),
        "user" => user(call),
        "mode" => known(
            "Permissions in octal, as `0644`; an existing file keeps its own where absent.",
            json!({ "pattern": bounds::OCTAL }),
            "0644",
        ),
        "create_parents" => known(
            "Whether missing directories above it are made; `true` where absent.",
            json!({ "default": true }),
            true,
        ),
        "recursive" => known(
            "Whether all that lies below is meant too; `false` where absent.",
            json!({ "default": false }),
            true,
        ),
        "max_bytes" => known(
            "Bytes that are read at most, 0 to 67108864 (64 MiB); the daemon's `max_read_bytes` where absent.",
            json!({ "minimum": 0, "maximum": l::READ_BYTES_MAX }),
            65536,
        ),
        "depth" => known(
            "Levels of directories that are listed, 1 to 64; 1 where absent.",
            json!({ "minimum": 1, "maximum": l::LIST_DEPTH_MAX, "default": 1 }),
            2,
        ),
        _ => return of_search(call, name),
    })
}

fn of_search(call: &Call<'_>, name: &str) -> Option<Known> {
    Some(match name {
        "include" => known(
            "Globs of the files that are searched, 64 at most, of 4096 bytes at most: over names, or over \
             paths where a slash is in it.",
            json!({
                "maxItems": GLOBS_MAX,
                // Slashes at its begin do not count.
                "items": { "type": "string", "pattern": "[^/]", "maxLength": PATTERN_BYTES_MAX },
            }),
            json!(["*.py"]),
        ),
        "ignore_case" => known(
            "Whether capitals and small letters are the same; `false` where absent.",
            json!({ "default": false }),
            true,
        ),
        "context" => known(
            "Lines before and after each one that is found, 0 to 100; 0 where absent.",
            json!({ "minimum": 0, "maximum": l::GREP_CONTEXT_MAX, "default": 0 }),
            2,
        ),
        "pattern" => pattern(call),
        "limit" if call.ends_with(&["/fs/glob"]) => known(
            "The most paths that are answered, 1 to 100000; 1000 where absent.",
            json!({ "minimum": 1, "maximum": l::GLOB_LIMIT_MAX, "default": l::GLOB_LIMIT }),
            100,
        ),
        "limit" if call.ends_with(&["/fs/grep"]) => known(
            "The most lines that are answered, 1 to 10000; 100 where absent.",
            json!({ "minimum": 1, "maximum": l::GREP_LIMIT_MAX, "default": l::GREP_LIMIT }),
            10,
        ),
        _ => return None,
    })
}

fn pattern(call: &Call<'_>) -> Known {
    let (about, example) = match (call.ends_with(&["/fs/grep"]), call.is_of_session()) {
        (true, _) => ("A regular expression of at most 4096 bytes, over single lines.", "import"),
        (_, true) => (
            "The glob that paths are matched against, of at most 4096 bytes: relative to `path`, or absolute.",
            "*.py",
        ),
        (_, false) => (
            "The glob that paths are matched against, of at most 4096 bytes: relative to `path`, or absolute \
             below `/workspace`.",
            "*.py",
        ),
    };
    known(about, json!({ "minLength": 1, "maxLength": PATTERN_BYTES_MAX }), example)
}

fn path(call: &Call<'_>) -> Known {
    let (about, schema, example) = match (call.is_of_session(), call.path) {
        // Empty is the workspace itself, for clients of version 0.3.0.
        (_, "/v1/workspaces/{id}/fs") => (
            "A directory of the workspace, at most 4096 bytes long; the workspace itself where absent or empty.",
            bounds::path_or_none(),
            "src",
        ),
        (true, _) if call.ends_with(PATH_IS_OPTIONAL) => (
            "Where to look, at most 4096 bytes long: absolute, or relative to `/workspace`, which it is \
             where absent.",
            bounds::path(),
            "src",
        ),
        (false, _) if call.ends_with(PATH_IS_OPTIONAL) => (
            "Where to look, at most 4096 bytes long: relative to the workspace, which it is where absent, \
             or absolute below `/workspace`.",
            bounds::path(),
            "src",
        ),
        (true, _) => (
            "A path of at most 4096 bytes, absolute or relative to `/workspace`. This or `path_base64` is given.",
            bounds::path(),
            "src/main.py",
        ),
        (false, _) => (
            "A path of at most 4096 bytes, relative to the workspace or absolute below `/workspace`. This or \
             `path_base64` is given.",
            bounds::path(),
            "src/main.py",
        ),
    };
    known(about, schema, example)
}

const PATH_IS_OPTIONAL: &[&str] = &["/fs/glob", "/fs/grep", "/fs/watch"];

fn user(call: &Call<'_>) -> Known {
    if call.is_of_session() {
        let about = "The user that the call acts as: `sandbox`, `root`, or any name or uid of the image's \
                     passwd, of at most 256 bytes; the session's user where absent.";
        known(about, bounds::user(), "root")
    } else {
        let about = "The user that the call acts as: `sandbox` (where absent) or `root`, or the uid of \
                     one of them.";
        known(about, json!({ "enum": ["sandbox", "root", "1000", "0"] }), "root")
    }
}

fn in_query(call: &Call<'_>, name: &str) -> Option<Known> {
    Some(match name {
        "after" if call.ends_with(&["/attach"]) => known(
            "Number of an event: only later ones are sent. Where absent, what was written last comes first, \
             at most 64 KiB.",
            json!({ "minimum": 0, "maximum": l::EVENT_NUMBER_MAX }),
            7,
        ),
        "after" => known(
            "Number of an event: only later ones are sent; 0 where absent.",
            json!({ "minimum": 0, "maximum": l::EVENT_NUMBER_MAX, "default": 0 }),
            7,
        ),
        "follow" if call.ends_with(&["/fs/stat"]) => known(
            "`false`: of a link itself, not of what it leads to; `true` where absent.",
            json!({ "default": true }),
            true,
        ),
        "follow" => known(
            "Whether the answer waits for what is still to come; `false` where absent.",
            json!({ "default": false }),
            true,
        ),
        "eof" => known(
            "Whether its stdin is closed behind the body; `false` where absent.",
            json!({ "default": false }),
            true,
        ),
        "limit" => known(
            "The most entries of a page, 1 to 1000; all where absent.",
            json!({ "minimum": 1, "maximum": PAGE_MAX }),
            100,
        ),
        "cursor" => known(
            "Where the page begins: `next_cursor` of the page before.",
            json!({ "pattern": "^[A-Za-z0-9_-]+$" }),
            Value::Null,
        ),
        "status" if call.is("get", "/v1/sessions") => known(
            "Only those with this status.",
            json!({ "enum": STATUSES.map(|(word, _)| word) }),
            "running",
        ),
        "status" => known(
            "Only those that are this far.",
            json!({ "enum": RUN_STATUSES.map(|(word, _)| word) }),
            "running",
        ),
        "label" => known(
            "Only those with this label, `key=value`; may be given several times, and then all of them count.",
            json!({ "items": { "type": "string", "pattern": "=" } }),
            json!(["team=blue"]),
        ),
        "name" => known("Only those with this name.", json!({}), "my-session"),
        _ => return None,
    })
}

/// The headers that a call reads, beside those that are documented at its handler.
pub(super) fn headers(call: &Call<'_>) -> Vec<Value> {
    let mut headers = vec![json!({ "$ref": "#/components/parameters/XRequestId" })];
    if call.is_file() {
        headers.push(reference("IfMatch"));
        if call.is_safe() {
            headers.extend(["IfNoneMatch", "Range", "IfRange"].map(reference));
        } else {
            headers.push(reference("IfAbsent"));
        }
    }
    headers
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/parameters/{name}") })
}

/// What [`headers`] refers to.
pub(super) fn components() -> Value {
    let text = json!({ "type": "string" });
    let tags = json!({ "type": "string", "minLength": 1, "pattern": TAGS });
    json!({
        "XRequestId": header("X-Request-Id",
            "The client's own id of the request: 1 to 64 of `[A-Za-z0-9._-]`. The answer and the daemon's \
             log carry it; where it is absent or another text, one is made.", &text, "job-4711.1"),
        "Range": header("Range",
            "One range of bytes, as `bytes=0-1023`. Several, another unit or a malformed one are as if it was absent.",
            &text, "bytes=0-1023"),
        "IfRange": header("If-Range",
            "`Range` counts only if the file still has this `ETag`.", &text, ETAG),
        "IfMatch": header("If-Match",
            "`*` or entity tags in quotes: the file must be there and have one of them, else 412.", &tags, "*"),
        "IfNoneMatch": header("If-None-Match",
            "`*` or entity tags in quotes: 304 where the file has one of them.", &tags, ETAG),
        // No example: it excludes `If-Match`.
        "IfAbsent": header("If-None-Match",
            "`*` alone: 412 where the file is there. Not together with `If-Match`.",
            &json!({ "type": "string", "enum": ["*"] }), Value::Null),
    })
}

/// `*`, or entity tags: in quotes, weak ones with `W/` before them.
const TAGS: &str = "^(\\*|(W/)?\"[!#-+\\x2d-~]*\"(, ?(W/)?\"[!#-+\\x2d-~]*\")*)$";

fn header(name: &str, about: &str, schema: &Value, example: impl Into<Value>) -> Value {
    let mut header = json!({
        "name": name, "in": "header", "required": false, "description": about, "schema": schema,
    });
    let example = example.into();
    if !example.is_null() {
        header["example"] = example;
    }
    header
}

/// Bounds of a header that a handler documents.
pub(super) fn documented_header(name: &str) -> Option<Known> {
    Some(match name {
        "Idempotency-Key" => known(
            "A key of the client's, 1 to 255 visible ASCII characters: the same key and body within 24 h \
             answer with the same session, another body is 409.",
            json!({ "minLength": 1, "maxLength": 255, "pattern": "^[\\x21-\\x7e]+$" }),
            "job-4711",
        ),
        "Last-Event-ID" => known(
            "Number of the last event that the client has; counts before `after`.",
            json!({ "minimum": 0, "maximum": l::EVENT_NUMBER_MAX }),
            7,
        ),
        _ => return None,
    })
}
