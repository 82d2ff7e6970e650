//! Which errors a call can answer, and the headers of its answers.
//!
//! The rules below are the one place that says so. The status of a code comes from `error::status`, its
//! meaning from `error::meaning`; those of the few answers with another status from `error::Special`. Answers with the same codes are one component of the document.

use std::collections::BTreeMap;

use hyper::StatusCode;
use sandkasten_types::ErrorCode;
use serde_json::{Map, Value, json};

use super::Call;
use crate::error::{ApiError, RETRY_AFTER_DRAIN_SECONDS, Special, code_name, meaning, status};
use crate::request_id::RequestId;

use ErrorCode as E;

/// Errors that calls of one kind can have.
struct Rule {
    /// Part of the component's name.
    name: &'static str,
    applies: fn(&Call<'_>) -> bool,
    codes: &'static [ErrorCode],
}

/// The one special answer of a rule, beside [`RULES`].
struct SpecialRule {
    name: &'static str,
    applies: fn(&Call<'_>) -> bool,
    special: Special,
}

const fn rule(
    name: &'static str,
    applies: fn(&Call<'_>) -> bool,
    codes: &'static [ErrorCode],
) -> Rule {
    Rule { name, applies, codes }
}

const RULES: &[Rule] = &[
    rule("", |_| true, &[E::InvalidRequest, E::InternalError, E::Overloaded]),
    rule("Key", |call| !call.is_open, &[E::Unauthorized, E::Forbidden]),
    rule("Draining", |call| call.path != "/healthz", &[E::Draining]),
    rule("Body", |call| call.has_body, &[E::TooLarge]),
    rule("Session", |call| call.is_of_session(), &[E::SessionNotFound]),
    rule(
        "Ended",
        |call| call.is_of_session() && !call.is_of_ended_session(),
        &[E::SessionExpired, E::SessionDestroyed, E::SessionCrashed],
    ),
    rule(
        "Create",
        |call| call.is("post", "/v1/sessions"),
        &[
            E::InvalidImage,
            E::ImageNotFound,
            E::InvalidWorkspace,
            E::WorkspaceNotFound,
            E::WorkspaceInUse,
            E::IdempotencyMismatch,
            E::QuotaExceeded,
            E::NoSpace,
        ],
    ),
    rule("Exec", |call| call.ends_with(&["/exec", "/exec/stream"]), &[E::IdempotencyMismatch]),
    rule("Exec", |call| call.path.contains("{exec_id}"), &[E::ExecNotFound]),
    rule("Shell", |call| call.ends_with(&["/shell/restart"]), &[E::Conflict]),
    rule("Process", |call| call.path.contains("{process_id}"), &[E::ProcessNotFound]),
    rule("Process", |call| call.ends_with(&["/stdin", "/resize", "/signal"]), &[E::Conflict]),
    rule(
        "Image",
        |call| call.path.starts_with("/v1/images/{"),
        &[E::InvalidImage, E::ImageNotFound],
    ),
    rule("Image", |call| call.is("delete", "/v1/images/{name}"), &[E::Conflict]),
    rule("Workspace", |call| call.is_of_workspace(), &[E::InvalidWorkspace, E::WorkspaceNotFound]),
    rule("Limit", |call| call.is("put", "/v1/workspaces/{id}"), &[E::WorkspaceInUse, E::NoSpace]),
    rule("Limit", |call| call.is("delete", "/v1/workspaces/{id}"), &[E::WorkspaceInUse]),
    rule(
        "File",
        |call| call.is_of_files(),
        &[
            E::InvalidPath,
            E::PathNotAllowed,
            E::NotAFile,
            E::IsADirectory,
            E::NotADirectory,
            E::PermissionDenied,
            E::FileNotFound,
            // A worker that somebody in the session has ended.
            E::Conflict,
        ],
    ),
    rule(
        "Write",
        |call| call.is_of_files() && !call.is_safe(),
        &[E::AlreadyExists, E::NoSpace, E::TooLarge],
    ),
    rule(
        "Precondition",
        |call| call.is_file() || call.ends_with(&["/fs/edit"]),
        &[E::PreconditionFailed],
    ),
];

/// Beside these, [`Special::Address`] can come for any address: the document's head says so.
const SPECIAL_RULES: &[SpecialRule] = &[
    SpecialRule { name: "", applies: |_| true, special: Special::Head },
    SpecialRule {
        name: "Disk",
        applies: |call| call.path == "/readyz",
        special: Special::DiskFull,
    },
    SpecialRule {
        name: "Range",
        applies: |call| call.is_file() && call.is_safe(),
        special: Special::Range,
    },
];

/// One status of a call: the rules that lead to it and their errors.
#[derive(Default)]
struct Group {
    name: String,
    errors: Vec<Fault>,
}

impl Group {
    fn add(&mut self, name: &str, error: Fault) {
        if !self.name.ends_with(name) {
            self.name += name;
        }
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }
}

/// An error as an answer has it: with the status of its code, or with a special one.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Code(ErrorCode),
    Special(Special),
}

impl Fault {
    fn code(self) -> ErrorCode {
        match self {
            Self::Code(code) => code,
            Self::Special(special) => special.code(),
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Code(code) => meaning(code),
            Self::Special(special) => special.meaning(),
        }
    }

