//! What goes wrong on the host: steps that fail, and a full disk.

mod full_disk;
mod steps;
