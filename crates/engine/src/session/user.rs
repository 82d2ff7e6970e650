//! Who runs what: one rule for sessions, commands, programs and files.
//!
//! `sandbox`, `root`, any name of the image's passwd, or a uid of it in digits. What is absent or empty, and
//! the session's own user by any of its names, is the session's user.

use sandkasten_protocol::{RunUser, id};

use super::request::shortened;
use super::spec::BoxUser;
use crate::error::Error;

/// The longest name of a user that is looked up.
const USER_BYTES_MAX: usize = 256;

/// Who a command or a program of a session is asked to be run by. Whether there is such a user the box
/// says.
pub(crate) fn run_user(asked: Option<&str>, own: &BoxUser) -> Result<RunUser, Error> {
    let Some(user) = asked.filter(|user| !user.is_empty()) else { return Ok(RunUser::Session) };
    if own.is(user) {
        return Ok(RunUser::Session);
    }
    if is_root(user) {
        return Ok(RunUser::Root);
    }
    check_name(user)?;
    Ok(RunUser::Named(user.into()))
}

/// The rule for what can be the name of a user.
pub(super) fn check_name(user: &str) -> Result<(), Error> {
    let is_name = user.len() <= USER_BYTES_MAX
        && !user.bytes().any(|byte| byte == b':' || byte.is_ascii_control());
    if is_name { Ok(()) } else { Err(unknown_user(user)) }
}

pub(super) fn is_root(user: &str) -> bool {
    user == "root" || user.parse() == Ok(id::ROOT)
}

/// For a user that the image does not have.
pub(crate) fn unknown_user(name: &str) -> Error {
    let name = shortened(name);
    Error::InvalidRequest(format!("`user` is `{name}`, which is no user of the image's passwd"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_sessions_own_user_may_be_named() {
        for own in ["", "sandbox", "1000"] {
            assert_eq!(run_user(Some(own), &BoxUser::Sandbox).unwrap(), RunUser::Session);
        }
        assert_eq!(run_user(None, &BoxUser::Root).unwrap(), RunUser::Session);
        assert_eq!(run_user(Some("root"), &BoxUser::Root).unwrap(), RunUser::Session);
        assert_eq!(run_user(Some("0"), &BoxUser::Sandbox).unwrap(), RunUser::Root);
        let named = RunUser::Named(b"www-data".to_vec());
        assert_eq!(run_user(Some("www-data"), &BoxUser::Sandbox).unwrap(), named);
        let sandbox = RunUser::Named(b"sandbox".to_vec());
        assert_eq!(run_user(Some("sandbox"), &BoxUser::Root).unwrap(), sandbox);
        for bad in ["a:b", "a\nb", &"x".repeat(300)] {
            assert!(run_user(Some(bad), &BoxUser::Sandbox).is_err(), "{bad}");
        }
    }
}
