//! What bad input gets: the error that the API names, at once, and nothing is lost or left.
//!
//! Each row is a test. Beside the refused request stands a session with state; afterwards it is
//! unharmed and alone.

use std::time::Duration;

use sandkasten_e2e::session::escape;
use sandkasten_e2e::{Lab, Session, host};
use serde_json::{Value, json};

/// "At once", on a machine with other work.
const AT_ONCE: Duration = Duration::from_secs(2);

/// A body that is sent as it is.
enum Body {
    None,
    Json(Value),
    Raw(String),
}

impl From<()> for Body {
    fn from((): ()) -> Self {
        Self::None
    }
}

impl From<Value> for Body {
    fn from(value: Value) -> Self {
        Self::Json(value)
    }
}

impl From<&str> for Body {
    fn from(text: &str) -> Self {
        Self::Raw(text.to_owned())
    }
}

/// Sends a request that has to be refused; `ID` in the target is a living session. The message
/// names `named`.
#[track_caller]
fn refused(method: &str, target: &str, body: Body, want: (u16, &str), named: &str) {
    let lab = Lab::builder().set("allowed_images", json!(["tiny", "gone"])).start();
    let session = with_state(&lab);
    let target = target.replace("ID", &session.id);
    let request = lab.client.request(method, &target);
    let request = match body {
        Body::None => request,
        Body::Json(value) => request.json(&value),
        Body::Raw(text) => request.header("Content-Type", "application/json").body(text),
    };
    let answer = request.send();
    let error = answer.error(want.0, want.1);
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains(named), "the message names `{named}`: {message}");
    assert!(answer.took < AT_ONCE, "took {:?}", answer.took);
    unharmed(&lab, &session);
}

fn with_state(lab: &Lab) -> Session<'_> {
    let session = lab.session(&json!({}));
    session.run("cd /tmp; KEPT=1; mkdir /workspace/dir; echo data > /workspace/file");
    session
}

#[track_caller]
fn unharmed(lab: &Lab, session: &Session<'_>) {
    assert_eq!(session.run("pwd; echo $KEPT; cat /workspace/file"), "/tmp\n1\ndata\n");
    let list = lab.client.get("/v1/sessions").ok(200);
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(host::names(&lab.data_dir.join("sessions")), [session.id.as_str()]);
    let workspaces = lab.client.get("/v1/workspaces").ok(200);
    assert_eq!(workspaces["workspaces"], json!([]));
}

macro_rules! refused {
    ($($name:ident: $method:literal $target:expr, $body:expr => $status:literal $code:literal $(names $named:expr)?;)+) => {
        $(#[test]
        fn $name() {
            let named = String::new() $(+ $named)?;
            refused($method, &$target, Body::from($body), ($status, $code), &named);
        })+
    };
}

