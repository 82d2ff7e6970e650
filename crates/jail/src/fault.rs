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
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static CHOSEN: OnceLock<Option<u64>> = OnceLock::new();
    static REACHED: AtomicU64 = AtomicU64::new(0);
    #[expect(clippy::disallowed_methods, reason = "a switch of test builds; not configuration")]
    let chosen = CHOSEN
        .get_or_init(|| std::env::var("SANDKASTEN_FAIL_AT").ok().and_then(|n| n.parse().ok()));
    let reached = REACHED.fetch_add(1, Ordering::Relaxed) + 1;
    if *chosen == Some(reached) {
        return Err(io::Error::other(format!("injected fault at `{name}`")));
    }
    Ok(())
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
