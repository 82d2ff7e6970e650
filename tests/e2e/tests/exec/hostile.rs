//! an init that lies, stalls or floods. The daemon attaches to a false one in its place.
//!
//! Whatever it does: the session that it is in pays, in time; the daemon neither panics nor grows, and
//! no other session notices.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use sandkasten_e2e::http::Answer;
use sandkasten_e2e::{Lab, host, wait};
use sandkasten_protocol::{
    Begun, Decoder, End, FROM_INIT_BYTES_MAX, FileFault, FromInit, Hello, How, Known, Part, Record,
    Shell, Stream, TO_INIT_BYTES_MAX, Then, ToInit, VERSION, encode,
};
use serde_json::json;

use crate::{MIB, timed};

/// Bytes that the daemon may grow by.
const GROWTH: u64 = 16 * MIB as u64;
/// The time of the command, the longest grace that a silent init has, and some.
const DEADLINE: Duration = Duration::from_secs(15);

/// The false init's end of the connection.
struct Fake {
    stream: UnixStream,
    decoder: Decoder<ToInit>,
    nonce: [u8; 16],
}

impl Fake {
    fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().expect("the daemon connects");
        let decoder = Decoder::new(TO_INIT_BYTES_MAX);
        let mut fake = Self { stream, decoder, nonce: [0; 16] };
        match fake.next() {
            Some(ToInit::Attach { nonce, .. }) => fake.nonce = nonce,
            other => panic!("not attached: {other:?}"),
        }
        fake
    }

    /// The next frame; `None` where the daemon has closed.
    fn next(&mut self) -> Option<ToInit> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.decoder.next_frame().expect("frames of the daemon") {
                return Some(frame);
            }
            match self.stream.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(length) => self.decoder.push(&buffer[..length]),
            }
        }
    }

    /// The command that comes next; `None` where the daemon has closed.
    fn begin(&mut self) -> Option<u64> {
        loop {
            if let ToInit::Begin { run, .. } = self.next()? {
                return Some(run.id);
            }
        }
    }

    /// Whether the daemon still takes it.
    fn raw(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    fn send(&mut self, frame: &FromInit) -> bool {
        let bytes = encode(frame, FROM_INIT_BYTES_MAX).expect("a frame");
        self.raw(&bytes)
    }

    /// Until the daemon has closed.
    fn stay(&mut self) {
        while self.next().is_some() {}
    }

    fn hello(&self, runs: u32) -> FromInit {
        FromInit::Hello(Hello {
            version: VERSION,
            nonce: self.nonce,
            shell: Some(Shell::Sh),
            cwd: b"/workspace".to_vec(),
            cwd_fault: None,
            runs,
            next_run: 1000,
        })
    }

    fn greet(&mut self) {
        let hello = self.hello(0);
        self.send(&hello);
    }
}

fn end(run: u64) -> FromInit {
    let end = End {
        how: How::Exited,
        exit_code: 0,
        cwd: b"/\xff\xfe".to_vec(),
        duration_ms: 1,
        shell_restarted: false,
        state_lost: false,
        output_bytes: 0,
        dropped_bytes: 0,
        seq: 1_000_000_000,
    };
    FromInit::End { run, end }
}

fn output(run: u64, seq: u64, data: &[u8]) -> FromInit {
    let record = Record { seq, stream: Stream::Output, at_ms: 0, data: data.to_vec() };
    FromInit::Output { run, records: vec![record] }
}

fn known(run: u64, note: &[u8]) -> FromInit {
    let begun = Some(Begun { at_ms: i64::MIN, pid: Some(-1) });
    FromInit::Known(Known { run, note: note.to_vec(), begun, end: None, settled: None })
}

