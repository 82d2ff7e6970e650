//! What README and the pages of `docs` say is done as it stands there, as a reader would do it.
//!
//! Invariant: every fenced block is run, parsed, or marked as not run with a reason that [`blocks`]
//! knows. A block that is marked as output is compared with what the block before it wrote. So a page
//! can't promise what the daemon does not do.

mod blocks;
mod links;
mod pages;
mod readme;
mod script;
