//! The wire: clients that others wrote, the traps that they set, and cases from the field.
//!
//! Every answer and every event that these tests see, errors too, is judged by the daemon's own
//! OpenAPI document (`sandkasten_e2e::openapi`); foreign clients talk through a recorder.

mod cases;
mod clients;
mod contract;
mod listing;
mod long;
mod traps;
