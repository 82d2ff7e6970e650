//! Accepts connections, up to a number of them, until the daemon stops.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sandkasten_types::limits::{CONNECTIONS_MAX, CONNECTIONS_REFUSED_MAX, DRAIN_MS};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::connection;
use crate::edge::Edge;
use crate::error::{ApiError, whole_answer};

/// How long a refused connection is held so that its client sees the answer and not a reset.
const REFUSED: Duration = Duration::from_secs(1);
/// Connections that may wait to be accepted; the kernel's own limit is 4096. With the usual 128 a burst
/// overflows it, and who does not fit tries again only after a second.
const BACKLOG: i32 = 4096;
/// Bytes of answers that the kernel takes of a connection before the last ones have left. Without a bound
/// it takes 4 MiB for a client that reads nothing, and the daemon makes them. What is under way to a client
/// that reads does not count. See `TCP_NOTSENT_LOWAT`, tcp(7).
const UNSENT_BYTES_MAX: u32 = 256 * 1024;
/// How long to leave the listener alone when the host is out of descriptors or memory. There is no
/// event that says there are some again.
const PAUSE: Duration = Duration::from_millis(100);

/// Places for connections.
#[derive(Debug)]
struct Places {
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
}

/// Serves until `edge.draining` is cancelled, then for as long as requests run, [`DRAIN_MS`] at most.
pub(crate) async fn run(listener: TcpListener, edge: Arc<Edge>) -> io::Result<()> {
    rustix::net::listen(&listener, BACKLOG)?;
    // Connections inherit it.
    SockRef::from(&listener).set_tcp_notsent_lowat(UNSENT_BYTES_MAX)?;
    let places = Places {
        served: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
        refused: Arc::new(Semaphore::new(CONNECTIONS_REFUSED_MAX)),
    };
    let stop = drained(&edge);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => places.seat(stream, &edge),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    }
}

/// Returns when the daemon stops and its running requests have ended or had their time.
async fn drained(edge: &Edge) {
    edge.draining.cancelled().await;
    let limit = Duration::from_millis(DRAIN_MS);
    // What still runs then ends with the engine.
    drop(tokio::time::timeout(limit, edge.metrics.no_request_runs()).await);
}

impl Places {
    fn seat(&self, stream: TcpStream, edge: &Arc<Edge>) {
        let edge = Arc::clone(edge);
        if let Ok(place) = Arc::clone(&self.served).try_acquire_owned() {
            let metrics = Arc::clone(&edge.metrics);
            let open = metrics.connection_opened();
            tokio::spawn(async move {
                connection::drive(stream, edge).await;
                drop((open, place));
            });
        } else {
            refuse(&stream);
            if let Ok(place) = Arc::clone(&self.refused).try_acquire_owned() {
                tokio::spawn(async move {
                    connection::linger(&stream, REFUSED).await;
                    drop(place);
                });
            }
        }
    }
}

/// Tells a client that there are too many, whatever it is going to ask.
fn refuse(stream: &TcpStream) {
    let error = ApiError::overloaded("too many connections; try again");
    let answer = whole_answer(&error, stream.peer_addr().ok());
    // The buffer of a fresh socket has room; a client that is gone already needs no answer.
    let sent = rustix::io::write(stream, &answer);
    let closed = rustix::net::shutdown(stream, rustix::net::Shutdown::Write);
    if let Err(error) = sent.and(closed) {
        tracing::debug!(%error, "refused connection");
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::ConnectionAborted | K::ConnectionReset | K::ConnectionRefused)
}