refused! {
    unknown_image: "POST" "/v1/sessions", json!({"image": "gone"}) => 404 "IMAGE_NOT_FOUND" names "gone";
    malformed_image: "POST" "/v1/sessions", json!({"image": "../tiny"}) => 400 "INVALID_IMAGE";
    image_that_is_not_allowed: "POST" "/v1/sessions", json!({"image": "other"}) => 400 "INVALID_IMAGE" names "other";
    image_that_is_no_text: "POST" "/v1/sessions", json!({"image": 7}) => 400 "INVALID_REQUEST" names "image";
    workspace_id_with_capitals: "POST" "/v1/sessions", json!({"workspace_id": "User"}) => 400 "INVALID_WORKSPACE" names "User";
    workspace_id_with_a_slash: "POST" "/v1/sessions", json!({"workspace_id": "a/b"}) => 400 "INVALID_WORKSPACE";
    workspace_id_of_dots: "POST" "/v1/sessions", json!({"workspace_id": ".."}) => 400 "INVALID_WORKSPACE";
    workspace_id_of_one_letter: "POST" "/v1/sessions", json!({"workspace_id": "a"}) => 400 "INVALID_WORKSPACE";
    workspace_id_too_long: "POST" "/v1/sessions", json!({"workspace_id": "a".repeat(65)}) => 400 "INVALID_WORKSPACE" names "64";
    workspace_id_with_a_hyphen_first: "POST" "/v1/sessions", json!({"workspace_id": "-ab"}) => 400 "INVALID_WORKSPACE";
    workspace_id_in_a_route: "GET" "/v1/workspaces/User/fs?path=.", () => 400 "INVALID_WORKSPACE";
    workspace_that_is_not_there: "DELETE" "/v1/workspaces/nobody", () => 404 "WORKSPACE_NOT_FOUND" names "nobody";
    negative_ttl: "POST" "/v1/sessions", json!({"ttl_seconds": -1}) => 400 "INVALID_REQUEST" names "86400";
    ttl_too_long: "POST" "/v1/sessions", json!({"ttl_seconds": 86_401}) => 400 "INVALID_REQUEST" names "86400";
    ttl_with_a_fraction: "POST" "/v1/sessions", json!({"ttl_seconds": 1.5}) => 400 "INVALID_REQUEST" names "ttl_seconds";
    ttl_that_is_a_text: "POST" "/v1/sessions", json!({"ttl_seconds": "60"}) => 400 "INVALID_REQUEST" names "ttl_seconds";
    memory_above_the_ceiling: "POST" "/v1/sessions", json!({"limits": {"memory_mb": 1 << 30}}) => 400 "INVALID_REQUEST" names "memory_mb";
    pids_above_the_ceiling: "POST" "/v1/sessions", json!({"limits": {"pids": 1 << 30}}) => 400 "INVALID_REQUEST" names "4096";
    cpu_above_the_ceiling: "POST" "/v1/sessions", json!({"limits": {"cpu": 1e6}}) => 400 "INVALID_REQUEST" names "cpu";
    cpu_of_nothing: "POST" "/v1/sessions", json!({"limits": {"cpu": 0}}) => 400 "INVALID_REQUEST" names "cpu";
    memory_of_nothing: "POST" "/v1/sessions", json!({"limits": {"memory_mb": 0}}) => 400 "INVALID_REQUEST" names "memory_mb";
    too_small_a_disk_limit: "POST" "/v1/sessions", json!({"limits": {"disk_mb": 10}}) => 400 "INVALID_REQUEST" names "limits.disk_mb";
    network_of_a_later_version: "POST" "/v1/sessions", json!({"network": "bridge"}) => 400 "INVALID_REQUEST" names "not available in this version";
    network_that_never_was: "POST" "/v1/sessions", json!({"network": "wireless"}) => 400 "INVALID_REQUEST" names "wireless";
    user_that_never_was: "POST" "/v1/sessions", json!({"user": "nobody-knows"}) => 400 "INVALID_REQUEST" names "nobody-knows";
    env_name_with_an_equals_sign: "POST" "/v1/sessions", json!({"env": {"A=B": "x"}}) => 400 "INVALID_REQUEST" names "A=B";
    env_value_with_a_nul: "POST" "/v1/sessions", json!({"env": {"A": "x\u{0}y"}}) => 400 "INVALID_REQUEST" names "A";
    malformed_json: "POST" "/v1/sessions", "{\"image\":" => 400 "INVALID_REQUEST";
    json_that_is_no_object: "POST" "/v1/sessions", "[]" => 400 "INVALID_REQUEST";
    json_that_is_no_number: "POST" "/v1/sessions", "{\"ttl_seconds\": NaN}" => 400 "INVALID_REQUEST";
    json_with_a_field_twice: "POST" "/v1/sessions", "{\"name\": \"a\", \"name\": \"b\"}" => 400 "INVALID_REQUEST" names "name";
    json_too_deep: "POST" "/v1/sessions", nested(65).as_str() => 400 "INVALID_REQUEST";
    text_with_half_a_surrogate: "POST" "/v1/sessions", "{\"name\": \"\\ud800\"}" => 400 "INVALID_REQUEST";
    body_of_more_than_2_mib: "POST" "/v1/sessions", json!({"name": "x".repeat(2 << 20)}) => 413 "TOO_LARGE" names "2097152";

    exec_without_cmd: "POST" "/v1/sessions/ID/exec", json!({}) => 400 "INVALID_REQUEST" names "cmd";
    exec_with_a_number_for_cmd: "POST" "/v1/sessions/ID/exec", json!({"cmd": 1}) => 400 "INVALID_REQUEST" names "cmd";
    exec_of_more_than_1_mib: "POST" "/v1/sessions/ID/exec", json!({"cmd": format!(":{}", " ".repeat(1 << 20))}) => 413 "TOO_LARGE" names "cmd is 1048577 bytes; the limit is 1048576";
    exec_with_a_nul: "POST" "/v1/sessions/ID/exec", json!({"cmd": "echo \u{0}"}) => 400 "INVALID_REQUEST" names "NUL";
    exec_with_no_time: "POST" "/v1/sessions/ID/exec", json!({"cmd": "true", "timeout_ms": 0}) => 400 "INVALID_REQUEST" names "timeout_ms";
    exec_with_negative_time: "POST" "/v1/sessions/ID/exec", json!({"cmd": "true", "timeout_ms": -5}) => 400 "INVALID_REQUEST" names "timeout_ms";
    exec_with_a_word_for_time: "POST" "/v1/sessions/ID/exec", json!({"cmd": "true", "timeout_ms": "soon"}) => 400 "INVALID_REQUEST" names "timeout_ms";
    exec_with_too_much_time: "POST" "/v1/sessions/ID/exec", json!({"cmd": "true", "timeout_ms": 600_001}) => 400 "INVALID_REQUEST" names "600000";
    exec_of_a_pty_that_is_split: "POST" "/v1/sessions/ID/exec", json!({"cmd": "true", "raw_output": true, "split": true}) => 400 "INVALID_REQUEST" names "split";
    exec_with_an_encoding_that_never_was: "POST" "/v1/sessions/ID/exec", json!({"cmd": "true", "encoding": "hex"}) => 400 "INVALID_REQUEST" names "encoding";
    exec_with_an_id_that_is_a_path: "POST" "/v1/sessions/ID/exec", json!({"cmd": "true", "exec_id": "a/b"}) => 400 "INVALID_REQUEST" names "a/b";
    exec_with_stdin_that_is_no_base64: "POST" "/v1/sessions/ID/exec", json!({"cmd": "cat", "encoding": "base64", "stdin": "a*b="}) => 400 "INVALID_REQUEST" names "stdin";
    stream_that_is_detached: "POST" "/v1/sessions/ID/exec/stream", json!({"cmd": "true", "detach": true}) => 400 "INVALID_REQUEST" names "detach";
    exec_that_is_not_there: "GET" "/v1/sessions/ID/execs/nobody", () => 404 "EXEC_NOT_FOUND" names "nobody";
    exec_id_that_is_a_path: "GET" "/v1/sessions/ID/execs/..%2f..%2fetc", () => 404 "EXEC_NOT_FOUND";
    cancel_of_an_exec_that_is_not_there: "DELETE" "/v1/sessions/ID/execs/nobody", () => 404 "EXEC_NOT_FOUND" names "nobody";
    events_of_an_exec_that_is_not_there: "GET" "/v1/sessions/ID/execs/nobody/events", () => 404 "EXEC_NOT_FOUND" names "nobody";
    events_after_what_is_no_number: "GET" "/v1/sessions/ID/execs/nobody/events?after=x", () => 400 "INVALID_REQUEST" names "after";
    restart_with_a_word_for_a_flag: "POST" "/v1/sessions/ID/shell/restart", json!({"keep_state": "yes"}) => 400 "INVALID_REQUEST" names "keep_state";
    attach_that_is_no_socket: "GET" "/v1/sessions/ID/processes/nobody/attach", () => 400 "INVALID_REQUEST" names "WebSocket";
    exec_in_a_session_that_is_not_there: "POST" "/v1/sessions/0123456789abcdef/exec", json!({"cmd": "true"}) => 404 "SESSION_NOT_FOUND" names "0123456789abcdef";
    stream_without_cmd: "POST" "/v1/sessions/ID/exec/stream", json!({}) => 400 "INVALID_REQUEST" names "cmd";
    stream_of_more_than_1_mib: "POST" "/v1/sessions/ID/exec/stream", json!({"cmd": "x".repeat((1 << 20) + 1)}) => 413 "TOO_LARGE" names "1048577";
    stream_in_a_session_that_is_not_there: "POST" "/v1/sessions/0123456789abcdef/exec/stream", json!({"cmd": "true"}) => 404 "SESSION_NOT_FOUND";
    session_that_is_not_there: "GET" "/v1/sessions/0123456789abcdef", () => 404 "SESSION_NOT_FOUND" names "0123456789abcdef";
    session_id_that_is_a_path: "GET" "/v1/sessions/..%2f..%2fetc", () => 404 "SESSION_NOT_FOUND";
    stats_of_a_session_that_is_not_there: "GET" "/v1/sessions/0123456789abcdef/stats", () => 404 "SESSION_NOT_FOUND";
    delete_of_a_session_that_is_not_there: "DELETE" "/v1/sessions/0123456789abcdef", () => 404 "SESSION_NOT_FOUND";

    read_of_a_directory: "GET" "/v1/sessions/ID/fs/read?path=dir", () => 400 "IS_A_DIRECTORY" names "dir";
    read_of_nothing: "GET" "/v1/sessions/ID/fs/read?path=nope", () => 404 "FILE_NOT_FOUND" names "nope";
    read_below_a_file: "GET" "/v1/sessions/ID/fs/read?path=file/x", () => 400 "NOT_A_DIRECTORY" names "file/x";
    read_without_a_path: "GET" "/v1/sessions/ID/fs/read", () => 400 "INVALID_REQUEST" names "path";
    read_of_an_empty_path: "GET" "/v1/sessions/ID/fs/read?path=", () => 400 "INVALID_PATH";
    read_of_a_path_with_a_nul: "GET" "/v1/sessions/ID/fs/read?path=a%00b", () => 400 "INVALID_PATH";
    read_of_a_path_too_long: "GET" format!("/v1/sessions/ID/fs/read?path={}", "a/".repeat(2049)), () => 400 "INVALID_PATH" names "4096";
    read_of_a_name_too_long: "GET" format!("/v1/sessions/ID/fs/read?path={}", "a".repeat(256)), () => 400 "INVALID_PATH" names "255";
    read_of_a_negative_amount: "GET" "/v1/sessions/ID/fs/read?path=file&max_bytes=-1", () => 400 "INVALID_REQUEST" names "max_bytes";
    read_of_too_much: "GET" format!("/v1/sessions/ID/fs/read?path=file&max_bytes={}", (64 << 20) + 1), () => 400 "INVALID_REQUEST" names "67108864";
    list_of_a_file: "GET" "/v1/sessions/ID/fs/list?path=file", () => 400 "NOT_A_DIRECTORY" names "file";
    list_of_nothing: "GET" "/v1/sessions/ID/fs/list?path=nope", () => 404 "FILE_NOT_FOUND" names "nope";
    list_without_a_path: "GET" "/v1/sessions/ID/fs/list", () => 400 "INVALID_REQUEST" names "path";
    list_of_an_odd_depth: "GET" "/v1/sessions/ID/fs/list?path=.&depth=0", () => 400 "INVALID_REQUEST" names "depth";
    list_too_deep: "GET" "/v1/sessions/ID/fs/list?path=.&depth=65", () => 400 "INVALID_REQUEST" names "depth";
    read_of_a_device: "GET" format!("/v1/sessions/ID/fs/read?path={}", escape("/dev/zero")), () => 400 "NOT_A_FILE" names "/dev/zero";
    write_to_a_directory: "POST" "/v1/sessions/ID/fs/write", json!({"path": "dir", "text": "x"}) => 400 "IS_A_DIRECTORY" names "dir";
    write_below_a_file: "POST" "/v1/sessions/ID/fs/write", json!({"path": "file/x", "text": "x"}) => 400 "NOT_A_DIRECTORY";
    write_where_only_root_may: "POST" "/v1/sessions/ID/fs/write", json!({"path": "/etc/x", "text": "x"}) => 403 "PERMISSION_DENIED" names "/etc/x";
    write_without_a_path: "POST" "/v1/sessions/ID/fs/write", json!({"text": "x"}) => 400 "INVALID_REQUEST" names "path";
    write_without_content: "POST" "/v1/sessions/ID/fs/write", json!({"path": "x"}) => 400 "INVALID_REQUEST" names "content_base64";
    write_of_broken_base64: "POST" "/v1/sessions/ID/fs/write", json!({"path": "x", "content_base64": "a*b="}) => 400 "INVALID_REQUEST" names "base64";
    write_with_a_mode_that_is_none: "POST" "/v1/sessions/ID/fs/write", json!({"path": "x", "text": "", "mode": "rwx"}) => 400 "INVALID_REQUEST" names "mode";
    write_without_its_parents: "POST" "/v1/sessions/ID/fs/write", json!({"path": "new/x", "text": "", "create_parents": false}) => 404 "FILE_NOT_FOUND" names "new/x";

    unknown_route: "GET" "/v1/nothing", () => 404 "ROUTE_NOT_FOUND";
    wrong_method: "PUT" "/v1/sessions", json!({}) => 405 "METHOD_NOT_ALLOWED" names "PUT";
}

