//! One program that makes a box, runs commands in it, meets its limits and ends it: for kernels that no
//! test suite can be brought to. Link it statically, and run it as root on the kernel in question:
//!
//! ```text
//! cargo rustc -p sandkasten-jail --example smoke --release -- -C target-feature=+crt-static
//! smoke DIRECTORY [DEVICE [delegated]]
//! ```
//!
//! DIRECTORY is on a file system that can be idmapped (ext4); with DEVICE, an ext4 image is mounted
//! there first. With `delegated`, it runs in a cgroup of its own as systemd makes one for a unit with
//! `Delegate=yes` (pure cgroup2). `/bin/busybox` must be there, linked statically. Exits 0 where all is as it should be.

#![expect(clippy::print_stdout, reason = "what it prints is what it is for")]
#![expect(
    clippy::unwrap_used,
    reason = "it ends by panicking where something is not as it should be"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::mount::{MountFlags, UnmountFlags};
use sandkasten_jail::CgroupLimits;
use sandkasten_jail::doctor::{HostPaths, State, guarantees};
use support::{Host, Options, Session};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, rest @ ..] = arguments.as_slice() else {
        panic!("usage: smoke DIRECTORY [DEVICE]");
    };
    println!("linux {}", rustix::system::uname().release().to_string_lossy());
    if let Some(device) = rest.first() {
        rustix::mount::mount(device, directory, "ext4", MountFlags::empty(), None).unwrap();
        println!("mounted {device} at {directory}");
    }
    if rest.len() > 1 {
        enter_delegated_group();
    }
    let host = Host::new(Path::new(directory), Path::new("/bin/busybox"));
    print_guarantees(&host);
    live(&host);
    for group in ["/sys/fs/cgroup", UNIT] {
        let names = std::fs::read_dir(group).into_iter().flatten().flatten();
        let names = names.map(|one| one.file_name().to_string_lossy().into_owned());
        let ours: Vec<_> = names.filter(|name| name.starts_with("sandkasten-")).collect();
        println!("groups   {group}: {ours:?}");
    }
    drop(host);
    if !rest.is_empty() {
        rustix::mount::unmount(directory.as_str(), UnmountFlags::empty()).unwrap();
        println!("unmounted {directory}: nothing held it");
    }
    println!("smoke ok");
}

const UNIT: &str = "/sys/fs/cgroup/sandkasten-smoke.service";

fn enter_delegated_group() {
    std::fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory +cpu +pids").unwrap();
    std::fs::create_dir(UNIT).unwrap();
    rustix::fs::setxattr(UNIT, "trusted.delegate", b"1", XattrFlags::empty()).unwrap();
    std::fs::write(format!("{UNIT}/cgroup.procs"), "0").unwrap();
    println!("entered  {UNIT}");
}

fn print_guarantees(host: &Host) {
    let data_dir = host.folder.0.clone();
    for one in
        guarantees(&HostPaths { run_dir: data_dir.clone(), data_dir, disk_limits: Vec::new() })
    {
        match &one.state {
            State::Given => println!("given    {}", one.name),
            State::Missing { why, .. } => {
                println!("missing  {}: {why}", one.name);
                assert!(!one.required, "a required guarantee is missing");
            }
        }
    }
}

fn live(host: &Host) {
    let defaults = Options::default();
    // An emulated machine is slow enough.
    let options =
        Options { limits: CgroupLimits { cpu_cores: 2.0, ..defaults.limits }, ..defaults };
    let mut session = host.start("smoke", &options).unwrap();
    println!("created  pid {}", session.started.pid);
    say(&mut session, "id");
    say(&mut session, "x=41; cd /tmp");
    say(&mut session, "echo $((x + 1)) in $PWD");
    say(&mut session, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr '\\n\\t' '  '");
    say(&mut session, "cat /proc/self/uid_map /proc/self/cgroup | tr -s ' \\n' ' '");
    say(&mut session, "cut -d' ' -f4,5,6 /proc/self/mountinfo | grep -v /proc/");
    say(&mut session, "unshare -U true; mount -t tmpfs x /tmp; cat /proc/1/environ");
    assert_eq!(session.output("cat /proc/sys/user/max_user_namespaces"), "0");

    session.run("dd if=/dev/zero of=/dev/null bs=150M count=1");
    let events = session.cgroup.events();
    println!("memory   {events:?}");
    assert!(events.oom_kills > 0 && events.host_oom_kills == 0);
    assert!(session.cgroup.usage().memory_peak_bytes <= 64 << 20);

    session.run("for i in $(seq 80); do sleep 50 & done 2>/dev/null");
    let (events, usage) = (session.cgroup.events(), session.cgroup.usage());
    println!("pids     {} at once, {} forks refused", usage.pids, events.fork_fails);
    assert!(events.fork_fails > 0 && usage.pids <= 50);
    assert_eq!(session.output("echo alive"), "alive");
    println!("usage    {usage:?}");

    host.end(session);
    println!("destroyed");
    assert!(host.cgroups.as_ref().unwrap().list().is_empty());

    let root = Options { user: 0, ..Options::default() };
    let mut session = host.start("root", &root).unwrap();
    say(&mut session, "touch /f && chown 7:8 /f && stat -c %u:%g /f && su sandbox -c id");
    say(&mut session, "grep -E '^Cap' /proc/self/status | tr '\\n\\t' '  '");
    say(&mut session, "kill -9 1; head -c1 /proc/1/mem; mknod /tmp/n c 1 3; echo alive");
    host.end(session);
}

fn say(session: &mut Session, command: &str) {
    let (output, end) = session.run(command);
    println!("$ {command}\n{}[{}]", output, end.exit_code);
}
