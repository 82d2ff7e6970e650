//! What the host can give. Each line is the result of trying the thing.
//!
//! Nothing is looked up in version numbers or configurations where the kernel can be asked to do it:
//! attempts run in children, in groups and folders made for a moment, and the last of them is a whole
//! box. Nothing is left behind.

mod attempts;
mod whole;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::cgroup;
use crate::disk::Mechanism;
use crate::disk::room::Room;
use crate::launcher::Launcher;
use attempts::Folder;

/// Where the daemon would put its files.
#[derive(Debug, Clone)]
pub struct HostPaths {
    pub data_dir: PathBuf,
    pub run_dir: PathBuf,
    /// Ways to limit disk space that may be tried.
    pub disk_limits: Vec<Mechanism>,
}

/// One promise of the isolation and whether this host can keep it.
#[derive(Debug, Clone)]
pub struct Guarantee {
    /// Short and stable: `--allow-degraded=<name>` takes it.
    pub name: &'static str,
    /// The daemon refuses to start without it.
    pub required: bool,
    pub state: State,
    /// What it is good for, or what was found; one line.
    pub says: String,
}

/// The result of trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Given,
    Missing {
        why: String,
        /// The exact thing to do about it.
        fix: String,
    },
}

/// Tries everything. Leaves nothing behind.
#[must_use]
pub fn guarantees(env: &HostPaths) -> Vec<Guarantee> {
    let mut list = vec![
        required(
            "capabilities",
            "the daemon may do what isolation takes",
            "run the daemon as root, with the capabilities that `why` names (in a container: --privileged)",
            attempts::capabilities(),
        ),
        required(
            "namespaces",
            "mount, pid, net, ipc, uts and cgroup namespaces",
            "use a kernel with CONFIG_NAMESPACES, CONFIG_PID_NS, CONFIG_NET_NS, CONFIG_IPC_NS, \
             CONFIG_UTS_NS and CONFIG_CGROUPS, and raise /proc/sys/user/max_*_namespaces",
            attempts::namespaces(),
        ),
        required(
            "seccomp",
            "system calls are filtered by an allow-list, under no_new_privs",
            "use a kernel with CONFIG_SECCOMP_FILTER",
            attempts::seccomp(),
        ),
        required(
            "memfd",
            "init runs from a sealed memfd of mode 0111",
            "set vm.memfd_noexec to 0 or 1: sysctl -w vm.memfd_noexec=1",
            attempts::memfd(),
        ),
        required(
            "devpts",
            "terminals of a box are its own",
            "use a kernel with CONFIG_UNIX98_PTYS",
            attempts::devpts(),
        ),
    ];
    list.extend(cgroup::trials().into_iter().map(of_cgroup));
    let space = disk_space(&env.data_dir);
    let has_room = space.state == State::Given;
    list.push(space);
    // What is tried on a full disk fails, and says nothing about the host.
    if has_room {
        list.extend(of_directories(env));
    }
    list.extend(optional_ones());
    list
}

/// What needs the launcher, user namespaces and the data directory's file system.
fn of_directories(env: &HostPaths) -> Vec<Guarantee> {
    let folder = Folder::below(&env.data_dir);
    let mut list = vec![
        required(
            "run-directory",
            "ranges of user ids are claimed host-wide",
            &format!("make {} a directory that root can write to", env.run_dir.display()),
            attempts::run_directory(&env.run_dir),
        ),
        required(
            "data-directory",
            "files of sessions and workspaces have a place that only root sees",
            &format!("make {} a directory that root can write to", env.data_dir.display()),
            folder.as_ref().map(|_| ()).map_err(ToString::to_string),
        ),
    ];
    let launcher = Launcher::spawn();
    list.push(required(
        "launcher",
        "boxes are made by a process in an empty read-only root",
        "use Linux 6.1 or newer, and let the daemon mount (no container without CAP_SYS_ADMIN)",
        launcher.as_ref().map(|_| ()).map_err(chain),
    ));
    let (Ok(folder), Ok(launcher)) = (folder, launcher) else {
        return list;
    };
    list.extend(of_file_system(env, &folder, &launcher));
    list
}

fn of_file_system(env: &HostPaths, folder: &Folder, launcher: &Launcher) -> Vec<Guarantee> {
    let namespace = attempts::user_namespace(launcher);
    let mut list = vec![disk_limits(env, folder, namespace.as_ref().ok())];
    list.push(required(
        "user-namespace",
        "each session has 65,536 user ids of its own",
        "allow user namespaces: sysctl -w user.max_user_namespaces=15000",
        namespace.as_ref().map(|_| ()).map_err(chain),
    ));
    list.push(required(
        "overlay",
        "images are shared read-only, with a layer a session above",
        "load the module (modprobe overlay), and put the data directory on ext4, xfs or btrfs",
        attempts::overlay(folder),
    ));
    let Ok(namespace) = namespace else { return list };
    list.push(required(
        "namespace-limits",
        "code in a box can't make namespaces of its own",
        "use a kernel with CONFIG_SYSCTL",
        attempts::namespace_limits(&namespace),
    ));
    list.push(required(
        "idmapped-mounts",
        "image layers and workspaces show a session's own user ids",
        "put the data directory on ext4, xfs or btrfs (tmpfs needs Linux 6.3)",
        attempts::idmapped(folder, &namespace),
    ));
    list.push(required(
        "box",
        "a whole box starts, and proves from inside that it is shut",
        "see the other lines; where they are all given, report this line as a bug",
        whole::start_and_end(folder, launcher, namespace),
    ));
    list
}

