//! I-01 to I-08, I-12 to I-14, I-17, I-25: what the payload and the box's root can do and see.

use std::collections::BTreeSet;

use sandkasten_e2e::{Lab, host, image, requires};
use serde_json::json;

use crate::{Who, gives, rows, try_step, try_steps};

/// A namespace of the session is not the daemon's.
#[track_caller]
fn own_namespace(kind: &str) {
    let lab = Lab::shared();
    let inside = try_step(Who::Payload, &format!("link /proc/self/ns/{kind}"));
    let outside = host::namespace(lab.pid(), kind);
    assert!(inside.starts_with(&format!("ok {kind}:[")), "{inside}");
    assert!(outside.starts_with(kind), "{outside}");
    assert_ne!(inside, format!("ok {outside}"));
}

mod i_01_namespaces_are_its_own {
    use super::own_namespace;

    macro_rules! namespaces {
        ($($name:ident: $kind:literal;)+) => {
            $(#[test]
            fn $name() {
                own_namespace($kind);
            })+
        };
    }

    namespaces! {
        user: "user";
        mount: "mnt";
        pid: "pid";
        network: "net";
        ipc: "ipc";
        uts: "uts";
        cgroup: "cgroup";
    }
}

/// First host id and length of an id map; exactly one range.
#[track_caller]
fn range_of(map: &str) -> (u64, u64) {
    let map = map.strip_prefix("ok ").expect("a map").trim_end_matches("\\n");
    let numbers: Vec<u64> =
        map.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [0, start, length] = numbers[..] else { panic!("not one range from 0: {map}") };
    (start, length)
}

#[test]
fn i_02_ids_are_never_shared() {
    let lab = Lab::shared();
    let sessions: Vec<_> = (0..3).map(|_| Who::Payload.session(&lab)).collect();
    let mut starts = BTreeSet::new();
    for session in &sessions {
        let maps = session.probe(&["read /proc/self/uid_map", "read /proc/self/gid_map"]);
        let (start, length) = range_of(&maps[0]);
        assert_eq!(range_of(&maps[1]), (start, length), "uids and gids alike");
        assert!(start >= 100_000, "{start}");
        assert_eq!(length, 65_536);
        let init = host::init_of(&session.id).expect("an init");
        let uid: u64 = host::status(init, "Uid")
            .split_whitespace()
            .next()
            .expect("ids")
            .parse()
            .expect("a uid");
        assert!((start..start + length).contains(&uid), "init's host uid {uid} is in the range");
        starts.insert(start);
    }
    let starts: Vec<u64> = starts.into_iter().collect();
    assert_eq!(starts.len(), sessions.len(), "a range each");
    assert!(
        starts.windows(2).all(|pair| pair[1] - pair[0] >= 65_536),
        "ranges overlap: {starts:?}"
    );
}

rows! { i_03_payload_has_no_power, [Payload], {
    uid: "status Uid" => ["ok 1000 1000 1000 1000"];
    gid: "status Gid" => ["ok 1000 1000 1000 1000"];
    groups: "status Groups" => ["ok"];
    inheritable: "status CapInh" => ["ok 0000000000000000"];
    permitted: "status CapPrm" => ["ok 0000000000000000"];
    effective: "status CapEff" => ["ok 0000000000000000"];
    bounding: "status CapBnd" => ["ok 0000000000000000"];
    ambient: "status CapAmb" => ["ok 0000000000000000"];
    no_new_privileges: "status NoNewPrivs" => ["ok 1"];
    seccomp: "status Seccomp" => ["ok 2"];
}}

/// CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE SYS_CHROOT SETFCAP,
/// and nothing else.
#[test]
fn i_03_box_root_has_its_eleven_capabilities() {
    const CAPABILITIES: u64 = 1 << 0
        | 1 << 1
        | 1 << 3
        | 1 << 4
        | 1 << 5
        | 1 << 6
        | 1 << 7
        | 1 << 8
        | 1 << 10
        | 1 << 18
        | 1 << 31;
    let lines = try_steps(
        Who::Root,
        &["status CapPrm", "status CapBnd", "status NoNewPrivs", "status Seccomp"],
    );
    for line in &lines[..2] {
        let value = u64::from_str_radix(line.trim_start_matches("ok "), 16).expect("a set");
        assert_eq!(value & !CAPABILITIES, 0, "more than it should have: {line}");
    }
    assert_eq!(lines[0], format!("ok {CAPABILITIES:016x}"));
    assert_eq!(lines[2..], ["ok 1", "ok 2"]);
}

