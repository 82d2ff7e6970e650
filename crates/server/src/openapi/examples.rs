//! Examples: one of each schema that stands in a request or an answer. What has none here is put together
//! from its fields.

use serde_json::{Map, Value, json};

use crate::routes::docs;

pub(super) const SESSION_ID: &str = "3f9c0a5be1d24c7f8a6b9d0e1f2a3b4c";
pub(super) const EXEC_ID: &str = "build-1";
pub(super) const PROCESS_ID: &str = "9d0e1f2a3b4c3f9c0a5be1d24c7f8a6b";
pub(super) const ETAG: &str = "\"1a2b-5-18c3f0-18c3f1\"";
const TIME: &str = "2026-01-02T03:04:05.000000Z";

/// How deep an example is put together.
const DEPTH_MAX: usize = 8;

/// An example of a schema.
pub(super) fn of(schema: &Value, schemas: &Map<String, Value>) -> Value {
    made(schema, schemas, 0)
}

/// Two of the families of `/metrics`, as they are written.
pub(super) const METRICS: &str = "\
# HELP sandkasten_http_requests_active Requests that run.
# TYPE sandkasten_http_requests_active gauge
sandkasten_http_requests_active 1
# HELP sandkasten_http_connections Open connections.
# TYPE sandkasten_http_connections gauge
sandkasten_http_connections 3
";

/// An example of a text that is no JSON; of a file in the binary its first lines.
pub(super) fn text(kind: &str) -> Value {
    let begin = |file: &str| file.split_inclusive('\n').take(4).collect::<String>();
    match kind {
        "text/plain" => METRICS.into(),
        "application/openmetrics-text" => format!("{METRICS}# EOF\n").into(),
        "text/html" => begin(docs::PAGE).into(),
        "text/javascript" => begin(docs::SCRIPT).into(),
        "text/css" => begin(docs::STYLE).into(),
        _ => Value::Null,
    }
}

fn made(schema: &Value, schemas: &Map<String, Value>, depth: usize) -> Value {
    if depth > DEPTH_MAX {
        return Value::Null;
    }
    if let Some(name) = super::target(schema) {
        let known = session(name).or_else(|| run(name)).or_else(|| file(name));
        return known.unwrap_or_else(|| match schemas.get(name) {
            Some(schema) => made(schema, schemas, depth + 1),
            None => Value::Null,
        });
    }
    if let Some(example) = schema.get("example") {
        return example.clone();
    }
    if let Some(parts) = schema["allOf"].as_array() {
        let parts = parts.iter().map(|part| made(part, schemas, depth + 1));
        let fields = parts.filter_map(|part| part.as_object().cloned()).flatten();
        return Value::Object(fields.collect());
    }
    if let Some(first) = schema["oneOf"].as_array().and_then(|choices| choices.first()) {
        return made(first, schemas, depth + 1);
    }
    if let Some(first) = schema["enum"].as_array().and_then(|words| words.first()) {
        return first.clone();
    }
    of_type(schema, schemas, depth)
}

fn of_type(schema: &Value, schemas: &Map<String, Value>, depth: usize) -> Value {
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind.unwrap_or_default() {
        "object" => {
            let required: Vec<&str> = super::texts(&schema["required"]).collect();
            let fields = schema["properties"].as_object().into_iter().flatten();
            let fields = fields.filter(|(name, _)| required.contains(&name.as_str()));
            let made = fields.map(|(name, field)| (name.clone(), made(field, schemas, depth + 1)));
            Value::Object(made.collect())
        }
        "array" => json!([made(&schema["items"], schemas, depth + 1)]),
        "boolean" => json!(true),
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or(json!(1)),
        "string" => json!("text"),
        _ => Value::Null,
    }
}

fn session(name: &str) -> Option<Value> {
    Some(match name {
        "SessionId" => json!(SESSION_ID),
        "WorkspaceId" => json!("my-project"),
        "ImageName" => json!("python"),
        "Timestamp" => json!(TIME),
        "CreateSession" => json!({
            "image": "python", "ttl_seconds": 1800, "name": "my-session", "env": { "MODE": "test" },
            "labels": { "team": "blue" }, "limits": { "cpu": 1.0, "memory_mb": 512 },
        }),
        "UpdateSession" => json!({ "ttl_seconds": 3600, "labels": { "team": "green" } }),
        "Session" => json!({
            "id": SESSION_ID, "image": "python", "status": "running", "cwd": "/workspace",
            "created_at": TIME, "expires_at": "2026-01-02T03:34:05.000000Z", "last_activity": TIME,
            "acquire_source": "cold", "name": "my-session", "env_keys": ["MODE"],
            "labels": { "team": "blue" },
            "limits": { "cpu": 1.0, "memory_mb": 512, "pids": 256, "disk_mb": 10240 },
            "network": "none", "shell": "bash", "node": "local",
        }),
        "Stats" => json!({
            "memory_bytes": 3_145_728, "memory_limit": 536_870_912, "cpu_usage_usec": 41_000,
            "memory_peak_bytes": 4_194_304, "cpu_limit": 1.0, "pids": 2, "pids_limit": 256,
            "disk_bytes": 8192, "disk_limit": 10_737_418_240_u64, "oom_kills": 0,
        }),
        "Workspace" => json!({
            "id": "my-project", "created_at": TIME, "labels": { "team": "blue" }, "session_count": 3,
            "active_session_count": 1, "size_bytes": 40960, "size_counted_at": TIME, "quota_mb": 1024,
        }),
        "PutWorkspace" => json!({ "quota_mb": 1024, "labels": { "team": "blue" } }),
        "Health" => json!({ "status": "ok" }),
        "Readiness" => json!({ "status": "ready" }),
        "OpenApiDocument" => json!({ "openapi": "3.1.0" }),
        _ => return None,
    })
}

