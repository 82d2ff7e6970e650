//! C31 to C44: output and streams.

use sandkasten_e2e::Session;
use sandkasten_e2e::session::decode;
use serde_json::json;

use crate::{Asks, MANY_BYTES, Place, in_images};

in_images! {
    python: c31_byte_by_byte, c31_byte_by_byte_of_python, c31_many_characters, c31_cut_in_the_middle,
        c32_invalid_utf8, c32_exact_bytes, c36_split, c39_looks_like_events_in_bytes, c32_random_bytes, c36_order_of_stdout_and_stderr, c37_the_last_of_three_million,
        c39_looks_like_events, c39_a_long_line, c39_line_separators, c44_headers;
    busybox: c31_byte_by_byte, c31_many_characters, c31_cut_in_the_middle, c32_invalid_utf8, c32_exact_bytes, c36_split, c39_looks_like_events_in_bytes,
        c32_random_bytes, c36_order_of_stdout_and_stderr, c37_the_last_of_three_million,
        c39_looks_like_events, c39_a_long_line, c39_line_separators, c44_headers;
}

const SIGNS: &str = "é☕日本👩‍🚀";
const BARS: &str = "printf '─%.0s' $(seq 100000); echo";

fn c31_byte_by_byte(at: &Place) {
    let session = at.session();
    let bytes: String = SIGNS.bytes().map(|byte| format!(" '\\{byte:03o}'")).collect();
    let cmd = format!("for b in{bytes}; do printf \"$b\"; sleep 0.02; done");
    assert_eq!(session.plays(&json!({ "cmd": cmd }), 0).text(), SIGNS);
    session.gives(&cmd, 0, SIGNS);
}

fn c31_byte_by_byte_of_python(at: &Place) {
    let session = at.session();
    let cmd = format!(
        "python3 -c \"import sys,time\nfor x in '{SIGNS}'.encode(): \
         sys.stdout.buffer.write(bytes([x])); sys.stdout.flush(); time.sleep(.05)\""
    );
    assert_eq!(session.plays(&json!({ "cmd": cmd }), 0).text(), SIGNS);
    assert_eq!(session.run(&cmd), SIGNS);
}

fn c31_many_characters(at: &Place) {
    let session = at.session();
    let want = "─".repeat(100_000) + "\n";
    assert!(session.run(BARS) == want, "blocking");
    assert!(session.plays(&json!({ "cmd": BARS }), 0).text() == want, "streamed");
}

/// The first and the last half are kept, whole characters, and one line between them that says how
/// much is not there.
fn c31_cut_in_the_middle(at: &Place) {
    let session = at.session();
    for limit in [1000, 1001, 1002, 1003] {
        let done = session.exec_with(&json!({ "cmd": BARS, "max_output_bytes": limit }));
        assert_eq!(done.body["truncated"], true, "{}", done.body);
        assert_eq!(done.body["output_bytes"], 300_001);
        let output = done.output();
        assert!(output.len() <= limit, "{limit}: {} bytes", output.len());
        let (head, rest) = output.split_once("\n[… ").expect("the line between");
        let (count, tail) = rest.split_once(" bytes left out …]\n").expect("the line between");
        assert!(head.chars().all(|sign| sign == '─') && !head.is_empty(), "{head}");
        assert!(tail.trim_end_matches('\n').chars().all(|sign| sign == '─'), "{tail}");
        let left_out: usize = count.parse().expect("a number");
        assert_eq!(left_out, 300_001 - head.len() - tail.len(), "{limit}");
        assert!(head.len().abs_diff(tail.len()) <= 60, "{} and {}", head.len(), tail.len());
    }
}

fn c32_invalid_utf8(at: &Place) {
    let session = at.session();
    session.gives_both("printf 'a\\377\\376b\\n'", 0, "a\u{fffd}\u{fffd}b\n");
    // A character that is cut off is one sign, whatever comes behind it.
    session.gives_both("printf '\\360\\237\\220x\\303\\n'", 0, "\u{fffd}x\u{fffd}\n");
    session.gives_both("printf 'end\\342\\224'", 0, "end\u{fffd}");
    session.alive();
}

