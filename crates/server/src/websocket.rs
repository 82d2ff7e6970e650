//! WebSockets (RFC 6455): the handshake, and a socket that bounds what its client can make us hold.
//!
//! ```text
//! request ──> Handshake ──answer──> 101 with a Switch ──edge──> connection ──hyper lets go──> Socket
//! ```
//!
//! Invariants: what is held of a client's words is one message of at most 1 MiB; what is held for a client
//! is one message of ours, because the next one is made only when it has left. A client that takes nothing is
//! given up by the connection's own deadline, one that says nothing by [`Silence`].

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Method, StatusCode, Version};
use hyper_util::rt::TokioIo;
use sandkasten_types::limits::{
    WEBSOCKET_MESSAGE_BYTES_MAX, WEBSOCKET_PING_SECONDS, WEBSOCKET_SILENCE_SECONDS,
};
use serde::Serialize;
use sha1::{Digest, Sha1};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::{CapacityError, Error, ProtocolError};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

pub(crate) use tokio_tungstenite::tungstenite::Message;

use crate::error::ApiError;
use crate::exchange::Exchange;
use crate::traffic::Switched;

const READ_BUFFER_BYTES: usize = 16 * 1024;
/// A message of ours and a control frame or two.
const WRITE_BUFFER_BYTES_MAX: usize = 256 * 1024;
/// How long a client may take for its part of the closing handshake.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// A request for a WebSocket.
#[derive(Debug)]
pub(crate) struct Handshake {
    accept: String,
    on_upgrade: OnUpgrade,
}

impl<S: Sync> FromRequestParts<S> for Handshake {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let headers = &parts.headers;
        let asks = parts.version == Version::HTTP_11
            && parts.method == Method::GET
            && has_word(headers, &CONNECTION, "upgrade")
            && has_word(headers, &UPGRADE, "websocket");
        let on_upgrade = parts.extensions.get::<OnUpgrade>().filter(|_| asks);
        let Some(on_upgrade) = on_upgrade else {
            return Err(ApiError::invalid("this is a WebSocket; send `Upgrade: websocket`"));
        };
        if only(headers, &SEC_WEBSOCKET_VERSION) != Some(b"13") {
            return Err(ApiError::invalid("`Sec-WebSocket-Version` must be 13"));
        }
        match only(headers, &SEC_WEBSOCKET_KEY) {
            Some(key) if STANDARD.decode(key).is_ok_and(|nonce| nonce.len() == 16) => {
                Ok(Self { accept: accept_of(key), on_upgrade: on_upgrade.clone() })
            }
            _ => Err(ApiError::invalid("`Sec-WebSocket-Key` must be 16 bytes in base64")),
        }
    }
}

/// Shows the client that its key was read by a WebSocket server (RFC 6455, 4.2.2).
fn accept_of(key: &[u8]) -> String {
    let mut hash = Sha1::new_with_prefix(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finalize())
}

/// Whether a word is in a header that lists some.
fn has_word(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    headers.get_all(name).iter().any(|value| {
        let mut words = value.to_str().unwrap_or_default().split(',');
        words.any(|one| one.trim().eq_ignore_ascii_case(word))
    })
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::as_bytes);
    first.filter(|_| values.next().is_none())
}

impl Handshake {
    /// The answer after which the connection is a socket, which is `run`'s.
    pub(crate) fn answer<F, R>(self, run: F) -> Response
    where
        F: FnOnce(Socket) -> R + Send + 'static,
        R: Future<Output = ()> + Send,
    {
        let Self { accept, on_upgrade } = self;
        let switched = async move {
            match on_upgrade.await {
                Ok(io) => run(Socket::new(io).await).await,
                Err(error) => tracing::debug!(%error, "no WebSocket after all"),
            }
        };
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        // Base64 is always a header's value.
        headers.extend(HeaderValue::from_str(&accept).ok().map(|v| (SEC_WEBSOCKET_ACCEPT, v)));
        response.extensions_mut().insert(Switch::new(Switched::new(switched)));
        response
    }
}

/// Rides on a 101 to the edge: what the connection becomes.
#[derive(Debug, Clone)]
pub(crate) struct Switch(Arc<Mutex<Option<Switched>>>);

impl Switch {
    fn new(switched: Switched) -> Self {
        Self(Arc::new(Mutex::new(Some(switched))))
    }

    /// The same, with the exchange that ends when it does.
    pub(crate) fn with(self, exchange: Exchange) -> Switched {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Switched::new(async move {
            if let Some(switched) = taken {
                switched.run().await;
            }
            exchange.completed();
        })
    }
}

/// A WebSocket of a client.
pub(crate) struct Socket {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

type Stream = WebSocketStream<TokioIo<Upgraded>>;

/// Towards the client. Each message has left when `send` returns.
pub(crate) struct Sender(SplitSink<Stream, Message>);

/// From the client.
pub(crate) struct Receiver {
    stream: SplitStream<Stream>,
    heard: Arc<Mutex<Instant>>,
}

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Binary(Bytes),
    Text(String),
}

