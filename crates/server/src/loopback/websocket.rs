//! WebSockets over the real accept loop: what a client may say, and when it is given up.

use futures_util::{SinkExt, StreamExt};
use sandkasten_types::limits::{DRAIN_MS, WEBSOCKET_MESSAGE_BYTES_MAX, WEBSOCKET_SILENCE_SECONDS};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::{WebSocketStream, tungstenite};

use super::*;
use crate::websocket::{End, Handshake, Message, Said, Socket};

/// Sends back what comes (of what is long its length), and pings.
pub(super) async fn echo(State(fake): State<Fake>, handshake: Handshake) -> Response {
    let guard = TellsWhenDropped(fake.dropped);
    handshake.answer(|mut socket| async move {
        let _guard = guard;
        let end = echo_on(&mut socket).await.unwrap_err();
        socket.close(end).await;
    })
}

async fn echo_on(socket: &mut Socket) -> Result<(), End> {
    let mut heartbeat = socket.receiver.silence().heartbeat();
    loop {
        let message = tokio::select! {
            said = socket.receiver.next() => match said? {
                Said::Text(text) if text == "enough" => return Err(End::Done),
                Said::Text(text) => Message::Text(text.into()),
                Said::Binary(bytes) if bytes.len() > MIB / 16 => Message::text(bytes.len().to_string()),
                Said::Binary(bytes) => Message::Binary(bytes),
            },
            beat = heartbeat.beat() => beat?,
        };
        socket.sender.send(message).await?;
    }
}

/// Sends without end, and what it sends looks like an answer of hyper's own.
pub(super) async fn flood(State(fake): State<Fake>, handshake: Handshake) -> Response {
    let guard = TellsWhenDropped(fake.dropped);
    handshake.answer(|mut socket| async move {
        let _guard = guard;
        let text = Bytes::from("HTTP/1.1 500 x\r\n\r\n".repeat(3640));
        while socket.sender.send(Message::Binary(text.clone())).await.is_ok() {}
    })
}

const KEY_OF_THE_RFC: &str = "dGhlIHNhbXBsZSBub25jZQ==";

fn upgrade() -> String {
    format!(
        "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY_OF_THE_RFC}\r\n"
    )
}

impl Daemon {
    async fn socket(&self, path: &str) -> WebSocketStream<TcpStream> {
        let mut client = self.client().await;
        client.request("GET", path, &upgrade(), b"").await;
        let got = client.answer().await;
        assert_eq!((got.status, got.header("upgrade")), (101, Some("websocket")), "{}", got.head);
        assert_eq!(got.header("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert!(got.header("x-request-id").is_some());
        let config = WebSocketConfig::default().max_frame_size(None);
        let (stream, buffer) = (client.stream, client.buffer);
        WebSocketStream::from_partially_read(stream, buffer, Role::Client, Some(config)).await
    }
}

async fn closed(socket: &mut WebSocketStream<TcpStream>) -> CloseCode {
    loop {
        let message = socket.next().await.expect("a close").expect("a whole one");
        if let Message::Close(frame) = message {
            return frame.expect("a reason").code;
        }
    }
}

#[tokio::test]
async fn messages_come_back_and_both_sides_close() {
    let mut daemon = daemon(Options::default()).await;
    let mut socket = daemon.socket("/echo").await;
    for message in
        [Message::text("hé"), Message::Binary(Bytes::new()), Message::binary(vec![0, 255])]
    {
        socket.send(message.clone()).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), message);
    }
    socket.send(Message::binary(vec![7; WEBSOCKET_MESSAGE_BYTES_MAX])).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("1048576"));
    socket.send(Message::Ping("are you there".into())).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong("are you there".into()));
    socket.send(Message::text("enough")).await.unwrap();
    assert_eq!(closed(&mut socket).await, CloseCode::Normal);
    assert!(socket.next().await.is_none());
    daemon.handler_is_dropped().await;
    // The other way round.
    let mut socket = daemon.socket("/echo").await;
    socket.close(None).await.unwrap();
    assert!(matches!(socket.next().await, Some(Ok(Message::Close(None)))));
    assert!(socket.next().await.is_none());
    daemon.handler_is_dropped().await;
}

#[tokio::test]
async fn what_was_sent_too_early_is_heard_too() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    let head = format!(
        "GET /echo HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n{}\r\n",
        upgrade()
    );
    // A text `hi`, masked with zeros.
    client.send([head.as_bytes(), b"\x81\x82\0\0\0\0hi"].concat()).await;
    assert_eq!(client.answer().await.status, 101);
    let echoed = client.read_until(|bytes| (bytes.len() >= 4).then_some(4)).await;
    assert_eq!(echoed, b"\x81\x02hi");
}

#[tokio::test]
async fn a_socket_goes_through_the_same_door() {
    let open = daemon(Options { key: None, ..Options::default() }).await;
    let with = async |headers: String| {
        let mut client = open.client().await;
        client.send(format!("GET /echo HTTP/1.1\r\n{}{headers}\r\n", upgrade())).await;
        client.answer().await.status
    };
    assert_eq!(with("Host: localhost\r\n".into()).await, 101);
    assert_eq!(with("Host: localhost\r\nOrigin: http://localhost\r\n".into()).await, 101);
    assert_eq!(with("Host: localhost\r\nOrigin: https://evil.example\r\n".into()).await, 403);
    assert_eq!(with("Host: evil.example\r\n".into()).await, 403);
    let shut = daemon(Options::default()).await;
    let mut client = shut.client().await;
    client.send(format!("GET /echo HTTP/1.1\r\nHost: a\r\n{}\r\n", upgrade())).await;
    assert_eq!(client.answer().await.code(), "UNAUTHORIZED");
}

