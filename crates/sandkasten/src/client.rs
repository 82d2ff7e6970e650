//! A small HTTP/1.1 client for one daemon: one connection, kept alive, one call at a time.
//!
//! Nothing is repeated: a call that was sent and not answered may have happened. Which daemon it is
//! that is called, [`crate::reach`] knows.

mod events;
mod feed;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use events::{Event, Events};
pub(crate) use feed::Feeder;

use crate::context::Context;
use crate::failure::{Failure, Result, Tried};
use crate::output;
use crate::reach::Endpoint;

const CONNECT: Duration = Duration::from_secs(5);
/// Three times as long as a daemon is ever silent in a stream.
const SILENCE: Duration = Duration::from_secs(3 * sandkasten_types::limits::SSE_HEARTBEAT_SECONDS);
const LINE_BYTES_MAX: u64 = 64 << 10;
const BODY_BYTES_MAX: u64 = 160 << 20;
/// Read at once of what is handed on.
const PIECE_BYTES: usize = 256 << 10;

/// A connection to a daemon.
#[derive(Debug)]
pub(crate) struct Client {
    endpoint: Arc<Endpoint>,
    connection: BufReader<TcpStream>,
}

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// Where the next page of a list begins.
    cursor: Option<String>,
    endpoint: Arc<Endpoint>,
}

/// Status and headers of an answer, as far as they matter here.
#[derive(Debug)]
struct Head {
    status: u16,
    length: Length,
    cursor: Option<String>,
}

/// Why a stream of events did not begin.
#[derive(Debug)]
pub(crate) enum NoEvents {
    /// The connection broke: whether the call has begun something is not known.
    Lost(Failure),
    /// The daemon refused.
    Refused(Failure),
}

impl From<NoEvents> for Failure {
    fn from(why: NoEvents) -> Self {
        let (NoEvents::Lost(failure) | NoEvents::Refused(failure)) = why;
        failure
    }
}

/// The end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Known(u64),
    Chunked,
    Nothing,
}

impl Client {
    /// Connects to the daemon that the user means.
    ///
    /// # Errors
    /// Where none is found or none answers.
    pub(crate) fn of_daemon(context: &Context) -> Result<Self> {
        Self::connect(Arc::new(Endpoint::find(context)?))
    }

    /// Connects to the daemon of the data directory, whatever `SANDKASTEN_URL` names.
    ///
    /// # Errors
    /// Where none runs there or none answers.
    pub(crate) fn of_data_dir(context: &Context) -> Result<Self> {
        Self::connect(Arc::new(Endpoint::of_data_dir(context)?))
    }

    pub(crate) fn connect(endpoint: Arc<Endpoint>) -> Result<Self> {
        let connection = dial(&endpoint).map_err(|why| endpoint.unreachable(&why))?;
        connection.set_nodelay(true).tried(|| format!("daemon at {}", endpoint.url))?;
        Ok(Self { endpoint, connection: BufReader::new(connection) })
    }

    /// What is tried, for messages.
    fn name(&self) -> String {
        format!("daemon at {}", self.endpoint.url)
    }

    /// A second handle of the connection, to cut it from another thread.
    pub(crate) fn handle(&self) -> Result<TcpStream> {
        self.connection.get_ref().try_clone().tried(|| self.name())
    }

    /// How long an answer may take.
    pub(crate) fn set_patience(&self, patience: Duration) -> Result<()> {
        let set = self.connection.get_ref().set_read_timeout(Some(patience));
        set.tried(|| self.name())
    }

    /// A new connection to the same daemon.
    pub(crate) fn again(&self) -> Result<Self> {
        Self::connect(Arc::clone(&self.endpoint))
    }

