//! A-03 by the clock, A-10, A-15 under load, A-16: what loads the host or measures it.

mod stops;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandkasten_e2e::http::Client;
use sandkasten_e2e::session::encode;
use sandkasten_e2e::{Lab, host, wait};
use serde_json::json;

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

/// Whether the first byte of a key is right can't be told from how long its refusal takes.
#[test]
fn a_03_time_says_nothing_about_the_key() {
    const TRIES: usize = 25_000;
    let lab = Lab::start();
    let key = lab.client.key.clone().unwrap_or_default();
    // All of the right length: but for the last byte, or nowhere, as the right one.
    let near = format!("{}!", &key[..key.len() - 1]);
    let far = "!".repeat(key.len());
    let keys = [near.as_str(), far.as_str(), near.as_str(), far.as_str()];
    let mut times = [const { Vec::new() }; 4];
    let mut connection = lab.client.connect().expect("connect");
    let plain = Client { document: None, ..lab.client.clone() };
    for _ in 0..TRIES {
        for (key, times) in keys.iter().zip(&mut times) {
            let client = plain.with_key(key);
            let answer =
                connection.send(&client.request("GET", "/v1/sessions")).expect("an answer");
            assert_eq!(answer.status(), 401);
            times.push(answer.took);
        }
    }
    let [near, far, near_again, far_again] =
        times.map(|mut times| median(&mut times).as_nanos().cast_signed());
    let noise = (near - near_again).abs().max((far - far_again).abs()).max(near / 50);
    let differs = ((near + near_again) / 2 - (far + far_again) / 2).abs();
    assert!(differs <= 2 * noise, "{differs} ns apart, noise {noise} ns, of {near} ns");
}

fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("raise the limit of files");
}

/// The time of one request of a healthy client.
fn time_of_a_request(client: &Client) -> Duration {
    let answer = client.get("/v1/sessions");
    assert_eq!(answer.status(), 200, "{answer}");
    answer.took
}

/// Two thousand connections that send a head byte by byte, or a body, or nothing.
#[test]
fn a_10_slow_clients_hold_nobody_up() {
    raise_file_limit();
    let lab = Lab::start();
    let starts = [
        "",
        "GET / HTTP/1.1\r\nX-Slow: ",
        "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
    ];
    let mut slow: Vec<TcpStream> = Vec::new();
    for number in 0..2000 {
        let mut socket = TcpStream::connect(lab.client.addr).expect("connect");
        std::io::Write::write_all(&mut socket, starts[number % starts.len()].as_bytes())
            .expect("send");
        slow.push(socket);
    }
    let mut times = Vec::new();
    let ask = || times.push(time_of_a_request(&lab.client));
    let closed = wait::meanwhile(ask, || drip(&slow, Duration::from_secs(20)));
    let p99 = p99(&mut times);
    assert!(p99 < Duration::from_millis(250), "a healthy client waits {p99:?}");
    // Heads that are never whole are not waited for; what arrives in drops is no exception.
    assert!(closed * 3 >= slow.len(), "only {closed} of {} were closed", slow.len());
}

/// Sends a byte on each connection every second; how many the daemon has closed in the end.
fn drip(sockets: &[TcpStream], time: Duration) -> usize {
    let end = Instant::now() + time;
    while Instant::now() < end {
        for mut socket in sockets {
            drop(std::io::Write::write(&mut socket, b"x"));
        }
        wait::prescribed(Duration::from_secs(1));
    }
    let closed = |socket: &&TcpStream| {
        socket.set_nonblocking(true).expect("a socket");
        match std::io::Read::read(&mut &**socket, &mut [0; 512]) {
            Ok(_) => true,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    sockets.iter().filter(closed).count()
}

/// More connections than are served: the next one is told so, and the daemon lives.
#[test]
fn a_10_too_many_connections_are_told() {
    raise_file_limit();
    let lab = Lab::start();
    let mut held = Vec::new();
    let mut told = None;
    while held.len() < 6000 && told.is_none() {
        let socket = TcpStream::connect(lab.client.addr).expect("connect");
        held.push(socket);
        if held.len() % 512 == 0 {
            let answer = lab.client.request("GET", "/healthz").try_send();
            told = answer.ok().filter(|answer| answer.status() == 503);
        }
    }
    let told = told.expect("no 503 after 6000 connections");
    told.error(503, "OVERLOADED");
    assert!(told.header("Retry-After").is_some(), "{told}");
    drop(held);
    wait::until("it serves again", Duration::from_secs(5), || {
        lab.client.request("GET", "/healthz").try_send().is_ok_and(|answer| answer.status() == 200)
    });
}

#[test]
fn a_15_health_answers_under_full_load() {
    let lab = Lab::start();
    let sessions: Vec<_> =
        (0..8).map(|_| lab.session(&json!({ "limits": { "cpu": 0.5 } }))).collect();
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        for session in &sessions {
            let (client, path) = (&lab.client, session.path("/exec"));
            let body = json!({ "cmd": "yes | head -c 300000000 > /dev/null; echo over" });
            scope.spawn(move || client.post(&path, &body));
        }
        let client = lab.client.anonymous();
        let ask = || times.push(client.get("/healthz").took);
        wait::meanwhile(ask, || wait::prescribed(Duration::from_secs(5)));
    });
    assert!(p99(&mut times) < Duration::from_millis(100), "healthz: {:?}", p99(&mut times));
}

/// 64 clients send 64 MiB each: what does not fit is refused before it is read.
#[test]
fn a_16_bodies_do_not_fill_the_memory() {
    let lab = Lab::start();
    let session = lab.session(&json!({ "limits": { "memory_mb": 1024 } }));
    let body =
        json!({ "path": "/workspace/x", "content_base64": encode(&vec![0; 47 << 20]) }).to_string();
    let mut most = 0;
    let pid = lab.pid();
    let look = || {
        most = most.max(host::anonymous_bytes(pid));
        std::thread::yield_now();
    };
    let statuses = wait::meanwhile(look, || {
        std::thread::scope(|scope| {
            let send = || {
                let request = lab.client.request("POST", &session.path("/fs/write"));
                request.body(body.as_bytes()).send().status()
            };
            let senders: Vec<_> = (0..64).map(|_| scope.spawn(send)).collect();
            let all = senders.into_iter().map(|sender| sender.join().expect("an answer"));
            all.collect::<Vec<u16>>()
        })
    });
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    assert!(statuses.contains(&200), "{statuses:?}");
    assert!(most < 400 << 20, "the daemon had {} MiB", most >> 20);
}
