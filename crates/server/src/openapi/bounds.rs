//! Bounds of fields: of requests what the server enforces, of answers what can come, as JSON Schema. Numbers
//! come from `types::limits`, so that the document can't say another one. Lengths in JSON Schema count
//! characters, those of the server bytes: the bound is the loosest text that can pass, the description has
//! the unit.
//!
//! A bound that is a daemon's own configuration is no number here: `x-maximum` names the field of
//! `GET /v1/info` that has it.

use sandkasten_types::limits as l;
use serde_json::{Value, json};

/// Octal modes, as `routes::files::octal` reads them.
pub(super) const OCTAL: &str = "^0?[0-7]{1,4}$";
/// What `ids::ExecId` takes.
pub(super) const RUN_ID: &str = "^[A-Za-z0-9._-]{1,64}$";

/// Base64 as the server reads it: the standard alphabet, padded, no bits left over.
pub(super) const BASE64: &str =
    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";
/// The longest name of a user, in bytes.
const USER_BYTES_MAX: usize = 256;
/// The highest number that a signal has.
const SIGNAL_MAX: u32 = 64;
/// The highest number that Linux gives a process.
const PID_MAX: u32 = 4_194_304;
/// Names and numbers of signals, as texts.
const SIGNAL: &str = "^((SIG)?(HUP|INT|QUIT|ILL|TRAP|ABRT|IOT|BUS|FPE|KILL|USR1|SEGV|USR2|PIPE|ALRM|TERM|\
    STKFLT|CHLD|CLD|CONT|STOP|TSTP|TTIN|TTOU|URG|XCPU|XFSZ|VTALRM|PROF|WINCH|IO|POLL|PWR|SYS)|\
    [1-9]|[1-5][0-9]|6[0-4])$";

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
        // Not in this version.
        ("CreateSession", "seccomp") => json!({ "type": "null" }),
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
        ("CreateSession" | "ExecRequest", "env") => {
            let mut rule = variables();
            rule["maxProperties"] = l::MAP_ENTRIES_MAX.into();
            rule
        }
        // Bounded by their bytes alone, together with `argv`.
        ("StartProcess", "env") => variables(),
        ("CreateSession", "image") => {
            json!({ "pattern": "^([a-z0-9][a-z0-9._-]{0,127})?$", "maxLength": 128 })
        }
        ("CreateSession", "workspace_id") => {
            json!({ "pattern": "^([a-z0-9][a-z0-9-]{0,62}[a-z0-9])?$", "maxLength": 64 })
        }
        ("CreateSession", "cwd") => {
            let pattern = format!("^((/+[^/\\x00]{{1,{}}})+/*|/*)$", l::NAME_BYTES_MAX);
            json!({ "pattern": pattern, "maxLength": l::PATH_BYTES_MAX - 1 })
        }
        ("ExecRequest" | "StartProcess", "cwd") => {
            json!({ "minLength": 1, "maxLength": l::PATH_BYTES_MAX - 1, "pattern": names() })
        }
        ("CreateSession", "exec_mode") => words(&["stateful", ""]),
        ("CreateSession" | "ExecRequest" | "StartProcess", "user") => user(),
        ("Limits", "cpu") => json!({ "minimum": l::CPU_MIN, "x-maximum": "limits.ceilings.cpu" }),
        ("Limits", "memory_mb") => {
            json!({ "minimum": l::MEMORY_MB_MIN, "x-maximum": "limits.ceilings.memory_mb" })
        }
        ("Limits", "pids") => {
            json!({ "minimum": l::PIDS_MIN, "x-maximum": "limits.ceilings.pids" })
        }
        ("Limits", "disk_mb") => json!({
            "minimum": l::DISK_MB_MIN, "maximum": l::DISK_MB_MAX,
            "x-maximum": "limits.ceilings.disk_mb",
        }),
        ("PutWorkspace", "quota_mb") => {
            json!({ "minimum": l::DISK_MB_MIN, "maximum": l::DISK_MB_MAX })
        }
        // For modes that are not in this version.
        ("NetworkPolicy", "allow" | "deny") => json!({ "maxItems": 0 }),
        ("NetworkPolicy", "mode") => words(&["none"]),
        _ => return None,
    })
}

fn run_field(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        ("ExecRequest", "cmd") => {
            json!({ "maxLength": l::CMD_BYTES_MAX, "pattern": NO_NUL })
        }
        ("ExecRequest", "timeout_ms") => {
            json!({ "minimum": 1, "x-maximum": "limits.max_exec_timeout_ms" })
        }
        ("StartProcess", "timeout_ms") => json!({ "minimum": 1, "maximum": i64::MAX }),
        ("ExecRequest", "max_output_bytes") => {
            json!({ "minimum": 1, "maximum": l::OUTPUT_BYTES_MAX })
        }
        ("ExecRequest", "exec_id") => json!({ "pattern": RUN_ID }),
        ("ExecRequest", "on_disconnect") => words(&["cancel", "keep"]),
        ("StartProcess", "on_disconnect") => words(&["kill", "keep"]),
        ("ExecRequest", "encoding") => words(&["text", "base64"]),
        ("StartProcess", "encoding") => words(&["base64", "text"]),
        ("StartProcess", "argv") => json!({
            "minItems": 1,
            // The program has a name.
            "not": { "type": "array", "prefixItems": [{ "const": "" }] },
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
        // Empty is the workspace itself.
        ("UploadForm", "path_base64") => {
            json!({ "pattern": BASE64, "maxLength": l::PATH_BYTES_MAX.div_ceil(3) * 4 })
        }
        (_, "path_base64" | "from_base64" | "to_base64") => {
            json!({
                "pattern": BASE64, "minLength": 4, "maxLength": l::PATH_BYTES_MAX.div_ceil(3) * 4,
            })
        }
        ("WriteFile" | "MakeDirectory" | "ChangeMode", "mode") => json!({ "pattern": OCTAL }),
        ("WriteFile", "content_base64") => {
            json!({ "contentEncoding": "base64", "pattern": BASE64 })
        }
        ("Edit", "old") => json!({ "minLength": 1 }),
        ("Edit", "count") => json!({ "minimum": 1, "maximum": u64::MAX, "format": "uint64" }),
        ("UploadForm", "files") => json!({ "minItems": 1, "maxItems": l::UPLOAD_FILES_MAX }),
        ("EditFile", "edits") => json!({ "minItems": 1, "maxItems": l::EDITS_MAX }),
        _ => return None,
    })
}

