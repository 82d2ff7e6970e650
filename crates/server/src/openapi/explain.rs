//! From what the handlers and types say to the whole document: bounds, examples, headers, errors, `HEAD`.
//!
//! ```text
//! utoipa's document ──> schemas ──> each call: parameters → body → answers → errors → HEAD ──> document
//! ```
//!
//! Invariant: nothing here is about one call alone. What a single call says stands at its handler; a rule
//! that holds for several stands here once.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{Call, answers, bounds, examples, parameters, target, texts};

const EVENT_STREAM: &str = "text/event-stream";

/// Completes the document.
pub(super) fn explain(mut document: Value) -> Value {
    let requests = request_schemas(&document);
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        for (name, schema) in schemas.iter_mut() {
            if requests.contains(name) {
                explain_request(name, schema);
            } else {
                drop_nulls(schema);
                bound_answer(name, schema);
            }
            tidy(schema);
        }
    }
    if let Some(base64) = document["components"]["schemas"].get_mut("Base64") {
        base64["pattern"] = bounds::BASE64.into();
    }
    flatten_choices(&mut document);
    let schemas = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
    let mut responses = Map::new();
    let mut paths = document["paths"].take();
    for (path, item) in paths.as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            explain_call(&Call::new(path, method, operation), operation, &schemas, &mut responses);
        }
        add_head(path, item, &responses);
    }
    document["paths"] = paths;
    drop_unused(&mut document);
    document["components"]["responses"] = Value::Object(responses);
    document["components"]["headers"] = answers::header_components();
    document["components"]["parameters"] = parameters::components();
    document
}

/// A choice of one schema with a tag beside its fields becomes an object of its own: makers of clients know
/// no `allOf` within `oneOf`, and want names.
fn flatten_choices(document: &mut Value) {
    let known = document["components"]["schemas"].clone();
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else { return };
    let mut made = Map::new();
    for (name, schema) in schemas.iter_mut() {
        for choice in schema["oneOf"].as_array_mut().into_iter().flatten() {
            let Some(whole) = tagged(choice, &known) else { continue };
            let tag = whole["properties"]["type"]["enum"][0].as_str().unwrap_or_default();
            let name = format!("{name}{}{}", tag[..1].to_uppercase(), &tag[1..]);
            *choice = json!({ "$ref": format!("#/components/schemas/{name}") });
            made.insert(name, whole);
        }
        drop_empty(schema);
    }
    schemas.extend(made);
}

/// The object that a choice with a tag is.
fn tagged(choice: &Value, known: &Value) -> Option<Value> {
    let (mut fields, mut required) = (Map::new(), Vec::new());
    gather(choice, known, &mut fields, &mut required);
    let tag = fields.get("type")?["enum"][0].as_str().unwrap_or_default();
    let tag = Some(tag.to_owned()).filter(|tag| tag.is_ascii() && !tag.is_empty())?;
    fields["type"]["description"] = format!("Which message it is: always `{tag}`.").into();
    let about = &choice["description"];
    Some(json!({
        "type": "object", "properties": fields, "required": required, "description": about,
    }))
}

/// The fields of a schema and of all that it is made of.
fn gather(
    schema: &Value,
    known: &Value,
    fields: &mut Map<String, Value>,
    required: &mut Vec<Value>,
) {
    let schema = target(schema).map_or(schema, |name| &known[name]);
    for part in schema["allOf"].as_array().into_iter().flatten() {
        gather(part, known, fields, required);
    }
    fields.extend(schema["properties"].as_object().cloned().unwrap_or_default());
    required.extend(schema["required"].as_array().into_iter().flatten().cloned());
}

/// Names of the schemas that requests are made of.
fn request_schemas(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let items = document["paths"].as_object().into_iter().flat_map(Map::values);
    for operation in items.flat_map(|item| item.as_object().into_iter().flat_map(Map::values)) {
        collect(&operation["requestBody"], &document["components"]["schemas"], &mut found);
    }
    found
}

