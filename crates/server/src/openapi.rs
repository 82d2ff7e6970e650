//! The OpenAPI document, made from the handlers and the types. `docs/openapi.json` is this, checked in.
//!
//! ```text
//! handlers, types (utoipa) ──> explain ──> GET /openapi.json, docs/openapi.json
//!                                 │
//!      bounds, parameters, answers, examples: one table each
//! ```

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
    /// Target directory; the workspace where absent.
    path: Option<String>,
    /// The same in base64, for one that is not UTF-8.
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
                    let own = crate::error::status(*known).as_u16().to_string();
                    assert!(
                        own == *status || ["416", "431"].contains(&&**status),
                        "{name}: {code} with {status}"
                    );
                }
            }
        }
        let mut missing: Vec<String> = all.iter().map(|&code| answers::word(code)).collect();
        missing.retain(|code| !named.contains(code));
        // The first two come where there is no call, the last is not in this version.
        assert_eq!(missing, ["ROUTE_NOT_FOUND", "METHOD_NOT_ALLOWED", "RATE_LIMITED"]);
    }

    #[test]
    fn every_parameter_is_described() {
        let document = openapi();
        for (name, call) in calls(&document) {
            for parameter in call["parameters"].as_array().unwrap() {
                let parameter = resolved(&document, parameter);
                let what = format!("{name}: {}", parameter["name"]);
                let about = parameter["description"].as_str().expect(&what);
                assert!(about.ends_with('.'), "{what}: {about}");
                let kinds = &parameter["schema"]["type"];
                assert!(kinds.is_string() || target(&parameter["schema"]).is_some(), "{what}");
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

    /// Fields without a description, of their own or of the schema that they refer to. A field that can
    /// have one value alone says what it is by that.
    fn undescribed(at: &str, schema: &Value, found: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            let is_tag = field["enum"].as_array().is_some_and(|words| words.len() == 1);
            let refers = target(field).is_some();
            if !field["description"].is_string() && !is_tag && !refers {
                found.push(at.clone());
            }
            undescribed(&at, field, found);
        }
        for keyword in ["allOf", "oneOf"] {
            for part in schema[keyword].as_array().into_iter().flatten() {
                undescribed(at, part, found);
            }
        }
    }

    #[test]
    fn every_schema_and_field_is_described() {
        let document = openapi();
        let mut found = Vec::new();
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            if !schema["description"].is_string() {
                found.push(name.clone());
            }
            undescribed(name, schema, &mut found);
        }
        assert_eq!(found, Vec::<String>::new());
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