    /// The decoded answer of a call that succeeded.
    ///
    /// # Errors
    /// The daemon's message, where it refused.
    pub(crate) fn call<T: DeserializeOwned>(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T> {
        let answer = self.send(method, path, body)?;
        let answer = answer.succeeded()?;
        serde_json::from_slice(&answer.body).tried(|| format!("answer of {method} {path}"))
    }

    /// All entries of a list, page after page.
    ///
    /// # Errors
    /// The daemon's message, where it refused.
    pub(crate) fn list<T: DeserializeOwned>(&mut self, path: &str) -> Result<Vec<T>> {
        let mut all = Vec::new();
        let mut next = path.to_owned();
        loop {
            let answer = self.send("GET", &next, None)?.succeeded()?;
            let page: Vec<T> =
                serde_json::from_slice(&answer.body).tried(|| format!("answer of GET {next}"))?;
            all.extend(page);
            let Some(cursor) = answer.cursor else { return Ok(all) };
            let mark = if path.contains('?') { '&' } else { '?' };
            next = format!("{path}{mark}cursor={cursor}");
        }
    }

    /// Any answer of a call.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer> {
        let head = self.begin(method, path, body)?;
        let body = self.body(head.length).tried(|| format!("answer of {method} {path}"))?;
        Ok(self.answer(head, body))
    }

    fn answer(&self, Head { status, cursor, .. }: Head, body: Vec<u8>) -> Answer {
        Answer { status, body, cursor, endpoint: Arc::clone(&self.endpoint) }
    }

    /// The events of a call that answers with them.
    ///
    /// # Errors
    /// Where the connection breaks, or the daemon refuses before the stream begins.
    pub(crate) fn events(self, path: &str, body: &Value) -> Result<Events, NoEvents> {
        self.events_of("POST", path, Some(body))
    }

    /// The events of something that was begun before.
    ///
    /// # Errors
    /// As [`Client::events`].
    pub(crate) fn replay(self, path: &str) -> Result<Events, NoEvents> {
        self.events_of("GET", path, None)
    }

