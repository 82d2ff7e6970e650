//! A small HTTP/1.1 client that hides nothing: raw bytes may be sent, and an answer's chunks and
//! the times they came at can be looked at.
//!
//! Invariant: nothing is retried, repaired or followed. Each request has a connection of its own
//! unless the test asks for one that is kept. Every answer is checked against the daemon's own
//! OpenAPI document if the client has one.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::openapi::Document;
use crate::sse::{Events, Rule};
use crate::websocket::{KEY, KEY_ANSWER, WebSocket};

/// Longer than any answer may take that a test waits for without saying how long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Where requests go, and with which key.
#[derive(Debug, Clone)]
pub struct Client {
    pub addr: SocketAddr,
    pub key: Option<String>,
    pub document: Option<Arc<Document>>,
}

impl Client {
    #[must_use]
    pub fn new(addr: SocketAddr, key: &str) -> Self {
        Self { addr, key: Some(key.to_owned()), document: None }
    }

    /// The same daemon without a key.
    #[must_use]
    pub fn anonymous(&self) -> Self {
        Self { key: None, ..self.clone() }
    }

    /// The same daemon with another key.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self { key: Some(key.to_owned()), ..self.clone() }
    }

    #[must_use]
    pub fn request(&self, method: &str, target: &str) -> Request<'_> {
        let mut request = Request {
            client: self,
            method: method.to_owned(),
            target: target.to_owned(),
            headers: vec![("Host".into(), self.addr.to_string())],
            body: None,
            patience: PATIENCE,
        };
        if let Some(key) = &self.key {
            request.headers.push(("Authorization".into(), format!("Bearer {key}")));
        }
        request
    }

    #[must_use]
    pub fn get(&self, target: &str) -> Answer {
        self.request("GET", target).send()
    }

    #[must_use]
    pub fn delete(&self, target: &str) -> Answer {
        self.request("DELETE", target).send()
    }

    #[must_use]
    pub fn post(&self, target: &str, body: &Value) -> Answer {
        self.request("POST", target).json(body).send()
    }

    /// A connection that takes any bytes.
    ///
    /// # Errors
    /// Where the daemon does not accept.
    pub fn connect(&self) -> io::Result<Connection> {
        Connection::open(self.addr)
    }
}

/// A request that is being put together.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    client: &'a Client,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
    patience: Duration,
}

