//! One file a command. Its help is the doc comment of its `Args`.

pub(crate) mod bench;
mod call;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod flags;
pub(crate) mod image;
pub(crate) mod ps;
pub(crate) mod result;
pub(crate) mod run;
mod sessions;
pub(crate) mod stop;
pub(crate) mod version;
