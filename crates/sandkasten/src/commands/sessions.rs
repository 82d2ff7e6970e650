//! Sessions as people name them: by id, by name, or by the beginning of an id.

use sandkasten_types::session::Session;

use crate::client::Client;
use crate::failure::{Failure, Result, Tried};

/// Digits of an id that a table shows.
pub(super) const SHORT_ID: usize = 12;

/// The session that a word means: an id before a name, a name before the beginning of an id.
///
/// # Errors
/// Where it means none, or more than one.
pub(super) fn find(client: &mut Client, word: &str) -> Result<Session> {
    let answer = client.send("GET", &format!("/v1/sessions/{}", segment(word)), None)?;
    if answer.status == 200 {
        return serde_json::from_slice(&answer.body).tried(|| "answer for a session".to_owned());
    }
    if !matches!(answer.status, 400 | 404) {
        return answer.succeeded().and_then(|_| Err(unknown(word)));
    }
    let all: Vec<Session> = client.list("/v1/sessions")?;
    chosen(all, word)
}

fn chosen(all: Vec<Session>, word: &str) -> Result<Session> {
    let is_named = |session: &Session| session.name.as_deref() == Some(word);
    let begins = |session: &Session| !word.is_empty() && session.id.as_str().starts_with(word);
    let named = all.iter().any(is_named);
    let mut found: Vec<Session> =
        all.into_iter().filter(|one| if named { is_named(one) } else { begins(one) }).collect();
    match (found.pop(), found.is_empty()) {
        (Some(session), true) => Ok(session),
        (Some(last), false) => {
            found.push(last);
            Err(ambiguous(&found, word))
        }
        (None, _) => Err(unknown(word)),
    }
}

fn unknown(word: &str) -> Failure {
    Failure::new(format!("no session has the id or name `{word}`, or an id that begins so"))
        .hint("`sandkasten ps` lists the sessions, `sandkasten ps -a` those that have ended too")
}

fn ambiguous(found: &[Session], word: &str) -> Failure {
    let line = |session: &Session| match &session.name {
        Some(name) => format!("\n  {}  {name}", session.id),
        None => format!("\n  {}", session.id),
    };
    let lines: String = found.iter().map(line).collect();
    Failure::new(format!("`{word}` may be any of {} sessions:{lines}", found.len()))
        .hint("give more of the id")
}

/// A word of the command line as one segment of a path.
pub(super) fn segment(word: &str) -> String {
    let mut segment = String::new();
    for byte in word.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            segment.push(char::from(byte));
        } else {
            segment.push_str(&format!("%{byte:02X}"));
        }
    }
    segment
}

#[cfg(test)]
mod test {
    use super::*;

    fn session(id: &str, name: Option<&str>) -> Session {
        let time = "2026-01-01T00:00:00Z";
        serde_json::from_value(serde_json::json!({
            "id": id, "name": name, "image": "base", "status": "running", "cwd": "/",
            "created_at": time, "expires_at": time, "last_activity": time,
            "acquire_source": "cold", "env_keys": [], "labels": {}, "limits": {},
            "network": "none", "shell": "sh", "node": "local",
        }))
        .unwrap()
    }

    #[test]
    fn a_word_means_one_session() {
        let all = || {
            vec![
                session("abc1", Some("x")),
                session("abd2", Some("abc")),
                session("abd3", Some("x")),
            ]
        };
        let id = |word| chosen(all(), word).map(|session| session.id.to_string());
        assert_eq!(id("abc").unwrap(), "abd2");
        assert_eq!(id("abc1").unwrap(), "abc1");
        assert_eq!(id("abd3").unwrap(), "abd3");
        let told = id("abd").unwrap_err().message;
        assert_eq!(told, "`abd` may be any of 2 sessions:\n  abd2  abc\n  abd3  x");
        assert!(id("x").unwrap_err().message.contains("abc1"));
        for word in ["", "z", "abc11"] {
            assert!(id(word).unwrap_err().hint.unwrap().contains("sandkasten ps"), "{word}");
        }
    }

    #[test]
    fn an_id_cannot_leave_its_segment() {
        assert_eq!(segment("../a?b"), "..%2Fa%3Fb");
    }
}