/// Puts a false init in the place of a session's and looks at what becomes of a command there.
#[track_caller]
fn behind(act: fn(&mut Fake), judge: fn(&Answer)) {
    let mut lab = Lab::start();
    let make = |lab: &Lab| {
        let info = lab.client.post("/v1/sessions", &json!({})).ok(201);
        info["id"].as_str().expect("an id").to_owned()
    };
    let (victim, neighbour) = (make(&lab), make(&lab));
    lab.known(&neighbour).run("K=kept");
    lab.known(&victim).alive();
    lab.kill();
    let listener = in_place_of(&lab, &victim);
    let actor = std::thread::spawn(move || act(&mut Fake::accept(&listener)));
    lab.restart();
    let before = host::anonymous_bytes(lab.pid());
    let mut most = before;
    let pid = lab.pid();
    let look = || {
        most = most.max(host::anonymous_bytes(pid));
        std::thread::yield_now();
    };
    let (answer, took) = wait::meanwhile(look, || {
        timed(|| {
            let request = json!({ "cmd": "echo x", "timeout_ms": 500 });
            let answer = lab.known(&victim).try_exec(&request);
            lab.known(&neighbour).alive();
            answer
        })
    });
    judge(&answer);
    assert!(took < DEADLINE, "the command was answered after {took:?}: {answer}");
    assert!(most < before + GROWTH, "the daemon grew by {} MiB", (most - before) / MIB as u64);
    assert_eq!(lab.known(&neighbour).run("echo $K"), "kept\n");
    assert!(!lab.log().contains("panicked"), "{}", lab.log());
    // Nothing is left to talk to.
    let deleted = lab.client.delete(&format!("/v1/sessions/{victim}"));
    assert_eq!(deleted.status(), 200, "{deleted}");
    actor.join().expect("the false init");
    lab.session(&json!({})).alive();
}

/// The socket of a session, listened on by this test instead.
fn in_place_of(lab: &Lab, session: &str) -> UnixListener {
    let dir = lab.data_dir.join("sessions").join(session);
    std::fs::rename(dir.join("control.sock"), dir.join("control.real")).expect("put it aside");
    // The path of a socket has 107 bytes at most: by a descriptor it is short.
    let folder = std::fs::File::open(&dir).expect("the folder");
    let number = std::os::fd::AsRawFd::as_raw_fd(&folder);
    let path = PathBuf::from(format!("/proc/self/fd/{number}/control.sock"));
    UnixListener::bind(path).expect("listen")
}

fn is_error(answer: &Answer) {
    assert!(matches!(answer.status(), 410 | 500), "{answer}");
    let code = if answer.status() == 410 { "SESSION_CRASHED" } else { "INTERNAL_ERROR" };
    answer.error(answer.status(), code);
}

/// What a false init may say of its own session's shell.
fn is_anything(answer: &Answer) {
    assert!(matches!(answer.status(), 200 | 410 | 500), "{answer}");
}

macro_rules! inits {
    ($($name:ident: $judge:ident, $act:expr;)+) => {
        $(#[test]
        fn $name() {
            behind($act, $judge);
        })+
    };
}

