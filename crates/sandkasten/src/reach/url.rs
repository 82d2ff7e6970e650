//! The URL of a daemon: `http://HOST[:PORT][/PREFIX]`.
//!
//! Invariant: whatever is taken can be written into a request as it stands: visible ASCII, no query,
//! no user.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// The port where a URL names none, as everywhere with `http`.
const PORT: u16 = 80;

/// Where a daemon is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    /// Name or address, an IPv6 one without its brackets.
    host: String,
    port: u16,
    /// As in the header `Host`.
    authority: String,
    /// What stands before every path: empty, or `/…` without a slash at the end.
    prefix: String,
}

/// Why a text is not taken, and what to write instead.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl Url {
    pub(crate) fn of_address(address: SocketAddr) -> Self {
        Self {
            host: address.ip().to_string(),
            port: address.port(),
            authority: address.to_string(),
            prefix: String::new(),
        }
    }

    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// A path of the API as it is asked for here.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// The addresses that the host stands for, in the order in which to try them.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        // This name needs no resolver, of which a static binary has only a part.
        if self.host.eq_ignore_ascii_case("localhost") {
            let [v4, v6] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return Ok(vec![SocketAddr::new(v4, self.port), SocketAddr::new(v6, self.port)]);
        }
        let found: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if found.is_empty() {
            return Err(io::Error::other(format!("`{}` has no address", self.host)));
        }
        Ok(found)
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

impl FromStr for Url {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let rest = after_scheme(text)?;
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['?', '#', '\\']) {
            return Err(refusal(text, "has characters that no address of a daemon has", EXAMPLE));
        }
        let (authority, prefix) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(refusal(text, "names a user", "the key goes into SANDKASTEN_API_KEY"));
        }
        let (host, port) = host_and_port(authority, text)?;
        Ok(Self {
            host: host.to_owned(),
            port,
            authority: authority.strip_suffix(':').unwrap_or(authority).to_owned(),
            prefix: prefix.trim_end_matches('/').to_owned(),
        })
    }
}

const EXAMPLE: &str = "as in http://127.0.0.1:8080";

fn refusal(text: &str, why: &str, hint: &str) -> Refusal {
    Refusal { message: format!("`{text}` {why}"), hint: hint.to_owned() }
}

fn after_scheme(text: &str) -> Result<&str, Refusal> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Ok(rest),
        "https" => Err(refusal(
            text,
            "is an https address, and this program speaks http alone",
            "reach the daemon behind the proxy: `ssh -L 8080:127.0.0.1:8080 HOST` in another \
             terminal, and http://127.0.0.1:8080 here",
        )),
        "" => {
            Err(refusal(text, "has no scheme", &format!("write http://{}", text.trim_matches('/'))))
        }
        _ => Err(refusal(text, "is no http address", EXAMPLE)),
    }
}

/// An IPv6 address stands in brackets.
fn host_and_port<'a>(authority: &'a str, text: &str) -> Result<(&'a str, u16), Refusal> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest
                .split_once(']')
                .ok_or_else(|| refusal(text, "has no end of its IPv6 address", EXAMPLE_V6))?;
            if host.parse::<Ipv6Addr>().is_err() {
                return Err(refusal(text, "has no IPv6 address in its brackets", EXAMPLE_V6));
            }
            match port.strip_prefix(':') {
                Some(port) => (host, port),
                None if port.is_empty() => (host, ""),
                None => return Err(refusal(text, "has no port behind its address", EXAMPLE_V6)),
            }
        }
        None if authority.matches(':').count() > 1 => {
            return Err(refusal(text, "has an IPv6 address without brackets", EXAMPLE_V6));
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    if host.is_empty() {
        return Err(refusal(text, "names no host", EXAMPLE));
    }
    let port = match port {
        "" => PORT,
        // `+1` would be parsed too.
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().unwrap_or(0),
        _ => 0,
    };
    if port == 0 {
        return Err(refusal(text, "has no port from 1 to 65535", EXAMPLE));
    }
    Ok((host, port))
}

const EXAMPLE_V6: &str = "as in http://[::1]:8080";

#[cfg(test)]
mod test {
    use super::*;

    fn parsed(text: &str) -> Url {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why:?}"))
    }

    #[test]
    fn what_is_taken() {
        for (text, shown, path, addresses) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "/v1/x", "127.0.0.1:8080"),
            ("http://127.0.0.1:8080/", "http://127.0.0.1:8080", "/v1/x", "127.0.0.1:8080"),
            ("HTTP://127.0.0.1", "http://127.0.0.1", "/v1/x", "127.0.0.1:80"),
            ("http://127.0.0.1:", "http://127.0.0.1", "/v1/x", "127.0.0.1:80"),
            ("http://[::1]:81/a/b//", "http://[::1]:81/a/b", "/a/b/v1/x", "[::1]:81"),
            ("http://[::1]", "http://[::1]", "/v1/x", "[::1]:80"),
        ] {
            let url = parsed(text);
            assert_eq!(url.to_string(), shown, "{text}");
            assert_eq!(url.path("/v1/x"), path, "{text}");
            assert_eq!(url.addresses().unwrap(), [addresses.parse().unwrap()], "{text}");
        }
        let local = parsed("http://LocalHost:5").addresses().unwrap();
        assert_eq!(local, ["127.0.0.1:5".parse().unwrap(), "[::1]:5".parse().unwrap()]);
        assert_eq!(parsed("http://a.b:5/p").authority(), "a.b:5");
    }

    #[test]
    fn what_is_refused_and_the_way_out() {
        for (text, message, hint) in [
            ("https://box.example", "is an https address", "ssh -L"),
            ("127.0.0.1:8080", "has no scheme", "write http://127.0.0.1:8080"),
            ("", "has no scheme", "write http://"),
            ("unix:///run/x", "is no http address", "as in"),
            ("http://", "names no host", "as in"),
            ("http://:80", "names no host", "as in"),
            ("http://a:b@c", "names a user", "SANDKASTEN_API_KEY"),
            ("http://a:99999", "has no port", "as in"),
            ("http://a:0", "has no port", "as in"),
            ("http://a:+1", "has no port", "as in"),
            ("http://::1:80", "without brackets", "[::1]"),
            ("http://[::1", "has no end", "[::1]"),
            ("http://[x]:1", "no IPv6 address", "[::1]"),
            ("http://[::1]80", "no port behind", "[::1]"),
            ("http://a b", "has characters", "as in"),
            ("http://a/\r\nX: y", "has characters", "as in"),
            ("http://a/?x", "has characters", "as in"),
        ] {
            let why = text.parse::<Url>().unwrap_err();
            assert!(why.message.contains(message), "{text}: {why:?}");
            assert!(why.hint.contains(hint), "{text}: {why:?}");
        }
    }
}