fn c32_random_bytes(at: &Place) {
    let session = at.session();
    let cmd = "head -c 100000 /dev/urandom; echo; echo END";
    let done = session.exec(cmd);
    assert_eq!(done.code(), 0, "{}", done.body["exit_code"]);
    assert!(done.output().ends_with("END\n") && done.output().contains('\u{fffd}'), "blocking");
    let played = session.plays(&json!({ "cmd": cmd }), 0);
    assert!(played.text().ends_with("END\n") && played.text().contains('\u{fffd}'), "streamed");
    session.alive();
}

fn c36_order_of_stdout_and_stderr(at: &Place) {
    let session = at.session();
    session.gives_both("echo out; echo err >&2; echo out2; (exit 7)", 7, "out\nerr\nout2\n");
    session.gives_both("echo only >&2", 0, "only\n");
    session.gives_both(
        "for i in 1 2 3; do echo o$i; echo e$i >&2; done",
        0,
        "o1\ne1\no2\ne2\no3\ne3\n",
    );
}

fn c37_the_last_of_three_million(at: &Place) {
    let session = at.session();
    let cmd = "head -c 3000000 /dev/zero | tr '\\0' a; printf END";
    let want = "a".repeat(3_000_000) + "END";
    let request = json!({ "cmd": cmd, "max_output_bytes": MANY_BYTES });
    let done = session.exec_with(&request);
    assert!(done.output() == want, "{} bytes", done.output().len());
    let played = session.plays(&request, 0);
    assert!(played.text() == want, "{} bytes", played.text().len());
    session.gives(&format!("{{ {cmd}; }} | tail -c 10"), 0, "aaaaaaaEND");
}

/// The bytes that were written, whatever they are.
#[track_caller]
fn gives_bytes(session: &Session<'_>, cmd: &str, code: i64) -> Vec<u8> {
    let request = json!({ "cmd": cmd, "encoding": "base64", "max_output_bytes": MANY_BYTES });
    let done = session.exec_with(&request);
    assert_eq!(done.code(), code, "{cmd}: {}", done.body["exit_code"]);
    assert!(done.body["output"].is_null(), "{cmd}: no text beside the bytes");
    decode(&done.body["output_base64"])
}

/// The same, streamed.
#[track_caller]
fn plays_bytes(session: &Session<'_>, cmd: &str, code: i64) -> Vec<u8> {
    let played = session.plays(&json!({ "cmd": cmd, "encoding": "base64" }), code);
    let chunks = played.events[..played.events.len() - 1].iter();
    chunks.flat_map(|event| decode(&event.data["chunk_base64"])).collect()
}

fn c32_exact_bytes(at: &Place) {
    let session = at.session();
    let mut state = 1u32;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(300_000)
    .collect();
    session.write("noise", &noise, "0644");
    assert!(gives_bytes(&session, "cat noise", 0) == noise, "blocking");
    assert!(plays_bytes(&session, "cat noise", 0) == noise, "streamed");
    let cmd = "head -c 100000 /dev/urandom; echo; echo END; (exit 3)";
    for bytes in [gives_bytes(&session, cmd, 3), plays_bytes(&session, cmd, 3)] {
        assert!(bytes.len() == 100_005 && bytes.ends_with(b"\nEND\n"), "{} bytes", bytes.len());
    }
}

