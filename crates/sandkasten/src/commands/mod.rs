//! One file a command. Its help is the doc comment of its `Args`.

pub(crate) mod bench;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod exec;
pub(crate) mod image;
pub(crate) mod ps;
pub(crate) mod run;
pub(crate) mod stop;
pub(crate) mod version;
