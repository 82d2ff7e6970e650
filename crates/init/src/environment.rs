//! The environment of a program, and where it is looked for. Pure.

use std::collections::BTreeMap;
use std::ffi::CString;

use rustix::io::Errno;

use crate::shell::USUAL_PATH;

/// The variables of `base` (`NAME=value`), with `changes` made to them in order. Each name is there
/// once, where it came first.
///
/// # Errors
/// EINVAL: a name among the changes is empty or holds `=`, or there is a NUL in them.
pub(crate) fn build<'a>(
    base: impl Iterator<Item = &'a [u8]>,
    changes: &'a [(Vec<u8>, Vec<u8>)],
) -> Result<Vec<CString>, Errno> {
    let mut places: BTreeMap<&[u8], usize> = BTreeMap::new();
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut set = |name: &'a [u8], pair: Vec<u8>| match places.get(name) {
        Some(place) => all.get_mut(*place).map_or((), |old| *old = pair),
        None => {
            places.insert(name, all.len());
            all.push(pair);
        }
    };
    for pair in base {
        let name = pair.split(|b| *b == b'=').next().unwrap_or_default();
        set(name, pair.to_vec());
    }
    for (name, value) in changes {
        if name.is_empty() || name.contains(&b'=') {
            return Err(Errno::INVAL);
        }
        set(name, [name.as_slice(), b"=", value].concat());
    }
    all.into_iter().map(|pair| CString::new(pair).map_err(|_nul| Errno::INVAL)).collect()
}

/// Where a program of that name may be, by the `PATH` of its environment.
pub(crate) fn paths(env: &[CString], name: &[u8]) -> Vec<CString> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return CString::new(name).into_iter().collect();
    }
    let path = env.iter().find_map(|pair| pair.as_bytes().strip_prefix(b"PATH="));
    let dirs = path.unwrap_or(USUAL_PATH).split(|b| *b == b':');
    let paths = dirs.map(|dir| {
        let dir = if dir.is_empty() { b"." } else { dir };
        CString::new([dir, b"/", name].concat())
    });
    paths.flatten().collect()
}

#[cfg(test)]
mod test {
    use super::*;

    fn pair(name: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
        (name.into(), value.into())
    }

    fn texts(strings: &[CString]) -> Vec<&str> {
        strings.iter().map(|s| s.to_str().unwrap()).collect()
    }

    #[test]
    fn the_last_value_counts() {
        let base = ["A=1", "B=x=y", "C", "A=2"].map(str::as_bytes);
        let changes = [pair("B", ""), pair("D", "4"), pair("D", "5")];
        let env = build(base.into_iter(), &changes).unwrap();
        assert_eq!(texts(&env), ["A=2", "B=", "C", "D=5"]);
    }

    #[test]
    fn names_that_can_not_be_are_refused() {
        for bad in [pair("", "x"), pair("A=B", "x"), pair("A", "x\0"), pair("A\0", "x")] {
            assert_eq!(build([].into_iter(), &[bad]), Err(Errno::INVAL));
        }
    }

    #[test]
    fn a_name_without_a_slash_is_searched() {
        let env = [c"HOME=/".into(), c"PATH=/a::b/".into()];
        assert_eq!(texts(&paths(&env, b"x")), ["/a/x", "./x", "b//x"]);
        assert_eq!(texts(&paths(&env, b"./x")), ["./x"]);
        assert!(paths(&env, b"").is_empty());
        assert_eq!(paths(&[], b"x").len(), 6);
    }
}