inits! {
    x_10_silent: is_error, |fake| fake.stay();
    x_10_silent_behind_its_hello: is_error, |fake| {
        fake.greet();
        fake.stay();
    };
    x_10_a_byte_a_second: is_error, |fake| {
        let hello = encode(&fake.hello(0), FROM_INIT_BYTES_MAX).expect("a frame");
        drip(fake, &hello);
    };
    x_10_a_byte_a_second_behind_its_hello: is_error, |fake| {
        fake.greet();
        let Some(run) = fake.begin() else { return };
        let end = encode(&end(run), FROM_INIT_BYTES_MAX).expect("a frame");
        drip(fake, &end);
    };
    x_10_a_length_of_4_gib: is_error, |fake| {
        fake.greet();
        fake.begin();
        fake.raw(&[0xFF; 4]);
        fake.stay();
    };
    x_10_a_length_just_over_the_limit: is_error, |fake| {
        fake.greet();
        fake.begin();
        let length = u32::try_from(FROM_INIT_BYTES_MAX + 1).expect("a length");
        fake.raw(&length.to_le_bytes());
        fake.raw(&vec![0; FROM_INIT_BYTES_MAX + 1]);
        fake.stay();
    };
    x_10_the_end_of_another_command: is_error, |fake| {
        fake.greet();
        let Some(run) = fake.begin() else { return };
        fake.send(&end(run + 1));
        fake.stay();
    };
    x_10_output_of_another_command: is_error, |fake| {
        fake.greet();
        let Some(run) = fake.begin() else { return };
        fake.send(&output(run + 1, 1, b"x"));
        fake.stay();
    };
    x_10_two_ends: is_anything, |fake| {
        fake.greet();
        let Some(run) = fake.begin() else { return };
        fake.send(&end(run));
        fake.send(&end(run));
        fake.stay();
    };
    x_10_two_runs_of_one_id: is_error, |fake| {
        let hello = fake.hello(2);
        fake.send(&hello);
        fake.send(&known(5, b""));
        fake.send(&known(5, b""));
        fake.stay();
    };
    x_10_more_runs_than_there_can_be: is_error, |fake| {
        let hello = fake.hello(u32::MAX);
        fake.send(&hello);
        for run in 1..10_000 {
            if !fake.send(&known(run, b"")) {
                break;
            }
        }
        fake.stay();
    };
    x_10_a_note_that_is_none: is_error, |fake| {
        let hello = fake.hello(1);
        fake.send(&hello);
        fake.send(&known(5, b"\xff\xfe\0{\"exec_id\":"));
        fake.stay();
    };
    x_10_bad_utf8_everywhere: is_anything, |fake| {
        fake.greet();
        let Some(run) = fake.begin() else { return };
        fake.send(&output(run, 1, b"\xff\xc3\xed\xa0\x80"));
        fake.send(&end(run));
        fake.stay();
    };
    x_10_a_second_hello: is_error, |fake| {
        fake.greet();
        fake.begin();
        fake.greet();
        fake.stay();
    };
    x_10_answers_that_nobody_asked_for: is_error, |fake| {
        fake.greet();
        fake.begin();
        let part = Part { items: Vec::new(), then: Then::More };
        fake.send(&FromInit::Replayed { tag: 7, part: Some(part) });
        fake.send(&FromInit::File { tag: 7, result: Err(FileFault::NotFound) });
        fake.stay();
    };
    x_10_a_close_in_mid_frame: is_error, |fake| {
        fake.greet();
        let Some(run) = fake.begin() else { return };
        let end = encode(&end(run), FROM_INIT_BYTES_MAX).expect("a frame");
        fake.raw(&end[..end.len() - 1]);
    };
    x_10_bytes_of_no_frame: is_error, |fake| {
        fake.greet();
        fake.begin();
        while fake.raw(&[0x21, 0, 0, 0, 0x7F, 0x80, 0xFF]) {}
    };
    x_10_a_million_tiny_frames: is_error, |fake| {
        fake.greet();
        let Some(run) = fake.begin() else { return };
        for seq in 1..=1_000_000 {
            if !fake.send(&output(run, seq, b"x")) {
                return;
            }
        }
        fake.stay();
    };
    x_10_a_million_that_mean_nothing: is_error, |fake| {
        fake.greet();
        let Some(run) = fake.begin() else { return };
        let taken = encode(&FromInit::Taken { run, bytes: 0 }, FROM_INIT_BYTES_MAX).expect("a frame");
        let many = taken.repeat(1000);
        for _ in 0..1000 {
            if !fake.raw(&many) {
                return;
            }
        }
        fake.stay();
    };
}

/// Sends a byte a second until the daemon has closed.
fn drip(fake: &mut Fake, bytes: &[u8]) {
    let mut fake_again = fake.stream.try_clone().expect("a descriptor");
    for byte in bytes {
        if fake_again.write_all(&[*byte]).is_err() {
            return;
        }
        wait::prescribed(Duration::from_secs(1));
    }
    fake.stay();
}
