//! How much memory bodies and answers may take, over all requests.
//!
//! Invariant: bytes are held only under a [`Share`] of at least their size. A request gets its share
//! before its body is read, or is turned away.

use std::sync::Arc;
use std::time::Duration;

use sandkasten_types::limits::{ANSWER_WAIT_SECONDS, BODIES_IN_MEMORY_MAX};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;

#[derive(Debug, Clone)]
pub(crate) struct Budget {
    bytes: Arc<Semaphore>,
}

/// Bytes of the budget; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    permit: OwnedSemaphorePermit,
    budget: Arc<Semaphore>,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes)) }
    }

    /// # Errors
    /// 503 where there is no room now.
    pub(crate) fn try_take(&self, bytes: u64) -> Result<Share, ApiError> {
        let count = count(bytes)?;
        let permit = Arc::clone(&self.bytes).try_acquire_many_owned(count);
        let permit = permit.map_err(|_cause| no_room())?;
        Ok(Share { permit, budget: Arc::clone(&self.bytes) })
    }

    /// Waits its turn, for a few seconds.
    ///
    /// # Errors
    /// 503 where there is no room in that time.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Share, ApiError> {
        let acquire = Arc::clone(&self.bytes).acquire_many_owned(count(bytes)?);
        let wait = Duration::from_secs(ANSWER_WAIT_SECONDS);
        match tokio::time::timeout(wait, acquire).await {
            Ok(Ok(permit)) => Ok(Share { permit, budget: Arc::clone(&self.bytes) }),
            Ok(Err(_)) | Err(_) => Err(no_room()),
        }
    }

    /// Waits as long as it takes: for an answer to something that already ran. One larger than the
    /// whole budget gets all of it.
    pub(crate) async fn take_patiently(&self, bytes: u64) -> Option<Share> {
        let most = u32::try_from(BODIES_IN_MEMORY_MAX).unwrap_or(u32::MAX);
        let count = u32::try_from(bytes).unwrap_or(u32::MAX).min(most);
        let permit = Arc::clone(&self.bytes).acquire_many_owned(count).await.ok()?;
        Some(Share { permit, budget: Arc::clone(&self.bytes) })
    }

    pub(crate) fn free_bytes(&self) -> usize {
        self.bytes.available_permits()
    }
}

impl Share {
    pub(crate) fn bytes(&self) -> u64 {
        self.permit.num_permits() as u64
    }

    /// Makes the share at least `bytes`.
    ///
    /// # Errors
    /// 503 where there is no room now.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), ApiError> {
        let more = bytes.saturating_sub(self.bytes());
        if more > 0 {
            let more = Arc::clone(&self.budget).try_acquire_many_owned(count(more)?);
            self.permit.merge(more.map_err(|_cause| no_room())?);
        }
        Ok(())
    }

    /// Gives back what is over `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        let over = self.bytes().saturating_sub(bytes);
        drop(self.permit.split(usize::try_from(over).unwrap_or(0)));
    }
}

fn count(bytes: u64) -> Result<u32, ApiError> {
    u32::try_from(bytes).map_err(|_cause| no_room())
}

fn no_room() -> ApiError {
    ApiError::overloaded("too many large requests at once; try again")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_share_comes_back_whole() {
        let budget = Budget::new(100);
        let mut share = budget.try_take(60).unwrap();
        assert!(budget.try_take(41).is_err());
        share.grow_to(90).unwrap();
        assert!(share.grow_to(101).is_err());
        share.shrink_to(10);
        assert_eq!(budget.free_bytes(), 90);
        drop(share);
        assert_eq!(budget.free_bytes(), 100);
    }
}
