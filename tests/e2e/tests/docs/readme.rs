//! README runs in namespaces of its own, so that the daemon with its default port and data directory
//! (`/var/lib/sandkasten`) meets no other, and leaves nothing on the host.
//!
//! What README builds and installs, the suite was given: the binary is made by the same command, as the
//! user who runs the tests and with a network. This runs as root, which would own the user's build.

use std::fs;
use std::process::Command;

use sandkasten_e2e::{Lab, lab, leaks};

use crate::script::{self, Script};

/// Brings `lo` up, puts an own `/var/lib` in place, and runs the script.
const SURROUNDINGS: &str = "mount --bind \"$1\" /var/lib && python3 -c '
import fcntl, socket, struct
SIOCSIFFLAGS, UP_AND_LOOPBACK = 0x8914, 0x9
fcntl.ioctl(socket.socket(), SIOCSIFFLAGS, struct.pack(\"16sh\", b\"lo\", UP_AND_LOOPBACK))
' && exec bash \"$2\"";

#[test]
fn readme_does_what_it_says() {
    // It has built the images, so that the cache has them: there is no network inside.
    let _shared = Lab::shared();
    let dir = lab::scratch_dir(&leaks::tag());
    let library = dir.path().join("lib");
    fs::create_dir(&library).expect("make a folder");
    let mut script = Script::new(dir.path());
    script.page("README.md");
    let mut command = Command::new("unshare");
    script::surroundings(&mut command, dir.path());
    command.args(["-m", "-n", "sh", "-c", SURROUNDINGS, "sh"]).arg(&library).arg(script.write());
    script.check(command.current_dir(lab::checkout()));
    let name = dir.path().to_string_lossy().into_owned();
    drop(dir);
    let left = leaks::Snapshot::empty().left_since(&leaks::Marks::new([name]));
    assert!(left.is_empty(), "{left:#?}");
}