/// Identity as the fields of `/proc/self/status` that I-03 looks at.
const IDENTITY: &str = r"grep -E '^(Uid|Gid|Groups|Cap...|NoNewPrivs|Seccomp):' /proc/self/status";
const NOBODY: &str = "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\t1000\t1000\nGroups:\t \n\
    CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
    CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";

mod i_04_every_way_in_has_no_power {
    use super::{IDENTITY, Lab, NOBODY, Who, json};

    #[test]
    fn exec() {
        let lab = Lab::shared();
        assert_eq!(Who::Payload.session(&lab).run(IDENTITY), NOBODY);
    }

    #[test]
    fn stream() {
        let lab = Lab::shared();
        assert_eq!(Who::Payload.session(&lab).play(IDENTITY).text(), NOBODY);
    }

    #[test]
    fn terminal() {
        let lab = Lab::shared();
        let done =
            Who::Payload.session(&lab).exec_with(&json!({ "cmd": IDENTITY, "raw_output": true }));
        assert_eq!(done.output().replace("\r\n", "\n"), NOBODY);
    }

    #[test]
    fn background_job() {
        let lab = Lab::shared();
        let session = Who::Payload.session(&lab);
        session.run(&format!("({IDENTITY} > seen; echo over > done) & wait"));
        assert_eq!(session.run("cat seen"), NOBODY);
    }

    #[test]
    fn shell_that_was_started_again() {
        let lab = Lab::shared();
        let session = Who::Payload.session(&lab);
        assert_eq!(session.exec("exit 3").code(), 3);
        assert_eq!(session.run(IDENTITY), NOBODY);
    }

    #[test]
    fn shell_after_a_timeout() {
        let lab = Lab::shared();
        let session = Who::Payload.session(&lab);
        assert_eq!(
            session.exec_with(&json!({ "cmd": "cat /dev/zero", "timeout_ms": 200 })).code(),
            124
        );
        assert_eq!(session.run(IDENTITY), NOBODY);
    }

    /// The one that opens files for the API may not open what the session user may not.
    #[test]
    fn file_calls() {
        let lab = Lab::shared();
        let session = Who::Payload.session(&lab);
        for path in ["/etc/shadow", "/etc/gshadow"] {
            let answer = session.request("GET", &format!("/fs/read?path={path}")).send();
            answer.error(403, "PERMISSION_DENIED");
        }
        let write = json!({ "path": "/usr/bin/evil", "text": "x" });
        let answer = session.request("POST", "/fs/write").json(&write).send();
        answer.error(403, "PERMISSION_DENIED");
        session.write("made", b"x", "0644");
        assert_eq!(session.run("stat -c '%u:%g' made"), "1000:1000\n");
    }
}

#[test]
fn i_05_no_descriptor_is_handed_in() {
    for who in [Who::Payload, Who::Root] {
        assert_eq!(try_step(who, "fds"), "ok", "{who:?}");
    }
    let lab = Lab::shared();
    let session = Who::Payload.session(&lab);
    let links =
        session.run("readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/cwd");
    let links: Vec<&str> = links.lines().collect();
    assert_eq!((links[0], links[3]), ("/dev/null", "/workspace"), "{links:?}");
    for output in &links[1..3] {
        let named = output.starts_with("/.sandkasten/") || output.starts_with("pipe:");
        assert!(named, "stdout and stderr are pipes of this exec: {links:?}");
    }
}

/// The mount table of a session, without what differs from one to the next: ids, devices, and for
/// the workspace its file system and its place there.
#[track_caller]
fn mount_table(session: &sandkasten_e2e::Session<'_>) -> Vec<String> {
    let text = session.run("cat /proc/self/mountinfo");
    let mut lines = Vec::new();
    for line in text.lines() {
        let (left, right) = line.split_once(" - ").expect("a mountinfo line");
        let left: Vec<&str> = left.split(' ').collect();
        let kind = right.split(' ').next().unwrap_or_default();
        let (root, kind) = if left[4] == "/workspace" { ("*", "*") } else { (left[3], kind) };
        lines.push(format!("{} {kind} {root} {}", left[4], left[5]));
    }
    lines
}

