//! Bounds of request fields: what the server enforces, as JSON Schema. Numbers come from `types::limits`, so
//! that the document can't say another one. Lengths in JSON Schema count characters, those of the server
//! bytes: the bound is the loosest text that can pass, the description has the unit.

use sandkasten_types::limits as l;
use serde_json::{Value, json};

/// Octal modes, as `routes::files::octal` reads them.
pub(super) const OCTAL: &str = "^0?[0-7]{1,4}$";
/// What `ids::ExecId` takes.
pub(super) const RUN_ID: &str = "^[A-Za-z0-9._-]{1,64}$";

const NO_NUL: &str = "^[^\\x00]*$";
const NO_CONTROL: &str = "^[^\\x00-\\x1f\\x7f-\\x9f]*$";
/// A name of a variable.
const VARIABLE: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

/// Words that a text field may be.
fn words(words: &[&str]) -> Value {
    json!({ "enum": words })
}

/// What is added to the schema of a field of a request.
pub(super) fn of_field(schema: &str, field: &str) -> Option<Value> {
    session_field(schema, field)
        .or_else(|| run_field(schema, field))
        .or_else(|| file_field(schema, field))
}

fn session_field(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        ("CreateSession", "ttl_seconds") => json!({ "minimum": 0, "maximum": l::TTL_SECONDS_MAX }),
        ("UpdateSession", "ttl_seconds") => json!({ "minimum": 1, "maximum": l::TTL_SECONDS_MAX }),
        ("CreateSession" | "UpdateSession", "name") => {
            json!({ "maxLength": l::SESSION_NAME_BYTES_MAX, "pattern": NO_CONTROL })
        }
        ("CreateSession" | "UpdateSession" | "PutWorkspace", "labels") => json!({
            "maxProperties": l::MAP_ENTRIES_MAX,
            "propertyNames": {
                "minLength": 1, "maxLength": l::LABEL_BYTES_MAX, "pattern": NO_CONTROL,
            },
            "additionalProperties": {
                "type": "string", "maxLength": l::LABEL_BYTES_MAX, "pattern": NO_CONTROL,
            },
        }),
        ("CreateSession" | "ExecRequest" | "StartProcess", "env") => json!({
            "maxProperties": l::MAP_ENTRIES_MAX,
            "propertyNames": { "pattern": VARIABLE },
            "additionalProperties": {
                "type": "string", "maxLength": l::ENV_STRING_BYTES_MAX, "pattern": NO_NUL,
            },
        }),
        ("CreateSession", "image") => {
            json!({ "pattern": "^([a-z0-9][a-z0-9._-]{0,127})?$", "maxLength": 128 })
        }
        ("CreateSession", "workspace_id") => {
            json!({ "pattern": "^([a-z0-9][a-z0-9-]{0,62}[a-z0-9])?$", "maxLength": 64 })
        }
        ("CreateSession", "cwd") => {
            json!({ "pattern": "^(/[^\\x00]*)?$", "maxLength": l::PATH_BYTES_MAX - 1 })
        }
        ("ExecRequest", "cwd") => {
            json!({ "minLength": 1, "maxLength": l::PATH_BYTES_MAX - 1, "pattern": NO_NUL })
        }
        ("StartProcess", "cwd") => json!({ "pattern": NO_NUL, "maxLength": l::PATH_BYTES_MAX - 1 }),
        ("CreateSession", "exec_mode") => words(&["stateful", ""]),
        ("Limits", "cpu") => json!({ "minimum": l::CPU_MIN }),
        ("Limits", "memory_mb") => json!({ "minimum": l::MEMORY_MB_MIN }),
        ("Limits", "pids") => json!({ "minimum": l::PIDS_MIN }),
        ("Limits", "disk_mb") | ("PutWorkspace", "quota_mb") => {
            json!({ "minimum": l::DISK_MB_MIN, "maximum": l::DISK_MB_MAX })
        }
        ("NetworkPolicy", "mode") => words(&["none"]),
        _ => return None,
    })
}

fn run_field(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        ("ExecRequest", "cmd") => {
            json!({ "maxLength": l::CMD_BYTES_MAX, "pattern": NO_NUL })
        }
        ("ExecRequest" | "StartProcess", "timeout_ms") => json!({ "minimum": 1 }),
        ("ExecRequest", "max_output_bytes") => {
            json!({ "minimum": 1, "maximum": l::OUTPUT_BYTES_MAX })
        }
        ("ExecRequest", "exec_id") => json!({ "pattern": RUN_ID }),
        ("ExecRequest", "on_disconnect") => words(&["cancel", "keep"]),
        ("StartProcess", "on_disconnect") => words(&["kill", "keep"]),
        ("ExecRequest", "encoding") => words(&["base64"]),
        ("StartProcess", "encoding") => words(&["base64", "text"]),
        ("StartProcess", "argv") => json!({
            "minItems": 1,
            "items": { "type": "string", "maxLength": l::ENV_STRING_BYTES_MAX, "pattern": NO_NUL },
        }),
        ("StartProcess", "cmd") => {
            json!({ "pattern": NO_NUL, "maxLength": l::ENV_STRING_BYTES_MAX })
        }
        ("Tty", "rows" | "cols") => json!({ "minimum": 1, "maximum": u16::MAX }),
        _ => return None,
    })
}

fn file_field(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        (_, "path" | "from" | "to") => path(),
        (_, "path_base64" | "from_base64" | "to_base64") => {
            json!({ "minLength": 4, "maxLength": l::PATH_BYTES_MAX.div_ceil(3) * 4 })
        }
        ("WriteFile" | "MakeDirectory" | "ChangeMode", "mode") => json!({ "pattern": OCTAL }),
        ("WriteFile", "content_base64") => json!({ "contentEncoding": "base64" }),
        ("Edit", "old") => json!({ "minLength": 1 }),
        ("Edit", "count") => json!({ "minimum": 1 }),
        ("EditFile", "edits") => json!({ "minItems": 1, "maxItems": l::EDITS_MAX }),
        _ => return None,
    })
}

/// A path as text: no NUL, and no name longer than 255.
pub(super) fn path() -> Value {
    let pattern = format!("^(/*[^/\\x00]{{1,{}}})*/*$", l::NAME_BYTES_MAX);
    json!({ "minLength": 1, "maxLength": l::PATH_BYTES_MAX, "pattern": pattern })
}

/// Pairs of fields of which exactly one is given, by schema.
pub(super) fn either_or(schema: &str) -> &'static [(&'static str, &'static str)] {
    match schema {
        "WriteFile" => &[("path", "path_base64"), ("text", "content_base64")],
        "MakeDirectory" | "ChangeMode" | "EditFile" => &[("path", "path_base64")],
        "CopyFiles" | "MoveFile" => &[("from", "from_base64"), ("to", "to_base64")],
        "StartProcess" => &[("argv", "cmd")],
        _ => &[],
    }
}