    fn events_of(
        mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Events, NoEvents> {
        self.set_patience(SILENCE).map_err(NoEvents::Refused)?;
        let head = self.begin(method, path, body).map_err(NoEvents::Lost)?;
        if head.status == 200 && head.length == Length::Chunked {
            return Ok(Events::new(self.connection));
        }
        let body = self.body(head.length).tried(|| format!("answer of {method} {path}"));
        let answer = self.answer(head, body.map_err(NoEvents::Lost)?);
        answer.succeeded().map_err(NoEvents::Refused)?;
        let failure = Failure::new(format!("{method} {path}: the answer is no stream"));
        Err(NoEvents::Refused(failure))
    }

    /// Sends a request and reads the head of its answer.
    fn begin(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Head> {
        let name = self.name();
        let tried = || name;
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = self.request(method, path, "application/json", body.len() as u64) + &body;
        let sent = self.connection.get_mut().write_all(request.as_bytes());
        sent.and_then(|()| self.head()).tried(tried)
    }

    /// The head of a request.
    fn request(&self, method: &str, path: &str, kind: &str, length: u64) -> String {
        let mut request = self.request_line(method, path);
        request.push_str(&format!("Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"));
        request
    }

    /// The head of a request whose body comes in chunks.
    fn request_in_pieces(&self, path: &str) -> String {
        let mut request = self.request_line("POST", path);
        request.push_str(
            "Content-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
        request
    }

    fn request_line(&self, method: &str, path: &str) -> String {
        let Endpoint { url, key, .. } = &*self.endpoint;
        let (path, host) = (url.path(path), url.authority());
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
        if !key.is_empty() {
            request.push_str(&format!("Authorization: Bearer {key}\r\n"));
        }
        request
    }

    /// Sends bytes as they are: `pieces`, which are `length` bytes in all.
    ///
    /// # Errors
    /// Where the connection breaks, and the daemon's message where it refused.
    pub(crate) fn put<'a>(
        &mut self,
        path: &str,
        length: u64,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Result<()> {
        let tried = || format!("PUT {path}");
        let mut request =
            self.request("PUT", path, "application/octet-stream", length).into_bytes();
        let mut pieces = pieces.peekable();
        // A short body goes out with its head.
        if let Some(first) = pieces.next_if(|first| first.len() as u64 == length) {
            request.extend_from_slice(first);
        }
        let socket = self.connection.get_mut();
        socket.write_all(&request).tried(tried)?;
        for piece in pieces {
            socket.write_all(piece).tried(tried)?;
        }
        let head = self.head().tried(tried)?;
        let body = self.body(head.length).tried(tried)?;
        self.answer(head, body).succeeded().map(drop)
    }

    /// Gets bytes as they are, piece by piece, however many.
    ///
    /// # Errors
    /// Where the connection breaks, and the daemon's message where it refused.
    pub(crate) fn get(&mut self, path: &str, mut take: impl FnMut(&[u8])) -> Result<()> {
        let tried = || format!("answer of GET {path}");
        let head = self.begin("GET", path, None)?;
        if head.status != 200 {
            let body = self.body(head.length).tried(tried)?;
            return self.answer(head, body).succeeded().map(drop);
        }
        match head.length {
            Length::Nothing => Ok(()),
            Length::Known(bytes) => pass(&mut self.connection, bytes, &mut take).tried(tried),
            Length::Chunked => {
                while let bytes @ 1.. = chunk_head(&mut self.connection).tried(tried)? {
                    pass(&mut self.connection, bytes, &mut take).tried(tried)?;
                    line(&mut self.connection).tried(tried)?;
                }
                line(&mut self.connection).tried(tried).map(drop)
            }
        }
    }

    fn head(&mut self) -> std::io::Result<Head> {
        let first = line(&mut self.connection)?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status =
            status.filter(|_| first.starts_with("HTTP/1.")).ok_or_else(|| bad("status"))?;
        let mut head = Head { status, length: Length::Nothing, cursor: None };
        loop {
            let header = line(&mut self.connection)?;
            if header.is_empty() {
                return Ok(head);
            }
            let (name, value) = header.split_once(':').ok_or_else(|| bad("header"))?;
            let (name, value) = (name.to_ascii_lowercase(), value.trim());
            if name == "content-length" {
                head.length = Length::Known(value.parse().ok().ok_or_else(|| bad("length"))?);
            } else if name == "transfer-encoding" && value.eq_ignore_ascii_case("chunked") {
                head.length = Length::Chunked;
            } else if name == "x-next-cursor" {
                head.cursor = Some(value.to_owned());
            }
        }
    }

    fn body(&mut self, length: Length) -> std::io::Result<Vec<u8>> {
        let mut body = Vec::new();
        match length {
            Length::Nothing => {}
            Length::Known(bytes) if bytes > BODY_BYTES_MAX => return Err(bad("length")),
            Length::Known(bytes) => {
                let read = (&mut self.connection).take(bytes).read_to_end(&mut body)?;
                if read as u64 != bytes {
                    return Err(cut());
                }
            }
            Length::Chunked => while read_chunk(&mut self.connection, &mut body)? {},
        }
        Ok(body)
    }
}

impl Answer {
    /// Itself, or the daemon's message.
    pub(crate) fn succeeded(self) -> Result<Self> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let Some(message) = body.get("message").and_then(Value::as_str) else {
            return Err(self.endpoint.no_daemon(self.status));
        };
        let failure = Failure::new(output::escaped(message));
        Err(match self.status {
            401 => self.endpoint.refused_key(),
            404 if body.get("error_code").is_some_and(|code| code == "ROUTE_NOT_FOUND") => {
                self.endpoint.no_daemon(404)
            }
            404 if body.get("error_code").is_some_and(|code| code == "IMAGE_NOT_FOUND") => {
                failure.hint("`sandkasten image list` shows the images there are")
            }
            _ => failure,
        })
    }
}

/// Tries the addresses of the daemon's host one after the other; the last one's error counts.
fn dial(endpoint: &Endpoint) -> std::io::Result<TcpStream> {
    let mut last = std::io::Error::other("its host has no address");
    for address in endpoint.url.addresses()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(connection) => return Ok(connection),
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// Hands on so many bytes as they come.
fn pass(
    from: &mut BufReader<TcpStream>,
    mut bytes: u64,
    take: &mut impl FnMut(&[u8]),
) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES.min(usize::try_from(bytes).unwrap_or(PIECE_BYTES))];
    while bytes > 0 {
        let most = buffer.len().min(usize::try_from(bytes).unwrap_or(buffer.len()));
        let read = from.read(buffer.get_mut(..most).unwrap_or_default())?;
        if read == 0 {
            return Err(cut());
        }
        take(buffer.get(..read).unwrap_or_default());
        bytes -= read as u64;
    }
    Ok(())
}

/// The length of the next chunk.
fn chunk_head(from: &mut BufReader<TcpStream>) -> std::io::Result<u64> {
    let head = line(from)?;
    let digits = head.split(';').next().unwrap_or_default().trim();
    u64::from_str_radix(digits, 16).ok().ok_or_else(|| bad("chunk"))
}

/// Appends one chunk of a chunked body. False: that was the end.
fn read_chunk(from: &mut BufReader<TcpStream>, body: &mut Vec<u8>) -> std::io::Result<bool> {
    let bytes = chunk_head(from)?;
    if body.len() as u64 + bytes > BODY_BYTES_MAX {
        return Err(bad("length"));
    }
    let read = from.take(bytes).read_to_end(body)?;
    if read as u64 != bytes {
        return Err(cut());
    }
    let end = line(from)?;
    if end.is_empty() { Ok(bytes > 0) } else { Err(bad("chunk")) }
}

/// One line without its end.
fn line(from: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(cut());
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).ok().ok_or_else(|| bad("text"))
}

