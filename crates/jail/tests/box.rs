//! What holds inside a box, asked from inside. Needs root; each test makes its own launcher, groups and
//! files, and leaves none.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use support::{Host, Options};

fn host() -> Host {
    Host::new(&std::env::temp_dir(), Path::new("/bin/busybox"))
}

#[test]
fn a_command_runs_as_the_session_user() {
    let host = host();
    let mut session = host.start("s", &Options::default()).unwrap();
    assert_eq!(
        session.output("id; pwd; echo $HOME"),
        "uid=1000(sandbox) gid=1000(sandbox)\n/workspace\n/home/sandbox"
    );
    host.end(session);
}
