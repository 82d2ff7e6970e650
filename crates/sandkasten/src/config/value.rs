//! Parsers of single values. File and environment go through the same ones: both are text.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::path::{Component, Path, PathBuf};

use sandkasten_types::ImageName;

/// A value as it stands in its source.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Raw {
    Text(String),
    List(Vec<String>),
    /// Entries of a table, counted; only `pool.images` has one.
    Count(usize),
}

/// Why a value is refused; without key and place.
pub(super) type Parsed<T> = Result<T, String>;

impl Raw {
    pub(super) fn text(self) -> Parsed<String> {
        match self {
            Self::Text(text) => Ok(text),
            Self::List(_) | Self::Count(_) => Err("must be one value".into()),
        }
    }

    /// A list; in one text its parts stand between commas.
    pub(super) fn list(self) -> Parsed<Vec<String>> {
        let parts = match self {
            Self::Text(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
            Self::List(parts) => parts,
            Self::Count(_) => return Err("must be a list".into()),
        };
        Ok(parts.into_iter().filter(|part: &String| !part.is_empty()).collect())
    }

    pub(super) fn count(self) -> Parsed<usize> {
        match self {
            Self::Count(count) => Ok(count),
            Self::Text(_) | Self::List(_) => Err("must be a table of image names".into()),
        }
    }
}

/// The words that YAML 1.1 had for a truth value: files of today have them.
pub(super) fn boolean(text: &str) -> Parsed<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("`{}` is not true or false", shown(text))),
    }
}

/// A whole number; `least` and `most` are allowed.
pub(super) fn integer(text: &str, least: u64, most: u64) -> Parsed<u64> {
    let plain = text.replace('_', "");
    let number: u64 = plain
        .strip_suffix(".0")
        .unwrap_or(&plain)
        .parse()
        .ok()
        .ok_or_else(|| format!("`{}` is not a whole number", shown(text)))?;
    if (least..=most).contains(&number) {
        Ok(number)
    } else if number < least {
        Err(format!("{number} is too low; the least is {least}"))
    } else {
        Err(format!("{number} is too high; the most is {most}"))
    }
}

/// Bytes: a whole number, with `KiB`, `MiB` or `GiB` behind it or not.
pub(super) fn bytes(text: &str, most: u64) -> Parsed<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let found = units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)));
    let (digits, size) = found.unwrap_or((text, 1));
    let number = integer(digits.trim(), 1, most)?;
    number
        .checked_mul(size)
        .filter(|bytes| *bytes <= most)
        .ok_or_else(|| format!("`{}` is too high; the most is {most} bytes", shown(text)))
}

/// Cores, in parts of one too.
pub(super) fn cores(text: &str) -> Parsed<f64> {
    let number: f64 =
        text.parse().ok().ok_or_else(|| format!("`{}` is not a number", shown(text)))?;
    if (0.01..=4096.0).contains(&number) {
        Ok(number)
    } else {
        Err(format!("{number} cores; at least 0.01 and at most 4096"))
    }
}

/// `HOST:PORT`, `[V6]:PORT` or `:PORT`. The host may be a name.
pub(super) fn listen(text: &str) -> Parsed<String> {
    let wrong = || format!("`{}` is not `HOST:PORT`", shown(text));
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    port.parse::<u16>().ok().ok_or_else(|| format!("`{}` is not a port", shown(port)))?;
    let bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if bare_v6 || host.contains(char::is_whitespace) {
        return Err(wrong());
    }
    if addresses(text).is_ok_and(|all| !all.is_empty()) {
        Ok(text.to_owned())
    } else {
        Err(format!("host `{}` has no address", shown(host)))
    }
}

/// The addresses that a valid `listen` stands for, in the order in which to try them.
pub(crate) fn addresses(listen: &str) -> io::Result<Vec<SocketAddr>> {
    let port = |port: &str| port.parse::<u16>().map_err(io::Error::other);
    // No host has always meant all addresses, of both families where there are both.
    if let Some(given) = listen.strip_prefix(':') {
        let port = port(given)?;
        return Ok(vec![
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ]);
    }
    // This name needs no resolver, of which a static binary has only a part.
    if let Some(given) = listen.strip_prefix("localhost:") {
        return Ok(vec![(Ipv4Addr::LOCALHOST, port(given)?).into()]);
    }
    Ok(listen.to_socket_addrs()?.collect())
}

/// A path with the user's home in the place of `~`. Other users' homes are not looked up.
pub(super) fn at_home(path: &Path, home: Option<&str>) -> Parsed<PathBuf> {
    let mut parts = path.components();
    let Some(Component::Normal(first)) = parts.next() else { return Ok(path.to_owned()) };
    if first != OsStr::new("~") {
        if first.as_encoded_bytes().starts_with(b"~") {
            let text = shown(&path.to_string_lossy());
            return Err(format!(
                "`{text}` is another user's home, which is not looked up; write the whole path \
                 (a file of this name is `./{text}`)"
            ));
        }
        return Ok(path.to_owned());
    }
    match home {
        Some(home) if Path::new(home).is_absolute() => Ok(Path::new(home).join(parts.as_path())),
        _ => Err("`~` is no place: HOME is not set to a path; write the whole path".into()),
    }
}

pub(super) fn image(text: &str) -> Parsed<String> {
    let name: ImageName =
        text.parse().map_err(|why: sandkasten_types::InvalidId| why.to_string())?;
    Ok(name.as_str().to_owned())
}

/// A key that fits in a header: visible ASCII without spaces.
pub(super) fn api_key(text: &str) -> Parsed<String> {
    if text.len() <= 1024 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        // The value is a secret: it's not repeated.
        Err("must be visible ASCII without spaces, 1024 characters at most".into())
    }
}

/// `scheme://host[:port]`, or `*`.
pub(super) fn origin(text: &str) -> Parsed<String> {
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let good = host.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@,".contains(&b))
    });
    if good || text == "*" {
        Ok(text.to_owned())
    } else {
        Err(format!("`{}` is not an origin, as in `https://app.example.com`", shown(text)))
    }
}

/// One of a few words.
pub(super) fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Parsed<T> {
    let found = words.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<String> = words.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("`{}` is not {}", shown(text), names.join(" or "))
    })
}

/// A word whose feature is not there yet is told apart from one that never was.
pub(super) fn known_later(text: &str, later: &[&str], feature: &str) -> Parsed<()> {
    if later.contains(&text) {
        return Err(format!("`{text}` is not available in this version: {feature}"));
    }
    Ok(())
}

/// A piece of a foreign text that is safe and short in a message.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_default).collect()
}