/// `mountinfo.txt` has every mount. Those below `/proc` hide what the kernel has there, so they are
/// there if it has it, and nothing else may be.
#[test]
fn i_06_mount_table_is_as_written() {
    let lab = Lab::shared();
    let session = Who::Payload.session(&lab);
    let golden: Vec<&str> = include_str!("mountinfo.txt").lines().collect();
    let table = mount_table(&session);
    for line in &table {
        assert!(golden.contains(&line.as_str()), "not in mountinfo.txt: {line}");
    }
    for line in golden {
        let path = line.split(' ').next().unwrap_or_default();
        let on_host = std::path::Path::new(path).exists() && path.starts_with("/proc/");
        let found = table.iter().any(|have| have == line);
        assert!(found || (path.starts_with("/proc/") && !on_host), "missing: {line}\n{table:#?}");
    }
    let text = session.run("cat /proc/self/mountinfo");
    let data_dir = lab.data_dir.to_string_lossy();
    for line in text.lines() {
        let is_workspace = line.contains(" /workspace ");
        let hidden = ["/.oldroot", "layers/", "upper/", &data_dir];
        let shown = hidden.iter().find(|hidden| line.contains(**hidden));
        assert!(is_workspace || shown.is_none(), "shows {shown:?}: {line}");
    }
}

#[test]
fn i_06_every_session_has_the_same_table() {
    let lab = Lab::shared();
    // The kernel shows mounts in the order in which they were made, and a workspace's is made ahead.
    let mount_table = |session: &sandkasten_e2e::Session<'_>| {
        let mut table = mount_table(session);
        table.sort();
        table
    };
    let plain = mount_table(&Who::Payload.session(&lab));
    assert_eq!(mount_table(&Who::Root.session(&lab)), plain);
    let workspace = format!("i06-{}", std::process::id());
    let session = lab.session(&json!({ "image": "base", "workspace_id": workspace }));
    assert_eq!(mount_table(&session), plain);
    assert_eq!(session.delete().status(), 200);
    assert_eq!(lab.client.delete(&format!("/v1/workspaces/{workspace}")).status(), 200);
}

rows! { i_07_pid1_is_out_of_reach, [Payload, Root, AsInit], {
    memory: "open /proc/1/mem w" => ["EACCES", "EPERM"];
    memory_read: "open /proc/1/mem r" => ["EACCES", "EPERM"];
    environment: "read /proc/1/environ" => ["EACCES", "EPERM"];
    descriptors: "ls /proc/1/fd" => ["EACCES", "EPERM"];
    program: "link /proc/1/exe" => ["EACCES", "EPERM"];
    maps: "read /proc/1/maps" => ["EACCES", "EPERM"];
    directory: "link /proc/1/cwd" => ["EACCES", "EPERM"];
    root_directory: "link /proc/1/root" => ["EACCES", "EPERM"];
    attach: "sys ptrace 16 1 0 0" => ["EPERM", "EACCES"];
    seize: "sys ptrace 0x4206 1 0 0" => ["EPERM", "EACCES"];
    read_memory: "sys process_vm_readv 1 iov 1 iov 1 0" => ["EPERM", "EACCES"];
    write_memory: "sys process_vm_writev 1 iov 1 iov 1 0" => ["EPERM", "EACCES"];
    limits: "sys prlimit64 1 7 0 buf" => ["EPERM", "EACCES"];
    set_limits: "sys prlimit64 1 7 buf 0" => ["EPERM", "EACCES"];
    priority: "sys setpriority 0 1 19" => ["EPERM", "EACCES"];
    affinity: "sys sched_setaffinity 1 8 buf" => ["EPERM", "EACCES"];
    scheduler: "sys sched_setscheduler 1 3 buf" => ["EPERM", "EACCES"];
    io_priority: "sys ioprio_set 1 1 0x4007" => ["EPERM", "EACCES"];
    compare: "sys kcmp 1 1 0 0 0" => ["EPERM", "EACCES", "ENOSYS"];
}}

mod i_07_pid1_keeps_its_descriptors {
    use crate::{Who, try_steps};

    #[track_caller]
    fn refused(who: Who) {
        let lines = try_steps(who, &["sys pidfd_open 1 0", "sys pidfd_getfd $ 3 0"]);
        assert!(["EPERM", "EACCES"].contains(&lines[1].as_str()), "{who:?}: {lines:?}");
    }

    #[test]
    fn payload() {
        refused(Who::Payload);
    }

    #[test]
    fn root() {
        refused(Who::Root);
    }

    #[test]
    fn as_init() {
        refused(Who::AsInit);
    }
}

mod i_07_pid1_ignores_signals {
    use crate::{Who, try_steps};

    /// Without the right it is refused; box root has KILL, and nothing comes of it. The session has
    /// to answer afterwards.
    #[track_caller]
    fn nothing_comes_of(who: Who, signal: i32) {
        let (kill, thread) = (format!("sys kill 1 {signal}"), format!("sys tgkill 1 1 {signal}"));
        let send = format!("sys pidfd_send_signal $ {signal} 0 0");
        let lines = try_steps(who, &[&kill, &thread, "sys pidfd_open 1 0", &send]);
        let want = if who == Who::Payload { "EPERM" } else { "ok 0" };
        for line in [&lines[0], &lines[1], &lines[3]] {
            assert!(line == want || line == "EPERM", "{who:?}: {lines:?}");
        }
    }

