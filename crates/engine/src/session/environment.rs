//! The environment that every command of a session begins with.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use sandkasten_jail::path::Beneath;
use sandkasten_types::SessionId;

use super::spec::Spec;
use crate::config::ShellPreference;

/// What a box without a say in it gets.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The path of the shell in an image: bash where it is preferred and there.
pub(super) fn shell_path(spec: &Spec, layers: &[OwnedFd]) -> &'static str {
    let has_bash = |layer: &OwnedFd| {
        let Ok(layer) = layer.try_clone() else { return false };
        let layer = Beneath::from_fd(layer);
        let exists = |path: &str| {
            layer.open_file_in_root(Path::new(path), OFlags::PATH, Mode::empty()).is_ok()
        };
        exists("bin/bash") || exists("usr/bin/bash")
    };
    let prefers_bash = spec.shell == ShellPreference::Bash;
    if prefers_bash && layers.iter().any(has_bash) { "/bin/bash" } else { "/bin/sh" }
}

/// Ours first, then the image's, then the request's; a later one of a name wins, in its first place.
pub(super) fn of(spec: &Spec, id: &SessionId, shell: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (user, home) = (spec.user.name(), spec.user.home());
    let ours = [
        ("PATH", PATH),
        ("HOME", home),
        ("USER", user),
        ("LOGNAME", user),
        ("SHELL", shell),
        ("PWD", &spec.cwd),
        // The character set alone: sorting and messages stay those of C.
        ("LC_CTYPE", "C.UTF-8"),
        ("TERM", "dumb"),
        // Nobody is there to press a key.
        ("PAGER", "cat"),
        ("GIT_PAGER", "cat"),
        ("MANPAGER", "cat"),
        ("SYSTEMD_PAGER", ""),
        ("DEBIAN_FRONTEND", "noninteractive"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("SANDKASTEN_SESSION_ID", id.as_str()),
    ];
    let ours = ours.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
    let given = spec.image_env.iter().chain(&spec.env).cloned();
    let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (name, value) in ours.chain(given) {
        let (name, value) = (name.into_bytes(), value.into_bytes());
        match all.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => all.push((name, value)),
        }
    }
    all
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn later_variables_win() {
        let mut spec = Spec::for_tests();
        spec.image_env = vec![("PATH".into(), "/image".into()), ("X".into(), "image".into())];
        spec.env = vec![("X".into(), "request".into()), ("TERM".into(), "xterm".into())];
        let id = "abc".parse().unwrap();
        let env = of(&spec, &id, "/bin/sh");
        let get = |name: &str| {
            let found: Vec<_> = env.iter().filter(|(n, _)| n == name.as_bytes()).collect();
            assert_eq!(found.len(), 1, "{name}");
            String::from_utf8(found[0].1.clone()).unwrap()
        };
        assert_eq!(get("PATH"), "/image");
        assert_eq!(get("X"), "request");
        assert_eq!(get("TERM"), "xterm");
        assert_eq!(get("HOME"), "/home/sandbox");
        assert_eq!(get("SANDKASTEN_SESSION_ID"), "abc");
    }
}