fn bad(what: &'static str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, format!("bad {what} in the answer"))
}

fn cut() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the connection was cut")
}

#[cfg(test)]
mod test {
    use std::net::TcpListener;

    use super::*;

    /// A daemon that says `answer` to whatever comes, once, and gives back what came.
    fn daemon(answer: &str) -> (Client, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client =
            Client::connect(Arc::new(Endpoint::of_test(listener.local_addr().unwrap(), "sk-1")))
                .unwrap();
        let (mut connection, _) = listener.accept().unwrap();
        let answer = answer.to_owned();
        let asked = std::thread::spawn(move || {
            let mut asked = vec![0; 4096];
            let length = connection.read(&mut asked).unwrap();
            connection.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&asked[..length]).into_owned()
        });
        (client, asked)
    }

    #[test]
    fn answers_come_whole_in_both_framings() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n{\"ok\":true}",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4;x=y\r\n{\"ok\r\n7\r\n\":true}\r\n0\r\n\r\n",
        ] {
            let (mut client, asked) = daemon(answer);
            let answer: Value = client.call("GET", "/x", None).unwrap();
            assert_eq!(answer, serde_json::json!({"ok": true}));
            let asked = asked.join().unwrap();
            assert!(asked.starts_with("GET /x HTTP/1.1\r\n"), "{asked}");
            assert!(asked.contains("\r\nAuthorization: Bearer sk-1\r\n"), "{asked}");
        }
    }

    #[test]
    fn a_refusal_is_the_daemons_message() {
        let (mut client, asked) = daemon(
            "HTTP/1.1 409 Conflict\r\nContent-Length: 32\r\n\r\n{\"message\":\"it has ended\\u001b\"}",
        );
        let failure = client.call::<Value>("GET", "/x", None).unwrap_err();
        assert_eq!(failure.message, r"it has ended\u{1b}");
        asked.join().unwrap();
        let (mut client, asked) = daemon(
            "HTTP/1.1 401 Unauthorized\r\nContent-Length: 27\r\n\r\n{\"message\":\"wrong API key\"}",
        );
        let failure = client.call::<Value>("GET", "/x", None).unwrap_err();
        assert!(failure.message.contains("refuses the API key"), "{}", failure.message);
        assert!(failure.hint.unwrap().contains("SANDKASTEN_API_KEY"));
        asked.join().unwrap();
    }

    #[test]
    fn a_cut_answer_is_no_answer() {
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"ok\":true}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{}  \r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        ] {
            let (mut client, asked) = daemon(answer);
            assert!(client.call::<Value>("GET", "/x", None).is_err(), "{answer}");
            asked.join().unwrap();
        }
    }

    #[test]
    fn events_come_one_by_one_whatever_the_chunks() {
        let chunks = [
            "id: 1\nevent: chunk\ndata: {\"a",
            "\":1}\n\n: keepalive\n\nevent: done\ndata: ",
            "{}\n\n",
            "",
        ];
        let body = chunks.map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len())).concat();
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let (client, asked) = daemon(&format!("{head}{body}"));
        let mut events = client.events("/x", &serde_json::json!({})).unwrap();
        let first = events.next().unwrap();
        assert_eq!((first.name.as_str(), first.data["a"].as_i64()), ("chunk", Some(1)));
        assert_eq!(events.next().unwrap().name, "done");
        assert!(events.next().is_err());
        asked.join().unwrap();
    }
}
