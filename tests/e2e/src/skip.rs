//! Skips that can be seen.
//!
//! A test that needs more than this host has says so with [`requires!`](crate::requires): the skip
//! is printed and counted. With `SANDKASTEN_NO_SKIP=1` it is a failure, unless `tests/skips.toml`
//! names the test and what it lacks; a test that stands there and could run is a failure too.

use crate::host::Need;

const LIST: &str = include_str!("../../skips.toml");

/// Leaves the test, visibly, where the host lacks something.
///
/// `requires!(root, program("node"), cgroup2("memory"))`: each is a function of
/// [`host::need`](crate::host::need).
#[macro_export]
macro_rules! requires {
    ($($need:ident $(($argument:expr))?),+ $(,)?) => {{
        fn here() {}
        let test = $crate::skip::name_of(here);
        let needs = [$($crate::host::need::$need($($argument)?)),+];
        if $crate::skip::lacks(&test, &needs) {
            return;
        }
    }};
}

/// The function that `here` stands in.
pub fn name_of<T>(_here: T) -> String {
    let path = std::any::type_name::<T>();
    let path = path.strip_suffix("::here").unwrap_or(path);
    path.rsplit("::").next().unwrap_or(path).to_owned()
}

/// Whether the test is to be left. Says so on stdout, where the suite's last line is counted from.
///
/// # Panics
/// Where skips are not allowed and the list does not have this one, or has one that is not needed.
#[must_use]
pub fn lacks(test: &str, needs: &[Need]) -> bool {
    let missing = needs.iter().find_map(|need| need.as_ref().err());
    let listed = listed(test);
    if std::env::var_os("SANDKASTEN_NO_SKIP").is_some() {
        match (missing, &listed) {
            (Some(missing), None) => panic!("{test} may not be skipped here: {}", missing.reason),
            (Some(missing), Some(lack)) => assert_eq!(
                &missing.name, lack,
                "{test}: tests/skips.toml says that it lacks another thing ({})",
                missing.reason
            ),
            (None, Some(lack)) => {
                panic!("{test} is in tests/skips.toml for want of {lack}, which is here")
            }
            (None, None) => {}
        }
    }
    if let Some(missing) = missing {
        println!("\nSKIP {test}: {}", missing.reason);
    }
    missing.is_some()
}

/// What the list says that a test lacks.
fn listed(test: &str) -> Option<String> {
    entries(LIST).into_iter().find(|(name, _)| name == test).map(|(_, lack)| lack)
}

/// Name and probe of each entry. The file is a list of `[[skip]]` with three string keys.
fn entries(text: &str) -> Vec<(String, String)> {
    let value = |block: &str, key: &str| {
        let line = block.lines().find_map(|line| line.trim().strip_prefix(key));
        let quoted = line.and_then(|rest| rest.trim_start().strip_prefix('='));
        let text = quoted.map(|rest| rest.trim().trim_matches(['"', '\'']).to_owned());
        text.unwrap_or_else(|| panic!("tests/skips.toml: an entry without `{key}`"))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    let blocks = text.split("[[skip]]").skip(1);
    blocks.map(|block| (value(block, "test"), value(block, "probe"))).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_list_is_read() {
        let text = "# x\n[[skip]]\ntest = \"a\"\nprobe = 'cgroup2(\"memory\")'\nreason = \"r\"\n";
        assert_eq!(entries(text), [("a".to_owned(), "cgroup2(\"memory\")".to_owned())]);
        let _every_entry_is_whole = entries(LIST);
    }

    #[test]
    fn a_test_knows_its_name() {
        fn here() {}
        assert_eq!(name_of(here), "a_test_knows_its_name");
    }
}