fn collect(value: &Value, schemas: &Value, found: &mut BTreeSet<String>) {
    if let Some(name) = target(value)
        && found.insert(name.to_owned())
    {
        collect(&schemas[name], schemas, found);
    }
    match value {
        Value::Object(members) => members.values().for_each(|v| collect(v, schemas, found)),
        Value::Array(items) => items.iter().for_each(|item| collect(item, schemas, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Adds what the server enforces to a schema of requests.
fn explain_request(name: &str, schema: &mut Value) {
    for (field, rule) in schema["properties"].as_object_mut().into_iter().flatten() {
        if let Some(bound) = bounds::of_field(name, field) {
            merge(rule, bound);
        }
    }
    for choice in schema["oneOf"].as_array_mut().into_iter().flatten() {
        let kind = choice["type"].as_str().unwrap_or_default().to_owned();
        if let Some(bound) = bounds::of_choice(name, &kind) {
            merge(choice, bound);
        }
        close(choice);
    }
    let pairs = bounds::either_or(name);
    if let (Some(rule), Some(object)) = (exactly_one(pairs), schema.as_object_mut()) {
        object.extend(rule);
    }
    if let Some((this, other)) = bounds::at_least_one(name) {
        schema["if"] = json!({ "not": given(this) });
        schema["then"] = given(other);
    }
    for (field, value, rest) in bounds::depends(name) {
        let is_so = json!({ "properties": { field: value } });
        schema["dependentSchemas"][field] = json!({ "if": is_so, "then": rest });
    }
    close(schema);
}

/// A field that an object of a request does not have is refused.
fn close(schema: &mut Value) {
    if schema.get("properties").is_some() && schema.get("allOf").is_none() {
        schema["additionalProperties"] = false.into();
    }
    drop_empty(schema);
}

/// Adds what can come to a schema of answers.
fn bound_answer(name: &str, schema: &mut Value) {
    if name == "OpenApiDocument" {
        // What OpenAPI says of it stands elsewhere.
        schema["additionalProperties"] = true.into();
    }
    for (field, rule) in schema["properties"].as_object_mut().into_iter().flatten() {
        if let Some(bound) = bounds::of_answer(name, field) {
            merge(rule, bound);
        }
    }
    for part in schema["allOf"].as_array_mut().into_iter().flatten() {
        bound_answer(name, part);
    }
    drop_empty(schema);
}

/// Adds the members of `more`. A field of some words or null is a choice: makers of clients have no name
/// for a null among words.
fn merge(schema: &mut Value, more: Value) {
    let may_be_null = texts(&schema["type"]).any(|kind| kind == "null");
    let (Some(schema), Value::Object(more)) = (schema.as_object_mut(), more) else { return };
    if may_be_null && more.contains_key("enum") {
        schema.remove("type");
        let mut words = json!({ "type": "string" });
        merge(&mut words, Value::Object(more));
        schema.insert("oneOf".into(), json!([words, { "type": "null" }]));
    } else {
        schema.extend(more);
    }
}

/// What holds where a field is given: it is there and not null.
fn given(field: &str) -> Value {
    json!({ "required": [field], "properties": { field: { "not": { "type": "null" } } } })
}

/// Of each pair of fields exactly one is given. Written with `if` alone: makers of clients pass over it, and
/// would take `oneOf` for several types.
fn exactly_one(pairs: &[(&str, &str)]) -> Option<Map<String, Value>> {
    let ((this, other), rest) = pairs.split_first()?;
    let mut then = json!({ "not": given(other) });
    let mut otherwise = given(other);
    if let (Some(more), Some(then), Some(otherwise)) =
        (exactly_one(rest), then.as_object_mut(), otherwise.as_object_mut())
    {
        then.extend(more.clone());
        otherwise.extend(more);
    }
    let rule = json!({ "if": given(this), "then": then, "else": otherwise });
    rule.as_object().cloned()
}

/// A field of an answer that may be absent is absent, not null.
fn drop_nulls(schema: &mut Value) {
    for part in schema["allOf"].as_array_mut().into_iter().flatten() {
        drop_nulls(part);
    }
    for part in schema["oneOf"].as_array_mut().into_iter().flatten() {
        drop_nulls(part);
    }
    let required: Vec<String> = texts(&schema["required"]).map(str::to_owned).collect();
    let loose = schema.get("required").is_none();
    for (field, rule) in schema["properties"].as_object_mut().into_iter().flatten() {
        if loose || !required.contains(field) {
            drop_null(rule);
        }
    }
    drop_empty(schema);
}

/// Indexing has put nulls where a keyword is absent.
fn drop_empty(schema: &mut Value) {
    if let Some(object) = schema.as_object_mut() {
        object.retain(|_, rule| !rule.is_null());
    }
}

fn drop_null(rule: &mut Value) {
    if let Some(kinds) = rule["type"].as_array_mut() {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_slice() {
            rule["type"] = kind.clone();
        }
    }
    if let Some(choices) = rule["oneOf"].as_array_mut() {
        choices.retain(|choice| choice["type"] != "null");
        if let [choice] = choices.as_slice() {
            *rule = choice.clone();
        }
    }
    drop_empty(rule);
}

/// Takes a description out of a choice, and nulls away that say nothing.
fn tidy(schema: &mut Value) {
    for (_, rule) in schema["properties"].as_object_mut().into_iter().flatten() {
        let choices = rule["oneOf"].as_array_mut().into_iter().flatten();
        let about = choices
            .filter_map(|choice| choice.as_object_mut())
            .filter(|choice| choice.contains_key("$ref"))
            .find_map(|choice| choice.remove("description"));
        if let Some(about) = about {
            rule["description"] = about;
        }
        // Descriptions say what holds where a field is absent; makers of clients would take it for sent.
        if let Some(rule) = rule.as_object_mut() {
            rule.remove("default");
        }
        drop_empty(rule);
    }
    for keyword in ["allOf", "oneOf"] {
        for part in schema[keyword].as_array_mut().into_iter().flatten() {
            tidy(part);
        }
    }
    drop_empty(schema);
}

/// Takes schemas away that nothing refers to: parts of others that were written out there.
fn drop_unused(document: &mut Value) {
    let mut used = BTreeSet::from(["ErrorBody".to_owned()]);
    let schemas = document["components"]["schemas"].clone();
    for name in used.clone() {
        collect(&schemas[name], &schemas, &mut used);
    }
    collect(&document["paths"], &schemas, &mut used);
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        schemas.retain(|name, _| used.contains(name));
    }
}

fn explain_call(
    call: &Call<'_>,
    operation: &mut Value,
    schemas: &Map<String, Value>,
    components: &mut Map<String, Value>,
) {
    explain_parameters(call, operation);
    if call.is_open {
        operation["security"] = json!([]);
    }
    if call.has_body {
        explain_body(&mut operation["requestBody"], schemas);
    }
    let Some(responses) = operation["responses"].as_object_mut() else { return };
    responses.remove("default");
    for (status, response) in responses.iter_mut() {
        for (kind, media) in response["content"].as_object_mut().into_iter().flatten() {
            explain_media(kind, media, schemas);
        }
        if status == "101" {
            // Messages of a WebSocket are no body.
            response["x-text-message"] = json!({
                "client": { "$ref": "#/components/schemas/AttachOrder" },
                "server": { "$ref": "#/components/schemas/AttachReport" },
            });
            response["content"].take();
        }
        response["headers"] = Value::Object(answers::headers(call, status));
        drop_empty(response);
    }
    if call.is_file() && call.is_safe() {
        let headers = answers::headers(call, "304");
        let about = "The client has it: `If-None-Match` names its `ETag`";
        responses.insert("304".into(), json!({ "description": about, "headers": headers }));
    }
    answers::add_errors(call, responses, components);
    drop_empty(operation);
}

fn explain_parameters(call: &Call<'_>, operation: &mut Value) {
    let mut all = operation["parameters"].as_array().cloned().unwrap_or_default();
    for parameter in &mut all {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        let known = match parameter["in"].as_str() {
            Some("header") => parameters::documented_header(&name),
            _ => parameters::named(call, &name),
        };
        drop_null(&mut parameter["schema"]);
        let Some(known) = known else { continue };
        // The handler's own words come before those that hold everywhere else.
        if parameter["description"].as_str().is_none_or(str::is_empty) {
            parameter["description"] = known.about.into();
        }
        merge(&mut parameter["schema"], known.schema);
        if parameter.get("example").is_none() && !known.example.is_null() {
            parameter["example"] = known.example;
        }
    }
    all.extend(parameters::headers(call));
    operation["parameters"] = Value::Array(all);
}

fn explain_body(body: &mut Value, schemas: &Map<String, Value>) {
    let mut required = false;
    for (kind, media) in body["content"].as_object_mut().into_iter().flatten() {
        required |= must_be_given(kind, &media["schema"], schemas);
        explain_media(kind, media, schemas);
    }
    body["required"] = required.into();
    drop_empty(body);
}

/// Whether a body is needed: no bytes are bytes too, but no archive, and no JSON is `{}`.
fn must_be_given(kind: &str, schema: &Value, schemas: &Map<String, Value>) -> bool {
    let schema = target(schema).and_then(|name| schemas.get(name)).unwrap_or(schema);
    match kind {
        "application/json" => schema.get("required").is_some() || schema.get("if").is_some(),
        "multipart/form-data" | "application/x-tar" | "application/gzip" => true,
        _ => false,
    }
}

/// Gives a body its example, and one that is not JSON the schema of a text or of bytes.
fn explain_media(kind: &str, media: &mut Value, schemas: &Map<String, Value>) {
    if media.get("example").is_none() && kind != "multipart/form-data" && !is_binary(kind) {
        media["example"] = match kind {
            "application/json" | EVENT_STREAM => examples::of(&media["schema"], schemas),
            other => examples::text(other),
        };
    }
    if kind == EVENT_STREAM {
        let datum = media["schema"].clone();
        let about = target(&datum).and_then(|name| schemas.get(name));
        let about = about.map(|schema| schema["description"].clone()).unwrap_or_default();
        media["schema"] = json!({ "type": "string", "description": about, "x-event-data": datum });
    }
    if is_binary(kind) {
        media["schema"] = json!({ "type": "string", "format": "binary" });
    }
}

fn is_binary(kind: &str) -> bool {
    ["application/octet-stream", "application/x-tar", "application/gzip"].contains(&kind)
}

/// Every `GET` answers `HEAD` too, but for a WebSocket.
fn add_head(path: &str, item: &mut Value, components: &Map<String, Value>) {
    let get = item["get"].clone();
    drop_empty(item);
    if get.is_null() || get["responses"].get("101").is_some() {
        return;
    }
    let mut head = get;
    let id = head["operationId"].as_str().unwrap_or_default();
    head["operationId"] = format!("head_{id}").into();
    head["summary"] = format!("The head of the answer to `GET {path}`, without its body.").into();
    for (_, response) in head["responses"].as_object_mut().into_iter().flatten() {
        let name = response["$ref"].as_str().and_then(|name| name.rsplit('/').next());
        if let Some(known) = name.and_then(|name| components.get(name)) {
            *response = known.clone();
        }
        if let Some(response) = response.as_object_mut() {
            response.remove("content");
        }
    }
    if let Some(head) = head.as_object_mut() {
        head.remove("description");
    }
    drop_empty(&mut head);
    item["head"] = head;
}
