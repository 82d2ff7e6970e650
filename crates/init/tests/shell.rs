//! The persistent shell, against the real init: cases from the field, in bash, dash and busybox.

mod boxed;

use boxed::{Kind, Sandbox};

const ALL: [Kind; 3] = [Kind::Bash, Kind::Dash, Kind::Busybox];

#[test]
fn hello_exec_end() {
    for kind in ALL {
        let mut sandbox = Sandbox::new(kind);
        sandbox.run("echo hi; echo err >&2").is(0, "hi\nerr\n");
        sandbox.run("(exit 7)").is(7, "");
        let answer = sandbox.run("cd /tmp; pwd");
        answer.is(0, "/tmp\n");
        assert_eq!(answer.cwd(), "/tmp");
    }
}
