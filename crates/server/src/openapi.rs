//! The OpenAPI document, made from the handlers and the types. `docs/openapi.json` is this, checked in.

use sandkasten_types::attach::{AttachOrder, AttachReport};
use sandkasten_types::error::ErrorBody;
use sandkasten_types::exec::{Chunk, ExecEnd, Gap, StreamError};
use sandkasten_types::process::{ProcessEnd, ProcessOutput};
use serde::Serialize;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

use crate::routes;

/// The document that `GET /openapi.json` answers.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes::router_and_document().1
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
        description = "Isolated, stateful Linux boxes for AI agents. Every error has the shape \
            `ErrorBody`. Every answer has `X-Request-Id`.",
        license(name = "MIT", identifier = "MIT")
    ),
    components(schemas(ErrorBody, StreamDatum, ReplayDatum, ProcessDatum, AttachText)),
    modifiers(&BearerKey),
    security(("key" = [])),
    tags(
        (name = "sessions"),
        (name = "exec"),
        (name = "processes"),
        (name = "files"),
        (name = "workspaces"),
        (name = "daemon"),
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
    Done(ExecEnd),
    Error(StreamError),
}

/// What stands behind `data:` in the events of an exec: with `event: chunk`, `gap`, `done` or `error`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "the shape of the document; the events are made in routes/exec.rs")]
pub(crate) enum ReplayDatum {
    Chunk(Chunk),
    Gap(Gap),
    Done(ExecEnd),
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
    Exit(ProcessEnd),
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
    #[schema(content_media_type = "application/octet-stream")]
    file: Option<String>,
    files: Option<Vec<String>>,
}

/// `GET /openapi.json`: an OpenAPI 3.1 document.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "the shape of the document")]
pub(crate) struct OpenApiDocument {
    openapi: String,
}

#[cfg(test)]
mod test {
    use serde_json::Value;

    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

    #[test]
    fn the_checked_in_document_is_the_codes() {
        let text = openapi().to_pretty_json().unwrap() + "\n";
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
        let document = serde_json::to_value(openapi()).unwrap();
        let mut found = Vec::new();
        free_forms("", &document, &mut found);
        found.retain(|path| !["/labels", "/env", "/details"].iter().any(|end| path.ends_with(end)));
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn what_may_be_absent_is_not_required() {
        let document = serde_json::to_value(openapi()).unwrap();
        for name in ["ExecStatus", "ProcessStatus"] {
            let parts = document["components"]["schemas"][name]["allOf"].as_array().unwrap();
            assert!(parts.iter().all(|part| part.get("oneOf").is_none()), "{name}");
            let ends = parts.iter().filter(|part| part["properties"]["duration_ms"].is_object());
            assert_eq!(ends.filter(|part| part.get("required").is_none()).count(), 1, "{name}");
        }
    }

    #[test]
    fn it_is_version_3_1_and_every_answer_has_a_schema() {
        let document = serde_json::to_value(openapi()).unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let mut ids = std::collections::HashSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(ids.insert(operation["operationId"].as_str()), "{method} {path}: id");
                let responses = operation["responses"].as_object().unwrap();
                assert!(responses.contains_key("default"), "{method} {path} has no error");
                for (status, response) in responses {
                    assert!(response["content"].is_object(), "{method} {path} {status}");
                    assert!(response["description"].is_string(), "{method} {path} {status}");
                }
            }
        }
    }
}