fn c36_split(at: &Place) {
    let session = at.session();
    let request = json!({ "cmd": "echo out; echo err >&2; echo out2; (exit 7)", "split": true });
    let done = session.exec_with(&request);
    assert_eq!(done.code(), 7, "{}", done.body);
    assert_eq!(done.body["stdout"], "out\nout2\n", "{}", done.body);
    assert_eq!(done.body["stderr"], "err\n", "{}", done.body);
    let mut lines: Vec<&str> = done.output().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err", "out", "out2"], "{}", done.body);
    let played = session.plays(&request, 7);
    let of = |name: &str| -> String {
        let chunks = played.events.iter().filter(|event| event.data["stream"] == name);
        chunks.filter_map(|event| event.data["chunk"].as_str()).collect()
    };
    assert_eq!((of("stdout").as_str(), of("stderr").as_str()), ("out\nout2\n", "err\n"));
    session.gives("echo next", 0, "next\n");
}

fn c39_looks_like_events_in_bytes(at: &Place) {
    let session = at.session();
    let text = b"data: x\n\nevent: done\ndata: {\"exit_code\":0}\n\n:c\r\n\rid: 5\n  lead  \n";
    session.write("frames", text, "0644");
    assert_eq!(plays_bytes(&session, "cat frames; (exit 3)", 3), text);
    assert_eq!(gives_bytes(&session, "cat frames; (exit 3)", 3), text);
}

/// What a stream shows of a text with CRLF is LF; a lone carriage return it keeps.
fn c39_looks_like_events(at: &Place) {
    let session = at.session();
    let cmd = "printf 'data: x\\n\\nevent: done\\ndata: {\"exit_code\":0}\\n\\n:c\\r\\n\\rid: 5\\n  lead  \\n'; (exit 3)";
    let text = "data: x\n\nevent: done\ndata: {\"exit_code\":0}\n\n:c\n\rid: 5\n  lead  \n";
    assert_eq!(session.plays(&json!({ "cmd": cmd }), 3).text(), text);
    session.gives(cmd, 3, &text.replace('\r', ""));
}

fn c39_a_long_line(at: &Place) {
    let session = at.session();
    let played =
        session.plays(&json!({ "cmd": "head -c 1048576 /dev/zero | tr '\\0' x; echo" }), 0);
    let text = played.text();
    assert!(
        text.len() == 1_048_577 && text.trim_end_matches('\n').bytes().all(|byte| byte == b'x')
    );
}

fn c39_line_separators(at: &Place) {
    let session = at.session();
    let text = "a\u{2028}b\u{2029}c\u{85}d\u{b}e\n";
    session.gives_both(&format!("printf '%s' '{text}'"), 0, text);
}

fn c44_headers(at: &Place) {
    let session = at.session();
    let stream = session.request("POST", "/exec/stream").json(&json!({ "cmd": "echo x" })).stream();
    assert_eq!(stream.head.header("X-Accel-Buffering"), Some("no"));
    assert_eq!(stream.events().finish().text(), "x\n");
}

/// Many results, four sessions side by side.
mod c37_nothing_is_lost_of_short_commands {
    use super::{Asks, Place, in_images, json};

    in_images! {
        python: short_commands;
        busybox: short_commands;
    }

    fn short_commands(at: &Place) {
        let sessions: Vec<_> = (0..4).map(|_| at.session()).collect();
        std::thread::scope(|scope| {
            let many = |number: usize| {
                let session = &sessions[number];
                for i in (number..500).step_by(4) {
                    assert_eq!(session.run(&format!("printf x{i}")), format!("x{i}"));
                }
                for i in (number..200).step_by(4) {
                    let played = session.plays(&json!({ "cmd": format!("printf y{i}") }), 0);
                    assert_eq!(played.text(), format!("y{i}"));
                }
            };
            let all: Vec<_> = (0..4).map(|number| scope.spawn(move || many(number))).collect();
            all.into_iter().for_each(|one| one.join().expect("all of them right"));
        });
    }
}

/// Prescribed pauses.
mod waits {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::Duration;

    use sandkasten_e2e::http::Client;
    use sandkasten_e2e::sse::Played;
    use sandkasten_e2e::wait;

    use super::{Asks, Place, in_images, json};

