//! Places where a test makes an operation fail.
//!
//! Without the cargo feature `fault-injection`, a point does nothing and costs nothing. With it, the
//! variable `SANDKASTEN_FAIL_AT=N` lets the N-th point that the process reaches fail with `EIO`.

use std::io;

/// A place that can fail.
///
/// # Errors
/// `EIO` where this is the point that a test chose.
#[cfg(feature = "fault-injection")]
pub fn point(name: &'static str) -> io::Result<()> {
    use std::sync::atomic::Ordering;

    let reached = counting::REACHED.fetch_add(1, Ordering::Relaxed) + 1;
    if counting::chosen().load(Ordering::Relaxed) == reached {
        return Err(io::Error::other(format!("injected fault at `{name}`")));
    }
    Ok(())
}

/// Lets the `n`-th point from now fail, in this process; 0: none.
#[cfg(feature = "fault-injection")]
pub fn fail_at(n: u64) {
    use std::sync::atomic::Ordering;

    counting::chosen().store(n, Ordering::Relaxed);
    counting::REACHED.store(0, Ordering::Relaxed);
}

#[cfg(feature = "fault-injection")]
mod counting {
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;

    pub(super) static REACHED: AtomicU64 = AtomicU64::new(0);

    #[expect(clippy::disallowed_methods, reason = "a switch of test builds; not configuration")]
    pub(super) fn chosen() -> &'static AtomicU64 {
        static CHOSEN: OnceLock<AtomicU64> = OnceLock::new();
        let read = || std::env::var("SANDKASTEN_FAIL_AT").ok().and_then(|n| n.parse().ok());
        CHOSEN.get_or_init(|| AtomicU64::new(read().unwrap_or(0)))
    }
}

/// A place that can fail, in builds with `fault-injection`.
///
/// # Errors
/// None in this build.
#[cfg(not(feature = "fault-injection"))]
#[inline]
pub fn point(_name: &'static str) -> io::Result<()> {
    Ok(())
}
