//! What holds inside a box, asked from inside. Needs root; each test makes its own launcher, groups and
//! files, and leaves none.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;
use std::time::Instant;

use sandkasten_jail::{LaunchError, SeccompProfile};
use sandkasten_protocol::{How, RunUser, Window};
use support::{Host, Options, Session};

fn host() -> Host {
    Host::new(&std::env::temp_dir(), Path::new("/bin/busybox"))
}

/// Runs one default box.
fn in_box(test: impl FnOnce(&Host, &mut Session)) {
    in_box_with(&Options::default(), test);
}

fn in_box_with(options: &Options, test: impl FnOnce(&Host, &mut Session)) {
    let host = host();
    let mut session = host.start("s", options).unwrap();
    test(&host, &mut session);
    host.end(session);
}

fn as_root() -> Options {
    Options { user: 0, ..Options::default() }
}

#[test]
fn a_command_runs_as_the_session_user() {
    in_box(|_, session| {
        let output = session.output("id; pwd; echo $HOME");
        assert_eq!(output, "uid=1000(sandbox) gid=1000(sandbox)\n/workspace\n/home/sandbox");
    });
}

#[test]
fn init_is_the_sealed_program_and_is_named_by_pid_and_start() {
    in_box(|_, session| {
        let proc = format!("/proc/{}", session.started.pid);
        let exe = std::fs::read_link(format!("{proc}/exe")).unwrap();
        assert!(exe.to_str().unwrap().starts_with("/memfd:sandkasten-init"), "{exe:?}");
        let stat = std::fs::read_to_string(format!("{proc}/stat")).unwrap();
        assert!(stat.contains(&format!(" {} ", session.started.start_time)), "{stat}");
        assert!(std::fs::read(format!("{proc}/environ")).unwrap().is_empty());
    });
}

#[test]
fn every_namespace_is_its_own() {
    in_box(|_, session| {
        for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let inside = session.output(&format!("readlink /proc/self/ns/{kind}"));
            let outside = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            assert!(inside.starts_with(kind), "{inside}");
            assert_ne!(inside, outside.to_str().unwrap());
        }
    });
}

#[test]
fn ids_are_mapped_to_the_range() {
    in_box(|_, session| {
        let map = session.output("awk '{print $1, $2, $3}' /proc/self/uid_map /proc/self/gid_map");
        assert_eq!(map, "0 558752 65536\n0 558752 65536");
    });
}

const STATUS: &str =
    "grep -E '^(Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -s '\\t ' ' '";

#[test]
fn the_payload_has_no_power() {
    in_box(|_, session| {
        let expected = "Groups: \nCapInh: 0000000000000000\nCapPrm: 0000000000000000\n\
             CapEff: 0000000000000000\nCapBnd: 0000000000000000\nCapAmb: 0000000000000000\n\
             NoNewPrivs: 1\nSeccomp: 2";
        assert_eq!(session.output(STATUS), expected);
    });
}

#[test]
fn programs_run_as_the_user_they_are_asked_for() {
    in_box(|_, session| {
        let tty = Some(Window { rows: 30, cols: 90 });
        let who = ["sh", "-c", "id -u; echo x >/dev/stderr; cat /dev/stdin; pwd"];
        for (user, id) in [(RunUser::Session, 1000), (RunUser::Root, 0)] {
            let (output, end) = session.program(&who, user, ("in\n", None));
            let lines: Vec<&str> = output.lines().collect();
            assert!(lines.contains(&id.to_string().as_str()) && lines.contains(&"x"), "{output}");
            assert!(lines.ends_with(&["in", "/workspace"]) || lines.contains(&"in"), "{output}");
            assert_eq!((end.how, end.exit_code), (How::Exited, 0));
        }
        for user in [RunUser::Session, RunUser::Root] {
            let cmd = "tty >/dev/tty && read x && echo got $x && sh -c 'test -t 2'";
            let (output, end) = session.program(&["sh", "-c", cmd], user, ("line\n", tty));
            assert!(output.contains("/dev/pts/") && output.contains("got line"), "{output}");
            assert_eq!((end.how, end.exit_code), (How::Exited, 0));
        }
        let status = session.program(&["sh", "-c", STATUS], RunUser::Session, ("", None)).0;
        assert!(status.contains("CapEff: 0000000000000000\nCapBnd: 0000000000000000"), "{status}");
        assert!(status.contains("NoNewPrivs: 1\nSeccomp: 2"), "{status}");
        let status = session.program(&["sh", "-c", STATUS], RunUser::Root, ("", None)).0;
        assert!(status.contains("CapEff: 00000000800405fb\nCapBnd: 00000000800405fb"), "{status}");
        let missing = session.program(&["nothing"], RunUser::Session, ("", None)).1;
        assert_eq!(missing.exit_code, 127);
    });
}