    in_images! {
        python: c41_quiet_stream, c41_detached, c41_quiet_stream_through_a_proxy, c41_blocking_through_a_proxy,
            c43_client_of_a_stream_goes_away, c43_client_of_a_call_goes_away, c44_arrives_when_written,
            c44_partial_lines_of_python;
        busybox: c41_quiet_stream, c43_client_of_a_stream_goes_away, c43_client_of_a_call_goes_away,
            c44_arrives_when_written, c44_partial_lines;
    }

    /// Between two signs of life: the request, comments, events.
    #[track_caller]
    fn longest_silence(played: &Played) -> Duration {
        let mut times: Vec<Duration> = played.events.iter().map(|event| event.at).collect();
        times.extend(&played.comments);
        times.push(Duration::ZERO);
        times.sort_unstable();
        times.windows(2).map(|two| two[1] - two[0]).max().unwrap_or_default()
    }

    fn c41_quiet_stream(at: &Place) {
        let session = at.session();
        let played = session.plays(&json!({ "cmd": "sleep 25; echo end" }), 0);
        assert_eq!(played.text(), "end\n");
        // A comment every 10 s.
        assert!(longest_silence(&played) < Duration::from_secs(11), "{:?}", played.comments);
    }

    fn c41_quiet_stream_through_a_proxy(at: &Place) {
        let session = at.session();
        let client = behind_a_proxy(&session.lab.client);
        let request = client.request("POST", &session.path("/exec/stream"));
        let body = json!({ "cmd": "sleep 50; echo end", "timeout_ms": 120_000 });
        let played = request.json(&body).stream().events().finish();
        assert_eq!((played.text().as_str(), &played.done()["exit_code"]), ("end\n", &json!(0)));
        assert!(longest_silence(&played) < Duration::from_secs(15), "{:?}", played.comments);
    }

    /// A call that nobody has to wait for: the result stands under its id.
    fn c41_detached(at: &Place) {
        let session = at.session();
        let body = json!({ "cmd": "sleep 1; echo end", "detach": true });
        let answer = session.request("POST", "/exec").json(&body).send();
        assert!(answer.took < crate::AT_ONCE, "{answer}");
        let id = answer.ok(202)["exec_id"].as_str().expect("an id").to_owned();
        let status = || session.request("GET", &format!("/execs/{id}")).send().ok(200);
        wait::until("it has finished", Duration::from_secs(5), || status()["status"] == "finished");
        let status = status();
        assert_eq!(
            (&status["exit_code"], &status["output"]),
            (&json!(0), &json!("end\n")),
            "{status}"
        );
    }

    /// Nobody makes an answer up: the call breaks, and what it ran is cancelled.
    fn c41_blocking_through_a_proxy(at: &Place) {
        let session = at.session();
        let client = behind_a_proxy(&session.lab.client);
        let request = client.request("POST", &session.path("/exec"));
        let body = json!({ "cmd": "sleep 50; touch end", "timeout_ms": 120_000 });
        let answer = request.json(&body).patience(Duration::from_secs(60)).try_send();
        assert!(answer.is_err(), "{answer:?}");
        session.gives("ls", 0, "");
    }

