//! F-01: paths that nobody means well with, on every route. F-02: links that lead out of a workspace.
//!
//! Each row of the tables is a test of its own, for sessions and for workspaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandkasten_e2e::{Lab, host};

use crate::canary::Canary;
use crate::routes::is_civil;
use crate::{Files, Workspace, base};

const LIMIT: Duration = Duration::from_secs(5);

/// Where a path leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leads {
    /// Out of a workspace: every route refuses it.
    Out,
    /// Nowhere at all: no route takes it.
    Nowhere,
    /// To a place inside, or to none.
    In,
}

/// Asks every route of a session. What it finds is the box's own.
#[track_caller]
fn in_session(path: &[u8], leads: Leads) {
    let lab = Lab::shared();
    let canary = Canary::in_data_dir(&lab);
    let session = base(&lab);
    let files = Files::of(&session);
    let path = fill_in(path, &canary);
    let above = path.starts_with(b"/") || path.starts_with(b"..");
    for route in files.routes() {
        // All that is above a box's `/workspace` is long, and none of it is the host's.
        if route.walks() && above {
            continue;
        }
        files.put("own", b"own");
        let answer = route.ask(&files, &path);
        is_civil(&route, &path, &answer, LIMIT);
        canary.is_not_in(&route.to_string(), &answer);
        let own = route.has_default() && path.is_empty();
        assert!(leads != Leads::Nowhere || own || answer.status() >= 400, "{route}: {answer}");
    }
    canary.is_untouched("a session's routes");
    session.alive();
}

/// Asks every route of a workspace, with nobody in it.
#[track_caller]
fn in_workspace(path: &[u8], leads: Leads) {
    let lab = Lab::shared();
    let canary = Canary::in_data_dir(&lab);
    let workspace = Workspace::new(&lab, "f01");
    let files = workspace.files();
    files.put("own", b"own");
    let path = fill_in(path, &canary);
    let around = || {
        let names = host::names(&lab.data_dir).into_iter();
        names.filter(|name| !name.contains("canary")).collect::<Vec<_>>()
    };
    let before = around();
    for route in files.routes() {
        files.put("own", b"own");
        let answer = route.ask(&files, &path);
        is_civil(&route, &path, &answer, LIMIT);
        canary.is_not_in(&route.to_string(), &answer);
        let own = route.has_default() && path.is_empty();
        match leads {
            Leads::Out if route.method == "HEAD" => assert_eq!(answer.status(), 400, "{route}"),
            Leads::Out => {
                assert_eq!(answer.status(), 400, "{route}: {answer}");
                assert_eq!(answer.json()["error_code"], "PATH_NOT_ALLOWED", "{route}: {answer}");
            }
            Leads::Nowhere => assert!(answer.status() >= 400 || own, "{route}: {answer}"),
            Leads::In => {}
        }
    }
    canary.is_untouched("a workspace's routes");
    assert_eq!(around(), before);
    assert_eq!(files.get("own"), b"own");
}

/// `CANARY` is the canary's absolute path, `BESIDE` its name in the data directory.
fn fill_in(path: &[u8], canary: &Canary) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(path) else { return path.to_owned() };
    let whole = canary.path().to_string_lossy();
    let name = canary.path().file_name().unwrap_or_default().to_string_lossy();
    text.replace("CANARY", &whole).replace("BESIDE", &name).into_bytes()
}

macro_rules! paths {
    ($($name:ident: $path:expr, $leads:ident;)+) => {
        mod f_01 {
            $(mod $name {
                use super::super::{Leads, in_session, in_workspace};

                #[test]
                fn session() {
                    // A box has no outside that a path could lead to.
                    let leads = if Leads::$leads == Leads::Out { Leads::In } else { Leads::$leads };
                    in_session($path, leads);
                }

                #[test]
                fn workspace() {
                    in_workspace($path, Leads::$leads);
                }
            })+
        }
    };
}