/// Why a socket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All is said.
    Done,
    /// The client closed it, or is not there any more.
    Left,
    /// The daemon stops.
    Draining,
    /// The client breaks the protocol.
    Protocol,
    /// A text that is no UTF-8.
    NotUtf8,
    /// A message over the limit.
    TooLarge,
    /// A fault of ours.
    Fault,
}

impl Socket {
    async fn new(io: Upgraded) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0)
            .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
            .max_message_size(Some(WEBSOCKET_MESSAGE_BYTES_MAX))
            .max_frame_size(Some(WEBSOCKET_MESSAGE_BYTES_MAX));
        let io = TokioIo::new(io);
        let stream = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
        let (sink, stream) = stream.split();
        let heard = Arc::new(Mutex::new(Instant::now()));
        Self { sender: Sender(sink), receiver: Receiver { stream, heard } }
    }

    /// Says why it ends, and waits for the client's word a little.
    pub(crate) async fn close(mut self, end: End) {
        let (code, reason) = match end {
            End::Left => return,
            End::Done => (CloseCode::Normal, ""),
            End::Draining => (CloseCode::Away, "the daemon is stopping"),
            End::Protocol => (CloseCode::Protocol, "not the protocol"),
            End::NotUtf8 => (CloseCode::Invalid, "a text must be UTF-8"),
            End::TooLarge => (CloseCode::Size, "a message is 1 MiB at most"),
            End::Fault => (CloseCode::Error, "internal error"),
        };
        let handshake = async {
            let frame = CloseFrame { code, reason: reason.into() };
            if self.sender.send(Message::Close(Some(frame))).await.is_ok() {
                while self.receiver.stream.next().await.is_some_and(|said| said.is_ok()) {}
            }
        };
        // Out of time is as good as closed.
        drop(timeout(CLOSE_WAIT, handshake).await);
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

impl Sender {
    /// Sends one of at most 64 KiB or so.
    ///
    /// # Errors
    /// [`End::Left`] where the client is gone.
    pub(crate) async fn send(&mut self, message: Message) -> Result<(), End> {
        self.0.send(message).await.map_err(|error| end_of(&error))
    }
}

impl Receiver {
    /// The next message. Pings are answered on the way. May be dropped and called again.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn next(&mut self) -> Result<Said, End> {
        loop {
            let said =
                self.stream.next().await.ok_or(End::Left)?.map_err(|error| end_of(&error))?;
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            match said {
                Message::Binary(bytes) => return Ok(Said::Binary(bytes)),
                Message::Text(text) => return Ok(Said::Text(text.as_str().to_owned())),
                Message::Close(_) => {
                    // The next poll sends the reply.
                    drop(self.stream.next().await);
                    return Err(End::Left);
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    /// A watch over how long the client says nothing.
    pub(crate) fn silence(&self) -> Silence {
        Silence(Arc::clone(&self.heard))
    }
}

fn end_of(error: &Error) -> End {
    if let Error::Capacity(CapacityError::MessageTooLong { .. }) = error {
        return End::TooLarge;
    }
    if let Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)
    | Error::ConnectionClosed
    | Error::AlreadyClosed
    | Error::Io(_) = error
    {
        return End::Left;
    }
    match error {
        Error::Utf8(_) => End::NotUtf8,
        Error::WriteBufferFull(_) => End::Fault,
        // The rest of these is what a client may break.
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Io(_)
        | Error::Tls(_)
        | Error::Capacity(_)
        | Error::Protocol(_)
        | Error::AttackAttempt
        | Error::Url(_) => End::Protocol,
    }
}

/// When the client was heard last.
#[derive(Debug, Clone)]
pub(crate) struct Silence(Arc<Mutex<Instant>>);

impl Silence {
    /// A clock for pings; see [`Heartbeat::beat`].
    pub(crate) fn heartbeat(self) -> Heartbeat {
        let mut ticks = interval(Duration::from_secs(WEBSOCKET_PING_SECONDS));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        Heartbeat { ticks, silence: self }
    }

    fn is_too_long(&self) -> bool {
        let heard = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.elapsed() >= Duration::from_secs(WEBSOCKET_SILENCE_SECONDS)
    }
}

/// Says when a ping is due.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    ticks: tokio::time::Interval,
    silence: Silence,
}

impl Heartbeat {
    /// The next ping. May be dropped and called again.
    ///
    /// # Errors
    /// [`End::Left`] where none of those before was answered for too long.
    pub(crate) async fn beat(&mut self) -> Result<Message, End> {
        self.ticks.tick().await;
        if self.silence.is_too_long() { Err(End::Left) } else { Ok(Message::Ping(Bytes::new())) }
    }
}

/// A text message of JSON.
pub(crate) fn text(datum: &impl Serialize) -> Message {
    match serde_json::to_string(datum) {
        Ok(json) => Message::Text(json.into()),
        Err(error) => {
            // Our own types always serialise.
            tracing::error!(%error, "message not serialised");
            Message::Text("{}".into())
        }
    }
}
