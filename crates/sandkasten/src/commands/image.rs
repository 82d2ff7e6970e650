//! `sandkasten image`: the image store of the data directory, without the daemon.

mod ending;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use sandkasten_engine::build::{BuildEnv, Recipe};
use sandkasten_engine::image::{Digest, Image, ImageConfig, ImageError, Kind, Store};
use sandkasten_jail::launcher::Launcher;
use sandkasten_types::ImageName;
use sandkasten_types::session::Session;
use serde_json::{Value, json};

use self::ending::Ending;
use crate::client::Client;
use crate::config::{RUN_DIR, Sources, absolute};
use crate::context::Context;
use crate::failure::{Failure, Result, Tried};
use crate::instance;
use crate::output::{size, table};
use crate::reach;

/// Build, import, list and remove images.
///
/// These work on the data directory itself, with and without a running daemon.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Build(Build),
    Import(Import),
    List(List),
    Rm(Rm),
}

/// Build an image from its recipe, or take it from the cache folder.
///
/// Ctrl-C gives it up at any time, and leaves nothing but downloads in the cache folder. The cache folder is SANDKASTEN_CACHE_DIR, else `sandkasten` below XDG_CACHE_HOME or ~/.cache.
#[derive(Debug, clap::Args)]
struct Build {
    /// Which recipe
    recipe: Name,
    /// Make its layers anew, even if the cache has them
    #[arg(long)]
    rebuild: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Name {
    /// bash, coreutils, git, curl
    Base,
    /// base with Python, pip, uv and packages for data
    Python,
}

/// Import a root file system (tar or tar.gz) as an image.
///
/// `docker export` and `mmdebstrap` write such files. What the file is its content says, not its name.
#[derive(Debug, clap::Args)]
struct Import {
    /// The archive; - is standard input
    file: PathBuf,
    /// Name of the image; one of that name is replaced
    #[arg(long)]
    name: ImageName,
    /// A variable of its environment; may be given more than once
    #[arg(long, value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Working directory that the image names; sessions start in /workspace whatever it says
    #[arg(long, value_name = "DIR")]
    workdir: Option<String>,
    /// User that the image names
    #[arg(long)]
    user: Option<String>,
}

/// List the images.
#[derive(Debug, clap::Args)]
struct List {}

/// Remove an image that no session uses.
#[derive(Debug, clap::Args)]
struct Rm {
    /// Name of the image
    name: ImageName,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8> {
    reach::refuse_url("image", context)?;
    reach::need_root("image", context)?;
    match &args.command {
        Command::Build(args) => build(args, context),
        Command::Import(args) => import(args, context),
        Command::List(_) => list(context),
        Command::Rm(args) => remove(args, context),
    }
}

fn build(args: &Build, context: &Context) -> Result<u8> {
    let ending = Ending::watch()?;
    let launcher = Launcher::spawn().tried(|| "launcher".to_owned())?;
    let store = open(context)?.cancelled_by(ending.cancel());
    let env = BuildEnv {
        cache_dir: cache_dir(&context.sources)?,
        run_dir: RUN_DIR.into(),
        launcher,
        rebuild: args.rebuild,
        cancel: ending.cancel(),
    };
    let recipe = match args.recipe {
        Name::Base => Recipe::Base,
        Name::Python => Recipe::Python,
    };
    let notes = |text: &str| crate::output::progress(text);
    let built = ending.runtime().block_on(async {
        tokio::select! {
            built = sandkasten_engine::build::build(&store, recipe, env, notes) => Some(built),
            // Dropping the build ends and removes what it has begun.
            () = ending.asked() => None,
        }
    });
    show(&ending.judge(built)?, context);
    Ok(0)
}

fn import(args: &Import, context: &Context) -> Result<u8> {
    let ending = Ending::watch()?;
    let archive = if args.file.as_os_str() == "-" {
        let stdin = io::stdin().as_fd().try_clone_to_owned();
        File::from(stdin.tried(|| "standard input".to_owned())?)
    } else {
        let tried = || args.file.display().to_string();
        let file = File::open(&args.file).tried(tried)?;
        if file.metadata().tried(tried)?.is_dir() {
            return Err(directory(&args.file));
        }
        file
    };
    let config = ImageConfig {
        env: args.env.clone(),
        workdir: args.workdir.clone(),
        user: args.user.clone(),
        ..ImageConfig::default()
    };
    let store = open(context)?.cancelled_by(ending.cancel());
    let imported = store.import(ending.reader(archive), &args.name, config);
    show(&ending.judge(Some(imported))?, context);
    Ok(0)
}

fn directory(path: &Path) -> Failure {
    let failure = Failure::new(format!("{}: is a directory", path.display()));
    if path.join("oci-layout").exists() {
        let message = format!("{}: is a directory with an OCI image layout", path.display());
        return Failure { message, ..failure }.hint(Kind::OciLayout.way_out());
    }
    failure.hint(format!(
        "pack it, if it is a root file system: `tar -C {0} -c . | sandkasten image import - --name NAME`",
        path.display()
    ))
}

fn list(context: &Context) -> Result<u8> {
    let images = open(context)?.list().map_err(failure)?;
    let values: Vec<Value> = images.iter().map(value).collect();
    context.output.result(&json!({"images": values}), || {
        let row = |image: &Image| {
            vec![image.name.to_string(), image.layers.len().to_string(), size(image.size_bytes)]
        };
        table(&["IMAGE", "LAYERS", "SIZE"], &images.iter().map(row).collect::<Vec<_>>())
    });
    Ok(0)
}

fn remove(args: &Rm, context: &Context) -> Result<u8> {
    let store = open(context)?;
    let in_use = in_use(&store, context)?;
    store.remove(&args.name, &in_use).map_err(failure)?;
    context.output.result(&json!({"ok": true}), || format!("removed {}", args.name));
    Ok(0)
}

/// Layers of the sessions that a running daemon has. Without a daemon nobody makes sessions, and
/// layers stay until the next one collects them.
fn in_use(store: &Store, context: &Context) -> Result<Vec<Digest>> {
    if instance::find(&context.load()?.settings.data_dir)?.is_none() {
        return Ok(Vec::new());
    }
    let sessions: Vec<Session> = Client::of_data_dir(context)?.list("/v1/sessions")?;
    let images = sessions.iter().filter_map(|session| store.get(&session.image).ok());
    Ok(images.flat_map(|image| image.layers).collect())
}

fn open(context: &Context) -> Result<Store> {
    let data_dir = absolute(&context.load()?.settings.data_dir);
    instance::prepare(&data_dir)?;
    Store::open(&data_dir).tried(|| "images".to_owned())
}

fn show(image: &Image, context: &Context) {
    context.output.result(&value(image), || {
        format!("{}: {} layers, {}", image.name, image.layers.len(), size(image.size_bytes))
    });
}

fn value(image: &Image) -> Value {
    json!({
        "name": image.name, "layers": image.layers, "size_bytes": image.size_bytes,
        "config": image.config,
    })
}

/// Where downloads and built layers are kept.
fn cache_dir(sources: &Sources) -> Result<PathBuf> {
    if let Some(dir) = sources.variable("SANDKASTEN_CACHE_DIR") {
        let dir = sources.path(dir.as_ref());
        let dir = dir.map_err(|why| Failure::new(format!("SANDKASTEN_CACHE_DIR: {why}")))?;
        return Ok(absolute(&dir));
    }
    let base = match (sources.variable("XDG_CACHE_HOME"), sources.variable("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => {
            let message = "no cache folder: neither XDG_CACHE_HOME nor HOME is set";
            return Err(Failure::new(message).hint("set SANDKASTEN_CACHE_DIR"));
        }
    };
    Ok(absolute(&base.join("sandkasten")))
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("not as in NAME=VALUE")?;
    if name.is_empty() || text.contains('\0') {
        return Err("not as in NAME=VALUE".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn failure(why: ImageError) -> Failure {
    let failure = Failure::because("image", &why);
    // The error's own text says already what it is about.
    let failure = Failure { message: why.to_string(), ..failure };
    match why {
        ImageError::NotFound(_) => {
            failure.hint("`sandkasten image list` shows the images there are")
        }
        ImageError::InUse(_) => {
            failure.hint("delete its sessions first; `sandkasten ps` shows them")
        }
        ImageError::NotRootfs(given) => failure.hint(given.kind.way_out()),
        ImageError::Invalid(_) | ImageError::NoSpace | ImageError::Build(_) | ImageError::Io(_) => {
            failure
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_cache_folder_is_outside_the_checkout() {
        let mut sources = Sources::default();
        assert!(cache_dir(&sources).is_err());
        sources.environment.insert("HOME".into(), "/root".into());
        assert_eq!(cache_dir(&sources).unwrap(), PathBuf::from("/root/.cache/sandkasten"));
        sources.environment.insert("XDG_CACHE_HOME".into(), "/c".into());
        assert_eq!(cache_dir(&sources).unwrap(), PathBuf::from("/c/sandkasten"));
        sources.environment.insert("SANDKASTEN_CACHE_DIR".into(), "/d".into());
        assert_eq!(cache_dir(&sources).unwrap(), PathBuf::from("/d"));
        sources.environment.insert("SANDKASTEN_CACHE_DIR".into(), "~/d".into());
        assert_eq!(cache_dir(&sources).unwrap(), PathBuf::from("/root/d"));
    }

    #[test]
    fn variables_have_a_name_and_a_value() {
        assert_eq!(variable("A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert!(variable("A").is_err() && variable("=b").is_err());
    }
}