#[test]
fn a_command_for_root_has_what_the_shell_has() {
    in_box(|_, session| {
        session.run("mkdir d; chmod 700 d; cd d; export A=\"a b\"");
        let (output, end) = session.run_as(RunUser::Root, "id -u; pwd; echo $A $HOME", "");
        assert_eq!((output.as_str(), end.exit_code), ("0\n/workspace/d\na b /root\n", 0));
        assert_eq!(session.output("id -u; pwd"), "1000\n/workspace/d");
    });
}

#[test]
fn commands_and_programs_read_what_they_are_sent() {
    in_box(|_, session| {
        let input = "x".repeat(65_535);
        for user in [RunUser::Session, RunUser::Root] {
            assert_eq!(session.run_as(user, "sleep 0.1; wc -c", &input).0, "65535\n");
        }
        let argv = ["sh", "-c", "sleep 0.1; wc -c"];
        let (output, _) = session.program(&argv, RunUser::Session, (&input, None));
        assert_eq!(output, "65535\n");
    });
}

/// Each takes two processes of the fifty; three are init, the shell and its supervisor.
#[test]
fn without_room_for_a_process_a_program_is_not_started() {
    in_box(|_, session| {
        for others in [46, 47] {
            let cmd = format!(
                "i=0; while [ $i -lt {others} ]; do sleep 1000 & i=$((i+1)); p=\"$p $!\"; done"
            );
            session.run(&format!("p=; {cmd}"));
            let (_, end) = session.program(&["true"], RunUser::Session, ("", None));
            assert_eq!(end.how, How::NotStarted(11));
            session.run("kill $p; wait");
            let (_, end) = session.program(&["true"], RunUser::Session, ("", None));
            assert_eq!((end.how, end.exit_code), (How::Exited, 0));
        }
    });
}

#[test]
fn box_root_has_eleven_capabilities() {
    in_box_with(&as_root(), |_, session| {
        let status = session.output(STATUS);
        assert!(status.contains("CapEff: 00000000800405fb\nCapBnd: 00000000800405fb"), "{status}");
        assert!(status.contains("CapInh: 0000000000000000"), "{status}");
        assert!(status.contains("CapAmb: 0000000000000000"), "{status}");
    });
}

#[test]
fn the_mount_table_is_exactly_ours() {
    in_box(|_, session| {
        let command = "awk '{print $5, $6}' /proc/self/mountinfo | sort";
        let table = session.output(command).replace(",idmapped", "");
        let mounts: Vec<&str> = table.lines().filter(|line| !line.starts_with("/proc/")).collect();
        assert_eq!(
            mounts,
            [
                "/ rw,nosuid,nodev,relatime",
                "/.sandkasten rw,nosuid,nodev,noexec,relatime",
                "/dev ro,nosuid,noexec,relatime",
                "/dev/pts rw,nosuid,noexec,relatime",
                "/dev/shm rw,nosuid,nodev,relatime",
                "/proc rw,nosuid,nodev,noexec,relatime",
                "/tmp rw,nosuid,nodev,relatime",
                "/workspace rw,nosuid,nodev,relatime",
            ]
        );
        for line in table.lines().filter(|line| line.starts_with("/proc/")) {
            assert!(line.ends_with(" ro,nosuid,nodev,noexec,relatime"), "{line}");
        }
        assert!(table.contains("/proc/sys "));
        let roots =
            session.output("awk '$5 != \"/workspace\" {print $4}' /proc/self/mountinfo | sort -u");
        assert_eq!(roots, "/\n/dev\n/empty\n/none\n/sys");
    });
}

