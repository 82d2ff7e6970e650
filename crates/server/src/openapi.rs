//! The OpenAPI document, made from the handlers and the types. `docs/openapi.json` is this, checked in.
//!
//! ```text
//! handlers, types (utoipa) ──> explain ──> GET /openapi.json, docs/openapi.json
//!                                 │
//!      bounds, parameters, answers, examples: one table each
//! ```

#![expect(
    clippy::indexing_slicing,
    reason = "values of JSON that are made here alone: the tests build the whole document"
)]

mod answers;
mod bounds;
mod examples;
mod explain;
mod parameters;

use std::sync::OnceLock;

use sandkasten_types::attach::{AttachOrder, AttachReport};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::exec::{Chunk, ExecDone, Gap, StreamError};
use sandkasten_types::process::{ProcessExit, ProcessOutput};
use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use crate::routes;

/// The document that `GET /openapi.json` answers.
#[must_use]
pub fn openapi() -> Value {
    let document = serde_json::to_value(routes::router_and_document().1);
    explain::explain(document.unwrap_or_default())
}

/// The document as it is sent: made once.
pub(crate) fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| openapi().to_string())
}

/// A call of the document, as the rules look at it.
struct Call<'a> {
    path: &'a str,
    /// In small letters.
    method: &'a str,
    has_body: bool,
    /// It needs no key.
    is_open: bool,
}

impl<'a> Call<'a> {
    fn new(path: &'a str, method: &'a str, operation: &Value) -> Self {
        let is_open = operation["security"].as_array().is_some_and(|ways| {
            ways.is_empty()
                || ways.iter().any(|way| way.as_object().is_some_and(|way| way.is_empty()))
        });
        Self { path, method, has_body: operation.get("requestBody").is_some(), is_open }
    }

    fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.path == path
    }

    fn ends_with(&self, ends: &[&str]) -> bool {
        ends.iter().any(|end| self.path.ends_with(end))
    }

    fn is_safe(&self) -> bool {
        self.method == "get"
    }

    fn is_of_session(&self) -> bool {
        self.path.starts_with("/v1/sessions/{")
    }

    /// It answers for sessions that have ended, too.
    fn is_of_ended_session(&self) -> bool {
        self.path == "/v1/sessions/{id}" && matches!(self.method, "get" | "delete")
    }

    fn is_of_workspace(&self) -> bool {
        self.path.starts_with("/v1/workspaces/{")
    }

    fn is_of_files(&self) -> bool {
        self.path.contains("/fs")
    }

    /// The raw bytes of a file.
    fn is_file(&self) -> bool {
        self.path.ends_with("/fs/file")
    }
}

/// The schema that a reference leads to.
fn target(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()?.strip_prefix("#/components/schemas/")
}

/// The texts of an array.
fn texts(array: &Value) -> impl Iterator<Item = &str> {
    array.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Fields that an object has all of or none of (a flattened `Option`) come out as a part that must be one
/// of those fields' schema and null, which nothing with more fields is. Here they become fields that need
/// not be there.
pub(crate) fn loosen_optional_parts(document: &mut utoipa::openapi::OpenApi) {
    let Some(components) = &mut document.components else { return };
    let known = components.schemas.clone();
    for schema in components.schemas.values_mut() {
        let RefOr::T(Schema::AllOf(whole)) = schema else { continue };
        for part in &mut whole.items {
            if let Some(object) = optional_part(part).and_then(|name| known.get(name)) {
                *part = loosened(object.clone());
            }
        }
    }
}

/// The name of the schema in a `oneOf` of it and null.
fn optional_part(part: &RefOr<Schema>) -> Option<&str> {
    let RefOr::T(Schema::OneOf(choice)) = part else { return None };
    let reference = choice.items.iter().find_map(|item| match item {
        RefOr::Ref(reference) => Some(reference),
        RefOr::T(_) => None,
    })?;
    reference.ref_location.strip_prefix("#/components/schemas/")
}

fn loosened(schema: RefOr<Schema>) -> RefOr<Schema> {
    let RefOr::T(Schema::Object(mut object)) = schema else { return schema };
    object.required.clear();
    RefOr::T(Schema::Object(object))
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sandkasten",
        description = "Isolated, stateful Linux boxes for AI agents.\n\n\
            Every error has the shape `ErrorBody`; `retryable` is true where nothing ran and the same call \
            may be sent again. Every answer has `X-Request-Id`. Names that a call does not know are 400.\n\n\
            Beside what each call lists, any address can answer `404 ROUTE_NOT_FOUND`, `405 \
            METHOD_NOT_ALLOWED` (with `Allow`) and `414 INVALID_REQUEST` (the address is too long).\n\n\
            Times are RFC 3339 in UTC, sizes are bytes unless the name says MiB (`_mb`), and base64 is the \
            standard alphabet with padding. Lengths of texts are counted in bytes of UTF-8.\n\n\
            A bound that a daemon's own configuration sets is named by `x-maximum`: the field of `GET \
            /v1/info` that has it.\n\n\
            Event streams are server-sent events: `id`, `event` and `data` (JSON), then a blank line; a \
            comment line every 10 s of silence.",
        license(name = "MIT", identifier = "MIT")
    ),
    servers((
        url = "http://{host}:{port}",
        description = "A daemon",
        variables(
            ("host" = (default = "127.0.0.1", description = "Where it listens")),
            ("port" = (default = "8080", description = "Its port, of the setting `listen`")),
        )
    )),
    components(schemas(ErrorBody, StreamDatum, ReplayDatum, ProcessDatum, AttachText)),
    modifiers(&BearerKey),
    security(("key" = [])),
    tags(
        (name = "sessions", description = "Boxes: made, looked at, changed, ended"),
        (name = "exec", description = "Commands of a session's one persistent shell"),
        (name = "processes", description = "Programs beside the shell, many at once"),
        (name = "files", description = "Files of a session"),
        (name = "workspaces", description = "Directories that outlive sessions, and their files"),
        (name = "images", description = "Root file systems that sessions are made of"),
        (name = "daemon", description = "The daemon itself"),
    )
)]
pub(crate) struct Document;

