//! Request bodies: read at a pace, up to a limit, within the memory budget; what nobody wants is dropped.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use sandkasten_types::limits;
use tokio::time::{Instant, timeout_at};

use crate::budget::{Budget, Share};
use crate::error::ApiError;
use crate::traffic::Busy;

/// A request's body on its way to a handler.
///
/// A handler that answers early just drops it: the rest is read and thrown away beside the answer, so
/// that the client, still sending, sees the answer and not a reset.
#[derive(Debug)]
pub(crate) struct RequestBody {
    inner: Option<Incoming>,
    busy: Busy,
    continues: Continue,
}

/// Whether the client waits for a `100 Continue` before it sends the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continue {
    Awaited,
    /// Not awaited, or already sent.
    Done,
}

impl RequestBody {
    pub(crate) fn new(inner: Incoming, busy: Busy, continues: Continue) -> Self {
        Self { inner: Some(inner), busy, continues }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.continues = Continue::Done;
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let polled = Pin::new(inner).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.inner = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        // A client that waits for a `100 Continue` takes the answer instead and sends nothing.
        if self.is_end_stream() || self.continues == Continue::Awaited {
            return;
        }
        if let Some(rest) = self.inner.take() {
            tokio::spawn(drain(rest, self.busy.clone()));
        }
    }
}

/// Reads on until the end, the limit or the time is reached. Then hyper closes the connection.
async fn drain(mut rest: Incoming, _busy: Busy) {
    let read_on = async {
        let mut dropped = 0;
        while let Some(Ok(frame)) = rest.frame().await {
            dropped += frame.data_ref().map_or(0, Bytes::len) as u64;
            if dropped > limits::BODY_BYTES_DRAINED {
                return;
            }
        }
    };
    // Out of time is as good as read.
    drop(tokio::time::timeout(Duration::from_secs(limits::BODY_GRACE_SECONDS), read_on).await);
}

/// Takes a body piece by piece.
#[derive(Debug)]
pub(crate) struct Reader {
    body: Body,
    pace: Pace,
    start: Instant,
    received: u64,
}

/// How slowly a body may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// Not too slowly: it holds memory meanwhile.
    Steady,
    /// As slowly as it likes: what came is not held, and who takes it may be slow.
    Any,
}

impl Reader {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, pace: Pace::Steady, start: Instant::now(), received: 0 }
    }

    /// For a body whose pieces are handed on at once.
    pub(crate) fn at_any_pace(body: Body) -> Self {
        Self { pace: Pace::Any, ..Self::new(body) }
    }

    /// What `Content-Length` says.
    pub(crate) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// 400 where the body breaks off, is malformed or too slow.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let frame = match self.pace {
                Pace::Any => self.body.frame().await,
                Pace::Steady => timeout_at(self.deadline(), self.body.frame())
                    .await
                    .map_err(|_cause| ApiError::invalid("the body came too slowly"))?,
            };
            match frame {
                None => return Ok(None),
                Some(Err(_)) => {
                    return Err(ApiError::invalid("the body broke off or is not well framed"));
                }
                Some(Ok(frame)) => {
                    // Trailers say nothing to us.
                    if let Ok(data) = frame.into_data()
                        && !data.is_empty()
                    {
                        self.received += data.len() as u64;
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    fn deadline(&self) -> Instant {
        let silence = Instant::now() + Duration::from_secs(limits::BODY_SILENCE_SECONDS);
        let seconds = self.received / limits::BODY_BYTES_PER_SECOND_MIN;
        let pace = self.start + Duration::from_secs(limits::BODY_GRACE_SECONDS + seconds);
        silence.min(pace)
    }
}

/// Reads a whole body of at most `limit` bytes. The share covers it twice: what is parsed from it lives
/// beside it.
///
/// # Errors
/// 413 over the limit, 503 where memory is short, 400 as [`Reader::next`].
pub(crate) async fn collect(
    body: Body,
    limit: usize,
    budget: &Budget,
) -> Result<(Vec<u8>, Share), ApiError> {
    let mut reader = Reader::new(body);
    let length = reader.length();
    check_length(length, limit as u64)?;
    let mut share = budget.try_take(2 * length.unwrap_or(0))?;
    let mut bytes = Vec::with_capacity(usize::try_from(length.unwrap_or(0)).unwrap_or(0));
    while let Some(piece) = reader.next().await? {
        let total = bytes.len() + piece.len();
        if total > limit {
            return Err(ApiError::too_large("the body", None, limit as u64));
        }
        if total > bytes.capacity() {
            // Twice its size now, twice again for what is parsed from it.
            share.grow_to(4 * total as u64)?;
            bytes.reserve(total);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok((bytes, share))
}

/// # Errors
/// 413 where the announced length is over the limit.
pub(crate) fn check_length(length: Option<u64>, limit: u64) -> Result<(), ApiError> {
    match length {
        Some(length) if length > limit => {
            Err(ApiError::too_large("the body", length.into(), limit))
        }
        _ => Ok(()),
    }
}
