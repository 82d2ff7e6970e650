//! Tests of everything before the engine: the real accept loop, connections, edge and extractors on a
//! loopback socket, with a few handlers of their own behind them.

mod websocket;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRef, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::future::join_all;
use sandkasten_types::exec::ExecRequest;
use sandkasten_types::limits::{
    BODY_BYTES_MAX, DRAIN_MS, HEAD_SECONDS, IDLE_SECONDS, MIB, WRITE_STALL_SECONDS,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::accept;
use crate::app::{Answer, ok};
use crate::auth::{ApiKey, Guard};
use crate::budget::Budget;
use crate::cors::Cors;
use crate::edge::Edge;
use crate::error::ApiError;
use crate::json::Json;
use crate::metrics::{Metrics, Tags};
use crate::routes::with_fallbacks;

const KEY: &str = "sk-test";

#[derive(Clone)]
struct Fake {
    budget: Budget,
    /// Gets a word when a hanging handler is dropped.
    dropped: mpsc::UnboundedSender<()>,
    /// Lets `/wait` go.
    go: Arc<Notify>,
}

impl FromRef<Fake> for Budget {
    fn from_ref(fake: &Fake) -> Self {
        fake.budget.clone()
    }
}

struct TellsWhenDropped(mpsc::UnboundedSender<()>);

impl Drop for TellsWhenDropped {
    fn drop(&mut self) {
        self.0.send(()).ok();
    }
}

async fn hang(State(fake): State<Fake>) -> Response {
    let _guard = TellsWhenDropped(fake.dropped);
    std::future::pending().await
}

async fn wait(State(fake): State<Fake>) -> &'static str {
    fake.go.notified().await;
    "waited"
}

async fn json(body: Json<ExecRequest, BODY_BYTES_MAX>) -> Answer<usize> {
    ok(body.value.cmd.len())
}

async fn events(State(fake): State<Fake>) -> Response {
    let guard = TellsWhenDropped(fake.dropped);
    let stream = futures_util::stream::unfold((0, guard), |(n, guard)| async move {
        match n {
            0..3 => Some((Ok::<_, std::io::Error>(Bytes::from("data: x\n\n")), (n + 1, guard))),
            _ => std::future::pending().await,
        }
    });
    Body::from_stream(stream).into_response()
}

async fn endless(State(fake): State<Fake>) -> Response {
    let guard = TellsWhenDropped(fake.dropped);
    let piece = Bytes::from(vec![b'x'; 64 * 1024]);
    Body::from_stream(futures_util::stream::repeat_with(move || {
        let _held = &guard;
        Ok::<_, std::io::Error>(piece.clone())
    }))
    .into_response()
}

/// Its second piece looks like an answer of hyper's own.
async fn forges() -> Response {
    let pieces = ["x".repeat(100_000), "HTTP/1.1 500 Internal Server Error\r\n\r\n".repeat(9)];
    let length = pieces.iter().map(String::len).sum::<usize>();
    let pieces = pieces.map(|piece| Ok::<_, std::io::Error>(Bytes::from(piece)));
    let body = Body::from_stream(futures_util::stream::iter(pieces));
    ([(hyper::header::CONTENT_LENGTH, length)], body).into_response()
}

async fn panics() -> &'static str {
    panic!("on purpose")
}

async fn fails() -> ApiError {
    ApiError::internal("secret path /var/lib\nnext line")
}

struct Daemon {
    address: SocketAddr,
    dropped: mpsc::UnboundedReceiver<()>,
    go: Arc<Notify>,
    stop: CancellationToken,
    task: JoinHandle<std::io::Result<()>>,
}

struct Options {
    key: Option<ApiKey>,
    budget: usize,
    cors: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { key: ApiKey::new(KEY), budget: 64 * MIB, cors: Vec::new() }
    }
}

async fn daemon(options: Options) -> Daemon {
    let (sender, dropped) = mpsc::unbounded_channel();
    let go = Arc::new(Notify::new());
    let fake = Fake { budget: Budget::new(options.budget), dropped: sender, go: Arc::clone(&go) };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/hang", get(hang).post(hang))
        .route("/wait", get(wait))
        .route("/json", post(json))
        .route("/events", get(events))
        .route("/endless", get(endless))
        .route("/forges", get(forges))
        .route("/echo", get(websocket::echo))
        .route("/flood", get(websocket::flood))
        .route("/panics", get(panics))
        .route("/fails", get(fails))
        .route("/v1/things/{id}", get(|| async { "thing" }).delete(|| async { "gone" }));
    let edge = Edge {
        router: with_fallbacks(router).with_state(fake),
        guard: Guard::new(options.key),
        cors: Cors::new(&options.cors),
        metrics: Arc::new(Metrics::new(Tags::default())),
        draining: CancellationToken::new(),
    };
    let stop = edge.draining.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(accept::run(listener, Arc::new(edge)));
    Daemon { address, dropped, go, stop, task }
}