#[test]
fn a_read_only_root_still_has_its_places_to_write() {
    let options = Options { readonly_rootfs: true, ..as_root() };
    in_box_with(&options, |_, session| {
        assert!(session.output("touch /x").contains("Read-only file system"));
        assert_eq!(session.output("touch /tmp/x /dev/shm/x /workspace/x && echo ok"), "ok");
    });
}

#[test]
fn dev_is_exactly_the_list_and_can_not_grow() {
    in_box_with(&as_root(), |_, session| {
        let names = session.output("ls /dev | sort | tr '\\n' ' '");
        assert_eq!(names, "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero");
        assert_eq!(session.output("echo x >/dev/null && head -c 3 /dev/zero | wc -c"), "3");
        assert_eq!(session.output("head -c 9 /dev/urandom | wc -c"), "9");
        assert!(session.output("echo x >/dev/full").contains("No space left"));
        assert!(session.output("touch /dev/x").contains("Read-only"));
        for place in ["/tmp/n", "/dev/shm/n", "/workspace/n", "/n"] {
            let output = session.output(&format!("mknod {place} c 1 3"));
            assert!(output.contains("Operation not permitted"), "{output}");
        }
        assert_eq!(session.output("stat -c %u:%g:%a /dev/null /dev/pts/ptmx"), "0:0:666\n0:0:666");
    });
}

#[test]
fn proc_shows_nothing_of_the_host() {
    in_box_with(&as_root(), |_, session| {
        let output = session.output(
            "for f in cmdline kallsyms keys key-users kcore kmsg timer_list modules interrupts; do
               cat /proc/$f 2>/dev/null | head -c 1
             done | wc -c",
        );
        assert_eq!(output, "0");
        for file in [
            "sys/kernel/core_pattern",
            "sys/kernel/hostname",
            "sys/vm/drop_caches",
            "sysrq-trigger",
        ] {
            let (_, end) = session.run(&format!("echo 1 2>/dev/null >/proc/{file}"));
            assert_ne!(end.exit_code, 0, "{file}");
        }
        assert_eq!(session.output("ls /proc/irq /proc/bus /proc/fs | grep -v :"), "");
        assert_eq!(session.output("ls /sys 2>/dev/null | wc -l"), "0");
    });
}

#[test]
fn only_processes_of_the_box_are_seen() {
    in_box(|_, session| {
        let pids = session.output(
            "ls /proc | grep -E '^[0-9]+$' | sort -n | head -1; ls /proc | grep -cE '^[0-9]+$'",
        );
        let numbers: Vec<u32> = pids.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers[0], 1);
        assert!(numbers[1] < 10, "{numbers:?}");
    });
}

#[test]
fn init_is_out_of_reach() {
    for options in [Options::default(), as_root()] {
        in_box_with(&options, |_, session| {
            for file in ["mem", "environ", "maps", "fd/3", "root/etc"] {
                let (output, end) = session.run(&format!("head -c 1 /proc/1/{file}"));
                assert_ne!(end.exit_code, 0, "{file}: {output}");
            }
            for link in ["exe", "cwd", "root"] {
                let (output, end) = session.run(&format!("readlink /proc/1/{link}"));
                assert_ne!(end.exit_code, 0, "{link}: {output}");
            }
            session.run("kill -9 1; kill -STOP 1; kill -TERM 1; kill -QUIT 1");
            assert_eq!(session.output("echo alive"), "alive");
        });
    }
}