/// The row of [`disk_space`].
pub const DISK_SPACE: &str = "disk-space";

fn disk_space(data_dir: &Path) -> Guarantee {
    const SAYS: &str = "there is room for what sessions write";
    let tried = match Room::of(data_dir) {
        Ok(room) if room.is_full() => {
            Err(format!("disk full: {room}; what needs room on it was not tried"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    let fix = format!("make room on the file system of {}", data_dir.display());
    required(DISK_SPACE, SAYS, &fix, tried)
}

fn disk_limits(env: &HostPaths, folder: &Folder, namespace: Option<&OwnedFd>) -> Guarantee {
    const SAYS: &str = "what sessions and workspaces may write to disk can be limited";
    let (says, tried) = match attempts::disk_limits(folder, &env.disk_limits, namespace) {
        Ok(how) => (format!("{SAYS}: {how}"), Ok(())),
        Err(why) => (SAYS.to_owned(), Err(why)),
    };
    let fix = "install e2fsprogs and see to it that there is /dev/loop-control (modprobe loop), or put the \
         data directory on a file system with project quotas (mke2fs -O quota,project; mount -o prjquota)";
    optional("disk-limits", &says, fix, tried)
}

fn optional_ones() -> Vec<Guarantee> {
    vec![
        optional(
            "landlock",
            "a second fence around files, beside namespaces",
            "use a kernel with CONFIG_SECURITY_LANDLOCK, and `landlock` in its `lsm=` list",
            attempts::landlock(),
        ),
        optional(
            "network-bridge",
            "sessions can have a network of their own",
            "load the module: modprobe bridge",
            attempts::bridge(),
        ),
        optional(
            "open-files",
            "a process in a box may open 65,536 files",
            "raise the hard limit of the daemon: LimitNOFILE=65536, or ulimit -Hn 65536",
            attempts::open_files(),
        ),
        optional(
            "daemon-survives-oom",
            "the host's memory shortage takes the daemon last",
            "give the daemon CAP_SYS_RESOURCE",
            attempts::oom_score(),
        ),
    ]
}

fn of_cgroup(trial: cgroup::Trial) -> Guarantee {
    let (says, fix) = match trial.name {
        "cgroup" => (
            "a cgroup a session, which holds and ends all its processes",
            "mount cgroup2, writable for root",
        ),
        "memory-limit" => (
            "memory is limited",
            "boot with the memory controller in cgroup2 (v1: with CONFIG_MEMCG and memory.kmem.tcp.limit_in_bytes)",
        ),
        "cpu-limit" => (
            "processor time is limited",
            "use a kernel with CONFIG_CFS_BANDWIDTH, and the cpu controller in cgroup2 or v1",
        ),
        _ => (
            "the number of processes is limited",
            "use a kernel with CONFIG_CGROUP_PIDS, and the pids controller in cgroup2 or v1",
        ),
    };
    match trial.outcome {
        Ok(found) => required(trial.name, &format!("{says} ({found})"), fix, Ok(())),
        Err(error) => required(trial.name, says, fix, Err(chain(&error))),
    }
}

fn required(name: &'static str, says: &str, fix: &str, tried: Result<(), String>) -> Guarantee {
    Guarantee { required: true, ..optional(name, says, fix, tried) }
}

fn optional(name: &'static str, says: &str, fix: &str, tried: Result<(), String>) -> Guarantee {
    let state = match tried {
        Ok(()) => State::Given,
        Err(why) => State::Missing { why, fix: fix.to_owned() },
    };
    Guarantee { name, required: false, state, says: says.to_owned() }
}

/// An error with what caused it.
fn chain(error: &(impl std::error::Error + ?Sized)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn this_host_is_judged_and_nothing_is_left() {
        let base = std::env::temp_dir().join(format!("sk-doctor-{}", std::process::id()));
        std::fs::create_dir(&base).unwrap();
        let env = HostPaths {
            data_dir: base.join("data"),
            run_dir: base.join("run"),
            disk_limits: Mechanism::ALL.to_vec(),
        };
        let list = guarantees(&env);
        let missing: Vec<_> =
            list.iter().filter(|one| one.required && one.state != State::Given).collect();
        assert!(missing.is_empty(), "{missing:#?}");
        assert!(list.len() > 15);
        assert_eq!(std::fs::read_dir(&base).unwrap().count(), 0, "nothing is left");
        std::fs::remove_dir(&base).unwrap();
    }
}
