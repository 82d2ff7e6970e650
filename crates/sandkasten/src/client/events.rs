//! Server-sent events, as far as this daemon sends them: `id`, `event`, `data`, comments.

use std::io::BufReader;
use std::net::TcpStream;

use serde_json::Value;

use super::read_chunk;
use crate::failure::{Failure, Result, Tried};

/// One event.
#[derive(Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// The events of one answer.
#[derive(Debug)]
pub(crate) struct Events {
    connection: BufReader<TcpStream>,
    unread: Vec<u8>,
}

impl Events {
    pub(super) fn new(connection: BufReader<TcpStream>) -> Self {
        Self { connection, unread: Vec::new() }
    }

    /// The next event.
    ///
    /// # Errors
    /// Where the stream ends: its last event says so itself, and the caller stops there.
    pub(crate) fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\n\n") {
                let rest = self.unread.split_off(end + 2);
                let block = std::mem::replace(&mut self.unread, rest);
                if let Some(event) = parse(&String::from_utf8_lossy(&block))? {
                    return Ok(event);
                }
                continue;
            }
            let more = read_chunk(&mut self.connection, &mut self.unread);
            if !more.tried(|| "event stream".to_owned())? {
                return Err(Failure::new("event stream: ended without a result"));
            }
        }
    }
}

/// The event of one block; `None` for a comment.
fn parse(block: &str) -> Result<Option<Event>> {
    let mut name = "message".to_owned();
    let mut data = String::new();
    for line in block.lines() {
        match line.split_once(": ").or_else(|| line.split_once(':')) {
            Some(("event", text)) => text.clone_into(&mut name),
            Some(("data", text)) => data.push_str(text),
            _ => {}
        }
    }
    if data.is_empty() {
        return Ok(None);
    }
    let data = serde_json::from_str(&data).tried(|| format!("data of the event `{name}`"))?;
    Ok(Some(Event { name, data }))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn blocks_are_events_or_comments() {
        let event = parse("id: 1\nevent: chunk\ndata: {\"chunk\":\"a: b\"}\n\n").unwrap().unwrap();
        assert_eq!(event.name, "chunk");
        assert_eq!(event.data["chunk"], "a: b");
        assert_eq!(parse(": keepalive\n\n").unwrap(), None);
        assert!(parse("event: chunk\ndata: {\n\n").is_err());
    }
}