/// An object in an object, `depth` times.
fn nested(depth: usize) -> String {
    format!("{}1{}", "{\"x\":".repeat(depth), "}".repeat(depth))
}

#[test]
fn wrong_key() {
    let lab = Lab::start();
    let session = with_state(&lab);
    let right = lab.client.key.clone().unwrap_or_default();
    let nearly = format!("{}x", &right[..right.len() - 1]);
    for key in ["", "wrong", &nearly, &format!("{right}x"), &format!(" {right}x")] {
        let answer = lab.client.with_key(key).get("/v1/sessions");
        answer.error(401, "UNAUTHORIZED");
        assert!(!answer.text().contains(&right), "{answer}");
    }
    lab.client.anonymous().get("/v1/sessions").error(401, "UNAUTHORIZED");
    let basic = lab.client.anonymous();
    let basic =
        basic.request("GET", "/v1/sessions").header("Authorization", &format!("Basic {right}"));
    basic.send().error(401, "UNAUTHORIZED");
    unharmed(&lab, &session);
}

#[test]
fn upload_that_is_none() {
    let lab = Lab::start();
    let session = with_state(&lab);
    let send = |kind: &str, body: &str| {
        session.request("POST", "/fs/upload").header("Content-Type", kind).body(body).send()
    };
    let form = "multipart/form-data; boundary=b";
    send("application/json", "{}").error(400, "INVALID_REQUEST");
    send("multipart/form-data", "").error(400, "INVALID_REQUEST");
    send(
        form,
        "--b\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n/workspace\r\n--b--\r\n",
    )
    .error(400, "INVALID_REQUEST");
    for name in ["..", ".", "a/b", "../../evil", "/etc/evil", ""] {
        let part = format!(
            "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\nx\r\n--b--\r\n"
        );
        send(form, &part).error(400, "INVALID_PATH");
    }
    unharmed(&lab, &session);
}

