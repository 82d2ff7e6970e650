//! C91: images without bash, and without any shell.

use sandkasten_e2e::image::Rootfs;
use sandkasten_e2e::session::decode;
use sandkasten_e2e::{Lab, host};
use serde_json::json;

use crate::{Asks, Place, in_images, long_command};

in_images! {
    busybox: c91_state_of_a_plain_shell, c91_state_survives_a_timeout;
    dash: c91_state_of_a_plain_shell, c91_state_survives_a_timeout;
}

fn c91_state_of_a_plain_shell(at: &Place) {
    let session = at.session();
    assert_eq!(session.info["shell"], "sh");
    session.does("cd /tmp; export V=1; f(){ echo F; }");
    let done = session.gives("pwd; echo $V; f", 0, "/tmp\n1\nF\n");
    assert_eq!(done.body["cwd"], "/tmp");
    session.does(&long_command("export BIG=1; cd /"));
    session.gives("echo $BIG; pwd; f", 0, "1\n/\nF\n");
    session.alive();
}

fn c91_state_survives_a_timeout(at: &Place) {
    let session = at.session();
    session.does("cd /tmp; export V='a b\nc'; alias hi='echo H'; umask 027; set -f; readonly R=1");
    session.times_out("V=2; unset V; cd /; sleep 60");
    session.gives(
        "pwd; echo \"$V\"; umask; echo *; hi; (R=2) 2>/dev/null || echo fixed",
        0,
        "/tmp\na b\nc\n0027\n*\nH\nfixed\n",
    );
    session.alive();
}

/// A lab of its own, so that the preference for sh is the daemon's.
#[test]
fn c91_sh_is_taken_where_it_is_preferred() {
    let lab = Lab::builder().recipe("base").set("defaults.shell_prefer", json!("sh")).start();
    let session = lab.session(&json!({ "image": "base" }));
    assert_eq!(session.info["shell"], "sh");
    session.gives("echo ${BASH_VERSION-none}", 0, "none\n");
    session.does("cd /tmp; export V=1; f(){ echo F; }");
    session.gives("pwd; echo $V; f", 0, "/tmp\n1\nF\n");
    session.times_out("V=2; sleep 60");
    session.gives("pwd; echo $V", 0, "/tmp\n1\n");
}

#[test]
fn c91_image_without_a_shell() {
    let mut root = Rootfs::empty();
    root.program("app/echo", &host::find_program("echo").expect("echo on PATH"));
    let lab = Lab::builder().image("bare", root).start();
    let session = lab.session(&json!({ "image": "bare" }));
    assert!(session.info["shell"].is_null(), "{}", session.info);
    let error = session.try_exec(&json!({ "cmd": "echo x" })).error(400, "INVALID_REQUEST");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains("the image has no shell"), "{error}");
    let body = json!({ "cmd": "echo x" });
    let stream = session.request("POST", "/exec/stream").json(&body).stream();
    stream.answer().error(400, "INVALID_REQUEST");
    session.write("f", b"x", "0644");
    assert_eq!(session.read("f"), b"x");
    let body = json!({ "argv": ["/app/echo", "hi"], "wait": true });
    let ended = session.request("POST", "/processes").json(&body).send().ok(200);
    assert_eq!(ended["exit_code"], 0, "{ended}");
    assert_eq!(decode(&ended["stdout_base64"]), b"hi\n", "{ended}");
}
