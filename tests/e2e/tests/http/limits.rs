//! A-09: what is too much, too deep or two things at once.

use std::time::Instant;

use sandkasten_e2e::Lab;
use sandkasten_e2e::http::{Answer, Client};

fn raw(client: &Client, head: &str, body: &[u8]) -> Answer {
    let key = client.key.clone().unwrap_or_default();
    let head = head.replace("KEY", &format!("Host: x\r\nAuthorization: Bearer {key}"));
    let mut connection = client.connect().expect("connect");
    // The daemon may close before it has read all of a body that it refuses.
    drop(connection.write(head.replace('\n', "\r\n").replace("\r\r", "\r").as_bytes()));
    drop(connection.write(body));
    connection.read_answer("POST", Instant::now()).expect("an answer")
}

#[test]
fn a_09_json_of_more_than_2_mib() {
    let lab = Lab::start();
    let body = vec![b' '; (2 << 20) + 1];
    let answer = lab.client.request("POST", "/v1/sessions").body(body).send();
    let error = answer.error(413, "TOO_LARGE");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("2097152")), "{error}");
}

/// The rest of a body over its limit is read and dropped: the client sees an answer, not a reset.
#[test]
fn a_09_a_body_far_over_its_limit_is_answered() {
    let lab = Lab::start();
    let body = vec![b' '; 80 << 20];
    let answer = lab.client.request("POST", "/v1/sessions").body(body).send();
    answer.error(413, "TOO_LARGE");
}

#[test]
fn a_09_depth_of_10000() {
    let lab = Lab::start();
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let body = format!("{{\"labels\":{}1{}}}", open.repeat(10_000), close.repeat(10_000));
        lab.client.request("POST", "/v1/sessions").body(body).send().error(400, "INVALID_REQUEST");
    }
    assert_eq!(lab.client.get("/healthz").status(), 200);
}

#[test]
fn a_09_numbers_that_are_none() {
    let lab = Lab::start();
    for number in ["NaN", "Infinity", "-Infinity", "1e400", "0x10", "1_000"] {
        let body = format!("{{\"limits\": {{\"cpu\": {number}}}}}");
        lab.client.request("POST", "/v1/sessions").body(body).send().error(400, "INVALID_REQUEST");
    }
}

#[test]
fn a_09_duplicate_fields_are_refused_and_unknown_ones_too() {
    let lab = Lab::start();
    let send = |body: &str| lab.client.request("POST", "/v1/sessions").body(body).send();
    send("{\"image\": \"tiny\", \"image\": \"tiny\"}").error(400, "INVALID_REQUEST");
    send("{\"limits\": {\"pids\": 10, \"pids\": 20}}").error(400, "INVALID_REQUEST");
    let error =
        send("{\"unknown\": {\"x\": [1]}, \"image\": \"tiny\"}").error(400, "INVALID_REQUEST");
    assert_eq!(error["message"], "unknown field `unknown`");
}

#[test]
fn a_09_headers_of_64_kib() {
    let lab = Lab::start();
    let head = format!("GET /v1/sessions HTTP/1.1\nKEY\nX-Long: {}\n\n", "x".repeat(64 << 10));
    assert_eq!(raw(&lab.client, &head, b"").status(), 431);
    let many: String = (0..5000).map(|n| format!("X-{n}: {n}\n")).collect();
    assert_eq!(
        raw(&lab.client, &format!("GET /v1/sessions HTTP/1.1\nKEY\n{many}\n"), b"").status(),
        431
    );
    let long = format!("GET /{} HTTP/1.1\nKEY\n\n", "x".repeat(100_000));
    assert!(matches!(raw(&lab.client, &long, b"").status(), 414 | 431));
}

mod a_09_two_framings_are_refused {
    use super::{Lab, raw};

    macro_rules! framings {
        ($($name:ident: $headers:literal, $body:literal;)+) => {
            $(#[test]
            fn $name() {
                let lab = Lab::start();
                let head = format!("POST /v1/sessions HTTP/1.1\nKEY\n{}\n\n", $headers);
                let answer = raw(&lab.client, &head, $body.as_bytes());
                assert!(matches!(answer.status(), 400 | 501), "{answer}");
                assert_eq!(lab.client.get("/v1/sessions").ok(200), serde_json::json!([]));
            })+
        };
    }

    framings! {
        length_and_chunks: "Content-Length: 4\nTransfer-Encoding: chunked", "2\r\n{}\r\n0\r\n\r\n";
        chunks_and_length: "Transfer-Encoding: chunked\nContent-Length: 4", "2\r\n{}\r\n0\r\n\r\n";
        two_lengths: "Content-Length: 2\nContent-Length: 3", "{}x";
        length_with_a_sign: "Content-Length: +2", "{}";
        length_of_words: "Content-Length: two", "{}";
        negative_length: "Content-Length: -1", "{}";
        unknown_coding: "Transfer-Encoding: xchunked", "{}";
        folded_header: "X-A: b\n Transfer-Encoding: chunked", "{}";
        space_before_the_colon: "Content-Length : 2", "{}";
    }
}
