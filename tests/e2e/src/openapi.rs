//! The daemon's own OpenAPI document, as a judge of what the daemon answers.
//!
//! Invariant: nothing is let through that the document does not say. A path, status, content type
//! or field that is not documented is a failure, and so is a schema keyword that this file does not
//! know: a judge that skips what it does not understand judges nothing.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::http::{Answer, shorten};

/// Objects whose fields are the client's own or depend on the error.
const FREE_FORM: [&str; 3] = ["labels", "env", "details"];

/// `/openapi.json`.
#[derive(Debug)]
pub struct Document {
    root: Value,
}

impl Document {
    #[must_use]
    pub fn new(root: Value) -> Self {
        Self { root }
    }

    #[must_use]
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// Every operation but `HEAD`, which is as `GET`: method in capitals, path template.
    #[must_use]
    pub fn operations(&self) -> Vec<(String, String)> {
        let paths = self.root["paths"].as_object().cloned().unwrap_or_default();
        let mut found = Vec::new();
        for (path, item) in paths {
            let methods = item.as_object().into_iter().flat_map(Map::keys);
            for method in methods.filter(|method| *method != "head") {
                found.push((method.to_uppercase(), path.clone()));
            }
        }
        found
    }

    /// Judges an answer to `method target`.
    ///
    /// # Panics
    /// Where the document does not have such an answer.
    #[track_caller]
    pub fn check(&self, method: &str, target: &str, answer: &Answer) {
        if let Err(fault) = self.judge(method, target, answer) {
            panic!("{method} {}: against openapi.json: {fault}: {answer}", shorten(target));
        }
    }

    /// Judges the data of an event of an exec or a process.
    ///
    /// # Panics
    /// Where the document does not have such an event.
    #[track_caller]
    pub fn check_event(&self, name: &str, data: &Value) {
        let schema = match name {
            "chunk" => "Chunk",
            "done" => "ExecDone",
            "output" => "ProcessOutput",
            "exit" => "ProcessExit",
            "gap" => "Gap",
            _ => "StreamError",
        };
        if let Err(fault) = self.validate(&reference(schema), data, name) {
            panic!("event against openapi.json: {fault}: {data}");
        }
    }

    /// Judges a text of a WebSocket on a process.
    ///
    /// # Panics
    /// Where the document does not have such a text.
    #[track_caller]
    pub fn check_report(&self, text: &Value) {
        if let Err(fault) = self.validate(&reference("AttachReport"), text, "text") {
            panic!("text against openapi.json: {fault}: {text}");
        }
    }

    /// As [`Document::check`].
    ///
    /// # Errors
    /// What is wrong.
    pub fn judge(&self, method: &str, target: &str, answer: &Answer) -> Result<(), String> {
        if matches!(method, "HEAD" | "OPTIONS") {
            return Ok(());
        }
        let path = target.split('?').next().unwrap_or_default();
        let Some(operation) = self.operation(method, path) else {
            // No such route or method: only an error can come back.
            return match answer.status() {
                400 | 401 | 403 | 404 | 405 => {
                    self.validate(&reference("ErrorBody"), &body(answer)?, "$")
                }
                status => Err(format!("status {status} of a route that is not documented")),
            };
        };
        let responses = &operation["responses"];
        let response = responses.get(answer.status().to_string()).or(responses.get("default"));
        let response = response.ok_or("status is not documented")?;
        let response = self.resolve(response)?;
        if response.get("content").is_none() {
            let empty = answer.body.is_empty();
            return if empty { Ok(()) } else { Err("a body is not documented".into()) };
        }
        let kind = answer.header("Content-Type").unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let Some(content) = response["content"].get(kind) else {
            return Err(format!("content type {kind:?} is not documented"));
        };
        if kind != "application/json" {
            return Ok(());
        }
        self.validate(content.get("schema").ok_or("no schema")?, &body(answer)?, "$")
    }

    /// The operation that a path leads to; literal parts win over parameters.
    fn operation(&self, method: &str, path: &str) -> Option<&Value> {
        let paths = self.root["paths"].as_object()?;
        let item = paths.get(path).or_else(|| {
            paths.iter().find(|(template, _)| matches(template, path)).map(|(_, item)| item)
        })?;
        item.get(method.to_lowercase())
    }

    /// Judges a value by a schema; fields that no part of the schema names are a fault.
    ///
    /// # Errors
    /// What is wrong, with the place in the value.
    pub fn validate(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let named = self.evaluate(schema, value, at)?;
        let Some(object) = value.as_object() else { return Ok(()) };
        match object.keys().find(|key| !named.contains(*key)) {
            Some(key) => Err(format!("{at}.{key} is not documented")),
            None => Ok(()),
        }
    }