paths! {
    parent: b"../x", Out;
    parent_in_the_middle: b"a/../../x", Out;
    parent_of_nothing: b"..", Out;
    canary_by_parents: b"../../BESIDE/f", Out;
    canary_by_many_parents: b"../../../../../../../../../../../../../../CANARY/f", Out;
    canary_by_its_name: b"CANARY/f", Out;
    canary_through_proc: b"/proc/self/root/CANARY/f", Out;
    canary_through_pid_1: b"/proc/1/root/CANARY/f", Out;
    canary_below_workspace: b"/workspace/../../CANARY/f", Out;
    passwd: b"/etc/passwd", Out;
    passwd_with_more_slashes: b"//etc//passwd", Out;
    proc_root: b"/proc/self/root/etc", Out;
    proc_cwd: b"/proc/self/cwd/x", Out;
    proc_fd: b"/proc/self/fd/3", Out;
    proc_mem: b"/proc/self/mem", Out;
    dev_fd: b"/dev/fd/0", Out;
    dev_stdin: b"/dev/stdin", Out;
    workspace_and_more: b"/workspaces/x", Out;
    root: b"/", Out;
    two_slashes: b"//", Out;
    nul: b"a\0b", Nowhere;
    nul_at_the_end: b"own\0", Nowhere;
    empty: b"", Nowhere;
    too_long: &[b'/'; 4097], Nowhere;
    too_long_in_names: "a/".repeat(2049).as_bytes(), Nowhere;
    name_too_long: "n".repeat(256).as_bytes(), Nowhere;
    escaped_dots: b"%2e%2e/x", In;
    escaped_twice: b"%252e%252e%252fx", In;
    backslash: b"..\\..\\x", In;
    dot: b".", In;
    slash_at_the_end: b"own/", In;
    directory_with_a_slash: b"dir/", In;
    dots_that_are_a_name: b".../x", In;
    parent_that_stays_in: b"a/../own", In;
    not_utf8: b"bad-\xff-name", In;
}

/// The routes of a workspace whose `link` leads to a place of the host. `made` tells where to.
#[track_caller]
fn linked(name: &str, target: impl Fn(&Lab, &Canary, &str) -> PathBuf, has_session: bool) {
    let lab = Lab::shared();
    let canary = Canary::in_data_dir(&lab);
    let other = Workspace::new(&lab, "f02-other");
    other.files().put("f", b"of another");
    let workspace = Workspace::new(&lab, name);
    let files = workspace.files();
    files.put("own", b"own");
    let session = has_session.then(|| workspace.session());
    let link = lab.data_dir.join("workspaces").join(&workspace.id).join("link");
    let target = target(&lab, &canary, &other.id);
    let mut places = vec![workspace.files()];
    places.extend(session.as_ref().map(Files::of));
    for files in &places {
        for route in files.routes() {
            for path in ["link", "link/", "link/f", "link/new/f"] {
                fresh_link(&link, &target);
                files.put("own", b"own");
                let answer = route.ask(files, path.as_bytes());
                is_civil(&route, path.as_bytes(), &answer, LIMIT);
                canary.is_not_in(&route.to_string(), &answer);
                assert!(!answer.text().contains("of another"), "{route} of {path}: {answer}");
                let of_workspace = files.base.starts_with("/v1/workspaces");
                let follows = path != "link" || ["/read", "/write", ""].contains(&route.rest);
                let looks = answer.status() == 200 && route.only_looks();
                assert!(!(of_workspace && follows && looks), "{route} of {path}: {answer}");
            }
        }
    }
    canary.is_untouched("a link in a workspace");
    assert_eq!(other.files().get("f"), b"of another");
    assert_eq!(host::names(&lab.data_dir.join("workspaces").join(&other.id)), ["f"]);
}

/// Puts the link where it was, whatever a route made of it.
fn fresh_link(link: &Path, target: &Path) {
    match fs::symlink_metadata(link) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(link).expect("remove what was made"),
        Ok(_) => fs::remove_file(link).expect("remove the link"),
        Err(_) => {}
    }
    std::os::unix::fs::symlink(target, link).expect("make the link");
}

macro_rules! links {
    ($($name:ident: $target:expr;)+) => {
        mod f_02 {
            $(mod $name {
                use super::super::*;

                #[test]
                fn session_up() {
                    linked("f02-up", $target, true);
                }

                #[test]
                fn session_down() {
                    linked("f02-down", $target, false);
                }
            })+
        }
    };
}

links! {
    to_passwd: |_, _, _| Path::new("/etc/passwd").to_owned();
    to_root: |_, _, _| Path::new("/").to_owned();
    to_another_workspace: |_, _, other| Path::new("..").join(other);
    to_its_file: |_, _, other| Path::new("..").join(other).join("f");
    to_the_data_directory: |lab, _, _| lab.data_dir.clone();
    to_the_canary: |_, canary, _| canary.path().to_owned();
    to_the_canarys_file: |_, canary, _| canary.file();
    to_the_canary_through_proc: |_, canary, _| {
        Path::new("/proc/self/root").join(canary.path().strip_prefix("/").unwrap_or(canary.path()))
    };
    to_the_daemons_directory: |_, _, _| Path::new("/proc/self/cwd").to_owned();
}