#[test]
fn nothing_can_be_mounted_and_no_namespace_made() {
    for seccomp in [SeccompProfile::Strict, SeccompProfile::Off] {
        in_box_with(&Options { seccomp, ..as_root() }, |_, session| {
            for command in [
                "mount -t tmpfs x /tmp",
                "mount -o remount,rw /dev",
                "mount -o bind /tmp /workspace",
                "umount /proc/sys",
                "umount -l /tmp",
                "hostname x",
                "unshare -m true",
                "unshare -n true",
                "unshare -p true",
                "unshare -u true",
                "unshare -i true",
                "unshare -U true",
            ] {
                let (output, end) = session.run(command);
                assert_ne!(end.exit_code, 0, "{seccomp:?} {command}: {output}");
            }
        });
    }
}

#[test]
fn without_seccomp_the_kernel_counts_no_namespace() {
    in_box_with(&Options { seccomp: SeccompProfile::Off, ..Options::default() }, |_, session| {
        let output = session.output("unshare -U true");
        assert!(output.contains("No space left on device"), "{output}");
        assert_eq!(session.output("cat /proc/sys/user/max_user_namespaces"), "0");
    });
}

#[test]
fn a_chroot_break_out_ends_in_the_box() {
    in_box_with(&as_root(), |_, session| {
        session.run("mkdir -p /tmp/j/bin && ln -s /bin/busybox /tmp/j/bin/x");
        let output = session.output("cd ../../../../..; ls -d .sandkasten workspace bin; ls /..");
        assert!(output.contains("workspace"), "{output}");
        assert_eq!(session.output("stat -c %i / /.. /../.. | sort -u | wc -l"), "1");
    });
}

#[test]
fn the_network_is_lo_alone_and_works() {
    in_box(|_, session| {
        assert_eq!(session.output("cut -d: -f1 /proc/net/dev | grep -v '|' | tr -d ' '"), "lo");
        assert_eq!(session.output("hostname"), "sandbox");
        for address in ["127.0.0.1", "::1", "sandbox"] {
            // The listener's own side stays open, or either nc may end before it has heard.
            let talk = format!(
                "rm -f /tmp/open; mkfifo /tmp/open; nc -l -p 80 <>/tmp/open >/tmp/heard & \
                 until echo hello | nc {address} 80; do :; done; wait; cat /tmp/heard"
            );
            let (output, _) = session.run(&format!("({talk}) 2>/dev/null"));
            assert_eq!(output, "hello\n", "{address}: a low port is free for everybody");
        }
        let ping = session.output("tr '\\t' ' ' </proc/sys/net/ipv4/ping_group_range");
        assert_eq!(ping, "0 65535", "and so is ping");
    });
}

#[test]
fn files_belong_to_who_makes_them() {
    in_box_with(&as_root(), |_, session| {
        let output = session.output(
            "touch /root-file && chown 7:8 /root-file && stat -c %u:%g /root-file /bin/busybox / /workspace",
        );
        assert_eq!(output, "7:8\n0:0\n0:0\n1000:1000");
        assert_eq!(
            session.output(
                "su sandbox -c 'id -u; touch /home/sandbox/f && stat -c %u /home/sandbox/f'"
            ),
            "1000\n1000"
        );
        let output = session
            .output("touch /bin/busybox && chmod 700 /bin/busybox && stat -c %a /bin/busybox");
        assert_eq!(output, "700");
    });
}

#[test]
fn a_setuid_program_raises_nobody() {
    in_box_with(&as_root(), |_, session| {
        session.run("cat /bin/busybox >/workspace/grep && chmod 4755 /workspace/grep");
        assert_eq!(session.output("stat -c %a:%u /workspace/grep"), "4755:0");
        let status = "su sandbox -c '/workspace/grep Uid /proc/self/status' | tr '\\t' ' '";
        assert_eq!(session.output(status), "Uid: 1000 1000 1000 1000");
    });
}