impl Daemon {
    async fn client(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.unwrap(), buffer: Vec::new() }
    }

    /// One request on a connection of its own.
    async fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Got {
        let mut client = self.client().await;
        client.request(method, path, headers, body).await;
        client.answer().await
    }

    async fn handler_is_dropped(&mut self) {
        timeout(Duration::from_secs(5), self.dropped.recv()).await.unwrap().unwrap();
    }
}

struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Got {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    async fn request(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let length = body.len();
        self.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Length: {length}\r\n{headers}\r\n"
        ))
        .await;
        self.send(body).await;
    }

    /// Reads until `done` finds what it looks for.
    async fn read_until(&mut self, done: impl Fn(&[u8]) -> Option<usize>) -> Vec<u8> {
        loop {
            if let Some(end) = done(&self.buffer) {
                return self.buffer.drain(..end).collect();
            }
            let count = self.stream.read_buf(&mut self.buffer).await.unwrap();
            assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&self.buffer));
        }
    }

    async fn answer(&mut self) -> Got {
        let end = |bytes: &[u8]| bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4);
        let head = String::from_utf8(self.read_until(end).await).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut got = Got { status, head, body: Vec::new() };
        if let Some(length) = got.header("content-length") {
            let length: usize = length.parse().unwrap();
            got.body = self.read_until(|bytes| (bytes.len() >= length).then_some(length)).await;
        }
        got
    }

    /// Reads to the end, which is no reset.
    async fn rest(&mut self) -> Vec<u8> {
        let mut rest = std::mem::take(&mut self.buffer);
        self.stream.read_to_end(&mut rest).await.unwrap();
        rest
    }
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// The code of an error in the one shape, with all that belongs to it.
    fn code(&self) -> String {
        let body: Value = serde_json::from_slice(&self.body).expect(&self.head);
        assert_eq!(body["error"], body["message"]);
        assert!(body["details"].is_object());
        let again = matches!(self.status, 429 | 503);
        assert_eq!(body["retryable"], again);
        assert_eq!(self.header("retry-after").is_some(), again);
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(self.header("x-request-id").is_some(), "{}", self.head);
        body["error_code"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn without_the_key_every_path_is_401_but_the_health_check() {
    let daemon = daemon(Options::default()).await;
    let ask = async |method: &str, path: &str| {
        let mut client = daemon.client().await;
        client.send(format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")).await;
        client.answer().await
    };
    assert_eq!(ask("GET", "/healthz").await.status, 200);
    for (method, path) in [
        ("GET", "/json"),
        ("POST", "/json"),
        ("GET", "/nothing"),
        ("GET", "/healthz/"),
        ("GET", "//healthz"),
        ("GET", "/HEALTHZ"),
        ("GET", "/healthz;x.js"),
        ("GET", "/healthz%2f"),
        ("GET", "/v1/..%2fhealthz"),
        ("GET", "/healthz/../json"),
        ("POST", "/healthz"),
        ("OPTIONS", "/json"),
        ("BREW", "/json"),
        ("CONNECT", "localhost:80"),
    ] {
        let got = ask(method, path).await;
        assert_eq!((got.status, got.code().as_str()), (401, "UNAUTHORIZED"), "{method} {path}");
        assert_eq!(got.header("www-authenticate"), Some("Bearer"));
    }
}

#[tokio::test]
async fn unknown_routes_and_wrong_methods_have_the_error_shape() {
    let daemon = daemon(Options::default()).await;
    for path in ["/", "/v1", "/json/", "/v1/things", "/v1/things/", "/v1/things//x", "//json"] {
        let got = daemon.ask("GET", path, "", b"").await;
        assert_eq!((got.status, got.code().as_str()), (404, "ROUTE_NOT_FOUND"), "{path}");
    }
    let got = daemon.ask("PUT", "/v1/things/a", "", b"").await;
    assert_eq!((got.status, got.code().as_str()), (405, "METHOD_NOT_ALLOWED"));
    let allow = got.header("allow").unwrap();
    assert!(allow.contains("GET") && allow.contains("DELETE"), "{allow}");
}

#[tokio::test]
async fn a_request_id_comes_back_where_it_is_valid() {
    let daemon = daemon(Options::default()).await;
    let got = daemon.ask("GET", "/healthz", "X-Request-Id: job-7\r\n", b"").await;
    assert_eq!(got.header("x-request-id"), Some("job-7"));
    let got = daemon.ask("GET", "/healthz", "X-Request-Id: a b\r\n", b"").await;
    assert_eq!(got.header("x-request-id").unwrap().len(), 32);
}

#[tokio::test]
async fn an_internal_error_shows_its_request_id_and_nothing_else() {
    let daemon = daemon(Options::default()).await;
    for path in ["/fails", "/panics"] {
        let got = daemon.ask("GET", path, "X-Request-Id: find-me\r\n", b"").await;
        assert_eq!((got.status, got.code().as_str()), (500, "INTERNAL_ERROR"));
        let text = String::from_utf8(got.body).unwrap();
        assert!(text.contains("find-me"), "{text}");
        assert!(!text.contains("/var/lib") && !text.contains("on purpose"), "{text}");
    }
}

#[tokio::test]
async fn a_body_that_looks_like_an_error_stays_a_body() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    for _ in 0..2 {
        client.request("GET", "/forges", "", b"").await;
        let got = client.answer().await;
        assert_eq!(got.status, 200);
        assert!(got.body.ends_with(b"HTTP/1.1 500 Internal Server Error\r\n\r\n"));
    }
    client.send("nonsense\r\n\r\n").await;
    assert_eq!(client.answer().await.code(), "INVALID_REQUEST");
}

#[tokio::test]
async fn bodies_are_read_as_json_whatever_their_type() {
    let daemon = daemon(Options::default()).await;
    for headers in ["", "Content-Type: application/json\r\n", "Content-Type: text/plain\r\n"] {
        let got = daemon.ask("POST", "/json", headers, b"{\"cmd\":\"abc\"}").await;
        assert_eq!((got.status, got.body.as_slice()), (200, &b"3"[..]));
    }
    let got = daemon.ask("POST", "/json", "", b"{\"cmd\":\"abc\"").await;
    assert_eq!((got.status, got.code().as_str()), (400, "INVALID_REQUEST"));
    let got = daemon.ask("POST", "/json", "Content-Encoding: gzip\r\n", b"{}").await;
    assert_eq!(got.code(), "INVALID_REQUEST");
    let got = daemon.ask("POST", "/json", "", b"").await;
    assert!(String::from_utf8_lossy(&got.body).contains("`cmd`"));
}

#[tokio::test]
async fn chunked_bodies_are_read_and_end_the_connection() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    let head = format!(
        "POST /json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    client.send(head).await;
    client.send("8\r\n{\"cmd\":\"\r\n").await;
    client.send("5\r\nabc\"}\r\n0\r\n\r\n").await;
    let got = client.answer().await;
    assert_eq!((got.status, got.body.as_slice()), (200, &b"3"[..]));
    assert_eq!(got.header("connection"), Some("close"));
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn a_body_over_the_limit_gets_413_and_the_connection_goes_on() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    client.request("POST", "/json", "", &vec![b' '; BODY_BYTES_MAX]).await;
    assert_eq!(client.answer().await.code(), "INVALID_REQUEST");
    for size in [BODY_BYTES_MAX + 1, 20 * MIB] {
        client.request("POST", "/json", "", &vec![b' '; size]).await;
        let got = client.answer().await;
        assert_eq!((got.status, got.code().as_str()), (413, "TOO_LARGE"));
        let text = String::from_utf8(got.body).unwrap();
        assert!(text.contains(&size.to_string()) && text.contains("2097152"), "{text}");
    }
    client.request("POST", "/json", "", b"{\"cmd\":\"\"}").await;
    assert_eq!(client.answer().await.status, 200);
}

#[tokio::test]
async fn early_errors_of_all_kinds_are_readable_beside_a_large_body() {
    let daemon = daemon(Options::default()).await;
    let body = vec![b'x'; 8 * MIB];
    for (path, status) in [("/nothing", 404), ("/v1/things/a", 405), ("/fails", 405)] {
        let got = daemon.ask("POST", path, "", &body).await;
        assert_eq!(got.status, status);
        let got = daemon.ask("POST", path, "Connection: close\r\n", &body).await;
        assert_eq!(got.status, status);
    }
    let mut client = daemon.client().await;
    let size = body.len();
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {size}\r\n\r\n")).await;
    client.send(&body).await;
    assert_eq!(client.answer().await.status, 401);
}

#[tokio::test]
async fn a_chunked_body_over_the_limit_gets_413() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    let head = format!(
        "POST /json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    client.send(head).await;
    for _ in 0..10 {
        client.send(format!("{MIB:x}\r\n{}\r\n", " ".repeat(MIB))).await;
    }
    client.send("0\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 413);
}

#[tokio::test]
async fn who_does_not_fit_is_told_before_the_body() {
    let daemon = daemon(Options { budget: 1000, ..Options::default() }).await;
    let mut client = daemon.client().await;
    let head = |length: usize| {
        format!(
            "POST /json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    client.send(head(501)).await;
    let got = client.answer().await;
    assert_eq!((got.status, got.code().as_str()), (503, "OVERLOADED"));
    client.send(vec![b' '; 501]).await;
    client.request("POST", "/json", "", b"{\"cmd\":\"\"}").await;
    assert_eq!(client.answer().await.status, 200);
    // A body that has not come yet holds its share.
    let mut other = daemon.client().await;
    other.send(head(400)).await;
    other.send(" ").await;
    let mut turned_away = 0;
    while turned_away == 0 {
        client.request("POST", "/json", "", &[b' '; 200]).await;
        turned_away = usize::from(client.answer().await.status == 503);
    }
    drop(other);
    let mut served = 0;
    while served == 0 {
        client.request("POST", "/json", "", b"{\"cmd\":\"\"}").await;
        served = usize::from(client.answer().await.status == 200);
    }
}

#[tokio::test]
async fn a_client_that_waits_for_100_gets_the_error_instead() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    let head = |length: usize| {
        format!(
            "POST /json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
             Expect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    client.send(head(12)).await;
    assert_eq!(client.answer().await.status, 100);
    client.send("{\"cmd\":\"ab\"}").await;
    assert_eq!(client.answer().await.status, 200);
    client.send(head(BODY_BYTES_MAX + 1)).await;
    assert_eq!(client.answer().await.status, 413);
    assert_eq!(client.rest().await, b"");
}

#[tokio::test]
async fn what_is_no_http_gets_the_error_shape() {
    let daemon = daemon(Options::default()).await;
    for (bytes, status, code) in [
        ("nonsense\r\n\r\n".to_owned(), 400, "INVALID_REQUEST"),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400, "INVALID_REQUEST"),
        ("GET / HTTP/1.1\r\nBad Name: x\r\n\r\n".to_owned(), 400, "INVALID_REQUEST"),
        ("POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n".to_owned(), 400, "INVALID_REQUEST"),
        (
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".to_owned(),
            400,
            "INVALID_REQUEST",
        ),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: x\r\n\r\n".to_owned(), 400, "INVALID_REQUEST"),
        (format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(70_000)), 431, "TOO_LARGE"),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(70_000)), 431, "TOO_LARGE"),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "X: a\r\n".repeat(200)), 431, "TOO_LARGE"),
    ] {
        let mut client = daemon.client().await;
        client.send(&bytes).await;
        let got = client.answer().await;
        assert_eq!((got.status, got.code().as_str()), (status, code), "{bytes:.60}");
        assert_eq!(client.rest().await, b"");
    }
}

