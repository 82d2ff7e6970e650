//! The suite `openapi`: the API document is valid, makes clients that work, and is true.

mod clients;
mod document;
mod properties;
mod tools;
