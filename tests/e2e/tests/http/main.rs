//! The door: keys, limits, hostile peers, and what errors, logs and metrics give away.

mod alone;
mod door;
mod limits;
mod operator;
mod traces;
