//! An init that says what a test wants: it takes the place of a real one's socket while no engine is
//! there.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sandkasten_protocol::{
    Begun, Decoder, End, FROM_INIT_BYTES_MAX, FromInit, Hello, How, Known, Record, Shell, Stream,
    TO_INIT_BYTES_MAX, ToInit, VERSION, encode,
};
use sandkasten_types::SessionId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::{Lab, labs, runtime, start};

/// The other end of an engine's connection.
pub(crate) struct Fake {
    stream: UnixStream,
    decoder: Decoder<ToInit>,
}

/// Runs a test with an engine that takes a fake init, which knows those runs, for a session's own.
pub(crate) fn with_fake<F: Future<Output = Lab>>(
    known: Vec<Known>,
    test: impl FnOnce(Lab, SessionId, Fake) -> F,
) {
    with_fakes(|first| async move { first.start(known).await }, test);
}

/// The same where the engine's start is a part of the test.
pub(crate) fn with_fakes<S, F>(
    begin: impl FnOnce(Place) -> S,
    test: impl FnOnce(Lab, SessionId, Fake) -> F,
) where
    S: Future<Output = (Lab, Fake)>,
    F: Future<Output = Lab>,
{
    labs(|dir| {
        let id = runtime().block_on(async {
            let lab = start(dir).await;
            let id = lab.create().await.id;
            lab.engine.stop().await;
            id
        });
        runtime().block_on(async {
            let place = Place { dir: dir.to_owned(), socket: socket(dir) };
            let all = async {
                let (lab, fake) = begin(place).await;
                test(lab, id, fake).await
            };
            let lab = tokio::time::timeout(Duration::from_secs(60), all).await.expect("in time");
            lab.end().await;
        });
    });
}

/// Where an engine will look for its session's init.
pub(crate) struct Place {
    dir: PathBuf,
    socket: PathBuf,
}

impl Place {
    /// Starts an engine that attaches to a fake init.
    pub(crate) async fn start(&self, known: Vec<Known>) -> (Lab, Fake) {
        let next_run = known.last().map_or(1, |last| last.run + 1);
        let runs = u32::try_from(known.len()).unwrap();
        let (lab, fake) = self.start_with(next_run, runs, known).await;
        (lab, fake.unwrap())
    }

    pub(crate) async fn start_with(
        &self,
        next_run: u64,
        runs: u32,
        known: Vec<Known>,
    ) -> (Lab, Option<Fake>) {
        // The real init still listens, and nobody finds it.
        drop(std::fs::remove_file(&self.socket));
        let listener = UnixListener::bind(&self.socket).unwrap();
        let fake = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut fake = Fake { stream, decoder: Decoder::new(TO_INIT_BYTES_MAX) };
            let ToInit::Attach { nonce, .. } = fake.next().await else { panic!("no attach") };
            fake.send(&FromInit::Hello(Hello {
                version: VERSION,
                nonce,
                shell: Some(Shell::Bash),
                cwd: b"/tmp".to_vec(),
                runs,
                next_run,
                cwd_fault: None,
            }))
            .await;
            for known in known {
                if fake.try_send(&FromInit::Known(known)).await.is_err() {
                    return None;
                }
            }
            Some(fake)
        });
        let lab = start(&self.dir).await;
        (lab, fake.await.unwrap())
    }
}

fn socket(dir: &Path) -> PathBuf {
    let mut folders = vec![dir.join("sessions")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_socket() && entry.file_name() == "control.sock" {
                return entry.path();
            }
            let is_scratch = matches!(entry.file_name().to_str(), Some("upper" | "work"));
            if kind.is_dir() && !is_scratch {
                folders.push(entry.path());
            }
        }
    }
    panic!("no control socket");
}

impl Fake {
    pub(crate) async fn next(&mut self) -> ToInit {
        tokio::time::timeout(Duration::from_secs(10), self.read()).await.expect("a frame")
    }

    async fn read(&mut self) -> ToInit {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return frame;
            }
            let mut bytes = vec![0; 64 * 1024];
            let read = self.stream.read(&mut bytes).await.unwrap();
            assert!(read > 0, "the engine closed the connection");
            self.decoder.push(bytes.get(..read).unwrap());
        }
    }

    /// Nothing comes for a while.
    pub(crate) async fn is_left_alone(&mut self) {
        let next = tokio::time::timeout(Duration::from_millis(100), self.read()).await;
        assert!(next.is_err(), "{next:?}");
    }

    pub(crate) async fn send(&mut self, frame: &FromInit) {
        self.try_send(frame).await.unwrap();
    }

    pub(crate) async fn try_send(&mut self, frame: &FromInit) -> std::io::Result<()> {
        self.stream.write_all(&encode(frame, FROM_INIT_BYTES_MAX).unwrap()).await
    }

    pub(crate) async fn begin(&mut self) -> (sandkasten_protocol::Run, sandkasten_protocol::Task) {
        let frame = self.next().await;
        let ToInit::Begin { run, task } = frame else { panic!("{frame:?}") };
        (run, task)
    }

    pub(crate) async fn end(&mut self, run: u64, end: End) {
        self.send(&FromInit::End { run, end }).await;
        let settled = self.next().await;
        assert!(matches!(settled, ToInit::Settle { run: of, .. } if of == run), "{settled:?}");
    }
}

pub(crate) fn record(seq: u64, data: &[u8]) -> Record {
    record_of(seq, Stream::Output, data)
}

pub(crate) fn record_of(seq: u64, stream: Stream, data: &[u8]) -> Record {
    Record { seq, stream, at_ms: 1000 + i64::try_from(seq).unwrap(), data: data.to_vec() }
}

/// An end with that number, of a run that wrote something before it.
pub(crate) fn end(seq: u64, how: How, exit_code: i32) -> End {
    End {
        how,
        exit_code,
        cwd: b"/tmp".to_vec(),
        duration_ms: 7,
        shell_restarted: false,
        state_lost: false,
        output_bytes: 3,
        dropped_bytes: 0,
        seq,
    }
}

pub(crate) fn begun(pid: Option<i32>) -> Begun {
    Begun { at_ms: 1_700_000_000_000, pid }
}