#[tokio::test]
async fn what_is_no_handshake_is_refused_in_the_one_shape() {
    let daemon = daemon(Options::default()).await;
    let plain = daemon.ask("GET", "/echo", "", b"").await;
    assert_eq!((plain.status, plain.code().as_str()), (400, "INVALID_REQUEST"));
    for (from, to) in [
        ("Upgrade: WebSocket\r\n", "Upgrade: h2c\r\n"),
        ("keep-alive, Upgrade", "keep-alive"),
        ("Version: 13", "Version: 8"),
        (KEY_OF_THE_RFC, "c2hvcnQ="),
        (KEY_OF_THE_RFC, "no base64 at all"),
    ] {
        let mut client = daemon.client().await;
        client.request("GET", "/echo", &upgrade().replace(from, to), b"").await;
        let got = client.answer().await;
        assert_eq!((got.status, got.code().as_str()), (400, "INVALID_REQUEST"), "{to}");
        // It is still HTTP.
        client.request("GET", "/healthz", "", b"").await;
        assert_eq!(client.answer().await.status, 200);
    }
    let post = daemon.ask("POST", "/echo", &upgrade(), b"").await;
    assert_eq!(post.code(), "METHOD_NOT_ALLOWED");
}

#[tokio::test]
async fn who_breaks_the_protocol_is_told_and_closed() {
    let mut daemon = daemon(Options::default()).await;
    let over = vec![0; WEBSOCKET_MESSAGE_BYTES_MAX + 1];
    let mut socket = daemon.socket("/echo").await;
    // The daemon need not read all of it.
    drop(timeout(Duration::from_secs(5), socket.send(Message::Binary(over.into()))).await);
    assert_eq!(closed(&mut socket).await, CloseCode::Size);
    daemon.handler_is_dropped().await;

    let mut socket = daemon.socket("/echo").await;
    // A text that is none.
    let raw = b"\x81\x81\0\0\0\0\xff";
    socket.get_mut().write_all(raw).await.unwrap();
    assert_eq!(closed(&mut socket).await, CloseCode::Invalid);
    daemon.handler_is_dropped().await;

    let mut socket = daemon.socket("/echo").await;
    // Not masked.
    socket.get_mut().write_all(b"\x81\x02hi").await.unwrap();
    assert_eq!(closed(&mut socket).await, CloseCode::Protocol);
    daemon.handler_is_dropped().await;
}

#[tokio::test]
async fn a_client_that_is_gone_ends_its_socket() {
    let mut daemon = daemon(Options::default()).await;
    for path in ["/echo", "/flood"] {
        drop(daemon.socket(path).await);
        daemon.handler_is_dropped().await;
    }
    let mut socket = daemon.socket("/echo").await;
    socket.get_mut().shutdown().await.unwrap();
    daemon.handler_is_dropped().await;
}

#[tokio::test]
async fn a_client_that_is_gone_before_its_socket_leaves_nothing() {
    let daemon = daemon(Options::default()).await;
    for turn in 0..100 {
        let mut client = daemon.client().await;
        client.request("GET", "/echo", &upgrade(), b"").await;
        if turn % 2 == 0 {
            tokio::task::yield_now().await;
        }
        rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
    }
    daemon.stop.cancel();
    // No request runs any more.
    timeout(Duration::from_secs(5), daemon.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn what_is_sent_may_look_like_anything() {
    let daemon = daemon(Options::default()).await;
    let mut socket = daemon.socket("/flood").await;
    for _ in 0..300 {
        let message = socket.next().await.unwrap().unwrap().into_data();
        assert!(message.len() == 18 * 3640 && message.ends_with(b"500 x\r\n\r\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_loses_its_socket() {
    let mut daemon = daemon(Options::default()).await;
    let socket = daemon.socket("/flood").await;
    let start = Instant::now();
    daemon.dropped.recv().await.unwrap();
    let seconds = start.elapsed().as_secs();
    assert!((WRITE_STALL_SECONDS..WRITE_STALL_SECONDS + 10).contains(&seconds), "{seconds}");
    drop(socket);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_is_pinged_and_given_up() {
    let mut daemon = daemon(Options::default()).await;
    let mut socket = daemon.socket("/echo").await;
    // One that answers is kept for as long as it does.
    let start = Instant::now();
    while start.elapsed().as_secs() < 3 * WEBSOCKET_SILENCE_SECONDS {
        let ping = socket.next().await.unwrap().unwrap();
        assert!(matches!(ping, tungstenite::Message::Ping(_)), "{ping}");
        socket.flush().await.unwrap();
    }
    let start = Instant::now();
    daemon.dropped.recv().await.unwrap();
    let seconds = start.elapsed().as_secs();
    assert!((100..=WEBSOCKET_SILENCE_SECONDS + 20).contains(&seconds), "{seconds}");
    drop(socket);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_sockets_too() {
    let mut daemon = daemon(Options::default()).await;
    let mut socket = daemon.socket("/echo").await;
    socket.send(Message::text("x")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("x"));
    daemon.stop.cancel();
    let start = Instant::now();
    (&mut daemon.task).await.unwrap().unwrap();
    assert_eq!(start.elapsed().as_secs(), DRAIN_MS / 1000);
}