struct BearerKey;

impl Modify for BearerKey {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        document.components.get_or_insert_default().add_security_scheme("key", scheme);
    }
}

/// What stands behind `data:` in an exec's event stream: with `event: chunk`, `done` or `error`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the shape of the document; the events are made in routes/exec.rs")]
pub(crate) enum StreamDatum {
    Chunk(Chunk),
    Done(ExecDone),
    Error(StreamError),
}

/// What stands behind `data:` in the events of an exec: with `event: chunk`, `gap`, `done` or `error`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the shape of the document; the events are made in routes/exec.rs")]
pub(crate) enum ReplayDatum {
    Chunk(Chunk),
    Gap(Gap),
    Done(ExecDone),
    Error(StreamError),
}

/// What stands behind `data:` in the events of a process: with `event: output`, `gap`, `exit` or `error`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(
    dead_code,
    reason = "the shape of the document; the events are made in routes/processes.rs"
)]
pub(crate) enum ProcessDatum {
    Output(ProcessOutput),
    Gap(Gap),
    Exit(ProcessExit),
    Error(StreamError),
}

/// A text message of a WebSocket on a process.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(
    dead_code,
    reason = "the shape of the document; the messages are made in routes/attach.rs"
)]
pub(crate) enum AttachText {
    FromClient(AttachOrder),
    ToClient(AttachReport),
}

/// The form of an upload.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape of the document; multipart.rs reads the form")]
pub(crate) struct UploadForm {
    /// Target directory, a path of at most 4096 bytes; the workspace where absent.
    path: Option<String>,
    /// Base64 of the bytes of the path, in place of `path`, for one that is not UTF-8.
    path_base64: Option<String>,
    /// A file with its name; several parts of this name are several files.
    #[schema(format = Binary)]
    file: Option<String>,
    /// The same under another name. 100 files at most; 10 MiB together, unless the daemon's
    /// `max_upload_bytes` is another.
    #[schema(format = Binary)]
    files: Option<Vec<String>>,
}

/// `GET /openapi.json`: an OpenAPI 3.1 document.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape of the document")]
pub(crate) struct OpenApiDocument {
    /// The version of OpenAPI: 3.1.
    openapi: String,
}

#[cfg(test)]
mod test {
    use serde_json::Value;

    use super::*;
    use crate::error::Special;
    use crate::metrics::{Format, Metrics, Tags};

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

    #[test]
    fn the_checked_in_document_is_the_codes() {
        let text = serde_json::to_string_pretty(&openapi()).unwrap() + "\n";
        if option_env!("UPDATE_OPENAPI").is_some() {
            std::fs::write(FILE, &text).unwrap();
        }
        let checked_in = std::fs::read_to_string(FILE).unwrap_or_default();
        assert!(checked_in == text, "docs/openapi.json is old; run with UPDATE_OPENAPI=1");
    }

