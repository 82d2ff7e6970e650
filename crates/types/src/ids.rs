//! Ids. Each is a newtype with one parser; a value of the type is valid by construction.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Why a text is not an id. The text is lower-case and has no final dot, as all error messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidId {
    noun: &'static str,
    text: String,
    rule: &'static str,
}

impl InvalidId {
    fn new(noun: &'static str, text: &str, rule: &'static str) -> Self {
        // A hostile id must not fill an error message.
        let text = text.chars().take(80).collect();
        Self { noun, text, rule }
    }

    /// The same, said of the field that has the text.
    #[must_use]
    pub fn of_field(&self, name: &str) -> String {
        format!("`{name}` is `{}`; it must be {}", self.text.escape_default(), self.rule)
    }
}

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid {} `{}`: {}", self.noun, self.text.escape_default(), self.rule)
    }
}

impl std::error::Error for InvalidId {}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $noun:literal, $rule:literal, $pattern:literal, $valid:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Box<str>);

        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                if $valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(InvalidId::new($noun, text, $rule))
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                use utoipa::openapi::schema::{ObjectBuilder, Type};
                let noun = $noun;
                let article = if noun.starts_with(['e', 'i']) { "An" } else { "A" };
                let about = format!("{article} {noun}: {}.", $rule);
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .description(Some(about))
                    .pattern(Some($pattern))
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

id!(
    /// Id of a session: 32 lower-case hex digits, 128 random bits.
    SessionId,
    "session id",
    "1 to 64 of `[a-z0-9-]`",
    "^[a-z0-9-]{1,64}$",
    is_session_id
);
id!(
    /// Id of a workspace, chosen by the client.
    WorkspaceId,
    "workspace id",
    "2 to 64 of `[a-z0-9-]`, no hyphen first or last",
    "^[a-z0-9][a-z0-9-]{0,62}[a-z0-9]$",
    is_workspace_id
);
id!(
    /// Name of an image in the local store.
    ImageName,
    "image name",
    "1 to 128 of `[a-z0-9._-]`, a letter or digit first",
    "^[a-z0-9][a-z0-9._-]{0,127}$",
    is_image_name
);
id!(
    /// Id of an exec, unique in its session; chosen by the client or made by the daemon.
    ExecId,
    "exec id",
    "1 to 64 of `[A-Za-z0-9._-]`",
    "^[A-Za-z0-9._-]{1,64}$",
    is_exec_id
);

id!(
    /// Id of a process of the API, made by the daemon.
    ProcessId,
    "process id",
    "1 to 64 of `[A-Za-z0-9._-]`",
    "^[A-Za-z0-9._-]{1,64}$",
    is_exec_id
);

impl SessionId {
    /// A new id from the kernel's random numbers.
    ///
    /// # Errors
    /// Where the kernel gives no random bytes (getrandom(2)).
    pub fn random() -> Result<Self, getrandom::Error> {
        random_hex().map(|hex| Self(hex.into()))
    }
}

impl ExecId {
    /// A new id from the kernel's random numbers.
    ///
    /// # Errors
    /// Where the kernel gives no random bytes (getrandom(2)).
    pub fn random() -> Result<Self, getrandom::Error> {
        random_hex().map(|hex| Self(hex.into()))
    }
}

impl ProcessId {
    /// A new id from the kernel's random numbers.
    ///
    /// # Errors
    /// Where the kernel gives no random bytes (getrandom(2)).
    pub fn random() -> Result<Self, getrandom::Error> {
        random_hex().map(|hex| Self(hex.into()))
    }
}

impl WorkspaceId {
    /// A new id for a workspace that nobody named.
    ///
    /// # Errors
    /// Where the kernel gives no random bytes (getrandom(2)).
    pub fn random() -> Result<Self, getrandom::Error> {
        random_hex().map(|hex| Self(format!("ws-{hex}").into()))
    }
}

/// 128 random bits as 32 lower-case hex digits.
///
/// # Errors
/// Where the kernel gives no random bytes (getrandom(2)).
pub fn random_hex() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

fn is_session_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(is_slug)
}

fn is_workspace_id(text: &str) -> bool {
    (2..=64).contains(&text.len())
        && text.bytes().all(is_slug)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_image_name(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| is_slug(b) || b == b'.' || b == b'_')
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

fn is_exec_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn is_slug(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn workspace_ids_follow_the_rule() {
        for good in ["ab", "a-b", "0123", &"a".repeat(64)] {
            assert!(good.parse::<WorkspaceId>().is_ok(), "{good}");
        }
        for bad in ["", "a", "-a", "a-", "A1", "a_b", "a/b", "..", "ä1", &"a".repeat(65)] {
            assert!(bad.parse::<WorkspaceId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fault_is_told_of_its_field() {
        let error = "a/b".parse::<ExecId>().unwrap_err();
        let told = "`exec_id` is `a/b`; it must be 1 to 64 of `[A-Za-z0-9._-]`";
        assert_eq!(error.of_field("exec_id"), told);
    }

    #[test]
    fn random_ids_parse_and_differ() {
        let (a, b) = (SessionId::random().unwrap(), SessionId::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.as_str().parse::<SessionId>().unwrap(), a);
    }

    #[test]
    fn image_names_cannot_be_paths() {
        for bad in ["", ".", "..", ".hidden", "a/b", "A", "_x"] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad}");
        }
    }
}