    /// As it stands on the wire.
    fn example(self) -> Value {
        let text = self.meaning();
        let error = match self {
            Self::Code(code) => ApiError::new(code, text),
            Self::Special(special) => special.error(text),
        };
        let mut value = serde_json::to_value(error.body(&RequestId::new())).unwrap_or_default();
        // An internal error's has a new id each time.
        for field in ["message", "error"] {
            value[field] = text.into();
        }
        value["details"] = json!({});
        json!({ "value": value })
    }
}

fn groups(call: &Call<'_>) -> BTreeMap<StatusCode, Group> {
    let mut groups: BTreeMap<StatusCode, Group> = BTreeMap::new();
    for rule in RULES.iter().filter(|rule| (rule.applies)(call)) {
        for &code in rule.codes {
            groups.entry(status(code)).or_default().add(rule.name, Fault::Code(code));
        }
    }
    for SpecialRule { name, special, .. } in
        SPECIAL_RULES.iter().filter(|rule| (rule.applies)(call))
    {
        groups.entry(special.status()).or_default().add(name, Fault::Special(*special));
    }
    groups
}

/// The codes that a call can have with a status, for a test.
#[cfg(test)]
pub(super) fn codes(call: &Call<'_>) -> BTreeMap<String, Vec<String>> {
    let groups = groups(call).into_iter();
    let words = |group: Group| group.errors.into_iter().map(|fault| word(fault.code())).collect();
    groups.map(|(status, group)| (status.as_u16().to_string(), words(group))).collect()
}

/// Adds the errors of a call to its answers, and to `components` what they refer to.
pub(super) fn add_errors(
    call: &Call<'_>,
    responses: &mut Map<String, Value>,
    components: &mut Map<String, Value>,
) {
    for (status, group) in groups(call) {
        let reason = status.canonical_reason().unwrap_or("Error").replace(' ', "");
        let name = format!("{reason}{}", group.name);
        let reference = json!({ "$ref": format!("#/components/responses/{name}") });
        responses.insert(status.as_u16().to_string(), reference);
        components.entry(name).or_insert_with(|| component(status, &group.errors));
    }
}

fn component(status: StatusCode, faults: &[Fault]) -> Value {
    let words: Vec<String> = faults.iter().map(|fault| word(fault.code())).collect();
    let named = || words.iter().zip(faults);
    let lines: Vec<String> =
        named().map(|(word, fault)| format!("- `{word}`: {}", fault.meaning())).collect();
    let examples: Map<String, Value> =
        named().map(|(word, fault)| (word.clone(), fault.example())).collect();
    let mut headers = Map::from_iter([refer("X-Request-Id")]);
    if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        headers.extend([refer("Retry-After")]);
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.extend([refer("WWW-Authenticate")]);
    }
    if status == StatusCode::RANGE_NOT_SATISFIABLE {
        headers.extend([refer("Content-Range")]);
    }
    json!({
        "description": lines.join("\n"),
        "x-error-codes": words,
        "headers": headers,
        "content": { "application/json": {
            "schema": { "$ref": "#/components/schemas/ErrorBody" },
            "examples": examples,
        } },
    })
}

/// The code as it stands on the wire.
pub(super) fn word(code: ErrorCode) -> String {
    code_name(code)
}

/// The headers of an answer that is no error.
pub(super) fn headers(call: &Call<'_>, status: &str) -> Map<String, Value> {
    let mut headers = Map::from_iter([refer("X-Request-Id")]);
    if call.is_file() && call.is_safe() {
        headers.extend([refer("ETag")]);
        if status != "304" {
            headers.extend([refer("Accept-Ranges")]);
        }
        if status == "206" {
            headers.extend([refer("Content-Range")]);
        }
    }
    if call.is("get", "/v1/sessions") {
        headers.extend([refer("X-Next-Cursor")]);
    }
    headers
}

fn refer(name: &str) -> (String, Value) {
    let reference = format!("#/components/headers/{}", name.replace('-', ""));
    (name.to_owned(), json!({ "$ref": reference }))
}

/// What the answers' headers refer to.
pub(super) fn header_components() -> Value {
    let header = |about: &str, required: bool, schema: Value| json!({ "description": about, "required": required, "schema": schema });
    let text = json!({ "type": "string" });
    json!({
        "XRequestId": header("The id of the request, the client's own if it gave a good one.", true,
            json!({ "type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$" })),
        "RetryAfter": header("Seconds after which the same call may be sent again.", true,
            json!({ "type": "integer", "minimum": 1, "maximum": RETRY_AFTER_DRAIN_SECONDS })),
        "WWWAuthenticate": header("`Bearer`.", true, text.clone()),
        "ETag": header("Names the content, with its quotes: inode, size, mtime and ctime.", true, text.clone()),
        "AcceptRanges": header("`bytes`.", false, text.clone()),
        "ContentRange": header("`bytes first-last/size`; with 416 `bytes */size`.", true, text.clone()),
        "XNextCursor": header("The `cursor` of the next page; absent on the last.", false, text),
    })
}