    /// Paths of schemas that are objects of any shape.
    fn free_forms(at: &str, schema: &Value, found: &mut Vec<String>) {
        match schema {
            Value::Object(members) => {
                let is_object = members.get("type").is_some_and(|kind| {
                    kind == "object"
                        || kind.as_array().is_some_and(|k| k.contains(&"object".into()))
                });
                if is_object && !members.contains_key("properties") {
                    found.push(at.into());
                }
                for (name, inner) in members {
                    free_forms(&format!("{at}/{name}"), inner, found);
                }
            }
            Value::Array(items) => {
                for (n, inner) in items.iter().enumerate() {
                    free_forms(&format!("{at}/{n}"), inner, found);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn nothing_is_free_form_but_labels_env_and_details() {
        let document = openapi();
        let mut found = Vec::new();
        free_forms("", &document, &mut found);
        found.retain(|path| !["/labels", "/env", "/details"].iter().any(|end| path.ends_with(end)));
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn what_may_be_absent_is_not_required() {
        let document = openapi();
        for name in ["ExecStatus", "ProcessStatus"] {
            let parts = document["components"]["schemas"][name]["allOf"].as_array().unwrap();
            assert!(parts.iter().all(|part| part.get("oneOf").is_none()), "{name}");
            let ends = parts.iter().filter(|part| part["properties"]["duration_ms"].is_object());
            assert_eq!(ends.filter(|part| part.get("required").is_none()).count(), 1, "{name}");
        }
    }

    /// Every call: its name, and what the document says of it.
    fn calls(document: &Value) -> Vec<(String, &Value)> {
        let paths = document["paths"].as_object().unwrap();
        let items = paths.iter().flat_map(|(path, item)| {
            item.as_object().unwrap().iter().map(move |(method, call)| (method, path, call))
        });
        items.map(|(method, path, call)| (format!("{method} {path}"), call)).collect()
    }

    /// What a reference leads to.
    fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str() {
            Some(path) => document.pointer(path.strip_prefix('#').unwrap()).expect(path),
            None => value,
        }
    }

    #[test]
    fn it_is_version_3_1_and_every_answer_is_described() {
        let document = openapi();
        assert_eq!(document["openapi"], "3.1.0");
        let mut ids = std::collections::HashSet::new();
        for (name, call) in calls(&document) {
            assert!(ids.insert(call["operationId"].as_str()), "{name}: id");
            assert!(call["summary"].is_string() && call["tags"][0].is_string(), "{name}");
            let responses = call["responses"].as_object().unwrap();
            for (status, response) in responses {
                let response = resolved(&document, response);
                assert!(response["description"].is_string(), "{name} {status}");
                assert!(response["headers"]["X-Request-Id"].is_object(), "{name} {status}");
                let has_body = !name.starts_with("head") && !["101", "304"].contains(&&**status);
                assert_eq!(response["content"].is_object(), has_body, "{name} {status}");
            }
            for status in ["400", "500", "503"] {
                assert!(responses.contains_key(status), "{name} {status}");
            }
            let is_open = call["security"] == serde_json::json!([]);
            assert_eq!(responses.contains_key("401"), !is_open, "{name}: 401");
        }
    }

    #[test]
    fn every_error_stands_at_its_status() {
        let document = openapi();
        let all: Vec<sandkasten_types::ErrorCode> =
            serde_json::from_value(document["components"]["schemas"]["ErrorCode"]["enum"].clone())
                .unwrap();
        let mut named = std::collections::HashSet::new();
        for (name, call) in calls(&document) {
            let (method, path) = name.split_once(' ').unwrap();
            let expected = answers::codes(&Call::new(path, method, call));
            for (status, response) in call["responses"].as_object().unwrap() {
                let codes: Vec<&str> =
                    texts(&resolved(&document, response)["x-error-codes"]).collect();
                let expected = expected.get(status).cloned().unwrap_or_default();
                assert!(method == "head" || codes == expected, "{name} {status}");
                for code in codes {
                    named.insert(code.to_owned());
                    let known = all.iter().find(|&&known| answers::word(known) == code).unwrap();
                    let specials = Special::ALL.into_iter().filter(|one| one.code() == *known);
                    let mut may =
                        specials.map(Special::status).chain([crate::error::status(*known)]);
                    assert!(may.any(|one| one.as_str() == status), "{name}: {code} with {status}");
                }
            }
        }
        let mut missing: Vec<String> = all.iter().map(|&code| answers::word(code)).collect();
        missing.retain(|code| !named.contains(code));
        // The first two come where there is no call, the last is not in this version.
        assert_eq!(missing, ["ROUTE_NOT_FOUND", "METHOD_NOT_ALLOWED", "RATE_LIMITED"]);
    }

    #[test]
    fn examples_of_errors_say_retryable_as_the_daemon_does() {
        let document = openapi();
        for (name, call) in calls(&document) {
            for (status, response) in call["responses"].as_object().unwrap() {
                let media = &resolved(&document, response)["content"]["application/json"];
                for (code, example) in media["examples"].as_object().into_iter().flatten() {
                    let again = ["429", "503"].contains(&&**status);
                    assert_eq!(example["value"]["retryable"], again, "{name} {status} {code}");
                }
            }
        }
    }

    #[test]
    fn metrics_are_written_as_their_example() {
        let metrics = Metrics::new(Tags::default());
        let document = openapi();
        let content = &document["paths"]["/metrics"]["get"]["responses"]["200"]["content"];
        let formats =
            [("text/plain", Format::Text), ("application/openmetrics-text", Format::OpenMetrics)];
        for (kind, format) in formats {
            let written = metrics.text(format);
            for line in content[kind]["example"].as_str().unwrap().lines() {
                // Of a figure the name alone: its value is another each time.
                let told =
                    if line.starts_with('#') { line } else { line.split(' ').next().unwrap() };
                assert!(written.lines().any(|other| other.starts_with(told)), "{kind}: {line}");
            }
        }
    }

    #[test]
    fn every_body_has_an_example() {
        let document = openapi();
        for (name, call) in calls(&document) {
            let answers = call["responses"].as_object().unwrap().values();
            for part in answers.chain([&call["requestBody"]]) {
                let content = resolved(&document, part)["content"].as_object().cloned();
                for (kind, media) in content.unwrap_or_default() {
                    let shown = media.get("example").or(media.get("examples"));
                    let is_bytes = media["schema"]["format"] == "binary";
                    assert!(shown.is_some() || is_bytes || kind.starts_with("multipart"), "{name}");
                    assert!(
                        !shown.is_some_and(|shown| shown.to_string().contains("null,")),
                        "{name}"
                    );
                }
            }
        }
    }

    /// A property, a parameter or a choice of the document: its place, its name, and what is said of it.
    struct Part<'a> {
        at: String,
        name: &'a str,
        about: Option<&'a str>,
        schema: &'a Value,
    }

    /// All properties below a schema, and the choices that are no objects.
    fn parts<'a>(at: &str, schema: &'a Value, document: &'a Value, found: &mut Vec<Part<'a>>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            let about = field["description"].as_str();
            let of_target = || target(field).and(resolved(document, field)["description"].as_str());
            found.push(Part {
                at: at.clone(),
                name,
                about: about.or_else(of_target),
                schema: field,
            });
            parts(&at, field, document, found);
        }
        for keyword in ["allOf", "oneOf"] {
            for part in schema[keyword].as_array().into_iter().flatten() {
                parts(at, part, document, found);
            }
        }
    }

    fn all_parts(document: &Value) -> Vec<Part<'_>> {
        let mut found = Vec::new();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            let about = schema["description"].as_str();
            found.push(Part { at: name.clone(), name, about, schema });
            parts(name, schema, document, &mut found);
            // Choices between a number and a text have the description of the whole.
            let choices = schema["oneOf"].as_array().into_iter().flatten();
            let plain = choices.filter(|choice| choice["type"].is_string());
            found.extend(plain.map(|schema| Part { at: format!("{name}|"), name, about, schema }));
        }
        for (call, operation) in calls(document) {
            for parameter in operation["parameters"].as_array().unwrap() {
                let parameter = resolved(document, parameter);
                let name = parameter["name"].as_str().unwrap();
                let about = parameter["description"].as_str();
                let schema = &parameter["schema"];
                found.push(Part { at: format!("{call} {name}"), name, about, schema });
            }
        }
        for (name, header) in document["components"]["headers"].as_object().unwrap() {
            let about = header["description"].as_str();
            found.push(Part { at: name.clone(), name, about, schema: &header["schema"] });
        }
        found
    }

    #[test]
    fn every_schema_field_parameter_and_header_is_described() {
        let document = openapi();
        for Part { at, about, schema, .. } in all_parts(&document) {
            let about = about.unwrap_or_else(|| panic!("{at} has no description"));
            assert!(about.ends_with(['.', ':', '`']), "{at}: {about}");
            let kind = ["type", "$ref", "oneOf", "allOf"]
                .into_iter()
                .find(|key| schema.get(key).is_some());
            assert!(kind.is_some(), "{at} has no type");
        }
    }

    fn is_number(schema: &Value) -> bool {
        let kinds =
            [&schema["type"]].into_iter().chain(schema["type"].as_array().into_iter().flatten());
        kinds.filter_map(Value::as_str).any(|kind| ["integer", "number"].contains(&kind))
    }

    /// Numbers that have no highest value, by why.
    const WITHOUT_MAXIMUM: [(&str, &[&str]); 2] = [
        (
            "what there is or was is counted, as high as it comes",
            &[
                "active_session_count",
                "bytes",
                "cpu_usage_usec",
                "disk_bytes",
                "duration_ms",
                "entries",
                "fork_fails",
                "line",
                "memory_bytes",
                "memory_peak_bytes",
                "oom_kills",
                "output_bytes",
                "pids",
                "replaced",
                "session_count",
                "size",
                "size_bytes",
            ],
        ),
        (
            "an answer tells what the operator and the machine allow",
            &[
                "cpu",
                "cpu_limit",
                "disk_limit",
                "disk_mb",
                "exec_timeout_ms",
                "max_exec_timeout_ms",
                "max_output_bytes",
                "max_read_bytes",
                "max_sessions",
                "max_upload_bytes",
                "memory_limit",
                "memory_mb",
                "pids",
                "pids_limit",
            ],
        ),
    ];

    #[test]
    fn every_number_has_bounds() {
        let document = openapi();
        let mut excused = std::collections::BTreeSet::new();
        for Part { at, name, schema, .. } in all_parts(&document) {
            if !is_number(schema) {
                continue;
            }
            assert!(schema["minimum"].is_number(), "{at} has no minimum");
            if schema["maximum"].is_number() || schema["x-maximum"].is_string() {
                continue;
            }
            let known = WITHOUT_MAXIMUM.iter().any(|(_, names)| names.contains(&name));
            assert!(known, "{at} has no maximum");
            excused.insert(name);
        }
        let names = WITHOUT_MAXIMUM.iter().flat_map(|(_, names)| *names).copied();
        assert_eq!(excused, names.collect(), "the list of reasons has a name too many");
    }

    #[test]
    fn a_maximum_of_the_configuration_is_a_field_of_info() {
        let document = openapi();
        let schemas = &document["components"]["schemas"];
        let paths =
            all_parts(&document).into_iter().filter_map(|part| part.schema["x-maximum"].as_str());
        let paths: Vec<&str> = paths.collect();
        assert_eq!(paths.len(), 5);
        for path in paths {
            let mut at = &schemas["Info"];
            for name in path.split('.') {
                at = resolved(&document, &at["properties"][name]);
            }
            assert!(is_number(at), "{path}");
        }
    }

    /// What a bounded number or length is counted in: one of these words is in its description.
    const UNITS: [&str; 20] = [
        "byte",
        "mib",
        "second",
        "core",
        "processes",
        "lines",
        "columns",
        "levels",
        "paths",
        "entries",
        "characters",
        "number",
        "times",
        "code",
        "octal",
        "`[a-z",
        "sessions",
        "forks",
        "members",
        "edits",
    ];

    #[test]
    fn everything_that_is_bounded_tells_its_unit() {
        const BOUNDS: [&str; 7] = [
            "minimum",
            "maximum",
            "x-maximum",
            "minLength",
            "maxLength",
            "minItems",
            "maxProperties",
        ];
        let document = openapi();
        let mut without = Vec::new();
        for Part { at, about, schema, .. } in all_parts(&document) {
            let about = about.unwrap_or_default().to_lowercase();
            let is_bounded = BOUNDS.iter().any(|bound| {
                // No text at all is forbidden, whatever its unit.
                schema.get(bound).is_some_and(|value| *bound != "minLength" || *value != 1)
            });
            if is_bounded && !UNITS.iter().any(|unit| about.contains(unit)) {
                without.push(format!("{at}: {about}"));
            }
        }
        assert_eq!(without, Vec::<String>::new());
    }

    /// A handler that is documented and in no list, or the other way round.
    #[test]
    fn the_document_has_every_handler() {
        let routes = concat!(env!("CARGO_MANIFEST_DIR"), "/src/routes");
        let files = std::fs::read_dir(routes).unwrap();
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let handlers: usize = texts.map(|text| text.matches("#[utoipa::path(").count()).sum();
        let document = openapi();
        let calls = calls(&document);
        let own = calls.iter().filter(|(name, _)| !name.starts_with("head")).count();
        assert_eq!(own, handlers);
    }
}