    /// The fields of `value` that `schema` speaks of.
    fn evaluate(
        &self,
        schema: &Value,
        value: &Value,
        at: &str,
    ) -> Result<BTreeSet<String>, String> {
        let schema =
            schema.as_object().ok_or_else(|| format!("{at}: a schema that is no object"))?;
        let mut named = BTreeSet::new();
        for (keyword, rule) in schema {
            match keyword.as_str() {
                "$ref" => {
                    named.extend(self.evaluate(self.resolve(&reference_of(rule))?, value, at)?);
                }
                "allOf" => {
                    for part in list(rule) {
                        named.extend(self.evaluate(part, value, at)?);
                    }
                }
                "oneOf" | "anyOf" => named.extend(self.one_of(list(rule), value, at)?),
                "properties" => named.extend(self.properties(rule, value, at)?),
                "additionalProperties" => {
                    named.extend(self.additional(schema, rule, value, at)?);
                }
                "items" => {
                    for (index, item) in list(value).iter().enumerate() {
                        self.validate(rule, item, &format!("{at}[{index}]"))?;
                    }
                }
                _ => simple(keyword, rule, value).map_err(|fault| format!("{at}: {fault}"))?,
            }
        }
        Ok(named)
    }

    fn one_of(&self, parts: &[Value], value: &Value, at: &str) -> Result<BTreeSet<String>, String> {
        let mut faults = Vec::new();
        for part in parts {
            match self.validate(part, value, at) {
                Ok(()) => return self.evaluate(part, value, at),
                Err(fault) => faults.push(fault),
            }
        }
        Err(format!("{at}: none of {} schemas: {}", parts.len(), faults.join("; ")))
    }

    fn properties(
        &self,
        rule: &Value,
        value: &Value,
        at: &str,
    ) -> Result<BTreeSet<String>, String> {
        let (Some(rule), Some(object)) = (rule.as_object(), value.as_object()) else {
            return Ok(BTreeSet::new());
        };
        let mut named = BTreeSet::new();
        for (key, schema) in rule {
            if let Some(field) = object.get(key) {
                self.validate(schema, field, &format!("{at}.{key}"))?;
                named.insert(key.clone());
            }
        }
        Ok(named)
    }

    fn additional(
        &self,
        schema: &Map<String, Value>,
        rule: &Value,
        value: &Value,
        at: &str,
    ) -> Result<BTreeSet<String>, String> {
        let known = |key: &str| schema.get("properties").is_some_and(|all| all.get(key).is_some());
        let mut named = BTreeSet::new();
        for (key, field) in value.as_object().into_iter().flatten().filter(|(key, _)| !known(key)) {
            match rule {
                Value::Bool(allowed) if !allowed => return Err(format!("{at}.{key} is too much")),
                // The empty schema and `true` take anything.
                Value::Bool(_) => {}
                Value::Object(any) if any.is_empty() => {}
                schema => self.validate(schema, field, &format!("{at}.{key}"))?,
            }
            named.insert(key.clone());
        }
        Ok(named)
    }

    /// Follows a `$ref` within the document.
    fn resolve<'a>(&'a self, value: &'a Value) -> Result<&'a Value, String> {
        let Some(target) = value.get("$ref").and_then(Value::as_str) else { return Ok(value) };
        let pointer = target.strip_prefix('#').ok_or_else(|| format!("foreign $ref {target}"))?;
        self.root.pointer(pointer).ok_or_else(|| format!("dangling $ref {target}"))
    }

    /// Every place where the document has an object without named fields, or a value of any kind,
    /// beside those that are meant to be so.
    #[must_use]
    pub fn free_form(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.root["components"]["schemas"], "schemas", &mut found);
        walk_content(&self.root["paths"], "paths", &mut found);
        found
    }
}

/// Walks the schemas of an object whose values are schemas.
fn walk(schemas: &Value, at: &str, found: &mut Vec<String>) {
    for (name, schema) in schemas.as_object().into_iter().flatten() {
        if !FREE_FORM.contains(&name.as_str()) {
            walk_schema(schema, &format!("{at}.{name}"), found);
        }
    }
}

fn walk_schema(schema: &Value, at: &str, found: &mut Vec<String>) {
    let Some(object) = schema.as_object() else { return };
    let says = |keyword: &str| object.contains_key(keyword);
    let composed = ["$ref", "oneOf", "anyOf", "allOf", "enum", "const"].into_iter().any(says);
    let is_object = schema["type"] == "object" || list(&schema["type"]).contains(&"object".into());
    if !composed && (!says("type") || (is_object && !says("properties"))) {
        found.push(at.to_owned());
    }
    walk(&schema["properties"], at, found);
    for keyword in ["oneOf", "anyOf", "allOf"] {
        for part in list(&schema[keyword]) {
            walk_schema(part, at, found);
        }
    }
    if says("items") {
        walk_schema(&schema["items"], &format!("{at}[]"), found);
    }
}

