//! Accepts connections, up to a number of them, until the daemon stops.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sandkasten_types::limits::{CONNECTIONS_MAX, CONNECTIONS_REFUSED_MAX, DRAIN_SECONDS};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection;
use crate::edge::Edge;
use crate::error::{ApiError, whole_answer};

/// What a refused client may send before it must read: a common request in full.
const REFUSED_READ_BYTES: usize = 16 * 1024;
const REFUSED: Duration = Duration::from_secs(2);
/// How long to leave the listener alone when the host is out of descriptors or memory. There is no
/// event that says there are some again.
const PAUSE: Duration = Duration::from_millis(100);

/// Places for connections.
#[derive(Debug)]
struct Places {
    served: Arc<Semaphore>,
    refused: Arc<Semaphore>,
}

/// Serves until `edge.draining` is cancelled, then for as long as requests run, [`DRAIN_SECONDS`] at
/// most.
pub(crate) async fn run(listener: TcpListener, edge: Arc<Edge>) -> io::Result<()> {
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
    let limit = Duration::from_secs(DRAIN_SECONDS);
    if tokio::time::timeout(limit, edge.metrics.no_request_runs()).await.is_err() {
        tracing::warn!("requests still run; the daemon stops without them");
    }
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
        } else if let Ok(place) = Arc::clone(&self.refused).try_acquire_owned() {
            tokio::spawn(refuse(stream, place));
        }
    }
}

/// Tells a client that there are too many, whatever it asks.
async fn refuse(mut stream: TcpStream, _place: OwnedSemaphorePermit) {
    let answer = async {
        let error = ApiError::overloaded("too many connections; try again");
        let mut scrap = vec![0; REFUSED_READ_BYTES];
        stream.readable().await?;
        // Unread bytes at a close would make it a reset and could destroy the answer.
        drop(stream.try_read(&mut scrap));
        stream.write_all(&whole_answer(&error)).await?;
        stream.shutdown().await
    };
    // A client that is refused and too slow gets no more of us.
    drop(tokio::time::timeout(REFUSED, answer).await);
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::ConnectionAborted | K::ConnectionReset | K::ConnectionRefused)
}