    macro_rules! signals {
        ($($name:ident: $number:literal;)+) => {
            $(mod $name {
                use super::{Who, nothing_comes_of};

                #[test]
                fn payload() {
                    nothing_comes_of(Who::Payload, $number);
                }

                #[test]
                fn root() {
                    nothing_comes_of(Who::Root, $number);
                }

                #[test]
                fn as_init() {
                    nothing_comes_of(Who::AsInit, $number);
                }
            })+
        };
    }

    signals! {
        term: 15;
        quit: 3;
        abrt: 6;
        segv: 11;
        stop: 19;
        kill: 9;
        chld: 17;
    }
}

#[test]
fn i_08_init_is_not_writable() {
    let lab = Lab::shared();
    let session = Who::Root.session(&lab);
    let init = host::init_of(&session.id).expect("an init");
    let program = || std::fs::read(format!("/proc/{init}/exe")).expect("init's program");
    let before = program();
    let supplied = host::processes_of(&session.id).into_iter().filter(|&pid| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.starts_with("/memfd:"))
    });
    for pid in supplied.map(host::inner_pid) {
        for step in [format!("open /proc/{pid}/exe w"), format!("open /proc/{pid}/exe r")] {
            let result = session.probe(&[&step]).pop().unwrap_or_default();
            let refused = ["EACCES", "EPERM", "ETXTBSY"].contains(&result.as_str());
            assert!(refused, "{step}: {result}");
        }
    }
    assert!(program() == before, "init's program has changed");
    session.alive();
}

#[test]
fn i_12_dev_has_what_it_should() {
    let want = "ok fd full null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(try_step(Who::Payload, "ls /dev"), want);
}

rows! { i_12_dev_has_nothing_else, [Payload, Root], {
    disk: "open /dev/sda r" => ["ENOENT"];
    virtual_disk: "open /dev/vda r" => ["ENOENT"];
    kvm: "open /dev/kvm r" => ["ENOENT"];
    fuse: "open /dev/fuse r" => ["ENOENT"];
    kernel_log: "open /dev/kmsg r" => ["ENOENT"];
    memory: "open /dev/mem r" => ["ENOENT"];
    tun: "open /dev/net/tun r" => ["ENOENT"];
    loop_control: "open /dev/loop-control r" => ["ENOENT"];
    make_block_device: "sys mknod s:/tmp/block 0x61b0 0x800" => ["EPERM"];
    make_character_device: "sys mknod s:/tmp/char 0x21b0 0x101" => ["EPERM"];
}}

rows! { i_13_no_mount_call_works, [Payload, Root], {
    mount: "sys mount s:none s:/tmp s:tmpfs 0 0" => ["EPERM", "ENOSYS"];
    bind: "sys mount s:/etc s:/tmp 0 0x1000 0" => ["EPERM", "ENOSYS"];
    remount: "sys mount s:none s:/ 0 0x20 0" => ["EPERM", "ENOSYS"];
    umount: "sys umount2 s:/tmp 2" => ["EPERM", "ENOSYS"];
    pivot: "sys pivot_root s:/ s:/tmp" => ["EPERM", "ENOSYS"];
    fsopen: "sys fsopen s:tmpfs 0" => ["EPERM", "ENOSYS"];
    fsmount: "sys fsmount 0 0 0" => ["EPERM", "ENOSYS"];
    fspick: "sys fspick 0xffffff9c s:/ 0" => ["EPERM", "ENOSYS"];
    move_mount: "sys move_mount 0xffffff9c s:/tmp 0xffffff9c s:/workspace 0" => ["EPERM", "ENOSYS"];
    open_tree: "sys open_tree 0xffffff9c s:/ 1" => ["EPERM", "ENOSYS"];
    mount_setattr: "sys mount_setattr 0xffffff9c s:/ 0 buf 32" => ["EPERM", "ENOSYS"];
}}

#[test]
fn i_13_chroot_is_refused() {
    gives(Who::Payload, "sys chroot s:/tmp", &["EPERM"]);
}

#[test]
fn i_13_breakout_ends_in_the_own_root() {
    let lines = try_steps(Who::Root, &["ls /", "breakout", "read /etc/hostname"]);
    assert_eq!(lines[0], lines[1], "another root");
    assert_eq!(lines[2], "ok sandbox\\n");
}