    /// The same daemon through a proxy that closes after 20 s without a byte.
    fn behind_a_proxy(client: &Client) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = listener.local_addr().expect("an address");
        let daemon = client.addr;
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                std::thread::spawn(move || pass(near, daemon));
            }
        });
        Client { addr, ..client.clone() }
    }

    fn pass(near: TcpStream, daemon: SocketAddr) {
        let far = TcpStream::connect(daemon).expect("connect to the daemon");
        far.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        let (mut request, mut to) = (near.try_clone().expect("dup"), far.try_clone().expect("dup"));
        std::thread::spawn(move || std::io::copy(&mut request, &mut to));
        let (mut from, mut answer) = (far, near);
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if answer.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        drop(from.shutdown(std::net::Shutdown::Both));
        drop(answer.shutdown(std::net::Shutdown::Both));
    }

    const COUNT: &str = "for i in $(seq 100); do echo $i >> n; sleep 1; done";

    fn c43_client_of_a_stream_goes_away(at: &Place) {
        let session = at.session();
        let body = json!({ "cmd": COUNT, "exec_id": "gone" });
        let stream = session.request("POST", "/exec/stream").json(&body).stream();
        wait::prescribed(Duration::from_secs(3));
        drop(stream);
        is_cancelled(&session);
    }

    fn c43_client_of_a_call_goes_away(at: &Place) {
        let session = at.session();
        let body = json!({ "cmd": COUNT, "exec_id": "gone" });
        let request = session.request("POST", "/exec").json(&body);
        let answer = request.patience(Duration::from_secs(3)).try_send();
        assert!(answer.is_err(), "{answer:?}");
        is_cancelled(&session);
    }

    #[track_caller]
    fn is_cancelled(session: &sandkasten_e2e::Session<'_>) {
        wait::prescribed(Duration::from_secs(5));
        session.gives("echo free", 0, "free\n");
        let count = || String::from_utf8(session.read("n")).expect("numbers").lines().count();
        let first = count();
        wait::prescribed(Duration::from_secs(4));
        assert_eq!(count(), first, "it goes on");
        let gone = session.request("GET", "/execs/gone").send().ok(200);
        let ended = (&gone["status"], &gone["exit_code"], &gone["exit_reason"]);
        assert_eq!(ended, (&json!("finished"), &json!(130), &json!("cancelled")), "{gone}");
        assert!((3..=5).contains(&first), "{first} lines in 3 s");
    }

    /// Each chunk within half a second of when it was written.
    #[track_caller]
    fn arrive(played: &Played, want: &[&str], first: Duration) {
        let chunks = &played.events[..played.events.len() - 1];
        let texts: Vec<&str> =
            chunks.iter().filter_map(|event| event.data["chunk"].as_str()).collect();
        assert_eq!(texts, want);
        for (number, event) in chunks.iter().enumerate() {
            let written = first + Duration::from_secs(number as u64);
            assert!(event.at < written + Duration::from_millis(500), "{number} at {:?}", event.at);
        }
    }

    fn c44_arrives_when_written(at: &Place) {
        let session = at.session();
        let cmd = "for i in 1 2 3 4; do echo $i; sleep 1; done";
        let played = session.plays(&json!({ "cmd": cmd }), 0);
        arrive(&played, &["1\n", "2\n", "3\n", "4\n"], Duration::ZERO);
    }

    fn c44_partial_lines(at: &Place) {
        let session = at.session();
        let cmd = "for i in 0 1 2; do printf $i; sleep 1; done";
        let played = session.plays(&json!({ "cmd": cmd }), 0);
        arrive(&played, &["0", "1", "2"], Duration::ZERO);
    }

    fn c44_partial_lines_of_python(at: &Place) {
        let session = at.session();
        let cmd = "python3 -u -c \"import time\nfor i in range(3): print(i, end='', flush=True); time.sleep(1)\"";
        let played = session.plays(&json!({ "cmd": cmd }), 0);
        arrive(&played, &["0", "1", "2"], played.events[0].at);
    }
}

/// What takes minutes.
mod minutes {
    use super::{Place, in_images, json};

    in_images! {
        python: c41_blocking_for_330_seconds;
    }

    fn c41_blocking_for_330_seconds(at: &Place) {
        let session = at.session();
        let body = json!({ "cmd": "sleep 330; echo end", "timeout_ms": 400_000 });
        let done = session.exec_with(&body);
        assert_eq!((done.code(), done.output()), (0, "end\n"), "{}", done.body);
    }
}

/// Looks at the daemon that all share.
mod alone {
    use std::sync::Mutex;
    use std::time::Duration;

    use sandkasten_e2e::{Session, host, wait};

    use super::{Place, in_images, json};