impl Request<'_> {
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    #[must_use]
    pub fn without_header(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.header("Content-Type", "application/json").body(body.to_string())
    }

    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// How long each read may take.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The bytes that go over the wire.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = &self.body {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        bytes
    }

    /// Sends it on a fresh connection and reads the whole answer.
    ///
    /// # Panics
    /// Where there is no whole answer, or one that the document does not have.
    #[must_use]
    pub fn send(self) -> Answer {
        let what = format!("{} {}", self.method, shorten(&self.target));
        self.try_send().unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// As [`Request::send`].
    ///
    /// # Errors
    /// Where the connection breaks before the answer is whole.
    ///
    /// # Panics
    /// Where the document does not have such an answer.
    pub fn try_send(self) -> io::Result<Answer> {
        let mut connection = Connection::open(self.client.addr)?;
        connection.set_patience(self.patience);
        connection.send(&self)
    }

    /// Sends it and reads the head of the answer alone; the body comes by events.
    ///
    /// # Panics
    /// Where no answer comes.
    #[must_use]
    pub fn stream(self) -> Stream {
        let what = format!("{} {}", self.method, shorten(&self.target));
        let mut connection = Connection::open(self.client.addr).expect("connect");
        connection.set_patience(self.patience);
        let start = Instant::now();
        connection.write(&self.bytes()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let head = connection.read_head().unwrap_or_else(|error| panic!("{what}: {error}"));
        Stream { connection, head, start, document: self.client.document.clone() }
    }
}

impl Request<'_> {
    /// Asks for a WebSocket.
    ///
    /// # Errors
    /// The answer, where it is another.
    ///
    /// # Panics
    /// Where no answer comes, or one that no server of WebSockets gives.
    pub fn upgrade(self) -> Result<WebSocket, Answer> {
        let request = self
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", KEY);
        let document = request.client.document.clone();
        let target = request.target.clone();
        let Stream { connection, head, start, document: of_stream } = request.stream();
        if head.status == 101 {
            assert_eq!(head.header("Sec-WebSocket-Accept"), Some(KEY_ANSWER));
            return Ok(WebSocket::new(connection, document));
        }
        let answer = Stream { connection, head, start, document: of_stream }.answer();
        if let Some(document) = document {
            document.check("GET", &target, &answer);
        }
        Err(answer)
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Connection {
    fn open(addr: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&addr, PATIENCE)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let reader = BufReader::new(socket.try_clone()?);
        Ok(Self { socket, reader })
    }

    /// How long each read may take.
    ///
    /// # Panics
    /// Where the socket refuses the time.
    pub fn set_patience(&mut self, patience: Duration) {
        self.socket.set_read_timeout(Some(patience)).expect("a timeout that is not zero");
    }

    /// Sends a request on this connection and reads the answer.
    ///
    /// # Errors
    /// Where the connection breaks before the answer is whole.
    ///
    /// # Panics
    /// Where the document does not have such an answer.
    pub fn send(&mut self, request: &Request<'_>) -> io::Result<Answer> {
        let start = Instant::now();
        let written = self.write(&request.bytes());
        // An early answer (413, 401) may make the rest of the body unwelcome: the answer counts.
        let answer = self.read_answer(&request.method, start);
        let answer = match (written, answer) {
            (Err(error), Err(_)) => return Err(error),
            (_, answer) => answer?,
        };
        if let Some(document) = &request.client.document {
            document.check(&request.method, &request.target, &answer);
        }
        Ok(answer)
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// As write(2).
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// Closes our side: the daemon sees the end of the stream.
    ///
    /// # Errors
    /// As shutdown(2).
    pub fn finish(&mut self) -> io::Result<()> {
        self.socket.shutdown(std::net::Shutdown::Write)
    }

    /// Reads one whole answer.
    ///
    /// # Errors
    /// Where it is not whole.
    pub fn read_answer(&mut self, method: &str, start: Instant) -> io::Result<Answer> {
        let head = self.read_head()?;
        let mut chunks = Vec::new();
        if method != "HEAD" && !matches!(head.status, 0..200 | 204 | 304) {
            self.read_body(&head, start, &mut chunks)?;
        }
        let body = chunks.iter().flat_map(|chunk| chunk.data.clone()).collect();
        Ok(Answer { head, body, took: start.elapsed() })
    }

    fn read_body(&mut self, head: &Head, start: Instant, into: &mut Vec<Chunk>) -> io::Result<()> {
        if head.is_chunked() {
            while let Some(data) = self.read_chunk()? {
                into.push(Chunk { data, at: start.elapsed() });
            }
            return Ok(());
        }
        let mut data = Vec::new();
        match head.header("Content-Length") {
            Some(length) => {
                data.resize(length.parse().map_err(|_| broken("bad Content-Length"))?, 0);
                self.reader.read_exact(&mut data)?;
            }
            None => drop(self.reader.read_to_end(&mut data)?),
        }
        into.push(Chunk { data, at: start.elapsed() });
        Ok(())
    }

    /// Reads the head of an answer; interim ones (100 Continue) are passed over.
    ///
    /// # Errors
    /// Where there is none.
    pub fn read_head(&mut self) -> io::Result<Head> {
        loop {
            let line = self.read_line()?;
            let mut words = line.split(' ');
            let version = words.next().unwrap_or_default();
            let status = words.next().and_then(|word| word.parse().ok());
            let Some(status) = status.filter(|_| version.starts_with("HTTP/1.")) else {
                return Err(broken(&format!("not a status line: {line:?}")));
            };
            let mut headers = Vec::new();
            loop {
                let line = self.read_line()?;
                if line.is_empty() {
                    break;
                }
                let (name, value) = line.split_once(':').ok_or_else(|| broken("bad header"))?;
                headers.push((name.to_owned(), value.trim().to_owned()));
            }
            if status >= 200 || status == 101 {
                return Ok(Head { status, headers });
            }
        }
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        (&mut self.reader).take(64 * 1024).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed before an answer"));
        }
        let line = line.strip_suffix(b"\r\n").ok_or_else(|| broken("a line without CRLF"))?;
        String::from_utf8(line.to_vec()).map_err(|_| broken("a head that is not UTF-8"))
    }

    /// One chunk of a chunked body, `None` at its end.
    fn read_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.read_line()?;
        let size = line.split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).map_err(|_| broken("bad chunk size"))?;
        let mut data = vec![0; size];
        self.reader.read_exact(&mut data)?;
        if !self.read_line()?.is_empty() {
            return Err(broken("a chunk without its end"));
        }
        Ok((size > 0).then_some(data))
    }

    /// So many bytes, `None` where it ends before the first of them.
    ///
    /// # Errors
    /// Where it ends later.
    pub(crate) fn read_bytes(&mut self, count: usize) -> io::Result<Option<Vec<u8>>> {
        if count > 0 && self.reader.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Whether the daemon has closed the connection; waits for at most the patience of reads.
    ///
    /// # Errors
    /// Where neither an end nor data comes in time.
    pub fn is_closed(&mut self) -> io::Result<bool> {
        match self.reader.fill_buf() {
            Ok(data) => Ok(data.is_empty()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Status and headers of an answer.
#[derive(Debug, Clone)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

impl Head {
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn is_chunked(&self) -> bool {
        self.header("Transfer-Encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"))
    }
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub head: Head,
    pub body: Vec<u8>,
    pub took: Duration,
}

impl Answer {
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.status
    }

    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.header(name)
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// Where it is not.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}): {self}"),
        }
    }

    /// The body of an answer with this status.
    ///
    /// # Panics
    /// Where the status is another.
    #[track_caller]
    pub fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status(), status, "{self}");
        self.json()
    }

    /// The body of an error in the one shape that all errors have.
    ///
    /// # Panics
    /// Where status, code or shape are not as they should be.
    #[track_caller]
    pub fn error(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status(), status, "want {code}: {self}");
        let body = self.json();
        assert_eq!(body["error_code"], code, "{self}");
        let message = body["message"].as_str().unwrap_or_default();
        assert!(!message.is_empty(), "no message: {self}");
        assert_eq!(body["error"], body["message"], "`error` repeats `message`: {self}");
        assert!(body["details"].is_object(), "`details` is an object: {self}");
        assert_eq!(body["retryable"], matches!(status, 429 | 503), "retryable: {self}");
        assert!(self.header("X-Request-Id").is_some(), "no request id: {self}");
        for internal in ["panicked", ".rs:", "/crates/", "/proc/self/fd/", "/var/", "backtrace"] {
            assert!(!self.text().contains(internal), "shows {internal}: {self}");
        }
        body
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HTTP {} in {:?}: {}", self.status(), self.took, shorten(&self.text()))
    }
}