/// Walks every `schema` below `paths`.
fn walk_content(value: &Value, at: &str, found: &mut Vec<String>) {
    for (name, inner) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        if name == "schema" {
            walk_schema(inner, &at, found);
        } else {
            walk_content(inner, &at, found);
        }
    }
    for inner in list(value) {
        walk_content(inner, at, found);
    }
}

fn simple(keyword: &str, rule: &Value, value: &Value) -> Result<(), String> {
    let holds = match keyword {
        "description" | "title" | "example" | "examples" | "default" | "deprecated" | "format"
        | "propertyNames" | "contentEncoding" => true,
        // Patterns are judged by the suite `openapi`, whose tools know them.
        "pattern" => true,
        // Extensions are no rules for an answer.
        _ if keyword.starts_with("x-") => true,
        "minLength" => length(value).is_none_or(|length| length >= rule.as_u64().unwrap_or(0)),
        "maxLength" => length(value).is_none_or(|length| length <= rule.as_u64().unwrap_or(0)),
        "maxItems" => list(value).len() as u64 <= rule.as_u64().unwrap_or(0),
        "maxProperties" => {
            let count = value.as_object().map_or(0, Map::len) as u64;
            count <= rule.as_u64().unwrap_or(0)
        }
        "type" => match rule {
            Value::String(kind) => is_type(kind, value),
            kinds => list(kinds).iter().any(|kind| is_type(kind.as_str().unwrap_or(""), value)),
        },
        "enum" => list(rule).contains(value),
        "const" => rule == value,
        "required" => list(rule).iter().all(|key| {
            value.as_object().is_none_or(|fields| fields.contains_key(key.as_str().unwrap_or("")))
        }),
        "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().unwrap_or(number)),
        "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().unwrap_or(number)),
        unknown => return Err(format!("schema keyword `{unknown}` is not known here")),
    };
    if holds { Ok(()) } else { Err(format!("{keyword} {rule} does not hold for {value}")) }
}

/// Characters of a text.
fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|text| text.chars().count() as u64)
}

fn is_type(kind: &str, value: &Value) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

/// Whether a path template leads to `path`.
fn matches(template: &str, path: &str) -> bool {
    let (mut template, mut path) = (template.split('/'), path.split('/'));
    loop {
        match (template.next(), path.next()) {
            (None, None) => return true,
            (Some(want), Some(part)) if want.starts_with('{') && !part.is_empty() => {}
            (Some(want), Some(part)) if want == part => {}
            _ => return false,
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn body(answer: &Answer) -> Result<Value, String> {
    serde_json::from_slice(&answer.body).map_err(|error| format!("body is not JSON: {error}"))
}

fn reference(name: &str) -> Value {
    serde_json::json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn reference_of(rule: &Value) -> Value {
    serde_json::json!({ "$ref": rule })
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    fn document() -> Document {
        Document::new(json!({
            "paths": {"/v1/things/{id}": {"get": {"responses": {"200": {"content": {}}}}}},
            "components": {"schemas": {
                "Base": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}},
                "Whole": {"allOf": [
                    {"$ref": "#/components/schemas/Base"},
                    {"type": "object", "properties": {
                        "b": {"type": ["string", "null"]},
                        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                    }},
                ]},
                "Loose": {"type": "object"},
            }},
        }))
    }

    #[track_caller]
    fn judge(value: Value) -> Result<(), String> {
        document().validate(&reference("Whole"), &value, "$")
    }

    #[test]
    fn takes_what_the_schema_says() {
        judge(json!({"a": 1, "b": null, "labels": {"x": "y"}})).unwrap();
    }

    #[test]
    fn refuses_what_it_does_not_say() {
        for bad in [
            json!({"b": "no a"}),
            json!({"a": 1.5}),
            json!({"a": 1, "b": 2}),
            json!({"a": 1, "extra": 0}),
            json!({"a": 1, "labels": {"x": 1}}),
        ] {
            assert!(judge(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn refuses_keywords_that_it_does_not_know() {
        let schema = json!({"type": "string", "patternProperties": {}});
        assert!(document().validate(&schema, &json!("a"), "$").is_err());
    }

    #[test]
    fn finds_free_form_objects() {
        assert_eq!(document().free_form(), ["schemas.Loose"]);
    }

    #[test]
    fn templates_match_whole_parts() {
        assert!(matches("/v1/things/{id}", "/v1/things/7"));
        for other in ["/v1/things", "/v1/things/", "/v1/things/7/x", "/v2/things/7"] {
            assert!(!matches("/v1/things/{id}", other), "{other}");
        }
    }
}
