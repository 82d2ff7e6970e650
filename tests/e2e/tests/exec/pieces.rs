//! stdin of a command that comes in pieces.

use super::*;

#[track_caller]
fn stdin(session: &Session<'_>, exec: &str, bytes: &[u8], query: &str) -> Answer {
    let path = format!("/execs/{exec}/stdin{query}");
    session.request("POST", &path).body(bytes).send()
}

#[test]
fn a_command_reads_pieces_until_their_end() {
    let lab = Lab::shared();
    for image in ["tiny", "base"] {
        let session = lab.session(&json!({ "image": image }));
        for user in [Value::Null, json!("root")] {
            let mut request = json!({ "cmd": "read -r A; echo \"$A\"; cat", "stdin_open": true });
            if !user.is_null() {
                request["user"] = user;
            }
            let exec = detach(&session, &request);
            for piece in [&b"one\n"[..], b"", b"two "] {
                assert_eq!(stdin(&session, &exec, piece, "").ok(200), json!({ "ok": true }));
            }
            assert_eq!(
                stdin(&session, &exec, b"three", "?eof=true").ok(200),
                json!({ "ok": true })
            );
            assert_eq!(replay(&session, &exec, "follow=true").text(), "one\ntwo three");
            stdin(&session, &exec, b"too late", "").error(409, "CONFLICT");
        }
    }
}

#[test]
fn pieces_wait_for_a_command_that_waits() {
    let lab = Lab::shared();
    let session = base(&lab);
    let first = detach(&session, &json!({ "cmd": "cat", "stdin_open": true }));
    let second = detach(&session, &json!({ "cmd": "cat", "stdin_open": true }));
    assert_eq!(stdin(&session, &second, b"second", "?eof=true").status(), 200);
    assert_eq!(stdin(&session, &first, b"first", "?eof=true").status(), 200);
    assert_eq!(replay(&session, &first, "follow=true").text(), "first");
    assert_eq!(replay(&session, &second, "follow=true").text(), "second");
}

#[test]
fn what_is_not_open_takes_no_pieces() {
    let lab = Lab::shared();
    let session = base(&lab);
    let both = json!({ "cmd": "cat", "stdin": "x", "stdin_open": true });
    session.request("POST", "/exec").json(&both).send().error(400, "INVALID_REQUEST");
    let exec = detach(&session, &json!({ "cmd": "sleep 1000" }));
    stdin(&session, &exec, b"x", "").error(409, "CONFLICT");
    stdin(&session, "nothing", b"x", "").error(404, "EXEC_NOT_FOUND");
    // A command that ends without its stdin's end has ended.
    let open =
        detach(&session, &json!({ "cmd": "echo x", "stdin_open": true, "timeout_ms": 60_000 }));
    session.request("DELETE", &format!("/execs/{exec}")).send().ok(200);
    assert_eq!(replay(&session, &open, "follow=true").done().data["exit_code"], 0);
}
