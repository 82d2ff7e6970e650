//! `sandkasten doctor`: every guarantee is given here; and each required one, taken away, changes its
//! line and the exit code, and the daemon refuses to start.
//!
//! They are taken away without harm to the host: by a dropped capability, in a private namespace, by
//! a read-only bind, by another file system for the data directory, or by system calls that the kernel
//! refuses (`probe --without`). The working directory is the lab's; `data` is its data directory.

use std::process::Output;

use sandkasten_e2e::{Lab, lab};
use serde_json::Value;

/// Those that the daemon does not start without.
const REQUIRED: [&str; 18] = [
    "box",
    "capabilities",
    "cgroup",
    "cpu-limit",
    "data-directory",
    "devpts",
    "disk-space",
    "idmapped-mounts",
    "launcher",
    "memfd",
    "memory-limit",
    "namespace-limits",
    "namespaces",
    "overlay",
    "pids-limit",
    "run-directory",
    "seccomp",
    "user-namespace",
];

fn report(output: &Output) -> Vec<Value> {
    let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "{error}: {} {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    });
    value["guarantees"].as_array().cloned().expect("a list")
}

#[test]
fn all_is_given_here() {
    let lab = Lab::builder().prepare();
    let output = lab.cli(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let report = report(&output);
    let mut required: Vec<&str> = report
        .iter()
        .filter(|one| one["required"] == true)
        .map(|one| one["name"].as_str().expect("a name"))
        .collect();
    required.sort_unstable();
    assert_eq!(required, REQUIRED);
    for one in &report {
        assert!(one["says"].as_str().is_some_and(|text| !text.is_empty()), "{one}");
        assert!(
            one["given"] == true || (one["why"].is_string() && one["fix"].is_string()),
            "{one}"
        );
        assert!(one["given"] == true || one["required"] == false, "{one}");
    }
}

#[test]
fn people_read_a_count_then_what_is_missing() {
    let lab = Lab::builder().prepare();
    let count = |words: &[&str]| {
        let output = lab.cli(words);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let all = report(&lab.cli(&["doctor", "--json"]));
    let missing = all.iter().filter(|one| one["given"] == false).count();
    let optional =
        if missing == 0 { String::new() } else { format!("; {missing} optional missing") };
    let first = format!("{} of {} guarantees{optional}", all.len() - missing, all.len());
    let short = count(&["doctor"]);
    assert_eq!(short.lines().next(), Some(first.as_str()));
    assert!(!short.contains("given "), "{short}");
    let long = count(&["doctor", "-v"]);
    assert!(long.starts_with(&short.trim_end().to_owned()), "{long}");
    for name in REQUIRED {
        assert!(long.contains(&format!("\ngiven    {name}: ")), "{name}: {long}");
    }
    let heads =
        long.lines().filter(|line| line.starts_with("given") || line.starts_with("missing"));
    assert_eq!(heads.count(), all.len(), "{long}");
    for line in long.lines().filter(|line| line.starts_with("missing")) {
        assert!(line.contains("(optional)"), "{line}");
    }
}

#[test]
fn an_empty_key_is_reported() {
    let lab = Lab::builder().prepare();
    let mut command = lab.command(&["doctor", "--json"]);
    // Away from the lab's configuration file, which has a key.
    let command = command.env("SANDKASTEN_API_KEY", "").current_dir("/");
    let report = report(&command.output().expect("run doctor"));
    let key = report.iter().find(|one| one["name"] == "api-key").expect("a line");
    assert_eq!((&key["given"], &key["required"]), (&Value::from(false), &Value::from(false)));
}

/// What the daemon says where it refuses.
#[derive(PartialEq)]
enum Daemon {
    /// The name of the guarantee.
    NamesIt,
    /// It does not come as far as looking at the host.
    EndsBefore,
}

/// Runs doctor and daemon by a wrapper that takes a guarantee away.
#[track_caller]
fn taken_away(name: &str, wrapper: &[&str], daemon: &Daemon) {
    let probe = lab::probe().to_string_lossy().into_owned();
    let wrapper: Vec<&str> =
        wrapper.iter().map(|&word| if word == "PROBE" { &probe } else { word }).collect();
    let lab = Lab::builder().within(&wrapper).prepare();
    let output = lab.cli_within(&wrapper, &["doctor", "--json"]);
    let all = report(&output);
    assert_eq!(output.status.code(), Some(1), "{all:#?}");
    let line =
        all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}: {all:#?}"));
    assert_eq!(
        (&line["given"], &line["required"]),
        (&Value::from(false), &Value::from(true)),
        "{line}"
    );
    for field in ["why", "fix"] {
        assert!(line[field].as_str().is_some_and(|text| !text.is_empty()), "{line}");
    }
    let text = lab.cli_within(&wrapper, &["doctor"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(&format!("\nmissing  {name}: ")), "{text}");
    let first = text.lines().next().unwrap_or_default();
    assert!(first.contains(" required missing (") && first.contains(name), "{text}");
    let refusal = lab.started().expect_err("the daemon started");
    assert_eq!(refusal.status.code(), Some(1), "{}", refusal.log);
    let named = refusal.log.contains(&format!("\n  {name}: "));
    assert!(named || *daemon == Daemon::EndsBefore, "{}", refusal.log);
}

macro_rules! taken_away {
    ($($test:ident: $name:literal, $daemon:ident, [$($word:expr),+];)+) => {
        $(#[test]
        fn $test() {
            taken_away($name, &[$($word),+], &Daemon::$daemon);
        })+
    };
}

/// Mounts, then what follows.
const IN_MOUNTS: &str = "unshare";

taken_away! {
    without_a_capability: "capabilities", NamesIt,
        ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];
    without_another_capability: "capabilities", NamesIt,
        ["setpriv", "--bounding-set=-setfcap", "--inh-caps=-setfcap"];
    without_namespaces: "namespaces", NamesIt, ["PROBE", "--without", "unshare=28"];
    without_seccomp: "seccomp", EndsBefore, ["PROBE", "--without", "seccomp=38"];
    without_programs_in_memory: "memfd", NamesIt, ["PROBE", "--without", "execveat=13"];
    without_terminals: "devpts", NamesIt, ["PROBE", "--without", "fsopen=19"];
    without_cgroup2: "cgroup", NamesIt,
        [IN_MOUNTS, "-m", "sh", "-c", "mount -o remount,bind,ro $(findmnt -n -o TARGET -t cgroup2 | head -n 1) && exec \"$@\"", "sh"];
    without_a_memory_limit: "memory-limit", NamesIt,
        [IN_MOUNTS, "-m", "sh", "-c", READ_ONLY, "memory"];
    without_a_cpu_limit: "cpu-limit", NamesIt, [IN_MOUNTS, "-m", "sh", "-c", READ_ONLY, "cpu"];
    without_a_pids_limit: "pids-limit", NamesIt, [IN_MOUNTS, "-m", "sh", "-c", READ_ONLY, "pids"];
    without_a_run_directory: "run-directory", NamesIt,
        [IN_MOUNTS, "-m", "sh", "-c", "mount -t tmpfs -o ro none /run && exec \"$@\"", "sh"];
    without_a_data_directory: "data-directory", EndsBefore,
        [IN_MOUNTS, "-m", "sh", "-c", "mount --bind data data && mount -o remount,bind,ro data && exec \"$@\"", "sh"];
    without_a_launcher: "launcher", EndsBefore, ["PROBE", "--without", "move_mount=1"];
    without_user_namespaces: "user-namespace", NamesIt,
        ["unshare", "-U", "-r", "-m", "sh", "-c", "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"", "sh"];
    without_overlay: "overlay", NamesIt, [IN_MOUNTS, "-m", "sh", "-c", ON_OVERLAY, "sh"];
    without_namespace_limits: "namespace-limits", NamesIt,
        [IN_MOUNTS, "-m", "sh", "-c", "mount --bind /proc/sys/user /proc/sys/user && mount -o remount,bind,ro /proc/sys/user && exec \"$@\"", "sh"];
    without_idmapped_mounts: "idmapped-mounts", NamesIt,
        [IN_MOUNTS, "-m", "sh", "-c", "mount -t ramfs none data && exec \"$@\"", "sh"];
    without_a_whole_box: "box", NamesIt, ["PROBE", "--without", "sethostname=1"];
}

/// Makes the hierarchy of a controller (`$0`) read-only: its own one, or cgroup2's.
const READ_ONLY: &str = "point=$(findmnt -n -o TARGET -t cgroup -O \"$0\" | head -n 1); \
    mount -o remount,bind,ro \"${point:-$(findmnt -n -o TARGET -t cgroup2 | head -n 1)}\" && exec \"$@\"";

/// Puts the data directory on an overlay, which can't be the upper layer of another.
const ON_OVERLAY: &str = "mkdir -p low up work && \
    mount -t overlay none -o lowerdir=low,upperdir=up,workdir=work data && exec \"$@\"";