    in_images! {
        python: c34_huge_output, c34_huge_output_for_a_slow_reader, c43_two_hundred_leavers_leak_nothing;
        busybox: c34_huge_output;
    }

    const HUGE: &str = "yes | head -c 500000000; echo END >&2; (exit 5)";

    /// Resident bytes of the daemon and of what it has started outside of boxes.
    fn resident(at: &Place, sessions: &[&Session<'_>]) -> u64 {
        let inits = sessions.iter().filter_map(|session| host::init_of(&session.id));
        let pids = std::iter::once(at.lab.pid()).chain(inits);
        pids.map(|pid| {
            let text = host::status(pid, "VmRSS");
            text.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0)
                * 1024
        })
        .sum()
    }

    /// Does something while a neighbour runs commands; neither waits for it, and nothing grows.
    #[track_caller]
    fn beside_a_neighbour(at: &Place, act: impl FnOnce(&Session<'_>)) {
        let (session, neighbour) = (at.session(), at.session());
        session.alive();
        let before = resident(at, &[&session, &neighbour]);
        let seen = Mutex::new((Duration::ZERO, 0));
        let look = || {
            let done = neighbour.exec("echo x");
            assert_eq!((done.code(), done.output()), (0, "x\n"), "{}", done.body);
            let now = resident(at, &[&session, &neighbour]);
            let mut seen = seen.lock().expect("no panic");
            *seen = (seen.0.max(done.took), seen.1.max(now));
            drop(seen);
            wait::prescribed(Duration::from_millis(200));
        };
        wait::meanwhile(look, || act(&session));
        let (slowest, most) = seen.into_inner().expect("no panic");
        assert!(slowest < Duration::from_secs(1), "the neighbour waited {slowest:?}");
        assert!(most.saturating_sub(before) < 100_000_000, "from {before} to {most} bytes");
        session.alive();
    }

    fn c34_huge_output(at: &Place) {
        beside_a_neighbour(at, |session| {
            let done = session.exec_with(&json!({ "cmd": HUGE, "timeout_ms": 60_000 }));
            assert_eq!(done.code(), 5);
            assert_eq!(done.body["truncated"], true);
            assert_eq!(done.body["output_bytes"], 500_000_004);
            let output = done.output();
            assert!(output.len() <= 1024 * 1024, "{} bytes", output.len());
            assert!(output.starts_with("y\ny\n") && output.ends_with("y\nEND\n"));
        });
    }

    fn c34_huge_output_for_a_slow_reader(at: &Place) {
        beside_a_neighbour(at, |session| {
            let request =
                json!({ "cmd": format!("touch begun; {HUGE}; touch over"), "timeout_ms": 60_000 });
            let mut events = session.stream(&request);
            for _ in 0..20 {
                let event = events.next().expect("more of it");
                assert_eq!(event.name, "chunk");
                wait::prescribed(Duration::from_millis(150));
            }
            // It waits for its reader.
            assert_eq!(session.request("GET", "/fs/read?path=over").send().status(), 404);
        });
    }

    fn c43_two_hundred_leavers_leak_nothing(at: &Place) {
        let session = at.session();
        let count = || -> usize {
            let pids = [Some(at.lab.pid()), host::init_of(&session.id)];
            let of = |pid: u32| {
                ["fd", "task"].map(|kind| host::names(format!("/proc/{pid}/{kind}").as_ref()).len())
            };
            pids.into_iter().flatten().flat_map(of).sum()
        };
        let leave = |number: usize| {
            let route = if number.is_multiple_of(2) { "/exec" } else { "/exec/stream" };
            let request = session.request("POST", route).json(&json!({ "cmd": "sleep 60" }));
            assert!(request.patience(Duration::from_millis(50)).try_send().is_err());
        };
        (0..20).for_each(leave);
        session.alive();
        let before = count();
        (0..200).for_each(leave);
        session.alive();
        wait::until("as few descriptors and threads as before", Duration::from_secs(10), || {
            count() <= before + 20
        });
    }
}
