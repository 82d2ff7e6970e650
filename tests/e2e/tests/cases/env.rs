//! C81 and C82: names, addresses and devices inside.

use serde_json::json;

use crate::{Asks, Place, in_images};

in_images! {
    python: c81_server_on_localhost, c81_names_resolve, c81_loopback_is_up, c82_devices_of_every_day,
        c82_devices_of_bash, c82_devices_of_bash_apart, c82_devices_of_bash_on_a_pty, c82_pty_can_be_opened;
    busybox: c81_loopback_is_up, c82_devices_of_every_day;
}

fn c81_server_on_localhost(at: &Place) {
    let session = at.session();
    let serve = "python3 -m http.server 8000 --bind 127.0.0.1 > /dev/null 2>&1 & sleep 1; \
        python3 -c \"import urllib.request as u; print(u.urlopen('http://localhost:8000').status)\"";
    assert_eq!(session.run(serve), "200\n");
}

fn c81_names_resolve(at: &Place) {
    let session = at.session();
    let names = session.run(
        "getent hosts localhost; python3 -c \"import socket; s=socket.socket(socket.AF_INET6); s.bind(('::1',0)); print('v6')\"; \
         hostname; getent hosts $(hostname)",
    );
    let lines: Vec<&str> = names.lines().collect();
    assert!(lines[0].starts_with("127.0.0.1") || lines[0].starts_with("::1"), "{names}");
    assert_eq!(lines[1..3], ["v6", "sandbox"], "{names}");
    assert!(lines[3].contains("sandbox"), "{names}");
    let resolved = "python3 -c \"import socket; print(socket.gethostbyname('localhost'))\"";
    assert_eq!(session.run(resolved), "127.0.0.1\n");
}

fn c81_loopback_is_up(at: &Place) {
    let session = at.session();
    session.gives("cat /sys/class/net/lo/operstate 2>/dev/null; hostname; grep -c localhost /etc/hosts >/dev/null", 0, &{
        let done = session.exec("cat /sys/class/net/lo/operstate 2>/dev/null");
        format!("{}sandbox\n", done.output())
    });
    let (serve, fetch) = if at.is_bash() {
        (
            "python3 -m http.server 8001 --bind :: >/dev/null 2>&1 &",
            "(exec 3<>/dev/tcp/localhost/8001) 2>/dev/null",
        )
    } else {
        (
            "echo hi > index.html; httpd -p 8001",
            "wget -q -O - http://localhost:8001/ >/dev/null 2>&1",
        )
    };
    session.does(serve);
    session.does(&format!("for i in $(seq 40); do {fetch} && break; sleep 0.05; done; {fetch}"));
}

const NODES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/shm"];

fn c82_devices_of_every_day(at: &Place) {
    let session = at.session();
    session.gives(
        "echo x | cat /dev/stdin; echo y > /dev/stderr; echo z > /dev/stdout",
        0,
        "x\ny\nz\n",
    );
    session.gives("echo in | (cat < /dev/fd/0); echo out > /dev/fd/1", 0, "in\nout\n");
    session.does(&format!("ls -d {} > /dev/null", NODES.join(" ")));
    session.gives("head -c 4 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c", 0, "4\n4\n");
    let done = session.exec("echo f > /dev/full");
    assert_eq!(done.code(), 1, "{}", done.body);
    session.gives("cat /dev/null; echo lost > /dev/null", 0, "");
    session.gives("(: < /dev/tty) 2> /dev/null || echo none", 0, "none\n");
}

/// With the `wait` that nothing else does for a process substitution.
const BASH: &str = "diff <(echo a) <(echo a) && wc -l < <(printf 'a\\nb\\n'); echo x | cat /dev/stdin; \
    echo y > /dev/stderr; echo z > /dev/stdout; tee >(wc -c >&2) <<< hi >/dev/null; wait $!";

fn c82_devices_of_bash(at: &Place) {
    at.session().gives(BASH, 0, "2\nx\ny\nz\n3\n");
}

fn c82_devices_of_bash_apart(at: &Place) {
    let done = at.session().exec_with(&json!({ "cmd": BASH, "split": true }));
    assert_eq!(done.body["stdout"], "2\nx\nz\n", "{}", done.body);
    assert_eq!(done.body["stderr"], "y\n3\n", "{}", done.body);
}

fn c82_devices_of_bash_on_a_pty(at: &Place) {
    let session = at.session();
    let done = session.exec_with(&json!({ "cmd": BASH, "raw_output": true }));
    assert_eq!((done.code(), done.output()), (0, "2\r\nx\r\ny\r\nz\r\n3\r\n"), "{}", done.body);
}

fn c82_pty_can_be_opened(at: &Place) {
    let session = at.session();
    let pty = "python3 -c \"import pty, os; m, s = pty.openpty(); print(os.ttyname(s))\"";
    assert!(session.run(pty).starts_with("/dev/pts/"));
}
