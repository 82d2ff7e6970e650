//! An image with one static program and no shell: processes work where execs can't.

use std::fs;

use sandkasten_e2e::host::find_program;
use sandkasten_e2e::image::Rootfs;

use super::*;

fn bare() -> Lab {
    let mut root = Rootfs::empty();
    let busybox = find_program("busybox").expect("busybox on PATH (busybox-static)");
    root.file("app/busybox", &fs::read(busybox).expect("read busybox"), 0o755);
    Lab::builder().image("bare", root).start()
}

#[test]
fn programs_run_without_a_shell() {
    let lab = bare();
    let session = lab.session(&json!({ "image": "bare" }));
    assert_eq!(session.info["shell"], Value::Null);
    let error = session.try_exec(&json!({ "cmd": "true" })).error(400, "INVALID_REQUEST");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("processes")), "{error}");
    session.request("POST", "/shell/restart").json(&json!({})).send().error(400, "INVALID_REQUEST");

    assert_eq!(says(&session, &["/app/busybox", "echo", "hi"]), "hi\n");
    let request =
        json!({ "argv": ["busybox", "id", "-u"], "env": { "PATH": "/app" }, "user": "root" });
    assert_eq!(run_with(&session, &request).text(), "0\n");
    let done =
        run_with(&session, &json!({ "argv": ["/app/busybox", "cat"], "stdin": data(b"stdin") }));
    assert_eq!(done.text(), "stdin");
    // There is no `/bin/sh` to run this.
    assert_eq!(run_with(&session, &json!({ "cmd": "echo" })).code(), 127);
    assert_eq!(run(&session, &["/app/busybox", "sh", "-c", "exit 4"]).code(), 4);

    let tty = json!({ "rows": 20, "cols": 50 });
    let process = start(&session, &json!({ "argv": ["/app/busybox", "sh"], "tty": tty }));
    let mut client = process.attach("");
    client.stdin(b"/app/busybox stty size\n");
    client.until("20 50");
    client.stdin(b"exit 5\n");
    assert_eq!(client.exit()["exit_code"], 5);

    // Files need no shell either.
    session.write("/workspace/file", b"data", "0644");
    assert_eq!(says(&session, &["/app/busybox", "cat", "/workspace/file"]), "data");
    let sleeps = start(&session, &json!({ "argv": ["/app/busybox", "sleep", "1000"] }));
    sleeps.kill();
    assert_eq!(sleeps.info()["status"], "finished");
}
