//! A proxy that passes bytes on as they come and keeps a copy, so that what a foreign client and
//! the daemon said to each other can be judged afterwards.
//!
//! Invariant: neither side can tell that it is there: nothing is parsed, delayed or joined while the
//! client runs.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::http::{Answer, Head};
use crate::openapi::Document;

/// What went over one connection.
#[derive(Debug, Default, Clone)]
struct Exchange {
    requests: Vec<u8>,
    answers: Vec<u8>,
}

/// The proxy.
#[derive(Debug)]
pub struct Recorder {
    pub addr: SocketAddr,
    exchanges: Arc<Mutex<Vec<Arc<Mutex<Exchange>>>>>,
}

impl Recorder {
    /// Listens on a free port; lives as long as the process.
    ///
    /// # Panics
    /// Where no port is to be had.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let exchanges = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&exchanges);
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let exchange = Arc::new(Mutex::new(Exchange::default()));
                all.lock().expect("no panic").push(Arc::clone(&exchange));
                if let Ok(far) = TcpStream::connect(target) {
                    pass_on(&near, &far, exchange).expect("two sockets");
                }
            }
        });
        Self { addr, exchanges }
    }

    /// Judges all that was said, and gives the number of answers.
    ///
    /// # Panics
    /// Where an answer or an event is not as the document has it.
    #[must_use]
    pub fn judge(&self, document: &Document) -> usize {
        let exchanges = self.exchanges.lock().expect("no panic").clone();
        let mut count = 0;
        for exchange in exchanges {
            let exchange = exchange.lock().expect("no panic").clone();
            count += judge(&exchange, document);
        }
        count
    }
}

fn pass_on(near: &TcpStream, far: &TcpStream, exchange: Arc<Mutex<Exchange>>) -> io::Result<()> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (from, to, copy) = (near.try_clone()?, far.try_clone()?, Arc::clone(&exchange));
    thread::spawn(move || pump(from, to, |data| keep(&copy).requests.extend_from_slice(data)));
    let (from, to) = (far.try_clone()?, near.try_clone()?);
    thread::spawn(move || pump(from, to, |data| keep(&exchange).answers.extend_from_slice(data)));
    Ok(())
}

fn keep(exchange: &Mutex<Exchange>) -> std::sync::MutexGuard<'_, Exchange> {
    exchange.lock().expect("no panic")
}

fn pump(mut from: TcpStream, mut to: TcpStream, copy: impl Fn(&[u8])) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                copy(&buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    }
    // An end on one side is an end on the other: the daemon must see a client go.
    drop(to.shutdown(Shutdown::Write));
}

/// Judges the answers of one connection; one that was cut off by the client is left out.
fn judge(exchange: &Exchange, document: &Document) -> usize {
    let (mut requests, mut answers) = (exchange.requests.as_slice(), exchange.answers.as_slice());
    let mut count = 0;
    while let Some((line, rest)) = take_message(requests) {
        let first = line.lines.first().cloned().unwrap_or_default();
        let mut words = first.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default().to_owned();
        let Some((answer, left)) = take_message(answers) else { break };
        judge_one(document, &method, &target, answer);
        (requests, answers) = (rest, left);
        count += 1;
    }
    count
}

fn judge_one(document: &Document, method: &str, target: &str, message: Message) {
    let status = message.lines.first().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.expect("a status");
    let headers = message.lines.iter().skip(1).filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let answer =
        Answer { head: Head { status, headers }, body: message.body, took: Duration::ZERO };
    document.check(method, target, &answer);
    if answer.header("Content-Type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
        for block in answer.text().split_terminator("\n\n").filter(|block| !block.starts_with(':'))
        {
            let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
            let data = field("data: ").expect("an event has data");
            let data = serde_json::from_str(data).expect("data is JSON");
            document.check_event(field("event: ").expect("an event has a name"), &data);
        }
    }
}

/// One HTTP message.
struct Message {
    lines: Vec<String>,
    body: Vec<u8>,
}

/// The first message in `bytes` and what follows it; `None` where it is not whole.
fn take_message(bytes: &[u8]) -> Option<(Message, &[u8])> {
    let end = find(bytes, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let lines: Vec<String> = head.split("\r\n").map(str::to_owned).collect();
    let rest = &bytes[end + 4..];
    if lines.first().is_some_and(|line| line.starts_with("HTTP/1.1 100")) {
        return take_message(rest);
    }
    let header = |name: &str| {
        let mut all = lines.iter().filter_map(|line| line.split_once(": "));
        all.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    if header("transfer-encoding").is_some() {
        let (body, rest) = take_chunks(rest)?;
        return Some((Message { lines, body }, rest));
    }
    let length = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let body = rest.get(..length)?.to_vec();
    Some((Message { lines, body }, &rest[length..]))
}

fn take_chunks(mut bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut body = Vec::new();
    loop {
        let end = find(bytes, b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).ok()?, 16).ok()?;
        let data = bytes.get(end + 2..end + 2 + size)?;
        bytes = bytes.get(end + 2 + size + 2..)?;
        if size == 0 {
            return Some((body, bytes));
        }
        body.extend_from_slice(data);
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn messages_are_taken_one_by_one() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 200 OK\r\n\
            Transfer-Encoding: chunked\r\n\r\n3\r\nxyz\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab";
        let (first, rest) = take_message(bytes).expect("the first");
        let (second, rest) = take_message(rest).expect("the second");
        assert_eq!((first.body, second.body), (b"ab".to_vec(), b"xyz".to_vec()));
        assert!(take_message(rest).is_none(), "a part is no message");
    }
}