rows! { i_14_no_namespace_can_be_made, [Payload, Root], {
    unshare_mount: "sys unshare 0x20000" => ["EPERM"];
    unshare_cgroup: "sys unshare 0x2000000" => ["EPERM"];
    unshare_uts: "sys unshare 0x4000000" => ["EPERM"];
    unshare_ipc: "sys unshare 0x8000000" => ["EPERM"];
    unshare_user: "sys unshare 0x10000000" => ["EPERM"];
    unshare_pid: "sys unshare 0x20000000" => ["EPERM"];
    unshare_network: "sys unshare 0x40000000" => ["EPERM"];
    unshare_time: "sys unshare 0x80" => ["EPERM"];
    clone_mount: "clone 0x20000" => ["EPERM"];
    clone_cgroup: "clone 0x2000000" => ["EPERM"];
    clone_uts: "clone 0x4000000" => ["EPERM"];
    clone_ipc: "clone 0x8000000" => ["EPERM"];
    clone_user: "clone 0x10000000" => ["EPERM"];
    clone_pid: "clone 0x20000000" => ["EPERM"];
    clone_network: "clone 0x40000000" => ["EPERM"];
    clone_plain: "clone 0" => ["ok exit 0"];
    clone3: "sys clone3 buf 88" => ["ENOSYS"];
    threads: "threads 50" => ["ok"];
    spawn: "spawn /bin/true" => ["ok exit 0"];
}}

#[test]
fn i_14_python_starts_programs() {
    let lab = Lab::shared();
    let session = lab.session(&json!({ "image": "python" }));
    let script = "import subprocess, threading, os\n\
        t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()\n\
        print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout, end='')\n\
        pid = os.posix_spawn('/bin/true', ['true'], {}); print(os.waitpid(pid, 0)[1])\n";
    session.write("t.py", script.as_bytes(), "0644");
    assert_eq!(session.run("python3 t.py"), "thread\nchild\n0\n");
}

#[test]
fn i_14_node_starts_programs() {
    requires!(program("node"));
    let node = host::find_program("node").expect("just seen");
    let mut rootfs = image::Rootfs::tiny();
    rootfs.program("usr/bin/node", &node);
    // Debian's reads some of its own modules from there as it starts.
    for module in ["acorn", "acorn-walk", "busboy", "cjs-module-lexer", "minimatch", "undici"] {
        rootfs.tree(&std::path::Path::new("/usr/share/nodejs").join(module));
    }
    let lab = Lab::builder().image("node", rootfs).start();
    let session = lab.session(&json!({ "image": "node" }));
    let script = "const c = require('child_process'), w = require('worker_threads');\n\
        console.log(c.execSync('echo child').toString().trim());\n\
        new w.Worker('console.log(\"thread\")', {eval: true}).on('exit', code => console.log(code));\n";
    session.write("t.js", script.as_bytes(), "0644");
    assert_eq!(session.run("node t.js"), "child\nthread\n0\n");
}

/// fzf is written in Go: its runtime starts threads, and it runs its source of lines as a program.
#[test]
fn i_14_go_starts_programs() {
    requires!(program("fzf"));
    let fzf = host::find_program("fzf").expect("just seen");
    let mut rootfs = image::Rootfs::tiny();
    rootfs.program("usr/bin/fzf", &fzf);
    let lab = Lab::builder().image("go", rootfs).start();
    let session = lab.session(&json!({ "image": "go" }));
    assert_eq!(session.run("seq 100 | fzf --filter 42"), "42\n");
}

rows! { i_17_other_gates_kill, [Payload, Root], {
    int80: "child int80" => ["ok signal 31"];
    x32: "child x32" => ["ok signal 31"];
}}

#[test]
fn i_25_no_foreign_process_is_seen() {
    let lab = Lab::shared();
    let (mine, other) = (Who::Root.session(&lab), Who::Root.session(&lab));
    other.run("sleep 98765 > /dev/null 2>&1 &");
    let names = mine.probe(&["ls /proc"]).pop().unwrap_or_default();
    let seen: Vec<u32> = names.split(' ').filter_map(|name| name.parse().ok()).collect();
    let own: BTreeSet<u32> =
        host::processes_of(&mine.id).into_iter().map(host::inner_pid).collect();
    let strangers: Vec<u32> = seen.iter().copied().filter(|pid| !own.contains(pid)).collect();
    // The probe itself has ended since.
    assert!(strangers.len() <= 1, "seen {seen:?}, its own {own:?}");
    assert!(seen.iter().all(|&pid| pid < 1000), "pids of another namespace: {seen:?}");
    let commands = mine.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '");
    assert!(!commands.contains("98765") && !commands.contains("daemon"), "{commands}");
}
