//! sandkasten
mod config;
mod failure;
fn main() {}