#[test]
fn tmpfs_mounts_are_as_large_as_asked() {
    in_box(|_, session| {
        let sizes = session.output("df -k /tmp /dev/shm /.sandkasten | awk 'NR>1 {print $2}'");
        assert_eq!(sizes, "16384\n8192\n32768");
        assert_eq!(
            session.output("stat -c %a:%u /tmp /dev/shm /.sandkasten"),
            "1777:0\n1777:0\n711:65000"
        );
        let (_, end) = session.run("dd if=/dev/zero of=/tmp/big bs=1M count=20 2>/dev/null");
        assert_ne!(end.exit_code, 0);
        assert_eq!(
            session.output(
                "rm /tmp/big; cat /bin/busybox >/tmp/echo; chmod +x /tmp/echo; /tmp/echo runs"
            ),
            "runs"
        );
    });
}

#[test]
fn rlimits_and_the_rest_are_not_inherited() {
    in_box(|_, session| {
        let limits = session.output("grep -E 'core|open files' /proc/self/limits | tr -s ' '");
        let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        let (hard, core) = (hard.unwrap_or(65_536).min(65_536), "Max core file size 0 0 bytes");
        assert_eq!(limits, format!("{core} \nMax open files {} {hard} files", hard.min(16_384)));
        assert_eq!(session.output("umask; cat /proc/self/oom_score_adj"), "0022\n500");
        assert_eq!(session.output("cut -d: -f3 /proc/self/cgroup | sort -u"), "/");
        let signals = session.output("grep -E 'SigBlk|SigIgn' /proc/self/status | tr '\\t' ' '");
        assert!(signals.contains("SigBlk: 0000000000000000"), "{signals}");
        assert_eq!(session.output("ls /proc/self/fd | wc -l"), "4");
    });
}

#[test]
fn memory_beyond_the_limit_kills_in_the_box_alone() {
    in_box_with(&as_root(), |_, session| {
        let before = session.cgroup.events();
        session.run("dd if=/dev/zero of=/dev/null bs=150M count=1");
        let after = session.cgroup.events();
        assert!(after.oom_kills > before.oom_kills, "{after:?}");
        assert_eq!(after.host_oom_kills, 0, "{after:?}");
        assert!(session.cgroup.usage().memory_peak_bytes <= 64 << 20);
        assert_eq!(session.output("echo alive"), "alive");
    });
}

#[test]
fn forks_beyond_the_limit_fail() {
    in_box(|_, session| {
        session.run("for i in $(seq 80); do sleep 50 & done 2>/dev/null");
        assert!(session.cgroup.usage().pids <= 50);
        assert!(session.cgroup.events().fork_fails > 0);
        assert_eq!(session.output("echo alive"), "alive");
    });
}

#[test]
fn cpu_time_is_capped() {
    in_box(|_, session| {
        let (before, start) = (session.cgroup.usage().cpu_usec, Instant::now());
        session.run("(yes >/dev/null & yes >/dev/null & sleep 2; kill %1 %2) 2>/dev/null");
        let used = session.cgroup.usage().cpu_usec - before;
        // Half a core, and the periods that have begun.
        let most = start.elapsed().as_micros() * 55 / 100 + 100_000;
        assert!(u128::from(used) < most, "{used} of {most} us");
    });
}

#[test]
fn two_boxes_share_no_id_and_see_nothing_of_each_other() {
    let host = host();
    let mut a = host.start("a", &Options::default()).unwrap();
    let options = Options { uid_base: 100_000 + 65_536 * 8, ..Options::default() };
    let mut b = host.start("b", &options).unwrap();
    a.run("echo secret >/tmp/s; echo secret >/dev/shm/s; sleep 50 & true");
    assert_eq!(b.output("ls /tmp /dev/shm | grep -c s$"), "0");
    assert_eq!(b.output("ps | grep -c '[s]leep'"), "0");
    assert_ne!(a.output("cat /proc/self/uid_map"), b.output("cat /proc/self/uid_map"));
    host.end(a);
    host.end(b);
}

#[test]
fn many_layers_are_mounted() {
    for extra_layers in [40, 100] {
        in_box_with(&Options { extra_layers, ..Options::default() }, |_, session| {
            assert_eq!(session.output("echo ok"), "ok", "{extra_layers}");
        });
    }
}

