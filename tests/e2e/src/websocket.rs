//! A small WebSocket client (RFC 6455) that hides nothing: frames are seen as they come.
//!
//! Invariant: what a server must not send is a panic. Pings are answered; that is all that happens by
//! itself.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::http::Connection;
use crate::openapi::Document;

/// The example of the RFC, and what a server has to answer to it.
pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(crate) const KEY_ANSWER: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A socket. Dropping it closes the connection without a word.
#[derive(Debug)]
pub struct WebSocket {
    connection: Connection,
    document: Option<Arc<Document>>,
}

/// What the daemon says.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    Binary(Vec<u8>),
    Text(Value),
    /// With its code.
    Close(u16),
}

impl WebSocket {
    pub(crate) fn new(connection: Connection, document: Option<Arc<Document>>) -> Self {
        Self { connection, document }
    }

    /// How long the next message may take.
    pub fn set_patience(&mut self, patience: Duration) {
        self.connection.set_patience(patience);
    }

    /// # Panics
    /// Where the connection is broken.
    #[track_caller]
    pub fn binary(&mut self, data: &[u8]) {
        self.frame(BINARY, data).expect("send");
    }

    /// # Panics
    /// Where the connection is broken.
    #[track_caller]
    pub fn text(&mut self, data: &Value) {
        self.frame(TEXT, data.to_string().as_bytes()).expect("send");
    }

    /// A text that need not be JSON.
    ///
    /// # Panics
    /// Where the connection is broken.
    #[track_caller]
    pub fn raw_text(&mut self, text: &str) {
        self.frame(TEXT, text.as_bytes()).expect("send");
    }

    /// # Panics
    /// Where the connection is broken.
    pub fn close(&mut self) {
        self.frame(CLOSE, &1000u16.to_be_bytes()).expect("send");
    }

    /// Sends a frame. Its mask is zero, which is as good as any.
    ///
    /// # Errors
    /// As write(2).
    pub fn frame(&mut self, opcode: u8, data: &[u8]) -> io::Result<()> {
        let mut bytes = vec![0x80 | opcode];
        match data.len() {
            short @ 0..=125 => bytes.push(0x80 | u8::try_from(short).unwrap_or(0)),
            middle @ 126..=0xffff => {
                bytes.push(0x80 | 126);
                bytes.extend_from_slice(&u16::try_from(middle).unwrap_or(0).to_be_bytes());
            }
            long => {
                bytes.push(0x80 | 127);
                bytes.extend_from_slice(&(long as u64).to_be_bytes());
            }
        }
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(data);
        self.connection.write(&bytes)
    }

    /// The next message; `None` once the connection has ended.
    ///
    /// # Panics
    /// Where none comes in time, or one that must not come.
    #[must_use]
    #[track_caller]
    pub fn message(&mut self) -> Option<Message> {
        self.try_next().unwrap_or_else(|error| panic!("socket: {error}"))
    }

    /// As [`WebSocket::message`].
    ///
    /// # Errors
    /// Where none comes in time, or the connection breaks.
    ///
    /// # Panics
    /// Where it is one that must not come.
    pub fn try_next(&mut self) -> io::Result<Option<Message>> {
        loop {
            let Some(head) = self.connection.read_bytes(2)? else { return Ok(None) };
            assert_eq!(head[0] & 0xf0, 0x80, "a whole message without extensions: {head:?}");
            assert_eq!(head[1] & 0x80, 0, "a server masks nothing");
            let length = match head[1] {
                126 => self.number(2)?,
                127 => self.number(8)?,
                short => usize::from(short),
            };
            let data = self.connection.read_bytes(length)?.unwrap_or_default();
            return Ok(Some(match head[0] & 0x0f {
                BINARY => Message::Binary(data),
                TEXT => Message::Text(self.judged(&data)),
                CLOSE => Message::Close(u16::from_be_bytes([data[0], data[1]])),
                PING => {
                    self.frame(PONG, &data)?;
                    continue;
                }
                other => panic!("opcode {other}"),
            }));
        }
    }

    fn number(&mut self, bytes: usize) -> io::Result<usize> {
        let bytes = self.connection.read_bytes(bytes)?.unwrap_or_default();
        Ok(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn judged(&self, text: &[u8]) -> Value {
        let value: Value = serde_json::from_slice(text).expect("a text is JSON");
        if let Some(document) = &self.document {
            document.check_report(&value);
        }
        value
    }
}
