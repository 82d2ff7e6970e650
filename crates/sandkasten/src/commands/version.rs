//! `sandkasten version`.

use serde_json::json;

use crate::context::Context;
use crate::failure::Result;
use crate::reach;

/// Print the version.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args, context: &Context) -> Result<u8> {
    reach::refuse_url("version", context)?;
    let version = env!("CARGO_PKG_VERSION");
    context.output.result(&json!({"version": version}), || format!("sandkasten {version}"));
    Ok(0)
}