fn run(name: &str) -> Option<Value> {
    let end = json!({
        "exit_code": 0, "exit_reason": "exited", "duration_ms": 12, "truncated": false,
        "output_bytes": 6, "oom_kills": 0, "fork_fails": 0,
    });
    let with = |more: Value| {
        let fields = [more, end.clone()].into_iter().filter_map(|part| part.as_object().cloned());
        Value::Object(fields.flatten().collect())
    };
    Some(match name {
        "ExecId" => json!(EXEC_ID),
        "ProcessId" => json!(PROCESS_ID),
        "ExecRequest" => json!({ "cmd": "echo hello", "timeout_ms": 30000 }),
        "ExecAnswer" => with(json!({
            "exec_id": EXEC_ID, "output": "hello\n", "cwd": "/workspace", "timed_out": false,
            "shell_restarted": false,
        })),
        "ExecStatus" => with(json!({
            "exec_id": EXEC_ID, "status": "finished", "cmd": "echo hello", "cmd_bytes": 10,
            "created_at": TIME, "started_at": TIME, "finished_at": TIME, "cwd": "/workspace",
            "timed_out": false, "shell_restarted": false, "output": "hello\n",
        })),
        "RestartShell" => json!({ "keep_state": true }),
        "StartProcess" => json!({ "argv": ["python3", "-c", "print('hello')"], "wait": true }),
        "ProcessStarted" => json!({ "process_id": PROCESS_ID, "pid": 42, "started_at": TIME }),
        "ProcessAnswer" => with(json!({
            "process_id": PROCESS_ID, "stdout_base64": "aGVsbG8K", "stderr_base64": "",
        })),
        "ProcessStatus" => with(json!({
            "process_id": PROCESS_ID, "status": "finished", "pid": 42, "tty": false,
            "argv": ["python3", "-c", "print('hello')"],
            "created_at": TIME, "started_at": TIME, "finished_at": TIME,
        })),
        "SignalProcess" => json!({ "signal": "TERM" }),
        "Tty" => json!({ "rows": 24, "cols": 80 }),
        "StreamDatum" | "ReplayDatum" => json!(
            "id: 1\nevent: chunk\ndata: {\"chunk\":\"hello\\n\",\"timestamp\":1767323045000,\
             \"stream\":\"output\",\"seq\":1}\n\n"
        ),
        "ProcessDatum" => json!(
            "id: 1\nevent: output\ndata: {\"stream\":\"stdout\",\"data_base64\":\"aGVsbG8K\",\
             \"seq\":1,\"timestamp\":1767323045000}\n\n"
        ),
        "WatchDatum" => json!(
            "id: 1\nevent: created\ndata: {\"path\":\"/workspace/new.txt\",\"type\":\"file\"}\n\n"
        ),
        _ => return None,
    })
}

fn file(name: &str) -> Option<Value> {
    Some(match name {
        "Base64" => json!("aGVsbG8K"),
        "WriteFile" => json!({ "path": "src/main.py", "text": "print('hello')\n" }),
        "FileContent" => json!({
            "path": "src/main.py", "content_base64": "aGVsbG8K", "truncated": false, "size": 6,
        }),
        "UploadForm" => json!({ "path": "data" }),
        "Uploaded" => json!({ "ok": true, "paths": ["/workspace/data/table.csv"] }),
        "Unpacked" => json!({ "ok": true, "entries": 3 }),
        "DirEntry" => json!({
            "name": "main.py", "is_dir": false, "path": "/workspace/src/main.py", "type": "file",
            "size": 15, "mode": "0644", "uid": 1000, "gid": 1000,
            "mtime": "2026-01-02T03:04:05.000000000Z",
        }),
        "CopyFiles" => json!({ "from": "src", "to": "backup", "recursive": true }),
        "MoveFile" => json!({ "from": "a.txt", "to": "b.txt" }),
        "MakeDirectory" => json!({ "path": "src/tools" }),
        "ChangeMode" => json!({ "path": "run.sh", "mode": "0755" }),
        "EditFile" => {
            json!({ "path": "src/main.py", "edits": [{ "old": "hello", "new": "goodbye" }] })
        }
        "Edited" => json!({ "ok": true, "replaced": 1, "etag": ETAG }),
        "Written" => json!({ "ok": true, "etag": ETAG }),
        "Globbed" => json!({ "paths": ["/workspace/src/main.py"], "truncated": false }),
        "FoundLine" => json!({
            "path": "/workspace/src/main.py", "line": 1, "text": "print('hello')", "before": [],
            "after": [],
        }),
        _ => return None,
    })
}