#[test]
fn a_session_outlives_its_launcher() {
    let mut host = host();
    let mut session = host.start("s", &Options::default()).unwrap();
    let old = std::mem::replace(&mut host.launcher, sandkasten_jail::Launcher::spawn().unwrap());
    drop(old);
    assert_eq!(session.output("echo alive"), "alive");
    host.end(session);
}

#[test]
fn a_hostile_root_file_system_fails_by_name() {
    for name in ["proc", "dev", "tmp", "workspace"] {
        let host = host();
        let path = host.folder.0.join("layer").join(name);
        std::fs::remove_dir_all(&path).unwrap();
        std::os::unix::fs::symlink("/etc", &path).unwrap();
        let failed = host.start("s", &Options::default()).map(|_| ()).unwrap_err();
        let LaunchError::Step { step, source } = failed else { panic!("{failed}") };
        assert!(step.contains(&format!("/{name}")), "{step}: {source}");
    }
}

#[test]
fn missing_mount_points_are_made() {
    let host = host();
    for name in ["proc", "dev", "tmp", "workspace", ".sandkasten"] {
        std::fs::remove_dir_all(host.folder.0.join("layer").join(name)).unwrap();
    }
    let mut session = host.start("s", &Options::default()).unwrap();
    assert_eq!(session.output("stat -c %u /proc/.. && echo ok"), "0\nok");
    host.end(session);
}

#[test]
fn nothing_of_a_box_stands_in_the_hosts_mount_table() {
    in_box(|host, session| {
        session.output("true");
        // Others on this host may mount meanwhile: what the box has lies in this folder.
        let folder = host.folder.0.to_str().unwrap();
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!table.contains(folder), "{table}");
    });
}

#[test]
fn starters_make_boxes_that_are_as_shut_as_others() {
    let host = host();
    let cgroups = host.cgroups.as_ref().unwrap();
    cgroups.park(&host.launcher, 2).unwrap();
    assert_eq!(cgroups.list(), Vec::<String>::new(), "spare groups are no sessions");
    let mut first = host.start("a", &Options::default()).unwrap();
    let options = Options { uid_base: 100_000 + 65_536 * 8, ..Options::default() };
    let mut second = host.start("b", &options).unwrap();
    let options = Options { uid_base: 100_000 + 65_536 * 9, ..Options::default() };
    let mut third = host.start("c", &options).unwrap();
    let nets = [&mut first, &mut second].map(|one| one.output("readlink /proc/self/ns/net"));
    assert_ne!(nets[0], nets[1]);
    for session in [&mut first, &mut second, &mut third] {
        let groups = "cut -d: -f3 /proc/self/cgroup | sort -u; ls /proc | grep -cE '^[0-9]+$'";
        let seen = session.output(groups);
        assert!(seen.starts_with("/\n"), "{seen}");
        let name =
            std::fs::read_to_string(format!("/proc/{}/cgroup", session.started.pid)).unwrap();
        assert!(!name.contains("spare"), "{name}");
        session.run("dd if=/dev/zero of=/dev/null bs=150M count=1");
        assert!(session.cgroup.events().oom_kills > 0);
        session.run("for i in $(seq 80); do sleep 50 & done 2>/dev/null");
        assert!(session.cgroup.events().fork_fails > 0);
    }
    assert_eq!(cgroups.list(), ["a", "b", "c"]);
    [first, second, third].into_iter().for_each(|session| host.end(session));
    cgroups.park(&host.launcher, 1).unwrap();
}

#[test]
fn a_session_that_is_never_launched_leaves_no_starter() {
    let host = host();
    let cgroups = host.cgroups.as_ref().unwrap();
    cgroups.park(&host.launcher, 1).unwrap();
    let cgroup = cgroups.create("s", &Options::default().limits).unwrap();
    cgroup.remove().unwrap();
    assert_eq!(cgroups.list(), Vec::<String>::new());
}