#[tokio::test]
async fn two_framings_in_one_request_are_refused() {
    let daemon = daemon(Options::default()).await;
    for lines in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
        "transfer-encoding: chunked\r\nX: y\r\ncontent-length: 0\r\n",
    ] {
        let mut client = daemon.client().await;
        client
            .send(format!(
                "POST /json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n{lines}\
                 \r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n"
            ))
            .await;
        let got = client.answer().await;
        assert_eq!((got.status, got.code().as_str()), (400, "INVALID_REQUEST"), "{lines}");
        assert_eq!(client.rest().await, b"", "one answer only");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    for cmd in ["", "a", "ab"] {
        client.request("POST", "/json", "", format!("{{\"cmd\":\"{cmd}\"}}").as_bytes()).await;
    }
    for length in ["0", "1", "2"] {
        assert_eq!(client.answer().await.body, length.as_bytes());
    }
}

#[tokio::test]
async fn a_client_that_leaves_drops_its_handler() {
    let mut daemon = daemon(Options::default()).await;
    for leave in ["close", "half close", "reset", "pipelined"] {
        let mut client = daemon.client().await;
        client.request("POST", "/hang", "", b"some body").await;
        // The handler runs: nothing else could have read the request.
        match leave {
            "half close" => client.stream.shutdown().await.unwrap(),
            "reset" => {
                rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO))
                    .unwrap();
            }
            "pipelined" => client.request("GET", "/healthz", "", b"").await,
            _ => {}
        }
        if leave == "half close" {
            daemon.handler_is_dropped().await;
        } else {
            drop(client);
            daemon.handler_is_dropped().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_an_event_stream_drops_it() {
    let mut daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    client.request("GET", "/events", "", b"").await;
    client.read_until(|bytes| bytes.ends_with(b"data: x\n\n\r\n").then_some(bytes.len())).await;
    drop(client);
    daemon.handler_is_dropped().await;
}

#[tokio::test]
async fn a_client_of_http_1_0_may_close_early_and_no_other() {
    let mut daemon = daemon(Options::default()).await;
    let head = |path: &str, version: &str| {
        format!(
            "GET {path} HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\
             Authorization: Bearer {KEY}\r\n\r\n"
        )
    };
    let mut client = daemon.client().await;
    client.send(head("/hang", "1.1")).await;
    client.stream.shutdown().await.unwrap();
    daemon.handler_is_dropped().await;
    {
        let mut client = daemon.client().await;
        client.send(head("/wait", "1.0")).await;
        client.stream.shutdown().await.unwrap();
        // The end of the client's side is there before the answer is.
        tokio::task::yield_now().await;
        daemon.go.notify_one();
        let text = String::from_utf8(client.rest().await).unwrap();
        assert!(text.ends_with("waited"), "{text}");

        let mut client = daemon.client().await;
        client.send(head("/hang", "1.0")).await;
        client.stream.shutdown().await.unwrap();
        assert!(timeout(Duration::from_millis(50), daemon.dropped.recv()).await.is_err());
        rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
        drop(client);
        daemon.handler_is_dropped().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_is_given_up() {
    let daemon = daemon(Options::default()).await;
    for (bytes, limit) in [("", IDLE_SECONDS), ("GET / HTTP/1.1\r\nX: ", HEAD_SECONDS)] {
        let mut client = daemon.client().await;
        client.send(bytes).await;
        let start = Instant::now();
        assert_eq!(client.rest().await, b"");
        let seconds = start.elapsed().as_secs();
        assert!((limit..limit + 4).contains(&seconds), "{bytes:?}: {seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_kept_for_75_seconds() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    for _ in 0..3 {
        client.request("GET", "/healthz", "", b"").await;
        assert_eq!(client.answer().await.status, 200);
        tokio::time::sleep(Duration::from_secs(76)).await;
    }
    let start = Instant::now();
    assert_eq!(client.rest().await, b"");
    assert!(start.elapsed().as_secs() < IDLE_SECONDS);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_coming_is_given_up() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    client
        .send(format!(
            "POST /json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\
             Content-Length: 100\r\n\r\n{{"
        ))
        .await;
    let got = client.answer().await;
    assert_eq!((got.status, got.code().as_str()), (400, "INVALID_REQUEST"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_is_given_up() {
    let mut daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    client.request("GET", "/endless", "", b"").await;
    let start = Instant::now();
    daemon.dropped.recv().await.unwrap();
    assert!(start.elapsed().as_secs() >= WRITE_STALL_SECONDS);
}

#[tokio::test]
async fn slow_connections_do_not_hurt_a_healthy_client() {
    let daemon = daemon(Options::default()).await;
    let mut slow = join_all((0..300).map(|_| daemon.client())).await;
    for client in &mut slow {
        client.send("GET / HTTP/1.1\r\nX: ").await;
    }
    let start = std::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(daemon.ask("GET", "/healthz", "", b"").await.status, 200);
    }
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_stop_lets_running_requests_end_and_refuses_new_ones() {
    let daemon = daemon(Options::default()).await;
    let mut running = daemon.client().await;
    running.request("GET", "/wait", "", b"").await;
    let mut idle = daemon.client().await;
    idle.request("GET", "/v1/things/a", "", b"").await;
    assert_eq!(idle.answer().await.status, 200);
    daemon.stop.cancel();
    let got = daemon.ask("GET", "/v1/things/a", "", b"").await;
    assert_eq!((got.status, got.code().as_str()), (503, "DRAINING"));
    idle.request("GET", "/v1/things/a", "", b"").await;
    assert_eq!(idle.answer().await.code(), "DRAINING");
    assert_eq!(daemon.ask("GET", "/healthz", "", b"").await.status, 200);
    daemon.go.notify_one();
    assert_eq!(running.answer().await.body, b"waited");
    timeout(Duration::from_secs(5), daemon.task).await.unwrap().unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_a_second_and_drops_nothing() {
    let mut daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    client.request("GET", "/hang", "", b"").await;
    // The request has arrived when a later one of the same connection's peer is answered.
    assert_eq!(daemon.ask("GET", "/healthz", "", b"").await.status, 200);
    let start = Instant::now();
    daemon.stop.cancel();
    (&mut daemon.task).await.unwrap().unwrap();
    assert_eq!(start.elapsed().as_secs(), DRAIN_MS / 1000);
    assert!(daemon.dropped.try_recv().is_err(), "a dropped handler would cancel its command");
}

#[tokio::test]
async fn web_pages_may_call_only_where_they_are_named() {
    let page = "Origin: https://ok.example\r\nAccess-Control-Request-Method: POST\r\n";
    let off = daemon(Options::default()).await;
    let mut client = off.client().await;
    client.send(format!("OPTIONS /json HTTP/1.1\r\nHost: a\r\n{page}\r\n")).await;
    let got = client.answer().await;
    assert_eq!((got.status, got.header("access-control-allow-origin")), (401, None));

    let cors = vec!["https://ok.example".to_owned()];
    let on = daemon(Options { cors, ..Options::default() }).await;
    let mut client = on.client().await;
    client.send(format!("OPTIONS /json HTTP/1.1\r\nHost: a\r\n{page}\r\n")).await;
    let got = client.answer().await;
    assert_eq!(got.status, 204);
    assert_eq!(got.header("access-control-allow-origin"), Some("https://ok.example"));
    assert!(got.header("access-control-allow-headers").unwrap().contains("Authorization"));
    let got = on.ask("GET", "/healthz", "Origin: https://evil.example\r\n", b"").await;
    assert_eq!((got.status, got.header("access-control-allow-origin")), (200, None));
}

#[tokio::test]
async fn without_a_key_foreign_hosts_and_pages_get_403() {
    let daemon = daemon(Options { key: None, ..Options::default() }).await;
    let mut client = daemon.client().await;
    client.send("GET /v1/things/a HTTP/1.1\r\nHost: localhost:1\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 200);
    client.send("GET /v1/things/a HTTP/1.1\r\nHost: evil.example\r\n\r\n").await;
    assert_eq!(client.answer().await.code(), "FORBIDDEN");
    client.send("GET /v1/things/a HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 403);
}

#[tokio::test]
async fn head_has_the_head_alone() {
    let daemon = daemon(Options::default()).await;
    let mut client = daemon.client().await;
    client.request("HEAD", "/healthz", "Connection: close\r\n", b"").await;
    let text = String::from_utf8(client.rest().await).unwrap();
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\n"), "{text}");
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_log_has_one_line_a_request_and_nothing_of_the_clients() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let guard = tracing::subscriber::set_default(subscriber);
    let daemon = daemon(Options::default()).await;
    let spoofed = "X-Request-Id: a{\"level\":\"error\"}\r\nUser-Agent: SECRET\r\n";
    daemon.ask("POST", "/json?path=SECRET", spoofed, b"{\"cmd\":\"SECRET\"}").await;
    daemon.ask("GET", "/v1/things/SECRET", "X-Request-Id: known\r\n", b"").await;
    daemon.ask("GET", "/SECRET%0a%1b[31m", "", b"").await;
    daemon.ask("GET", "/fails", "", b"").await;
    daemon.stop.cancel();
    daemon.task.await.unwrap().unwrap();
    drop(guard);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("SECRET") && !text.contains(KEY), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains("level"), "{text}");
    assert!(text.contains("route=\"/v1/things/{id}\"") && text.contains("known"), "{text}");
    // The chain of the internal error is one more line, escaped.
    assert_eq!(text.lines().count(), 5, "{text}");
    assert!(text.contains("/var/lib\\nnext line"), "{text}");
}