/// What is added to the one of a schema's choices that is of this type.
pub(super) fn of_choice(schema: &str, kind: &str) -> Option<Value> {
    Some(match (schema, kind) {
        ("SignalName", "integer") => json!({ "minimum": 1, "maximum": SIGNAL_MAX }),
        ("SignalName", "string") => json!({ "pattern": SIGNAL }),
        ("ProcessStdin", "string") => words(&["none", "open"]),
        ("Network", "string") => words(&["none"]),
        _ => return None,
    })
}

/// What is added to a field of an answer: numbers that the system or a limit bounds.
pub(super) fn of_answer(schema: &str, field: &str) -> Option<Value> {
    Some(match (schema, field) {
        (_, "exit_code") => json!({ "minimum": 0, "maximum": u8::MAX }),
        (_, "signal") => json!({ "minimum": 1, "maximum": SIGNAL_MAX }),
        (_, "pid") => json!({ "minimum": 1, "maximum": PID_MAX }),
        (_, "uid" | "gid") => json!({ "minimum": 0, "maximum": u32::MAX }),
        (_, "seq" | "from_seq" | "to_seq") => {
            json!({ "minimum": 1, "maximum": l::EVENT_NUMBER_MAX })
        }
        (_, "timestamp") => json!({ "minimum": 0, "maximum": l::EVENT_NUMBER_MAX }),
        (_, "cmd_bytes") => json!({ "minimum": 0, "maximum": l::CMD_BYTES_MAX }),
        (_, "line") => json!({ "minimum": 1 }),
        ("Workspace", "quota_mb") => {
            json!({ "minimum": l::DISK_MB_MIN, "maximum": l::DISK_MB_MAX })
        }
        ("InfoLimits", "max_ttl_seconds" | "session_ttl_seconds") => {
            json!({ "minimum": 1, "maximum": l::TTL_SECONDS_MAX })
        }
        ("Stats", "cpu_limit") => json!({ "minimum": l::CPU_MIN }),
        ("ResourceLimits", "cpu") => json!({ "minimum": l::CPU_MIN }),
        _ => return None,
    })
}

fn variables() -> Value {
    json!({
        "propertyNames": { "pattern": VARIABLE },
        "additionalProperties": {
            "type": "string", "maxLength": l::ENV_STRING_BYTES_MAX, "pattern": NO_NUL,
        },
    })
}

/// The name or uid of a user. Whether there is such a one the image says.
pub(super) fn user() -> Value {
    json!({ "maxLength": USER_BYTES_MAX, "pattern": "^[^:\\x00-\\x1f\\x7f]*$" })
}

/// A path that may be empty.
pub(super) fn path_or_none() -> Value {
    let mut rule = path();
    rule["minLength"] = 0.into();
    rule
}

/// Rules between fields, beside [`either_or`]: a field, a schema of its value, and what must hold with that.
pub(super) fn depends(schema: &str) -> Vec<(&'static str, Value, Value)> {
    match schema {
        "ExecRequest" => vec![
            // A PTY is one stream.
            (
                "raw_output",
                json!({ "const": true }),
                with(json!({ "split": { "enum": [false, null] } })),
            ),
            ("stdin_open", json!({ "const": true }), with(json!({ "stdin": { "type": "null" } }))),
            (
                "encoding",
                json!({ "const": "base64" }),
                with(json!({ "stdin": { "pattern": BASE64 } })),
            ),
        ],
        // A process outlives those who read it, unless it is waited for.
        "StartProcess" => vec![(
            "on_disconnect",
            json!({ "const": "kill" }),
            json!({ "required": ["wait"], "properties": { "wait": { "const": true } } }),
        )],
        "UploadForm" => vec![(
            "path",
            json!({ "type": "string" }),
            with(json!({ "path_base64": { "type": "null" } })),
        )],
        _ => Vec::new(),
    }
}

fn with(properties: Value) -> Value {
    json!({ "properties": properties })
}

/// Fields of which at least one is given, by schema.
pub(super) fn at_least_one(schema: &str) -> Option<(&'static str, &'static str)> {
    (schema == "UploadForm").then_some(("file", "files"))
}

/// A path as text: no NUL, and no name longer than 255.
pub(super) fn path() -> Value {
    json!({ "minLength": 1, "maxLength": l::PATH_BYTES_MAX, "pattern": names() })
}

/// Names between slashes.
fn names() -> String {
    format!("^(/*[^/\\x00]{{1,{}}})*/*$", l::NAME_BYTES_MAX)
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