#[test]
fn workspace_in_use() {
    let lab = Lab::start();
    let session = lab.session(&json!({ "workspace_id": "busy" }));
    session.run("echo data > file");
    lab.client.delete("/v1/workspaces/busy").error(409, "WORKSPACE_IN_USE");
    assert_eq!(session.run("cat file"), "data\n");
    assert_eq!(session.delete().ok(200), json!({ "ok": true }));
    assert_eq!(lab.client.delete("/v1/workspaces/busy").ok(200), json!({ "ok": true }));
    lab.client.delete("/v1/workspaces/busy").error(404, "WORKSPACE_NOT_FOUND");
}

#[test]
fn workspaces_that_are_off() {
    let lab = Lab::builder().set("workspace.enabled", json!(false)).start();
    let answer = lab.try_session(&json!({ "workspace_id": "mine" }));
    answer.error(400, "INVALID_WORKSPACE");
    assert_eq!(host::names(&lab.data_dir.join("sessions")), Vec::<String>::new());
}

#[test]
fn shell_that_is_not_there() {
    let lab = Lab::builder().image("bare", sandkasten_e2e::image::Rootfs::empty()).start();
    let session = lab.session(&json!({ "image": "bare" }));
    assert_eq!(session.info["shell"], Value::Null);
    let error = session.try_exec(&json!({ "cmd": "true" })).error(400, "INVALID_REQUEST");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("the image has no shell"), "{message}");
}

#[test]
fn directory_that_cannot_be_entered() {
    let lab = Lab::start();
    let session = with_state(&lab);
    let answer = session.try_exec(&json!({ "cmd": "touch /workspace/ran", "cwd": "/nowhere" }));
    let status = answer.status();
    // `cwd` of an exec may belong to a later version; then it says so.
    assert_eq!(status, 400, "{answer}");
    assert_eq!(session.run("ls /workspace"), "dir\nfile\n");
}