/// One piece of a body, as the daemon framed it.
#[derive(Debug, Clone)]
pub struct Chunk {
    pub data: Vec<u8>,
    /// Since the request was sent.
    pub at: Duration,
}

/// An answer whose body is read piece by piece. Dropping it closes the connection.
#[derive(Debug)]
pub struct Stream {
    connection: Connection,
    pub head: Head,
    start: Instant,
    document: Option<Arc<Document>>,
}

impl Stream {
    /// The next piece of the body, `None` at its end.
    ///
    /// # Panics
    /// Where the body breaks off, or nothing comes in time.
    pub fn next_chunk(&mut self) -> Option<Chunk> {
        let data = self.connection.read_chunk().unwrap_or_else(|error| panic!("stream: {error}"));
        data.map(|data| Chunk { data, at: self.start.elapsed() })
    }

    /// The events of the stream, read as they come.
    ///
    /// # Panics
    /// Where it is not an event stream.
    #[must_use]
    pub fn events(self) -> Events {
        let kind = self.head.header("Content-Type").unwrap_or_default().to_owned();
        if self.head.status != 200 || !kind.starts_with("text/event-stream") {
            let answer = self.answer();
            panic!("not an event stream: {answer}");
        }
        Events::new(self, Rule::Live)
    }

    /// The events of a replay.
    ///
    /// # Panics
    /// Where it is not an event stream.
    #[must_use]
    pub fn replay(self) -> Events {
        let kind = self.head.header("Content-Type").unwrap_or_default().to_owned();
        if self.head.status != 200 || !kind.starts_with("text/event-stream") {
            let answer = self.answer();
            panic!("not an event stream: {answer}");
        }
        Events::new(self, Rule::Replay)
    }

    /// The answer as a whole, for a stream that was refused.
    ///
    /// # Panics
    /// Where it is not whole.
    #[must_use]
    pub fn answer(mut self) -> Answer {
        let mut chunks = Vec::new();
        let read = self.connection.read_body(&self.head, self.start, &mut chunks);
        read.unwrap_or_else(|error| panic!("answer: {error}"));
        let body = chunks.into_iter().flat_map(|chunk| chunk.data).collect();
        Answer { head: self.head, body, took: self.start.elapsed() }
    }

    pub(crate) fn document(&self) -> Option<Arc<Document>> {
        self.document.clone()
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Text for a message: its first and last part where it is long.
#[must_use]
pub fn shorten(text: &str) -> String {
    let count = text.chars().count();
    if count <= 600 {
        return text.to_owned();
    }
    let head: String = text.chars().take(400).collect();
    let tail: String = text.chars().skip(count - 150).collect();
    format!("{head} […{count} characters…] {tail}")
}
